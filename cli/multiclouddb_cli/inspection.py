"""`multiclouddb token inspect` shows the content of a token.

Cursors are opaque without their provider, and may contain a document's key. Therefore, only the size and a
digest of each cursor are shown. The size and digest are enough to see whether two tokens have the same
position.
"""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import attrs
import orjson
import typer

from multiclouddb_api import MulticloudDbError, PhysicalPartition, invalid_request
from multiclouddb_api.redaction import rfc3339
from multiclouddb_cli.screen import duration, moment, print_fields, print_table
from multiclouddb_spi import Cursor, Feed, InvalidCursor
from multiclouddb_spi.continuation.entry import AnyEntry, Plan, Stage
from multiclouddb_spi.continuation.lineage import INSPECTED, Lineage
from multiclouddb_spi.continuation.state import FeedOver, Retired, state_from_json
from multiclouddb_spi.continuation.token import VERSION, Envelope, decode_token, encode_token, scope_text

__all__ = [
    "Standing",
    "ago",
    "ending",
    "inspect",
    "lineage_of",
    "one_partition",
    "read_standings",
    "watermark_of",
]


@attrs.frozen
class Standing:
    """One partition in a token.

    Attributes:
        partition_id: The service's own id of the partition.
        state: `active`, `drained` (its children are not named yet), `watched` (some of its children are
            named, and the engine is searching for more), `waiting` (for its parents), `next` (a child of a
            retired partition), or `scan` (the part of a snapshot that is not divided into segments yet).
        cursors: The position of the partition; several positions if its parents gave different positions.
        parents: The parents for which the partition waits.
        entry: The partition's entry in the lineage, or None for a child of a retired partition.
    """

    partition_id: str
    state: str
    cursors: tuple[Cursor, ...]
    parents: tuple[str, ...] = ()
    entry: AnyEntry | None = None

    def describe(self, feed: Feed) -> tuple[str, datetime | None]:
        """Return the position as readable text, and the time of the position."""
        try:
            positions = [feed.describe(cursor) for cursor in self.cursors]
        except InvalidCursor:
            return "unreadable", None
        times = [position.time for position in positions if position.time is not None]
        return ", ".join(position.text for position in positions), min(times, default=None)


def read_standings(envelope: Envelope) -> list[Standing]:
    """Return the partitions in the order in which they are read; an empty result if the feed has ended."""
    match _state(envelope):
        case FeedOver():
            return []
        case Retired(_, children):
            return [
                Standing(child.partition_id, "next", (child.cursor,), child.parents) for child in children
            ]
        case Lineage() as lineage:
            return [_standing(entry) for entry in lineage]


def lineage_of(envelope: Envelope) -> Lineage | None:
    """Return the partitions of a feed that continues; None for a feed that has ended."""
    state = _state(envelope)
    return state if isinstance(state, Lineage) else None


def ending(envelope: Envelope) -> str | None:
    """Return a text that says how the token's feed or partition ended; None if it has not ended."""
    match _state(envelope):
        case FeedOver(reason):
            return f"the feed is over: {reason}"
        case Retired(partition_id):
            return f"partition {partition_id} has ended; its children follow"
        case _:
            return None


def one_partition(envelope: Envelope, standing: Standing) -> str:
    """Return a token for only one active partition."""
    assert standing.entry is not None
    alone = Lineage([standing.entry], INSPECTED)
    return encode_token(
        attrs.evolve(
            envelope,
            scope=scope_text(PhysicalPartition("any"), standing.partition_id),
            state=alone.to_json(),
        )
    )


def _state(envelope: Envelope) -> Lineage | Retired | FeedOver:
    try:
        return state_from_json(envelope.state, INSPECTED)
    except InvalidCursor as error:
        raise _damaged(error) from error


def _standing(entry: AnyEntry) -> Standing:
    if isinstance(entry, Plan):
        return Standing(entry.partition_id, "scan", (), entry=entry)
    if entry.stage is Stage.WAIT:
        return Standing(entry.partition_id, "waiting", entry.said, entry.waits, entry)
    state = "active"
    if entry.stage is Stage.END:
        state = "watched" if entry.children else "drained"
    return Standing(entry.partition_id, state, entry.said, entry=entry)


def _damaged(error: InvalidCursor) -> MulticloudDbError:
    return invalid_request(
        "continuation_token", f"is damaged ({error})", "pass a page's continuation_token unchanged"
    )


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


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


def watermark_of(envelope: Envelope) -> datetime | None:
    """Return the watermark: no event after the token is older than this time."""
    if envelope.watermark is None:
        return None
    return _EPOCH + timedelta(microseconds=envelope.watermark)


def ago(time_then: datetime) -> str:
    """Return a time, and how long ago it was according to this machine's clock."""
    return f"{moment(time_then)} ({duration(time.time() - time_then.timestamp())} ago)"


def _issued(envelope: Envelope) -> datetime | None:
    try:
        return datetime.fromtimestamp(envelope.issued_at, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _fields(token: str, envelope: Envelope, standings: list[Standing]) -> list[tuple[str, str]]:
    issued, watermark, end = _issued(envelope), watermark_of(envelope), ending(envelope)
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
    issued, watermark = _issued(envelope), watermark_of(envelope)
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
