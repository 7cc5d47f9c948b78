"""From a request to an opened feed and the state to go on from."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

import attrs

from multiclouddb_api import (
    AtTime,
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    PhysicalPartition,
    StartPosition,
    invalid_request,
)
from multiclouddb_spi.contract import Child, Feed, FeedSpec, FeedStart, Provider
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.fetcher import Fetcher
from multiclouddb_spi.lineage import Active, Entry, Lineage, entry_to_json
from multiclouddb_spi.live import LiveCache
from multiclouddb_spi.partition import PartitionId, decode_partition_id
from multiclouddb_spi.state import FeedOver, FeedState, end_from_json, state_from_json
from multiclouddb_spi.token import Envelope, decode_token, encode_token, scope_text

__all__ = ["FeedCache", "Finished", "Opening", "Session"]

T = TypeVar("T")
_MOST_FEEDS: Final = 64
_CLOCK_SECONDS: Final = 60.0
_CLOCK_PATIENCE: Final = 1.0
_AHEAD: Final = timedelta(seconds=60)


class FeedCache:
    """Opened feeds by spec, and what the service's clock says; shared by all calls of a client.

    A feed is closed when nobody needs it: neither a later call, nor one that still runs.

    Args:
        provider: Opens feeds.
        fetcher: Runs calls.
        lives: Forgets a closed feed's readers.
    """

    def __init__(self, provider: Provider, fetcher: Fetcher, lives: LiveCache) -> None:
        self._provider, self._fetcher, self._lives = provider, fetcher, lives
        self._feeds: OrderedDict[FeedSpec, Feed] = OrderedDict()
        self._users: Counter[int] = Counter()
        self._clocks: dict[int, tuple[float, timedelta | None]] = {}
        self._mute: dict[int, float] = {}
        self._lock = threading.Lock()
        self._closed = False

    def acquire(self, spec: FeedSpec, deadline: Deadline) -> tuple[Feed, bool]:
        """The feed of this spec, to be released; and whether this call has opened it."""
        with self._lock:
            feed = self._feeds.get(spec)
            if feed is not None:
                self._feeds.move_to_end(spec)
                self._users[id(feed)] += 1
                return feed, False
        feed = self._fetcher.call(lambda: self._provider.open_feed(spec, deadline), deadline)
        with self._lock:
            kept = feed if self._closed else self._feeds.setdefault(spec, feed)
            self._users[id(kept)] += 1
            old = self._feeds.popitem(last=False)[1] if len(self._feeds) > _MOST_FEEDS else None
        for unused in (None if kept is feed else feed, old):
            if unused is not None:
                self._close_unused(unused)
        return kept, True

    def release(self, feed: Feed) -> None:
        """A call is over."""
        with self._lock:
            self._users[id(feed)] -= 1
        self._close_unused(feed)

    def forget(self, feed: Feed) -> None:
        """Open it anew next time: it may be another resource by then."""
        with self._lock:
            if self._feeds.get(feed.spec) is feed:
                del self._feeds[feed.spec]
        self._lives.forget(feed)
        self._close_unused(feed)

    def now(self, feed: Feed, deadline: Deadline) -> datetime | None:
        """The service's time, from an answer at most a minute old; None where it does not tell."""
        asked, offset = self._clocks.get(id(feed), (-_CLOCK_SECONDS, None))
        if time.monotonic() - asked >= _CLOCK_SECONDS:
            told = self._fetcher.call(lambda: feed.clock(deadline), deadline)
            offset = None if told is None else told - datetime.now(UTC)
            self._clocks[id(feed)] = (time.monotonic(), offset)
        return None if offset is None else datetime.now(UTC) + offset

    def soon(self, feed: Feed, deadline: Deadline) -> datetime | None:
        """The service's time if it tells quickly; one that does not is left alone for a minute."""
        failed = self._mute.get(id(feed))
        if deadline.passed() or (failed is not None and time.monotonic() - failed < _CLOCK_SECONDS):
            return None
        try:
            return self.now(feed, deadline.sooner(_CLOCK_PATIENCE))
        except Exception:  # noqa: BLE001 - it costs the lag, not the page
            self._mute[id(feed)] = time.monotonic()
            return None

    def close(self) -> None:
        """Close every feed, one in use when its call is over."""
        with self._lock:
            self._closed = True
            feeds = list(self._feeds.values())
        for feed in feeds:
            self.forget(feed)

    def _close_unused(self, feed: Feed) -> None:
        with self._lock:
            if self._users[id(feed)] > 0 or self._feeds.get(feed.spec) is feed:
                return
            self._users.pop(id(feed), None)
            self._clocks.pop(id(feed), None)
            self._mute.pop(id(feed), None)
        self._lives.forget(feed)
        with suppress(Exception):
            feed.close()


