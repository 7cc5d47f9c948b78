"""Bounds the answers of a service over HTTP: how many bytes they have, and how long they take to arrive.

This is apart from `time_limits`, because it loads the HTTP modules of the standard library.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from attrs import frozen

from multiclouddb_api import ErrorCategory
from multiclouddb_spi.faults import ProviderFault
from multiclouddb_spi.time_limits import Arrival, current

_LOOK_SECONDS: Final = 0.25


@frozen
class AnswerBound:
    """The most bytes that an answer may have. Whoever answers can send more only if it is not the service.

    Attributes:
        nbytes: The highest number of bytes, on the wire and also after they were decompressed.
        reason: What the service documents, for the message.
    """

    nbytes: int
    reason: str

    def check(self, count: int) -> None:
        """Refuse an answer of so many bytes.

        Raises:
            ProviderFault: `PROVIDER_ERROR` if they are too many.
        """
        if count > self.nbytes:
            raise ProviderFault.of(
                ErrorCategory.PROVIDER_ERROR,
                f"the answer has more than {self.nbytes >> 20} MiB; {self.reason}, so something else "
                "answers: check the address of the service and the proxy",
            )

    def within(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Pass the chunks of an answer on until there are too many bytes."""
        count = 0
        for chunk in chunks:
            count += len(chunk)
            self.check(count)
            yield chunk


def bounded_pools(pools: Mapping[str, Any], bound: AnswerBound) -> dict[str, Any]:
    """Return classes of connection pools whose answers are bounded, and which `Arrival` can give up."""
    found: dict[str, Any] = {}
    response = type("BoundedResponse", (_Response,), {"bound": bound})
    for scheme, pool in pools.items():
        connection = type("BoundedConnection", (pool.ConnectionCls,), {"response_class": response})
        found[scheme] = type("BoundedPool", (pool,), {"ConnectionCls": connection})
    return found


class _Response(http.client.HTTPResponse):
    bound: AnswerBound

    def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
        arrival = current()
        if arrival is not None:
            arrival.begin()
        super().__init__(_Source(sock, arrival, self.bound), *args, **kwargs)  # type: ignore[arg-type]


class _Source:
    """The part of a socket that `HTTPResponse` uses."""

    def __init__(self, sock: socket.socket, arrival: Arrival | None, bound: AnswerBound) -> None:
        self._sock, self._arrival, self._bound = sock, arrival, bound

    def makefile(self, *_: object) -> io.BufferedReader:
        return io.BufferedReader(_Stream(self._sock, self._arrival, self._bound))


class _Stream(io.RawIOBase):
    def __init__(self, sock: socket.socket, arrival: Arrival | None, bound: AnswerBound) -> None:
        self._sock, self._arrival, self._bound, self._count = sock, arrival, bound, 0
        self._file = sock.makefile("rb", buffering=0)  # keeps the socket open while it is read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._sock.recv_into(buffer) if self._arrival is None else self._heard(buffer, self._arrival)
        self._count += count
        self._bound.check(self._count)
        return count

    def _heard(self, buffer: Any, arrival: Arrival) -> int:
        sock = self._sock
        patience = sock.gettimeout()
        until = float("inf") if patience is None else time.monotonic() + patience
        try:
            while True:
                arrival.check()
                sock.settimeout(min(_LOOK_SECONDS, max(0.001, until - time.monotonic())))
                try:
                    count = sock.recv_into(buffer)
                except TimeoutError:
                    if time.monotonic() >= until:
                        raise
                    continue
                arrival.heard(count)
                return count
        finally:
            sock.settimeout(patience)

    def close(self) -> None:
        self._file.close()
        super().close()
