"""Keeps a provider and its feed open in a Spark process.

Spark unpickles a new reader for every task but keeps the process, so later tasks reuse the connections opened
here. Importing this module opens nothing, because workers are forked.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

from multiclouddb_api import (
    AtTime,
    EntireCollection,
    ErrorCategory,
    FromContinuationToken,
    Observer,
    ResourceAddress,
    Snapshot,
    invalid_request,
)
from multiclouddb_api.daemon_pool import DaemonPool
from multiclouddb_api.process import Home
from multiclouddb_spi import (
    Deadline,
    Feed,
    FeedStart,
    Planner,
    Provider,
    ProviderFault,
    RecordFault,
    Target,
    open_provider,
)
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import state_from_json
from multiclouddb_spi.continuation.token import decode_token, scope_text
from multiclouddb_spi.cursor import InvalidCursor
from multiclouddb_spi.errors import fault_of, user_errors
from multiclouddb_spi.fetching.fetcher import ReadContext
from multiclouddb_spi.interrupts import Renewed
from multiclouddb_spi.observing import Observing
from multiclouddb_spi.open_feed import OpenFeed
from multiclouddb_spi.request_check import spec_of
from multiclouddb_spi.retry import Call, Tries, directly
from multiclouddb_spi.time_limits import CALL_SILENT_SECONDS, AnswerSize
from pyspark_multiclouddb.errors import poisoned
from pyspark_multiclouddb.options import BATCH_PAYLOADS, STARTING_TOKEN, Settings

S = TypeVar("S")
T = TypeVar("T")

CALL_SECONDS: Final = 120.0
_TRIES: Final = 100
_MOST_OPEN: Final = 16
_LOG: Final = logging.getLogger("multiclouddb.spark")

_open: OrderedDict[Hashable, Renewed[Connection]] = OrderedDict()


class Connection:
    """A connection to one provider, and one feed of that provider, for one thread.

    It tries again for up to two minutes, because Spark does not.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._home = Home(self, "connection", "call connection_for in this process")
        self.provider: Provider = open_provider(settings.config)
        spec = spec_of(self.provider, settings.request(), "open")
        # What the planner keeps between two batches; its threads start when it first reads.
        self._context = ReadContext.made(
            self.provider, settings.config, Observing(_Retries()), attempts=_TRIES
        )
        self.closed = self._context.closed
        # How much to request from partitions whose connection broke, for later tasks.
        self.sizes = dict[str, AnswerSize]()
        self._tries = Tries(self.provider, _TRIES, on_retry=self._on_retry)
        # Their own, because the planner makes calls in the threads of its context.
        self._threads = DaemonPool(2 * settings.config.max_concurrency, "multiclouddb-call")
        self.opened = OpenFeed(self.provider, spec, self._call, CALL_SECONDS)

    @property
    def feed(self) -> Feed:
        """The feed, which is opened when it is first used."""
        return self.opened.feed

    @property
    def incarnation(self) -> str | None:
        """The incarnation of the feed's resource."""
        return self.feed.identity.incarnation

    def start(self, position: FeedStart | Snapshot | FromContinuationToken) -> Lineage:
        """Resolve a start position, if the database can start from it."""
        if isinstance(position, FromContinuationToken):
            return self._continued(position.token)
        self.opened.check_start(position)
        # The start is repeated as a whole, because a service may name no partition at first.
        planner = self._planner(directly)
        return self.opened.call("start", lambda until: planner.start(position, until, "startingPosition"))

    def _continued(self, token: str) -> Lineage:
        """Return the positions of a token, if a query can go on from them."""
        envelope, spec = decode_token(token), self.opened.spec
        options = "" if spec.options is None else spec.options.position_digest()
        theirs = envelope.provider_id, self.provider.full_address(envelope.address), envelope.scope
        if theirs != (self.provider.provider_id, spec.address, scope_text(EntireCollection())):
            raise invalid_request(
                STARTING_TOKEN, f"is no position of all of {spec.address}", "begin with a snapshot"
            )
        without = "go on without Spark, which reads on from this position"
        if envelope.options_digest != options:
            raise invalid_request(STARTING_TOKEN, "was made with provider options", without)
        if envelope.skipped:
            raise invalid_request(STARTING_TOKEN, "skips a record that cannot be decoded", without)
        self.opened.check_resumes(envelope.incarnation, STARTING_TOKEN, "begin with a snapshot")
        try:
            state = state_from_json(envelope.state, self.feed)
        except InvalidCursor as error:
            raise invalid_request(STARTING_TOKEN, f"is damaged ({error})", "begin with a snapshot") from None
        if not isinstance(state, Lineage):
            raise invalid_request(STARTING_TOKEN, "is the end of a feed", without)
        if state.plan is not None and state.plan.rate is not None:
            what = "is in the middle of a snapshot with a max_scan_rate, which Spark's tasks do not keep"
            raise invalid_request(STARTING_TOKEN, what, without)
        return state

    def target_at(self, moment: datetime) -> Target:
        """Return the end that the feed had at a given time, if the database can determine it."""
        self.opened.check_start(AtTime(moment))
        return self.plan("plan", lambda planner, until: planner.target_at(moment, until, "endingPosition"))

    def plan(self, operation: str, ask: Callable[[Planner, Deadline], T]) -> T:
        """Call a function once with a planner for the feed; each request of the planner is retried."""
        planner = self._planner(self._call)
        with user_errors(self.provider, operation):
            try:
                return ask(planner, Deadline.after(CALL_SECONDS))
            except RecordFault as fault:
                raise poisoned(str(self.settings.address), fault) from fault

    def each(self, work: Callable[[S], T], items: Sequence[S]) -> list[T]:
        """Do some work of the planner for each item, on its threads; return the results in order."""
        _ = self.feed  # it is opened here, and not in one of the threads
        return self._context.fetcher.each(work, items)

    def _call(self, ask: Callable[[], T], deadline: Deadline, /) -> T:
        """Make a call with retries; give up a service that does not answer."""
        future: Future[T] = self._threads.submit(self._tries.call, ask, deadline)
        wait_for([future], deadline.remaining() + CALL_SILENT_SECONDS)
        if not future.done():
            raise ProviderFault.of(
                ErrorCategory.TRANSIENT_FAILURE,
                "the service has not answered a call for minutes; restart the query",
                retryable=True,
            )
        return future.result()

    def _planner(self, call: Call) -> Planner:
        return Planner(
            self.provider,
            self.feed,
            self.settings.on_expired,
            context=self._context,
            call=call,
            skip_poison=self.settings.skip_poison,
            keep_bytes=BATCH_PAYLOADS * self.settings.max_payload,
        )

    def interrupted(self) -> None:
        """Let the provider, which is closed next, use no lock that the interrupt may have left held."""
        self._context.interrupted()

    def end(self) -> None:
        """Close the feed and the provider. Later calls do nothing, and neither does a call after a fork."""
        if not self._home.is_here:
            return
        self._context.end()
        try:
            self.opened.close()
        finally:
            self.provider.close()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _on_retry(self, attempt: int, seconds: float, error: Exception) -> None:
        _warn(attempt, seconds, fault_of(self.provider, error).message)