@attrs.frozen
class Finished:
    """What a token says behind which nothing will ever follow; told without the service.

    Attributes:
        token: The request's token.
        over: How the feed ended.
        skipped: Poison records that the token steps over.
    """

    token: str
    over: FeedOver
    skipped: tuple[tuple[str, str], ...]


@attrs.frozen
class Session:
    """What one call works on.

    Attributes:
        feed: The opened feed.
        state: The lineage that the call moves on, or how the feed ended.
        scope: The scope's text for tokens.
        digest: The digest of the options that change positions.
        watermark: The highest told so far, µs since 1970, or None.
        skipped: Poison records that the request's token steps over.
    """

    feed: Feed
    state: FeedState
    scope: str
    digest: str
    watermark: int | None = None
    skipped: tuple[tuple[str, str], ...] = ()

    def token(
        self,
        state: Cursor,
        *,
        scope: str | None = None,
        watermark: int | None = None,
        skipped: tuple[tuple[str, str], ...] = (),
    ) -> str:
        """A token for this feed.

        Args:
            state: The state as JSON.
            scope: Another scope than the session's: a child's, a planned partition's.
            watermark: The watermark to remember.
            skipped: Poison records that it steps over.
        """
        identity = self.feed.identity
        return encode_token(
            Envelope(
                identity.provider_id,
                identity.address,
                identity.incarnation,
                scope or self.scope,
                self.digest,
                state,
                watermark=watermark,
                skipped=skipped,
            )
        )

    def partition_token(self, entry: Entry) -> str:
        """A token for one physical partition of this feed."""
        return self.token([entry_to_json(entry)], scope=_partition_scope(entry.partition_id))

    def child_token(self, child: Child) -> str:
        """A token for a child partition, from where the parent says that it starts."""
        return self.partition_token(Active(child.partition_id, child.cursor))


def _partition_scope(partition_id: str) -> str:
    return scope_text(PhysicalPartition(partition_id), partition_id)


