"""Adds to PyMongo what its public interface does not have.

Only `server_of` and `await_next` use private names. Both do without them; see `tests/private_names.toml`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeAlias, TypeVar

import pymongo
from attrs import frozen
from pymongo import MongoClient
from pymongo.change_stream import ChangeStream
from pymongo.cursor import Cursor
from pymongo.database import Database
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError, ServerSelectionTimeoutError
from pymongo.read_preferences import ReadPreference

from multiclouddb_api import ErrorCategory
from multiclouddb_mongo.errors import classify
from multiclouddb_mongo.raw_change import RawChange
from multiclouddb_spi import Deadline, ProviderFault, unsupported

T = TypeVar("T")
Stream: TypeAlias = ChangeStream[RawChange]
Rows: TypeAlias = Cursor[Any]
"""The type of a cursor that `find` returns."""

FIXED_AWAIT_MS: Final = 200
"""How long the server may delay an empty answer if this cannot be changed while a stream is open."""
_CLOSE_SECONDS: Final = 0.4
_DEAF_SECONDS: Final = 5.0
_REFUSED_SECONDS: Final = 3.0
_NO_SECONDS: Final = 0.001
# The answer that no server can be reached has to come before the time of the call is over.
_TELL_SECONDS: Final = 0.75
_LOOK_SECONDS: Final = 0.1
# A server says that its time is over before the call is.
_SHARE_OF_CALL: Final = 0.9
_MOST_SECONDS: Final = 86_400.0  # a server takes no more than 24 days
# By these variables, MongoDB's specification "Handshake" finds out whether a function service runs a program.
_FUNCTION_SERVICES: Final = (
    *("AWS_LAMBDA_RUNTIME_API", "FUNCTIONS_WORKER_RUNTIME", "K_SERVICE", "FUNCTION_NAME", "VERCEL"),
)


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
        """Wait a moment for threads that use a stream."""
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


def milliseconds_of(deadline: Deadline) -> int:
    """Return how long a server may work for a call; a member that lacks a write waits for it."""
    return max(1, int(1000 * min(_SHARE_OF_CALL * deadline.remaining(), _MOST_SECONDS)))


def reach(client: MongoClient[Any], deadline: Deadline, *, opening: bool = False) -> None:
    """Wait until PyMongo has found a server, but only until slightly before the time limit of the call.

    If every server refuses the connection for a reason that stays, raise that error at once.
    """
    # PyMongo would wait for `serverSelectionTimeoutMS`, whatever the reason is.
    remaining = deadline.remaining()
    seconds = min(client.options.server_selection_timeout, max(remaining / 2, remaining - _TELL_SECONDS))
    before = list(_errors(client).values())  # they may be older than the servers' present state
    began, failure = time.monotonic(), ServerSelectionTimeoutError("No servers found yet")
    while not _is_found(client):
        errors = _errors(client)
        if errors and None not in errors.values():
            fresh = [error for error in errors.values() if error is not None and error not in before]
            if len(fresh) == len(errors) and all(_refuses(error, opening) for error in fresh):
                raise _again(fresh[0])
            seconds = min(seconds, _REFUSED_SECONDS) if opening else seconds
        if time.monotonic() - began >= seconds:
            if client.topology_description.has_readable_server(client.read_preference):
                return
            raise failure
        try:
            # PyMongo connects if it is not connected, asks the servers, and waits half a second for news.
            with pymongo.timeout(_NO_SECONDS):
                _ = client.is_primary
            time.sleep(_LOOK_SECONDS)  # there is a primary, which may not be read
        except ServerSelectionTimeoutError as error:
            failure = error


def _is_found(client: MongoClient[Any]) -> bool:
    """Return True if a server may be read, and if it is known whether there is a primary."""
    topology = client.topology_description
    servers = topology.server_descriptions().values()
    return topology.has_readable_server(client.read_preference) and (
        topology.has_writable_server()
        or all(server.is_server_type_known or server.error is not None for server in servers)
    )


def place_to_ask(client: MongoClient[Any]) -> Any:
    """Return the read preference for the library's own questions."""
    # A secondary may not know a new collection yet, so the primary is asked. Without one, nothing is new, and
    # a feed whose read preference allows it can be opened and read from a secondary.
    there_is_one = client.topology_description.has_writable_server()
    return ReadPreference.PRIMARY if there_is_one else client.read_preference


