"""Divides the rows of an answer into messages. Long values are divided between messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from google.protobuf.struct_pb2 import Value

__all__ = ["messages"]

Message = tuple[list[Value], bool]
"""The values of a message, and True if the last value continues in the next message."""


def _cut(value: Value, room: int) -> tuple[Value, Value | None, int]:
    """Return the first characters of a value, the rest of the value, and the number of characters taken.

    A value is divided only in the middle of a text, because the client joins the two parts of a
    text. The rest of a divided text starts with the next character of the text. If an element of a
    list is divided, its first part is the last element of the first list. Its rest is the first
    element of the second list.
    """
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        text = value.string_value
        if len(text) <= room:
            return value, None, len(text)
        return Value(string_value=text[:room]), Value(string_value=text[room:]), room
    if kind != "list_value":
        return value, None, 0
    used, elements = 0, value.list_value.values
    first = Value()
    first.list_value.SetInParent()
    for place, element in enumerate(elements):
        part, rest, took = _cut(element, room - used)
        used += took
        first.list_value.values.append(part)
        if rest is not None:
            left = Value()
            left.list_value.values.append(rest)
            left.list_value.values.extend(elements[place + 1 :])
            return first, left, used
    return first, None, used


def messages(rows: Iterable[list[Value]], most_rows: int, most_characters: int) -> Iterator[Message]:
    """Return the messages that contain rows."""
    held: list[Value] = []
    room, count = most_characters, 0
    for row in rows:
        for value in row:
            rest: Value | None = value
            while rest is not None:
                part, rest, took = _cut(rest, room)
                held.append(part)
                room -= took
                if rest is not None:
                    yield held, True
                    held, room, count = [], most_characters, 0
        count += 1
        if count == most_rows or room <= 0:
            yield held, False
            held, room, count = [], most_characters, 0
    if held:
        yield held, False
