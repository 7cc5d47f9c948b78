"""Plans bounded reads: each step advances a lineage and reads a limited number of records.

The plan of a step is the difference between two lineages (`ranges_between`), so both can be stored, and any
process can repeat the step with the same result. A step never reads a child together with its parent, because
its ranges may be read in any order. Nor does it read a partition that becomes active during the step, because
the lineage before the step does not contain it.

No method changes its arguments, so each method can be called again. The planner sends each request through
the function `call`, which may retry. Otherwise, one failed request would repeat all requests of the plan, and
a plan of many could fail each time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from typing import Any, Final

import attrs
from attrs import frozen

from multiclouddb_api import (
    AtTime,
    ClientConfig,
    ErrorCategory,
    Fail,
    Gap,
    Notice,
    OnExpired,
    PartitionFoundLate,
    SkipToOldest,
    Snapshot,
    invalid_request,
)
from multiclouddb_spi.abilities import Follows, Freshness, Head
from multiclouddb_spi.batch import Continue, Ended
from multiclouddb_spi.continuation.entry import Entry, Stage
from multiclouddb_spi.continuation.follow import Follow, Found, apply_end, is_search_due
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import check_has_partitions, check_not_ahead, resolve_start
from multiclouddb_spi.contract import Feed, FeedStart, Provider
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.errors import fault_of
from multiclouddb_spi.faults import ProviderFault, RecordFault
from multiclouddb_spi.fetching.consumer import Consumer
from multiclouddb_spi.fetching.fetcher import ReadContext
from multiclouddb_spi.observing import Observing
from multiclouddb_spi.planning.heads import Heads
from multiclouddb_spi.planning.pieces import Piece
from multiclouddb_spi.planning.ranges import Range
from multiclouddb_spi.planning.target import Target, within
from multiclouddb_spi.retry import Call, directly
from multiclouddb_spi.scan.start import resolve_snapshot
from multiclouddb_spi.scan.step import scan_beside, scan_step, stream_limit
from multiclouddb_spi.time_limits import Deadline

_BYTES: Final = 1 << 20


@frozen
class Step:
    """One planned step.

    Attributes:
        before: The lineage before this step.
        after: The lineage after all ranges of the step are read.
        ends: Maps each partition that ended in this step to the position of its end; `after` no longer
            contains them.
        empty: True if only positions have moved, without any records.
        found_late: Partitions that were found late; the next step reads them.
        news: Partitions that end in this step, and partitions that have or may have records in this
            step. In all other partitions, only the positions have moved.
        records: The number of records in this step, or None if the service does not report it.
        skipped: The parts that were left out because they are older than the retention, as readable text with
            partition and position.
        answers: What the answer of each partition shows about the moment up to which `after` has read it.
        notices: The notices in the ranges of the step, and those of partitions that end. If a feed finds
            heads without reading, there may be further notices, which only `read_range` finds.
        left: The partitions of `after` that may have records behind this step, up to the target: all but
            those whose answer shows that nothing follows.
        read: The records of some ranges of the step, by partition: all records of the range, without notices.
            They are there only if the planner has read them, and was asked to keep them.
    """

    before: Lineage
    after: Lineage
    ends: Mapping[str, Cursor]
    empty: bool = False
    found_late: tuple[PartitionFoundLate, ...] = ()
    news: frozenset[str] = frozenset()
    records: int | None = 0
    skipped: tuple[str, ...] = ()
    answers: Mapping[str, Freshness] = attrs.field(factory=dict)
    notices: tuple[Notice, ...] = ()
    left: frozenset[str] = frozenset()
    read: Mapping[str, tuple[Piece, ...]] = attrs.field(factory=dict)

    @property
    def is_end(self) -> bool:
        """True if by the service's answers nothing follows this step, and no partition waits."""
        names = {entry.partition_id for entry in self.after.active()}
        return not self.left and (self.after.is_quiet(names) or self.after.is_over())

    @property
    def moved(self) -> bool:
        """False if no position has moved, even if there was a search for children or an audit."""
        return not self.after.stands_like(self.before)

    def ranges(self) -> list[Range]:
        """The ranges to read in this step, in any order."""
        return [] if self.empty else ranges_between(self.before, self.after, self.ends)


