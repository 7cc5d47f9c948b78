"""Stands in front of a service: its connections can be cut, and it can present a wrong certificate."""

import contextlib
import socket
import threading

from multiclouddb_cosmos_emulator.tls import make_certificate, server_context

CHUNK = 1 << 16


class Front:
    """Forwards each connection to a service, with or without TLS.

    Attributes:
        port: The port of the front on `localhost`.
    """

    def __init__(self, target, folder=None, host="localhost"):
        """Start listening."""
        name, _, port = target.rpartition(":")
        self._target = name, int(port)
        self._contexts = []
        for name in ("right", "wrong") if folder else ():
            (folder / name).mkdir()
            self._contexts.append(server_context(*make_certificate(folder / name)))
            self._contexts[-1].set_alpn_protocols(["h2", "http/1.1"])
        self.certificate = folder / "right" / "certificate.pem" if folder else None
        self._wrong = False
        self._open = set()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=128)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self):
        """End all connections. New connections work."""
        for side in list(self._open):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def wrong_certificate(self):
        """Present a certificate that no client trusts."""
        self._wrong = True
        try:
            yield
        finally:
            self._wrong = False

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near):
        with contextlib.suppress(OSError), near:
            if self._contexts:
                near = self._contexts[self._wrong].wrap_socket(near, server_side=True)
            with near, socket.create_connection(self._target) as far:
                self._open |= {near, far}
                back = threading.Thread(target=_forward, args=(far, near), daemon=True)
                back.start()
                _forward(near, far)
                back.join()
                self._open -= {near, far}


def _forward(source, sink):
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        source.shutdown(socket.SHUT_RDWR)
