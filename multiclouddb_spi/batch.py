"""What one read of a partition returns: raw records, how they are mapped, and what follows them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sized
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

import attrs

from multiclouddb_api import ChangeEvent, Notice
from multiclouddb_spi.cursor import Cursor

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Awaiting",
    "Batch",
    "Child",
    "Continue",
    "Drained",
    "Ended",
    "Mapper",
    "Outcome",
    "Reached",
    "Scanned",
    "Segment",
    "children_of",
    "goes_on",
]


@attrs.frozen
class Child:
    """A partition that continues where a drained one ended.

    Attributes:
        partition_id: The child.
        parents: *All* its parents, the one that names it included. Each of them names the child
            when it is drained; the engine starts the child when the last parent has named it.
        cursor: The start of the child, as far as this parent knows.
    """

    partition_id: str
    parents: tuple[str, ...]
    cursor: Cursor


@attrs.frozen
class Continue:
    """There may be more after this batch."""


@attrs.frozen
class Reached:
    """The reader has reached the `until` that it was opened with; it returns nothing more."""


@attrs.frozen
class Drained:
    """The partition has ended and this batch is its last; these follow.

    Attributes:
        children: The ones that are known so far, at least one: without any it is `Awaiting` or `Ended`. They
            start at once. Reading again at the final cursor must name at least these.
        complete: True when the service proves that there are no others. With False the engine keeps the
            partition in the token and asks `Feed.discover` for more of them, for ten minutes of running
            time by default (`ClientConfig.child_watch_seconds`).
        instead: True when the partition is gone and nobody can name its children any more. Then `children`
            are all partitions that may descend from it. They are used where no child is known, and where no
            audit would find one.
    """

    children: tuple[Child, ...]
    complete: bool = True
    instead: bool = False


@attrs.frozen
class Awaiting:
    """The partition has ended, but the service does not name its children yet: ask `Feed.discover`."""


@attrs.frozen
class Ended:
    """The partition has ended and nothing follows it.

    Attributes:
        notice: A notice for the application; None when none is needed.
    """

    notice: Notice | None


@attrs.frozen
class Segment:
    """A part of a collection's keys that is scanned for a snapshot; see `multiclouddb_spi.scan`.

    Attributes:
        segment_id: From `segment_id_of`.
        cursor: Before its first row.
        records: About how many rows it has; None where the service does not say. Spark's limits count them.
    """

    segment_id: str
    cursor: Cursor
    records: int | None = None


@attrs.frozen
class Scanned:
    """This segment of a scan has been read to its end. No partition of the service ends so.

    Attributes:
        pieces: What was not read of the segment, in parts that are read instead; each key of the segment that
            was not read is in exactly one of them. Empty for a segment that was read whole.
    """

    pieces: tuple[Segment, ...] = ()


Outcome: TypeAlias = Continue | Reached | Drained | Awaiting | Ended | Scanned
"""The state of a partition after the batch's last record."""


def goes_on(outcome: Outcome) -> bool:
    """Whether the reader may return more after this."""
    match outcome:
        case Continue():
            return True
        case Reached() | Drained() | Awaiting() | Ended() | Scanned():
            return False
        case _:
            assert_never(outcome)


def children_of(outcome: Outcome) -> tuple[Child, ...]:
    """The children that `outcome` names."""
    match outcome:
        case Drained(children):
            return children
        case Continue() | Reached() | Awaiting() | Ended() | Scanned():
            return ()
        case _:
            assert_never(outcome)


class Mapper(ABC):
    """Maps raw records to what is returned; one for all batches of a reader. Every method is pure."""

    @abstractmethod
    def cursor_after(self, records: Any, count: int) -> Cursor:
        """The position after the first `count` records.

        Inside a transaction, it names the part of the transaction that was delivered.

        Args:
            records: The records of the batch.
            count: The number of records before it; at least one, and not all of them.
        """

    @abstractmethod
    def events(self, records: Any, start: int, stop: int) -> list[ChangeEvent]:
        """Map records to events; may be called again.

        Args:
            records: The records of the batch.
            start: The first one to map.
            stop: The index after the last one.

        Raises:
            RecordFault: A record cannot be decoded; its index is in `[start, stop)`.
        """

    def arrow(self, records: Any, start: int, stop: int) -> pa.RecordBatch | None:
        """Like `events`, in the fixed event schema (`multiclouddb_spi.arrow.EVENT_SCHEMA`).

        Args:
            records: The records of the batch.
            start: The first one to map.
            stop: The index after the last one.

        Returns:
            None where the provider has no columnar path: the engine builds it from `events`.
        """
        return None


@attrs.frozen(eq=False)
class Batch:
    """Raw records of one partition in the service's order, mapped only when they are returned.

    A batch has no more than the `max_records` asked for.

    Attributes:
        records: The records; one gives exactly one event.
        mapper: Maps them.
        begin: The position before them: where the read began.
        end: The position after them, and after everything that was scanned after them, so that the position
            also moves in an idle or filtered partition. It never lies before the position where the reader
            was opened, also where a service delivers earlier records again.
        outcome: Tells what follows the last record.
        nbytes: Memory that the raw records hold, as exactly as is cheap to know.
        caught_up: True when the service said that there is nothing after this batch at present,
            False when there is or may be more to read at once (also after an empty batch: a filter
            is scanning), None when the service does not say (an empty batch then counts as "nothing").
            On a partition's last batch it says nothing.
        watermark: No record after this batch is older; None when unknown. Never later than the
            commit time of a record that can still become visible.
        poll_after: Seconds before it makes sense to ask this partition again; 0 = at once.
        notices: Facts that are no change. They stand after the batch's last record and before the next batch.
            So a reader that meets a fact ends its batch there, also where the service has sent more; where
            more may follow, `caught_up` is False. The page that uses up the batch has its notices, and no
            later record of this partition. `end` lies after the notices. Every other cursor of the batch, and
            the `skip_cursor` of a record in it, lies before them: a read from there gives them again.
        headroom: Seconds until the position after this batch expires, or None.
        charge: The service's charge in its own unit, or None.
        requests: Calls to the service that it took.
    """

    records: Sized
    mapper: Mapper
    begin: Cursor
    end: Cursor
    outcome: Outcome = Continue()
    nbytes: int = 0
    caught_up: bool | None = None
    watermark: datetime | None = None
    poll_after: float = 0.0
    notices: tuple[Notice, ...] = ()
    headroom: float | None = None
    charge: float | None = None
    requests: int = 1

    def __len__(self) -> int:
        """The number of records; 0 for an empty batch."""
        return len(self.records)

    def cursor_after(self, count: int) -> Cursor:
        """The position after the first `count` records; after all of them it is `end`."""
        if count == len(self.records):
            return self.end
        return self.mapper.cursor_after(self.records, count) if count else self.begin

    def events(self, start: int, stop: int) -> list[ChangeEvent]:
        """Map the records `start` to `stop` (exclusive), see `Mapper.events`."""
        return self.mapper.events(self.records, start, stop)

    def arrow(self, start: int, stop: int) -> pa.RecordBatch | None:
        """Map the records `start` to `stop` (exclusive), see `Mapper.arrow`."""
        return self.mapper.arrow(self.records, start, stop)
