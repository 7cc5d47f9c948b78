"""The configuration of a MongoDB deployment, from which the `MongoClient` is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import unquote_plus

import attrs
from attrs import frozen
from pymongo import MongoClient
from pymongo.driver_info import DriverInfo
from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_userinfo, split_hosts, split_options

from multiclouddb_api import ClientConfig, invalid_request
from multiclouddb_api.config import SecretText, settled
from multiclouddb_api.redaction import redact_url
from multiclouddb_api.validators import suggestion
from multiclouddb_spi.connection import check_names, is_loopback
from multiclouddb_spi.faults import one_line

_OPTIONS: Final = ("app_name", "password", "url", "username")
_SCHEMES: Final = ("mongodb://", "mongodb+srv://")
_URL: Final = "write mongodb://HOST[:PORT][,…]/[DATABASE][?replicaSet=NAME&…] or mongodb+srv://HOST/…"
_ESCAPE: Final = (
    "percent-encode the user and the password (urllib.parse.quote_plus), or leave them out of the url and "
    "give username and password as separate options"
)
_SECRET: Final = frozenset({"authmechanismproperties", "tlscertificatekeyfilepassword"})
_SPARE_CONNECTIONS: Final = 8
_PYMONGO_POOL: Final = 100
# By default PyMongo waits 30 s for a server, which is the whole time limit of a call. A fail-over takes 10 to
# 12 s.
_SELECTION_MS: Final = 15_000
# PyMongo does not use a server that has refused a login before the next answer about its state. By default
# that takes 10 s, and what is seen until then would be reported as a server that cannot be reached.
_HEARTBEAT_MS: Final = 1_000
# Used for the hint about an unknown name. PyMongo decides which names are valid.
_COMMON: Final = (
    *("appName", "authMechanism", "authMechanismProperties", "authSource", "compressors"),
    *("connectTimeoutMS", "directConnection", "heartbeatFrequencyMS", "loadBalanced"),
    *("localThresholdMS", "maxConnecting", "maxIdleTimeMS", "maxPoolSize", "maxStalenessSeconds"),
    *("minPoolSize", "readConcernLevel", "readPreference", "readPreferenceTags", "replicaSet"),
    *("retryReads", "retryWrites", "serverMonitoringMode", "serverSelectionTimeoutMS"),
    *("socketTimeoutMS", "srvMaxHosts", "srvServiceName", "timeoutMS", "tls"),
    *("tlsAllowInvalidCertificates", "tlsAllowInvalidHostnames", "tlsCAFile"),
    *("tlsCertificateKeyFile", "tlsCertificateKeyFilePassword", "tlsInsecure"),
    *("w", "waitQueueTimeoutMS"),
)


def _shown(url: str) -> str:
    """Return the hosts and the database, without the user, the password and the options."""
    front, query, _ = redact_url(url).partition("?")
    return repr(f"{front}?…" if query else front)


class OwnClient(MongoClient[dict[str, Any]]):
    """PyMongo's client, without the options of the URL in its `repr`.

    PyMongo's own `repr` shows the password of a TLS key, and in older versions the session token of AWS
    (PYTHON-5927, PYTHON-5928). It is also part of the `repr` of a database and of a collection.
    """

    def __repr__(self) -> str:
        return "<MongoClient of multiclouddb>"


@frozen
class MongoConfig:
    """The checked configuration of a client; its repr shows no secret.

    Attributes:
        url: The connection string, as the user gave it. PyMongo receives the string unchanged, so
            that every option in the string has the meaning that MongoDB defines.
        username: The user, if it is not in the `url`, or None.
        password: The password, if it is not in the `url`, or None.
        app_name: The client's name in the server's log and `currentOp`, if the `url` has no `appName`, or
            None.
        options: Maps the options in the `url`, with names in lower case, to their checked values.
        database: The database that the `url` names, or None.
    """

    url: str = attrs.field(repr=_shown, converter=SecretText)
    username: str | None = attrs.field(default=None, repr=False)
    password: str | None = attrs.field(
        default=None, repr=False, converter=attrs.converters.optional(SecretText)
    )
    app_name: str | None = None
    options: Mapping[str, Any] = attrs.field(factory=dict, repr=False, hash=False)
    database: str | None = None

    @classmethod
    def from_client(cls, config: ClientConfig) -> MongoConfig:
        """Check the `connection` of a client, without I/O and, for `mongodb+srv://`, without DNS."""
        return settled(_checked, cls, config)

    @property
    def timeout_ms(self) -> int | None:
        """Return the `timeoutMS` of the `url` in milliseconds, or None."""
        # A call must stop waiting for the server before `timeoutMS` has passed.
        seconds = self.options.get("timeoutms")
        return round(seconds * 1000) if seconds else None

    @property
    def readable_hosts(self) -> str | None:
        """Return the hosts that get credentials without TLS over a network, or None; PyMongo decides both."""
        hosts = _parts(self.url)[0]
        userinfo, _, names = hosts.rpartition("@")
        is_srv = self.url.startswith(_SCHEMES[1])
        has_tls = self.options.get("tls", self.options.get("ssl", is_srv))
        if has_tls or not (userinfo or self.username or self.options.get("authmechanism")):
            return None
        nodes = split_hosts(names, None if is_srv else 27017)
        remote = [host for host, _ in nodes if not host.endswith(".sock") and not is_loopback(host)]
        return names if remote else None

    def client(self, concurrency: int) -> MongoClient[dict[str, Any]]:
        """Make PyMongo's client. The client connects, and queries DNS, when it is first used."""
        # The options of the `url` take precedence, except for options about the decoding of values. Decoded
        # dates have a time zone, and may be outside Python's range. UUIDs are binary values of subtype 4 (see
        # `values.CODEC`). Three options differ from PyMongo's defaults, unless the `url` sets them.
        # `maxPoolSize` allows a connection for every call. `serverSelectionTimeoutMS` is 15,000: a fail-over
        # takes 10 to 12 seconds, and PyMongo's default of 30 seconds is as long as a whole call.
        # `heartbeatFrequencyMS` is 1,000, so that a refused login is told soon.
        ours: dict[str, Any] = {
            "username": self.username,
            "password": self.password,
            "appname": self.app_name,
            "maxPoolSize": max(_PYMONGO_POOL, concurrency + _SPARE_CONNECTIONS),
            "serverSelectionTimeoutMS": _SELECTION_MS,
            "heartbeatFrequencyMS": _HEARTBEAT_MS,
        }
        for name in ("maxPoolSize", "serverSelectionTimeoutMS", "heartbeatFrequencyMS"):
            if name.lower() in self.options:
                del ours[name]
        try:
            return OwnClient(
                self.url,
                connect=False,
                tz_aware=True,
                datetime_conversion="DATETIME_AUTO",
                uuidRepresentation="standard",
                unicode_decode_error_handler="strict",
                driver=DriverInfo("multiclouddb", version("multiclouddb-mongo")),
                **{name: value for name, value in ours.items() if value is not None},
            )
        except (PyMongoError, ValueError, TypeError, OSError) as error:
            reason = str(error)
        # Raised here, without PyMongo's exception, because its message and its stack frames may contain the
        # password.
        if any(secret in reason for secret in self._secrets()):
            reason = "PyMongo does not accept it"
        raise invalid_request(
            "connection.url",
            f"cannot be used ({one_line(reason)})",
            "change the part of the URL that this reason names",
        )

    def _secrets(self) -> Iterator[str]:
        """Return every part of the connection settings that must not be shown."""
        hosts, _, query = _parts(self.url)
        userinfo = hosts.rpartition("@")[0]
        password = userinfo.partition(":")[2]
        values = [value for name, value in _pairs(query) if name.lower() in _SECRET]
        for text in (userinfo, password, self.password, *values):
            if text:
                yield text
                yield unquote_plus(text)


