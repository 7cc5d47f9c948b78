"""From a request to an opened feed and the state to go on from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, TypeVar

from multiclouddb_api import (
    AtTime,
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    PhysicalPartition,
    StartPosition,
    invalid_request,
)
from multiclouddb_spi.checkpoint.coverage import begun
from multiclouddb_spi.checkpoint.entry import Active
from multiclouddb_spi.checkpoint.lineage import Lineage
from multiclouddb_spi.checkpoint.session import Finished, Session
from multiclouddb_spi.checkpoint.state import FeedOver, end_from_json, state_from_json
from multiclouddb_spi.checkpoint.token import Envelope, decode_token, scope_text
from multiclouddb_spi.contract import Feed, FeedSpec, FeedStart, Provider
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.partition import PartitionId, decode_partition_id
from multiclouddb_spi.reading.feeds import FeedCache
from multiclouddb_spi.reading.fetcher import Fetcher

__all__ = ["Opening"]

T = TypeVar("T")
_AHEAD: Final = timedelta(seconds=60)


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
            return (envelope is None or feed.resumes(envelope.incarnation)) and (
                physical is None or physical.is_of(feed.identity.incarnation)
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
        if not feed.resumes(envelope.incarnation):
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
        now = self._feeds.told(feed, deadline) if isinstance(position, Now) else None
        audited = None if physical else begun(feed, position, now)
        seeds = self._fetcher.call(lambda: feed.start(position, only, deadline), deadline)
        if physical is None:
            return Session(feed, Lineage.from_seeds(seeds, feed.join, audited), scope, digest)
        mine = [Active(seed.partition_id, seed.cursor) for seed in seeds if seed.partition_id == only]
        if not mine:
            raise invalid_request(
                "PhysicalPartition.partition_id",
                "names no partition that can be started there",
                "list the open ones with client.list_physical_partitions(address)",
            )
        return Session(feed, Lineage(mine, feed.join), scope, digest)

    def _not_ahead(self, feed: Feed, position: AtTime, deadline: Deadline) -> None:
        now = self._feeds.now(feed, deadline)
        if now is not None and position.utc - now > _AHEAD:  # who tells no time finds out itself
            raise invalid_request(
                "AtTime.utc",
                f"is {(position.utc - now).total_seconds():.0f} s ahead of the service's clock",
                "pass a moment that has been, or Now()",
            )


def _foreign(problem: str) -> MulticloudDbError:
    return invalid_request(
        "continuation_token", problem, "pass it to the same kind of request that it came from, or start anew"
    )
