"""Serves HTTP/1.1 for scripted servers: one thread per connection, keep-alive, and a fast stop.

The standard library's `http.server` parses headers with the parser for e-mails. This parser needs
more time than the rest of a small answer. `http.server` cannot close a connection in the middle of
an answer.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import BinaryIO, Final, TypeAlias

import attrs

__all__ = ["Handler", "HttpServer", "Reply", "Request"]

_JOIN_SECONDS: Final = 60.0
_BACKLOG: Final = 1024
_RESET: Final = struct.pack("ii", 1, 0)  # do not wait for unsent data when the socket is closed


@attrs.frozen
class Request:
    """A client's request.

    Attributes:
        method: For example `POST`.
        path: The path, with the query.
        headers: The headers, by name in lower case.
        body: The whole body.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@attrs.frozen
class Reply:
    """An answer.

    Attributes:
        status: For example 200.
        headers: The headers, without `Content-Length`.
        body: The whole body.
        cut_after: The connection is closed after this number of bytes of the body; None to send the
            whole body.
        reset: True to close the connection with a reset; every client notices a reset. If False,
            the connection is closed as if the whole body had been sent.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    cut_after: int | None = None
    reset: bool = False

    def head(self) -> bytes:
        """Return the status line and the headers."""
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines += [f"Content-Length: {len(self.body)}", "", ""]
        return "\r\n".join(lines).encode("latin-1")


Handler: TypeAlias = Callable[[Request], Reply | None]
"""A function that answers a request; if it returns None, the connection is closed.

Many threads may call such a function at the same time.
"""


def _read_request(reader: BinaryIO) -> Request | None:
    """Return the next request of a connection.

    Return None if no request follows, or if the request is not valid HTTP.
    """
    first = reader.readline().split()
    if len(first) != 3:
        return None
    headers = {}
    while (line := reader.readline()) not in (b"\r\n", b"\n"):
        if not line:
            return None
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    length = headers.get("content-length", "0")
    if not length.isdecimal() or "transfer-encoding" in headers:
        return None
    body = reader.read(int(length))
    if len(body) < int(length):
        return None
    return Request(first[0].decode("latin-1"), first[1].decode("latin-1"), headers, body)


class HttpServer:
    """A server on a free port of 127.0.0.1.

    Args:
        handler: The function that answers the requests.

    Attributes:
        url: The URL of the server.
        crashes: The exceptions that the handler raised. The connection was closed after each
            exception.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.crashes: list[Exception] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self._address = self._listener.getsockname()
        self.url = f"http://127.0.0.1:{self._address[1]}"
        self._lock = threading.Lock()
        self._stopping = False
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept, name="scripted-accept", daemon=True)
        self._acceptor.start()

    @property
    def connections(self) -> int:
        """Return the number of open connections."""
        with self._lock:
            return len(self._open)

    def break_connections(self) -> None:
        """Close every connection, even in the middle of an answer."""
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """Close all connections and wait for the threads. A second call does nothing."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
        # Closing a listener wakes a waiting accept only on Linux. A new connection wakes it on every system.
        with suppress(OSError):
            socket.create_connection(self._address, timeout=_JOIN_SECONDS).close()
        self._acceptor.join(_JOIN_SECONDS)
        self._listener.close()
        self.break_connections()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)
        if any(thread.is_alive() for thread in self._threads):
            raise RuntimeError(f"a request is still being served {_JOIN_SECONDS:.0f} s after the stop")

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with self._lock:
                if self._stopping:
                    connection.close()
                    return
                self._open.add(connection)
            thread = threading.Thread(
                target=self._serve, args=(connection,), name="scripted-connection", daemon=True
            )
            self._threads = [other for other in self._threads if other.is_alive()] + [thread]
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        # A client may disconnect at any time.
        with suppress(OSError), connection:
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._converse(connection)
            finally:
                with self._lock:
                    self._open.discard(connection)

    def _converse(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as reader:
            while (request := _read_request(reader)) is not None:
                try:
                    reply = self._handler(request)
                except Exception as error:  # noqa: BLE001 - a mistake of the script; its owner looks here
                    self.crashes.append(error)
                    return
                if reply is None:
                    return
                connection.sendall(reply.head() + reply.body[: reply.cut_after])
                if reply.cut_after is not None:
                    if reply.reset:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    return
                if request.headers.get("connection", "").lower() == "close":
                    return
