"""Represents the partitions of a change stream: their keys, their lifetimes and their lineage."""

from __future__ import annotations

import base64
import hashlib
from bisect import bisect_left
from typing import Final

import attrs

from multiclouddb_spanner_emulator.record import DataChange

__all__ = ["HASHES", "Partition", "Range", "halves", "new_token", "place_of"]

HASHES: Final = 2**64
Range = tuple[int, int]
"""A range of hashes: its start, and its end, which is not included."""


@attrs.define(eq=False)
class Partition:
    """A partition of a change stream.

    Attributes:
        token: Its token.
        start: The time at which the partition began.
        ranges: The hashes that the partition contains.
        parents: The tokens of the partition's parents.
        end: The time at which the partition ended, or None.
        children: Its children.
        hidden: True while the server does not report the partition's end; a query waits at the end.
        log: The records of the partition, in order.
    """

    token: str
    start: int
    ranges: tuple[Range, ...]
    parents: tuple[str, ...] = ()
    end: int | None = None
    children: tuple[Partition, ...] = ()
    hidden: bool = False
    log: list[DataChange] = attrs.field(factory=list, repr=False)

    def holds(self, place: int) -> bool:
        """Return True if a hash is in one of the partition's ranges."""
        return any(low <= place < high for low, high in self.ranges)

    def lives_at(self, moment: int) -> bool:
        """Return True if the partition accepts changes at the given time."""
        return self.start <= moment and (self.end is None or moment < self.end)

    def index(self, moment: int) -> int:
        """Return the index of the first record that is not older than a given time."""
        return bisect_left(self.log, moment, key=lambda record: record.commit)


def new_token(stream: str, number: int) -> str:
    """Return an opaque token for a partition."""
    digest = hashlib.sha512(f"{stream} {number}".encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def place_of(text: str) -> int:
    """Return the hash of a key."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def halves(ranges: tuple[Range, ...], count: int) -> list[tuple[Range, ...]]:
    """Distribute ranges to the given number of partitions.

    If there are too few ranges, the widest ranges are divided.
    """
    pieces = sorted(ranges)
    while len(pieces) < count:
        low, high = max(pieces, key=lambda each: each[1] - each[0])
        if high - low < 2:
            raise ValueError("this partition contains a single hash and cannot be split")
        pieces.remove((low, high))
        middle = (low + high) // 2
        pieces = sorted([*pieces, (low, middle), (middle, high)])
    share, extra = divmod(len(pieces), count)
    dealt, start = [], 0
    for number in range(count):
        stop = start + share + (number < extra)
        dealt.append(tuple(pieces[start:stop]))
        start = stop
    return dealt