def _checked(cls: type[MongoConfig], config: ClientConfig) -> MongoConfig:
    given = dict(config.connection)
    check_names(given, _OPTIONS)
    for name, value in given.items():
        where = f"connection.{name}"
        if value is not None and not isinstance(value, str):
            raise invalid_request(where, f"must be text, not {type(value).__name__}", "pass text")
        if value == "":
            raise invalid_request(where, "is empty", "leave it out, or give it a value")
    url = given.get("url")
    if url is None:
        raise invalid_request("connection.url", "is missing", _URL)
    hosts, database, query = _parts(url)
    user, _, password = hosts.rpartition("@")[0].partition(":")
    _check_hosts(hosts, srv=url.startswith(_SCHEMES[1]))
    options = _checked_options(query)
    for name, there in (("username", user), ("password", password), ("app_name", options.get("appname"))):
        if given.get(name) is not None and there:
            raise invalid_request(f"connection.{name}", "is in the url as well", "name it once")
    if given.get("password") is not None and not user and given.get("username") is None:
        raise invalid_request("connection.password", "has no user", "give a username too")
    return cls(**given, options=options, database=database)


def _parts(url: str) -> tuple[str, str | None, str]:
    """Return the hosts (including the user), the database and the options, split as PyMongo splits them."""
    scheme = next((known for known in _SCHEMES if url.startswith(known)), None)
    if scheme is None:
        raise invalid_request("connection.url", "is no connection string of MongoDB", _URL)
    front, _, query = url[len(scheme) :].partition("?")
    hosts, _, path = front.partition("/")
    if "@" in path or ("@" in query and "@" not in hosts):
        # If a password contains an unescaped / or ?, the user would be read as the host, and the rest of the
        # password as the database.
        raise invalid_request("connection.url", "has an @ after the hosts", _ESCAPE)
    # As in PyMongo, `database.collection` names a database.
    return hosts, unquote_plus(path).partition(".")[0] or None, query