def ranges_between(before: Lineage, after: Lineage, ends: Mapping[str, Cursor]) -> list[Range]:
    """Return the ranges between two lineages of one feed, without I/O.

    Args:
        before: The lineage at which the ranges begin, `Step.before`.
        after: The lineage at which the ranges end, `Step.after`.
        ends: The end positions of the partitions that end between the two lineages, `Step.ends`.
    """
    until = {**ends}
    until.update(
        {
            entry.partition_id: entry.cursor
            for entry in after
            if not (isinstance(entry, Entry) and (entry.stage is Stage.WAIT or not entry.said))
        }
    )
    parts = [
        Range(entry.partition_id, entry.cursor, until.get(entry.partition_id))
        for entry in before.active()
        # A partition that has left without an end was lost; a segment leaves when it is read to its end.
        if entry.partition_id in until or not entry.listed
    ]
    return [part for part in parts if part.until != part.start]


_AUDIT_SECONDS: Final = 10.0
_KEY: Final = "planner"
_log = logging.getLogger("multiclouddb.planner")


class Planner:
    """Plans the reads of one feed; one thread uses it.

    Args:
        provider: Classifies failures.
        feed: The opened feed; if it implements `SupportsHeads`, planning reads few or no records.
        on_expired: `SkipToOldest()` to continue planning after records that were lost because they were older
            than the retention.
        context: The threads, and what is kept between two steps: readers with records and with the walk
            through empty answers, and when the client last looked for more children of an ended partition.
            Pass the same object to all planners of one client, because otherwise a partition may have to be
            read again from its position, and no search for children ever ends. None to make an object of its
            own, which `close` ends.
        call: The function that sends requests to the service, except those for records; for example
            `Tries.call`. Several threads call it at once; it must not need a thread of `context` itself.
        audit_seconds: How often the coverage of a collection is audited; that of the context by default.
        skip_poison: True to continue planning after a record that cannot be fetched. The step then includes
            the record, so the range that contains it is read.
        keep_bytes: About how many bytes of records that were read a step may keep in `Step.read`.
    """

    def __init__(
        self,
        provider: Provider,
        feed: Feed,
        on_expired: OnExpired | None = None,
        *,
        context: ReadContext | None = None,
        call: Call = directly,
        audit_seconds: float | None = None,
        skip_poison: bool = False,
        keep_bytes: int = 0,
    ) -> None:
        self._provider, self._feed, self._asked = provider, feed, feed.for_one_call()
        self._keep_bytes = keep_bytes
        self._skip_poison = skip_poison
        self._on_expired, self._call = on_expired or Fail(), call
        self._own = None
        if context is None:
            self._own = context = ReadContext.made(
                provider, ClientConfig(provider.provider_id), Observing(None)
            )
        self._context = context
        self._audit_seconds = context.audit_seconds if audit_seconds is None else audit_seconds

    def close(self) -> None:
        """Close the readers of a planner that was made without `context`."""
        if self._own is not None:
            self._own.end()

    def start(self, position: FeedStart | Snapshot, deadline: Deadline, field: str = "AtTime.utc") -> Lineage:
        """Convert a start position into a lineage.

        Args:
            position: The start position. With a snapshot, the scan is planned in whole segments.
            deadline: The time limit.
            field: The caller's name for the time in `AtTime`, used in the error.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` for a time in the future, or for a snapshot without changes.
            ProviderFault: `UNSUPPORTED_CAPABILITY` for an `INTERLEAVED` snapshot of a feed in which
                rows have no floor. `TRANSIENT_FAILURE` if the service names no partition of the
                stream. A lineage without a partition of the stream has no next step.
        """
        if isinstance(position, Snapshot):
            if not position.changes:
                raise invalid_request(
                    "Snapshot.changes",
                    "is False, but a stream needs the changes",
                    "plan the rows alone with client.plan_partitions",
                )
            clock = partial(self._call, lambda: self._feed.clock(deadline), deadline)
            return resolve_snapshot(self._feed, self._asked, position, clock, self._call, deadline)
        lineage = resolve_start(
            self._feed,
            position,
            partial(self._call, lambda: self._feed.clock(deadline), deadline),
            partial(self._call, lambda: self._asked.start(position, None, deadline), deadline),
            field=field,
        )
        return check_has_partitions(lineage)

    def restore(self, value: Any) -> Lineage:
        """Return a lineage from its JSON.

        Args:
            value: The value that `Lineage.to_json` returned.

        Raises:
            InvalidCursor: Raised if the value is not a lineage.
        """
        return Lineage.from_json(value, self._feed)

    def advance(
        self,
        before: Lineage,
        max_records: int | None,
        deadline: Deadline,
        target: Target | None = None,
        *,
        allow_empty: bool = False,
    ) -> Step:
        """Plan the next step; its attribute `moved` is False if there is nothing to read.

        Args:
            before: The lineage at which the step starts; it is not changed.
            max_records: The hard limit on the number of records in the step; None means up to the current
                end.
            deadline: The time limit for planning the step.
            target: The latest position up to which the step may read.
            allow_empty: True to also return a step in which positions have moved without any
                records. Without steps that only move positions, a position could become older than
                the retention.
        """
        wanted = {e.partition_id: e.cursor for e in before.active() if within(self._feed, e, target)}
        return self._step(before, wanted, max_records, deadline, target, allow_empty)

    def steps(self, before: Lineage, limit: Deadline | float, target: Target | None = None) -> Iterator[Step]:
        """Plan every step from a lineage to the current end of the feed, or to the target.

        Each partition is asked until the answer is that nothing follows, or until the service's time shows
        that its position is later than the beginning of this call. So planning ends even if new records keep
        coming.

        Args:
            before: The lineage at which the first step starts.
            limit: The time limit of all steps together, or the number of seconds for each step.
            target: The position at which to stop, or None for the current end.

        Raises:
            ProviderFault: `TRANSIENT_FAILURE` if it was not found out in time whether records follow.
        """
        done, began = set[str](), None
        while True:
            deadline = limit if isinstance(limit, Deadline) else Deadline.after(limit)
            fresh = [entry for entry in before.active() if entry.partition_id not in done]
            wanted = {e.partition_id: e.cursor for e in fresh if within(self._feed, e, target)}
            step = self._step(before, wanted, None, deadline, target, allow_empty=True)
            done |= wanted.keys() - step.left
            if began is None and not wanted.keys() <= done:
                began = self._call(partial(self._feed.clock, deadline), deadline)
            elif began is not None:
                times = {
                    e.partition_id: self._feed.describe(e.cursor).time
                    for e in step.after.active()
                    if e.listed
                }
                done |= {name for name, time in times.items() if time is not None and time > began}
            if step.moved:
                yield step
            elif wanted.keys() <= done:
                return
            elif deadline.passed():
                where = self._feed.public_id(min(wanted.keys() - done))
                raise ProviderFault.of(
                    ErrorCategory.TRANSIENT_FAILURE,
                    f"{where}: the service has not said in time whether more records follow; try again",
                    retryable=True,
                )
            before = step.after

    def target(self, before: Lineage, limit: Deadline | float) -> Target:
        """Return the current end of the feed, which lies before all records that are written later.

        Args:
            before: The lineage at which the read starts.
            limit: The time limit, as for `steps`.
        """
        last, passed = before, set[str]()
        for step in self.steps(before, limit):
            # An ended partition may stay in the lineage while the engine searches for more children.
            passed |= {e.partition_id for e in step.before.active()}
            last = step.after
        stands = {entry.partition_id: entry.cursor for entry in last.active()}
        return Target(stands, frozenset(passed - stands.keys()))

    def target_at(self, moment: datetime, deadline: Deadline, field: str = "AtTime.utc") -> Target:
        """Return the feed's end position as of a given time; needs `CHANGE_FEED_POINT_IN_TIME`.

        Args:
            moment: The given time, with a time zone. The target lies shortly before this time; the
                capability's note says how close it is.
            deadline: The time limit.
            field: The caller's name for the time, used in the error.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` for a time in the future.
        """
        check_not_ahead(moment, self._call(lambda: self._feed.clock(deadline), deadline), field)
        seeds = self._call(lambda: self._feed.start(AtTime(moment), None, deadline), deadline)
        return Target({seed.partition_id: seed.cursor for seed in seeds}, None)

    def check_kept(self, lineage: Lineage, deadline: Deadline, *, surely: bool = False) -> None:
        """Read from every position that may be older than the service's retention, many at once.

        A feed may find heads up to the current end without reading. When a range is read, it is too late to
        plan another start.

        Args:
            lineage: The positions.
            deadline: The time limit.
            surely: True to read from every position, also from those that are surely kept.

        Raises:
            ProviderFault: `CHECKPOINT_EXPIRED` for a position that is no longer kept. A provider may also
                raise an error of its own, as for other requests.
        """
        now = self._call(partial(self._feed.clock, deadline), deadline)

        def is_asked(entry: Entry) -> bool:
            left = None if now is None else self._feed.headroom(entry.cursor, now)
            return surely or (left is not None and left <= 0)

        def read(entry: Entry) -> None:
            # A record that cannot be decoded is kept as well.
            with closing(self._feed.open(entry.partition_id, entry.cursor)) as reader, suppress(RecordFault):
                reader.fetch(1, _BYTES, 0.0, deadline)

        asked = [each for each in lineage.active() if each.listed and is_asked(each)]
        self._context.fetcher.each(lambda entry: self._call(partial(read, entry), deadline), asked)

    def _step(
        self,
        before: Lineage,
        wanted: dict[str, Cursor],
        max_records: int | None,
        deadline: Deadline,
        target: Target | None,
        allow_empty: bool,
    ) -> Step:
        if before.plan is None:
            return self._stream_step(before, wanted, max_records, deadline, target, allow_empty)
        if before.plan.holds:
            scanned = scan_step(self._feed, self._call, before, max_records, deadline)
            return Step(before, scanned, {}, left=self._left(scanned, {}, target))
        stream = {name: cursor for name, cursor in wanted.items() if not before.is_segment(name)}
        limit = stream_limit(before, max_records)
        step = self._stream_step(before, stream, limit, deadline, target, allow_empty)
        scan_beside(self._feed, self._call, before, step.after, step.records, max_records, deadline)
        return attrs.evolve(step, empty=False)

    def _stream_step(
        self,
        before: Lineage,
        wanted: dict[str, Cursor],
        max_records: int | None,
        deadline: Deadline,
        target: Target | None,
        allow_empty: bool,
    ) -> Step:
        after = before.copy()
        self._skipped: list[str] = []
        if after.waiting():
            after.start_passed()
        consumer, consumers = self._taken(after), self._context.consumers
        try:
            step = self._planned(consumer, before, after, wanted, max_records, deadline, target, allow_empty)
        except Exception:
            consumers.put(consumer, _KEY)  # what is kept holds for its positions
            raise
        consumers.put(consumer, _KEY)
        return step

    def _taken(self, after: Lineage) -> Consumer:
        """Return what an earlier step has left."""
        consumers = self._context.consumers
        consumer = consumers.take(_KEY, self._feed.spec, "")
        if consumer is not None and consumer.feed is not self._feed:
            consumers.discard(consumer)
            consumer = None
        if consumer is None:
            consumer = Consumer(self._feed, after, "", "")
            consumers.use(consumer)
        consumer.state = after
        return consumer

    def _planned(
        self,
        consumer: Consumer,
        before: Lineage,
        after: Lineage,
        wanted: Mapping[str, Cursor],
        max_records: int | None,
        deadline: Deadline,
        target: Target | None,
        allow_empty: bool,
    ) -> Step:
        context = self._context
        follow = Follow(
            self._feed, after, self._call, deadline, self._on_expired, consumer.looks, context.watch_seconds
        )
        late = self._noted(follow.look(due)) if (due := follow.due()) else ()
        late += self._search(after, follow, deadline)
        # A partition that a look or the search has lost or moved is not read in this step.
        wanted = {
            name: cursor
            for name, cursor in wanted.items()
            if (one := after.reading(name)) is not None and one.said[0] == cursor
        }
        finder = Heads(
            self._provider, self._context, consumer, follow, after, target, max_records, deadline,
            call=self._call, skips_loss=isinstance(self._on_expired, SkipToOldest),
            skips_poison=self._skip_poison, keep_bytes=self._keep_bytes,
        )  # fmt: skip
        heads = finder.find(wanted)
        self._tell(finder.gaps)
        moved = {name: head for name, head in heads.items() if head.cursor != after.cursor(name)}
        # A partition may have records or an end, or only its position has moved.
        news = frozenset(
            name
            for name, head in heads.items()
            if head.records
            or head.notices
            or (head.records is None and name in moved)
            or not isinstance(head.outcome, Continue)
        )
        empty = allow_empty and not news and bool(moved)
        if news or empty:
            for name, head in heads.items():
                after.took(name, head.cursor)
                apply_end(after, name, head.outcome, names_late=self._feed.names_late)
            after.rotate(heads)
        ends = {name: head.cursor for name, head in heads.items() if name not in after}
        counts = [heads[name].records for name in news]
        records = None if None in counts else sum(count or 0 for count in counts)
        answers = {name: head.answer for name, head in heads.items()}
        notices = tuple(notice for head in heads.values() for notice in _notices(head))
        left = self._left(after, heads, target)
        read = {name: pieces for name, pieces in finder.pieces.whole().items() if name in heads}
        return Step(
            before, after, ends, empty, late, news, records, tuple(self._skipped), answers, notices, left,
            read,
        )  # fmt: skip

    def _left(self, after: Lineage, heads: Mapping[str, Head], target: Target | None) -> frozenset[str]:
        """Return the partitions whose answers do not show that nothing follows."""
        said = {name for name, head in heads.items() if head.follows is Follows.END}
        return frozenset(
            each.partition_id
            for each in after.active()
            if each.listed and each.partition_id not in said and within(self._feed, each, target)
        )

    def _search(self, lineage: Lineage, follow: Follow, deadline: Deadline) -> tuple[PartitionFoundLate, ...]:
        """Search for uncovered partitions, if that is due; a failed search does not stop planning."""
        if not is_search_due(self._feed, lineage.audited, self._audit_seconds):
            return ()
        try:
            found = follow.search(deadline.sooner(_AUDIT_SECONDS))
        except Exception as error:
            fault = fault_of(self._provider, error)
            if fault.category == ErrorCategory.CHECKPOINT_EXPIRED:
                raise
            _log.warning("%s: the audit of coverage failed (%s)", self._feed.spec.address, fault.message)
            return ()
        return self._noted(found)

    def _noted(self, found: Found) -> tuple[PartitionFoundLate, ...]:
        self._tell(found.gaps)
        for late in found.late:
            what = "%s: the feed did not cover %s, and reads it from now on"
            _log.warning(what, self._feed.spec.address, late.partition_id)
        return found.late

    def _tell(self, gaps: Iterable[tuple[Gap, tuple[str, ...]]]) -> None:
        for gap, _ in gaps:
            place = f"{gap.partition_id} after {gap.lost_from}"
            self._skipped.append(place)
            _log.warning(
                "%s: the changes of %s were lost to retention; reading continues after the gap",
                self._feed.spec.address,
                place,
            )


def _notices(head: Head) -> tuple[Notice, ...]:
    end = head.outcome.notice if isinstance(head.outcome, Ended) else None
    return head.notices if end is None else (*head.notices, end)
