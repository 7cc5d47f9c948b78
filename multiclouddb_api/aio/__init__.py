"""The asyncio face of the library: the same requests, values, errors, tokens and checkpoints, awaited.

Reads, saves and `close` run in threads of the client, and pauses are pauses of the event loop, so that a
follower that waits holds no thread.
"""

from __future__ import annotations

from multiclouddb_api.aio.broadcast import Broadcast, Listener
from multiclouddb_api.aio.client import AsyncCursor, AsyncMulticloudDbClient, connect
from multiclouddb_api.aio.iterator import AsyncChangeFeedIterator, AsyncCheckpointStore
from multiclouddb_api.aio.worker import follow

__all__ = [
    "AsyncChangeFeedIterator",
    "AsyncCheckpointStore",
    "AsyncCursor",
    "AsyncMulticloudDbClient",
    "Broadcast",
    "Listener",
    "connect",
    "follow",
]
