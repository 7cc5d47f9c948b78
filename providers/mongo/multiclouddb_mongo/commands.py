"""Sends MongoDB's own commands to the server, unchanged and only once.

The rules come from MongoDB's "Run Command" and "Client Side Operations Timeout" specifications. pymongo
implements most of them, and adds what every command contains (`$db`, `lsid`, `$clusterTime`,
`$readPreference`, the fields of a transaction and of the Stable API); if a command itself contains one of
these fields, the behaviour is undefined. This module does *not* examine the command itself: it does not
check, add, correct or remove any field.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias, TypeVar

import attrs
import pymongo
from attrs import frozen
from attrs.validators import optional
from bson.codec_options import TypeRegistry
from bson.son import SON
from pymongo.client_session import ClientSession
from pymongo.command_cursor import CommandCursor
from pymongo.database import Database
from pymongo.errors import InvalidOperation, PyMongoError
from pymongo.read_preferences import Nearest, Primary, PrimaryPreferred, Secondary, SecondaryPreferred

from multiclouddb_api import ErrorCategory, invalid_request
from multiclouddb_api.validators import one_of, unknown_name
from multiclouddb_mongo.errors import PROVIDER_ID, classify
from multiclouddb_spi import Fault, ProviderFault
from multiclouddb_spi.errors import cause_of, to_error

ReadPreference: TypeAlias = Primary | PrimaryPreferred | Secondary | SecondaryPreferred | Nearest

_Options = TypeVar("_Options", bound="RunCommandOptions")

_MOST: Final = 2**31 - 1


_Check: TypeAlias = "Callable[[Any, attrs.Attribute[Any], Any], None]"


def _checked(fits: Callable[[Any], bool], way_out: str) -> _Check:
    """Check that the value fits, or is None."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value is not None and not fits(value):
            is_number = isinstance(value, int) and not isinstance(value, bool)
            shown = value if is_number else f"a {type(value).__name__}"
            raise invalid_request(f"{type(instance).__name__}.{attribute.name}", f"is {shown}", way_out)

    return check


_PREFERENCE: Final = _checked(
    lambda value: isinstance(value, ReadPreference),
    "pass a read preference of PyMongo, like pymongo.ReadPreference.SECONDARY",
)
_SESSION: Final = _checked(
    lambda value: isinstance(value, ClientSession),
    "pass a session of your native_client: native_client.start_session()",
)


