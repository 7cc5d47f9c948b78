"""The servers that the tests of a worker share, each started when the first test asks for it."""

import shutil
import tempfile
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

from .mongod import ReplicaSet

_running: dict[Hashable, tuple[ReplicaSet, Path]] = {}


def shared(name: Hashable, members: int = 1, **options: Any) -> ReplicaSet:
    """The set of this name. A test that troubles it leaves it healthy.

    Args:
        name: Whoever says the same gets the same.
        members: As of `ReplicaSet`, which the rest is passed on to when the set is started.
        options: The rest.
    """
    if name not in _running:
        folder = Path(tempfile.mkdtemp(prefix="mongod-"))
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
