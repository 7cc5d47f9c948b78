"""Reads and sends exchanges of services that speak JSON over HTTP."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import urllib3

from multiclouddb_certify.recordings.rules import Rules, Store
from multiclouddb_certify.wire import Call, WireResponse

__all__ = ["HttpCodec", "HttpSender"]

_SECONDS: Final = 30.0
Sign = Callable[[str, str, Mapping[str, str]], Mapping[str, str]]


class _Body(io.BytesIO):
    """The body of an answer; it is closed at its end, which urllib3 waits for."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if self.tell() == len(self.getbuffer()):
            self.close()
        return data


class HttpCodec:
    """Reads the exchanges that urllib3 sends.

    Args:
        endpoint: The URL of the server.
        rules: Which values differ.
        hidden: What must not be in a recording.
        sent: The headers of a request that matter.
        got: The headers of an answer that matter.
        sign: Returns further headers for a method, a path and the headers of a request.
    """

    def __init__(
        self, endpoint: str, rules: Rules, hidden: Mapping[str, str], sent: Iterable[str], got: Iterable[str],
        sign: Sign,
    ) -> None:  # fmt: skip
        self.rules = rules
        self._endpoint, self._hidden, self._sign = endpoint, hidden, sign
        self._sent, self._got = frozenset(sent), frozenset(got)

    def secrets(self) -> Mapping[str, str]:
        """Return what must not be in a recording."""
        return self._hidden

    def read(self, call: Call, answer: WireResponse, store: Store) -> None:
        """Read an exchange, and give the SDK an answer whose body can still be read."""
        native = answer.native
        data = native.read(decode_content=False)
        answer.native = urllib3.HTTPResponse(
            _Body(data), native.headers, native.status, native.version, native.version_string,
            native.reason, preload_content=False, decode_content=native.decode_content,
        )  # fmt: skip
        method, _, path = call.url.partition(" ")
        request = {"method": method, "path": path, "headers": _chosen(call.headers, self._sent)}
        request |= _body(_bytes(call.body))
        store(lambda: {"operation": call.operation, "request": request, "answer": self.answer(native, data)})

    def answer(self, native: Any, data: bytes) -> dict[str, Any]:
        """Return an answer in the form of the recording."""
        headers = {name.lower(): value for name, value in native.headers.items()}
        if headers.get("content-encoding") == "gzip":
            data = gzip.decompress(data)
        return {"status": native.status, "headers": _chosen(headers, self._got), **_body(data)}

    def following(
        self, operation: str, request: Mapping[str, Any], answer: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]] | None:
        """Return the request with the position of the answer."""
        portion = self.rules.portions[operation]
        position: Any = answer
        for name in portion.following:
            position = position.get(name)
        if position is None:
            return None
        field, name = portion.position
        return operation, {**request, field: {**request[field], name: position}}

    def sender(self) -> HttpSender:
        """Return a pool of connections."""
        return HttpSender(self, self._endpoint, self._sign)


class HttpSender:
    """Sends requests with urllib3, once each."""

    def __init__(self, codec: HttpCodec, endpoint: str, sign: Sign) -> None:
        self._codec, self._sign = codec, sign
        self._pool = urllib3.connection_from_url(endpoint, timeout=_SECONDS, retries=False)

    def send(self, operation: str, request: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request."""
        del operation, answer
        method, path, headers = request["method"], request["path"], request["headers"]
        body = json.dumps(request["body"]) if "body" in request else None
        sent = {**headers, **self._sign(method, path, headers)}
        native = self._pool.urlopen(method, path, body, sent, preload_content=False)
        return self._codec.answer(native, native.read(decode_content=False))

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()


def _chosen(headers: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: headers[name] for name in sorted(names) if name in headers}


def _bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body or b"")


def _body(data: bytes) -> dict[str, Any]:
    """Return the body of a message: JSON, or a text, or nothing."""
    if not data:
        return {}
    try:
        return {"body": json.loads(data)}
    except ValueError:
        return {"body": data.decode("utf-8", "replace")}
