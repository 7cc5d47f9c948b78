"""Makes the calls to one database. Each call is one gRPC call, without the vendor's restarts and retries.

The vendor library's own `execute_sql` restarts a broken stream endlessly and without a pause. Therefore
queries use the transport of the vendor's client directly, with the same channel, credentials and
interceptors.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import attrs
import grpc
from attrs import define
from google.cloud.spanner_v1 import (
    CreateSessionRequest,
    DeleteSessionRequest,
    ExecuteSqlRequest,
    PartialResultSet,
    TypeCode,
)

from multiclouddb_api import ErrorCategory
from multiclouddb_spanner.errors import is_lost_session
from multiclouddb_spanner.records import rows_of
from multiclouddb_spi import Deadline, ProviderFault, cancelled

_NEVER: Final = Deadline(float("inf"))


class CancelScope:
    """The time limit of a caller's calls, which another thread can cancel; at most one of them is running."""

    def __init__(self, deadline: Deadline = _NEVER) -> None:
        self.deadline = deadline
        self._cancelled = threading.Event()
        self._calls: list[Any] = []  # the call of gRPC that began last

    def at(self, deadline: Deadline) -> CancelScope:
        """Return the scope of the same caller with another time limit."""
        scope = CancelScope(deadline)
        scope._cancelled, scope._calls = self._cancelled, self._calls
        return scope

    def take(self, call: Any) -> None:
        self._calls[:] = [call]
        if self._cancelled.is_set():
            call.cancel()

    def cancel(self) -> None:
        """Cancel the running call and every later call."""
        self._cancelled.set()
        for call in list(self._calls):
            call.cancel()

    def check(self) -> None:
        if self._cancelled.is_set():
            raise cancelled()


def late() -> ProviderFault:
    """Make the fault for a service that has not answered by the deadline."""
    return ProviderFault.of(
        ErrorCategory.TRANSIENT_FAILURE,
        "the service gave no answer in time; try again, with a longer timeout_seconds if it happens again",
        retryable=True,
    )


@contextmanager
def holding(lock: threading.Lock, scope: CancelScope) -> Iterator[None]:
    """Hold a lock; give up at the deadline, or if another thread cancels the call."""
    while not lock.acquire(timeout=_LOOK_SECONDS):
        scope.check()
        if scope.deadline.passed():
            raise late()
    try:
        yield
    finally:
        lock.release()


_LOOK_SECONDS: Final = 0.1
_LATE_SECONDS: Final = 1.0
_KEPT_SECONDS: Final = 600.0
# The factor by which the service's clock may run faster than this machine's clock, and the number of
# microseconds by which commits may be ahead of the service's clock.
_DRIFT: Final = 1.0001
_AHEAD: Final = 5_000


@define(eq=False)
class _Turn:
    ends: float  # the monotonic time at which its call is given up
    done: threading.Event = attrs.field(factory=threading.Event)
    found: int | None = None
    error: Exception | None = None


class Clock:
    """The service's clock, which is never behind a commit that was acknowledged before the request.

    If several threads request the time while a call is running, they share the next call.
    """

    def __init__(self, asked: Callable[[CancelScope], int]) -> None:
        self._asked = asked
        self._lock = threading.Lock()
        self._waiting: _Turn | None = None
        self._running: _Turn | None = None
        self._answer: tuple[int, float] | None = None

    def now(self, scope: CancelScope) -> int:
        """Ask the service for its time, in microseconds since 1970."""
        with self._lock:
            turn, leads = self._waiting, self._waiting is None
            if turn is None:
                turn = self._waiting = _Turn(scope.deadline.at + _LATE_SECONDS)
        if leads:
            self._lead(turn, scope)
        else:
            while not turn.done.wait(_LOOK_SECONDS):
                scope.check()
                if scope.deadline.passed():
                    raise late()
        if turn.found is None:
            raise turn.error or ProviderFault.of(
                ErrorCategory.TRANSIENT_FAILURE,
                "the call that asked the service for its time was interrupted; call again",
                retryable=True,
            )
        return turn.found

    def _lead(self, turn: _Turn, scope: CancelScope) -> None:
        try:
            running = self._running
            # gRPC may never end a call (see `config.ALIVE`), so the next call does not wait for ever.
            while running is not None and time.monotonic() < running.ends:
                if running.done.wait(_LOOK_SECONDS):
                    break
                scope.check()
                if scope.deadline.passed():
                    raise late()
            with self._lock:
                self._waiting, self._running = None, turn
            sent = time.monotonic()
            turn.found = found = self._asked(scope)
            if self._running is turn:
                self._answer = (found, sent)
        except Exception as error:
            turn.error = error
            raise
        finally:
            with self._lock:
                self._waiting = None if self._waiting is turn else self._waiting
            turn.done.set()

    def passed(self) -> int:
        """Return the last known time of the service's clock; 0 if no time is known."""
        answer = self._answer
        return 0 if answer is None else answer[0]

    def ahead(self) -> int | None:
        """Return a time slightly ahead of the service's clock, without a call; None if none is known."""
        # This machine's clock stops while the machine sleeps. A caller that waits for the returned time
        # notices it.
        answer = self._answer
        if answer is None or time.monotonic() - answer[1] > _KEPT_SECONDS:
            return None
        return answer[0] + int((time.monotonic() - answer[1]) * 1_000_000 * _DRIFT) + _AHEAD

    def forget(self) -> None:
        self._answer = None


