"""Prints events and notices as lines."""

from __future__ import annotations

from typing import Final, Protocol

import attrs
import orjson
import typer

from multiclouddb_api import ChangeEvent, ChangeType, Notice, event_to_json
from multiclouddb_api.redaction import rfc3339
from multiclouddb_cli.plain import plain_event, plain_json
from multiclouddb_cli.screen import is_terminal, printable, shorter, width, with_colour
from multiclouddb_cli.template import Template

__all__ = ["Renderer", "event_line", "key_text", "notice_line", "renderer"]

_COLOURS: Final = {ChangeType.CREATE: "green", ChangeType.UPDATE: "yellow", ChangeType.DELETE: "red"}
_TYPE_COLUMNS: Final = 6
_PIPE_COLUMNS: Final = 160
_NARROW: Final = 72
_LEAST_DOCUMENT: Final = 20


class Renderer(Protocol):
    """A function that makes the text of an event, including the line end."""

    def __call__(self, event: ChangeEvent, *, address: bool) -> str:
        """Return the text.

        Args:
            event: The event.
            address: True if the line must contain the event's collection.
        """
        ...


def renderer(template: str | None, *, as_json: bool, exact: bool) -> Renderer:
    """Return the renderer for the output form that the options request.

    Raises:
        typer.BadParameter: Raised if the options exclude each other, or the template is wrong.
    """
    given = [
        name
        for name, is_given in (("--format", template is not None), ("--exact", exact), ("--json", as_json))
        if is_given
    ]
    if len(given) > 1 and "--format" in given:
        raise typer.BadParameter("give only one of them", param_hint=" and ".join(given))
    if template is not None:
        made = Template(template)
        return lambda event, address: made.render(event)
    if exact:
        return lambda event, address: f"{event_to_json(event).decode()}\n"
    if as_json:
        return lambda event, address: f"{orjson.dumps(plain_event(event)).decode()}\n"
    colour = with_colour()

    def line(event: ChangeEvent, *, address: bool) -> str:
        columns = width() if is_terminal() else _PIPE_COLUMNS
        return f"{event_line(event, columns, colour=colour, address=address)}\n"

    return line


def event_line(event: ChangeEvent, columns: int, *, colour: bool, address: bool = False) -> str:
    """Return the time, type, key and the beginning of the document on one line.

    Args:
        event: The change.
        columns: The width of the line. On a narrow screen, the date is omitted and the key may be shortened.
        colour: True to print the type in colour.
        address: True to show the collection that contains the document.
    """
    narrow = columns < _NARROW
    kind = event.type.value.ljust(_TYPE_COLUMNS)
    time = rfc3339(event.timestamp)
    words = [time[11:19] if narrow else time, kind]
    if address:
        words.append(printable(str(event.address)))
    words.append(key_text(event))
    words += [
        word for word, holds in (("expired", event.by_expiry), ("backfilled", event.backfilled)) if holds
    ]
    line = "  ".join(words)
    for name, state in (("", event.new_item_state), ("was ", event.old_item_state)):
        left = columns - len(line) - 2 - len(name)
        if state is not None and (left >= _LEAST_DOCUMENT // 2 or not narrow):
            line += f"  {name}{shorter(_json(state), max(left, _LEAST_DOCUMENT) if not narrow else left)}"
    if narrow:
        line = shorter(line, columns)
    return line.replace(kind, typer.style(kind, fg=_COLOURS[event.type]), 1) if colour else line


def key_text(event: ChangeEvent) -> str:
    """Return the key as text: `customer="c-1" order=7`."""
    return " ".join(f"{printable(name)}={_json(value)}" for name, value in event.key.components.items())


def notice_line(notice: Notice) -> str:
    """Return the notice as text: `Gap: partition_id=… lost_from=… resumed_at=…`."""
    facts = " ".join(f"{field.name}={getattr(notice, field.name)}" for field in attrs.fields(type(notice)))
    return printable(f"{type(notice).__name__}: {facts}")


def _json(value: object) -> str:
    return printable(plain_json(value).decode())