class Opening:
    """Checks a request's token and ids in the order that costs least, then opens.

    Args:
        provider: Whose feed.
        feeds: Opened feeds.
        fetcher: Runs calls.
    """

    def __init__(self, provider: Provider, feeds: FeedCache, fetcher: Fetcher) -> None:
        self._provider, self._feeds, self._fetcher = provider, feeds, fetcher

    @contextmanager
    def open(
        self, request: ChangeFeedRequest, spec: FeedSpec, deadline: Deadline
    ) -> Iterator[Session | Finished]:
        """Open a feed for the time of a call, and find where to go on.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` for a token or partition id of elsewhere.
            Exception: What the provider raised.
        """
        physical = self._physical(request)
        scope = scope_text(request.scope, physical.native if physical else None)
        digest = spec.options.position_digest() if spec.options is not None else ""
        envelope = self._envelope(request.start_position, spec, scope, digest)

        def begin(feed: Feed) -> Session:
            if physical is not None:
                physical.check_incarnation(spec.address, feed.identity.incarnation)
            if envelope is not None:
                return self._resume(feed, envelope, scope, digest)
            assert not isinstance(request.start_position, FromContinuationToken)
            return self._start(feed, request.start_position, physical, scope, digest, deadline)

        if envelope is not None and isinstance(over := end_from_json(envelope.state), FeedOver):
            assert isinstance(request.start_position, FromContinuationToken)
            yield Finished(request.start_position.token, over, envelope.skipped)
            return

        def suits(feed: Feed) -> bool:
            incarnation = feed.identity.incarnation
            return (envelope is None or envelope.incarnation == incarnation) and (
                physical is None or physical.is_of(incarnation)
            )

        with self.feed(spec, deadline, begin, suits) as session:
            yield session

    @contextmanager
    def feed(
        self,
        spec: FeedSpec,
        deadline: Deadline,
        begin: Callable[[Feed], T],
        suits: Callable[[Feed], bool] = lambda _: True,
    ) -> Iterator[T]:
        """Keep a feed open for the time of a call; `begin` makes of it what the call works on.

        A feed that has been open for long may be of a resource that was recreated since: one that
        does not suit, or whose resource is not found, is opened anew before that is believed.
        """
        with self._acquired(spec, deadline) as (feed, fresh):
            begun = self._begun(feed, begin, suits, fresh=fresh)
            if begun is not None:
                yield begun
                return
        with self._acquired(spec, deadline) as (feed, _):
            yield begin(feed)

    @contextmanager
    def _acquired(self, spec: FeedSpec, deadline: Deadline) -> Iterator[tuple[Feed, bool]]:
        feed, fresh = self._feeds.acquire(spec, deadline)
        try:
            yield feed, fresh
        finally:
            self._feeds.release(feed)

    def _begun(
        self, feed: Feed, begin: Callable[[Feed], T], suits: Callable[[Feed], bool], *, fresh: bool
    ) -> T | None:
        """None when the feed is too old to be believed; it is forgotten then."""
        try:
            if fresh or suits(feed):
                return begin(feed)
        except Exception as error:
            if self._fetcher.fault(error).category != ErrorCategory.NOT_FOUND:
                raise
            if fresh:
                self._feeds.forget(feed)
                raise
        self._feeds.forget(feed)
        return None

    def _physical(self, request: ChangeFeedRequest) -> PartitionId | None:
        if not isinstance(request.scope, PhysicalPartition):
            return None
        return decode_partition_id(request.scope.partition_id, self._provider.provider_id, request.address)

    def _envelope(self, position: StartPosition, spec: FeedSpec, scope: str, digest: str) -> Envelope | None:
        """The request's token, checked as far as that goes without the service."""
        if not isinstance(position, FromContinuationToken):
            return None
        envelope = decode_token(position.token)
        ours = self._provider.provider_id
        if envelope.provider_id != ours:
            raise _foreign(f"is of provider {envelope.provider_id!r}, not {ours!r}")
        if envelope.address != spec.address:
            raise _foreign(f"is of {envelope.address}, not of {spec.address}")
        if envelope.scope != scope:
            raise _foreign(f"was made for the scope {envelope.scope!r}, not {scope!r}")
        if envelope.options_digest != digest:
            raise _foreign("was made with provider options that mean other positions")
        return envelope

    def _resume(self, feed: Feed, envelope: Envelope, scope: str, digest: str) -> Session:
        if envelope.incarnation != feed.identity.incarnation:
            raise invalid_request(
                "continuation_token",
                f"is of an earlier {feed.spec.address} that was recreated under the same name",
                "start anew: what the old one held is gone",
            )
        state = state_from_json(envelope.state, feed.join)
        return Session(feed, state, scope, digest, envelope.watermark, envelope.skipped)

    def _start(
        self,
        feed: Feed,
        position: FeedStart,
        physical: PartitionId | None,
        scope: str,
        digest: str,
        deadline: Deadline,
    ) -> Session:
        if isinstance(position, AtTime):
            self._not_ahead(feed, position, deadline)
        only = physical.native if physical else None
        seeds = self._fetcher.call(lambda: feed.start(position, only, deadline), deadline)
        if physical is None:
            return Session(feed, Lineage.from_seeds(seeds, feed.join), scope, digest)
        mine = [Active(seed.partition_id, seed.cursor) for seed in seeds if seed.partition_id == only]
        if not mine:
            raise invalid_request(
                "PhysicalPartition.partition_id",
                "names no partition that can be started there",
                "list the open ones with client.list_physical_partitions(address)",
            )
        return Session(feed, Lineage(mine, feed.join), scope, digest)

    def _not_ahead(self, feed: Feed, position: AtTime, deadline: Deadline) -> None:
        now = self._feeds.now(feed, deadline) or datetime.now(UTC)
        if position.utc - now > _AHEAD:
            raise invalid_request(
                "AtTime.utc",
                f"is {(position.utc - now).total_seconds():.0f} s ahead of the service's clock",
                "pass a moment that has been, or Now()",
            )


def _foreign(problem: str) -> MulticloudDbError:
    return invalid_request(
        "continuation_token", problem, "pass it to the same kind of request that it came from, or start anew"
    )
