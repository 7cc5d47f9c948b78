"""Starts a MongoDB replica set for the benchmarks, and describes the changes in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.processes import on_server_core
from benchmarks.servers import server_module
from multiclouddb_api import ChangeFeedRequest, ClientConfig, Now, ResourceAddress, connect

__all__ = ["ADDRESS", "Backlog", "backlog", "document"]

ADDRESS: Final = ResourceAddress("bench", "items")
_BATCH: Final = 1000


def document(number: int) -> dict[str, Any]:
    """Make a document of 300 bytes of BSON in nine fields."""
    return {"_id": f"key-{number:07}", "number": number, **{f"field{index}": "x" * 24 for index in range(7)}}


@attrs.frozen
class Backlog:
    """A collection whose changes have not been read.

    Attributes:
        url: The connection string.
        size: The number of changes.
        token: The position before the first change, as this project's token.
        resume_token: The position before the first change, as the server's resume token.
        start_aggregates: The number of aggregate commands that were needed to get `token`.
    """

    url: str
    size: int
    token: str
    resume_token: Mapping[str, Any]
    start_aggregates: int
    _server: Any

    @property
    def config(self) -> ClientConfig:
        """The configuration for `connect`."""
        return ClientConfig("mongo", {"url": self.url})

    def client(self) -> Any:
        """Make a new PyMongo client that decodes times as aware datetimes, like the library's client."""
        from pymongo import MongoClient

        return MongoClient(self.url, tz_aware=True)

    def aggregates(self) -> int:
        """Return how many aggregate commands the server has received from clients."""
        return _aggregates(self._server)

    def finds(self) -> int:
        """Return how many find commands the server has received from clients."""
        return _commands(self._server, "find")

    def get_mores(self) -> int:
        """Return how many getMore commands the server has received from clients."""
        return _commands(self._server, "getMore")


def _aggregates(server: Any) -> int:
    return _commands(server, "aggregate")


def _commands(server: Any, name: str) -> int:
    # This is the server's own count, because a listener in this process would slow down every later row.
    found: int = server.client().admin.command("serverStatus")["metrics"]["commands"][name]["total"]
    return found


@contextmanager
def backlog(folder: Path, size: int) -> Iterator[Backlog]:
    """Start a replica set of one node, on its own core, with the given number of inserts in `ADDRESS`.

    Raises:
        ServerUnavailableError: Raised if the server could not be downloaded, or did not start.
    """
    with on_server_core():
        server = server_module("mongo", "mongod").ReplicaSet(folder)
    with server:
        # The tests let their clients check the servers more often than PyMongo's defaults, as here.
        url = server.uri(heartbeatFrequencyMS=10_000, serverMonitoringMode="auto")
        collection = server.client()[ADDRESS.database].create_collection(ADDRESS.collection)
        with collection.watch(batch_size=0) as stream:
            resume_token = stream.resume_token
        before = _aggregates(server)
        with connect(ClientConfig("mongo", {"url": url})) as client:
            token = client.read_changes(ChangeFeedRequest(ADDRESS, Now())).continuation_token
        start_aggregates = _aggregates(server) - before
        for first in range(0, size, _BATCH):
            numbers = range(first, min(size, first + _BATCH))
            collection.insert_many([document(number) for number in numbers])
        yield Backlog(url, size, token, resume_token, start_aggregates, server)
