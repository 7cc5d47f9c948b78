"""Reads a range of one partition; every read of the same range returns the same events."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import closing, suppress
from typing import Final, assert_never

from attrs import frozen

from multiclouddb_api import ErrorCategory, Fail, Notice, OnExpired, SkipToOldest
from multiclouddb_api.daemon_pool import DaemonPool
from multiclouddb_spi.batch import Awaiting, Batch, Continue, Drained, Ended, Outcome, Reached, Scanned
from multiclouddb_spi.contract import Feed, Provider, Reader
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.errors import cause_of, fault_of, to_error, user_errors
from multiclouddb_spi.faults import ProviderFault, RecordFault
from multiclouddb_spi.positions import compare, open_reader
from multiclouddb_spi.retry import MOST_SKIPS, Tries
from multiclouddb_spi.segment import Segment, plan_id_of
from multiclouddb_spi.time_limits import CALL_SILENT_SECONDS, AnswerSize, Arrival, Counting, Deadline

_FETCH_SECONDS: Final = 120.0
_STILL_SECONDS: Final = 120.0
_PAUSE_SECONDS: Final = 0.1
_SPARE_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.2
_CLOSE_SECONDS: Final = 1.0
_RECORDS: Final = 10_000
_DELIVER_FIRST: Final = (ErrorCategory.PROVIDER_ERROR, ErrorCategory.CHECKPOINT_EXPIRED)
_BYTES: Final = 8 * 1024 * 1024
_LONG: Final = 500  # a caller of a shorter range may need no more records
_log = logging.getLogger("multiclouddb.planner")
_SILENT: Final = "the service has not answered for {:.0f} s, so its answer is given up; try again"
_ENDED: Final = (
    "it ended before the end of the planned range: it was dropped, renamed or recreated in the meantime; "
    "try again, and if that does not help, start a new read at an earlier time"
)
_BEHIND: Final = (
    f"the service has sent nothing more for {_STILL_SECONDS:.0f} s, before the end of the planned range; "
    "try again, and if that does not help, the resource was recreated: start again"
)


@frozen
class Range:
    """A range of positions in one partition: `(start, until]`.

    Attributes:
        partition_id: The service's own id of the partition.
        start: The position after which to read.
        until: The last position of the range; the record at this position is included. None means
            no limit. `read_range` reads a range without a limit to the end of the partition.
            Therefore, pass it None only if the partition has ended or is a segment of a scan.
    """

    partition_id: str
    start: Cursor
    until: Cursor | None


def read_range(
    provider: Provider,
    feed: Feed,
    part: Range,
    on_expired: OnExpired | None = None,
    on_poison: Callable[[RecordFault], None] | None = None,
    on_notice: Callable[[Notice], None] | None = None,
    sizes: MutableMapping[str, AnswerSize] | None = None,
) -> Iterator[Batch]:
    """Read a range with retries; no batch is empty.

    Another thread reads, so that a service that never answers can be given up. While the caller uses a batch
    of a long range, it reads the next one.

    Args:
        provider: Classifies failures.
        feed: The opened feed.
        part: The range to read.
        on_expired: `SkipToOldest()` to continue after records of the range that the retention has removed;
            `Fail()` by default.
        on_poison: Called for each record that cannot be fetched; reading continues after the record. None
            to raise an error. A record that is fetched but cannot be mapped is left to the caller, because
            the caller maps the batch.
        on_notice: Called for each notice of the range, after the batch that it follows was yielded.
        sizes: How much to request from each partition whose connection broke within an answer. If you read
            many ranges of a feed, pass the same object each time, so that a later range requests as little.
            The object is changed; for one partition, only one thread at a time may use it.

    Raises:
        MulticloudDbError: An error with a category; `CHECKPOINT_EXPIRED` if a part of the range is older than
            the retention.
    """
    reading = RangeReading(provider, feed, part, on_poison, on_notice, sizes)
    try:
        with user_errors(provider, "read"):
            yield from reading.batches(on_expired or Fail())
    finally:
        reading.close()


class RangeReading:
    """Reads a range with retries."""

    def __init__(
        self,
        provider: Provider,
        feed: Feed,
        part: Range,
        on_poison: Callable[[RecordFault], None] | None = None,
        on_notice: Callable[[Notice], None] | None = None,
        sizes: MutableMapping[str, AnswerSize] | None = None,
    ) -> None:
        self._provider, self._feed, self._part = provider, feed, part
        self._sizes = {} if sizes is None else sizes
        self._on_poison, self._on_notice = on_poison, on_notice
        self._tries = Tries(provider, pause=lambda seconds: _sleep(seconds))
        self._position = part.start
        self._reader: Reader | None = None
        self._pool: DaemonPool | None = None
        # The fetch that was begun last, unless its answer was taken. Until then, only its thread uses the
        # reader.
        self._future: Future[Batch] | None = None
        self._began = 0.0
        self._size, self._counting = self._sizes.get(part.partition_id) or AnswerSize(), Counting()
        self._arrival = Arrival()

    def batches(self, on_expired: OnExpired) -> Iterator[Batch]:
        """Yield the batches of the whole range; no batch is empty."""
        # The node of the service that answers now may lag behind the node that answered when the range was
        # planned. Therefore, if records run out before the end of the range, the service is asked again.
        still, skips, count = Deadline.after(_STILL_SECONDS), 0, 0
        while True:
            before = self._position
            try:
                batch = self._next()
            except RecordFault as poison:
                if self._on_poison is None:
                    raise
                self._on_poison(poison)
                self.continue_at(poison.skip_cursor)
                still, skips = Deadline.after(_STILL_SECONDS), 0
                continue
            except Exception as error:  # noqa: BLE001 - raised below, or skipped
                fault = fault_of(self._provider, error)
                # A lost position of a segment is not skipped, because its rows would be missed.
                is_segment = plan_id_of(self._part.partition_id) is not None
                expired = fault.category == ErrorCategory.CHECKPOINT_EXPIRED and not is_segment
                if not expired or not isinstance(on_expired, SkipToOldest) or skips == MOST_SKIPS:
                    raise to_error(self._provider.provider_id, "read", fault, error) from cause_of(
                        fault, error
                    )
                skips += 1
                if self._skip():
                    continue
                return
            if len(batch):
                count += len(batch)
                if count >= _LONG and isinstance(batch.outcome, Continue) and not batch.poll_after:
                    self._begin(_RECORDS, Deadline.after(_FETCH_SECONDS))
                yield batch
            self._tell(batch.notices)
            if isinstance(batch.outcome, Scanned):
                self.close()
                for piece in batch.outcome.pieces:
                    self._check_piece(piece)
                    part = Range(piece.segment_id, piece.cursor, None)
                    rest = RangeReading(
                        self._provider, self._feed, part, self._on_poison, self._on_notice, self._sizes
                    )
                    with closing(rest):
                        yield from rest.batches(on_expired)
            if self._is_over(batch.outcome):
                if isinstance(batch.outcome, Ended) and batch.outcome.notice is not None:
                    self._tell((batch.outcome.notice,))
                return
            if len(batch) or self._compare(before, self._position) == -1:
                still, skips = Deadline.after(_STILL_SECONDS), 0
            if not len(batch) and batch.caught_up is not False:
                if still.passed():
                    raise self._fault(_BEHIND)
                _sleep(max(_PAUSE_SECONDS, batch.poll_after))

    def close(self) -> None:
        """Free the reader; may be called more than once."""
        # A reader can be closed when its fetch has ended.
        pool, self._pool = self._pool, None
        future, self._future = self._future, None
        reader, self._reader = self._reader, None
        if future is not None and reader is not None and not future.done():
            with suppress(Exception):
                reader.cancel()
            wait_for([future], _CLOSE_SECONDS)
        has_ended = future is None or future.done()
        if pool is not None:
            pool.shutdown(wait=has_ended, cancel_futures=True)
        if reader is not None and future is not None and not has_ended:
            future.add_done_callback(lambda _: reader.close())
        elif reader is not None:
            reader.close()

    def _tell(self, notices: Iterable[Notice]) -> None:
        if self._on_notice is not None:
            for notice in notices:
                self._on_notice(notice)

    def _next(self) -> Batch:
        """Return the next records, which may have been read already; there may be none."""
        if self._future is not None:
            with suppress(Exception):  # its reader is closed, and another fetch decides what to do about it
                return self._taken(self._awaited())
        return self.fetch(_RECORDS, Deadline.after(_FETCH_SECONDS))

    def _begin(self, max_records: int, deadline: Deadline) -> None:
        """Let another thread read the next records."""
        if self._pool is None:
            self._pool = DaemonPool(1, "multiclouddb-range")
        if self._reader is None:
            self._reader = open_reader(self._feed, self._part.partition_id, self._position, self._part.until)
        self._began = time.monotonic()
        self._future = self._pool.submit(self._once, self._reader, max_records, deadline)

    def _awaited(self) -> Batch:
        """Return the answer of the fetch that was begun last; give it up if it does not arrive."""
        future, reader = self._future, self._reader
        assert future is not None
        assert reader is not None
        while not future.done():
            wait_for([future], _LOOK_SECONDS)
            longest = reader.longest_fetch()
            if not future.done() and time.monotonic() - self._began > longest:
                self._failed(self._arrival)
                self.close()
                raise self._fault(_SILENT.format(longest))
        self._future = None
        try:
            return future.result()
        except Exception:
            self._reader = None
            reader.close()
            raise

    def continue_at(self, position: Cursor) -> None:
        """Continue at another position, for example after a record that cannot be fetched."""
        self.close()
        self._position = position

    def _is_over(self, outcome: Outcome) -> bool:
        """Return whether the range ends with a batch; raise if the partition has ended too early."""
        match outcome:
            case Continue():
                return False
            case Reached():
                return True
            case Drained() | Awaiting() | Ended() | Scanned():
                until = self._part.until
                if until is not None and self._compare(self._position, until) in (-1, None):
                    raise self._fault(_ENDED)
                return True
            case _:
                assert_never(outcome)

    def fetch(self, max_records: int, deadline: Deadline) -> Batch:
        """Return the next records; there may be none."""

        def once() -> Batch:
            self._begin(max_records, deadline)
            return self._awaited()

        return self._taken(self._tries.call(once, deadline))

    def _taken(self, batch: Batch) -> Batch:
        self._position = batch.cursor_after(len(batch))
        return batch

    def _once(self, reader: Reader, max_records: int, deadline: Deadline) -> Batch:
        size = self._size
        with Arrival() as arrival:
            self._arrival = arrival
            arrival.begin_call(silence=CALL_SILENT_SECONDS)
            try:
                batch = reader.fetch(size.of(max_records), size.of(_BYTES), 0.0, deadline)
            except Exception as error:
                fault = fault_of(self._provider, error)
                broken = fault.retryable and fault.category != ErrorCategory.THROTTLED
                if broken and reader is self._reader:
                    self._failed(arrival)
                raise
        self._counting.received(arrival)
        if reader is self._reader:  # else it was given up
            size.succeeded(batch.nbytes or len(batch), batch.caught_up is True)
            if size.is_full:
                self._sizes.pop(self._part.partition_id, None)
        return batch

    def _failed(self, arrival: Arrival) -> None:
        self._size.failed(self._counting.received(arrival))
        self._sizes[self._part.partition_id] = self._size

    def _check_piece(self, piece: Segment) -> None:
        if plan_id_of(piece.segment_id) != plan_id_of(self._part.partition_id):
            raise ProviderFault.of(
                ErrorCategory.PERMANENT_FAILURE,
                f"{self._feed.public_id(self._part.partition_id)}: a piece of the segment belongs to another "
                "scan; this violates the contract and is a defect of the provider: report it",
            )

    def _compare(self, a: Cursor, b: Cursor) -> int | None:
        return compare(self._feed, self._part.partition_id, a, b)

    def _fault(self, what: str) -> ProviderFault:
        message = f"{self._feed.public_id(self._part.partition_id)}: {what}"
        return ProviderFault.of(ErrorCategory.TRANSIENT_FAILURE, message, retryable=True)

    def _skip(self) -> bool:
        """Continue at the oldest record that is left in the range; False if no record is left."""
        part, deadline, lost = self._part, Deadline.after(_FETCH_SECONDS), self._position
        left = False
        asked, name = {part.partition_id: lost}, part.partition_id
        survey = self._tries.call(lambda: self._feed.survey(asked, deadline, expired={name}), deadline)
        for there in survey.present:
            if there.partition_id == name and there.oldest is not None:
                self._position = there.oldest
                left = part.until is None or self._feed.compare(there.oldest, part.until) in (-1, None)
        if not left or self._position != lost:
            where, text = self._feed.public_id(part.partition_id), self._feed.describe(lost).text
            _log.warning("%s: the changes after %s were lost to retention", where, text)
        return left


def _sleep(seconds: float) -> None:
    time.sleep(seconds)