class _Retries(Observer):
    """Logs the retries of reads as those of other calls."""

    def retry(
        self, address: ResourceAddress, partition_id: str, attempt: int, seconds: float, reason: str
    ) -> None:
        _warn(attempt, seconds, reason)


def _warn(attempt: int, seconds: float, reason: str) -> None:
    _LOG.warning("attempt %d of a call failed (%s); the next one is in %.1f s", attempt, reason, seconds)


def connection_for(settings: Settings) -> Connection:
    """Return this process's connection for these options. The first call opens the connection."""
    return _renewed_for(settings).kept


def connected(settings: Settings, call: Callable[[Connection], T]) -> T:
    """Make a call with this process's connection for these options; an interrupt of the call replaces it.

    Spark itself ends its Python process after an interrupt.
    """
    return _renewed_for(settings).use(call)


def _renewed_for(settings: Settings) -> Renewed[Connection]:
    key = os.getpid(), settings.of_the_connection
    if key in _open:
        _open.move_to_end(key)  # taken out and put back, it would be lost to an interrupt between the two
        return _open[key]
    while len(_open) >= _MOST_OPEN:
        _close(_open.pop(next(iter(_open))))
    connection = _open[key] = Renewed(partial(Connection, settings))
    return connection


def close_connections() -> None:
    """Close the connections of this process; the next call opens new ones."""
    while _open:
        _, connection = _open.popitem()
        _close(connection)


def _close(connection: Renewed[Connection]) -> None:
    """Close a connection that nobody uses any more. A failure is only logged, because it harms no reader."""
    try:
        connection.close()
    except Exception as error:  # noqa: BLE001 - logged
        _LOG.warning("a connection was not closed (%s)", fault_of(connection.kept.provider, error).message)


atexit.register(close_connections)
