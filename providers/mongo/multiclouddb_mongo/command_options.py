"""The options of MongoDB's own commands, with checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias, TypeVar

import attrs
from pymongo.client_session import ClientSession
from pymongo.read_preferences import Nearest, Primary, PrimaryPreferred, Secondary, SecondaryPreferred

from multiclouddb_api import MulticloudDbError, invalid_request
from multiclouddb_api.validators import suggestion, unknown_name

__all__ = ["RunCommandOptions", "RunCursorCommandOptions", "checked_options"]

ReadPreference: TypeAlias = Primary | PrimaryPreferred | Secondary | SecondaryPreferred | Nearest

_Options = TypeVar("_Options", bound="RunCommandOptions")

_MODES: Final = ("cursor_lifetime", "iteration")
_TYPES: Final = ("non_tailable", "tailable", "tailable_await")
_MOST: Final = 2**31 - 1


def _refused(
    instance: object, attribute: attrs.Attribute[Any], problem: str, way_out: str
) -> MulticloudDbError:
    return invalid_request(f"{type(instance).__name__}.{attribute.name}", problem, way_out)


def _preference(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not isinstance(value, ReadPreference):
        way_out = "pass a read preference of PyMongo, like pymongo.ReadPreference.SECONDARY"
        raise _refused(instance, attribute, f"is a {type(value).__name__}", way_out)


def _session(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not isinstance(value, ClientSession):
        way_out = "pass a session of your native_client: native_client.start_session()"
        raise _refused(instance, attribute, f"is a {type(value).__name__}", way_out)


def _whole(low: int) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    """Check that the value is a whole number of at least `low` that MongoDB can store, or None."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value is None:
            return
        if not isinstance(value, int) or isinstance(value, bool):
            problem = f"is a {type(value).__name__}"
        elif low <= value <= _MOST:
            return
        else:
            problem = f"is {value}"
        raise _refused(instance, attribute, problem, f"pass a whole number from {low} to {_MOST}")

    return check


def _one_of(*names: str) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    """Check that the value is one of the names, or None."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value is None or value in names:
            return
        if isinstance(value, str):
            raise _refused(instance, attribute, f"is {value!r}", suggestion(value, names))
        raise _refused(instance, attribute, f"is a {type(value).__name__}", f"known are: {', '.join(names)}")

    return check


@attrs.frozen
class RunCommandOptions:
    """The options of `run_command`; None, the default, is the same as omitting the option.

    There are no options for the read concern and the write concern, and the command does not
    inherit them. Write the read concern and the write concern into the command itself.
    """

    read_preference: ReadPreference | None = attrs.field(default=None, validator=_preference)
    """The server to use: `pymongo.ReadPreference.SECONDARY`, or an object like
    `pymongo.read_preferences.Nearest(…)`. With this option, the driver chooses a server for every command as
    if the command were a read. Without this option, the primary is used, even if the client has another
    preference. In a transaction, the transaction's preference is used."""
    session: ClientSession | None = attrs.field(default=None, validator=_session, repr=False)
    """A `ClientSession` of the client that runs the command, which is your own `native_client`. The
    session may be in a transaction. You must end the session yourself. Without a session, pymongo uses
    its own session for the call."""
    timeout_ms: int | None = attrs.field(default=None, validator=_whole(0))
    """The time limit of the whole call in milliseconds, including selecting a server and connecting; 0
    means no limit. Without this option, the connection string's `timeoutMS` applies. The remaining time
    is sent as the command's `maxTimeMS` and replaces a `maxTimeMS` in the command."""


@attrs.frozen
class RunCursorCommandOptions(RunCommandOptions):
    """The options of `run_cursor_command`. The options of `RunCommandOptions` apply too.

    `batch_size`, `max_time_ms` and `comment` apply to the `getMore` commands that follow; write the first
    command's own values into the command.
    """

    timeout_mode: Literal["cursor_lifetime", "iteration"] | None = attrs.field(
        default=None, validator=_one_of(*_MODES)
    )
    """What `timeout_ms` limits. `"cursor_lifetime"`: the limit applies to the command and everything read
    from the cursor, together. `"cursor_lifetime"` is the default, and is possible for non-tailable cursors
    only. `"iteration"`: the limit applies to the command, and then again to each step of the iteration.
    `"iteration"` is the default of tailable cursors. With "iteration", a cursor that does not await data
    sends its command without a time limit, because the server would apply the limit to the cursor's whole
    lifetime. If the cursor does not await data, a `maxTimeMS` in the command itself is kept."""
    cursor_type: Literal["non_tailable", "tailable", "tailable_await"] | None = attrs.field(
        default=None, validator=_one_of(*_TYPES)
    )
    """`"non_tailable"` (the default), `"tailable"` or `"tailable_await"`.

    The value must match the fields `tailable` and `awaitData` of the command. If `cursor_type` does not match
    the command, the behaviour is undefined.
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
    """Return the options by name as an object.

    Args:
        kind: The class of the options.
        operation: The name of the call, used in messages.
        options: Name → value.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` for an unknown name or an invalid value.
    """
    known = [field.name for field in attrs.fields(kind)]
    for name in options:
        if name not in known:
            raise unknown_name(operation, name, known)
    return kind(**options)
