"""Defines a position inside one partition, and a position inside a commit."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import attrs
from attrs import frozen

from multiclouddb_api.codec import JsonValue

Cursor: TypeAlias = JsonValue
"""JSON that only the `mapping` module of the provider writes and reads; it is opaque to the engine.

Treat it as immutable. Keep it short, because every token contains one per partition. It has at most 8 nested
levels: if a value, for example a key, may have more, write it as text. (The engine never makes a token with
more than 16 levels.)
"""


class InvalidCursor(ValueError):  # noqa: N818
    """Raised by a provider for a cursor that it cannot have made; the token is damaged or forged."""


Mark: TypeAlias = tuple[str | int, ...]
"""How far an order (a sequence of changes) was delivered.

In one order, all marks have the same length, and sorting them sorts their changes.
"""

_MOST_POSITION: Final = 2**63 - 1
_MOST_PARTS: Final = 8


@frozen
class Cut:
    """A position in a partition: before a commit, or inside a commit after the delivered changes.

    It is for a service that can resume only at whole commits, although a page may end in the middle of one:
    the reader then leaves out the changes that the service sends a second time. The changes of one commit may
    form ordered sequences, called orders, such as several Spanner transactions with the same commit
    timestamp. Each order has a name, and a mark that identifies its last delivered change; changes without an
    order are kept by their names. Only the changes of one commit are in it, so the cursor stays short.

    Attributes:
        at: The commit, as a number; everything before this commit was delivered.
        delivered: Maps the name of each order in the commit `at` to the mark up to which the order was
            delivered.
    """

    at: int
    delivered: Mapping[str, Mark] = attrs.field(factory=dict)

    def has(self, at: int, name: str, mark: Mark = ()) -> bool:
        """Return whether a change of the commit `at` was delivered; `name` and `mark` as in `advanced`."""
        if at != self.at:
            return at < self.at
        last = self.delivered.get(name)
        return last is not None and mark <= last

    def advanced(self, at: int, name: str, mark: Mark = ()) -> Cut:
        """Return the position after the next delivered change, of the commit `at` or a later one.

        `name` is the order that contains the change; if there is no order, the change itself. `mark` is the
        place of the change in the order, after the marks of all delivered changes.
        """
        return Cut(at, {**(self.delivered if at == self.at else {}), name: mark})

    def compare(self, other: Cut) -> int | None:
        """Return -1, 0 or 1 if this position lies before, at or after another of the same partition.

        Return None if each position includes delivered changes that the other does not include.
        """
        if self.at != other.at:
            return -1 if self.at < other.at else 1
        less, more = other._covers(self), self._covers(other)
        if less and more:
            return 0
        return -1 if less else 1 if more else None

    def to_json(self) -> list[JsonValue]:
        """Return the position as a cursor: `[at]`, or `[at, {name: mark}]` if it is inside a commit."""
        if not self.delivered:
            return [self.at]
        return [self.at, {name: list(mark) for name, mark in self.delivered.items()}]

    @classmethod
    def from_json(cls, cursor: Cursor) -> Cut:
        """Return the position that `to_json` has converted; raise `InvalidCursor` for any other value."""
        match cursor:
            case [int() as at] if _is_position(at):
                return cls(at)
            case [int() as at, dict() as delivered] if _is_position(at) and delivered:
                return cls(at, {name: _mark(mark) for name, mark in delivered.items()})
            case _:
                raise _invalid(cursor)

    def _covers(self, other: Cut) -> bool:
        return all(self.has(other.at, name, mark) for name, mark in other.delivered.items())


def _is_position(value: int) -> bool:
    return type(value) is int and 0 <= value <= _MOST_POSITION


def _mark(value: Any) -> Mark:
    if type(value) is not list or len(value) > _MOST_PARTS or not {str, int}.issuperset(map(type, value)):
        raise _invalid(value)
    return tuple(value)


def _invalid(value: object) -> InvalidCursor:
    return InvalidCursor(f"{reprlib.repr(value)[:60]} is not a position inside a commit")
