"""Defines how to reach a database; an application switches databases by changing only this configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import attrs
from attrs import frozen

from multiclouddb_api.errors import MulticloudDbError, invalid_request
from multiclouddb_api.redaction import redact_url
from multiclouddb_api.validators import (
    at_least,
    check_type,
    is_a,
    not_blank,
    path_here,
    to_dict,
    unknown_name,
)

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


class SecretText(str):
    """Text that may contain a password; `repr` hides the text, and `str` returns it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(redact_url(str(self)))


def outcome(parse: Callable[..., T], *values: Any) -> Any:
    """Return a function's result, or return its `MulticloudDbError` so that the caller can raise it.

    The function's stack frames contain parts of the parsed text. The caller raises the error only after it
    has returned, so that no traceback contains these frames.

    Args:
        parse: The function.
        values: Its arguments.
    """
    try:
        return parse(*values)
    except MulticloudDbError as error:
        return without_frames(error)


def settled(parse: Callable[..., T], *values: Any) -> T:
    """Return the result of a function; if it fails, raise its error without the function's frames."""
    found = outcome(parse, *values)
    if isinstance(found, MulticloudDbError):
        raise found
    settled_value: T = found
    return settled_value


def without_frames(error: E) -> E:
    """Return an error without its frames and those of its causes, and without what it does not show.

    The frames of what reads a password or a file of credentials contain it, and so may an error in whose
    place another one was raised. Tracebacks leave such an error out, but error reporters may not.

    Args:
        error: The error.
    """
    linked: BaseException | None = error
    while linked is not None:
        linked.__traceback__ = None
        if linked.__suppress_context__:
            linked.__context__ = None
        linked = linked.__cause__ or linked.__context__
    return error


_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*", re.ASCII)
_BUFFERED_BYTES: Final = 64 * 1024 * 1024
_CONCURRENCY: Final = 32
_HEADROOM_SECONDS: Final = 3600.0
_WATCH_SECONDS: Final = 600.0
_AUDIT_SECONDS: Final = 600.0
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
_HARMLESS: Final = ("app_name", "config", "path", "profile", "region", "session", "username")
_SCHEMES: Final = {"mongodb": "mongo", "mongodb+srv": "mongo"}


def _redacted(connection: Mapping[str, Any]) -> str:
    shown = {
        name: redact_url(value) if name == "url" and isinstance(value, str) else "…"
        for name, value in connection.items()
    }
    return repr(shown)


