"""The only module that uses PyMongo's internals, for cases in which its public interface is not sufficient.

Each of these names is in `tests/private_names.toml`, with the reason. The requirement of PyMongo ends before
the first minor version in which no test has seen them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

import pymongo
from pymongo import MongoClient
from pymongo.change_stream import (
    ChangeStream,
    ClusterChangeStream,
    CollectionChangeStream,
    DatabaseChangeStream,
)
from pymongo.collection import Collection
from pymongo.cursor import Cursor
from pymongo.database import Database
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError, ServerSelectionTimeoutError
from pymongo.synchronous.topology import Topology

from multiclouddb_api import EntireCluster, EntireDatabase, ErrorCategory, FeedScope
from multiclouddb_mongo.errors import classify
from multiclouddb_mongo.raw_change import Raw, RawChange, bytes_of
from multiclouddb_spi import Deadline, Fault, ProviderFault
from multiclouddb_spi.time_limits import SILENT_SECONDS, TooSlow, current

T = TypeVar("T")
Stream: TypeAlias = ChangeStream[RawChange]
Rows: TypeAlias = Cursor[Any]
"""The type of a cursor that `find` returns."""

_HEADER_BYTES: Final = 16
_CLOSE_SECONDS: Final = 0.5
_DEAF_SECONDS: Final = 5.0
_REFUSED_SECONDS: Final = 3.0
_NO_SECONDS: Final = 0.001
# PyMongo checks twice a second whether the time is over.
_TELL_SECONDS: Final = 0.75
_LOOK_SECONDS: Final = 0.1
# The attribute of an error whose server is already being checked again.
_WOKEN: Final = "_multiclouddb_woken"


class Closer:
    """Closes the streams of one client."""

    # If a server does not answer, closing takes one second in total, not one second per stream.

    def __init__(self) -> None:
        self._deaf_until = 0.0
        self._at_work = 0
        self._over = False
        self._changed = threading.Condition()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep the client open while a thread opens, reads or closes a stream."""
        with self._changed:
            self._at_work += 1
        try:
            yield
        finally:
            with self._changed:
                self._at_work -= 1
                self._changed.notify_all()

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Keep the client open while a stream is opened."""
        with self.at_work():
            if self._over:
                raise ProviderFault.of(ErrorCategory.TRANSIENT_FAILURE, "the client is closed; connect again")
            yield

    def end(self) -> None:
        """Prevent the opening of further streams."""
        self._over = True

    def settle(self) -> None:
        """Wait at most half a second for threads that use a stream."""
        patience = 0.0 if time.monotonic() < self._deaf_until else _CLOSE_SECONDS
        with self._changed:
            self._changed.wait_for(lambda: not self._at_work, patience)

    def close(self, stream: Stream | Rows, *, reachable: bool) -> None:
        """Close a stream without raising an error."""
        with self.at_work():
            began = time.monotonic()
            speak = reachable and began >= self._deaf_until
            with suppress(Exception), pymongo.timeout(_CLOSE_SECONDS if speak else _NO_SECONDS):
                stream.close()
            if time.monotonic() - began > 0.9 * _CLOSE_SECONDS:
                self._deaf_until = time.monotonic() + _DEAF_SECONDS


def bounded_pool() -> type:
    """Return the class of the pools of a `MongoClient` that gives up answers that do not arrive."""
    # PyMongo's `socketTimeoutMS` is one limit for all calls, and it does not say whether bytes arrive. A
    # server may scan its log for minutes before it answers a change stream, so one limit does not fit.
    # PyMongo's `timeout` would make PyMongo retry until the time is over.
    from pymongo.network_layer import NetworkingInterface
    from pymongo.synchronous.pool import Pool

    class Options:
        """The options of a pool; while a connection is being opened, its handshake has a time limit."""

        def __init__(self, options: Any, connecting: threading.local) -> None:
            self._options, self._connecting = options, connecting

        def __getattr__(self, name: str) -> Any:
            return getattr(self._options, name)

        @property
        def socket_timeout(self) -> float | None:
            limit: float | None = self._options.socket_timeout
            if not getattr(self._connecting, "now", False):
                return limit
            return SILENT_SECONDS if limit is None else min(limit, SILENT_SECONDS)

    class Bounded(NetworkingInterface):
        """The socket of a connection in a pool."""

        def __init__(self, conn: Any, pool: Any) -> None:
            super().__init__(conn)
            self._pool, self._awaits = pool, False

        def recv_into(self, buffer: Any) -> int:
            arrival = current()
            if arrival is None:
                return int(super().recv_into(buffer))
            if len(buffer) == _HEADER_BYTES and not self._awaits:
                arrival.begin()
                self._awaits = True  # PyMongo calls this method again twice a second
            try:
                arrival.check()
                count = int(super().recv_into(buffer))
            except TooSlow as error:  # PyMongo would ignore a `TimeoutError`
                if not arrival.cancelled:  # whatever has dropped this connection may have dropped the others
                    self._pool.reset_without_pause()
                raise GivenUp(str(error)) from None
            arrival.heard(count)
            self._awaits = False
            return count

    class BoundedPool(Pool):
        """A pool whose connections obey `Arrival`, except the connections of PyMongo's monitor."""

        def __init__(self, address: Any, options: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(address, options, *args, **kwargs)
            self.connecting = threading.local()
            if not self.is_sdam:
                limited: Any = Options(options, self.connecting)
                self.opts = limited

        def connect(self, handler: Any = None) -> Any:
            if self.is_sdam:
                return super().connect(handler)
            self.connecting.now = True
            try:
                made = super().connect(handler)
            finally:
                self.connecting.now = False
            if type(made.conn) is NetworkingInterface:
                made.conn = Bounded(made.conn.conn, self)
            return made

    return BoundedPool


class GivenUp(ProviderFault):
    """Raised if an answer of the server is given up."""

    def __init__(self, reason: str) -> None:
        super().__init__(Fault(ErrorCategory.TRANSIENT_FAILURE, f"{reason}; try again", retryable=True))


class _Collated:
    """Sends the `collation` of a change stream, which PyMongo 4.20 accepts but does not send."""

    def _command_options(self) -> dict[str, Any]:
        options: dict[str, Any] = super()._command_options()  # type: ignore[misc]
        collation = self._collation  # type: ignore[attr-defined]
        return options if collation is None else {**options, "collation": collation}


def retried(client: MongoClient[Any], ask: Callable[[], T]) -> T:
    """Run a command of the library."""
    # As with PyMongo's own reads, the command is retried once, unless `retryReads` is false.
    try:
        return ask()
    except PyMongoError as error:
        final = isinstance(error, ServerSelectionTimeoutError) or not classify(error).retryable
        if final or not client.options.retry_reads:
            raise
    return ask()


def check_servers(client: MongoClient[Any]) -> None:
    """Let PyMongo ask all servers soon for their state, at most twice a second; do not wait for it."""
    client._get_topology().request_check_all(0)


def reach(client: MongoClient[Any], deadline: Deadline, *, opening: bool = False) -> None:
    """Wait until PyMongo has found a server, but only until slightly before the time limit of the call."""
    # PyMongo reports the problem only after `serverSelectionTimeoutMS`, which is too late for a call with a
    # shorter time limit.
    remaining = deadline.remaining()
    seconds = min(client.options.server_selection_timeout, max(remaining / 2, remaining - _TELL_SECONDS))
    topology, preference = client._get_topology(), client.read_preference
    _awaited(topology, lambda: topology.select_servers(preference, "reach", 0), seconds, opening=opening)


def give_up_soon(client: MongoClient[Any]) -> None:
    """Let PyMongo not wait for a server if every server refuses the connection."""
    # PyMongo would wait for `serverSelectionTimeoutMS`, whatever the reason is.
    topology = client._get_topology()
    select = topology.select_servers
    if not hasattr(select, "__func__"):  # this function has already replaced it
        return

    def chosen(selector: Any, operation: str, seconds: float | None = None, *args: Any, **rest: Any) -> Any:
        seconds = topology.get_server_selection_timeout() if seconds is None else seconds
        return _awaited(topology, lambda: select(selector, operation, 0, *args, **rest), seconds)

    topology.select_servers = chosen  # type: ignore[assignment,method-assign]


def _awaited(topology: Topology, select: Callable[[], T], seconds: float, *, opening: bool = False) -> T:
    """Wait until a server can be selected, or until it is clear that no server will accept a connection."""
    before = list(_errors(topology).values())  # they may be older than the servers' present state
    began = time.monotonic()
    while True:
        try:
            return select()
        except ServerSelectionTimeoutError:
            errors = _errors(topology)
            _recheck(topology, errors)
            if None not in errors.values():
                fresh = [error for error in errors.values() if error is not None and error not in before]
                if fresh and len(fresh) == len(errors) and all(_refuses(error, opening) for error in fresh):
                    raise AutoReconnect(str(fresh[0])) from None
                seconds = min(seconds, _REFUSED_SECONDS) if opening else seconds
            if time.monotonic() - began >= seconds:
                raise
        topology.request_check_all(_LOOK_SECONDS)  # type: ignore[arg-type]


def _errors(topology: Topology) -> dict[Any, Exception | None]:
    """Return for the address of each server why PyMongo could not use it, or None."""
    servers = topology.description.server_descriptions()
    return {address: server.error for address, server in servers.items()}


def _refuses(error: Exception, opening: bool) -> bool:
    fault = classify(error)
    return not fault.retryable or (opening and fault.unknown_host)


def _recheck(topology: Topology, errors: Mapping[Any, Exception | None]) -> None:
    """Let PyMongo check the servers again that have refused a login."""
    # PyMongo would regard such a server as unknown until its next heartbeat. But the server does answer, and
    # may accept the next login.
    for address, error in errors.items():
        server = topology._servers.get(address)
        if server is not None and isinstance(error, OperationFailure) and _WOKEN not in vars(error):
            vars(error)[_WOKEN] = True
            server._monitor.cancel_check()


def log_in_again(client: MongoClient[Any]) -> bool:
    """Let all later calls use new connections, which log in; return False if the client has no user."""
    if getattr(client.options.pool_options, "_credentials", None) is None:
        return False
    for server in list(client._get_topology()._servers.values()):
        server.pool.reset_without_pause()
    return True


def watch_otherwise(
    target: Collection[RawChange] | Database[RawChange],
    scope: FeedScope,
    stages: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
) -> Stream:
    """Open a stream like `watch`, which also sends its `collation`."""
    base: type[ChangeStream[RawChange]] = CollectionChangeStream
    if isinstance(scope, EntireCluster | EntireDatabase):
        base = ClusterChangeStream if isinstance(scope, EntireCluster) else DatabaseChangeStream
    kind: Any = type("CollatedStream", (_Collated, base), {})
    given = {"resume_after": None, "start_after": None, "start_at_operation_time": None, **settings}
    stream: Stream = kind(target, list(stages), session=None, **given)
    stream._initialize_cursor()
    return stream


def buffered(stream: Stream) -> int | None:
    """Return the number of changes in the last answer that were not read yet."""
    # Return None if this version of PyMongo does not report the number. PyMongo has no public interface for
    # this number. If the library did not know how many changes are left, it would ask for one more change
    # than the answer contains, and would wait for the server.
    data = getattr(getattr(stream, "_cursor", None), "_data", None)
    return None if data is None else len(data)


def take_buffered(stream: Stream, most: int, count: Callable[[list[Raw]], int]) -> list[Raw]:
    """Take the first changes that are left of the last answer, all at once.

    Args:
        stream: The stream, of which `buffered` reports a number.
        most: How many changes to take at most; at least one change must remain.
        count: Says of these changes how many of the first ones to take.
    """
    # PyMongo runs several functions for each change that it hands out. It does not see these changes, so its
    # resume token stays where it is until it hands out the next change.
    data: deque[RawChange] = stream._cursor._data
    found: list[Raw] = list(map(bytes_of, islice(data, most)))
    del found[count(found) :]
    for _ in found:
        data.popleft()
    return found


def await_next(stream: Stream, await_ms: int) -> None:
    """Say how many milliseconds the server may delay the stream's next answer."""
    # Each request carries this time, but PyMongo's public interface fixes it when the stream is opened. A
    # stream with another time would have to be opened anew, and would search the log again.
    cursor = getattr(stream, "_cursor", None)
    if cursor is not None:
        cursor._max_await_time_ms = await_ms


def next_answer(cursor: Rows) -> list[Any]:
    """Return the rows of the server's next answer."""
    # If this version of PyMongo does not show how many rows are left, the result is a single row.
    first = next(cursor, None)
    if first is None:
        return []
    left = len(getattr(cursor, "_data", ()))
    return [first, *cursor.to_list(left)] if left else [first]


def inner_cursor(stream: Stream) -> object:
    """Return the stream's current cursor. The cursor changes when PyMongo resumes the stream."""
    # After PyMongo has resumed the stream, an empty answer does not mean that the end of the oplog is
    # reached.
    return getattr(stream, "_cursor", None)


def is_told_at_once(client: MongoClient[Any]) -> bool:
    """Return True if the servers tell a client at once which of them is the primary."""
    # Otherwise, the client asks them every ten seconds.
    from pymongo.pool_options import _is_faas

    mode = client.options.server_monitoring_mode
    return mode == "stream" or (mode == "auto" and not _is_faas())


@contextmanager
def hushed() -> Iterator[None]:
    """Suppress the tracebacks that PyMongo logs while a client is closed."""
    # PyMongo logs a traceback for each cursor on a server that does not answer, even if logging is not set
    # up.
    log = logging.getLogger("pymongo.client")

    def is_no_traceback(record: logging.LogRecord) -> bool:
        return record.exc_info is None

    # Each call has its own filter, because other threads may also close clients, and may remove their filters
    # earlier.
    log.addFilter(is_no_traceback)
    try:
        yield
    finally:
        log.removeFilter(is_no_traceback)


def interrupt(client: MongoClient[Any]) -> None:
    """End all receive calls of a client that is about to be closed, within half a second."""
    # If the network drops all packets, a receive call would last forever. PyMongo's monitor could end the
    # call, but the monitor ends when the client is closed. PyMongo has no public function that ends a running
    # receive.
    servers = getattr(getattr(client, "_topology", None), "_servers", {})
    for server in list(servers.values()):
        with suppress(Exception):
            server.pool.reset(interrupt_connections=True)


def flush(client: MongoClient[Any]) -> None:
    """Close the cursors that PyMongo could not close so far."""
    with suppress(Exception):
        client._process_kill_cursors()
