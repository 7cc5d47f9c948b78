"""Runs reads of single partitions on a bounded thread pool, with retries, for all calls of a client."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for
from typing import Final, TypeVar

from attrs import frozen

from multiclouddb_api import ClientConfig, ErrorCategory
from multiclouddb_api.daemon_pool import DaemonPool, PoolEndedError
from multiclouddb_spi.abilities import SupportsInterrupts
from multiclouddb_spi.batch import Batch
from multiclouddb_spi.contract import Provider
from multiclouddb_spi.errors import fault_of
from multiclouddb_spi.faults import Fault, ProviderFault
from multiclouddb_spi.fetching.consumers import Consumers
from multiclouddb_spi.fetching.stream import Budget, Stream
from multiclouddb_spi.interrupts import End
from multiclouddb_spi.observing import Observing
from multiclouddb_spi.retry import ATTEMPTS, Tries
from multiclouddb_spi.time_limits import CALL_SILENT_SECONDS, Arrival, Counting, Deadline

S = TypeVar("S")
T = TypeVar("T")
_LOOK_SECONDS: Final = 0.2
# What a store in the same process reads within some milliseconds. A larger page has several such parts.
_MOST_AT_ONCE: Final = 4096
_BYTES_AT_ONCE: Final = 2 * 1024 * 1024
_AGAIN_SECONDS: Final = 0.05
_PAUSE_SECONDS: Final = 0.25
_MOST_READERS: Final = 16384


class InlineExecutor(Executor):
    """Runs every function immediately in the calling thread, for deterministic tests."""

    def submit(self, fn: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        """Run the function now.

        Args:
            fn: The function to call.
            *args: The positional arguments of the function.
            **kwargs: The keyword arguments of the function.
        """
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the future raises it
            future.set_exception(error)
        return future


class Fetcher:
    """Runs the reads and control calls of one client."""

    def __init__(
        self,
        provider: Provider,
        pool: Executor,
        observing: Observing,
        closed: End,
        attempts: int = ATTEMPTS,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._provider = provider
        self._pool = pool
        self._observing = observing
        self._closed = closed
        self._attempts = attempts
        self._pause = pause or closed.wait
        self._counting = Counting()

    def at_once(self, live: Stream, records: int, nbytes: int) -> Future[Batch] | None:
        """Fetch in the thread of the caller, if the feed can; None if the pool has to."""
        if self._closed.is_set():
            return None
        try:
            batch = live.open().fetch_at_once(min(records, _MOST_AT_ONCE), min(nbytes, _BYTES_AT_ONCE))
        except Exception:  # noqa: BLE001 - a fetch on the pool decides what to do about it
            live.drop_reader()
            return None
        if batch is None:
            return None
        live.retries, live.error = 0, None
        live.fetched(nbytes, batch.nbytes)
        answered = Future[Batch]()
        answered.set_result(batch)
        return answered

    def call(self, operation: Callable[[], T], deadline: Deadline) -> T:
        """Run a control call with retries; stop waiting for its answer at the deadline."""
        failures: list[Exception] = []
        tries = self._tries(lambda _attempt, _seconds, error: failures.append(error))
        future: Future[T] = self.submit(self._bounded, tries, operation, deadline)
        while not future.done():
            wait_for([future], timeout=min(_LOOK_SECONDS, max(0.001, deadline.remaining())))
            still_waiting(deadline, lambda: self.fault(failures[-1]).message if failures else None)
            if self._closed.is_set():
                raise self._closed.fault()
            if deadline.passed() and not future.done():
                future.cancel()
                raise failures[-1] if failures else ProviderFault(late_fault())
        try:
            result = future.result()
        except Exception as error:
            if self._closed.is_set():  # this can be any error, because the vendor's client was closed
                raise self._closed.fault() from error
            raise
        if deadline.progress is not None:
            deadline.progress.answered()
        return result

    def each(self, work: Callable[[S], T], items: Sequence[S]) -> list[T]:
        """Do some work for each item, as many at once as there are threads; return the results in order.

        The work sends its own requests with their retries, so it must not call this object. If it fails for
        an item, no more of it is started, and the error is raised when what runs has ended.
        """
        futures = [self.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
            wait_for(futures)

    def interrupted(self) -> None:
        """Let the provider throw away what a call that was interrupted may have used."""
        if isinstance(self._provider, SupportsInterrupts):
            self._provider.interrupted()

    def shut_down(self) -> None:
        """Accept no more work; does not wait for what is running."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def pause_briefly(self) -> None:
        """Pause briefly before the caller repeats its request."""
        self._pause(_AGAIN_SECONDS)

    def submit(self, operation: Callable[..., T], *args: object) -> Future[T]:
        """Run a function on the pool."""
        try:
            return self._pool.submit(operation, *args)
        except PoolEndedError as error:
            raise self._closed.fault() from error

    def _bounded(self, tries: Tries, operation: Callable[[], T], deadline: Deadline) -> T:
        with Arrival(self._closed):
            return tries.call(operation, deadline)

    def fetch(self, live: Stream, records: int, nbytes: int, wait: float, deadline: Deadline) -> Batch:
        """Fetch the next answer of a stream, with retries; for a thread of the pool."""
        live.retries, live.error = 0, None
        # A later cancel of the reader cancels the arrival too; an earlier one is noticed by `once`.
        arrival = live.arrival = Arrival(self._closed)

        def is_given_up() -> bool:
            return live.cancelled or self._closed.is_set()

        def once() -> Batch:
            if is_given_up():
                raise self._closed.fault(may_pass=False)
            try:
                reader = live.reader
                if reader is None:
                    arrival.begin_call(silence=CALL_SILENT_SECONDS)
                    reader = live.open()
                    if is_given_up():  # before the reader was open
                        raise self._closed.fault(may_pass=False)
                arrival.begin_call(wait)
                return reader.fetch(live.size.of(records), live.size.of(nbytes), wait, deadline)
            except Exception as error:
                live.drop_reader()
                if is_given_up():  # whoever gives it up wants no other try
                    raise self._closed.fault(may_pass=False) from error
                fault = self.fault(error)
                # A service that limits the requests would have to answer more of them.
                if fault.retryable and fault.category != ErrorCategory.THROTTLED and not arrival.cancelled:
                    live.size.failed(self._counting.received(arrival))
                raise

        def on_retry(attempt: int, seconds: float, error: Exception) -> None:
            live.retries, live.error = attempt, error
            address, where = live.feed.spec.address, live.feed.public_id(live.partition_id)
            self._observing.retry(address, where, attempt, seconds, self.fault(error).message)

        try:
            with arrival:
                batch = self._tries(on_retry, limits=False).call(once, deadline)
            self._counting.received(arrival)
            if not live.cancelled:  # else it came too late, which was a failure
                live.size.succeeded(batch.nbytes or len(batch), batch.caught_up is True)
            live.error = None  # the traceback of the ended fetch would keep the batch in memory
            live.fetched(nbytes, batch.nbytes)
            return batch
        finally:
            live.arrival = None  # first, because `discard` reads it after it has set `cancelled`
            if live.cancelled:
                live.ended()

    def give_up(self, live: Stream) -> None:
        """Record that the running fetch of a stream is given up because it takes too long."""
        live.cancelled = True  # so its own failure does not count too
        if (arrival := live.arrival) is not None:
            live.size.failed(self._counting.received(arrival))

    def _tries(self, on_retry: Callable[[int, float, Exception], None], *, limits: bool = True) -> Tries:
        return Tries(self._provider, self._attempts, self._pause, on_retry, limits)

    def fault(self, error: Exception) -> Fault:
        """Return the fault of a failure, with its category and message."""
        return fault_of(self._provider, error)


