"""The change feed of one container, of one range of its keys, or of one partition key."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from datetime import datetime

import attrs

from multiclouddb_api import (
    AtTime,
    Beginning,
    ErrorCategory,
    LookupAnswer,
    MulticloudDbKey,
    Now,
    invalid_request,
)
from multiclouddb_cosmos.config import MODES
from multiclouddb_cosmos.errors import PROVIDER_ID
from multiclouddb_cosmos.position import KeyRange, Place, compare, cursor_of, place_of, range_of
from multiclouddb_cosmos.ranges import Resolution, oldest_place, stated
from multiclouddb_cosmos.reader import CosmosReader
from multiclouddb_cosmos.records import ROW
from multiclouddb_cosmos.snapshots import ScanReader, cut_segments, look_up_items, plan_scan
from multiclouddb_cosmos.source import ReaderContext
from multiclouddb_spi import (
    Continue,
    Cursor,
    Deadline,
    Feed,
    FeedIdentity,
    FeedStart,
    Follows,
    Head,
    InvalidCursor,
    Partition,
    PartitionState,
    Position,
    ProviderFault,
    Reader,
    Scan,
    ScanPlan,
    Seed,
    Segment,
    Survey,
    unsupported,
)


class CosmosFeed(Feed):
    """What the feed with all versions and deletes shares with the feed of latest versions."""

    def __init__(self, source: ReaderContext) -> None:
        self.spec = source.spec
        self.identity = FeedIdentity(PROVIDER_ID, self.spec.address, source.definition.incarnation)
        self._source = source
        self._learned: Resolution | None = None

    def for_one_call(self) -> CosmosFeed:
        """Return a copy of the feed for one call."""
        # If the copy must resolve a start again, the new attempt uses the results of the earlier attempts.
        feed = copy(self)
        feed._learned = Resolution(self._source)
        return feed

    def clock(self, deadline: Deadline) -> datetime | None:
        """Return the `Date` of the service's last answer plus the time since then."""
        self._source.renew(deadline)
        return self._source.calls.now()

    def visible_after(self) -> float:
        """Return ten seconds, and in an account with several write regions a minute more."""
        return 10.0 + self._source.late

    def start(self, position: FeedStart, partition_id: str | None, deadline: Deadline) -> list[Seed]:
        """Return one seed for each range, at the current end of the range."""
        if not isinstance(position, Now):  # the engine calls `backfill` for all other starts
            raise unsupported(f"{type(position).__name__} cannot be resolved", "start at Now()")
        wanted = self._wanted(partition_id, deadline)
        found = (self._learned or Resolution(self._source)).at_now(wanted, deadline)
        return [Seed(each.partition_id, (), cursor_of(found[each])) for each in sorted(found)]

    def _wanted(self, partition_id: str | None, deadline: Deadline) -> list[KeyRange]:
        source = self._source
        source.check_same(deadline)
        wanted = source.current_pieces()
        if partition_id is None:
            return wanted
        one = range_of(partition_id)
        return [] if one is None or len(source.ranges().cut(one)) != 1 else [one]

    def survey(
        self,
        asked: Mapping[str, Cursor],
        deadline: Deadline,
        *,
        expired: Collection[str] = frozenset(),
        since: datetime | None = None,
        whole: bool = True,
    ) -> Survey:
        """State what has become of the asked ranges; without any, list the ranges of the partitions."""
        del whole
        source = self._source
        if not asked:
            source.check_same(deadline)
            spans_now = source.current_pieces()  # ranges that were split are not listed
            return Survey(tuple(Partition(each.partition_id, (), PartitionState.OPEN) for each in spans_now))
        current = source.current()
        spans = {name: span for name in asked if (span := range_of(name)) is not None}
        lost = [span for name, span in spans.items() if name in expired]
        found = Resolution(source).each(lost, lambda each: oldest_place(source, each, since, deadline))
        kept = {span: current.cut(span) for name, span in spans.items() if name not in expired}
        return stated(kept, lost, found)

    def open(self, partition_id: str, cursor: Cursor, until: Cursor | None = None) -> Reader:
        """Open a reader of one range."""
        place, bound = self._place(cursor), None if until is None else self._place(until)
        if (span := range_of(partition_id)) is None:
            raise InvalidCursor("it names no range of keys")
        return CosmosReader(self._source, self.public_id, span, place, bound)

    def open_segment(self, segment: Segment) -> Reader:
        """Open a reader of one segment of a scan."""
        view = attrs.evolve(self._source.view(self.public_id(segment.segment_id)), usual=ROW)
        return ScanReader(self._source, view, segment)

    def heads(
        self, cursors: Mapping[str, Cursor], max_records: int | None, deadline: Deadline
    ) -> dict[str, Head]:
        """Return the end of each range, without a limit on the number of records."""
        if max_records is not None:
            return {}
        spans = {name: range_of(name) for name in cursors}
        whole = {
            name: span
            for name, span in spans.items()
            if span is not None and len(self._source.ranges().cut(span)) == 1
        }
        found = Resolution(self._source).at_now(list(whole.values()), deadline)
        heads, ahead = {}, {}
        for name, span in whole.items():
            here = self._place(cursors[name])
            if span in found and span not in self._source.behind and found[span].lsn >= here.etag:
                end = found[span]
                if here.past is not None and here.past > (end.seconds or 0):
                    end = attrs.evolve(end, seconds=None, past=here.past)  # the start lies ahead
                later = end if compare(end, here) > 0 else here
                records = None if later is end else 0
                heads[name] = Head(cursor_of(later), records, Continue(), Follows.END)
                if later is end and not self._source.is_latest:
                    ahead[span] = here
        lost = ahead.keys() - self._kept(ahead, deadline)
        return {name: head for name, head in heads.items() if whole[name] not in lost}

    def _kept(self, places: Mapping[KeyRange, Place], deadline: Deadline) -> set[KeyRange]:
        """Return the ranges whose positions have not expired, which the end of a range does not show."""

        def is_kept(span: KeyRange) -> bool:
            try:
                self._source.read(span, places[span].etag, 1, deadline)
            except ProviderFault as error:
                if error.fault.category is not ErrorCategory.CHECKPOINT_EXPIRED:
                    raise
                return False
            return True

        found = Resolution(self._source).each(list(places), lambda span: span in places and is_kept(span))
        return {span for span, kept in found.items() if kept}

    def snapshot(self, segments: int | None, deadline: Deadline) -> ScanPlan:
        """Plan a scan with one segment for each range. The parameter `segments` has no effect."""
        return plan_scan(self.start(Now(), None, deadline), None, self._source.late)

    def segments(
        self, scan: Scan, rest: Cursor, count: int, deadline: Deadline
    ) -> tuple[list[Segment], Cursor | None]:
        """Return the next ranges from the plan of a scan, without sending a request."""
        return cut_segments(scan, rest, count)

    def lookup(
        self, keys: Sequence[MulticloudDbKey], deadline: Deadline
    ) -> dict[MulticloudDbKey, LookupAnswer]:
        """Return the items of at most 100 keys, with one point read for each."""
        return look_up_items(self._source, keys, deadline)

    def compare(self, a: Cursor, b: Cursor) -> int | None:
        """Compare the LSNs of two positions."""
        # If the LSNs are equal, compare the positions in the library's own order.
        return compare(self._place(a), self._place(b))

    def describe(self, cursor: Cursor) -> Position:
        """Return the LSN of a position, and a lower limit on the times of the records after it."""
        place = self._place(cursor)
        inside = "" if place.inner is None else ", inside a transaction"
        return Position(f"LSN {place.lsn}{inside}", self._source.since(place.since))

    def _place(self, cursor: Cursor) -> Place:
        """Return the place of a cursor; refuse a cursor of the other mode."""
        place = place_of(cursor)
        if (place.past is not None) == self._source.is_latest:
            return place
        theirs = MODES[place.past is not None]
        raise invalid_request(
            "continuation_token",
            f"was made with mode={theirs!r}, and the feed has mode={self._source.options.mode!r}",
            "set the mode with which it was made, or start again",
        )


