"""Prints events and notices as lines."""

from __future__ import annotations

from typing import Final

import attrs
import typer

from multiclouddb_api import ChangeEvent, ChangeType, Notice, encode_json
from multiclouddb_api.redaction import rfc3339
from multiclouddb_cli.screen import printable, shorter

__all__ = ["event_line", "key_text", "notice_line"]

_COLOURS: Final = {ChangeType.CREATE: "green", ChangeType.UPDATE: "yellow", ChangeType.DELETE: "red"}
_TYPE_COLUMNS: Final = 6


def event_line(event: ChangeEvent, columns: int, *, colour: bool, address: bool = False) -> str:
    """Return the time, type, key and the beginning of the document on one line.

    Args:
        event: The change.
        columns: The width of the line; the key is never cut.
        colour: True to print the type in colour.
        address: True to show which collection the document is in.
    """
    kind = event.type.value.ljust(_TYPE_COLUMNS)
    words = [rfc3339(event.timestamp), kind, *([printable(str(event.address))] if address else [])]
    words.append(key_text(event))
    words += [
        word for word, holds in (("expired", event.by_expiry), ("backfilled", event.backfilled)) if holds
    ]
    line = "  ".join(words)
    if event.new_item_state is not None:
        left = columns - len(line) - 2
        line += f"  {shorter(_json(event.new_item_state), max(left, 20))}"
    return line.replace(kind, typer.style(kind, fg=_COLOURS[event.type]), 1) if colour else line


def key_text(event: ChangeEvent) -> str:
    """`customer="c-1" order=7`."""
    return " ".join(f"{printable(name)}={_json(value)}" for name, value in event.key.components.items())


def notice_line(notice: Notice) -> str:
    """`Gap: partition_id=… lost_from=… resumed_at=…`."""
    facts = " ".join(f"{field.name}={getattr(notice, field.name)}" for field in attrs.fields(type(notice)))
    return printable(f"{type(notice).__name__}: {facts}")


def _json(value: object) -> str:
    return printable(encode_json(value).decode())
