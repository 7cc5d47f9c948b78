"""Renews the locks of azure-cosmos in a forked child.

All clients of azure-cosmos in a process share the listed partitions of an account and the locks that protect
them. If a thread of the parent was listing partitions during the fork, the child inherits a lock that no
thread of the child will ever release.
"""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["renew_locks"]


def renew_locks() -> None:
    """Replace the locks that the clients of azure-cosmos share; other versions may have no such locks."""
    shared: Any
    try:
        from azure.cosmos._routing import routing_map_provider as shared
    except ImportError:  # pragma: no cover - a later version
        return
    if hasattr(shared, "_shared_cache_lock"):
        shared._shared_cache_lock = threading.RLock()
    for locks in getattr(shared, "_shared_collection_locks", {}).values():
        locks.clear()  # azure-cosmos makes each lock when it needs it
    makers = getattr(shared, "_shared_locks_locks", {})
    for endpoint in makers:
        makers[endpoint] = threading.Lock()