def may_read_primary(client: MongoClient[Any]) -> bool:
    """Return True if the client's read preference allows the primary, whatever its tags are."""
    preference = client.read_preference
    is_strict = preference.mode == ReadPreference.SECONDARY.mode
    is_strict |= preference.mode == ReadPreference.NEAREST.mode and {} not in preference.tag_sets
    return not is_strict


def whose_log(client: MongoClient[Any]) -> Any:
    """Return the read preference for the member whose oplog says what can be read."""
    # The oplogs of two members differ in length. A stream that a member can no longer begin is read from the
    # primary, if the read preference allows that.
    return place_to_ask(client) if may_read_primary(client) else client.read_preference


def _again(error: Exception) -> PyMongoError:
    """Return an error that says what an error of PyMongo's monitor says."""
    if isinstance(error, OperationFailure):  # its code is its meaning
        return OperationFailure(str(error), error.code, error.details)
    return AutoReconnect(str(error))


def _errors(client: MongoClient[Any]) -> dict[Any, Exception | None]:
    """Return for the address of each server why PyMongo could not use it, or None."""
    servers = client.topology_description.server_descriptions()
    return {address: server.error for address, server in servers.items()}


def _refuses(error: Exception, opening: bool) -> bool:
    fault = classify(error)
    return not fault.retryable or (opening and fault.unknown_host)


@frozen
class _Cluster:
    """What `MongoClient.watch` needs of a client: the database `admin`, here with a codec of ours."""

    admin: Database[RawChange]


def watch_cluster(
    admin: Database[RawChange], stages: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> Stream:
    """Open a stream of all databases, which has the codec and the read concern of the given `admin`."""
    # `MongoClient.watch` has no argument for them, as `Database.watch` does not need one. PyMongo's classes
    # of streams are not meant to be made by others.
    watch: Any = MongoClient.watch
    try:
        stream: Stream = watch(_Cluster(admin), stages, **settings)
    except (AttributeError, TypeError) as error:  # `watch` needs more of a client
        raise unsupported(
            "this version of PyMongo watches a whole cluster only with the settings of the client",
            "read each database with EntireDatabase(), or use another version of PyMongo",
        ) from error
    return stream


def _cursor_of(stream: Stream) -> object:
    """Return the stream's current cursor, or None. PyMongo has no public name for it."""
    return getattr(stream, "_cursor", None)


def server_of(stream: Stream | Rows) -> tuple[str, int | None] | None:
    """Return the address of the server that answers a stream, or None if PyMongo does not tell it."""
    cursor = stream if isinstance(stream, Cursor) else _cursor_of(stream)
    return getattr(cursor, "address", None)


def await_next(stream: Stream, await_ms: int) -> None:
    """Say how many milliseconds the server may delay the stream's next answer, if PyMongo allows that."""
    # Each request carries this time, but PyMongo's public interface fixes it when the stream is opened. A
    # stream with another time would have to be opened anew, and would search the log again.
    cursor: Any = _cursor_of(stream)
    if hasattr(cursor, "_max_await_time_ms"):
        cursor._max_await_time_ms = await_ms


def is_told_at_once(client: MongoClient[Any]) -> bool:
    """Return True if the servers tell a client at once which of them is the primary."""
    # Otherwise, the client asks them every ten seconds.
    mode = client.options.server_monitoring_mode
    in_function = any(map(os.environ.get, _FUNCTION_SERVICES))
    in_function |= os.environ.get("AWS_EXECUTION_ENV", "").startswith("AWS_Lambda_")
    return mode == "stream" or (mode == "auto" and not in_function)


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
