"""How a client names a store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import attrs

from multiclouddb_api import ClientConfig, ProviderOptions, invalid_request
from multiclouddb_api.check import is_a, suggestion, unknown_name

__all__ = ["EmbeddedConfig", "EmbeddedOptions", "check_path"]

_OPTIONS: Final = ("path", "url")
_URL: Final = "write embedded:///absolute/path/store.db"


@attrs.frozen
class EmbeddedOptions(ProviderOptions):
    """What a request can ask of the embedded store.

    Attributes:
        poll_seconds: How often a waiting read (`OperationOptions.wait_seconds`) looks for new
            changes; 0.005 by default, up to 1.
    """

    poll_seconds: float = attrs.field(default=0.005, validator=is_a(int, float))

    @poll_seconds.validator
    def _check_range(self, attribute: attrs.Attribute[float], value: float) -> None:
        if not 0 < value <= 1:
            raise invalid_request(
                f"EmbeddedOptions.{attribute.name}", f"is {value}", "give seconds, more than 0 and at most 1"
            )


@attrs.frozen
class EmbeddedConfig:
    """A checked configuration.

    Attributes:
        path: The file, absolute.
    """

    path: str

    @classmethod
    def from_client(cls, config: ClientConfig) -> EmbeddedConfig:
        """Check what a client was configured with.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` that names the option and the way out.
        """
        options = _options(config.connection)
        if "path" not in options:
            raise invalid_request("connection.path", "is missing", f"give the file of the store, or {_URL}")
        return cls(check_path("connection.path", options["path"]))


def _options(connection: Mapping[str, Any]) -> dict[str, Any]:
    """The options by name, those in the URL included."""
    options = dict(connection)
    for name in options:
        if name not in _OPTIONS:
            raise unknown_name("connection", name, _OPTIONS)
    url = options.pop("url", None)
    if url is None:
        return options
    if options:
        raise invalid_request("connection", "has both a url and a path", "give one of them")
    if not isinstance(url, str):
        raise invalid_request("connection.url", f"must be text, not {type(url).__name__}", _URL)
    parts = urlsplit(url)
    if parts.scheme != "embedded":
        raise invalid_request("connection.url", f"has the scheme {parts.scheme!r}", _URL)
    if parts.netloc:
        raise invalid_request(
            "connection.url", f"has the host {parts.netloc!r}", f"{_URL}, with three slashes"
        )
    for name, _ in parse_qsl(parts.query, keep_blank_values=True):
        raise invalid_request("connection.url", f"has the unknown option {name!r}", suggestion(name, ()))
    return {"path": unquote(parts.path)} if parts.path not in ("", "/") else {}


def check_path(field: str, path: object) -> str:
    """The absolute form of a path whose folder exists; the file need not.

    Args:
        field: Its name in messages.
        path: Text or a path object.

    Raises:
        MulticloudDbError: `INVALID_REQUEST`.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path) or isinstance(os.fspath(path), bytes):
        raise invalid_request(
            field, f"must be a path, not {type(path).__name__}", "give the file of the store"
        )
    if str(path).startswith(":memory:"):
        raise invalid_request(field, "names a database in memory", "name a file: other processes open it too")
    place = Path(path).absolute()
    if place.is_dir():
        raise invalid_request(field, f"{place} is a folder", "name a file in it")
    if not place.parent.is_dir():
        raise invalid_request(
            field, f"the folder {place.parent} does not exist", "make it first, or mend the path"
        )
    return str(place)
