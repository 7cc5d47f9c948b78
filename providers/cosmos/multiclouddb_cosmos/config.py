"""The configuration of a Cosmos DB account. The provider makes its client from this configuration."""

from __future__ import annotations

import base64
import binascii
import os
import re
from typing import Any, Final, Literal, TypeAlias

import attrs
from attrs import frozen

from multiclouddb_api import ClientConfig, invalid_request
from multiclouddb_api.config import SecretText, settled, without_frames
from multiclouddb_spi.connection import (
    check_names,
    check_plaintext,
    is_loopback,
    merged,
    parse_location,
    split_url,
    truth,
)

KEY_VARIABLE: Final = "AZURE_COSMOS_KEY"
"""The environment variable that contains the account's key."""

Mode: TypeAlias = Literal["all_versions", "latest"]
MODES: Final[tuple[Mode, ...]] = ("all_versions", "latest")
"""The feeds of a container: the one with all versions and deletes, and the one of latest versions."""

# The grammar of the vendor's SDKs: `PathParser` of Azure/azure-cosmos-dotnet-v3, and its test.
_NAME: Final = re.compile(
    r"""/(?:"(?P<double>(?:[^"]|(?<=\\)")*)(?<!\\)"|'(?P<single>(?:[^']|(?<=\\)')*)(?<!\\)'"""
    r"""|(?P<plain>[^/"'][^/]*))(?=/|$)""",
    re.DOTALL,
)
_NO_NAMES: Final = ("*", "?", "[]")
"""The parts of an indexing policy's paths that are no names."""
_IN_URL: Final = ("allow_plaintext", "delete_marker", "mode", "tls")
_OPTIONS: Final = tuple(sorted(("credential", *_IN_URL, "url")))
_URL: Final = "write cosmos://ACCOUNT.documents.azure.com or cosmos://localhost:8081?tls=false"
_CREDENTIALS: Final = f"the key comes from {KEY_VARIABLE}, or azure-identity finds a credential"
_SECRET: Final = ("key", "secret", "token", "password")


@frozen
class CosmosConfig:
    """The checked configuration of a client."""

    host: str  # the host of the account, with the port if one is given
    tls: bool = True  # false for an emulator without TLS
    mode: Mode = "all_versions"  # the feed of a request that names none
    delete_marker: str | None = None  # the marker of a request that names none
    credential: Any = attrs.field(default=None, repr=False)

    @classmethod
    def from_client(cls, config: ClientConfig) -> CosmosConfig:
        """Check the `connection` of a client."""
        return settled(_checked, cls, config)

    @property
    def endpoint(self) -> str:
        """Return the account's address in the format that azure-cosmos accepts."""
        return f"{'https' if self.tls else 'http'}://{self.host}/"

    @property
    def is_local(self) -> bool:
        """Return True if the server runs on this machine. A local server has only one region."""
        parts = split_url(self.endpoint)
        return not self.tls or (parts is not None and is_loopback(parts.hostname))

    def find_credential(self) -> Any:
        """Return the passed credential, the key in the environment, or one that azure-identity finds."""
        if self.credential is not None:
            return self.credential
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if key:
            return _checked_key(SecretText(key))
        if not self.tls:
            raise invalid_request(
                KEY_VARIABLE,
                "is not set, and without TLS no other credential is sent",
                f"set {KEY_VARIABLE} to the key of the account or emulator",
            )
        from azure.identity import DefaultAzureCredential

        try:
            return DefaultAzureCredential()
        except ValueError as error:
            # The frames of azure-identity contain the certificate that it has read, and its password.
            raise invalid_request(
                "connection.credential",
                f"azure-identity cannot use what the environment names ({error})",
                "correct the variables AZURE_…, or pass a credential",
            ) from without_frames(error)


def _checked_key(key: SecretText) -> SecretText:
    try:
        base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError):
        raise invalid_request(
            KEY_VARIABLE, "is not an account key, which is base64", "copy the primary or secondary key"
        ) from None
    return key


def _checked(cls: type[CosmosConfig], config: ClientConfig) -> CosmosConfig:
    options: dict[str, Any] = dict(config.connection)
    for name in options:
        if name not in _OPTIONS and any(word in name.lower() for word in _SECRET):
            raise invalid_request(
                "connection",
                f"the option {name!r} is not accepted: {_CREDENTIALS}",
                f"set {KEY_VARIABLE}, or pass connection={{'credential': …}}",
            )
    check_names(options, _OPTIONS)
    url = options.pop("url", None)
    if url is None:
        raise invalid_request("connection.url", "is missing", _URL)
    options = merged(_parsed(url), options)
    options["tls"] = truth("connection.tls", options.get("tls", True))
    if not options["tls"]:
        check_plaintext("tls", options["host"], options)
    options.pop("allow_plaintext", None)
    check_mode("connection.mode", options.get("mode", MODES[0]))
    if (marker := options.get("delete_marker")) is not None:
        check_marker("connection.delete_marker", marker, options.get("mode"))
    credential = options.get("credential")
    if credential is not None and not callable(getattr(credential, "get_token", None)):
        raise invalid_request(
            "connection.credential",
            f"is a {type(credential).__name__}",
            "pass a credential of azure-identity, for example DefaultAzureCredential()",
        )
    return cls(**options)


def _parsed(url: object) -> dict[str, Any]:
    place = parse_location(url, "cosmos", options=_IN_URL, form=_URL, credentials=_CREDENTIALS)
    if not place.host or place.path not in ("", "/"):
        raise invalid_request("connection.url", "must contain a host, and nothing after the host", _URL)
    return {"host": place.host, **place.options}


def check_mode(field: str, value: object) -> None:
    """Refuse a mode that does not exist."""
    if value not in MODES:
        raise invalid_request(field, f"is {value!r}", f"write one of {', '.join(MODES)}")


def check_marker(field: str, value: object, mode: object) -> None:
    """Refuse a marker that is not a path, or that has no effect in the mode."""
    if mode != "latest":
        problem = f"has no effect with mode={mode or MODES[0]!r}"
        raise invalid_request(field, problem, "add mode=latest, or omit it")
    text = value if isinstance(value, str) else ""
    if names_in(text)[:1] in ((), ("_lsn",)) or text.endswith("/"):
        raise invalid_request(field, f"is {value!r}", "write the path of a property, such as /deleted")


def names_in(path: str) -> tuple[str, ...]:
    """Return the property names in a path; empty if the text is no path to a property.

    Examples are `/a/b`, `/"a b"` and `/'a/b'`. A name in quotes may contain a slash, the other quotes, and
    its own quotes after a backslash. As in the vendor's SDKs, this backslash belongs to the name.
    """
    names, end = [], 0
    while end < len(path.removesuffix("/")):
        found = _NAME.match(path, end)
        if found is None:
            return ()
        name = found[found.lastgroup or 0]
        if found.lastgroup == "plain":
            name = name.strip()
            if name in _NO_NAMES:
                return ()
        names.append(name)
        end = found.end()
    return tuple(names) if all(names) else ()
