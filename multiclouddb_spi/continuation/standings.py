"""Computes up to which moment a feed was read, for pages and for planned steps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final, Protocol

import attrs

from multiclouddb_spi.continuation.entry import Entry, Plan, Stage
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.token import ReadUntil, to_micros
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.cursor import Cursor

__all__ = ["Answered", "Progress", "Standings"]

_MOST_KNOWN: Final = 100_000


class Answered(Protocol):
    """What the answers of one partition say about later records; see the attributes of `Batch`."""

    @property
    def watermark(self) -> datetime | None:
        """The watermark at the position, or None."""

    @property
    def likely_read_until(self) -> datetime | None:
        """The moment before which every change was probably read, or None."""

    @property
    def caught_up_at(self) -> float | None:
        """The monotonic time at which a read began that reached the current end; None without such a read."""


@attrs.frozen
class _Stand:
    """How far one partition was read.

    Attributes:
        cursor: The position; what is known of it also holds for later positions.
        proven: Every later record has this time or a later time, in µs since 1970; None if that is not known.
        likely: As `proven`, but only likely; None if the service proves what it tells.
    """

    cursor: Cursor
    proven: int | None
    likely: int | None

    def read_until(self, floor: ReadUntil | None) -> ReadUntil | None:
        """Return the moment before which every change was returned, and which is not before the floor."""
        found = floor
        if self.proven is not None and (found is None or self.proven >= found.micros):
            found = ReadUntil(self.proven)
        if self.likely is not None and (found is None or self.likely > found.micros):
            found = ReadUntil(self.likely, estimated=True)
        return found


@attrs.frozen
class Progress:
    """How far a feed was read.

    Attributes:
        watermark: The watermark of the page, in µs since 1970, or None. It is never less than that of an
            earlier page.
        read_until: The moment before which every change was returned, or None. It is never less than that of
            an earlier page. None during the scan of a snapshot.
        partitions: The same for each partition, as far as it is known.
    """

    watermark: int | None
    read_until: ReadUntil | None
    partitions: Mapping[str, ReadUntil]


class Standings:
    """Remembers how far each partition of a feed was read, because a call may return before it asks them all.

    Several threads may use one object. If the memory is lost, no moment is wrong, but it may be earlier.
    """

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

        A watermark and a moment move only by proof: by a record, by a heartbeat, or by an answer that no
        records follow. Then everything was returned that the service had shown when that read began.
        The watermark and the moment of the feed are the minimum over all partitions. A waiting child has
        start positions from its seed and from its ended parents; the earliest of their times counts. During
        the scan of a snapshot, the watermark is the snapshot's moment.

        Args:
            feed: The feed.
            lineage: The state after the call.
            answered: What the partitions have answered in this call.
            now: The service's time, or None if the service does not report it.
            watermark: The watermark before the call, in µs since 1970.
            floor: The moment up to which the feed was read before the call.
        """
        before = watermark
        if (plan := lineage.plan) is not None:
            return Progress(plan.moment if before is None else max(plan.moment, before), None, {})
        stands = {
            entry.partition_id: self._stand(feed, entry, answered.get(entry.partition_id), now)
            for entry in lineage
            # The known children of an ended partition are in the lineage; nothing is known of the others.
            if not (isinstance(entry, Plan) or (entry.stage is Stage.END and entry.children))
        }
        if len(self._known) > _MOST_KNOWN:
            self._known = {}
        self._known.update((name, stand) for name, stand in stands.items() if stand.cursor is not None)
        found = {name: stand.read_until(floor) for name, stand in stands.items()}
        partitions = {name: until for name, until in found.items() if until is not None}
        least = min(partitions.values(), key=attrgetter("micros"), default=None)
        if least is None or len(partitions) < len(stands):
            least = floor
        else:
            least = ReadUntil(least.micros, any(until.estimated for until in partitions.values()))
        proven = [stand.proven for stand in stands.values()]
        times = [time for time in proven if time is not None]
        if times and len(times) == len(proven):
            before = min(times) if before is None else max(min(times), before)
        return Progress(before, least, partitions)

    def _stand(
        self,
        feed: Feed,
        entry: Entry,
        turn: Answered | None,
        now: datetime | None,
    ) -> _Stand:
        if not entry.said:
            return _Stand(None, None, None)  # it was lost, and what follows it is not known yet
        if entry.stage is Stage.WAIT:
            told_all = [feed.describe(cursor).time for cursor in entry.said]
            times = [to_micros(each) for each in told_all if each is not None]
            return _Stand(None, min(times) if times and len(times) == len(told_all) else None, None)
        said = turn.watermark if turn is not None else None
        told = said if said is not None else feed.describe(entry.cursor).time
        proven = None if told is None else to_micros(told)
        likely = None
        if turn is not None:
            if turn.likely_read_until is not None:
                likely = to_micros(turn.likely_read_until)
            delay = feed.visible_after()
            if turn.caught_up_at is not None and now is not None and delay is not None:
                ago = timedelta(seconds=time.monotonic() - turn.caught_up_at + delay)
                proven = _later(proven, to_micros(now - ago))
        known = self._known.get(entry.partition_id)
        if known is not None and _holds_at(feed, known.cursor, entry.cursor):
            proven, likely = _later(proven, known.proven), _later(likely, known.likely)
        return _Stand(entry.cursor, proven, likely)


def _later(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


def _holds_at(feed: Feed, before: Cursor, after: Cursor) -> bool:
    """Return whether what is known of a position also holds at another, which is the same or a later one."""
    return before == after or feed.compare(before, after) in (-1, 0)
