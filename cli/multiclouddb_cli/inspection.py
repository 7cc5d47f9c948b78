"""`multiclouddb token inspect` shows the content of a token.

Cursors are opaque without their provider, and may contain a document's key. Therefore, only the size and a
digest of each cursor are shown. The size and digest are enough to see whether two tokens have the same
position.
"""

from __future__ import annotations

import hashlib
import time
from datetime import datetime
from typing import Any

import orjson
import typer

from multiclouddb_api.redaction import rfc3339
from multiclouddb_cli.screen import duration, moment, print_fields, print_table
from multiclouddb_spi.continuation.token import VERSION, Envelope, decode_token
from multiclouddb_spi.token_report import Standing, ending, issued_at, read_standings, watermark_of

__all__ = ["ago", "inspect"]


def inspect(token: str, *, as_json: bool) -> None:
    """Print the token's feed, its age, and what it covers."""
    envelope = decode_token(token)
    standings = read_standings(envelope)
    if as_json:
        typer.echo(orjson.dumps(_facts(token, envelope, standings)))
        return
    print_fields(_fields(token, envelope, standings))
    if standings:
        typer.echo()
        print_table(
            ["partition", "state", "position", "waits for"],
            [
                [_name(envelope, item), item.state, _position(item), ", ".join(item.parents)]
                for item in standings
            ],
        )


def ago(time_then: datetime) -> str:
    """Return a time, and how long ago it was according to this machine's clock."""
    return f"{moment(time_then)} ({duration(time.time() - time_then.timestamp())} ago)"


def _fields(token: str, envelope: Envelope, standings: list[Standing]) -> list[tuple[str, str]]:
    issued, watermark, end = issued_at(envelope), watermark_of(envelope), ending(envelope)
    fields = [
        ("provider", envelope.provider_id),
        ("resource", str(envelope.address) or "the whole cluster"),
        ("incarnation", envelope.incarnation or "the service names none"),
        ("scope", envelope.scope),
        ("issued", "-" if issued is None else ago(issued)),
        ("watermark", "-" if watermark is None else ago(watermark)),
        ("version", str(VERSION)),
        ("size", f"{len(token)} characters"),
        ("options", f"digest {envelope.options_digest}" if envelope.options_digest else "none that matter"),
        ("partitions", _count(standings)),
    ]
    if envelope.skipped:
        fields.append(("skipped", f"{len(envelope.skipped)} records that could not be decoded"))
    if end is not None:
        fields.append(("ended", end))
    return fields


def _count(standings: list[Standing]) -> str:
    states = [item.state for item in standings]
    parts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"{len(states)} ({parts})" if states else "0"


def _facts(token: str, envelope: Envelope, standings: list[Standing]) -> dict[str, Any]:
    issued, watermark = issued_at(envelope), watermark_of(envelope)
    return {
        "provider": envelope.provider_id,
        "database": envelope.address.database,
        "collection": envelope.address.collection,
        "incarnation": envelope.incarnation,
        "scope": envelope.scope,
        "issued": None if issued is None else rfc3339(issued),
        "watermark": None if watermark is None else rfc3339(watermark),
        "version": VERSION,
        "size": len(token),
        "options_digest": envelope.options_digest,
        "skipped_records": len(envelope.skipped),
        "ended": ending(envelope),
        "partitions": [
            {
                "partition": _name(envelope, item),
                "state": item.state,
                "position": _position(item),
                "waits_for": list(item.parents),
            }
            for item in standings
        ],
    }


def _name(envelope: Envelope, standing: Standing) -> str:
    """Return the partition's name, or a digest if the name may be a document's key."""
    if not envelope.scope.startswith("key:"):
        return standing.partition_id
    return f"#{_digest(standing.partition_id.encode())}"


def _position(standing: Standing) -> str:
    text = orjson.dumps(list(standing.cursors))
    return f"{len(text)} bytes, #{_digest(text)}"


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:8]
