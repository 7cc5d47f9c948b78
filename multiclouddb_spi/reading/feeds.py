"""Keeps opened feeds between calls, together with the time of the service's clock for each feed."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from multiclouddb_spi.continuation.standings import Standings
from multiclouddb_spi.contract import Feed, FeedSpec
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.reading.fetcher import Fetcher
from multiclouddb_spi.reading.reader_cache import ReaderCache

__all__ = ["FeedCache"]

_MOST_FEEDS: Final = 16384
_IDLE_SECONDS: Final = 600.0
_RESTING_SECONDS: Final = 60.0
_MOST_AT_ONCE: Final = 8
_CLOCK_SECONDS: Final = 60.0
_CLOCK_PATIENCE: Final = 1.0


class FeedCache:
    """Maps each spec to its opened feed and the time of the service's clock; all calls of a client share it.

    A feed is closed when neither a running call nor a later call needs it. Opening a feed needs
    calls to the service, which check how the resource is set up. Therefore, a feed is kept for ten
    minutes after its last use. The limit on feeds is as high as the limit on readers. The reason is
    that a worker may read thousands of partition keys in turn, and the scope of each key needs a
    feed. Above the limit, feeds that were used in the last minute remain open, and each additional
    feed is closed after its call. The cache does not close the feeds with the oldest last use,
    because a worker that reads keys in turn needs these feeds next.

    Args:
        fetcher: Runs calls.
        readers: A function that forgets the readers of a closed feed.
    """

    def __init__(self, fetcher: Fetcher, readers: ReaderCache) -> None:
        self._fetcher, self._readers = fetcher, readers
        self._feeds: dict[FeedSpec, Feed] = {}
        # The same feeds by id, the longest unused first; finding a feed by its spec would be slower.
        self._kept: OrderedDict[int, Feed] = OrderedDict()
        self._users: Counter[int] = Counter()
        self._used_at: dict[int, float] = {}
        self._clocks: dict[int, tuple[float, datetime | None]] = {}
        self._mute: dict[int, float] = {}
        self._standings: dict[int, Standings] = {}
        self._lock = threading.Lock()
        self._closed = False
        self.is_new = True

    def acquire(self, spec: FeedSpec, open_feed: Callable[[], Feed]) -> tuple[Feed, bool]:
        """Return the feed for this spec, and whether this call has opened it.

        The caller must release the feed.
        """
        with self._lock:
            feed = self._feeds.get(spec)
            if feed is not None:
                self._use(feed, 1)
                return feed, False
        feed = open_feed()
        self.is_new = False
        with self._lock:
            old = self._unused_since(time.monotonic() - _RESTING_SECONDS, _MOST_FEEDS - 1)
            is_kept = not self._closed and len(self._feeds) < _MOST_FEEDS
            kept = self._feeds.get(spec, feed)
            if is_kept and kept is feed:
                self._feeds[spec] = self._kept[id(feed)] = feed
            self._use(kept, 1)
        for unused in (feed, *old):
            if unused is not kept:
                self._close_unused(unused)
        return kept, True

    def release(self, feed: Feed) -> None:
        """Record that a call no longer uses a feed."""
        with self._lock:
            is_kept = self._use(feed, -1)
            old = self._unused_since(time.monotonic() - _IDLE_SECONDS)
        for unused in old if is_kept else (feed, *old):
            self._close_unused(unused)

    def forget(self, feed: Feed) -> None:
        """Open the feed again next time, because its resource may have been deleted and created again."""
        with self._lock:
            if self._kept.pop(id(feed), None) is not None:
                del self._feeds[feed.spec]
        self._readers.forget(feed)
        self._close_unused(feed)

    def now(self, feed: Feed, deadline: Deadline, patience: float = math.inf) -> datetime | None:
        """Return the service's time, computed from an answer that is at most one minute old.

        Args:
            feed: The feed.
            deadline: The time limit of the call.
            patience: The number of seconds that the service may take to answer.

        Returns:
            None if the service does not report its time.
        """
        asked, answer = self._clocks.get(id(feed), (-math.inf, None))
        if time.monotonic() - asked >= _CLOCK_SECONDS:
            asked, answer = self._ask(feed, deadline.sooner(patience))
        # The time since the answer is measured with a monotonic clock.
        return None if answer is None else answer + timedelta(seconds=time.monotonic() - asked)

    def asked_now(self, feed: Feed, deadline: Deadline) -> datetime | None:
        """Return the service's current time, or None if the service does not answer quickly.

        A time that this process has computed may be later than the service's own time. There are
        two possible reasons: the service's clock was set back, or another machine answers.
        """
        return self.soon(feed, deadline, fresh=True)

    def soon(self, feed: Feed, deadline: Deadline, *, fresh: bool = False) -> datetime | None:
        """Return the service's time if the service answers quickly.

        If the service does not answer quickly, return None and do not ask the service again for one
        minute.

        Args:
            feed: The feed.
            deadline: The time limit of the call.
            fresh: True to ask the service even if this process could compute the time, as `asked_now` does.
        """
        failed = self._mute.get(id(feed))
        if deadline.passed() or (failed is not None and time.monotonic() - failed < _CLOCK_SECONDS):
            return None
        try:
            if fresh:
                return self._ask(feed, deadline.sooner(_CLOCK_PATIENCE))[1]
            return self.now(feed, deadline, _CLOCK_PATIENCE)
        except Exception:  # noqa: BLE001 - the page is returned without its lag
            self._mute[id(feed)] = time.monotonic()
            return None

    def _ask(self, feed: Feed, deadline: Deadline) -> tuple[float, datetime | None]:
        answer = self._fetcher.call(lambda: feed.clock(deadline), deadline)
        asked = time.monotonic()
        self._clocks[id(feed)] = (asked, answer)
        return asked, answer

    def standings(self, feed: Feed) -> Standings:
        """Return the memory of how far each partition of a feed was read; the feed must be in use."""
        return self._standings.setdefault(id(feed), Standings())

    def close(self) -> None:
        """Close every feed; a feed that is in use is closed when its call has ended."""
        with self._lock:
            self._closed = True
            feeds = list(self._feeds.values())
        for feed in feeds:
            self.forget(feed)

    def _use(self, feed: Feed, more: int) -> bool:
        """Count the calls that use a feed; the caller must hold the lock.

        Return whether the cache keeps the feed.
        """
        self._users[id(feed)] += more
        self._used_at[id(feed)] = time.monotonic()
        is_kept = id(feed) in self._kept
        if is_kept:
            self._kept.move_to_end(id(feed))
        return is_kept

    def _unused_since(self, moment: float, most: int = 0) -> list[Feed]:
        """Remove feeds that were not used since `moment`, until `most` feeds are left.

        The feed with the oldest last use is removed first. Only a few feeds are removed at a time,
        because closing them delays the current call. The caller must hold the lock.
        """
        old: list[Feed] = []
        while len(self._feeds) > most and len(old) < _MOST_AT_ONCE:
            feed = next(iter(self._kept.values()))
            if self._users[id(feed)] > 0 or self._used_at[id(feed)] > moment:
                break
            del self._kept[id(feed)], self._feeds[feed.spec]
            old.append(feed)
        return old

    def _close_unused(self, feed: Feed) -> None:
        with self._lock:
            if self._users[id(feed)] > 0 or id(feed) in self._kept:
                return
            self._users.pop(id(feed), None)
            self._used_at.pop(id(feed), None)
            self._clocks.pop(id(feed), None)
            self._mute.pop(id(feed), None)
            self._standings.pop(id(feed), None)
        self._readers.forget(feed)
        with suppress(Exception):
            feed.close()
