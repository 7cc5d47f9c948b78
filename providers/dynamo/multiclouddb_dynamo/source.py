"""Holds the objects that the readers of one stream share."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict, deque
from typing import Final
from weakref import WeakSet

import attrs
from botocore.exceptions import BotoCoreError, ClientError

from multiclouddb_dynamo.client import Calls, Table
from multiclouddb_dynamo.quiet import KeptAnswers
from multiclouddb_dynamo.shards import Shard, ShardMap
from multiclouddb_spi import Deadline, FeedSpec, ProviderFault, Reader

__all__ = ["MOST_ITERATORS", "START_SECONDS", "KeptIterators", "Source"]

MOST_ITERATORS: Final = 64
"""If a stream has more open shards than this, a token contains no iterators.

Each iterator takes hundreds of bytes.
"""

_ITERATOR_SECONDS: Final = 15 * 60  # the lifetime of an iterator
START_SECONDS: Final = 3600
"""The time within which a start at `Beginning` must begin to read each shard.

If records of a shard are trimmed within this time after the start, the feed reports no gap.
"""
_LIFE_SECONDS: Final = 4 * 3600  # about the lifetime of a shard
_LISTED_SECONDS: Final = 600.0
_LOOK_SECONDS: Final = 600.0


class KeptIterators:
    """Keeps iterators at the ends of shards if a `Now` token would contain too many iterators.

    These iterators belong to one process and are valid until they expire in the service. A shard whose
    iterator is missing is scanned from its oldest record.
    """

    def __init__(self) -> None:
        self._iterators: OrderedDict[tuple[str, int], tuple[str, float]] = OrderedDict()
        self._starts: set[int] = set()
        self._lock = threading.Lock()

    def name_start(self, since: int) -> int:
        """Return a unique time for a start, in whole seconds: the given time, or a slightly earlier one.

        Each start gets its own time, so that no start uses the iterators of another start.
        """
        with self._lock:
            self._starts = {start for start in self._starts if start > since - _ITERATOR_SECONDS}
            while since in self._starts:
                since -= 1
            self._starts.add(since)
        return since

    def put(self, shard_id: str, since: int, iterator: str) -> None:
        """Store an iterator."""
        with self._lock:
            self._iterators[shard_id, since] = (iterator, time.monotonic())
            oldest = time.monotonic() - _ITERATOR_SECONDS
            while self._iterators and next(iter(self._iterators.values()))[1] < oldest:
                self._iterators.popitem(last=False)

    def take(self, shard_id: str, since: int) -> str | None:
        """Remove the iterator of a position and return it, so that only one reader uses it."""
        with self._lock:
            return self._iterators.pop((shard_id, since), (None, 0.0))[0]


@attrs.frozen(eq=False)
class Source:
    """The objects that the readers of one feed share.

    Attributes:
        calls: Makes the calls.
        spec: The spec of the feed.
        table: The table.
        arn: The stream of the table; every other stream of the same table has another ARN.
        shards: The stream's shards.
        kept: Iterators of `Now` positions. No token contains these iterators.
        empty: The empty answers of readers that are no longer in use.
        readers: The readers that are currently in use.
    """

    calls: Calls
    spec: FeedSpec
    table: Table
    arn: str
    shards: ShardMap
    kept: KeptIterators = attrs.field(factory=KeptIterators)
    empty: KeptAnswers = attrs.field(factory=KeptAnswers)
    readers: WeakSet[Reader] = attrs.field(factory=WeakSet)
    _starts: deque[float] = attrs.field(factory=lambda: deque(maxlen=1))
    _looked: dict[str, float] = attrs.field(factory=dict)
    _listing: threading.Lock = attrs.field(factory=threading.Lock)

    def seconds(self) -> int | None:
        """Return the service's time, in whole seconds since 1970; None if the service sends no time."""
        now = self.calls.now()
        return None if now is None else int(now.timestamp())

    def age_of(self, seconds: int | None) -> int | None:
        """Return the seconds from a given time until now, by the service's clock.

        Return None if the service sends no time, or if the given time is None.
        """
        now = self.seconds()
        return None if now is None or seconds is None else now - seconds

    def shard(self, shard_id: str, deadline: Deadline) -> Shard | None:
        """Return a shard. If this process does not know the shard yet, ask the service for all shards.

        Return None if the shard does not exist.
        """
        if self.shards.find(shard_id) is None:
            self._list(deadline)
        return self.shards.find(shard_id)

    def _list(self, deadline: Deadline) -> None:
        """List the shards, but at most once every ten minutes."""
        with self._listing:
            if self.shards.age() > _LISTED_SECONDS:
                # This listing only supports another call, so its failure is ignored.
                with contextlib.suppress(ClientError, BotoCoreError, ProviderFault):
                    self.shards.read(deadline)

    def is_closed(self, shard_id: str, since: int | None, deadline: Deadline) -> bool:
        """Return True if a shard is known to have ended.

        A reader can find the end of an ended shard. If the position is older than the lifetime of a
        shard, the service is asked, but at most once every ten minutes.

        Args:
            shard_id: The shard.
            since: A lower limit on the times of the records after the position, or None.
            deadline: The time limit.
        """
        shard = self.shards.find(shard_id)
        age = self.age_of(since)
        if (shard is None or shard.last is None) and age is not None and age > _LIFE_SECONDS:
            self._list(deadline)
            shard = self.shards.find(shard_id)
        return shard is not None and shard.last is not None

    def note_start(self) -> None:
        """Record that a start at `Beginning` was made."""
        self._starts.append(time.monotonic())

    def has_started(self) -> bool:
        """Return True if this process made a start at `Beginning` in the last hour."""
        return bool(self._starts) and time.monotonic() - self._starts[-1] < START_SECONDS

    def may_look_far(self, shard_id: str) -> bool:
        """Return True if a long scan of a shard may begin now, and record the time of the scan.

        Two long scans of the same shard begin at least ten minutes apart.
        """
        now = time.monotonic()
        if now - self._looked.get(shard_id, -_LOOK_SECONDS) < _LOOK_SECONDS:
            return False
        self._looked[shard_id] = now
        return True
