"""The stream: it plans the micro-batches and reads them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError
from multiclouddb_api.redaction import rfc3339
from multiclouddb_spi import Feed, Lineage, Step, Target
from pyspark_multiclouddb.connection import Connection, connection_for
from pyspark_multiclouddb.errors import source_errors
from pyspark_multiclouddb.offsets import (
    Pinned,
    Symbolic,
    offset_from_json,
    offset_to_json,
    ranges_of,
)
from pyspark_multiclouddb.options import Settings
from pyspark_multiclouddb.rows import read_work, work_of

__all__ = ["ChangeFeedStreamReader"]

_NAP_SECONDS: Final = 0.1


class ChangeFeedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in one long-lived process per query, and reads them in Spark's tasks.

    The constructor does no I/O, and only the settings are pickled. `commit` and `stop` do nothing important,
    because Spark does not always call them.

    Args:
        settings: The options, checked for a stream.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ends_by_itself = False
        self._target: Target | None = None
        self._idle: tuple[dict[str, Any], float] | None = None
        self._moved = -math.inf
        self._ahead: tuple[dict[str, Any], Lineage] | None = None
        self._report: dict[str, Any] | None = None

    def __reduce__(self) -> tuple[type[ChangeFeedStreamReader], tuple[Settings]]:
        return type(self), (self._settings,)

    def initialOffset(self) -> dict[str, Any]:
        """The start of a new query; it is not resolved here, because Spark asks again on a replay."""
        return offset_to_json(self._settings, Symbolic(self._settings.start))

    def getDefaultReadLimit(self) -> ReadLimit:
        """The bound on the rows of a micro-batch."""
        most = self._settings.max_records
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the query end by itself, at the end that the feed has when the first batch is planned.

        The end is looked up at that time, because only a position of the checkpoint leads to it through all
        splits.
        """
        self._ends_by_itself = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch.

        Args:
            start: The start of the micro-batch.
            limit: The bound on its rows.

        Returns:
            `start` itself when there is nothing to read. Spark then asks again without a pause, so this
            answer is reused for `pollInterval`. At first, and once per `idleCheckpointInterval`, a position
            that moved without a record is an end too, so that the position in the checkpoint does not expire.
        """
        if self._is_idle(start):
            time.sleep(min(_NAP_SECONDS, self._settings.poll_seconds))
            return start
        with source_errors():
            end = self._plan(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        now = time.monotonic()
        # A position that moved without a record has nothing after it either.
        self._idle = (end, now) if end is start or "empty" in end else None
        if end is not start:
            self._moved = now
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """A summary for the query's progress, not an offset."""
        return self._report

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The work of a micro-batch: the same on every call, without a call to the database."""
        with source_errors():
            before = offset_from_json(self._settings, start)
            after = offset_from_json(self._settings, end)
            ranges = ranges_of(before, after)
            if not ranges:
                return []
            assert isinstance(after, Pinned)
            return work_of(self._settings, after.incarnation, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return read_work(self._settings, partition)

    def _is_idle(self, start: dict[str, Any]) -> bool:
        """True when the same start was asked for a moment ago, and there was nothing."""
        if self._idle is None or self._ends_by_itself:
            return False
        asked, when = self._idle
        return asked == start and time.monotonic() - when < self._settings.poll_seconds

    def _plan(self, start: dict[str, Any], max_records: int | None) -> dict[str, Any]:
        offset = offset_from_json(self._settings, start)
        connection = connection_for(self._settings)
        if isinstance(offset, Symbolic):
            lineage = connection.start(offset.position)
            self._describe(connection.feed, lineage, idle=False)
            return offset_to_json(self._settings, Pinned(connection.incarnation, lineage.to_json()))
        offset.check_incarnation(connection.opened)
        before = connection.plan("restore", lambda planner, _: planner.restore(offset.cursors))
        if not len(before):
            raise _ended(self._settings)
        step = self._step(connection, self._standing(start, before), max_records)
        nothing = step.empty or not step.moved
        self._describe(connection.feed, step.after, idle=nothing)
        if nothing and not self._is_worth_saving(before, step.after):
            # The next call begins here, so that the same records are not scanned again.
            self._ahead = start, step.after
            return start
        self._ahead = None
        end = Pinned(offset.incarnation, step.after.to_json(), step.ends, nothing)
        return offset_to_json(self._settings, end)

    def _standing(self, start: dict[str, Any], before: Lineage) -> Lineage:
        """Where to read on after an offset: further ahead, where earlier calls found nothing after it."""
        return self._ahead[1] if self._ahead is not None and self._ahead[0] == start else before

    def _is_worth_saving(self, before: Lineage, stands: Lineage) -> bool:
        """Whether to save positions that moved without a record as an offset."""
        then, now = _entries(before), _entries(stands)
        if then.keys() != now.keys() or any(type(then[name]) is not type(now[name]) for name in now):
            return True  # the ranges of a batch come from the partitions in its first offset
        due = time.monotonic() - self._moved >= self._settings.idle_checkpoint_seconds
        return due and then != now

    def _step(self, connection: Connection, before: Lineage, max_records: int | None) -> Step:
        if self._ends_by_itself and self._target is None:
            self._target = connection.plan("plan", lambda planner, deadline: planner.target(before, deadline))
        return connection.plan(
            "plan",
            lambda planner, deadline: planner.advance(
                before, max_records, deadline, self._target, allow_empty=True
            ),
        )

    def _describe(self, feed: Feed, lineage: Lineage, *, idle: bool) -> None:
        active = lineage.active()
        times = [feed.describe(entry.cursor).time for entry in active]
        known = [moment for moment in times if moment is not None]
        self._report = {
            "idle": idle,
            "partitions": len(active),
            "openWatches": sum(bool(entry.children) for entry in lineage.awaiting_children()),
            "readUntil": rfc3339(min(known)) if known and len(known) == len(times) else None,
            "v": 1,
            "waiting": len(lineage) - len(active) - len(lineage.awaiting_children()),
        }


def _entries(lineage: Lineage) -> dict[str, object]:
    return {entry.partition_id: entry for entry in lineage}


def _ended(settings: Settings) -> MulticloudDbError:
    return MulticloudDbError(
        f"the feed of {settings.address} has ended, and all its changes are delivered; "
        "if the resource was recreated, start a query with a checkpointLocation of its own",
        ErrorDetail(ErrorCategory.NOT_FOUND),
    )
