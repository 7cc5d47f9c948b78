"""Computes watermark and `read_until`; the lag is the time since `read_until`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, Protocol

from attrs import frozen

from multiclouddb_spi.continuation.entry import Entry, Stage
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.token import ReadUntil, to_moment
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.positions import compare, describe

_MOST_KNOWN: Final = 100_000


class Answered(Protocol):
    """What the answers of one partition show about later records; see the attributes of `Batch`."""

    @property
    def watermark(self) -> datetime | None:
        """The watermark at the position, or None."""

    @property
    def likely_read_until(self) -> datetime | None:
        """The moment before which every change was probably read, or None."""

    @property
    def caught_up_at(self) -> float | None:
        """The monotonic time at which a read began that reached the current end; None without such a read."""

    @property
    def headroom(self) -> float:
        """For how many seconds the position is still kept; infinite if that is not known."""


@frozen
class Progress:
    """How far a feed was read.

    Attributes:
        watermark: The watermark of the page, or None. It is never less than that of an earlier page.
        read_until: The moment before which every change was returned, or None. It is never less than that of
            an earlier page. None during the scan of a snapshot.
        estimated: True if `read_until` is only likely.
        partitions: The moment of each partition, by its public id, as far as it is known.
        watermarks: The watermark of each partition, in the same way.
        headrooms: The headroom of each partition that has answered, in the same way.
    """

    watermark: datetime | None
    read_until: datetime | None
    estimated: bool
    partitions: Mapping[str, datetime]
    watermarks: Mapping[str, datetime]
    headrooms: Mapping[str, float]


@frozen(eq=False, repr=False)
class _Stand:
    """How far one partition was read.

    Attributes:
        public_id: The partition.
        cursor: The position; what is known of it also holds for later positions. None for a partition that
            is not read.
        proven: Every later record has this time or a later time; None if that is not known.
        likely: As `proven`, but only likely; None if the service proves its answers.
    """

    public_id: str
    cursor: Cursor = None
    proven: datetime | None = None
    likely: datetime | None = None


class Standings:
    """Remembers how far each partition of a feed was read, because a call may return before it asks them all.

    Several threads may use one object. If it is lost, the moments of the feed stay right, but may be earlier.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, _Stand] = {}

    def measure(
        self,
        feed: Feed,
        lineage: Lineage,
        answered: Mapping[str, Answered],
        now: datetime | None,
        *,
        watermark: int | None = None,
        floor: ReadUntil | None = None,
    ) -> Progress:
        """Return how far the feed was read when a call ends.

        A watermark and a moment move only by proof: by a record, a heartbeat, or an answer that no records
        follow, after which everything was returned that was visible when that read began. Those of the feed
        are the minimum over all partitions. For a waiting child, the earliest of the start positions from its
        seed and its ended parents counts. During the scan of a snapshot, the watermark is the snapshot's
        moment.

        Args:
            feed: The feed.
            lineage: The state after the call.
            answered: What the partitions have answered in this call.
            now: The service's time, or None if the service does not report it.
            watermark: The watermark before the call, in µs since 1970.
            floor: The moment up to which the feed was read before the call.
        """
        plan, entries = lineage.plan, iter(lineage)
        if plan is not None:
            micros = plan.moment if watermark is None else max(plan.moment, watermark)
            return Progress(to_moment(micros), None, False, {}, {}, {})
        least = None if floor is None else to_moment(floor.micros)
        mark = None if watermark is None else to_moment(watermark)
        is_estimated = floor is not None and floor.estimated
        if len(self._known) > _MOST_KNOWN:
            self._known = {}
        known = self._known
        proven, headrooms = dict[str, datetime](), dict[str, float]()
        others, count = list[_Stand](), 0
        delay, end = feed.visible_after(), Stage.END
        for entry in entries:
            # The known children of an ended partition are in the lineage; nothing may be known of the others.
            if not isinstance(entry, Entry) or (entry.stage is end and not entry.is_unnamed):
                continue
            count += 1
            name, said = entry.partition_id, entry.said
            stand, turn = known.get(name), answered.get(name)
            if stand is None or turn is not None or not said or stand.cursor is not said[0]:
                stand = self._stand(feed, entry, turn, now, delay)
            if turn is not None and turn.headroom < math.inf:
                headrooms[stand.public_id] = turn.headroom
            if (moment := stand.proven) is not None:
                proven[stand.public_id] = moment
            if moment is None or stand.likely is not None or (least is not None and moment < least):
                others.append(stand)
        moments, estimated = proven.copy(), False
        for stand in others:
            moment, likely = least, is_estimated
            if stand.proven is not None and (moment is None or stand.proven >= moment):
                moment, likely = stand.proven, False
            if stand.likely is not None and (moment is None or stand.likely > moment):
                moment, likely = stand.likely, True
            if moment is not None:
                moments[stand.public_id] = moment
                estimated = estimated or likely
        if moments and len(moments) == count:
            least, is_estimated = min(moments.values()), estimated
        if proven and len(proven) == count:
            oldest = min(proven.values())
            mark = oldest if mark is None else max(oldest, mark)
        return Progress(mark, least, is_estimated, moments, proven, headrooms)

    def _stand(
        self, feed: Feed, entry: Entry, turn: Answered | None, now: datetime | None, delay: float | None
    ) -> _Stand:
        known = self._known.get(entry.partition_id)
        public_id = feed.public_id(entry.partition_id) if known is None else known.public_id
        if not entry.said:
            return _Stand(public_id)  # it was lost, and what follows it is not known yet
        if entry.stage is Stage.WAIT:
            told = [feed.describe(cursor).time for cursor in entry.said]
            times = [each for each in told if each is not None]
            return _Stand(public_id, None, min(times) if times and len(times) == len(told) else None)
        cursor = entry.said[0]
        # What is known of a position also holds at a later one.
        is_there = known is not None and known.cursor == cursor
        name = entry.partition_id
        if known is None or not (is_there or compare(feed, name, known.cursor, cursor) in (-1, 0)):
            known = _Stand(public_id)
        watermark = None if turn is None else turn.watermark
        if watermark is None and not is_there:
            watermark = describe(feed, name, cursor).time
        proven, likely = known.proven, known.likely
        if watermark is not None and (proven is None or watermark > proven):
            proven = watermark
        if turn is not None:
            latest = turn.likely_read_until
            if latest is not None and (likely is None or latest > likely):
                likely = latest
            if turn.caught_up_at is not None and now is not None and delay is not None:
                shown = now - timedelta(seconds=time.monotonic() - turn.caught_up_at + delay)
                if proven is None or shown > proven:
                    proven = shown
        stand = _Stand(public_id, cursor, proven, likely)
        if cursor is not None:
            self._known[entry.partition_id] = stand
        return stand
