"""Prints events and notices as lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol, TypeAlias

import attrs
import orjson
import typer

from multiclouddb_api import ChangeEvent, ChangeType, Notice, event_to_json
from multiclouddb_api.codec import plain_value
from multiclouddb_api.redaction import rfc3339
from multiclouddb_cli.screen import is_terminal, printable, safe_json, shorter, width, with_colour

_Fields: TypeAlias = dict[str, Any]
_Piece: TypeAlias = Callable[[ChangeEvent, _Fields], str]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PIECE: Final = re.compile(r"%\{([^{}]*)\}|%(.?)|\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_SHORT: Final = {"new": "new_item_state", "old": "old_item_state"}
_LETTERS: Final[dict[str, _Piece]] = {
    "k": lambda _, fields: _text(fields["key"]),
    "s": lambda _, fields: _json(fields["new_item_state"]),
    "S": lambda _, fields: str(_length(fields["new_item_state"])),
    "O": lambda _, fields: _json(fields["old_item_state"]),
    "y": lambda _, fields: str(fields["type"]),
    "t": lambda _, fields: str(fields["address"]),
    "p": lambda _, fields: str(fields["partition_id"]),
    "o": lambda _, fields: str(fields["order_key"]),
    "i": lambda _, fields: str(fields["event_id"]),
    "T": lambda event, _: str((event.timestamp - _EPOCH) // timedelta(milliseconds=1)),
    "%": lambda _event, _fields: "%",
}
_PATHS: Final = (
    "event_id", "key", "type", "timestamp", "new", "old", "new_item_state", "old_item_state", "order_key",
    "by_expiry", "backfilled", "address", "partition_id",
)  # fmt: skip


class Template:
    r"""A parsed template; a line end is added unless the text ends with `\n`, `\r` or `\0`."""

    def __init__(self, text: str) -> None:
        if not text:
            raise _wrong("is empty")
        if "%" not in text:
            raise _wrong("names no value: write %k, %s or %{key.id}, for example")
        self._pieces = list(_pieces(text))
        if not re.search(r"\\(n|r|0|x0[0aAdD])$", text):
            self._pieces.append(_constant("\n"))

    def render(self, event: ChangeEvent) -> str:
        """Return the text of an event."""
        fields = event.to_dict()
        return "".join(piece(event, fields) for piece in self._pieces)


def _pieces(text: str) -> Iterator[_Piece]:
    end = 0
    for match in _PIECE.finditer(text):
        if match.start() > end:
            yield _constant(text[end : match.start()])
        end = match.end()
        path, letter, escape = match.groups()
        if path is not None:
            yield _safe(_value_at(path))
        elif letter is not None:
            if letter not in _LETTERS:
                raise _wrong(
                    f"has the unknown %{letter}: use {' '.join(f'%{each}' for each in _LETTERS)} or %{{PATH}}"
                )
            yield _safe(_LETTERS[letter])
        elif escape in _ESCAPES:
            yield _constant(_ESCAPES[escape])
        elif len(escape) == 3:
            yield _constant(chr(int(escape[1:], 16)))
        else:
            raise _wrong(f"has \\{escape}: known are \\n \\t \\r \\0 \\\\ and \\xHH")
    if end < len(text):
        yield _constant(text[end:])


def _value_at(path: str) -> _Piece:
    first, *rest = path.split(".")
    if first not in _PATHS:
        raise _wrong(f"has %{{{path}}}: a path begins with one of {', '.join(_PATHS)}")

    def piece(_: ChangeEvent, fields: _Fields) -> str:
        value: Any = fields[_SHORT.get(first, first)]
        for name in rest:
            if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                value = value.get(name) if isinstance(value, dict) else None
        return value if isinstance(value, str) else "" if value is None else _json(value)

    return piece


def _safe(piece: _Piece) -> _Piece:
    """Return a piece whose text cannot control a terminal; the template's own texts may."""

    def safe(event: ChangeEvent, fields: _Fields) -> str:
        text = piece(event, fields)
        return printable(text) if is_terminal() else text

    return safe


def _constant(text: str) -> _Piece:
    return lambda _event, _fields: text


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _length(state: Any) -> int:
    """Return the size of a document in bytes or, as in kcat, -1 if there is no document."""
    return -1 if state is None else len(orjson.dumps(state))


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _wrong(problem: str) -> typer.BadParameter:
    return typer.BadParameter(problem, param_hint="--format")


_COLOURS: Final = {ChangeType.CREATE: "green", ChangeType.UPDATE: "yellow", ChangeType.DELETE: "red"}
_TYPE_COLUMNS: Final = 6
_PIPE_COLUMNS: Final = 160
_NARROW: Final = 72
_LEAST_DOCUMENT: Final = 20


class Renderer(Protocol):
    """A function that makes the text of an event, including the line end."""

    def __call__(self, event: ChangeEvent, *, address: bool) -> str:
        """Return the text."""
        ...


def renderer(template: str | None, *, as_json: bool, exact: bool) -> Renderer:
    """Return the renderer for the output form that the options request."""
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
        return lambda event, address: f"{safe_json(event_to_json(event))}\n"
    if as_json:
        return lambda event, address: f"{safe_json(orjson.dumps(event.to_dict()))}\n"
    colour = with_colour()

    def line(event: ChangeEvent, *, address: bool) -> str:
        columns = width() if is_terminal() else _PIPE_COLUMNS
        return f"{event_line(event, columns, colour=colour, address=address)}\n"

    return line


def event_line(event: ChangeEvent, columns: int, *, colour: bool, address: bool = False) -> str:
    """Return the time, type, and the beginnings of the key and of the document on one line."""
    narrow = columns < _NARROW
    kind = event.type.value.ljust(_TYPE_COLUMNS)
    time = rfc3339(event.timestamp)
    words = [time[11:19] if narrow else time, kind]
    if address:
        words.append(printable(str(event.address)))
    # One key may be longer than the document beside it.
    key = " ".join(f"{printable(name)}={_shown(value)}" for name, value in event.key.components.items())
    words.append(shorter(key, columns))
    words += [
        word for word, holds in (("expired", event.by_expiry), ("backfilled", event.backfilled)) if holds
    ]
    line = "  ".join(words)
    for name, state in (("", event.new_item_state), ("was ", event.old_item_state)):
        left = columns - len(line) - 2 - len(name)
        if state is not None and (left >= _LEAST_DOCUMENT // 2 or not narrow):
            line += f"  {name}{shorter(_shown(state), max(left, _LEAST_DOCUMENT) if not narrow else left)}"
    if narrow:
        line = shorter(line, columns)
    return line.replace(kind, typer.style(kind, fg=_COLOURS[event.type]), 1) if colour else line


def notice_line(notice: Notice) -> str:
    """Return the notice as text: `Gap: partition_id=… lost_from=… resumed_at=…`."""
    facts = " ".join(f"{field.name}={getattr(notice, field.name)}" for field in attrs.fields(type(notice)))
    return printable(f"{type(notice).__name__}: {facts}")


def _shown(value: object) -> str:
    return printable(_json(plain_value(value)))
