"""Simulates a slow or failing network, with a TCP proxy on the loopback interface."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from types import TracebackType
from typing import Final, Self

__all__ = ["Proxy"]

_CHUNK: Final = 1 << 16
_NO_LINGER: Final = struct.pack("ii", 1, 0)
# A slow link stores little, so that the server notices that the link is slow.
_BUFFER: Final = 1 << 15
_PIECES_A_SECOND: Final = 50


class Proxy:
    """Forwards every connection to a server, until a method disturbs the connections.

    Attributes:
        port: The port of the proxy.
        connections: The number of connections that clients have opened.
        answered: The number of bytes that the proxy has passed on to clients.
    """

    def __init__(
        self,
        target: str,
        spare: tuple[bytes, ...] = (),
        *,
        rate: float | None = None,
        cut_after: int | None = None,
    ) -> None:
        """Start listening. The server need not be running yet.

        Args:
            target: The host and the port of the server.
            spare: Texts that mark connections that are never disturbed. If the first message of a connection
                contains one of them, the connection comes from another member of the replica set, or from the
                client that writes for a test.
            rate: How many bytes per second all answers together may have, or None for no limit; see `slow`.
            cut_after: After this many bytes in the direction of the client, a connection is reset; None for
                no limit.
        """
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._spare = spare
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._links: set[_Link] = set()
        self._cutting = self._dropping = self._closed = False
        self._rate, self._free_at = rate, 0.0
        self.cut_after = cut_after
        self.connections = self.answered = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def cut(self) -> None:
        """Reset every connection, and every new connection until `heal` is called."""
        with self._lock:
            self._cutting = True
            links = [link for link in self._links if not link.spared]
        for link in links:
            link.reset()

    def drop(self) -> None:
        """Drop every byte in both directions until `heal` is called.

        Connections stay open, and new connections can be opened.
        """
        with self._lock:
            self._dropping = True

    def forget(self) -> None:
        """Drop every byte of the connections that exist now; new connections work.

        A firewall that has forgotten its connections does the same.
        """
        with self._lock:
            for link in self._links:
                link.lost = not link.spared

    def slow(self, rate: float | None) -> None:
        """Limit the answers to clients.

        Args:
            rate: The number of bytes per second of all answers together, or None for no limit.
        """
        with self._changed:
            self._rate, self._free_at = rate, time.monotonic()
            self._changed.notify_all()

    def heal(self) -> None:
        """Forward all bytes again, without a limit.

        A connection that lost bytes is reset, because the bytes after a gap are useless.
        """
        with self._changed:
            self._cutting = self._dropping = False
            self._rate, self.cut_after = None, None
            self._changed.notify_all()
            links = [link for link in self._links if link.lost]
        for link in links:
            link.reset()

    def close(self) -> None:
        """Reset every connection and stop listening. The method may be called more than once."""
        # Closing the listener is not enough to wake the thread that waits for connections.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            links = list(self._links)
        for link in links:
            link.reset()
        for link in links:
            link.join()

    def troubles(self, link: _Link) -> bool:
        """Return True if a connection's bytes must be dropped; if the network is cut, reset it."""
        with self._lock:
            if link.spared:
                return False
            if self._dropping:
                link.lost = True
            cut = self._cutting
        if cut:
            link.reset()
        return link.lost

    def pace(self, waiting: int) -> int:
        """Wait until the link is free; return how many of the waiting bytes to pass on now."""
        with self._changed:
            while not self._closed:
                if self._rate is None:
                    return waiting
                now = time.monotonic()
                if now >= self._free_at:
                    size = min(waiting, max(1, int(self._rate / _PIECES_A_SECOND)))
                    self._free_at = max(now - 1 / _PIECES_A_SECOND, self._free_at) + size / self._rate
                    return size
                self._changed.wait(self._free_at - now)
            raise OSError("the proxy is closed")

    def count(self, nbytes: int) -> None:
        """Count bytes that were passed on to a client."""
        with self._lock:
            self.answered += nbytes

    def end(self, link: _Link) -> None:
        """Remove a connection that has ended."""
        with self._lock:
            self._links.discard(link)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = self._connect()
            except OSError:
                _reset(near)
                continue
            link = _Link(self, near, far, self._spare)
            with self._lock:
                self._links.add(link)
                self.connections += 1
            link.start()

    def _connect(self) -> socket.socket:
        far = socket.socket()
        try:
            if self._rate is not None:
                far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            far.connect(self._target)
        except OSError:
            far.close()
            raise
        return far


class _Link:
    """One connection through the proxy, with a thread for each direction."""

    def __init__(
        self, proxy: Proxy, near: socket.socket, far: socket.socket, spare: tuple[bytes, ...]
    ) -> None:
        self.spared = self.lost = False
        self._proxy, self._spare = proxy, spare
        self._near, self._far = near, far
        self._threads = [
            threading.Thread(target=self._forward, args=args, name="proxy-link", daemon=True)
            for args in ((near, far, True), (far, near, False))
        ]
        self._left, self._answered = len(self._threads), 0
        self._lock = threading.Lock()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def reset(self) -> None:
        """Close both connections immediately. The threads notice the closing and end."""
        for side in (self._near, self._far):
            with contextlib.suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                side.shutdown(socket.SHUT_RDWR)

    def _forward(self, source: socket.socket, sink: socket.socket, first: bool) -> None:
        asks = first
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                if first:
                    self.spared = any(word in data for word in self._spare)
                    first = False
                if self._proxy.troubles(self):
                    continue
                if asks or self.spared:
                    sink.sendall(data)
                else:
                    self._answer(sink, memoryview(data))
            sink.shutdown(socket.SHUT_WR)
        self._end()

    def _answer(self, sink: socket.socket, data: memoryview) -> None:
        while data and not self._proxy.troubles(self):
            size = self._proxy.pace(len(data))
            most = self._proxy.cut_after
            if most is not None:
                size = min(size, most - self._answered)
            sink.sendall(data[:size])
            self._answered += size
            self._proxy.count(size)
            data = data[size:]
            if most is not None and self._answered >= most:
                self.reset()
                return

    def _end(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._proxy.end(self)
        self._near.close()
        self._far.close()


def _reset(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    side.close()
