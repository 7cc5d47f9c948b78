"""Keeps what is known of one consumer of a feed, during its calls and between them.

The token is the truth: it contains all that decides which events come next. A `Consumer` contains the same
state, parsed, and beside it what only saves time: readers with their records and running fetches, when a
partition is worth asking again, how far each was read. So it may be discarded at any moment, and no event is
lost or repeated. A call that has failed leaves a consumer whose state has moved on; the next call parses its
token, and `adopt` takes over what still stands at the positions of the token.
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
from multiclouddb_spi.fetching.readers import Budget, PartitionReader
from multiclouddb_spi.observing import Observing
from multiclouddb_spi.positions import without_hints
from multiclouddb_spi.time_limits import AnswerSize


@define(eq=False, repr=False)
class ConsumedPartition:
    """What a consumer knows of one partition at one position; it does not hold for another position."""

    cursor: Cursor  # after the records that were returned
    reader: PartitionReader | None = None
    not_before: float = 0.0  # the monotonic time before which another request is not useful
    trouble: Exception | None = None  # why the service wants no request before `not_before`
    size: AnswerSize | None = None  # after broken connections, the next answers are smaller


@frozen(eq=False, repr=False)
class Rest:
    """The last page of a consumer that may be returned again.

    Attributes:
        page: The page.
        made_at: The monotonic time at which it was made.
        mark: The change mark of the feed from before the page was read, or None.
        soonest: The monotonic time at which the first partition is worth asking; 0 if a mark decides.
    """

    page: ChangeFeedPage
    made_at: float
    mark: Hashable = None
    soonest: float = 0.0


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
        partitions: What is known of the partitions that were asked. It may contain some that have left the
            lineage or have moved; `at` and `prune` notice them.
        open_readers: The number of readers in `partitions`.
        scan_not_before: The monotonic time before which a scan with a rate reads nothing.
        rest: The last page, if it may be returned again.
        call: The call that uses the consumer at present.
        keys: What `Consumers` finds it by.
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
    partitions: dict[str, ConsumedPartition] = attrs.field(factory=dict)
    open_readers: int = 0
    scan_not_before: float = 0.0
    rest: Rest | None = None
    call: object = None
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

    # -- Partitions

    def at(self, partition_id: str, cursor: Cursor) -> ConsumedPartition:
        """Return what is known of a partition at a position; what belongs to another one is dropped."""
        part = self.partitions.get(partition_id)
        if part is None or not (part.cursor is cursor or part.cursor == cursor):
            if part is not None:
                self.drop_reader(part)
            part = self.partitions[partition_id] = ConsumedPartition(cursor)
        return part

    def known(self, entry: Entry) -> ConsumedPartition | None:
        """Return what is known of a partition that is read, at its position, or None."""
        part = self.partitions.get(entry.partition_id)
        if part is None or not (part.cursor is entry.said[0] or part.cursor == entry.said[0]):
            return None
        return part

    def not_before(self, partition_id: str, part: ConsumedPartition) -> float:
        """Return the monotonic time before which another request to a partition is not useful."""
        state = self.state
        assert isinstance(state, Lineage)
        if (plan := state.plan) is None or plan.rate is None or not state.is_segment(partition_id):
            return part.not_before
        return max(part.not_before, self.scan_not_before)

    def resting(self, entries: Iterable[Entry], now: float) -> dict[str, float]:
        """Return those of the partitions that are not worth asking at `now`, with the time when they are.

        Partitions that the service throttles are not among them: they are asked, so that each page reports
        them.
        """
        found, get = dict[str, float](), self.partitions.get
        for entry in entries:
            name = entry.partition_id
            if (part := get(name)) is not None and part.not_before > now and part.trouble is None:
                cursor = entry.said[0]
                if part.cursor is cursor or part.cursor == cursor:
                    found[name] = part.not_before
        return found

    def reader_of(
        self, partition_id: str, part: ConsumedPartition, budget: Budget, observing: Observing
    ) -> PartitionReader:
        """Return the reader of a partition; it is made if there is none."""
        if part.reader is None:
            made = PartitionReader(self.feed, partition_id, part.cursor, budget, observing)
            if part.size is not None:
                made.size = part.size
            part.reader = made
            self.open_readers += 1
        return part.reader

    def drop_reader(self, part: ConsumedPartition) -> None:
        """Free the reader of a partition, with its records and its running fetch."""
        if (reader := part.reader) is not None:
            reader.discard()  # first, so that an interrupt leaves a reader that is discarded again
            part.size = None if reader.size.is_full else reader.size
            part.reader = None
            self.open_readers -= 1

    def detach(self, part: ConsumedPartition, dropped: deque[PartitionReader]) -> None:
        """Move the reader of a partition to those that are discarded later."""
        if (reader := part.reader) is not None:
            dropped.append(reader)
            part.size = None if reader.size.is_full else reader.size
            part.reader = None
            self.open_readers -= 1

    def prune(self) -> None:
        """Forget the partitions that have left the lineage or were moved by something else than a read."""
        for name, part in list(self.partitions.items()):
            entry = self.state.reading(name) if isinstance(self.state, Lineage) else None
            if entry is None or self.known(entry) is not part:
                self.drop_reader(part)
                del self.partitions[name]

    def adopt(self, other: Consumer) -> None:
        """Take over what another consumer of the same feed knows of the positions of this one.

        The other one must not be used any more.
        """
        self._looks, self._standings = other._looks, other._standings
        self.scan_not_before = other.scan_not_before
        feed = self.feed
        for name, part in other.partitions.items():
            entry = self.state.reading(name) if isinstance(self.state, Lineage) else None
            if entry is None or without_hints(feed, name, part.cursor) != without_hints(
                feed, name, entry.said[0]
            ):
                other.drop_reader(part)
                continue
            part.cursor = entry.said[0]  # they may differ in their hints
            self.partitions[name] = part
            if part.reader is not None:
                part.reader.cursor = part.cursor
                self.open_readers += 1

    def discard(self) -> None:
        """Free all readers, with their records and their running fetches."""
        for part in self.partitions.values():  # an interrupt may have left a wrong `open_readers`
            self.drop_reader(part)

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
