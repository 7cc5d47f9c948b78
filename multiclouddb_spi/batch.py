"""The result of one read of a partition: raw records, their mapping, and what follows them."""

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
        parents: *All* its parents, including the one that names it. Each parent names the child when the
            parent is drained. The engine starts the child when the last parent has named it.
        cursor: The position where the child starts, as far as this parent knows.
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
    """The partition has ended, and this batch is its last; its children follow.

    Attributes:
        children: The children that are known so far, at least one; without any the outcome is `Awaiting` or
            `Ended`. They start at once. Another read at the final cursor must name at least these children.
        complete: True if the service proves that there are no other children. If False, the engine keeps the
            partition in the token and asks `Feed.discover` for more children, for ten minutes of running time
            by default (`ClientConfig.child_watch_seconds`).
        instead: True if the partition is gone and nobody can name its children any more. Then `children`
            contains all partitions that may descend from it. The engine uses them if no child is known, and
            if no audit would find one.
    """

    children: tuple[Child, ...]
    complete: bool = True
    instead: bool = False


@attrs.frozen
class Awaiting:
    """The partition has ended, but the service does not name its children yet. Ask `Feed.discover`."""


@attrs.frozen
class Ended:
    """The partition has ended and nothing follows it.

    Attributes:
        notice: A notice for the application; None when none is needed.
    """

    notice: Notice | None


@attrs.frozen
class Segment:
    """A part of a collection's key space that a snapshot scans; see `multiclouddb_spi.scan`.

    Attributes:
        segment_id: From `segment_id_of`.
        cursor: The position before its first row.
        records: The approximate number of its rows; None if the service does not report it. Spark's limits
            count these.
    """

    segment_id: str
    cursor: Cursor
    records: int | None = None


@attrs.frozen
class Scanned:
    """This segment of a scan has been read to its end. No partition of the service has this outcome.

    Attributes:
        pieces: Segments that replace the unread rest of this segment. Each unread key of the segment is in
            exactly one of them. Empty if the whole segment was read.
    """

    pieces: tuple[Segment, ...] = ()


Outcome: TypeAlias = Continue | Reached | Drained | Awaiting | Ended | Scanned
"""The state of a partition after the batch's last record."""


def goes_on(outcome: Outcome) -> bool:
    """Whether the reader may return more after this outcome."""
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
    """Maps raw records to the returned form; one for all batches of a reader. Every method is pure."""

    @abstractmethod
    def cursor_after(self, records: Any, count: int) -> Cursor:
        """The position after the first `count` records.

        Inside a transaction, the position names the delivered part of the transaction.

        Args:
            records: The records of the batch.
            count: The number of records before the position; at least one, and not all of them.
        """

    @abstractmethod
    def events(self, records: Any, start: int, stop: int) -> list[ChangeEvent]:
        """Map records to events; it may be called repeatedly.

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
            None if the provider has no columnar path. Then the engine builds the batch from `events`.
        """
        return None


@attrs.frozen(eq=False)
class Batch:
    """Raw records of one partition in the service's order. They are mapped only when they are returned.

    A batch contains at most `max_records` records.

    Attributes:
        records: The records; each record gives exactly one event.
        mapper: Maps them.
        begin: The position before the records, where the read began.
        end: The position after the records, and after everything that was scanned after them, so that the
            position also advances in an idle or filtered partition. It never lies before the position where
            the reader was opened, even if the service delivers earlier records again.
        outcome: Tells what follows the last record.
        nbytes: The memory that the raw records take, as exactly as can be found out cheaply.
        caught_up: True if the service said that nothing follows this batch at present. False if more can or
            may be read at once (also after an empty batch, while a filter is scanning). None if the service
            does not say; then an empty batch counts as "nothing". On a partition's last batch it has no
            meaning.
        watermark: No record after this batch is older; None when unknown. Never later than the
            commit time of a record that can still become visible.
        poll_after: The number of seconds to wait before asking this partition again makes sense; 0 = none.
        notices: Facts that are not changes. Their place is after the batch's last record and before the next
            batch. So a reader that meets such a fact ends its batch there, even if the service has sent more;
            if more may follow, `caught_up` is False. The page that uses up the batch contains its notices,
            and no later record of this partition. `end` lies after the notices. Every other cursor of the
            batch, and the `skip_cursor` of a record in it, lies before them, so a read from there returns
            them again.
        headroom: Seconds until the position after this batch expires, or None.
        charge: The service's charge in its own unit, or None.
        requests: The number of calls to the service for this batch.
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
