"""Implements one opened feed of a simulated collection: starts, partitions, lineage and positions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TypeVar, assert_never

import attrs

from multiclouddb_api import AtTime, Beginning, ErrorCategory, ErrorReason, LookupAnswer, MulticloudDbKey, Now
from multiclouddb_conformance.simulation.calls import Calls
from multiclouddb_conformance.simulation.errors import MissingError, TrimmedError
from multiclouddb_conformance.simulation.listing import (
    kept,
    listing,
    named,
    shown,
    survey,
    topmost,
    with_ancestors,
)
from multiclouddb_conformance.simulation.partition_log import PartitionLog
from multiclouddb_conformance.simulation.position import Place, place_after, place_text, to_cursor, to_place
from multiclouddb_conformance.simulation.reader import SimulationReader
from multiclouddb_conformance.simulation.segments import (
    SegmentReader,
    answers,
    cut_segments,
    plan_scan,
)
from multiclouddb_conformance.simulation.service_behaviour import Dice, Listing
from multiclouddb_conformance.simulation.simulation import Simulation
from multiclouddb_conformance.simulation.view import View
from multiclouddb_spi import (
    Continue,
    Cursor,
    Deadline,
    Feed,
    FeedSpec,
    FeedStart,
    Follows,
    Head,
    Position,
    ProviderFault,
    Reader,
    Scan,
    ScanPlan,
    Seed,
    Segment,
    Survey,
)

__all__ = ["SimulationFeed"]

_Item = TypeVar("_Item")


class SimulationFeed(Feed):
    """A feed of one incarnation of a collection. The feed can also find heads (end positions)."""

    def __init__(self, sim: Simulation, spec: FeedSpec, calls: Calls) -> None:
        self.view = View(sim, spec, calls)
        self.sim = sim
        self.spec = spec
        self.calls = calls
        self.identity = self.view.identity

    # -- The contract

    def visible_after(self) -> None:
        """Return None, because the virtual clock stands still between commits."""

    def clock(self, deadline: Deadline) -> datetime | None:
        """Return the time of the virtual clock."""
        self.sim.control("clock")
        return self.sim.now

    def start(self, position: FeedStart, partition_id: str | None, deadline: Deadline) -> list[Seed]:
        self.calls.count("starts")
        self.sim.control("start")
        with self.sim.changed:
            self._check_alive()
            match position:
                case Beginning():
                    seeds = self._from_beginning(partition_id)
                case Now():
                    seeds = self._from_now(partition_id)
                case AtTime(moment):
                    seeds = self._from_time(moment, partition_id)
                case _:
                    assert_never(position)
            return self._jumbled(seeds, "start")

    def open(self, partition_id: str, cursor: Cursor, until: Cursor | None = None) -> Reader:
        reader = SimulationReader(
            self.view,
            partition_id,
            self.public_id(partition_id),
            to_place(cursor),
            None if until is None else to_place(until),
        )
        self.view.opened(reader)
        self.calls.opened(partition_id)
        return reader

    def open_segment(self, segment: Segment) -> Reader:
        reader = SegmentReader(self.view, self.public_id(segment.segment_id), segment)
        self.view.opened(reader)
        self.calls.opened(segment.segment_id)
        return reader

    @property
    def names_late(self) -> bool:  # type: ignore[override]  # the behaviour may change while the feed is open
        return self.sim.names_late()

    def survey(
        self,
        asked: Mapping[str, Cursor],
        deadline: Deadline,
        *,
        expired: Collection[str] = frozenset(),
        since: datetime | None = None,
        whole: bool = True,
    ) -> Survey:
        self.calls.count("surveys" if asked else "lists")
        for position in asked.values():
            if position is not None:
                to_place(position)
        self.sim.control("survey")
        with self.sim.changed:
            self._check_alive()
            if not asked:
                stated = listing(self.view)
            elif not whole:
                self.calls.count_each("awaited", list(asked))
                stated = named(self.view, asked)
            else:
                earliest = 0 if since is None else self.sim.commit_before(since)
                stated = survey(self.view, asked, expired, earliest)
            return attrs.evolve(stated, present=tuple(self._jumbled(list(stated.present), "partitions")))

    def moment(self, cursor: Cursor) -> int | None:
        """See `Feed.moment`; the number of the commit up to which everything was read."""
        return to_place(cursor)[0] - 1

    def join(self, child_id: str, cursors: Sequence[Cursor]) -> Cursor:
        """See `Feed.join`; returns the latest position, because a child begins after its last parent."""
        self.calls.count_each("joins", [child_id])
        return to_cursor(max(to_place(cursor) for cursor in cursors))

    def compare(self, a: Cursor, b: Cursor) -> int | None:
        """See `Feed.compare`; any two positions can be compared."""
        one, other = to_place(a), to_place(b)
        return (one > other) - (one < other)

    def describe(self, cursor: Cursor) -> Position:
        """See `Feed.describe`; the time comes from the log."""
        place = to_place(cursor)
        commit, done = place
        return Position(place_text(place), self.sim.commit_time(commit if done else commit - 1))

    def heads(
        self, cursors: Mapping[str, Cursor], max_records: int | None, deadline: Deadline
    ) -> dict[str, Head]:
        """See `SupportsHeads.heads`; a call takes O(log n) time for each partition."""
        self.calls.count("heads")
        self.sim.control("heads")
        with self.sim.changed:
            self._check_alive()
            places = {name: to_place(cursor) for name, cursor in cursors.items()}
            heads = {name: self._head(name, place, max_records) for name, place in places.items()}
            partitions = self.sim.partitions
            return {
                name: head
                for name, head in heads.items()
                if not partitions[name].has_notice(places[name][0], to_place(head.cursor)[0])
            }

    def headroom(self, cursor: Cursor, now: datetime) -> float | None:
        commit, done = to_place(cursor)
        return self.sim.headroom(commit if done else commit - 1)

    def snapshot(self, segments: int | None, deadline: Deadline) -> ScanPlan:
        self.sim.control("snapshot")
        with self.sim.changed:
            self._check_alive()
            return plan_scan(self.view, self._jumbled(self._from_now(None), "start"), segments)

    def segments(
        self, scan: Scan, rest: Cursor, count: int, deadline: Deadline
    ) -> tuple[list[Segment], Cursor | None]:
        self.sim.control("segments")
        return cut_segments(scan, rest, count)

    def lookup(
        self, keys: Sequence[MulticloudDbKey], deadline: Deadline
    ) -> dict[MulticloudDbKey, LookupAnswer]:
        self.calls.count("lookups")
        self.sim.control("lookup")
        with self.sim.changed:
            self._check_alive()
            return answers(self.view, keys)

    def cancel(self) -> None:
        """Cancel every reader."""
        self.view.cancel()

    # -- Helpers

    def _check_alive(self) -> None:
        if self.sim.incarnation != self.identity.incarnation:
            raise MissingError(f"{self.sim.address} does not exist, or was dropped")

    def _seed(self, partition: PartitionLog, commit: int) -> Seed:
        tells = self.sim.behaviour.listing is not Listing.OPEN
        return Seed(
            partition.id, self.view.parents(partition) if tells else (), to_cursor(place_after(commit))
        )

    def _jumbled(self, items: list[_Item], what: str) -> list[_Item]:
        return Dice(self.sim.behaviour.seed, what).jumbled(items) if self.sim.behaviour.jumble else items

    def _startable(self, partition_id: str | None) -> list[PartitionLog]:
        """Return the listed partitions, or the partition with the given id."""
        if partition_id is None:
            return with_ancestors(shown(self.view), kept(self.view))
        return [partition for partition in kept(self.view) if partition.id == partition_id]

    def _seeds_descendants(self) -> bool:
        behaviour = self.sim.behaviour
        return behaviour.seed_descendants and behaviour.listing is Listing.ALL

    def _from_beginning(self, partition_id: str | None) -> list[Seed]:
        partitions = self._startable(partition_id)
        if partition_id is None and not self._seeds_descendants():
            partitions = topmost(partitions)
        return [self._seed(partition, partition.oldest) for partition in partitions]

    def _from_now(self, partition_id: str | None) -> list[Seed]:
        return [
            self._seed(part, self.sim.head if part.closed is None else part.closed)
            for part in self._startable(partition_id)
            if part.closed is None or part.id == partition_id
        ]

    def _from_time(self, moment: datetime, partition_id: str | None) -> list[Seed]:
        commit = max(self.sim.commit_before(moment), self.sim.created)
        partitions = self._from_commit(commit) if partition_id is None else self._startable(partition_id)
        for partition in partitions:
            self._check_kept(partition, commit)
        return [self._seed(part, max(part.born, min(commit, part.closed or commit))) for part in partitions]

    def _from_commit(self, commit: int) -> list[PartitionLog]:
        """Return the partitions after a commit, with their descendants if the behaviour includes them."""
        later = self._seeds_descendants()
        visible = {part.id for part in shown(self.view)}
        parts = [
            partition
            for partition in self.sim.partitions.values()
            if self.view.covers(partition)
            and (partition.alive_at(commit) or (later and partition.born > commit))
        ]
        return with_ancestors([part for part in parts if part.gone or part.id in visible], parts)

    def _check_kept(self, partition: PartitionLog, commit: int) -> None:
        if max(commit, partition.born) < partition.trimmed:
            raise ProviderFault.of(
                ErrorCategory.CHECKPOINT_EXPIRED,
                f"the start is older than what {self.sim.address} keeps; start at Beginning()",
                reason=ErrorReason.TRIMMED,
            )

    def _head(self, partition_id: str, place: Place, max_records: int | None) -> Head:
        partition = self.sim.partitions[partition_id]
        if not partition.keeps(place[0], strict=self.sim.behaviour.strict_retention):
            raise TrimmedError(f"{place_text(place)} of {partition_id} is no longer kept")
        end = place_after(self.sim.head if partition.closed is None else partition.closed)
        known = self.view.whole
        first = self._records_before(partition, place)
        records = self._records_before(partition, end) - first
        if max_records is None or records <= max_records:
            outcome = self.view.ending(partition_id, asked=False)
            return Head(to_cursor(max(end, place)), records if known else None, outcome, Follows.END)
        index = partition.index_of_record(first + max_records - 1)
        commit = partition.commit(index)
        assert commit is not None
        done = first + max_records - partition.records_before(index)
        stop = place_after(commit.number) if done == len(commit.records) else (commit.number, done)
        return Head(to_cursor(stop), max_records if known else None, Continue(), Follows.MORE)

    def _records_before(self, partition: PartitionLog, place: Place) -> int:
        return partition.records_before(partition.find(place[0])) + place[1]
