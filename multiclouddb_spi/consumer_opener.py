"""Opens the feed for a request, and determines the state from which to continue."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Final

from attrs import frozen

from multiclouddb_api import (
    ChangeFeedRequest,
    ErrorReason,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    PhysicalPartition,
    ResourceAddress,
    Snapshot,
    invalid_request,
)
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import (
    EndedFeed,
    FeedOver,
    Retired,
    end_from_json,
    resolve_start,
    state_from_json,
)
from multiclouddb_spi.continuation.token import Envelope, decode_token, scope_text
from multiclouddb_spi.contract import Feed, FeedSpec, FeedStart, Provider
from multiclouddb_spi.cursor import InvalidCursor
from multiclouddb_spi.faults import START_ANEW
from multiclouddb_spi.fetching.consumer import Consumer
from multiclouddb_spi.fetching.consumers import Consumers
from multiclouddb_spi.fetching.fetcher import Fetcher
from multiclouddb_spi.open_feed import FeedCache, OpenFeed, recreated
from multiclouddb_spi.partition import PartitionId, decode_partition_id
from multiclouddb_spi.scan.contract import SupportsBackfill
from multiclouddb_spi.time_limits import Deadline


@frozen
class _Scope:
    """What a request reads.

    Attributes:
        text: The scope as a token keeps it.
        digest: The digest of the options that change positions.
        partition: The physical partition, if the request names one.
        is_alone: True if nothing that descends from this partition is read.
    """

    text: str
    digest: str
    partition: PartitionId | None = None
    is_alone: bool = False


class ConsumerOpener:
    """Finds or makes the consumer of a request, beginning with the cheapest checks of its token and ids."""

    def __init__(self, provider: Provider, feeds: FeedCache, fetcher: Fetcher, consumers: Consumers) -> None:
        self._provider, self._feeds, self._fetcher, self._consumers = provider, feeds, fetcher, consumers

    @contextmanager
    def open(
        self, request: ChangeFeedRequest, spec: FeedSpec, deadline: Deadline, *, keeps: bool = False
    ) -> Iterator[Consumer | EndedFeed]:
        """Open a feed for the duration of a call, and determine the state from which to continue.

        With `keeps`, the consumer that an earlier call has left is used; the caller gives it back.
        """
        scope = self._scope(request, spec)
        position = request.start_position
        token = position.token if isinstance(position, FromContinuationToken) else None
        kept = self._consumers.take(key_of(request, spec), spec, scope.text) if keeps else None
        is_used = False
        try:
            envelope: Envelope | None = None
            made_by: tuple[str | None, str, str] | None = None
            if token is not None and kept is not None and kept.token == token:
                made_by = (kept.incarnation, "continuation_token", _RECREATED)
            elif token is not None:
                envelope = self._decoded(token, spec, scope)
                made_by = (envelope.incarnation, "continuation_token", _RECREATED)
                over = end_from_json(envelope.state)
                if isinstance(over, FeedOver):
                    if kept is not None:
                        self._consumers.release(kept)
                    is_used = True
                    yield EndedFeed(token, over, envelope.skipped)
                    return

            def begin(feed: Feed) -> Consumer:
                if kept is not None and kept.feed is feed and token is not None and kept.token == token:
                    return kept
                if token is None:
                    made = self._started(opened, request, scope, deadline)
                else:
                    made = _continued(feed, token, envelope or decode_token(token), scope)
                if kept is not None and kept.feed is feed:
                    made.adopt(kept)
                return made

            def check(feed: Feed) -> None:
                assert scope.partition is not None
                scope.partition.check_incarnation(spec.address, feed.identity.incarnation)

            limits = (self._provider, spec, self._fetcher.call, deadline, self._feeds)
            with closing(OpenFeed(*limits)) as opened:
                consumer = opened.use(begin, None if scope.partition is None else check, made_by)
                if kept is not None and kept.feed is not consumer.feed:
                    self._consumers.discard(kept)
                if keeps and kept is not consumer:
                    self._consumers.use(consumer, instead=kept)
                is_used = True
                yield consumer
        except Exception:
            if kept is not None and not is_used:
                self._consumers.release(kept)
            raise

    def _scope(self, request: ChangeFeedRequest, spec: FeedSpec) -> _Scope:
        digest = spec.options.position_digest() if spec.options is not None else ""
        scope = request.scope
        if not isinstance(scope, PhysicalPartition):
            return _Scope(scope_text(scope, None), digest)
        partition = decode_partition_id(scope.partition_id, self._provider.provider_id, spec.address)
        text = scope_text(scope, partition.native)
        return _Scope(text, digest, partition, is_alone=not scope.with_descendants)

    def _decoded(self, token: str, spec: FeedSpec, scope: _Scope) -> Envelope:
        """Return the content of a token, after the checks against the request that need no call."""
        envelope = decode_token(token)
        where = self._provider.full_address(envelope.address)
        made_for = (envelope.provider_id, where, envelope.scope, envelope.options_digest)
        if made_for != (self._provider.provider_id, spec.address, scope.text, scope.digest):
            raise _foreign_token(envelope, where, self._provider.provider_id, spec, scope.text)
        return envelope

    def _started(
        self, opened: OpenFeed, request: ChangeFeedRequest, scope: _Scope, deadline: Deadline
    ) -> Consumer:
        """Make the consumer of a start position."""
        feed, position = opened.feed, request.start_position
        assert not isinstance(position, FromContinuationToken)
        if isinstance(position, Snapshot):
            return Consumer(feed, self.snapshot(feed, position, deadline), scope.text, scope.digest)
        only = None if scope.partition is None else scope.partition.native
        lineage = self._start(opened, feed, position, only, deadline)
        return Consumer(feed, lineage, scope.text, scope.digest)

    def feed(self, spec: FeedSpec, deadline: Deadline) -> OpenFeed:
        """Open a feed for the duration of a call; the caller must close it."""
        return OpenFeed(self._provider, spec, self._fetcher.call, deadline, self._feeds)

    def recreated(self, feed: Feed, deadline: Deadline) -> MulticloudDbError | None:
        """Return the error for the token of a feed whose resource was deleted and created again."""
        if (incarnation := feed.identity.incarnation) is None:
            return None
        self._feeds.forget(feed)
        with closing(self.feed(feed.spec, deadline)) as opened:
            try:
                resumes = opened.feed.resumes(incarnation)
            except Exception:  # noqa: BLE001 - the service does not answer: the feed has just ended
                return None
        return None if resumes else recreated(feed, "continuation_token", _RECREATED)

    def snapshot(self, feed: Feed, wanted: Snapshot, deadline: Deadline) -> Lineage:
        """Start a snapshot."""
        from multiclouddb_spi.scan.start import resolve_snapshot

        clock = partial(self._feeds.asked_now, feed, deadline)
        return resolve_snapshot(feed, feed.for_one_call(), wanted, clock, self._fetcher.call, deadline)

    def _start(
        self, opened: OpenFeed, feed: Feed, position: FeedStart, only: str | None, deadline: Deadline
    ) -> Lineage:
        clock = self._feeds.asked_now if isinstance(position, Now) else self._feeds.now
        asked = feed.for_one_call()
        if isinstance(asked, SupportsBackfill) and not isinstance(position, Now):
            from multiclouddb_spi.scan.start import resolve_backfill

            return resolve_backfill(
                feed,
                position,
                lambda: self._feeds.asked_now(feed, deadline),
                lambda: opened.call("start", lambda until: asked.backfill(position, only, until)),
                only=only,
            )
        return resolve_start(
            feed,
            position,
            lambda: clock(feed, deadline),
            lambda: opened.call("start", lambda until: asked.start(position, only, until)),
            only=only,
        )


def _continued(feed: Feed, token: str, envelope: Envelope, scope: _Scope) -> Consumer:
    """Make the consumer of a token from its content."""
    state = state_from_json(envelope.state, feed)
    if (partition := scope.partition) is not None:
        held = {state.partition_id} if isinstance(state, Retired) else set[str]()
        if isinstance(state, Lineage):
            state.root = partition.native
            held = {each.partition_id for each in state.listed()} if scope.is_alone else held
        if not held <= {partition.native}:
            raise InvalidCursor("it contains another partition than the one that is read")
    return Consumer(
        feed, state, scope.text, scope.digest, envelope.watermark, envelope.skipped, envelope.read_until,
        None if envelope.fresh else token,
    )  # fmt: skip


def key_of(request: ChangeFeedRequest, spec: FeedSpec) -> Hashable:
    """Return the key of the consumer that continues from the start position of a request."""
    position = request.start_position
    if isinstance(position, FromContinuationToken):
        return position.token
    return spec, request.scope, position


_RECREATED: Final = f"the changes of the old resource are gone; {START_ANEW}"


def _foreign_token(
    envelope: Envelope, where: ResourceAddress, ours: str, spec: FeedSpec, scope: str
) -> MulticloudDbError:
    theirs, way_out = envelope.scope, "pass it to the same kind of request that it came from, or start again"
    reason = ErrorReason.WRONG_SCOPE
    (kind, _, one), (_, _, other) = theirs.partition(":"), scope.partition(":")
    if envelope.provider_id != ours:
        problem = f"belongs to provider {envelope.provider_id!r}, not to {ours!r}"
        reason = ErrorReason.WRONG_PROVIDER
    elif where != spec.address:
        problem = f"belongs to {envelope.address}, not to {spec.address}"
        reason = ErrorReason.WRONG_RESOURCE
    elif theirs == scope:
        reason = ErrorReason.WRONG_OPTIONS
        made_with = asked = "other provider options"
        if spec.options is not None:
            made_with = spec.options.describe_digest(envelope.options_digest)
            asked = spec.options.describe_digest(spec.options.position_digest())
        problem = (
            f"was made with {made_with}, and the request has {asked}, which changes the meaning of a position"
        )
    elif one and one == other and {theirs, scope} == {f"partition:{one}", f"descendants:{one}"}:
        is_of_all = kind == "descendants"
        problem = f"was made for the partition {one} {'with' if is_of_all else 'without'} its descendants"
        way_out = f"pass it with PhysicalPartition(…, with_descendants={is_of_all}), or start again"
    else:
        problem = f"was made for the scope {theirs!r}, not {scope!r}"
    return invalid_request("continuation_token", problem, way_out, reason)
