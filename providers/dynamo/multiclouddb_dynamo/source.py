"""Holds the objects that the readers of one stream share."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import OrderedDict, deque
from datetime import datetime, timedelta
from typing import Final
from weakref import WeakSet

import attrs
from attrs import frozen
from botocore.exceptions import BotoCoreError, ClientError

from multiclouddb_dynamo.capabilities import DELAY_SECONDS, EMPTY_ANSWERS
from multiclouddb_dynamo.client import Calls, Table
from multiclouddb_dynamo.shards import Shard, ShardMap
from multiclouddb_spi import Deadline, FeedSpec, ProviderFault, Reader

_MOST_KEPT: Final = 4096


class EmptyAnswers:
    """The answers without records that a shard has given in a row."""

    def __init__(self) -> None:
        self.count = 0
        self._asked: deque[float] = deque(maxlen=EMPTY_ANSWERS)
        self._seconds = 0.0

    def add(self, asked: float) -> None:
        """Add an answer that arrives now, and whose request was sent at the monotonic time `asked`."""
        self.count += 1
        self._asked.append(asked)
        self._seconds = time.monotonic() - asked

    def are_recent(self, pause: float) -> bool:
        longest = max(DELAY_SECONDS, 2 * EMPTY_ANSWERS * max(pause, self._seconds))
        return not self._asked or time.monotonic() - self._asked[0] <= longest

    def read_until(self, now: datetime | None) -> datetime | None:
        """Return the moment up to which the shard was read; None if that is not known."""
        if now is None or len(self._asked) < EMPTY_ANSWERS:
            return None
        asked = min(self._asked[0], self._asked[-1] - DELAY_SECONDS)
        return now - timedelta(seconds=time.monotonic() - asked)


class KeptAnswers:
    """Keeps the empty answers of closed readers, for the next reader with the same iterator."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, EmptyAnswers] = OrderedDict()

    def put(self, iterator: str, answers: EmptyAnswers) -> None:
        self._kept[iterator] = answers
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)

    def take(self, iterator: str) -> EmptyAnswers:
        return self._kept.pop(iterator, None) or EmptyAnswers()


MOST_ITERATORS: Final = 64
"""If a stream has more open shards than this, a token contains no iterators, which take hundreds of bytes."""
_ITERATOR_SECONDS: Final = 15 * 60  # the lifetime of an iterator
START_SECONDS: Final = 3600
"""If records are trimmed within this time after a start at `Beginning`, the feed reports no gap."""
_LIFE_SECONDS: Final = 4 * 3600  # about the lifetime of a shard
_LISTED_SECONDS: Final = 600.0
_REPLICAS_SECONDS: Final = 0.1  # between two questions whether a table is a global one
_ENDS_SECONDS: Final = 1.0  # between two listings for shards that may have ended
_LOOK_SECONDS: Final = 600.0


class KeptIterators:
    """Keeps iterators at the ends of shards if a `Now` token would contain too many iterators."""

    def __init__(self) -> None:
        self._iterators: OrderedDict[tuple[str, int], tuple[str, float]] = OrderedDict()
        self._starts: set[int] = set()
        self._lock = threading.Lock()

    def name_start(self, since: int) -> int:
        """Return a unique time for a start, in whole seconds: the given time, or a slightly earlier one."""
        with self._lock:
            self._starts = {start for start in self._starts if start > since - _ITERATOR_SECONDS}
            while since in self._starts:
                since -= 1
            self._starts.add(since)
        return since

    def put(self, shard_id: str, since: int, iterator: str) -> None:
        with self._lock:
            self._iterators[shard_id, since] = (iterator, time.monotonic())
            oldest = time.monotonic() - _ITERATOR_SECONDS
            while self._iterators and next(iter(self._iterators.values()))[1] < oldest:
                self._iterators.popitem(last=False)

    def take(self, shard_id: str, since: int) -> str | None:
        """Remove the iterator of a position and return it, so that only one reader uses it."""
        with self._lock:
            return self._iterators.pop((shard_id, since), (None, 0.0))[0]


