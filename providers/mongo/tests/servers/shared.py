"""Provides the servers that all tests in one process share.

Each server starts when the first test requests it.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

from .mongod import ReplicaSet

_running: dict[Hashable, tuple[ReplicaSet, Path]] = {}

# A server spends most of a test's time waiting for its disk. With files in memory, it does not wait.
_MEMORY = Path("/dev/shm")
# A set takes about 0.1 GB, a worker starts up to five sets, and other test runs may be active.
_ENOUGH = 4 << 30
_MEMINFO = Path("/proc/meminfo")
# The file that contains a container's limit on its total memory, which includes files in memory.
_BOUNDS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def folder() -> Path:
    """Return a new folder. The folder is in memory if there is plenty of memory."""
    roomy = os.access(_MEMORY, os.W_OK) and _room() > _ENOUGH
    return Path(tempfile.mkdtemp(prefix="mongod-", dir=_MEMORY if roomy else None))


def _room() -> int:
    """Return the number of bytes that files in memory may use."""
    # The file system itself reports a number that is too high.
    found = [shutil.disk_usage(_MEMORY).free]
    available = re.search(r"^MemAvailable: +(\d+) kB$", _MEMINFO.read_text(), re.MULTILINE)
    found.append(int(available[1]) << 10 if available else 0)
    for bound in _BOUNDS:
        # There is no such file, or the file contains the word "max".
        with contextlib.suppress(OSError, ValueError):
            found.append(int(bound.read_text()))
    return min(found)


def shared(name: Hashable, members: int = 1, **options: Any) -> ReplicaSet:
    """Return the set with this name. A test that disturbs the set must leave it in a healthy state."""
    if name not in _running:
        made = folder()
        try:
            _running[name] = ReplicaSet(made, members, **options), made
        except BaseException:
            shutil.rmtree(made)
            raise
    return _running[name][0]


def running() -> Iterator[ReplicaSet]:
    """Return the replica sets that have been started."""
    for servers, _ in list(_running.values()):
        yield servers


def stop() -> None:
    """Stop all replica sets."""
    while _running:
        servers, made = _running.popitem()[1]
        servers.close()
        shutil.rmtree(made)
