"""From a request to an opened feed and the state to go on from."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs

from multiclouddb_api import (
    AtTime,
    ChangeFeedRequest,
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
from multiclouddb_spi.state import FeedState, state_from_json
from multiclouddb_spi.token import Envelope, decode_token, encode_token, scope_text

__all__ = ["FeedCache", "Opening", "Session"]

_MOST_FEEDS: Final = 64
_CLOCK_SECONDS: Final = 60.0
_AHEAD: Final = timedelta(seconds=60)


class FeedCache:
    """Opened feeds by spec, and what the service's clock says; shared by all calls of a client.

    Args:
        provider: Opens feeds.
        fetcher: Runs calls.
        lives: Forgets a closed feed's readers.
    """

    def __init__(self, provider: Provider, fetcher: Fetcher, lives: LiveCache) -> None:
        self._provider, self._fetcher, self._lives = provider, fetcher, lives
        self._feeds: OrderedDict[FeedSpec, Feed] = OrderedDict()
        self._clocks: dict[int, tuple[float, timedelta | None]] = {}
        self._lock = threading.Lock()

    def get(self, spec: FeedSpec, deadline: Deadline) -> Feed:
        """The feed of this spec, opened when it is not."""
        with self._lock:
            feed = self._feeds.get(spec)
            if feed is not None:
                self._feeds.move_to_end(spec)
                return feed
        feed = self._fetcher.call(lambda: self._provider.open_feed(spec, deadline), deadline)
        with self._lock:
            kept = self._feeds.setdefault(spec, feed)
            old = self._feeds.popitem(last=False)[1] if len(self._feeds) > _MOST_FEEDS else None
        for unused in [feed] if kept is not feed else [old] if old else []:
            self._close(unused)
        return kept

    def forget(self, feed: Feed) -> None:
        """Open it anew next time: it may be another resource by then."""
        with self._lock:
            if self._feeds.get(feed.spec) is feed:
                del self._feeds[feed.spec]
        self._close(feed)

    def now(self, feed: Feed, deadline: Deadline) -> datetime | None:
        """The service's time, from an answer at most a minute old; None where it does not tell."""
        asked, offset = self._clocks.get(id(feed), (-_CLOCK_SECONDS, None))
        if time.monotonic() - asked >= _CLOCK_SECONDS:
            told = self._fetcher.call(lambda: feed.clock(deadline), deadline)
            offset = None if told is None else told - datetime.now(UTC)
            self._clocks[id(feed)] = (time.monotonic(), offset)
        return None if offset is None else datetime.now(UTC) + offset

    def close(self) -> None:
        """Close every feed."""
        with self._lock:
            feeds = list(self._feeds.values())
            self._feeds.clear()
        for feed in feeds:
            self._close(feed)

    def _close(self, feed: Feed) -> None:
        self._lives.forget(feed)
        self._clocks.pop(id(feed), None)
        feed.close()


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

    def open(self, request: ChangeFeedRequest, spec: FeedSpec, deadline: Deadline) -> Session:
        """Open a feed and find where to go on.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` for a token or partition id of elsewhere.
            Exception: What the provider raised.
        """
        physical = self._physical(request)
        scope = scope_text(request.scope, physical.native if physical else None)
        digest = spec.options.position_digest() if spec.options is not None else ""
        envelope = self._envelope(request.start_position, spec, scope, digest)
        feed = self._feeds.get(spec, deadline)
        if physical is not None:
            physical.check_incarnation(spec.address, feed.identity.incarnation)
        if envelope is not None:
            return self._resume(feed, envelope, scope, digest)
        assert not isinstance(request.start_position, FromContinuationToken)
        return self._start(feed, request.start_position, physical, scope, digest, deadline)

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
