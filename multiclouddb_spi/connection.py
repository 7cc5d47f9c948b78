"""Checks the `connection` of a configuration for all providers: option names and URLs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from logging import Logger
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit

from attrs import frozen

from multiclouddb_api import MulticloudDbError, invalid_request
from multiclouddb_api.validators import suggestion, unknown_name

T = TypeVar("T")
_WARNED: Final = dict[tuple[int, str, str], object]()
"""The addresses about which each process has warned."""


@frozen
class Location:
    """The parts of a URL; the provider accepts or refuses each part.

    Attributes:
        host: The part of the URL after the `//`, including the port; empty if there is none.
        path: The part of the URL that begins with the next `/`.
        options: The part of the URL after the `?`.
    """

    host: str
    path: str
    options: Mapping[str, str]


def check_names(connection: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse an option of `ClientConfig.connection` that is not `known`; the error names a similar one."""
    for name in connection:
        if name not in known:
            raise unknown_name("connection", name, known)


def checked_native(native_client: object, kind: type[T], way_out: str) -> T:
    """Return the application's own client if it is an instance of this vendor's class; else refuse it."""
    if not isinstance(native_client, kind):
        raise invalid_request("native_client", f"is a {type(native_client).__name__}", way_out)
    return native_client


def parse_location(
    url: object,
    scheme: str,
    *,
    options: Sequence[str],
    form: str,
    credentials: str,
    field: str = "connection.url",
) -> Location:
    """Split `scheme://HOST/PATH?name=value` into its parts.

    Error messages quote only the scheme and the names of options.

    Args:
        url: The user's URL.
        scheme: The only scheme that is accepted.
        options: The option names that may appear after the `?`.
        form: The text that describes a valid URL in messages, for example `"write dynamo://REGION"`.
        credentials: The text in error messages that tells the user where credentials come from; a
            URL never contains credentials.
        field: The name of the URL in messages.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the text is not a URL of this form, may contain a password,
            names an unknown option, or names an option twice.
    """
    if not isinstance(url, str):
        raise invalid_request(field, f"must be text, not {type(url).__name__}", form)
    parts = split_url(url)
    if parts is None:
        raise invalid_request(field, "is no address", form)
    if parts.scheme != scheme:
        raise invalid_request(field, f"has the scheme {parts.scheme!r}", form)
    if "@" in parts.netloc:
        raise invalid_request(
            field, "has text before an @, which may be a password", f"{form}; {credentials}"
        )
    if parts.fragment:
        raise invalid_request(field, "has text after a #", form)
    found: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in options:
            # A password that is not percent-encoded may contain the ? or the & before this text.
            if "@" in parts.query:
                problem = "has an unknown option and an @, so a part of it may be a password"
                raise invalid_request(field, problem, f"{form}; {credentials}")
            raise invalid_request(field, f"has the unknown option {name!r}", suggestion(name, options))
        if name in found:
            raise _twice(name)
        found[name] = value
    return Location(parts.netloc, parts.path, found)


def split_url(url: str) -> SplitResult | None:
    """Return the parts of a URL, or None if the text is not a URL or its port is not valid."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts


def is_loopback(host: str | None) -> bool:
    """Return whether a host is this machine; a name other than `localhost` may be any machine."""
    if host is None or host.lower() == "localhost":
        return host is not None
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def check_plaintext(
    field: str, address: str, options: Mapping[str, Any], *, place: str = "connection"
) -> None:
    """Refuse an address without TLS on another machine, unless the user says twice that it is meant.

    Args:
        field: The name of the address in messages, such as `endpoint_url`.
        address: A URL, or a host with its port, that is used without TLS.
        options: The options of the connection; `allow_plaintext` is taken from them.
        place: The name of the options in messages.

    Raises:
        MulticloudDbError: `INVALID_REQUEST`.
    """
    parts = split_url(address if "://" in address else f"//{address}")
    host = None if parts is None else parts.hostname
    if not truth(f"{place}.allow_plaintext", options.get("allow_plaintext", False)) and not is_loopback(host):
        raise invalid_request(
            f"{place}.{field}",
            f"reaches {host} without TLS, so documents and keys are readable on the way",
            "use https or TLS; or add allow_plaintext=true if nobody else can read that network",
        )


def warn_of_plaintext(log: Logger, address: str, way_out: str) -> None:
    """Log that credentials and documents go to another machine without TLS, once per process and address.

    Where the vendor's own defaults leave TLS out, a refusal would stop what works; `check_plaintext` is for
    what this library configures itself.

    Args:
        log: The logger of the package that connects.
        address: The hosts, without credentials.
        way_out: What switches TLS on.
    """
    told = object()
    # A forked process inherits the warnings of its parent. Of several threads, one sets the mark.
    if _WARNED.setdefault((os.getpid(), log.name, address), told) is told:
        log.warning(
            "%s is reached with credentials and without TLS, so documents, keys and perhaps the password are "
            "readable on the way; %s",
            address, way_out,
        )  # fmt: skip


def truth(field: str, value: object) -> bool:
    """Return the bool that an option stands for; in a URL it is a text."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise invalid_request(field, f"is {value!r}", "write true or false")


def merged(found: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options `found` in a URL together with the others; refuse a name that both contain."""
    for name in found:
        if name in others:
            raise _twice(name, " (the url names it too)")
    return {**found, **others}


def _twice(name: str, where: str = "") -> MulticloudDbError:
    return invalid_request("connection", f"names the {name!r} a second time{where}", "name it once")
