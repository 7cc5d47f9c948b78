"""Starts a MongoDB replica set for the benchmarks, and describes the changes in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.processes import on_server_core
from multiclouddb_api import ChangeFeedRequest, ClientConfig, Now, ResourceAddress, connect
from testing.provider_servers import server_module

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
    """

    url: str
    size: int
    token: str
    resume_token: Mapping[str, Any]

    @property
    def config(self) -> ClientConfig:
        """The configuration for `connect`."""
        return ClientConfig("mongo", {"url": self.url})

    def client(self) -> Any:
        """Make a new PyMongo client that decodes times as aware datetimes, like the library's client."""
        from pymongo import MongoClient

        return MongoClient(self.url, tz_aware=True)


@contextmanager
def backlog(folder: Path, size: int, cache_gb: float = 0.25) -> Iterator[Backlog]:
    """Start a replica set of one node, on its own core, with the given number of inserts in `ADDRESS`.

    Args:
        folder: The folder for its data.
        size: The number of inserts.
        cache_gb: The size of its cache.

    Raises:
        ServerUnavailableError: Raised if the server could not be downloaded, or did not start.
    """
    with on_server_core():
        server = server_module("mongo", "mongod").ReplicaSet(folder, cache_gb=cache_gb)
    with server:
        # The tests let their clients check the servers more often than PyMongo's defaults, as here.
        url = server.uri(heartbeatFrequencyMS=10_000, serverMonitoringMode="auto")
        collection = server.client()[ADDRESS.database].create_collection(ADDRESS.collection)
        with collection.watch(batch_size=0) as stream:
            resume_token = stream.resume_token
        with connect(ClientConfig("mongo", {"url": url})) as client:
            token = client.read_changes(ChangeFeedRequest(ADDRESS, Now())).continuation_token
        for first in range(0, size, _BATCH):
            numbers = range(first, min(size, first + _BATCH))
            collection.insert_many([document(number) for number in numbers])
        yield Backlog(url, size, token, resume_token)