def _check_hosts(hosts: str, *, srv: bool) -> None:
    userinfo, at, names = hosts.rpartition("@")
    problem = None
    try:
        if at:
            parse_userinfo(userinfo)
        nodes = split_hosts(names, None if srv else 27017)
        if srv and (len(nodes) != 1 or nodes[0][1] is not None):
            problem = ("must name one host and no port after mongodb+srv://", _URL)
    except (PyMongoError, ValueError):
        problem = (
            "has no list of hosts, or an unescaped character in the user or password",
            f"{_URL}; {_ESCAPE}",
        )
    if problem is not None:
        raise invalid_request("connection.url", *problem)


def _pairs(query: str) -> list[tuple[str, str]]:
    """Return the options, split as PyMongo splits them."""
    found = []
    for option in query.split("&" if "&" in query else ";") if query else []:
        name, _, value = option.partition("=")
        if not name or option.count("=") != 1:
            raise invalid_request("connection.url", "has options that are not NAME=VALUE", _URL)
        found.append((name, value))
    return found


def _checked_options(query: str) -> dict[str, Any]:
    """Return the options by name in lower case."""
    # PyMongo checks each option. Without this function, PyMongo would only warn about an invalid option and
    # ignore the option.
    known: dict[str, Any] = {}
    # A name that contains an @ may be the end of a password.
    nameless = "@" in query
    for name, value in _pairs(query):
        shown = "an option" if nameless else f"the option {name!r}"
        lower = name.lower()
        if lower in known and lower != "readpreferencetags":
            raise invalid_request("connection.url", f"has {shown} a second time", "name it once")
        outcome = _validated(name, value)
        if isinstance(outcome, str):
            way_out = _ESCAPE if nameless else outcome
            raise invalid_request("connection.url", f"has {shown}, which PyMongo does not accept", way_out)
        known[lower] = outcome[0]
    return known


def _validated(name: str, value: str) -> tuple[Any] | str:
    """Return PyMongo's value of one option, or raise an error that says how to correct it."""
    try:
        found = split_options(f"{name}={value}")
    except OSError:
        return "name a file that can be read"
    except (PyMongoError, ValueError, TypeError, LookupError):
        if name.lower() in {common.lower() for common in _COMMON}:
            return "see MongoDB's connection string documentation for the values that it allows"
        return suggestion(name, _COMMON)
    return (next(iter(found.values())),)
