"""The servers that the tests of a worker share, each started when the first test asks for it."""

import os
import shutil
import tempfile
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

from .mongod import ReplicaSet

_running: dict[Hashable, tuple[ReplicaSet, Path]] = {}

# What a server spends most of a test's time on is waiting for its disk, and memory never lets it wait.
_MEMORY = Path("/dev/shm")
_ENOUGH = 4 << 30


def _folder() -> Path:
    """A new one, in memory if there is plenty of it."""
    roomy = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ENOUGH
    return Path(tempfile.mkdtemp(prefix="mongod-", dir=_MEMORY if roomy else None))


def shared(name: Hashable, members: int = 1, **options: Any) -> ReplicaSet:
    """The set of this name. A test that troubles it leaves it healthy.

    Args:
        name: Whoever says the same gets the same.
        members: As of `ReplicaSet`, which the rest is passed on to when the set is started.
        options: The rest.
    """
    if name not in _running:
        folder = _folder()
        try:
            _running[name] = ReplicaSet(folder, members, **options), folder
        except BaseException:
            shutil.rmtree(folder)
            raise
    return _running[name][0]


def running() -> Iterator[ReplicaSet]:
    """Those that were started."""
    for servers, _ in list(_running.values()):
        yield servers


def stop() -> None:
    """End them all."""
    while _running:
        servers, folder = _running.popitem()[1]
        servers.close()
        shutil.rmtree(folder)
