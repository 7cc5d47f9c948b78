"""Simulates a network that fails on demand, with a TCP proxy on the loopback interface."""

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Self

CHUNK = 1 << 16
NO_LINGER = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards every connection to a server, until `cut` or `drop` is called.

    Attributes:
        port: The port of the proxy.
    """

    def __init__(self, target: str, spare: tuple[bytes, ...] = ()) -> None:
        """Start listening. The server need not be running yet.

        Args:
            target: The host and the port of the server.
            spare: Texts that mark connections that are never disturbed. If the first message of a connection
                contains one of them, the connection comes from another member of the replica set, or from the
                client that writes for a test.
        """
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._spare = spare
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._cutting = self._dropping = False
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

    def heal(self) -> None:
        """Forward all bytes again.

        A connection that lost bytes is reset, because the bytes after a gap are useless.
        """
        with self._lock:
            self._cutting = self._dropping = False
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
        with self._lock:
            links = list(self._links)
        for link in links:
            link.reset()
        for link in links:
            link.join()

    def troubles(self, link: "_Link") -> bool:
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

    def forget(self, link: "_Link") -> None:
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
                far = socket.create_connection(self._target)
            except OSError:
                _reset(near)
                continue
            link = _Link(self, near, far, self._spare)
            with self._lock:
                self._links.add(link)
            link.start()


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
        self._left = len(self._threads)
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
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
                side.shutdown(socket.SHUT_RDWR)

    def _forward(self, source: socket.socket, sink: socket.socket, first: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                if first:
                    self.spared = any(word in data for word in self._spare)
                    first = False
                if not self._proxy.troubles(self):
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        self._end()

    def _end(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._proxy.forget(self)
        self._near.close()
        self._far.close()


def _reset(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
    side.close()
