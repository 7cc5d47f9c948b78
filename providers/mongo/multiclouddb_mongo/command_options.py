"""The options of MongoDB's own commands, checked."""

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
        way_out = "pass one of pymongo's, like pymongo.ReadPreference.SECONDARY"
        raise _refused(instance, attribute, f"is a {type(value).__name__}", way_out)


def _session(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not isinstance(value, ClientSession):
        way_out = "pass a session of your native_client: native_client.start_session()"
        raise _refused(instance, attribute, f"is a {type(value).__name__}", way_out)


def _whole(low: int) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    """The value is a whole number of at least `low` that MongoDB can hold, or None."""

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
    """The value is one of the names, or None."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value is None or value in names:
            return
        if isinstance(value, str):
            raise _refused(instance, attribute, f"is {value!r}", suggestion(value, names))
        raise _refused(instance, attribute, f"is a {type(value).__name__}", f"known are: {', '.join(names)}")

    return check


@attrs.frozen
class RunCommandOptions:
    """The options of `run_command`; None, the default, is the same as leaving one out.

    There is no read concern and no write concern among them, and none is inherited: write them
    into the command.

    Attributes:
        read_preference: The server to use: `pymongo.ReadPreference.SECONDARY`, or an object like
            `pymongo.read_preferences.Nearest(…)`. Every command counts as a read here. Without it: the
            primary, whatever the client's own preference is, or, in a transaction, the transaction's.
        session: A `ClientSession` of the client that runs the command (that is, of your own `native_client`).
            It may be in a transaction. You must end it yourself. Without it, pymongo uses a session of its
            own for the call.
        timeout_ms: Milliseconds for the whole call, selecting a server and connecting included;
            0 = no limit. Without it the connection string's `timeoutMS` counts. The time that is
            left is sent as the command's `maxTimeMS` and replaces one in the command.
    """

    read_preference: ReadPreference | None = attrs.field(default=None, validator=_preference)
    session: ClientSession | None = attrs.field(default=None, validator=_session, repr=False)
    timeout_ms: int | None = attrs.field(default=None, validator=_whole(0))


@attrs.frozen
class RunCursorCommandOptions(RunCommandOptions):
    """Like `RunCommandOptions`, for `run_cursor_command`, and with these.

    `batch_size`, `max_time_ms` and `comment` belong to the `getMore` commands that follow; write the first
    command's own values into the command.

    Attributes:
        timeout_mode: What `timeout_ms` limits. `"cursor_lifetime"`: the command and everything
            read from the cursor, together; the default, and for non-tailable cursors only.
            `"iteration"`: the command, and then again each step of the iteration; the default of
            tailable cursors. With "iteration" the command of a cursor that does not await data is
            sent without the time that is left, because the server would apply it to the cursor's
            whole life. A `maxTimeMS` in the command itself is then kept.
        cursor_type: `"non_tailable"` (the default), `"tailable"` or `"tailable_await"`. It has to
            say what the command asks for by its `tailable` and `awaitData` fields; where the two
            differ the behaviour is undefined.
        batch_size: Documents in one reply, 1 or more; the server's own choice without it. pymongo
            asks for 2 when told 1.
        max_time_ms: How long the server waits for a document, for `"tailable_await"`; the server
            refuses it for other cursors. Not together with `timeout_ms`: that is not supported.
        comment: Any BSON value, for the server's logs and profiler.
    """

    timeout_mode: Literal["cursor_lifetime", "iteration"] | None = attrs.field(
        default=None, validator=_one_of(*_MODES)
    )
    cursor_type: Literal["non_tailable", "tailable", "tailable_await"] | None = attrs.field(
        default=None, validator=_one_of(*_TYPES)
    )
    batch_size: int | None = attrs.field(default=None, validator=_whole(1))
    max_time_ms: int | None = attrs.field(default=None, validator=_whole(0))
    comment: Any = attrs.field(default=None, repr=False)

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
        """True for both kinds of tailable cursors."""
        return self.cursor_type in ("tailable", "tailable_await")

    @property
    def iteration(self) -> bool:
        """True when each step of the iteration has the whole timeout."""
        return self.timeout_mode == "iteration" or self.tailable


def checked_options(kind: type[_Options], operation: str, options: Mapping[str, Any]) -> _Options:
    """The options by name as an object.

    Args:
        kind: The class of the options.
        operation: The name of the call, for messages.
        options: Name → value.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` for an unknown name or an invalid value.
    """
    known = [field.name for field in attrs.fields(kind)]
    for name in options:
        if name not in known:
            raise unknown_name(operation, name, known)
    return kind(**options)
