"""The configuration of a Spanner instance. The provider makes the vendor's client from this configuration."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

import grpc
from attrs import frozen
from google.auth.credentials import AnonymousCredentials, Scoped
from google.cloud import spanner
from google.cloud.spanner_v1 import SpannerClient
from google.cloud.spanner_v1.database import SPANNER_DATA_SCOPE
from google.cloud.spanner_v1.services.spanner.transports import SpannerGrpcTransport, SpannerTransport

from multiclouddb_api import ClientConfig, invalid_request
from multiclouddb_api.config import settled
from multiclouddb_api.validators import unknown_name
from multiclouddb_spi.connection import check_plaintext, merged, parse_location

_OPTIONS: Final = (
    "allow_plaintext", "change_stream", "database_role", "emulator_host", "instance", "project", "url"
)  # fmt: skip
_IN_URL: Final = ("allow_plaintext", "change_stream", "database_role", "emulator_host")
_URL: Final = (
    "write spanner://PROJECT/INSTANCE, and add ?change_stream=NAME if several change streams watch the table"
)
_SECRET: Final = ("key", "secret", "token", "password", "credential")
_CHAIN: Final = "credentials come from Google's own chain (gcloud auth application-default login)"

ALIVE: Final = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.max_receive_message_length", 64 << 20),
)
"""The settings of our channels. If nothing arrives for 30 seconds during a call, gRPC sends a ping. If
there is no answer within 10 seconds, gRPC opens another connection. Without these settings, every later
call would wait on a connection that a firewall or proxy has dropped in silence.

By default, gRPC also sends pings to measure the network. On a slow network, the answer to such a ping comes
after all data that is on its way, so a fast limit would close the connection; and while such a ping is on its
way, no other ping is sent. Therefore gRPC does not measure, and has a fixed amount of data on its way.

By default, gRPC waits up to two minutes before it connects again, and all channels of a process that have the
same address and settings wait together. A feed could not be read for so long after an outage. Therefore each
client has a connection of its own, and waits 5 seconds at most.

A message has at most 64 MiB, also after gRPC has decompressed it. The service sends rows in messages of about
1 MB, and cuts larger values, which have at most 10 MiB (https://cloud.google.com/spanner/quotas).

A known defect of gRPC is left: if a connection ends just when a streaming call begins to receive, the call
waits for ever; neither its deadline nor `cancel` ends it. (Measured with versions 1.76 to 1.85: once in about
1,500 connections that a server ended.) The engine gives the fetch up after 70 seconds and reads the partition
again; its thread stays. The option `SingleThreadedUnaryStream` avoids the defect, but with it, a call that is
cancelled before its end is never freed: 21 KiB each time."""

STREAM_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
"""A pattern for the names that Spanner allows for a change stream. Queries contain the name as plain text, so
it must be checked."""

_PATTERNS: Final = {
    "project": (re.compile(r"[a-z][a-z0-9.:-]*", re.ASCII), "my-project"),
    "instance": (re.compile(r"[a-z][a-z0-9_-]*", re.ASCII), "my-instance"),
    "change_stream": (STREAM_NAME, "orders_stream"),
    "database_role": (re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII), "orders_reader"),
    "emulator_host": (re.compile(r"[A-Za-z0-9_.\[\]:-]+:[0-9]+", re.ASCII), "localhost:9010"),
}


@frozen
class SpannerConfig:
    """The checked configuration of a client."""

    project: str
    instance: str
    change_stream: str | None = None
    emulator_host: str | None = None
    database_role: str | None = None  # for fine-grained access control; every session has this role

    @classmethod
    def from_client(cls, config: ClientConfig) -> SpannerConfig:
        return settled(_checked, cls, config)

    def client(self) -> Any:
        """Make the vendor's client. Making the client needs no I/O except the search for credentials."""
        if self.emulator_host is None:
            return spanner.Client(project=self.project, disable_builtin_metrics=True)
        return spanner.Client(
            project=self.project,
            credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
            client_options={"api_endpoint": self.emulator_host},
            disable_builtin_metrics=True,
        )

    def transport(self, client: Any) -> SpannerTransport:
        """Make the transport for one database. Its channel notices a connection that has become silent."""
        host = client.instance(self.instance).emulator_host
        if host is not None:
            return SpannerGrpcTransport(channel=grpc.insecure_channel(host, options=list(ALIVE)))
        credentials = client.credentials
        if isinstance(credentials, Scoped):
            credentials = credentials.with_scopes((SPANNER_DATA_SCOPE,))  # type: ignore[no-untyped-call]
        make = partial(SpannerGrpcTransport, channel=_channel)
        return SpannerClient(credentials=credentials, transport=make).transport


def _channel(*args: Any, **settings: Any) -> grpc.Channel:
    """Make a channel as the vendor's transport does, with our settings instead of the vendor's."""
    ours = dict(ALIVE)
    theirs = [option for option in settings.pop("options", ()) if option[0] not in ours]
    return SpannerGrpcTransport.create_channel(*args, **settings, options=[*theirs, *ALIVE])


def _checked(cls: type[SpannerConfig], config: ClientConfig) -> SpannerConfig:
    options = dict(config.connection)
    for name in options:
        if name in _OPTIONS:
            continue
        if any(word in name.lower() for word in _SECRET):
            raise invalid_request(
                "connection",
                f"the option {name!r} is not accepted: {_CHAIN}",
                "set GOOGLE_APPLICATION_CREDENTIALS, or pass native_client=google.cloud.spanner.Client(…)",
            )
        raise unknown_name("connection", name, _OPTIONS)
    url = options.pop("url", None)
    if url is not None:
        if isinstance(url, str):  # a project may contain a colon, which would begin a port
            scheme, separator, rest = url.partition("://")
            url = f"{scheme}{separator}{rest.replace(':', '%3A')}"
        place = parse_location(url, "spanner", options=_IN_URL, form=_URL, credentials=_CHAIN)
        instance = place.path.removeprefix("/").removesuffix("/")
        if "/" in instance or "@" in instance:
            raise invalid_request("connection.url", "has more than a project and an instance", _URL)
        parts = {"project": unquote(place.host), "instance": unquote(instance)}
        named = {name: part for name, part in parts.items() if part}
        options = merged({**named, **place.options}, options)
    for name in ("project", "instance"):
        if options.get(name) is None:
            raise invalid_request(f"connection.{name}", "is missing", _URL)
    for name, (pattern, example) in _PATTERNS.items():
        value = options.get(name)
        if value is not None and not (isinstance(value, str) and pattern.fullmatch(value)):
            # Before an @, a user and a password may stand.
            problem = "has an @" if isinstance(value, str) and "@" in value else f"is {value!r}"
            raise invalid_request(f"connection.{name}", problem, f"write it like {example!r}")
    if (host := options.get("emulator_host")) is not None:
        check_plaintext("emulator_host", host, options)
    options.pop("allow_plaintext", None)
    return cls(**options)
