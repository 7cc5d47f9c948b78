"""The asyncio version of the library: the same requests, values, errors, tokens and checkpoints, awaited.

Reads, saves and `close` run in threads of the client. Pauses are pauses of the event loop, so a follower that
waits occupies no thread.
"""

from __future__ import annotations

from multiclouddb_api.aio.client import AsyncCursor, AsyncMulticloudDbClient, connect
from multiclouddb_api.aio.iterator import AsyncChangeFeedIterator, AsyncCheckpointStore
from multiclouddb_api.aio.worker import follow

__all__ = [
    "AsyncChangeFeedIterator",
    "AsyncCheckpointStore",
    "AsyncCursor",
    "AsyncMulticloudDbClient",
    "connect",
    "follow",
]
