"""Implements one opened change stream: its starts, its partitions and their readers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

import attrs

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeEvent,
    ErrorCategory,
    ErrorReason,
    LookupAnswer,
    MulticloudDbKey,
    NewItemStateMode,
    Now,
    OldItemStateMode,
)
from multiclouddb_spanner.catalog import ChangeStreamInfo, check_left_out, tables_now
from multiclouddb_spanner.client import CancelScope
from multiclouddb_spanner.errors import PROVIDER_ID, is_broken, is_past
from multiclouddb_spanner.mapping import SpannerView
from multiclouddb_spanner.position import (
    Place,
    compare,
    cursor_of,
    describe,
    first_of,
    micros,
    moment_of,
    ordered,
    place_of,
    reaches,
)
from multiclouddb_spanner.reader import SpannerReader
from multiclouddb_spanner.records import UNTIMED, DataRecord, Item
from multiclouddb_spanner.segment_reader import SegmentReader, look_up_rows
from multiclouddb_spanner.snapshots import Scans, cut, plan_scan
from multiclouddb_spanner.source import ReaderContext
from multiclouddb_spanner.survey import survey_of
from multiclouddb_spanner.values import KEY_TYPES
from multiclouddb_spi import (
    CollectionPart,
    Continue,
    Cursor,
    Deadline,
    Feed,
    FeedIdentity,
    FeedSpec,
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
)

_SECOND: Final = 1_000_000


class SpannerFeed(Feed):
    """A feed that reads the changes of one table, or of all tables, from one change stream."""

    lists_parents = False

    def __init__(self, source: ReaderContext, spec: FeedSpec) -> None:
        self.spec = spec
        self._source = source
        self._scans = Scans(source, spec)
        self.identity = FeedIdentity(PROVIDER_ID, spec.address, self._incarnation(source.info))

    def _incarnation(self, info: ChangeStreamInfo) -> str:
        # The service names no incarnation of a table. One that was created again can be told from the earlier
        # one only by another key.
        name = f"{self._source.client.name}/changeStreams/{info.stream}#{info.key_digest()}"
        # What the stream leaves out is no part of a partition's id, which ends at the "@".
        return name + "".join(f"@{option}" for option in sorted(info.left_out))

    def resumes(self, incarnation: str | None) -> bool:
        """Return True for a token of this stream; refuse one from before the stream left changes out."""
        name, *options = (incarnation or "").split("@")
        same = name == str(self.identity.incarnation).partition("@")[0]
        if same:
            check_left_out(
                attrs.evolve(self._source.info, left_out=frozenset(options)), self._source.info.left_out
            )
        return same

    def clock(self, deadline: Deadline) -> datetime | None:
        return moment_of(self._now(deadline))

    def start(self, position: FeedStart, partition_id: str | None, deadline: Deadline) -> list[Seed]:
        """Return the partitions that are alive at the start; each is read from the start position."""
        now = self._now(deadline)
        at, names = now, None
        try:
            match position:
                case Now():
                    # Every acknowledged change was made at or before this time. Every later change will be
                    # made after this time.
                    place = Place.at(now, now + 1)
                case AtTime(utc):
                    wanted = micros(utc)
                    at = min(now, wanted)
                    # A partition that ends at this time may contain changes that were made at this time, but
                    # the partition is no longer alive then.
                    try:
                        names = self._source.partitions(at - 1, CancelScope(deadline))
                    except Exception as error:
                        if not is_past(error):
                            raise
                    place = Place.at(at if names is None else at - 1, wanted)
                case Beginning():
                    at, names = self._source.oldest(now, CancelScope(deadline))
                    if (first := self._source.first_watched(at, CancelScope(deadline))) > at:
                        at, names = first, None  # the stream existed, but did not watch the table yet
                    place = Place.at(at)
            if names is None:
                names = self._source.partitions(at, CancelScope(deadline))
        except Exception as error:
            raise self._refused(error, at, deadline) or error from error
        seeds = [Seed(name, (), cursor_of(place)) for name in names if partition_id in (None, name)]
        if seeds or partition_id is None:
            return seeds
        # The partition is not alive at the start; it may begin later.
        interval = self._source.interval(partition_id, now, CancelScope(deadline))
        if interval is None:
            raise ProviderFault.of(
                ErrorCategory.INVALID_REQUEST,
                f"partition {partition_id[:12]}… does not belong to change stream "
                f"{self._source.info.stream!r}: it belongs to another one, or to an earlier one that was "
                "recreated under the same name; list the open ones with "
                "client.list_physical_partitions(address)",
                reason=ErrorReason.WRONG_RESOURCE,
            )
        begin = interval[0]
        return (
            [Seed(partition_id, (), cursor_of(Place.at(begin, place.since)))] if begin > place.cut.at else []
        )

    def longest_wait(self) -> float:
        """Return how long a query waits in the service until its window ends; waiting costs nothing."""
        return 5.0

    def open(self, partition_id: str, cursor: Cursor, until: Cursor | None = None) -> Reader:
        spec, view = self.spec, self._view(self.public_id(partition_id))
        return SpannerReader(
            self._source,
            view,
            partition_id,
            place_of(cursor),
            None if until is None else place_of(until),
            require_new=spec.new_item_state_mode is NewItemStateMode.REQUIRE,
            require_old=spec.old_item_state_mode is OldItemStateMode.REQUIRE,
        )

    def open_segment(self, segment: Segment) -> Reader:
        view = self._view(self.public_id(segment.segment_id))
        if bool(segment.collection) == bool(self._source.info.table):
            raise InvalidCursor("it is a segment of another scope")
        if segment.collection:
            view = attrs.evolve(view, address=attrs.evolve(view.address, collection=segment.collection))
        return SegmentReader(self._scans, view, segment)

    def snapshot(self, segments: int | None, deadline: Deadline) -> ScanPlan:
        seeds = self.start(Now(), None, deadline)
        return plan_scan(self._scans, seeds, segments, CancelScope(deadline))

    def segments(
        self, scan: Scan, rest: Cursor, count: int, deadline: Deadline
    ) -> tuple[list[Segment], Cursor | None]:
        return cut(self._scans, scan, rest, count, CancelScope(deadline))

    def lookup(
        self, keys: Sequence[MulticloudDbKey], deadline: Deadline
    ) -> dict[MulticloudDbKey, LookupAnswer]:
        """Return the rows of at most 500 keys with one read."""
        return look_up_rows(self._scans, self._view(""), keys, deadline)

    def _view(self, public_id: str) -> SpannerView:
        spec, info = self.spec, self._source.info
        return SpannerView(
            spec.address,
            public_id,
            info.key_names,
            with_new=spec.new_item_state_mode is not NewItemStateMode.OMIT,
            with_old=spec.old_item_state_mode is not OldItemStateMode.OMIT,
            native=spec.include_native,
            whole=info.whole or not info.table,  # a record of a database says which table it is of
        )

    def survey(
        self,
        asked: Mapping[str, Cursor],
        deadline: Deadline,
        *,
        expired: Collection[str] = frozenset(),
        since: datetime | None = None,
        whole: bool = True,
    ) -> Survey:
        # The heirs of a partition that no longer exists are all partitions that were alive at the oldest time
        # that can be read: together they contain every later change, exactly once.
        now = self._now(deadline)
        if not asked:
            names = self._listed(now, deadline)
            return Survey(tuple(Partition(name, (), PartitionState.OPEN) for name in names))
        bound = 0 if since is None else micros(since)
        try:
            return survey_of(self._source, asked, frozenset(expired), now, bound, CancelScope(deadline))
        except Exception as error:
            raise self._refused(error, now, deadline) or error from error

    def heads(
        self, cursors: Mapping[str, Cursor], max_records: int | None, deadline: Deadline
    ) -> dict[str, Head]:
        """Return the current end of each partition that is alive now."""
        # The service cannot count or limit records. So a head with a limit is found by reading, and without a
        # limit one partition with a change is enough to show that the planner must read.
        if max_records is not None:
            return {}
        now = self._now(deadline)
        alive = set(self._listed(now, deadline))
        heads, found = {}, False
        for name, cursor in cursors.items():
            place = place_of(cursor)
            if name in alive and place.first <= now:
                if self._source.check_watched(place.cut.at, CancelScope(deadline)) is not None:
                    continue  # it can be read only up to lost changes, which is not its end
                found = found or self._has_change(name, place, now, deadline)
                end = cursor_of(Place.at(now + 1, place.since))
                heads[name] = Head(end, None if found else 0, Continue(), Follows.END)
        return heads

    def parts(self, deadline: Deadline) -> dict[str, CollectionPart]:
        """Return the tables that the stream watches; a feed of each has the same partitions and positions."""
        found = tables_now(self._source.client, self._source.info, CancelScope(deadline))
        return {
            name: CollectionPart(self._incarnation(info), _has_key_of(info)) for name, info in found.items()
        }

    def narrowed(self, cursor: Cursor, last: ChangeEvent | None) -> Cursor:
        return cursor

    def reaches(self, place: Sequence[Cursor], other: Sequence[Cursor]) -> bool:
        return reaches(map(place_of, place), map(place_of, other))

    def is_before(self, place: Sequence[Cursor]) -> Callable[[ChangeEvent], bool]:
        first = moment_of(first_of(map(place_of, place)))
        return lambda event: event.timestamp < first

    def headroom(self, cursor: Cursor, now: datetime) -> float | None:
        left = place_of(cursor).first / _SECOND + self._source.kept(micros(now)) - now.timestamp()
        return max(0.0, left)

    def compare(self, a: Cursor, b: Cursor) -> int | None:
        return compare(place_of(a), place_of(b))

    def moment(self, cursor: Cursor) -> int | None:
        """Return the earliest commit time of the changes after a position, in microseconds since 1970."""
        return place_of(cursor).first

    def describe(self, cursor: Cursor) -> Position:
        return describe(place_of(cursor))

    def _now(self, deadline: Deadline) -> int:
        return self._source.client.now(CancelScope(deadline))

    def _listed(self, at: int, deadline: Deadline) -> list[str]:
        try:
            return self._source.partitions(at, CancelScope(deadline))
        except Exception as error:
            raise self._refused(error, at, deadline) or error from error

    def _refused(self, error: Exception, at: int, deadline: Deadline) -> Exception | None:
        return self._source.translated(error, at, CancelScope(deadline))

    def _has_change(self, name: str, place: Place, now: int, deadline: Deadline) -> bool:
        """Return True if there is a change after a position and up to the present time."""

        def is_new(item: Item) -> bool:
            if not isinstance(item, DataRecord):
                return False
            at = max(place.edge.at, place.cut.at) if item.at == UNTIMED else item.at
            mark = (ordered(item.sequence), len(item.mods))
            return at >= place.since and not place.cut.has(at, item.transaction, mark)

        # An answer that is cancelled may already be on its way, so a small window is read first.
        start, length = place.cut.at, max(0, now - place.cut.at)
        for end in dict.fromkeys((start + length // 100, start + length // 10, start + length)):
            try:
                if self._source.has(name, start, end, is_new, CancelScope(deadline)):
                    return True
            except Exception as error:
                if is_broken(error):
                    return True  # it is unknown; a reader requests smaller answers
                raise self._refused(error, start, deadline) or error from error
            start = end + 1
        return False


def _has_key_of(info: ChangeStreamInfo) -> Callable[[ChangeEvent], bool]:
    """Return what is False for a change of another table that had this name, if its key shows that.

    Types of which Python has only one, such as STRING and DATE, are not told apart.
    """
    names, kinds = info.key_names, [KEY_TYPES.get(kind) for kind in info.key_types]

    def has(event: ChangeEvent) -> bool:
        found = event.key.components
        if tuple(found) != names:
            return False
        for value, kind in zip(found.values(), kinds, strict=False):
            if value is not None and kind is not None and type(value) is not kind:
                return False
        return True

    return has
