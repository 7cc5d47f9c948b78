"""Starts the Cosmos emulator and a server with one fixed answer, and provides a client for both."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Final
from urllib.parse import quote, urlsplit

from benchmarks.processes import served

__all__ = ["CONTAINER", "PIPELINED", "Wire", "emulator", "fixed"]

CONTAINER: Final = "dbs/shop/colls/orders"
PIPELINED: Final = 32
_DATE: Final = "sun, 01 mar 2026 12:00:00 gmt"
_BATCH: Final = 100


# -- Servers


def _serve_emulator(pipe: Connection, items: int) -> None:
    from azure.cosmos import CosmosClient, PartitionKey

    from multiclouddb_cosmos_emulator import CosmosEmulator

    with CosmosEmulator() as server, suppress(EOFError):
        with CosmosClient(server.endpoint, server.key) as client:
            database = client.create_database("shop")
            container = database.create_container("orders", PartitionKey("/pk"))
            for first in range(0, items, _BATCH):
                numbers = range(first, min(items, first + _BATCH))
                writes = [("create", ({"id": str(n), "pk": "a", "text": "x" * 150},)) for n in numbers]
                container.execute_item_batch(writes, partition_key="a")
        pipe.send((server.endpoint, server.key))
        pipe.recv()


def _serve_fixed(pipe: Connection, status: int, headers: dict[str, str], body: bytes) -> None:
    import asyncio

    from aiohttp import web

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        await request.content.read()
        return web.Response(status=status, body=body, headers=headers)

    async def serve() -> None:
        runner = web.ServerRunner(web.Server(answer, access_log=None))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        pipe.send(f"http://127.0.0.1:{runner.addresses[0][1]}/")
        with suppress(EOFError):
            await asyncio.to_thread(pipe.recv)
        await runner.cleanup()

    asyncio.run(serve())


@contextmanager
def emulator(items: int) -> Iterator[tuple[str, str]]:
    """Start an emulator whose container `CONTAINER` contains this many items of 400 bytes.

    Yields:
        The server's endpoint and key.
    """
    with served(_serve_emulator, items) as (found, _):
        yield found


@contextmanager
def fixed(wire: Wire, request: bytes) -> Iterator[Wire]:
    """Start a server that answers every request with the same recorded answer of the emulator."""
    status, headers, body = wire.answer(request)
    for name in ("date", "server", "content-length"):
        headers.pop(name, None)
    with (
        served(_serve_fixed, status, headers, body) as (endpoint, _),
        closing(Wire(endpoint, "")) as made,
    ):
        yield made


# -- The rows measure the server, so this client needs almost no CPU time


class Wire:
    """A connection for requests that are signed in advance.

    Args:
        endpoint: The address of the server.
        key: The key of the account; empty for a server that does not check keys.
    """

    def __init__(self, endpoint: str, key: str) -> None:
        parts = urlsplit(endpoint)
        assert parts.hostname is not None
        self._host, self._key = f"{parts.hostname}:{parts.port}", base64.b64decode(key)
        self._socket = socket.create_connection((parts.hostname, parts.port or 80))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def request(self, path: str, kind: str, link: str, **headers: str) -> bytes:
        """Return a signed GET request like those that the SDK sends."""
        text = f"get\n{kind}\n{link}\n{_DATE}\n\n"
        digest = base64.b64encode(hmac.new(self._key, text.encode(), hashlib.sha256).digest()).decode()
        given = {
            "Host": self._host,
            "Accept": "application/json",
            "Cache-Control": "no-cache",
            "x-ms-version": "2020-07-15",
            "x-ms-date": _DATE,
            "x-ms-activity-id": "00000000-0000-0000-0000-000000000000",
            "Authorization": quote(f"type=master&ver=1.0&sig={digest}", safe="-_.!~*'()"),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        return f"GET /{path} HTTP/1.1\r\n{lines}\r\n".encode()

    def answer(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return the status, headers and body of an answer."""
        self._socket.sendall(request)
        head, body = self._read()
        first, *lines = head.decode().split("\r\n")
        pairs = (line.partition(": ") for line in lines)
        return int(first.split()[1]), {name.lower(): value for name, _, value in pairs}, body

    def repeat(self, request: bytes, times: int) -> int:
        """Send one request many times, several at a time; return the number of answers with status 200."""
        good = 0
        for first in range(0, times, PIPELINED):
            count = min(PIPELINED, times - first)
            self._socket.sendall(request * count)
            good += sum(self._read()[0].startswith(b"HTTP/1.1 200 ") for _ in range(count))
        return good

    def _read(self) -> tuple[bytes, bytes]:
        """Read the headers and the body of one answer."""
        while (end := self._unread.find(b"\r\n\r\n")) < 0:
            self._unread += self._received()
        head, rest = self._unread[:end], self._unread[end + 4 :]
        length_text = head.lower().partition(b"content-length: ")[2]
        length = int(length_text.partition(b"\r\n")[0] or b"0")
        parts, size = [rest], len(rest)
        while size < length:
            parts.append(self._received())
            size += len(parts[-1])
        whole = b"".join(parts) if len(parts) > 1 else rest
        self._unread = whole[length:]
        return head, whole[:length]

    def _received(self) -> bytes:
        got = self._socket.recv(1 << 18)
        if not got:
            raise ConnectionError("the server has closed the connection")
        return got