def _whole(low: int) -> _Check:
    """Check that the value is a whole number of at least `low` that MongoDB can store, or None."""
    way_out = f"pass a whole number from {low} to {_MOST}"

    def fits(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= _MOST

    return _checked(fits, way_out)


@frozen
class RunCommandOptions:
    """The options of `run_command`; None, the default, means that an option is not given.

    Write a read concern or a write concern into the command itself: there are no options for them, and the
    command does not inherit them from the client.
    """

    read_preference: ReadPreference | None = attrs.field(default=None, validator=_PREFERENCE)
    """The server to use: `pymongo.ReadPreference.SECONDARY`, or an object like
    `pymongo.read_preferences.Nearest(…)`. The server is then chosen as for a read, whatever the command does.
    Without this option, the primary is used, whatever the client's preference. In a transaction, the
    transaction's preference applies."""
    session: ClientSession | None = attrs.field(default=None, validator=_SESSION, repr=False)
    """A `ClientSession` of your `native_client`, which may be in a transaction and which you end yourself.
    Without it, pymongo uses a session of its own for the call.
    """
    timeout_ms: int | None = attrs.field(default=None, validator=_whole(0))
    """The time limit of the whole call in milliseconds, the choice of a server and the connection included; 0
    means no limit, and without the option the connection string's `timeoutMS` applies. What is left of the
    limit is sent as `maxTimeMS`, and replaces a `maxTimeMS` in the command."""


@frozen
class RunCursorCommandOptions(RunCommandOptions):
    """The options of `run_cursor_command`: those of `RunCommandOptions`, and these.

    `batch_size`, `max_time_ms` and `comment` are for the `getMore` commands that follow; for the first
    command, write them into the command itself.
    """

    timeout_mode: Literal["cursor_lifetime", "iteration"] | None = attrs.field(
        default=None, validator=optional(one_of("cursor_lifetime", "iteration"))
    )
    """What `timeout_ms` limits. `"cursor_lifetime"`, the default, for non-tailable cursors only: the command
    and everything read from the cursor, together. `"iteration"`, the default of tailable cursors: the
    command, and then each step of the iteration. In this mode, a cursor that does not await data sends its
    command without a time limit, because the server would apply it to the cursor's whole lifetime. A
    `maxTimeMS` in the command itself is kept.
    """
    cursor_type: Literal["non_tailable", "tailable", "tailable_await"] | None = attrs.field(
        default=None, validator=optional(one_of("non_tailable", "tailable", "tailable_await"))
    )
    """`"non_tailable"` (the default), `"tailable"` or `"tailable_await"`.

    It must match the fields `tailable` and `awaitData` of the command; otherwise the behaviour is undefined.
    """
    batch_size: int | None = attrs.field(default=None, validator=_whole(1))
    """The number of documents in one reply, 1 or more; without this option the server chooses.

    With a batch size of 1, pymongo requests 2 documents.
    """
    max_time_ms: int | None = attrs.field(default=None, validator=_whole(0))
    """How long the server waits for a document, for `"tailable_await"`; the server refuses this option for
    other cursors. A command with both `max_time_ms` and `timeout_ms` is refused."""
    comment: Any = attrs.field(default=None, repr=False)
    """Any BSON value; it appears in the server's logs and profiler."""

    def __attrs_post_init__(self) -> None:
        if self.tailable and self.timeout_mode == "cursor_lifetime":
            raise invalid_request(
                "RunCursorCommandOptions.timeout_mode",
                f"cannot be 'cursor_lifetime' for a {self.cursor_type} cursor, which has no end",
                "pass 'iteration', or leave it out",
            )
        if self.timeout_ms and self.max_time_ms is not None:
            raise invalid_request(
                "RunCursorCommandOptions.max_time_ms",
                "is given together with timeout_ms, which is not supported",
                "leave one of them out",
            )

    @property
    def tailable(self) -> bool:
        """Return True for both kinds of tailable cursors."""
        return self.cursor_type in ("tailable", "tailable_await")

    @property
    def iteration(self) -> bool:
        """Return True if each step of the iteration has the whole timeout."""
        return self.timeout_mode == "iteration" or self.tailable


def checked_options(kind: type[_Options], operation: str, options: Mapping[str, Any]) -> _Options:
    """Return the options by name as an object."""
    known = [field.name for field in attrs.fields(kind)]
    for name in options:
        if name not in known:
            raise unknown_name(operation, name, known)
    return kind(**options)


T = TypeVar("T")

# pymongo interprets 0 as "no limit" and refuses lower values. Therefore this value represents a time limit
# that has already passed.
_OVER: Final = 1e-6
_CLOSE_SECONDS: Final = 0.5


class RunCommandCursor(Iterator[Any]):
    """Iterates over the documents of a command's cursor, one document per step.

    It is an iterator and a context manager, for one thread at a time; any thread may call `close`. An
    incomplete read never looks like a complete one, because a failed step is not retried, and every further
    step then fails too. The cursor is closed when the server has sent everything, when you close the cursor
    or the client, and when the cursor is garbage-collected.

    All batches come from the server that ran the command, within one session. Documents are decoded with the
    client's codec, but without type decoders: a Decimal128 stays a Decimal128.

    Args:
        cursor: PyMongo's cursor.
        seconds: The time limit of each step, in seconds, or None.
        ends: The monotonic time at which the cursor's whole lifetime ends, or None.
    """

    def __init__(self, cursor: CommandCursor[Any], seconds: float | None, ends: float | None) -> None:
        self._cursor = cursor
        self._seconds = seconds
        self._ends = ends
        self._closed = False
        self._fault: Fault | None = None

    def __iter__(self) -> RunCommandCursor:
        return self

    def __next__(self) -> Any:
        """Return the next document.

        Ask the server repeatedly until it returns a document or has no more documents.

        Raises:
            StopIteration: Raised if the server has sent all documents.
            MulticloudDbError: Raised with the category of the failure; `INVALID_REQUEST` after `close`.
        """
        return self._step(self._cursor.next)

    def try_next(self) -> Any:
        """Return the next document, or None if the server has none after at most one request.

        Use it for tailable cursors, for which `next` asks the server until there is a document.

        Raises:
            MulticloudDbError: Raised as by `next`.
        """
        return self._step(self._cursor.try_next)

    def batch_size(self, size: int | None) -> None:
        """Change the batch size, starting with the next `getMore`, and keep the other options.

        Args:
            size: See `RunCursorCommandOptions.batch_size`.
        """
        RunCursorCommandOptions(batch_size=size)  # this call checks the size
        self._cursor.batch_size(size or 0)

    @property
    def alive(self) -> bool:
        """False if no document can follow, because all were read, or the cursor has failed or is closed."""
        return not self._closed and self._fault is None and self._cursor.alive

    def close(self) -> None:
        """Make the server close its cursor (`killCursors`), and release the session.

        It never raises, and a second call does nothing: a server that does not answer closes the cursor on
        its own later. The call has the full `timeout_ms`, even if earlier calls have used a part of it.
        """
        self._closed = True
        with suppress(PyMongoError, OSError), _limit(self._seconds or None):
            self._cursor.close()

    def __enter__(self) -> RunCommandCursor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RunCommandCursor {'alive' if self.alive else 'ended'}>"

    def _step(self, step: Callable[[], T]) -> T:
        self._refuse_closed()
        if self._fault is not None:
            raise to_error(PROVIDER_ID, "run_cursor_command", self._fault)
        seconds = self._seconds if self._ends is None else max(self._ends - time.monotonic(), _OVER)
        try:
            with _limit(seconds):
                return step()
        except StopIteration:
            self._refuse_closed()
            raise
        except Exception as error:  # noqa: BLE001 - raised again, classified
            self._refuse_closed()
            self._fault = fault = classify(error)
            raise to_error(PROVIDER_ID, "run_cursor_command", fault, error) from cause_of(fault, error)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise invalid_request("RunCommandCursor", "is closed", "call client.run_cursor_command again")


class Commands:
    """Runs commands on one client and keeps track of open cursors."""

    def __init__(self, client: pymongo.MongoClient[Any]) -> None:
        self._client = client
        # Type decoders are applied to the documents of a getMore, but never to those of a first batch.
        self._codec = client.codec_options.with_options(type_registry=TypeRegistry())
        self._lock = threading.Lock()
        self._cursors: weakref.WeakSet[RunCommandCursor] = weakref.WeakSet()
        self._closed = False

    def run_command(self, database: str, command: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """Run one command once."""
        chosen = checked_options(RunCommandOptions, "run_command", options)
        document = _document(command)
        with _limit(None if chosen.timeout_ms is None else chosen.timeout_ms / 1000):
            return self._database(database).command(
                dict(document),
                read_preference=chosen.read_preference,
                codec_options=self._client.codec_options,
                session=chosen.session,
            )

    def run_cursor_command(
        self, database: str, command: Mapping[str, Any], options: Mapping[str, Any]
    ) -> RunCommandCursor:
        """Run one command once, and return the cursor of its reply."""
        chosen = checked_options(RunCursorCommandOptions, "run_cursor_command", options)
        document = _document(command)
        seconds = self._seconds(chosen)
        ends = time.monotonic() + seconds if seconds and not chosen.iteration else None
        untimed = chosen.iteration and chosen.cursor_type != "tailable_await"
        try:
            with _limit(seconds):
                found = self._database(database).cursor_command(
                    _Untimed(document) if untimed else dict(document),
                    read_preference=chosen.read_preference,
                    codec_options=self._client.codec_options,
                    session=chosen.session,
                    comment=chosen.comment,
                    max_await_time_ms=chosen.max_time_ms,
                )
        except InvalidOperation as error:
            if "does not return a cursor" not in str(error):
                raise
            raise ProviderFault.of(
                ErrorCategory.INVALID_REQUEST, "command: its reply is not a cursor; call run_command for it"
            ) from error
        if chosen.batch_size is not None:
            found.batch_size(chosen.batch_size)
        cursor = RunCommandCursor(found, seconds, ends)
        with self._lock:
            closed = self._closed
            self._cursors.add(cursor)
        if closed:
            cursor.close()
        return cursor

    def close(self) -> None:
        """Close every cursor that is still open, within a second."""
        # Any thread may call this method, and may call it more than once.
        # If a step in another thread is waiting for the server, the step ends when the server stops waiting.
        with self._lock:
            self._closed = True
            cursors = list(self._cursors)
        with _limit(_CLOSE_SECONDS):
            for cursor in cursors:
                cursor.close()

    def _database(self, name: object) -> Database[Any]:
        if not isinstance(name, str) or not name:
            problem = "is empty" if isinstance(name, str) else f"is a {type(name).__name__}"
            way_out = 'pass the name of a database; for commands of the deployment, pass "admin"'
            raise invalid_request("database", problem, way_out)
        return self._client.get_database(name, codec_options=self._codec)

    def _seconds(self, chosen: RunCursorCommandOptions) -> float | None:
        """Return the timeout of the call, or the timeout of the client if the call has none."""
        # 0 means no limit. None means that neither the call nor the client has a timeout.
        inherited = self._client.options.timeout
        seconds = inherited if chosen.timeout_ms is None else chosen.timeout_ms / 1000
        if seconds is None and chosen.timeout_mode is not None:
            where, problem = "RunCursorCommandOptions.timeout_mode", "is given without a timeout"
            raise invalid_request(where, problem, "pass timeout_ms as well")
        if seconds and chosen.max_time_ms is not None and chosen.max_time_ms / 1000 >= seconds:
            raise invalid_request(
                "RunCursorCommandOptions.max_time_ms",
                f"is not below the client's timeoutMS of {seconds * 1000:g}, so each wait would time out",
                "pass a smaller value, or timeout_ms=0",
            )
        return seconds


class _Untimed(SON[str, Any]):
    """A copy of a command to which pymongo cannot add a time limit."""

    # pymongo adds the remaining time to every first command, as its time limit. A server applies the limit of
    # the first command to the whole lifetime of the cursor. With `timeout_mode="iteration"`, however, each
    # step has its own limit. The command's own `maxTimeMS` is kept.

    _copied = False

    def __init__(self, command: Mapping[str, Any]) -> None:
        super().__init__(command)
        self._copied = True

    def __setitem__(self, name: str, value: Any) -> None:
        if not (self._copied and name == "maxTimeMS"):
            super().__setitem__(name, value)


def _limit(seconds: float | None) -> AbstractContextManager[None]:
    """Limit the time of pymongo's calls inside the block to `seconds`."""
    # 0 means no limit. None keeps the limit that is already in effect.
    return nullcontext() if seconds is None else pymongo.timeout(seconds)


def _document(command: object) -> Mapping[str, Any]:
    if not isinstance(command, Mapping):
        raise invalid_request("command", f"is a {type(command).__name__}", 'pass a dict like {"ping": 1}')
    if not isinstance(next(iter(command), None), str):
        raise invalid_request("command", "has no name", 'pass a dict like {"ping": 1}, its name first')
    return command
