"""The configuration of an AWS region, from which the boto3 clients are made."""

from __future__ import annotations

from typing import Any, Final

import attrs
import boto3
from attrs import frozen
from botocore.config import Config

from multiclouddb_api import ClientConfig, invalid_request
from multiclouddb_api.config import settled
from multiclouddb_dynamo.native import DynamoClients
from multiclouddb_spi.connection import check_names, check_plaintext, merged, parse_location, split_url

_OPTIONS: Final = ("allow_plaintext", "config", "endpoint_url", "region", "session", "url")
_IN_URL: Final = ("allow_plaintext", "endpoint_url")
_URL: Final = "write dynamo://REGION or dynamo://REGION?endpoint_url=http://localhost:8000"
_CREDENTIALS: Final = "credentials come from boto3's own chain"
_SECRET: Final = ("key", "secret", "token", "password", "credential", "profile")
_CONNECT_SECONDS: Final = 5
_READ_SECONDS: Final = 10
_SPARE_CONNECTIONS: Final = 8


@frozen
class DynamoConfig:
    """The checked configuration of a client."""

    region: str | None = None
    endpoint_url: str | None = None
    session: Any = attrs.field(default=None, repr=False)
    config: Any = attrs.field(default=None, repr=False)

    @classmethod
    def from_client(cls, config: ClientConfig) -> DynamoConfig:
        return settled(_checked, cls, config)

    @property
    def own_retries(self) -> bool:
        """Return True if the application's `Config` tells botocore to retry; then the library does not."""
        return getattr(self.config, "retries", None) is not None

    def clients(self, concurrency: int, session: Any) -> DynamoClients:
        """Make boto3's clients from a session. boto3 reads its own files; there is no other I/O."""
        ours = Config(
            retries={"mode": "standard", "total_max_attempts": 1},
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            max_pool_connections=concurrency + _SPARE_CONNECTIONS,
            user_agent_extra="multiclouddb",
        )
        config = ours if self.config is None else ours.merge(self.config)
        settings = {"region_name": self.region, "endpoint_url": self.endpoint_url}
        # botocore refuses ids of shards that are shorter than DynamoDB's, which other servers have
        # (ExtendDB/extenddb#247). The service checks them too.
        unchecked = config.merge(Config(parameter_validation=False))
        return DynamoClients(
            session.client("dynamodb", config=config, **settings),
            session.client("dynamodbstreams", config=unchecked, **settings),
        )


def _checked(cls: type[DynamoConfig], config: ClientConfig) -> DynamoConfig:
    options = dict(config.connection)
    for name in options:
        if name not in _OPTIONS and any(word in name.lower() for word in _SECRET):
            raise invalid_request(
                "connection",
                f"the option {name!r} is not accepted: {_CREDENTIALS}",
                "set AWS_PROFILE or the environment, or pass a boto3 Session: connection={'session': …}",
            )
    check_names(options, _OPTIONS)
    url = options.pop("url", None)
    if url is not None:
        place = parse_location(url, "dynamo", options=_IN_URL, form=_URL, credentials=_CREDENTIALS)
        if place.path not in ("", "/") or ":" in place.host:
            raise invalid_request("connection.url", "contains more than a region", _URL)
        options = merged({**({"region": place.host} if place.host else {}), **place.options}, options)
    for name, example in (("region", "eu-west-1"), ("endpoint_url", "http://localhost:8000")):
        value = options.get(name)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise invalid_request(f"connection.{name}", f"is {value!r}", f"write it like {example!r}")
    endpoint = options.get("endpoint_url")
    if endpoint is not None:
        parts = split_url(endpoint)
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise invalid_request(
                "connection.endpoint_url",
                "is not an http or https address",
                "write it like 'http://localhost:8000'",
            )
        if parts.username or parts.password:
            raise invalid_request("connection.endpoint_url", "contains a user or a password", _CREDENTIALS)
        if parts.scheme == "http":
            check_plaintext("endpoint_url", endpoint, options)
    options.pop("allow_plaintext", None)
    for name, kind, way_out in (
        ("session", boto3.Session, "pass a boto3.Session"),
        ("config", Config, "pass a botocore.config.Config"),
    ):
        value = options.get(name)
        if value is not None and not isinstance(value, kind):
            raise invalid_request(f"connection.{name}", f"is a {type(value).__name__}", way_out)
    return cls(**options)
