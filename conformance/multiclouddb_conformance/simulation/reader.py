"""Reads one simulated partition, with the faults that the service's behaviour describes."""

from __future__ import annotations

import threading
from datetime import datetime

from multiclouddb_api import Dropped
from multiclouddb_conformance.simulation.batch import SimulationMapper, Slice
from multiclouddb_conformance.simulation.errors import (
    BadPositionError,
    CancelledError,
    ConnectionDroppedError,
    IteratorExpiredError,
    MissingError,
    ServerError,
    SlowError,
    ThrottledError,
    TrimmedError,
)
from multiclouddb_conformance.simulation.partition_log import PartitionLog, Written
from multiclouddb_conformance.simulation.position import Place, place_after, place_text, to_cursor
from multiclouddb_conformance.simulation.scan import Bounds, earlier, scan
from multiclouddb_conformance.simulation.service_behaviour import CaughtUp
from multiclouddb_conformance.simulation.simulation import FETCH
from multiclouddb_conformance.simulation.view import View
from multiclouddb_spi import Batch, Continue, Deadline, Ended, Reached, Reader

__all__ = ["SimulationReader"]


class SimulationReader(Reader):
    """Reads one partition forward; `SimulationFeed.open` creates it."""

    def __init__(
        self, view: View, partition_id: str, public_id: str, place: Place, until: Place | None
    ) -> None:
        self._view = view
        self._sim = view.sim
        self._calls = view.calls
        self._id = partition_id
        self._mapper = SimulationMapper(view.spec, public_id, view.calls, view.sim.behaviour.latest)
        self._place = place
        self._until = until
        self._fresh = True
        self._failed = False
        self._closed = False
        self._cancelled = False
        self._busy = threading.Lock()

    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        """See `Reader.fetch`; `cancel` ends the fetch at once."""
        if not self._busy.acquire(blocking=False):
            self._violation("two fetches at a time")
            self._busy.acquire()
        try:
            with self._sim.changed:
                self._count(max_records)
                return self._fetch(max_records, max_bytes, wait, deadline)
        except BaseException:  # whatever ends it: a reader that has failed must not be used again
            self._failed = True
            raise
        finally:
            self._busy.release()

    def cancel(self) -> None:
        """See `Reader.cancel`; the call takes effect at once."""
        with self._sim.changed:
            self._cancelled = True
            self._calls.count("cancels")
            self._sim.changed.notify_all()

    def close(self) -> None:
        if self._busy.locked():
            self._violation("closed during a fetch")
        with self._sim.changed:
            if not self._closed:
                self._closed = True
                self._calls.closed()
                self._view.closed(self)

    def _count(self, max_records: int) -> None:
        self._calls.count_each("fetches", [self._id])
        if self._closed:
            self._violation("fetch after close")
        if self._failed:
            self._violation("fetch after a failed fetch")
        if max_records < 1:
            self._violation(f"fetch of {max_records} records")

    def _violation(self, what: str) -> None:
        self._calls.violated(self._id, what)

    def _fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        self._check_cancelled()
        self._sim.pass_hold(self._id, lambda: self._cancelled)
        self._check_cancelled()
        scripted = self._sim.scripted(FETCH, self._id)
        if scripted is not None:
            self._lose(scripted, max_records)
        trouble = self._trouble(deadline)
        if trouble is not None:
            self._lose(trouble, max_records)
        found = self._read(max_records, max_bytes)
        if self._nothing(found) and wait > 0:
            self._wait(min(wait, deadline.remaining()))
            found = self._read(max_records, max_bytes)
        self._fresh = False
        self._place = found.end
        return self._batch(found)

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise CancelledError(f"reader of {self._id} was cancelled")

    def _lose(self, error: Exception, max_records: int) -> None:
        if isinstance(error, ConnectionDroppedError):
            self._place = self._read(max_records, 2**62).end
        raise error

    # -- Faults

    def _trouble(self, deadline: Deadline) -> Exception | None:
        behaviour = self._sim.behaviour
        chances = (
            behaviour.throttle,
            behaviour.drop,
            behaviour.server_error,
            behaviour.expired_iterator,
            behaviour.slow,
            behaviour.silent,
        )
        if not any(chances):
            return None
        dice = self._sim.dice(self._id)
        happening = [dice.happens(chance) for chance in chances]
        happens = any(happening) and self._sim.may_trouble(self._id)
        self._sim.count_trouble(self._id, happens)
        if not happens:
            return None
        return self._troubles(happening.index(True), deadline)

    def _troubles(self, which: int, deadline: Deadline) -> Exception | None:
        retried = self._sim.behaviour.vendor_retried
        match which:
            case 0:
                return ThrottledError(f"{self._id} is throttled", self._sim.behaviour.retry_after, retried)
            case 1:
                return ConnectionDroppedError(f"connection to {self._id} lost", None, retried)
            case 2:
                return ServerError(f"503 from {self._id}", None, retried)
            case 3:
                return IteratorExpiredError(f"iterator of {self._id} expired") if not self._fresh else None
            case 4:
                return self._slow(deadline)
            case _:
                self._sim.changed.wait_for(lambda: self._cancelled, deadline.remaining())
                self._check_cancelled()
                return SlowError(f"{self._id} gave no answer before the deadline")

    def _slow(self, deadline: Deadline) -> Exception | None:
        latency = self._sim.behaviour.latency
        self._sim.changed.wait_for(lambda: self._cancelled, min(latency, deadline.remaining()))
        self._check_cancelled()
        return SlowError(f"{self._id} took more than {latency} s") if deadline.passed() else None

    # -- Reading

    def _read(self, max_records: int, max_bytes: int) -> Slice:
        partition = self._partition()
        if partition is None:
            return self._dropped()
        self._check_position(partition)
        behaviour = self._sim.behaviour
        dice = self._sim.dice(self._id) if behaviour.empty_batch or behaviour.short_batch else None
        if dice is not None and dice.happens(behaviour.empty_batch):
            return Slice(self._place, self._place)
        limit = max_records if behaviour.page_limit is None else min(max_records, behaviour.page_limit)
        if dice is not None and dice.happens(behaviour.short_batch):
            limit = 1 + dice.up_to(limit - 1)
        again = self._again(partition, limit)
        bounds = Bounds(
            records=limit - len(again),
            bytes=None if behaviour.ignore_max_bytes else max_bytes,
            commits=behaviour.scan_limit,
            until=self._until,
            stop_at_poison=behaviour.poison_at_fetch,
        )
        found = scan(partition, self._place, self._sim.head, self._view.wants, bounds)
        self._finish(partition, found)
        if again:
            found.records[:0] = again
            found.places[:0] = [found.begin] * len(again)
        return found

    def _partition(self) -> PartitionLog | None:
        if self._view.identity.incarnation != self._sim.incarnation:
            return None
        return self._sim.partitions.get(self._id)

    def _dropped(self) -> Slice:
        name = str(self._sim.address)
        if not self._sim.behaviour.drop_notice:
            raise MissingError(f"{name} does not exist, or was dropped")
        return Slice(self._place, self._place, outcome=Ended(Dropped(name)))

    def _check_position(self, partition: PartitionLog) -> None:
        if not partition.keeps(self._place[0], strict=self._sim.behaviour.strict_retention):
            raise TrimmedError(f"{place_text(self._place)} of {self._id} is no longer kept")
        if self._place > place_after(self._sim.head):
            raise BadPositionError(f"{place_text(self._place)} of {self._id} has not been reached yet")

    def _again(self, partition: PartitionLog, limit: int) -> list[Written]:
        if not self._fresh or self._until is not None or limit == 1:
            return []
        count = self._sim.redelivers(self._id, self._place)
        return earlier(partition, self._place, self._view.wants, min(count, limit - 1))

    def _finish(self, partition: PartitionLog, found: Slice) -> None:
        """Set the outcome of a fetch that has read the last record of its partition."""
        if not found.exhausted or isinstance(found.outcome, Reached):
            return
        if partition.closed is None:
            if not (self._sim.behaviour.heartbeats or self._sim.has_merged):
                found.end = max(found.begin, found.seen)
            return
        if found.records and self._sim.ends_apart(self._id):
            found.exhausted = False
            return
        found.outcome = self._view.ending(self._id, asked=False)

    def _nothing(self, found: Slice) -> bool:
        return not found.records and isinstance(found.outcome, Continue) and found.exhausted

    def _wait(self, seconds: float) -> None:
        """Block until a change is written to this partition or the partition ends."""
        head = self._sim.head
        self._sim.changed.wait_for(lambda: self._cancelled or self._moved(head), seconds)
        self._check_cancelled()

    def _moved(self, head: int) -> bool:
        """Return True if this partition has a commit after the given number, or has ended."""
        partition = self._partition()
        if partition is None or partition.closed is not None:
            return True
        return partition.commit(partition.find(head + 1)) is not None

    def _batch(self, found: Slice) -> Batch:
        behaviour = self._sim.behaviour
        return Batch(
            found,
            self._mapper,
            to_cursor(found.begin),
            to_cursor(found.end),
            found.outcome,
            found.nbytes(),
            caught_up=self._caught_up(found),
            watermark=self._watermark(found) if behaviour.watermarks else None,
            poll_after=behaviour.poll_after if found.exhausted else 0.0,
            notices=tuple(found.notices),
            headroom=self._sim.headroom(found.end[0] - 1),
            charge=1.0 + len(found.records),
        )

    def _caught_up(self, found: Slice) -> bool | None:
        match self._sim.behaviour.caught_up:
            case CaughtUp.EXACT:
                return found.exhausted
            case CaughtUp.WHEN_EMPTY:
                return found.exhausted and not found.records
            case CaughtUp.UNKNOWN:
                return None if found.exhausted or found.records else False

    def _watermark(self, found: Slice) -> datetime | None:
        partition = self._partition()
        if found.exhausted and partition is not None and partition.closed is None and self._until is None:
            return self._sim.now
        commit, done = found.end
        return self._sim.commit_time(commit if done else commit - 1)
