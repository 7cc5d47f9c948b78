"""What the readers of one stream share."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from weakref import WeakSet

import attrs

from multiclouddb_dynamo.calls import Calls
from multiclouddb_dynamo.shards import ShardMap
from multiclouddb_spi import ProviderFault, Reader

__all__ = ["KeptIterators", "Stream"]

_ITERATOR_SECONDS: Final = 15 * 60  # an iterator's life


class KeptIterators:
    """Iterators that stand at the end of shards as of a `Now`, where there are too many for its token.

    They are of one process and live as long as the service lets them; without its iterator a shard is walked.
    """

    def __init__(self) -> None:
        self._iterators: OrderedDict[tuple[str, int], tuple[str, float]] = OrderedDict()
        self._starts: set[int] = set()
        self._lock = threading.Lock()

    def name_start(self, since: int) -> int:
        """The second of a start, or one a little earlier: no two starts may take each other's iterators."""
        with self._lock:
            self._starts = {start for start in self._starts if start > since - _ITERATOR_SECONDS}
            while since in self._starts:
                since -= 1
            self._starts.add(since)
        return since

    def put(self, shard_id: str, since: int, iterator: str) -> None:
        """Keep one."""
        with self._lock:
            self._iterators[shard_id, since] = (iterator, time.monotonic())
            oldest = time.monotonic() - _ITERATOR_SECONDS
            while self._iterators and next(iter(self._iterators.values()))[1] < oldest:
                self._iterators.popitem(last=False)

    def take(self, shard_id: str, since: int) -> str | None:
        """The iterator of a position, for one reader."""
        with self._lock:
            return self._iterators.pop((shard_id, since), (None, 0.0))[0]


@attrs.frozen(eq=False)
class Stream:
    """What the readers of one feed share.

    Attributes:
        calls: Makes the calls.
        arn: The stream.
        shards: Its shards.
        missing: Says why a shard is not there.
        kept: Iterators of `Now` that are in no token.
        readers: The readers that are in use.
    """

    calls: Calls
    arn: str
    shards: ShardMap
    missing: Callable[[str], ProviderFault]
    kept: KeptIterators = attrs.field(factory=KeptIterators)
    readers: WeakSet[Reader] = attrs.field(factory=WeakSet)

    def seconds(self) -> int:
        """The service's clock, in whole seconds since 1970."""
        return int(self.calls.now().timestamp())
