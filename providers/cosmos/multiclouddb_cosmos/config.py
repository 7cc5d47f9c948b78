"""The configuration of a Cosmos DB account. The provider makes its client from this configuration."""

from __future__ import annotations

import base64
import binascii
import os
from typing import Any, Final

import attrs

from multiclouddb_api import Capability, ClientConfig, ProviderOptions, invalid_request
from multiclouddb_api.config import SecretText, settled
from multiclouddb_api.validators import check_type, is_a
from multiclouddb_spi.connection import check_names, merged, parse_location, split_url

KEY_VARIABLE: Final = "AZURE_COSMOS_KEY"
"""The environment variable that contains the account's key."""

_OPTIONS: Final = ("credential", "tls", "url")
_URL: Final = "write cosmos://ACCOUNT.documents.azure.com or cosmos://localhost:8081?tls=false"
_CREDENTIALS: Final = f"the key comes from {KEY_VARIABLE}, or azure-identity finds a credential"
_SECRET: Final = ("key", "secret", "token", "password")


@attrs.frozen
class CosmosConfig:
    """The checked configuration of a client."""

    host: str  # the host of the account, with the port if one is given
    tls: bool = True  # false for an emulator without TLS
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
        return not self.tls or (parts is not None and parts.hostname in ("localhost", "127.0.0.1", "::1"))

    def find_credential(self) -> Any:
        """Return the passed credential, the key in the environment, or what azure-identity finds."""
        if self.credential is not None:
            return self.credential
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if key:
            return _checked_key(SecretText(key))
        from azure.identity import DefaultAzureCredential

        return DefaultAzureCredential()


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
    options["tls"] = _truth(options.get("tls", True))
    credential = options.get("credential")
    if credential is not None and not callable(getattr(credential, "get_token", None)):
        raise invalid_request(
            "connection.credential",
            f"is a {type(credential).__name__}",
            "pass a credential of azure-identity, for example DefaultAzureCredential()",
        )
    return cls(**options)


def _parsed(url: object) -> dict[str, Any]:
    place = parse_location(url, "cosmos", options=["tls"], form=_URL, credentials=_CREDENTIALS)
    if not place.host or place.path not in ("", "/"):
        raise invalid_request("connection.url", "must contain a host, and nothing after the host", _URL)
    return {"host": place.host, **place.options}


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise invalid_request("connection.tls", f"is {value!r}", "write tls=false for an emulator without TLS")


_BACKFILLED: Final = (Capability.CHANGE_FEED_BEGINNING, Capability.CHANGE_FEED_POINT_IN_TIME)


@attrs.frozen
class CosmosOptions(ProviderOptions):
    """Options of a feed."""

    backfill: bool = attrs.field(default=False, validator=is_a(bool))
    """True to accept that the library emulates `Beginning()` and `AtTime(…)`; False by default.

    The service can start its feed with all versions and deletes only at the current time or at a token. So
    the feed first returns the current items as `CREATE` events with `backfilled` set, then a `BackfillDone`
    notice, and then every change since the start. It never returns an item that was deleted before the start.
    """

    def opts_into(self, capability: Capability) -> bool:
        """Return True if the caller accepts an emulated start."""
        check_type("capability", capability, Capability)
        return self.backfill and capability in _BACKFILLED