class AllVersionsFeed(CosmosFeed):
    """The feed with all versions and deletes; a scan comes before a start in the past."""

    def backfill(
        self, position: Beginning | AtTime, partition_id: str | None, deadline: Deadline
    ) -> ScanPlan | None:
        """Plan the scan for `Beginning()` or `AtTime(…)`, or return None if the range does not exist."""
        since = position.utc if isinstance(position, AtTime) else None
        seeds = self.start(Now(), partition_id, deadline)
        return plan_scan(seeds, since, self._source.late) if seeds else None


class LatestFeed(CosmosFeed):
    """The feed of latest versions, which can start at every position, and whose positions never expire."""

    def start(self, position: FeedStart, partition_id: str | None, deadline: Deadline) -> list[Seed]:
        """Return one seed for each range."""
        if isinstance(position, Now):
            return super().start(position, partition_id, deadline)
        source = self._source
        wanted = self._wanted(partition_id, deadline)
        if isinstance(position, Beginning):
            found = {each: Place(0, None, None, 0) for each in wanted}
        else:
            since = max(0, int(position.utc.timestamp()))
            found = (self._learned or Resolution(source)).at_time(wanted, since, deadline)
        return [Seed(each.partition_id, (), cursor_of(found[each])) for each in sorted(found)]
