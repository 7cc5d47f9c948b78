"""Defines a segment of a scan and its place in a token: what its rows have in common, and which are left.

The engine writes and reads the cursor of a segment, `[floor, µs, after, last]`, and `[floor, µs, after, last,
shared]` if the scan has `shared`. A provider only gives `after`, `last` and `shared`, and gets them
back in the `Segment` that `Feed.open_segment` receives.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import attrs
from attrs import frozen

from multiclouddb_spi.cursor import Cursor, InvalidCursor

_PREFIX: Final = "snapshot:"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_TIMES: Final = range(-62_135_596_800_000_000, 253_402_300_800_000_000)  # the years 1 to 9999


def _new_id() -> str:
    return os.urandom(6).hex()


@frozen
class Scan:
    """What all rows of one scan have in common.

    Attributes:
        floor: The `order_key` of every row, unless the provider gives each row its own (`ScanFloor.ROW`).
        moment: The time at which the scan began, by the service's clock, in whole microseconds; it is the
            `timestamp` of every row.
        shared: JSON that all segments share, and that the provider needs in addition to read each of them,
            such as the service's id of the collection; None if it needs nothing.
        plan_id: The name of the scan: unique among all scans of the collection, the same in every process,
            short, and without a colon. By default, twelve random hex digits.
    """

    floor: str
    moment: datetime
    shared: Cursor = None
    plan_id: str = attrs.field(factory=_new_id)

    @property
    def partition_id(self) -> str:
        """The id of the whole scan, which is used like the id of a partition."""
        return f"{_PREFIX}{self.plan_id}"

    def segment(
        self,
        name: str,
        after: str = "",
        last: str = "",
        records: int | None = None,
        *,
        collection: str = "",
    ) -> Segment:
        """Return a segment of this scan.

        Args:
            name: See `Segment`, as for the others.
            after: The key after which to read.
            last: Where the segment ends.
            records: The approximate number of rows.
            collection: The collection, in the scan of a database.
        """
        return Segment(self, name, after, last, records, collection)


@frozen
class Segment:
    """A part of a collection's key space that a scan reads; see `multiclouddb_spi.scan`.

    Attributes:
        scan: The scan to which the segment belongs.
        name: The name of the segment, without a slash, such as a number or a range. In a collection's scan it
            is unique, in a database's it is unique together with `collection`. Each piece of a segment needs
            a name of its own.
        after: The key after which to read, as text in the provider's own form; empty at the beginning.
        last: Where the segment ends, as text in the provider's own form.
        records: The approximate number of rows, which the Spark source counts against its limits; None if the
            service does not report it. It is not part of a token.
        collection: The collection that the segment is a part of, if the scan is one of a database; else
            empty. It is part of the rows' event ids.
    """

    scan: Scan
    name: str
    after: str = attrs.field(default="", repr=False)
    last: str = attrs.field(default="", repr=False)
    records: int | None = None
    collection: str = ""

    @classmethod
    def of(cls, segment_id: str, cursor: Cursor) -> Segment:
        """Return the segment that `segment_id` and `cursor` describe; the inverse of both.

        Raises:
            InvalidCursor: Raised if these are not the id and the cursor of a segment.
        """
        plan_id, colon, place = segment_id.removeprefix(_PREFIX).partition(":")
        name, _, collection = place.partition("/")
        match cursor:
            case [str() as floor, int() as micros, str() as after, str() as last, *shared] if (
                colon and type(micros) is int and micros in _TIMES and len(shared) < 2
            ):
                scan = Scan(floor, _EPOCH + micros * _MICROSECOND, shared[0] if shared else None, plan_id)
                return cls(scan, name, after, last, collection=collection)
            case _:
                raise InvalidCursor("it is not a position in a segment of a snapshot")

    @property
    def segment_id(self) -> str:
        """The id of the segment; it never equals the id of a partition."""
        place = f"{self.name}/{self.collection}" if self.collection else self.name
        return f"{_PREFIX}{self.scan.plan_id}:{place}"

    @property
    def cursor(self) -> Cursor:
        """The position in the segment, in the form that a token stores."""
        scan = self.scan
        found: list[Any] = [scan.floor, (scan.moment - _EPOCH) // _MICROSECOND, self.after, self.last]
        return found if scan.shared is None else [*found, scan.shared]

    def at(self, after: str) -> Segment:
        """Return the rest of the segment, `after` a key."""
        return attrs.evolve(self, after=after)

    def piece(self, name: str, after: str, last: str) -> Segment:
        """Return a part of the segment's rest, with its own `name`, `after` and `last`."""
        return attrs.evolve(self, name=name, after=after, last=last)


def plan_id_of(partition_id: str) -> str | None:
    """Return the id of the scan to which a segment belongs; None for a partition of the service.

    Args:
        partition_id: The id of a partition, a segment or a whole scan.
    """
    if not partition_id.startswith(_PREFIX):
        return None
    return partition_id[len(_PREFIX) :].partition(":")[0]
