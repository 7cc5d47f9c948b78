"""Runs the emulator as a server in its own thread, with the methods that a test calls."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from multiclouddb_cosmos_emulator.account import Account
from multiclouddb_cosmos_emulator.auth import WELL_KNOWN_KEY, Guard
from multiclouddb_cosmos_emulator.clock import Clock
from multiclouddb_cosmos_emulator.commands import Commands
from multiclouddb_cosmos_emulator.control import Control
from multiclouddb_cosmos_emulator.faults import Faults
from multiclouddb_cosmos_emulator.http import Front
from multiclouddb_cosmos_emulator.journal import Journal
from multiclouddb_cosmos_emulator.service import Service
from multiclouddb_cosmos_emulator.tls import make_certificate, server_context

__all__ = ["CosmosEmulator"]


class CosmosEmulator(Commands):
    """A Cosmos DB account that works with the unmodified azure-cosmos.

    Several threads can use the emulator.

        with CosmosEmulator() as server:
            client = CosmosClient(server.endpoint, server.key)

    Args:
        host: The host on which the emulator listens. The endpoint contains the same host name.
        port: The port to listen on; 0 means any free port.
        key: The key of the account in base64; by default the key of the vendor's emulators.
        https: True to use TLS with a certificate that the server makes.
        start: The time of the emulator's clock at the start; None for the real time.
        all_versions: True if the account has the change feed with all versions and deletes.
        consistency: The level of the account: `Strong`, `BoundedStaleness`, `Session`, `ConsistentPrefix` or
            `Eventual`.

    Attributes:
        endpoint: The URL to which a client connects.
        key: The account's key.
        certificate: The file that contains the certificate; None without TLS.
        clock: The server's clock; `advance` moves it.
        faults: Failures on demand.
        journal: The requests that the emulator received.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 0,
        *,
        key: str = WELL_KNOWN_KEY,
        https: bool = False,
        start: datetime | None = None,
        all_versions: bool = True,
        consistency: str = "Session",
    ) -> None:
        self.key = key
        self.clock, self.faults, self.journal = Clock(start), Faults(), Journal()
        account = Account(self.clock, all_versions, consistency)
        guard = Guard(key)
        service = Service(account, guard)
        super().__init__(account, service.lock, self.faults, self.journal, guard)
        self._front = Front(service, self.faults, self.journal, Control(self.by_name()))
        self.certificate: Path | None = None
        self._closing = contextlib.ExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="cosmos-emulator", daemon=True)
        tls = None
        if https:
            folder = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="cosmos-emulator-")))
            self.certificate, key_file = make_certificate(folder)
            tls = server_context(self.certificate, key_file)
        self._thread.start()
        try:
            taken = self._in_loop(self._front.start(host, port, tls))
        except BaseException:  # whatever ends it: nobody else can stop the thread
            self.stop()
            raise
        self.endpoint = f"{'https' if https else 'http'}://{host}:{taken}/"

    def __enter__(self) -> CosmosEmulator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        # If the test itself has failed, its failure is more useful than an error that it causes here.
        if error is None and self._front.crashes:
            raise self._front.crashes[0]

    def stop(self) -> None:
        """Close every connection and stop; all stored data is lost."""
        if self._loop.is_closed():
            return
        self._in_loop(self._front.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._closing.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _in_loop(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