INT64: Final = int(TypeCode.INT64)
STRING: Final = int(TypeCode.STRING)
TIMESTAMP: Final = int(TypeCode.TIMESTAMP)

# The service keeps a session for 28 days, and recommends a new session every week.
_SESSION_SECONDS: Final = 20 * 3600
_DELETE_SECONDS: Final = 0.5


Parameter: TypeAlias = tuple[int, str | None]
"""A parameter of a query: the code of its type, and its value as text."""


class QueryResult:
    """The answer to a query, which arrives message by message."""

    def __init__(self, client: DatabaseClient, call: Any, session: str, expires: float) -> None:
        self._client, self._call, self._session, self.expires = client, call, session, expires

    def __iter__(self) -> Iterator[PartialResultSet]:
        try:
            yield from self._call
        except grpc.RpcError as error:
            if is_lost_session(error):
                self._client.forget(self._session)
            raise
        finally:
            self._client.over(self._call)

    def cancel(self) -> None:
        """Cancel the call. Any thread may call this, even twice."""
        self._call.cancel()
        self._client.over(self._call)


class DatabaseClient:
    """One database."""

    def __init__(self, name: str, transport: Any, *, ours: bool, role: str | None = None) -> None:
        self.name, self._ours = name, ours  # the full name of the database
        self.role = role  # the database role of the sessions
        self._transport = transport
        self._lock = threading.Lock()
        self._session: tuple[str, bool, float] | None = None
        self._creating = threading.Lock()
        self._active: set[Any] = set()
        self._clock = Clock(self._ask_time)
        self.now, self.passed, self.ahead = self._clock.now, self._clock.passed, self._clock.ahead
        self.forget_clock = self._clock.forget
        self._closed = False

    def query(
        self,
        sql: str,
        parameters: Mapping[str, Parameter],
        scope: CancelScope,
        *,
        read_timestamp: bool = False,
        at: int | None = None,
    ) -> QueryResult:
        """Start a single-use read, which is a strong read by default."""
        session = self._open_session(scope)
        scope.check()
        request = ExecuteSqlRequest.pb()(session=session, sql=sql)
        options = request.transaction.single_use.read_only
        if at is None:
            options.strong, options.return_read_timestamp = True, read_timestamp
        else:
            options.read_timestamp.FromMicroseconds(at)
        for name, (kind, text) in parameters.items():
            request.param_types[name].code = kind
            if text is None:
                request.params.fields[name].null_value = 0
            else:
                request.params.fields[name].string_value = text
        return self._answer(self._transport.execute_streaming_sql, request, scope)

    def read(self, request: Any, scope: CancelScope) -> QueryResult:
        request.session = self._open_session(scope)
        scope.check()
        return self._answer(self._transport.streaming_read, request, scope)

    def partition_read(self, request: Any, scope: CancelScope) -> Any:
        """Ask the service how it would divide a read into parts."""
        request.session = self._open_session(scope)
        metadata = self._metadata("session", request.session)
        return self._waited(self._transport.partition_read, request, metadata, scope)

    def _waited(self, method: Any, request: Any, metadata: list[tuple[str, str]], scope: CancelScope) -> Any:
        call = method.future(request, timeout=scope.deadline.remaining(), metadata=metadata)
        self._begun(call)
        scope.take(call)
        try:
            return call.result()
        except grpc.FutureCancelledError:
            scope.check()
            raise late() from None
        finally:
            self.over(call)

    def _answer(self, method: Callable[..., Any], request: Any, scope: CancelScope) -> QueryResult:
        session = request.session
        # A call is sent even if its deadline has passed, because gRPC then raises its own error.
        metadata = self._metadata("session", session)
        call = method(request, timeout=scope.deadline.remaining(), metadata=metadata)
        self._begun(call)
        scope.take(call)
        return QueryResult(self, call, session, scope.deadline.at)

    def rows(
        self,
        sql: str,
        columns: int,
        scope: CancelScope,
        parameters: Mapping[str, Parameter] | None = None,
        at: int | None = None,
    ) -> list[list[Any]]:
        """Return all rows of a query. A value is a text, a bool or None."""
        answer = self.query(sql, parameters or {}, scope, at=at)
        return [[_plain(value) for value in row] for rows in rows_of(answer, columns) for row in rows]

    def _ask_time(self, scope: CancelScope) -> int:
        found = 0
        for message in self.query("SELECT 1", {}, scope, read_timestamp=True):
            moment = PartialResultSet.pb(message).metadata.transaction.read_timestamp
            found = max(found, moment.seconds * 1_000_000 + moment.nanos // 1000)
        return found

    def forget(self, session: str) -> None:
        """Forget a session that the service no longer knows."""
        with self._lock:
            if self._session is not None and self._session[0] == session:
                self._session = None

    def over(self, call: Any) -> None:
        with self._lock:
            self._active.discard(call)

    def open_calls(self) -> int:
        with self._lock:
            return len(self._active)

    def close(self) -> None:
        """Cancel all calls, delete the session, and close the channel if the library made it."""
        with self._lock:
            self._closed = True
            active, session, self._session = list(self._active), self._session, None
        for call in active:
            call.cancel()
        if session is not None and not session[1]:
            self._delete(session[0])
        if self._ours:
            self._transport.close()

    # -- Sessions

    def _open_session(self, scope: CancelScope) -> str:
        session = self._session
        if session is not None and time.monotonic() - session[2] < _SESSION_SECONDS:
            return session[0]
        with holding(self._creating, scope):
            if self._session is session:
                request = CreateSessionRequest.pb()(database=self.name)
                request.session.multiplexed = True
                request.session.creator_role = self.role or ""
                metadata = self._metadata("database", self.name)
                told = self._waited(self._transport.create_session, request, metadata, scope)
                made = told.name, bool(told.multiplexed), time.monotonic()
                if session is not None and not session[1]:
                    self._delete(session[0])
                with self._lock:
                    self._session = made
                    closed = self._closed
                if closed and not made[1]:
                    self._delete(made[0])
            found = self._session
            if found is None:
                raise late()
            return found[0]

    def _delete(self, session: str) -> None:
        """Delete a session, which the server would otherwise keep for an hour."""
        request = DeleteSessionRequest.pb()(name=session)
        metadata = self._metadata("name", session)
        call = self._transport.delete_session.future(request, timeout=_DELETE_SECONDS, metadata=metadata)
        with self._lock:
            self._active.add(call)
        try:
            call.result(timeout=_DELETE_SECONDS)
        except (grpc.RpcError, grpc.FutureTimeoutError, grpc.FutureCancelledError, ValueError):
            call.cancel()
        finally:
            self.over(call)

    def _begun(self, call: Any) -> None:
        with self._lock:
            self._active.add(call)
            closed = self._closed
        if closed:
            call.cancel()

    def _metadata(self, name: str, value: str) -> list[tuple[str, str]]:
        # Like the vendor's client, add the second header, which the service uses for routing.
        return [
            ("google-cloud-resource-prefix", self.name),
            ("x-goog-request-params", f"{name}={quote(value, safe='')}"),
        ]


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    return None if kind in (None, "null_value") else getattr(value, kind)
