"""Converts times to the form that a token stores: microseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeGuard

import attrs

__all__ = ["ReadUntil", "is_micros", "to_micros", "to_moment"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES: Final = range(-62_135_596_800_000_000, 253_402_300_800_000_000)
"""The earliest and the latest time: the years 1 to 9999."""


@attrs.frozen
class ReadUntil:
    """The moment before which every change has been returned.

    Attributes:
        micros: The moment, in the form that a token stores.
        estimated: True if an answer of the service made the moment likely, but did not prove it.
    """

    micros: int
    estimated: bool = False


def to_micros(moment: datetime) -> int:
    """Convert a time to the form that a token stores."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def to_moment(micros: int) -> datetime:
    """Return the time that `to_micros` has converted."""
    return _EPOCH + timedelta(microseconds=micros)


def is_micros(value: Any) -> TypeGuard[int]:
    """Return True if a value in a token's JSON is a time in microseconds, as `to_micros` returns it."""
    return type(value) is int and value in _TIMES