class Replication:
    """Knows whether a table may have replicas in other regions; it can become a global table at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_single_until = -math.inf

    def may_exist(self, calls: Calls, name: str) -> bool:
        """Return False only if the service has just said that there are no replicas."""
        with self._lock:
            if time.monotonic() < self._is_single_until:
                return False
            began = time.monotonic()
            try:
                found = calls.describe_table(name).replicated
            except (ClientError, BotoCoreError, ProviderFault):
                return True  # a table that is gone, or a failed call, proves nothing
            if not found:
                self._is_single_until = began + _REPLICAS_SECONDS
            return found


@frozen(eq=False)
class ReaderContext:
    """The objects that the readers of one feed share."""

    calls: Calls
    spec: FeedSpec
    table: Table
    arn: str
    shards: ShardMap
    replication: Replication = attrs.field(factory=Replication)
    kept: KeptIterators = attrs.field(factory=KeptIterators)
    empty: KeptAnswers = attrs.field(factory=KeptAnswers)
    readers: WeakSet[Reader] = attrs.field(factory=WeakSet)
    _starts: deque[float] = attrs.field(factory=lambda: deque(maxlen=1))
    _looked: dict[str, float] = attrs.field(factory=dict)
    _listing: threading.Lock = attrs.field(factory=threading.Lock)
    _looking: threading.Lock = attrs.field(factory=threading.Lock)

    def seconds(self) -> int | None:
        """Return the service's time, in whole seconds since 1970; None if the service sends no time."""
        now = self.calls.now()
        return None if now is None else int(now.timestamp())

    def age_of(self, seconds: int | None) -> int | None:
        """Return the seconds from a given time until now, by the service's clock."""
        now = self.seconds()
        return None if now is None or seconds is None else now - seconds

    def shard(self, shard_id: str, deadline: Deadline) -> Shard | None:
        """Return a shard. If this process does not know the shard yet, ask the service for all shards."""
        if self.shards.find(shard_id) is None:
            self._list(deadline)
        return self.shards.find(shard_id)

    def _list(self, deadline: Deadline) -> None:
        """List the shards, but at most once every ten minutes."""
        with self._listing:
            if self.shards.age() > _LISTED_SECONDS:
                # This listing only supports another call, so its failure is ignored.
                with contextlib.suppress(ClientError, BotoCoreError, ProviderFault):
                    self.shards.read_again(deadline)

    def is_known_closed(self, shard_id: str) -> bool:
        """Return True if this process has seen the last sequence number of a shard."""
        shard = self.shards.find(shard_id)
        return shard is not None and shard.last is not None

    def is_known_end(self, shard_id: str) -> bool:
        """Return True if this process has seen the last sequence number or a child of a shard."""
        return bool(self.shards.children(shard_id)) or self.is_known_closed(shard_id)

    def has_ended(self, shard_id: str, since: float, deadline: Deadline) -> bool | None:
        """Ask whether a shard has ended.

        Args:
            shard_id: The shard.
            since: The monotonic time after which an answer must have been given to count.
            deadline: The time limit of the call.

        Returns:
            True if the service has named children or the last sequence number of the shard, or says that
            there is no such shard. False if it lists the shard as open. None if it cannot be asked now,
            because few calls of this kind are allowed.
        """
        # The children have to be found in any case, and this is the cheapest call.
        if shard_id not in self.shards.discover([shard_id], deadline):
            return True if self.is_known_end(shard_id) else None
        if self.is_known_end(shard_id):
            return True
        # Children may be listed late, and a disabled stream has none.
        with self._listing:  # readers whose shards end together share one listing
            if self.shards.age() > time.monotonic() - since:
                if self.shards.age() < _ENDS_SECONDS:
                    return None
                self.shards.read_again(deadline)
        if self.shards.find(shard_id) is None:
            return True if self.shards.gone([shard_id], deadline) else None
        return self.is_known_end(shard_id)

    def is_closed(self, shard_id: str, since: int | None, deadline: Deadline) -> bool:
        shard = self.shards.find(shard_id)
        age = self.age_of(since)
        if (shard is None or shard.last is None) and age is not None and age > _LIFE_SECONDS:
            self._list(deadline)
        return self.is_known_closed(shard_id)

    def note_start(self) -> None:
        self._starts.append(time.monotonic())

    def has_started(self) -> bool:
        return bool(self._starts) and time.monotonic() - self._starts[-1] < START_SECONDS

    def may_look_far(self, shard_id: str) -> bool:
        """Return True if a long scan of a shard may begin now, and record the time of the scan."""
        now = time.monotonic()
        with self._looking:
            # The oldest scan is the first one. Most of these shards have ended.
            while self._looked and now - next(iter(self._looked.values())) >= _LOOK_SECONDS:
                del self._looked[next(iter(self._looked))]
            if shard_id in self._looked:
                return False
            self._looked[shard_id] = now
            return True
