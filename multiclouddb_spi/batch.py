"""Defines the result of one read of a partition: its records, their events, and what follows them."""

from __future__ import annotations

import gc
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sized
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from attrs import frozen

from multiclouddb_api import ChangeEvent, Notice
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.segment import Segment

if TYPE_CHECKING:
    import pyarrow as pa


@frozen
class Child:
    """A partition that starts after its parent partitions have been read to their end.

    Attributes:
        partition_id: The service's own id of the child.
        parents: *All* parents of the child. Each of them names the child when it has been read to its end;
            after the last of them, the engine reads the child.
        cursor: The position at which the child starts, as this parent knows it: at or before the child's
            first record.
    """

    partition_id: str
    parents: tuple[str, ...]
    cursor: Cursor


@frozen
class Continue:
    """The partition may have more records after this batch."""


@frozen
class Reached:
    """The reader has reached the `until` position given to `Feed.open`; it returns no more records."""


@frozen
class Drained:
    """The partition has ended, and this batch is its last; its child partitions follow.

    Attributes:
        children: The children that are known so far, at least one (without any, the outcome is `Awaiting` or
            `Ended`). They are read at once. Another read at the final cursor must name at least these.
        complete: True if it is certain that there are no others. False, only for a feed with `names_late`,
            keeps the partition in the token, and the engine asks `Feed.survey` for more, by default for ten
            minutes of running time (`ClientConfig.child_watch_seconds`).
    """

    children: tuple[Child, ...]
    complete: bool = True


@frozen
class Awaiting:
    """The partition has ended, but its children are not known yet; the engine asks `Feed.survey` for them.

    Only for a feed with `names_late`.
    """


@frozen
class Ended:
    """The partition has ended and nothing follows it.

    Attributes:
        notice: A notice that tells the application about the end; None if no notice is needed. An
            `Invalidated` is told when the last partition has ended.
    """

    notice: Notice | None


@frozen
class Scanned:
    """This segment of a scan has been read to its end; a partition of the service never has this outcome.

    Attributes:
        pieces: The segments that replace the unread rest of this segment. Each unread key is in exactly one
            of them. Empty if the segment was read completely.
    """

    pieces: tuple[Segment, ...] = ()


Outcome: TypeAlias = Continue | Reached | Drained | Awaiting | Ended | Scanned
"""The state of a partition after the batch's last record."""


class Mapper(ABC):
    """Maps raw records to events or Arrow batches; all batches of a reader share one mapper.

    Every method is pure.
    """

    @abstractmethod
    def cursor_after(self, records: Any, count: int) -> Cursor:
        """Return the position after the first `count` records.

        A position inside a transaction contains which part of the transaction was delivered.

        Args:
            records: The records of the batch.
            count: The number of records before the position: at least one, and fewer than all records of the
                batch.
        """

    @abstractmethod
    def events(self, records: Any, start: int, stop: int) -> list[ChangeEvent]:
        """Map records to events; the method may be called repeatedly for the same records.

        Args:
            records: The records of the batch.
            start: The index of the first record to map.
            stop: The index after the last record to map.

        Raises:
            RecordFault: Raised if a record cannot be decoded; its index is in `[start, stop)`.
        """

    def arrow(self, records: Any, start: int, stop: int) -> pa.RecordBatch | None:
        """Map records to an Arrow batch with the fixed schema `multiclouddb_api.arrow.EVENT_SCHEMA`.

        Args:
            records: The records of the batch.
            start: The index of the first record to map.
            stop: The index after the last record to map.

        Returns:
            The Arrow batch, or None if the provider has no columnar code. The engine then builds the batch
            from `events`.
        """
        return None


@frozen(eq=False, repr=False)
class Batch:
    """Raw records of one partition in the service's order.

    The records are mapped to events only when they are returned. A batch contains at most `max_records`
    records.

    Attributes:
        records: The raw records; each record becomes exactly one event.
        mapper: Maps the records.
        begin: The position before the records, at which the read began.
        end: The position after the records, and after everything that was scanned behind them, so that it
            also advances in an idle or filtered partition. It is never earlier than the position at which the
            reader was opened, even if the service delivers earlier records again.
        outcome: What follows the last record of the batch.
        nbytes: The number of bytes that the raw records occupy in memory, as exact as a cheap calculation
            allows.
        caught_up: True if the service reported that there is nothing more for now. False if more records may
            be there already, even after an empty batch, for example while the service filters its log. None
            if the service does not report it; an empty batch then means that no records follow. In the last
            batch of a partition, the value has no meaning.
        watermark: A time before which no record can follow; None if it is unknown. It is never later than the
            commit time of a record that can still become visible.
        likely_read_until: The moment, by the service's clock, before which every change is probably in this
            batch or an earlier one; None if it is not known. It is for a service whose `caught_up` is never
            True, but whose empty answers make it likely that no records follow.
        poll_after: How many seconds to wait before this partition is asked again; 0 means no wait.
        notices: Facts about the feed that are not changes. They come after the last record of this batch and
            before the next batch, so a reader that finds one ends its batch there, even if the service has
            sent more records (`caught_up` is then False). The page with the last record has the notices, and
            no later record of this partition. Only the position `end` lies after them: a read from any other
            cursor of the batch, or from the `skip_cursor` of one of its records, returns them again.
        headroom: The number of seconds until the position after this batch expires, or None.
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
    likely_read_until: datetime | None = None
    poll_after: float = 0.0
    notices: tuple[Notice, ...] = ()
    headroom: float | None = None
    charge: float | None = None
    requests: int = 1

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.records)

    def cursor_after(self, count: int) -> Cursor:
        """Return the position after the first `count` records, or `end` after all records."""
        if count == len(self.records):
            return self.end
        return self.mapper.cursor_after(self.records, count) if count else self.begin

    def events(self, start: int, stop: int) -> list[ChangeEvent]:
        """Map the records from `start` to `stop` (exclusive); see `Mapper.events`."""
        return self.mapper.events(self.records, start, stop)

    def arrow(self, start: int, stop: int) -> pa.RecordBatch | None:
        """Map the records from `start` to `stop` (exclusive); see `Mapper.arrow`."""
        return self.mapper.arrow(self.records, start, stop)


_pausing: Final = threading.RLock()
# A forked child must not inherit the pause, because the thread that would end the pause does not exist in the
# child.
os.register_at_fork(
    before=_pausing.acquire, after_in_parent=_pausing.release, after_in_child=_pausing.release
)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the cyclic garbage collector from running inside the block, which should last only milliseconds.

    Mapping a record to an event creates about ten containers and no reference cycle. The collector would scan
    these objects again and again, for a quarter of the time of a read.

    Only one thread at a time pauses the collector; in other threads, the block has no effect. When that
    thread leaves its block, the collector runs again, even if other threads are still inside their blocks.
    """
    if not gc.isenabled() or not _pausing.acquire(blocking=False):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _pausing.release()


def resume_collector() -> None:
    """End the pause of this thread, if an interrupt has left one."""
    with suppress(RuntimeError):  # this thread has not paused the collector
        while True:
            _pausing.release()
            gc.enable()