def _copied(connection: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the settings; no text in the copy shows a secret in its repr."""
    found = to_dict("ClientConfig.connection", connection)
    return {name: value if name in _HARMLESS else _hidden(value) for name, value in found.items()}


def _hidden(value: Any) -> Any:
    """Return a setting whose repr shows no text in it, also inside of tables and lists."""
    match value:
        case str():
            return SecretText(value)
        case dict():
            return {name: _hidden(each) for name, each in value.items()}
        case list() | tuple():
            return type(value)(map(_hidden, value)) if type(value) in (list, tuple) else value
        case _:
            return value


@frozen(init=False)
class ClientConfig:
    """The provider, how to connect to it, and the limits of the client.

    It can be pickled if the values in `connection` can. Its repr shows no secrets.
    """

    provider: str = attrs.field(validator=[is_a(str), not_blank("name one of the installed providers")])
    """The provider id: `embedded`, `dynamo`, `spanner`, `mongo` or `cosmos`."""
    connection: Mapping[str, Any] = attrs.field(factory=dict, repr=_redacted, hash=False)
    """The provider's own settings, by name. Every provider has the setting `url`, with a URL as `connect`
    takes it."""
    max_buffered_bytes: int = attrs.field(
        default=_BUFFERED_BYTES,
        validator=[is_a(int), at_least(65536, "give at least 64 KiB, the size of a small read")],
    )
    """How many bytes of records may be fetched but not delivered yet, over all feeds of the client; 64 MiB by
    default, at least 64 KiB."""
    max_concurrency: int = attrs.field(
        default=_CONCURRENCY, validator=[is_a(int), at_least(1, "give at least 1")]
    )
    """How many partitions one call reads at the same time; 32 by default."""
    headroom_warning_seconds: float = attrs.field(
        default=_HEADROOM_SECONDS,
        validator=[is_a(int, float), at_least(0, "give a number of seconds; 0 turns the warning off")],
    )
    """`Observer.retention_headroom_low` is called if the service will keep a position for less than this many
    seconds; 3,600 by default, and 0 turns the warning off."""
    child_watch_seconds: float = attrs.field(
        default=_WATCH_SECONDS, validator=[is_a(int, float), at_least(0, "give seconds, 600 by default")]
    )
    """For how many seconds to search for more children of an ended partition, without the time in which
    nobody reads the feed; 600 by default. Needed only for DynamoDB, which never confirms that all children of
    a partition are known. The search ends sooner for one that DynamoDB has removed, a day after its end.
    """
    coverage_audit_seconds: float = attrs.field(
        default=_AUDIT_SECONDS, validator=[is_a(int, float), at_least(0, "give seconds, 600 by default")]
    )
    """After how many seconds a feed of a whole collection is compared again with the service's list of
    partitions; 600 by default. After a partition has left the token, the next comparison comes after a tenth
    of this time, if the service's limits allow it.
    """

    def __init__(
        self,
        provider: str,
        connection: Mapping[str, Any] = _NONE,
        max_buffered_bytes: int = _BUFFERED_BYTES,
        max_concurrency: int = _CONCURRENCY,
        headroom_warning_seconds: float = _HEADROOM_SECONDS,
        child_watch_seconds: float = _WATCH_SECONDS,
        coverage_audit_seconds: float = _AUDIT_SECONDS,
    ) -> None:
        connection = outcome(_copied, connection)
        if isinstance(connection, MulticloudDbError):
            raise connection
        self.__attrs_init__(
            provider,
            connection,
            max_buffered_bytes,
            max_concurrency,
            headroom_warning_seconds,
            child_watch_seconds,
            coverage_audit_seconds,
        )

    @classmethod
    def from_url(cls, url: str) -> ClientConfig:
        """Build the configuration from a URL, for example `embedded:///data/store.db`.

        Args:
            url: The URL, in the form that docs/configuration.md shows for each provider.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the URL has no scheme, or begins with `http://` or
                `https://`. The rest of it is checked by `connect`.
        """
        check_type("url", url, str)
        url = SecretText(url)
        return settled(_from_url, cls, url)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> ClientConfig:
        """Read the configuration from a TOML file.

        Top-level keys are the fields of this class, and the table `[connection]` has the provider's own
        settings. For a secret, write `{ env = "NAME" }` there: it is replaced by the environment variable
        `NAME` when the file is read. The entries `[[table]]` of `multiclouddb mirror` may be in the file.

        Args:
            path: The file.

        Raises:
            MulticloudDbError: `INVALID_REQUEST`, with the file and the key, if the file cannot be read, has
                an unknown key or no provider, or needs an environment variable that is not set.
        """
        return settled(_from_toml, cls, path_here("path", path))


def _from_url(cls: type[ClientConfig], url: str) -> ClientConfig:
    scheme, separator, _ = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        raise invalid_request(
            "url", "has no scheme", "write PROVIDER://…, for example embedded:///data/store.db"
        )
    scheme = scheme.lower()
    if scheme in ("http", "https"):
        raise invalid_request("url", f"begins with {scheme}://, which names no database", _web_advice(url))
    return cls(provider=_SCHEMES.get(scheme, scheme), connection={"url": url})


def _web_advice(url: str) -> str:
    """Say what to write instead of the web address of a service."""
    host = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    if host.rpartition(":")[0].endswith(".documents.azure.com") or host.endswith(".documents.azure.com"):
        return f"for Cosmos DB, write cosmos://{host.partition(':')[0]}"
    return "write PROVIDER://…, for example cosmos://HOST, or dynamo://REGION?endpoint_url=…"


def _from_toml(cls: type[ClientConfig], place: Path) -> ClientConfig:
    read = toml_of(place)
    if isinstance(read.get("table"), list):
        del read["table"]  # the tables of `multiclouddb mirror`, whose connection other commands use too
    return _of_table(cls, read, place.name)


def toml_of(place: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        MulticloudDbError: `INVALID_REQUEST`, with its name, if it cannot be read.
    """
    import tomllib  # needed only for a configuration in a file

    try:
        return tomllib.loads(place.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        # An error about the encoding contains the whole file.
        cause = None if isinstance(error, UnicodeDecodeError) else error
        raise invalid_request(
            f"file {place.name}", f"cannot be read as TOML ({reason})", "check the path and its syntax"
        ) from cause


def config_of(table: dict[str, Any], file: str) -> ClientConfig:
    """Return the configuration in what was read of a file; see `ClientConfig.from_toml`.

    Args:
        table: The content of the file, without what is not about the connection.
        file: The name of the file, for messages.
    """
    return settled(_of_table, ClientConfig, table, file)


def _of_table(cls: type[ClientConfig], table: dict[str, Any], file: str) -> ClientConfig:
    known = [field.name for field in attrs.fields(cls)]
    for name in table:
        if name not in known:
            raise unknown_name(f"file {file}", name, known)
    if "provider" not in table:
        raise invalid_request(f"file {file}", "has no provider", 'add the line provider = "embedded"')
    connection = table.pop("connection", {})
    if not isinstance(connection, dict):
        raise invalid_request(
            f"file {file}",
            "has a connection that is not a TOML table",
            "begin it with the line [connection]",
        )
    settings = {
        name: from_environment(file, f"connection.{name}", value) for name, value in connection.items()
    }
    return cls(**table, connection=settings)


def from_environment(file: str, name: str, value: Any) -> Any:
    """Return a value of a file, or the variable that `{ env = "NAME" }` names in its place."""
    if not (isinstance(value, dict) and value.keys() == {"env"}):
        return value
    variable = str(value["env"])
    if variable not in os.environ:
        raise invalid_request(
            f"file {file}, {name}", f"needs the environment variable {variable}", f"set {variable}"
        )
    return os.environ[variable]
