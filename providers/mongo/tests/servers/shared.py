"""The servers that the tests of a worker share, each started when the first test asks for it."""

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

# What a server spends most of a test's time on is waiting for its disk, and memory never lets it wait.
_MEMORY = Path("/dev/shm")
# A set takes about 0.1 GB, a worker has up to five of them, and there may be other runs of the tests.
_ENOUGH = 4 << 30
_MEMINFO = Path("/proc/meminfo")
# A container's bound on all its memory, of which that in files is a part.
_BOUNDS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def folder() -> Path:
    """A new one, in memory if there is plenty of it."""
    roomy = os.access(_MEMORY, os.W_OK) and _room() > _ENOUGH
    return Path(tempfile.mkdtemp(prefix="mongod-", dir=_MEMORY if roomy else None))


def _room() -> int:
    """Bytes that files in memory may take: its file system promises more than there is."""
    found = [shutil.disk_usage(_MEMORY).free]
    available = re.search(r"^MemAvailable: +(\d+) kB$", _MEMINFO.read_text(), re.MULTILINE)
    found.append(int(available[1]) << 10 if available else 0)
    for bound in _BOUNDS:
        # There is none, or it is the word "max".
        with contextlib.suppress(OSError, ValueError):
            found.append(int(bound.read_text()))
    return min(found)


def shared(name: Hashable, members: int = 1, **options: Any) -> ReplicaSet:
    """The set of this name. A test that troubles it leaves it healthy.

    Args:
        name: Whoever says the same gets the same.
        members: As of `ReplicaSet`, which the rest is passed on to when the set is started.
        options: The rest.
    """
    if name not in _running:
        made = folder()
        try:
            _running[name] = ReplicaSet(made, members, **options), made
        except BaseException:
            shutil.rmtree(made)
            raise
    return _running[name][0]


def running() -> Iterator[ReplicaSet]:
    """Those that were started."""
    for servers, _ in list(_running.values()):
        yield servers


def stop() -> None:
    """End them all."""
    while _running:
        servers, made = _running.popitem()[1]
        servers.close()
        shutil.rmtree(made)
