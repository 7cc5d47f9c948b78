"""Implements the stream for Spark 4.2 and newer, which pass a position and a limit to `latestOffset`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from pyspark_multiclouddb.micro_batches import MicroBatches
from pyspark_multiclouddb.options import BACKLOG_RECORDS, Settings
from pyspark_multiclouddb.rows import read_work


class ChangeFeedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches; it has no `commit` and `stop`, because Spark does not always call them."""

    def __init__(self, settings: Settings) -> None:
        self._batches = MicroBatches(settings)

    def __reduce__(self) -> tuple[type[ChangeFeedStreamReader], tuple[Settings]]:
        return type(self), (self._batches.settings,)

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query."""
        return self._batches.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit on the rows of a micro-batch."""
        return ReadMaxRows(self._batches.settings.max_records or BACKLOG_RECORDS)

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the query end when it has caught up."""
        self._batches.ends_by_itself = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch, or `start` itself if there is nothing to read."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        by_default = self._batches.settings.max_records is None and most == BACKLOG_RECORDS
        return self._batches.after(start, None if by_default and self._batches.caught_up else most)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return a summary for the query's progress. The summary is not an offset."""
        return self._batches.report

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the work of a micro-batch."""
        return self._batches.tasks(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task."""
        return read_work(self._batches.settings, partition)