@frozen(eq=False, repr=False)
class ReadContext:
    """The objects that all calls of one client share."""

    fetcher: Fetcher
    consumers: Consumers
    budget: Budget
    observing: Observing
    closed: End
    width: int  # the number of partitions that one call reads at the same time
    page_records: int
    watch_seconds: float  # how long to search for more children of an ended partition
    audit_seconds: float  # how often the coverage of a collection is audited

    @classmethod
    def made(
        cls,
        provider: Provider,
        config: ClientConfig,
        observing: Observing,
        *,
        executor: Executor | None = None,
        attempts: int = ATTEMPTS,
        pause: Callable[[float], object] | None = None,
    ) -> ReadContext:
        """Make the objects of one client or of one connection of Spark."""
        # The pool has twice the width, so that the long polls of one call do not prevent another call from
        # reading.
        pool = executor or DaemonPool(2 * config.max_concurrency, "multiclouddb")
        closed, budget = End(), Budget(config.max_buffered_bytes)
        return cls(
            Fetcher(provider, pool, observing, closed, attempts, pause),
            Consumers(budget, _MOST_READERS), budget, observing, closed,
            width=config.max_concurrency, page_records=provider.page_records,
            watch_seconds=config.child_watch_seconds, audit_seconds=config.coverage_audit_seconds,
        )  # fmt: skip

    def interrupted(self) -> None:
        """Let the provider throw away what a call that was interrupted may have used."""
        self.fetcher.interrupted()

    def end(self) -> None:
        """Cancel all fetches, and close all readers; every call that is running ends within a second."""
        self.closed.set()
        self.consumers.close()
        self.fetcher.shut_down()

    def pause(self, seconds: float, deadline: Deadline) -> None:
        """Wait until the time has passed; `deadline` is that of the call, which may be ended before."""
        until = time.monotonic() + seconds
        while True:
            check_stopped(deadline)
            left = until - time.monotonic()
            if self.closed.wait(max(0.0, min(_PAUSE_SECONDS, left))):
                raise self.closed.fault()
            if left <= _PAUSE_SECONDS:
                return


def check_stopped(deadline: Deadline) -> None:
    """Raise an error if the call must end."""
    if deadline.progress is not None and deadline.progress.must_stop():
        raise ProviderFault.of(
            ErrorCategory.TRANSIENT_FAILURE,
            "the call was ended by its OperationOptions.progress; nothing is lost: continue from the token "
            "of the request",
        )


def still_waiting(deadline: Deadline, reason: Callable[[], str | None]) -> None:
    """Report that a call has not received an answer yet; raise an error if the call must end."""
    check_stopped(deadline)
    if deadline.progress is not None:
        deadline.progress.waits(reason)


def late_fault() -> Fault:
    """Make the fault for a call that got no answer before its deadline."""
    return Fault(
        ErrorCategory.TRANSIENT_FAILURE,
        "the service gave no answer before the deadline; nothing is lost: call again with the same token, "
        "or give OperationOptions(timeout_seconds=…) more time",
        retryable=True,
    )
