"""Makes connection pools of urllib3 whose answers `Arrival` can give up.

This is apart from `time_limits`, because it loads the HTTP modules of the standard library.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Mapping
from typing import Any, Final

from multiclouddb_spi.time_limits import Arrival, current

_LOOK_SECONDS: Final = 0.25


def bounded_pools(pools: Mapping[str, Any]) -> dict[str, Any]:
    """Return classes of connection pools whose answers `Arrival` can give up."""
    found: dict[str, Any] = {}
    for scheme, pool in pools.items():
        connection = type("BoundedConnection", (pool.ConnectionCls,), {"response_class": _Response})
        found[scheme] = type("BoundedPool", (pool,), {"ConnectionCls": connection})
    return found


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
        arrival = current()
        if arrival is not None:
            arrival.begin()
            sock = _Source(sock, arrival)
        super().__init__(sock, *args, **kwargs)


class _Source:
    """The part of a socket that `HTTPResponse` uses."""

    def __init__(self, sock: socket.socket, arrival: Arrival) -> None:
        self._sock, self._arrival = sock, arrival

    def makefile(self, *_: object) -> io.BufferedReader:
        return io.BufferedReader(_Stream(self._sock, self._arrival))


class _Stream(io.RawIOBase):
    def __init__(self, sock: socket.socket, arrival: Arrival) -> None:
        self._sock, self._arrival = sock, arrival
        self._file = sock.makefile("rb", buffering=0)  # keeps the socket open while it is read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        sock, arrival = self._sock, self._arrival
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
