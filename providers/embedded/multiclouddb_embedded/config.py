"""The configuration of an embedded store."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import attrs
from attrs import frozen

from multiclouddb_api import Capability, ClientConfig, ProviderOptions, invalid_request
from multiclouddb_api.config import settled
from multiclouddb_api.validators import check_type, is_a, suggestion, type_name, utf8
from multiclouddb_embedded.errors import store_errors
from multiclouddb_embedded.profile import PLAIN, PROFILES, Profile
from multiclouddb_spi.connection import check_names, merged, parse_location

_OPTIONS: Final = ("path", "profile", "url")
_URL: Final = "write embedded:///absolute/path/store.db"
_EMULATED: Final = (Capability.CHANGE_FEED_BEGINNING, Capability.CHANGE_FEED_POINT_IN_TIME)


@frozen
class EmbeddedOptions(ProviderOptions):
    """The options of a request to the embedded store."""

    poll_seconds: float = attrs.field(default=0.005, validator=is_a(int, float))
    """How often a waiting read (`OperationOptions.wait_seconds`) looks for new changes, in seconds: 0.005 by
    default, at most 1."""
    backfill: bool = attrs.field(default=False, validator=is_a(bool))
    """True to allow `Beginning()` and `AtTime(…)` under `profile="cosmos"`, as the option of this name does
    on Cosmos DB; False by default, and without effect under any other profile. Unlike Cosmos DB, the store
    delivers the changes themselves and not the current items, so no event is `backfilled`. A read from a
    token does not need the option."""

    @poll_seconds.validator
    def _check_range(self, attribute: attrs.Attribute[float], value: float) -> None:
        if not 0 < value <= 1:
            raise invalid_request(
                f"EmbeddedOptions.{attribute.name}", f"is {value}", "give seconds, more than 0 and at most 1"
            )

    def opts_into(self, capability: Capability) -> bool:
        """Return True if `backfill` is set and the capability is a start in the past.

        Args:
            capability: The capability.
        """
        check_type("capability", capability, Capability)
        return self.backfill and capability in _EMULATED


@frozen
class EmbeddedConfig:
    """The checked configuration of an embedded store."""

    path: str
    """The absolute path of the file."""
    profile: Profile = PLAIN
    """The profile of the client. The profile names the service whose limits apply to the store."""

    @classmethod
    def from_client(
        cls, config: ClientConfig, *, path: str | None = None, profile: Profile = PLAIN
    ) -> EmbeddedConfig:
        """Check the configuration of a client."""
        return settled(_checked, cls, config, path, profile)


def _checked(
    cls: type[EmbeddedConfig], config: ClientConfig, path: str | None, profile: Profile
) -> EmbeddedConfig:
    check_names(config.connection, _OPTIONS)
    options = dict(config.connection)
    url = options.pop("url", None)
    if url is not None:
        if "path" in options:
            raise invalid_request("connection", "has both a url and a path", "give one of them")
        no_user = "a file needs no user and no password"
        place = parse_location(url, "embedded", options=["profile"], form=_URL, credentials=no_user)
        if place.host:
            problem = f"has the host {place.host!r}"
            raise invalid_request("connection.url", problem, f"{_URL}, with three slashes")
        named = {"path": unquote(place.path)} if place.path not in ("", "/") else {}
        options = merged({**named, **place.options}, options)
    if options.setdefault("path", path) is None:
        raise invalid_request("connection.path", "is missing", f"give the file of the store, or {_URL}")
    if "profile" in options:
        name = options["profile"]
        if not isinstance(name, str) or name not in PROFILES:
            problem = f"the option 'profile' has the unknown value {name!r}"
            raise invalid_request("connection", problem, suggestion(str(name), PROFILES))
        profile = PROFILES[name]
    return cls(check_path("connection.path", options["path"]), profile)


def check_path(field: str, path: object) -> str:
    """Return the absolute form of a path."""
    # The folder must exist, but the file itself need not exist.
    if not isinstance(path, str | os.PathLike) or not os.fspath(path) or isinstance(os.fspath(path), bytes):
        raise invalid_request(field, f"must be a path, not {type_name(path)}", "give the file of the store")
    if str(path).startswith(":memory:"):
        raise invalid_request(
            field, "names a database in memory", "name a file, because other processes open the store too"
        )
    if "\0" in utf8(field, str(path)):
        raise invalid_request(
            field, "has a character with the code 0", "remove it: no file name can contain it"
        )
    # On POSIX, Python keeps two leading slashes apart from one. Both name the same file.
    place = Path(re.sub("^//+", "/", str(Path(path).absolute())))
    with store_errors("open", str(place)):
        if place.is_dir():
            raise invalid_request(field, f"{place} is a folder", "name a file in it")
        if not place.parent.is_dir():
            problem = f"the folder {place.parent} does not exist"
            raise invalid_request(field, problem, "create it first, or correct the path")
    return str(place)
