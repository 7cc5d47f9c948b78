"""Opens the feeds of a provider for the engine, Spark and the command line, and keeps them between calls."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Final, TypeVar

import attrs
from attrs import define

from multiclouddb_api import ErrorCategory, ErrorReason, MulticloudDbError, Snapshot, invalid_request
from multiclouddb_spi.contract import Feed, FeedSpec, FeedStart, Provider
from multiclouddb_spi.errors import cause_of, fault_of, user_errors
from multiclouddb_spi.faults import ProviderFault
from multiclouddb_spi.request_check import require
from multiclouddb_spi.retry import Call
from multiclouddb_spi.time_limits import Deadline

T = TypeVar("T")
_MOST_FEEDS: Final = 16384
_IDLE_SECONDS: Final = 600.0
_UNUSED_SECONDS: Final = 60.0
_MOST_AT_ONCE: Final = 8
_CLOCK_SECONDS: Final = 60.0
_CLOCK_PATIENCE: Final = 1.0
_WARNING_SECONDS: Final = 60.0


class OpenFeed:
    """A feed that is opened when it is first used, with retries.

    The resource of a feed may have been deleted and created again since it was opened. So if a token or an id
    belongs to another resource, the feed is opened again before the token or id is refused.

    A `Deadline` as `limit` limits all calls together, and the caller converts failures to errors for the
    user. A number of seconds limits each call separately, and a failed call raises the error for the user.
    The `keeper` keeps the feed open for other callers. Without a keeper, `close` forgets the feed.
    """

    def __init__(
        self,
        provider: Provider,
        spec: FeedSpec,
        make: Call,
        limit: Deadline | float,
        keeper: FeedCache | None = None,
    ) -> None:
        self.provider, self.spec = provider, spec
        self._make, self._limit, self._keeper = make, limit, keeper
        self._feed: Feed | None = None

    @property
    def feed(self) -> Feed:
        """The opened feed."""
        return self._acquire()[0]

    def call(self, operation: str, ask: Callable[[Deadline], T]) -> T:
        """Call the provider or the feed, with retries."""
        limit = self._limit
        if isinstance(limit, Deadline):
            return self._make(lambda: ask(limit), limit)
        deadline = Deadline.after(limit)
        with user_errors(self.provider, operation):
            return self._make(lambda: ask(deadline), deadline)

    def use(
        self,
        begin: Callable[[Feed], T],
        check: Callable[[Feed], object] | None = None,
        made_by: tuple[str | None, str, str] | None = None,
    ) -> T:
        """Call `begin` with the feed, and return its result.

        A feed that was opened before this call is opened again if it does not match the token, or if its
        resource is not found.
        """

        def checked(feed: Feed) -> Feed:
            if check is not None:
                check(feed)
            if made_by is not None and not feed.resumes(made_by[0]):
                raise recreated(feed, *made_by[1:])
            return feed

        feed, fresh = self._acquire()
        if check is not None or (made_by is not None and not feed.resumes(made_by[0])):
            try:
                checked(feed)
            except MulticloudDbError:
                if fresh:
                    raise
                self.renew()
                feed, fresh = self._acquire()
                checked(feed)
        try:
            return begin(feed)
        except Exception as error:
            if fault_of(self.provider, error).category != ErrorCategory.NOT_FOUND:
                raise
            if fresh:
                self.renew()
                raise
        self.renew()
        return begin(checked(self.feed))

    def check_resumes(self, incarnation: str | None, field: str, way_out: str) -> None:
        """Refuse a token or an id from another incarnation of the resource."""
        self.use(lambda _: None, made_by=(incarnation, field, way_out))

    def check_start(self, position: FeedStart | Snapshot) -> None:
        """Refuse a start position that the provider does not support."""
        require(self.provider, (position,), self.spec.options, "start")

    def renew(self) -> None:
        """Forget the feed, because its resource may have been deleted and created again."""
        if self._feed is not None and self._keeper is not None:
            self._keeper.forget(self._feed)
        self.close()

    def close(self) -> None:
        """Release the feed; may be called more than once."""
        feed, self._feed = self._feed, None
        if feed is not None and self._keeper is not None:
            self._keeper.release(feed)

    def _acquire(self) -> tuple[Feed, bool]:
        if self._feed is not None:
            return self._feed, False
        open_feed, fresh = partial(self.call, "open", self._opened), True
        if self._keeper is None:
            self._feed = open_feed()
        else:
            self._feed, fresh = self._keeper.acquire(self.spec, open_feed)
        return self._feed, fresh

    def _opened(self, deadline: Deadline) -> Feed:
        try:
            return self.provider.open_feed(self.spec, deadline)
        except Exception as error:
            fault = fault_of(self.provider, error)
            if not (fault.unknown_host and self._keeper is not None and self._keeper.is_new):
                raise
            wrong = attrs.evolve(fault, category=ErrorCategory.INVALID_REQUEST, retryable=False)
            raise ProviderFault(wrong) from cause_of(fault, error)


def recreated(feed: Feed, field: str, way_out: str) -> MulticloudDbError:
    """Make the error for a token or an id from another incarnation of the resource."""
    problem = f"belongs to an earlier {feed.spec.address}, which was recreated under the same name"
    return invalid_request(field, problem, way_out, ErrorReason.RECREATED)


class FeedCache:
    """Maps each spec to its opened feed and the time of the service's clock; all calls of a client share it.

    A feed is kept for ten minutes after its last use, because opening one needs calls to the service, which
    check how the resource is set up. Then it is forgotten, and its consumers are discarded. A worker may read
    thousands of partition keys in turn, each of which needs a feed of its own, so the limit on feeds is as
    high as that on readers. Above the limit, the feeds of the last minute are kept and each additional one is
    forgotten after its call; the longest unused ones stay, because such a worker needs them next.
    """

    def __init__(self, call: Call, forget_consumers: Callable[[Feed], None]) -> None:
        self._call, self._forget_consumers = call, forget_consumers
        # True if no feed was opened yet; an unknown host is then a mistake in the connection.
        self.is_new = True
        self._feeds: dict[FeedSpec, _Opened] = {}
        # All open feeds, also those that are not kept, by id, the longest unused first; finding one by its
        # spec would be slower.
        self._open: OrderedDict[int, _Opened] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False

    def acquire(self, spec: FeedSpec, open_feed: Callable[[], Feed]) -> tuple[Feed, bool]:
        """Return the feed for this spec, and whether this call has opened it; the caller must release it."""
        with self._lock:
            opened = self._feeds.get(spec)
            if opened is not None:
                opened.users += 1
                return opened.feed, False
        feed = open_feed()
        self.is_new = False
        with self._lock:
            old = self._unused_since(time.monotonic() - _UNUSED_SECONDS, _MOST_FEEDS - 1)
            kept = self._feeds.get(spec)
            if kept is None:
                kept = self._open[id(feed)] = _Opened(feed)
                if not self._closed and len(self._feeds) < _MOST_FEEDS:
                    self._feeds[spec], kept.kept = kept, True
            kept.users += 1
        for each in old:
            self._forget_consumers(each.feed)
        return kept.feed, True

    def release(self, feed: Feed) -> None:
        """Record that a call no longer uses a feed."""
        now = time.monotonic()
        with self._lock:
            opened = self._open[id(feed)]
            opened.users, opened.used_at = opened.users - 1, now
            self._open.move_to_end(id(feed))
            old = list[_Opened]()
            if next(iter(self._open.values())).used_at <= now - _IDLE_SECONDS:
                old = self._unused_since(now - _IDLE_SECONDS)
            if not (opened.users or opened.kept):
                old.append(self._open.pop(id(feed)))
        for each in old:
            self._forget_consumers(each.feed)

    def forget(self, feed: Feed) -> None:
        """Open the feed again next time, because its resource may have been deleted and created again."""
        with self._lock:
            opened = self._open.get(id(feed))
            if opened is not None and opened.kept:
                del self._feeds[feed.spec]
                opened.kept = False
            if opened is not None and not opened.users:
                del self._open[id(feed)]
        self._forget_consumers(feed)

    def now(self, feed: Feed, deadline: Deadline, patience: float = math.inf) -> datetime | None:
        """Return the service's time, computed from an answer that is at most one minute old."""
        asked, answer = self._open[id(feed)].clock
        if time.monotonic() - asked >= _CLOCK_SECONDS:
            asked, answer = self._ask(feed, deadline.sooner(patience))
        # The time since the answer is measured with a monotonic clock.
        return None if answer is None else answer + timedelta(seconds=time.monotonic() - asked)

    def asked_now(self, feed: Feed, deadline: Deadline) -> datetime | None:
        """Return the service's current time, or None if the service does not answer quickly."""
        # A time that this process has computed may be later than the service's own time: its clock was set
        # back, or another machine answers.
        return self.soon(feed, deadline, fresh=True)

    def soon(self, feed: Feed, deadline: Deadline, *, fresh: bool = False) -> datetime | None:
        """Return the service's time; None, for the next minute too, if it does not answer quickly."""
        opened, now = self._open[id(feed)], time.monotonic()
        if now >= deadline.at or now - opened.mute_at < _CLOCK_SECONDS:
            return None
        try:
            if fresh:
                return self._ask(feed, deadline.sooner(_CLOCK_PATIENCE))[1]
            return self.now(feed, deadline, _CLOCK_PATIENCE)
        except Exception:  # noqa: BLE001 - the page is returned without its lag
            opened.mute_at = time.monotonic()
            return None

    def may_warn(self, feed: Feed) -> bool:
        """Return whether to report a low headroom now: once a minute for each feed."""
        opened, now = self._open[id(feed)], time.monotonic()
        if now - opened.warned_at < _WARNING_SECONDS:
            return False
        opened.warned_at = now
        return True

    def close(self) -> None:
        """Forget every feed; a feed that is in use is forgotten when its call has ended."""
        with self._lock:
            self._closed = True
            feeds = list(self._feeds.values())
        for opened in feeds:
            self.forget(opened.feed)

    def _ask(self, feed: Feed, deadline: Deadline) -> tuple[float, datetime | None]:
        answer = self._call(lambda: feed.clock(deadline), deadline)
        self._open[id(feed)].clock = asked = (time.monotonic(), answer)
        return asked

    def _unused_since(self, moment: float, most: int = 0) -> list[_Opened]:
        """Remove feeds that were not used since `moment`, until `most` feeds are left; under the lock."""
        # Only a few at a time, because discarding their consumers delays the current call.
        old: list[_Opened] = []
        for opened in self._open.values():
            if opened.used_at > moment or len(old) >= min(_MOST_AT_ONCE, len(self._feeds) - most):
                break
            if not opened.users:
                old.append(opened)
        for opened in old:
            del self._open[id(opened.feed)], self._feeds[opened.feed.spec]
        return old


@define(eq=False, repr=False)
class _Opened:
    """An open feed; the times are monotonic."""

    feed: Feed
    kept: bool = False  # later calls find it
    users: int = 0
    used_at: float = 0.0  # the end of the last call
    clock: tuple[float, datetime | None] = (-math.inf, None)  # when the service told its time, and which
    mute_at: float = -math.inf  # when it was last asked for its time without an answer
    warned_at: float = -math.inf  # when a low headroom was last reported
