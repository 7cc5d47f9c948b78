"""Keeps a snapshot scan in a lineage: its plan, its segments, and the waits for its end.

A plan is one entry. The plan stays in the lineage until every segment is defined and read. Therefore, a
partition can wait for the end of the whole scan by waiting for this entry, even if segments are split.
`Lineage` is the only subclass.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from multiclouddb_api import ErrorCategory
from multiclouddb_spi.batch import Awaiting, Drained, Outcome, Scanned, Segment
from multiclouddb_spi.continuation.entries import Entries
from multiclouddb_spi.continuation.entry import Active
from multiclouddb_spi.continuation.plan import Plan
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.faults import ProviderFault

__all__ = ["ScanEntries"]


class ScanEntries(Entries):
    """The entries of a lineage, with the methods by which a scan changes them."""

    @abstractmethod
    def release(self, parent: str) -> list[str]:
        """See `Lineage.release`."""

    @abstractmethod
    def _hold(self, partition_id: str, leader: str) -> None:
        """Make a partition wait for another entry; `Lineage` implements this."""

    def begin_scan(self, plan: Plan) -> None:
        """Add a scan; if the scan holds the stream, every partition of the lineage waits for the scan.

        Args:
            plan: The plan of the scan, which becomes an entry of the lineage.
        """
        stream = list(self._entries)
        self._entries[plan.partition_id] = plan
        self._plan_id = plan.partition_id
        self.hold_for_scan(stream)

    def hold_for_scan(self, partition_ids: Iterable[str]) -> None:
        """Make partitions wait for the lineage's scan, if changes are read only after the scan.

        Args:
            partition_ids: Partitions that have not been read yet.
        """
        plan = self.plan
        if plan is not None and plan.holds:
            for name in partition_ids:
                self._hold(name, plan.partition_id)

    def change_plan(self, **changes: Any) -> None:
        """Change fields of the plan, if the lineage contains one.

        Args:
            changes: The fields of `Plan` to change, with their new values.
        """
        if (plan := self.plan) is not None:
            self._entries[plan.partition_id] = attrs.evolve(plan, **changes)

    def check_end(self, partition_id: str, outcome: Outcome) -> None:
        """Refuse an outcome that would silently lose a part of the scan, or a partition.

        Args:
            partition_id: The id of the segment or partition that has ended.
            outcome: How the segment or partition has ended.

        Raises:
            ProviderFault: `PERMANENT_FAILURE`, because the provider violates its contract.
        """
        match outcome:
            case Scanned(pieces) if self.is_segment(partition_id):
                self.check_cut(pieces, partition_id)
            case Scanned():
                raise _broken(f"{partition_id} is not a segment, but has ended with Scanned")
            case Drained() | Awaiting() if self.plan is not None and self.is_segment(partition_id):
                raise _broken(f"the segment {partition_id} has ended with {type(outcome).__name__}")
            case _:
                pass

    def check_cut(self, segments: Sequence[Segment], replaced: str | None = None) -> None:
        """Refuse segments whose id already belongs to another entry.

        Args:
            segments: The new segments.
            replaced: The segment that the new segments replace, or None.

        Raises:
            ProviderFault: `PERMANENT_FAILURE`, because the provider violates its contract.
        """
        names = [segment.segment_id for segment in segments]
        known = [name for name in names if name in self._entries and name != replaced]
        if known or len(set(names)) < len(names):
            raise _broken(f"a segment was cut twice, or has the id of a partition: {known or names}")

    def cut(self, segments: Iterable[Segment], rest: Cursor | None) -> list[str]:
        """Add segments of the scan that are to be read; return their ids.

        Args:
            segments: The parts.
            rest: The part that is not divided into segments yet, or None.
        """
        self.change_plan(cursor=rest)
        started = []
        for segment in segments:
            self._entries[segment.segment_id] = Active(segment.segment_id, segment.cursor, listed=False)
            self._segments[segment.segment_id] = None
            started.append(segment.segment_id)
        return started

    def scanned(self, segment_id: str, pieces: Sequence[Segment]) -> list[str]:
        """Record that a segment of the scan was read to its end.

        Return the ids of the segments that replace the unread rest of this segment.

        Args:
            segment_id: The id of the segment.
            pieces: The segments that replace the unread rest of this segment.
        """
        del self._entries[segment_id]
        self._segments.pop(segment_id, None)
        plan = self.plan
        if plan is None:
            return self.cut(pieces, None)
        if not pieces:
            self.change_plan(done=plan.done + 1)
        return self.cut(pieces, plan.cursor)

    def is_scanned(self) -> bool:
        """Return whether the lineage contains a scan and every row of this scan was read."""
        return (plan := self.plan) is not None and plan.cursor is None and not self._segments

    def end_scan(self) -> list[str]:
        """Remove the scan and its remaining segments; return the ids of stream partitions that start now."""
        plan = self.plan
        if plan is None:
            return []
        for segment_id in self._segments:
            del self._entries[segment_id]
        self._segments.clear()
        del self._entries[plan.partition_id]
        self._plan_id = None
        return self.release(plan.partition_id)

    def release_stream(self) -> list[str]:
        """Allow reading the change stream before the scan is over.

        Return the ids of the partitions that start now.
        """
        plan = self.plan
        if plan is None or not plan.holds:
            return []
        self.change_plan(holds=False)
        return self.release(plan.partition_id)


def _broken(problem: str) -> ProviderFault:
    message = f"{problem}; this violates the contract of snapshots and is a defect of the provider: report it"
    return ProviderFault.of(ErrorCategory.PERMANENT_FAILURE, message)
