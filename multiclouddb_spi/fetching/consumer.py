"""Keeps what is known of one consumer of a feed, during its calls and between them.

The token is the truth: it contains all that decides which events come next. A `Consumer` contains the same
state, parsed, and beside it what only saves time: streams with their records, readers and running fetches,
when each is due, how far each was read. So it may be discarded at any moment, and no event is lost or
repeated. A call that has failed leaves a consumer whose state has moved on; the next call parses its token,
and `adopt` takes over what still stands at the token's positions.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Iterable

import attrs
from attrs import define, frozen

from multiclouddb_api import ChangeFeedPage, PhysicalPartition
from multiclouddb_spi.batch import Child
from multiclouddb_spi.continuation.entry import AnyEntry, Entry
from multiclouddb_spi.continuation.follow import Looks
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import FeedState
from multiclouddb_spi.continuation.token import Envelope, ReadUntil, encode_token, scope_text
from multiclouddb_spi.continuation.watermark import Standings
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.fetching.stream import Budget, Pace, Stream
from multiclouddb_spi.observing import Observing
from multiclouddb_spi.positions import without_hints


@frozen(eq=False, repr=False)
class LastPage:
    """The last page of a consumer that may be returned again.

    Attributes:
        page: The page.
        made_at: The monotonic time at which it was made.
        mark: The change mark of the feed from before the page was read, or None.
        due_at: The monotonic time at which the first partition is worth asking; 0 if a mark decides.
    """

    page: ChangeFeedPage
    made_at: float
    mark: Hashable = None
    due_at: float = 0.0


@define(eq=False, repr=False)
class Consumer:
    """One chain of pages: each call continues from the token of the call before it. Not thread-safe.

    Attributes:
        feed: The opened feed.
        state: The lineage that a call changes, or the way in which the feed ended.
        scope: The scope in the form that tokens store.
        digest: The digest of the options that change positions.
        watermark: The highest watermark reported so far, in µs since 1970, or None.
        skipped: Undecodable records that the request's token skips.
        read_until: The moment before which every change has been returned, or None.
        resumed_from: The request's token, or None as long as no event was delivered.
        incarnation: The incarnation of the resource in the last token.
        token: The token that contains this state; None during a call, and after a call that has failed.
        streams: What is known of the partitions that were asked. It may contain some that have left the
            lineage or have moved; `at` and `prune` notice them.
        open_streams: The number of `streams` that were asked since they were made, so that they may have a
            reader.
        pace: How fast the segments of its scan are read, if the scan has a rate.
        last_page: The last page, if it may be returned again.
        keys: What `Consumers` finds it by, or has found it by while a call uses it.
        used_at: The monotonic time at which the last call has ended.
    """

    feed: Feed
    state: FeedState
    scope: str
    digest: str
    watermark: int | None = None
    skipped: tuple[tuple[str, str], ...] = ()
    read_until: ReadUntil | None = None
    resumed_from: str | None = None
    incarnation: str | None = None
    token: str | None = None
    streams: dict[str, Stream] = attrs.field(factory=dict)
    open_streams: int = 0
    pace: Pace | None = None
    last_page: LastPage | None = None
    keys: tuple[Hashable, ...] = ()
    used_at: float = 0.0
    _looks: Looks | None = None
    _standings: Standings | None = None

    @property
    def looks(self) -> Looks:
        """When more children of ended partitions were last looked for."""
        if self._looks is None:
            self._looks = Looks()
        return self._looks

    @property
    def standings(self) -> Standings:
        """How far each partition was read."""
        if self._standings is None:
            self._standings = Standings()
        return self._standings

    # -- Streams

    def at(self, partition_id: str, cursor: Cursor, budget: Budget, observing: Observing) -> Stream:
        """Return the stream of a partition at a position; one at another position is dropped."""
        stream = self.streams.get(partition_id)
        if stream is None or not (stream.cursor is cursor or stream.cursor == cursor):
            if stream is not None:
                self.drop(stream)
            pace, state = self.pace, self.state
            if pace is not None and not (isinstance(state, Lineage) and state.is_segment(partition_id)):
                pace = None
            stream = Stream(self.feed, partition_id, cursor, budget, observing, pace)
            self.streams[partition_id] = stream
        return stream

    def not_due(self, entries: Iterable[Entry], now: float) -> dict[str, float]:
        """Return those of the partitions that are not worth asking at `now`, with the time when they are.

        Partitions that the service throttles are not among them: they are asked, so that each page reports
        them.
        """
        found, get = dict[str, float](), self.streams.get
        for entry in entries:
            name = entry.partition_id
            if (stream := get(name)) is not None and stream.due_at > now and stream.error is None:
                cursor = entry.said[0]
                if stream.cursor is cursor or stream.cursor == cursor:
                    found[name] = stream.due_at
        return found

    def drop(self, stream: Stream) -> Stream:
        """Free the records, the running fetch and the reader of a stream; return what takes its place."""
        stream.discard()
        return self._replace(stream)

    def detach(self, stream: Stream, dropped: deque[Stream]) -> None:
        """Move a stream to those that are discarded later; another one takes its place."""
        dropped.append(stream)
        self._replace(stream)

    def detach_all(self, dropped: deque[Stream]) -> None:
        """Move all streams to those that are discarded later."""
        dropped.extend(self.streams.values())
        self.streams, self.open_streams = {}, 0

    def _replace(self, stream: Stream) -> Stream:
        if stream.asked_at:
            self.open_streams -= 1
        left = self.streams[stream.partition_id] = Stream(
            stream.feed, stream.partition_id, stream.cursor, stream.budget, stream.observing,
            stream.pace, due_at=stream.due_at,
        )  # fmt: skip
        left.size = stream.size  # a slow link would be tried with full answers again
        if left.due_at:
            left.error = stream.error
        return left

    def forget(self, stream: Stream) -> None:
        """Free a stream, of which nothing is known any more."""
        self.drop(stream)
        del self.streams[stream.partition_id]

    def prune(self) -> None:
        """Forget the partitions that have left the lineage or were moved by something else than a read."""
        for name, stream in list(self.streams.items()):
            entry = self.state.reading(name) if isinstance(self.state, Lineage) else None
            if entry is None or not (stream.cursor is entry.said[0] or stream.cursor == entry.said[0]):
                self.forget(stream)

    def adopt(self, other: Consumer) -> None:
        """Take over what another consumer of the same feed knows of the positions of this one.

        The other one must not be used any more.
        """
        self._looks, self._standings = other._looks, other._standings
        self.pace = other.pace
        feed = self.feed
        for name, stream in other.streams.items():
            entry = self.state.reading(name) if isinstance(self.state, Lineage) else None
            if entry is None or without_hints(feed, name, stream.cursor) != without_hints(
                feed, name, entry.said[0]
            ):
                stream.discard()
                continue
            stream.cursor = entry.said[0]  # they may differ in their hints
            self.streams[name] = stream
            if stream.asked_at:
                self.open_streams += 1
            else:
                stream.position = stream.cursor

    def discard(self) -> None:
        """Free all streams, with their records and their running fetches."""
        for stream in self.streams.values():
            stream.discard()
        self.streams, self.open_streams = {}, 0

    def is_searching(self) -> bool:
        """Return whether it searches for children, whose looks count only for a client that has waited."""
        return not isinstance(self.state, Lineage) or bool(self.state.ends())

    # -- Tokens

    def envelope(
        self,
        state: Cursor,
        *,
        scope: str | None = None,
        watermark: int | None = None,
        read_until: ReadUntil | None = None,
        skipped: tuple[tuple[str, str], ...] = (),
        delivers: bool = False,
    ) -> Envelope:
        """Return the content of a token for this feed; `encode_token` converts it to the token.

        Args:
            state: The state.
            scope: The scope, if it is not that of the consumer.
            watermark: The highest watermark.
            read_until: The moment before which every change has been returned.
            skipped: Undecodable records that the token skips.
            delivers: True if the page of the token has events.
        """
        identity = self.feed.identity
        return Envelope(
            identity.provider_id, identity.address, identity.incarnation, scope or self.scope, self.digest,
            state, int(time.time()), watermark=watermark, read_until=read_until, skipped=skipped,
            fresh=self.resumed_from is None and not delivers,
        )  # fmt: skip

    def advance(self, token: str, envelope: Envelope) -> None:
        """Record that the state is that of a token which was just written."""
        self.token, self.incarnation = token, envelope.incarnation
        self.watermark, self.read_until = envelope.watermark, envelope.read_until
        self.skipped = envelope.skipped
        self.resumed_from = None if envelope.fresh else token

    def alone(self, entry: AnyEntry) -> Lineage:
        """Return a lineage that contains only one partition."""
        return Lineage([entry], self.feed)

    def partition_token(
        self, partition_id: str, lineage: Lineage, *, with_descendants: bool = False, delivers: bool = False
    ) -> str:
        """Make a token for one physical partition of this feed, with its skipped records."""
        public_id = self.feed.public_id(partition_id)
        skipped = tuple(item for item in self.skipped if item[0] == public_id)
        scope = PhysicalPartition(public_id, with_descendants=with_descendants)
        scoped = scope_text(scope, partition_id)
        envelope = self.envelope(lineage.to_json(), scope=scoped, skipped=skipped, delivers=delivers)
        return encode_token(envelope)

    def child_token(self, child: Child, *, delivers: bool) -> str:
        """Make a token for a child partition, at the start position that the parent gave."""
        alone = self.alone(Entry.read(child.partition_id, child.cursor))
        return self.partition_token(child.partition_id, alone, delivers=delivers)
