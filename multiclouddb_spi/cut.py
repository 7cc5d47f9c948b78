"""Positions inside a commit, for services whose positions identify commits but not single changes.

A page may end in the middle of a commit, and such a service can only send the whole commit again. So the
position contains the commit and the part that was delivered. The reader uses it to leave out the changes that
the service sends a second time.

The changes of one commit may form one or several ordered sequences, called orders. Each order has a name, and
a mark shows which change of the order was delivered last. Spanner's transactions with one commit timestamp
are such orders. If the changes have no order, the position names each delivered change. It never names
changes of other commits, so a cursor stays short.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.faults import InvalidCursor

if TYPE_CHECKING:
    from multiclouddb_api.codec import JsonValue

__all__ = ["Cut", "Mark"]

Mark: TypeAlias = tuple[str | int, ...]
"""How far an order was delivered. Marks of one order have the same length and sort like its changes."""

_MOST_POSITION: Final = 2**63 - 1
_MOST_PARTS: Final = 8


@attrs.frozen
class Cut:
    """A position before a commit, but after the part of it that was delivered.

    Attributes:
        at: The commit, as a number; everything before it was delivered.
        delivered: Name → mark. Of the changes at `at`, each order was delivered up to its mark.
    """

    at: int
    delivered: Mapping[str, Mark] = attrs.field(factory=dict)

    def has(self, at: int, name: str, mark: Mark = ()) -> bool:
        """Whether a change was delivered.

        Args:
            at: Its commit.
            name: Its order, or itself.
            mark: Its place in the order.
        """
        if at != self.at:
            return at < self.at
        last = self.delivered.get(name)
        return last is not None and mark <= last

    def advanced(self, at: int, name: str, mark: Mark = ()) -> Cut:
        """The position after a change that is delivered next.

        Args:
            at: Its commit, not before this one.
            name: Its order, or itself.
            mark: Its place in the order, after what was delivered of it.
        """
        return Cut(at, {**(self.delivered if at == self.at else {}), name: mark})

    def compare(self, other: Cut) -> int | None:
        """-1, 0 or 1 if this lies before, at or after another; None if each has changes that the other lacks.

        Args:
            other: Another position of the same partition.
        """
        if self.at != other.at:
            return -1 if self.at < other.at else 1
        less, more = other._covers(self), self._covers(other)
        if less and more:
            return 0
        return -1 if less else 1 if more else None

    def to_json(self) -> list[JsonValue]:
        """The form in a cursor: `[at]`, or `[at, {name: mark}]` inside a commit."""
        if not self.delivered:
            return [self.at]
        return [self.at, {name: list(mark) for name, mark in self.delivered.items()}]

    @classmethod
    def from_json(cls, cursor: Cursor) -> Cut:
        """The inverse of `to_json`.

        Args:
            cursor: From a token, which may be damaged.

        Raises:
            InvalidCursor: `to_json` cannot have made it.
        """
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
    return InvalidCursor(f"{reprlib.repr(value)[:60]} is no position inside a commit")
