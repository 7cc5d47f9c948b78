"""`--format` prints a line for each event, with placeholders like those of kcat.

    %k  key as JSON               %y  type                %t  DATABASE/COLLECTION
    %s  document as JSON          %S  its bytes, or -1    %o  order key
    %O  old document as JSON      %p  partition           %T  time in ms since 1970
    %i  event id                  %%  a percent sign      %{PATH}  a value, such as %{key.id}

`%{…}` contains a field of the JSON form, such as `%{timestamp}`, `%{key.customer}` or `%{old.total}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import orjson
import typer

from multiclouddb_api import ChangeEvent
from multiclouddb_cli.plain import plain_event

__all__ = ["Template"]

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
    r"""A parsed template; a line end is added unless the text ends with `\n`, `\r` or `\0`.

    Args:
        text: The text that the user entered.

    Raises:
        typer.BadParameter: Raised if the template contains a placeholder that is not a field of events.
    """

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
        fields = plain_event(event)
        return "".join(piece(event, fields) for piece in self._pieces)


def _pieces(text: str) -> Iterator[_Piece]:
    end = 0
    for match in _PIECE.finditer(text):
        if match.start() > end:
            yield _constant(text[end : match.start()])
        end = match.end()
        path, letter, escape = match.groups()
        if path is not None:
            yield _value_at(path)
        elif letter is not None:
            if letter not in _LETTERS:
                raise _wrong(
                    f"has the unknown %{letter}: use {' '.join(f'%{each}' for each in _LETTERS)} or %{{PATH}}"
                )
            yield _LETTERS[letter]
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
