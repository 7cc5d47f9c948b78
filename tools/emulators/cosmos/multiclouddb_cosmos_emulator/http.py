"""Carries requests over HTTP with aiohttp, and applies the requested faults."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Final

from aiohttp import web

from multiclouddb_cosmos_emulator.control import Control
from multiclouddb_cosmos_emulator.errors import ServiceError
from multiclouddb_cosmos_emulator.faults import Act, Drop, Fail, Faults, Lag, Slow
from multiclouddb_cosmos_emulator.journal import Journal
from multiclouddb_cosmos_emulator.message import Reply, Request
from multiclouddb_cosmos_emulator.routing import CONTROL, Route
from multiclouddb_cosmos_emulator.service import Service, refusal

__all__ = ["Front"]

_COMMON: Final = {
    "Content-Type": "application/json",
    "Cache-Control": "no-store, no-cache",
    "x-ms-version": "2020-07-15",
    "x-ms-serviceversion": "multiclouddb-cosmos-emulator",
}
_WAITING: Final = 4096
# Zero would mean an unlimited wait.
_SHUTDOWN: Final = 0.01
# The number of event-loop turns that it takes to accept a connection or abort a TLS handshake.
_TURNS: Final = 5


class Front:
    """Listens and answers in one event loop.

    Args:
        service: Answers the requests.
        faults: The requested faults.
        journal: Records each request.
        control: The object that serves the control API.

    Attributes:
        crashes: Unexpected exceptions; each of them was answered with 500.
    """

    def __init__(self, service: Service, faults: Faults, journal: Journal, control: Control) -> None:
        self._service, self._faults, self._journal, self._control = service, faults, journal, control
        self.crashes: list[Exception] = []
        self._server: web.Server | None = None
        self._runner: web.ServerRunner | None = None
        self._listening: list[socket.socket] = []
        self._cut: list[asyncio.Transport] = []
        self._scheme = "http"

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Start to listen, and return the port."""
        self._scheme = "http" if tls is None else "https"
        self._server = web.Server(self._handle, access_log=None)
        self._runner = web.ServerRunner(self._server, shutdown_timeout=_SHUTDOWN)
        await self._runner.setup()
        self._listening = _sockets(host, port)
        for each in self._listening:
            await web.SockSite(self._runner, each, ssl_context=tls, backlog=_WAITING).start()
        taken: int = self._listening[0].getsockname()[1]
        return taken

    async def stop(self) -> None:
        """Close all connections and abort all requests.

        A connection that is still being accepted is closed too.
        """
        if self._runner is None or self._server is None:
            return
        # A connection that is being accepted while the server closes is lost, and its socket stays open.
        for each in self._listening:
            asyncio.get_running_loop().remove_reader(each)
        await _turns()
        open_ones = [each.transport for each in self._server.connections if each.transport is not None]
        await self._runner.cleanup()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Closing a TLS connection properly would wait for the client.
        for transport in (*open_ones, *self._cut):
            transport.abort()
        await _turns()

    async def _handle(self, raw: web.BaseRequest) -> web.StreamResponse:
        request = Request(
            raw.method, raw.raw_path, raw.headers, await raw.content.read(), f"{self._scheme}://{raw.host}"
        )
        if request.path.startswith(f"/{CONTROL}"):
            return _response(self._control.answer(request))
        route: Route | None = None
        cut = False
        try:
            route = self._service.route(request)
            cut = await self._meet(request, route)
            reply = self._service.answer(request, route)
        except ServiceError as error:
            reply = refusal(request, error)
        except _DroppedError:
            self._note(request, route, None)
            return await self._dropped(raw, None)
        except Exception as error:  # noqa: BLE001 - a mistake of the server; its owner looks here
            self.crashes.append(error)
            reply = refusal(request, ServiceError(500, f"The emulator has failed: {error!r}"))
        self._note(request, route, None if cut else reply)
        return await self._dropped(raw, reply) if cut else _response(reply)

    async def _meet(self, request: Request, route: Route) -> bool:
        """Apply the faults before the request is answered.

        Return True if the answer must be truncated.
        """
        partition = request.headers.get("x-ms-documentdb-partitionkeyrangeid")
        for action in self._faults.striking(route.operation, route.container, partition):
            match action:
                case Fail():
                    raise action.error()
                case Slow(seconds):
                    await asyncio.sleep(seconds)
                case Drop(mid_body):
                    if not mid_body:
                        raise _DroppedError
                    return True
                case Act(act):
                    act()
                case Lag(transactions):
                    request.lag = transactions
        return False

    async def _dropped(self, raw: web.BaseRequest, reply: Reply | None) -> web.StreamResponse:
        """Close the connection immediately, or after half of the answer."""
        response = web.StreamResponse()
        if reply is not None:
            response = web.StreamResponse(status=reply.status, headers={**_COMMON, **reply.headers})
            response.content_length = len(reply.body)
            await response.prepare(raw)
            await response.write(reply.body[: len(reply.body) // 2])
        if raw.transport is not None:
            # A TLS connection stays open until the client answers the close, so the stop aborts it. It is
            # closed through aiohttp, because aiohttp would close it again otherwise, and asyncio can't abort
            # a TLS connection that was closed twice.
            self._cut.append(raw.transport)
            raw.protocol.force_close()
        return response

    def _note(self, request: Request, route: Route | None, reply: Reply | None) -> None:
        operation = "Unknown" if route is None else route.operation
        # The journal stores neither bodies nor secrets.
        request.body = b""
        if reply is None:
            self._journal.note(operation, request, 0, 0)
        else:
            self._journal.note(
                operation, request, reply.status, int(reply.headers.get("x-ms-substatus", "0"))
            )


def _sockets(host: str, port: int) -> list[socket.socket]:
    """Return the sockets to listen on.

    For localhost, the sockets listen on the IPv4 address and the IPv6 address, with the same port.
    """
    if host != "localhost":
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return [socket.create_server((host, port), family=family, backlog=_WAITING)]
    found = [socket.create_server(("127.0.0.1", port), backlog=_WAITING)]
    # The machine may have no IPv6, or another process may use the port there.
    with suppress(OSError):
        address = ("::1", found[0].getsockname()[1])
        found.append(socket.create_server(address, family=socket.AF_INET6, backlog=_WAITING))
    return found


async def _turns() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


class _DroppedError(Exception):
    """Raised if the connection must be closed without an answer."""


def _response(reply: Reply) -> web.StreamResponse:
    return web.Response(status=reply.status, body=reply.body, headers={**_COMMON, **reply.headers})
