"""Ensures that no lock for the partition listings of azure-cosmos stays locked forever.

All clients of azure-cosmos in a process share the lists of partitions and the locks that protect the lists.
There are two ways in which such a lock is never released:

- A client that the application made gets the answer 410/1002 to a listing. azure-cosmos 4.17.1 then waits for
  the lock that it holds. Therefore a client that this library made has its own locks.
- A thread lists partitions while the process forks. No thread of the child can release the copied lock.
  Therefore the child gets new shared locks. The child process makes the library's own clients again.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from azure.cosmos import CosmosClient


def separate_locks(client: CosmosClient) -> None:
    """Give a client its own locks for listings; other versions of azure-cosmos may have no such locks."""
    cache: Any = getattr(client.client_connection, "_routing_map_provider", None)
    if hasattr(cache, "_collection_locks") and hasattr(cache, "_locks_lock"):
        # azure-cosmos makes the lock of a container when it needs it.
        cache._collection_locks, cache._locks_lock = {}, threading.Lock()


def renew_locks() -> None:
    """Replace the shared locks in a forked child, where the application's clients use these locks."""
    shared: Any
    try:
        from azure.cosmos._routing import routing_map_provider as shared
    except ImportError:  # pragma: no cover - a later version
        return
    if hasattr(shared, "_shared_cache_lock"):
        shared._shared_cache_lock = threading.RLock()
    for locks in getattr(shared, "_shared_collection_locks", {}).values():
        locks.clear()
    makers = getattr(shared, "_shared_locks_locks", {})
    for endpoint in makers:
        makers[endpoint] = threading.Lock()
