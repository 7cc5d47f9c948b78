"""Implements the stream for Spark 4.2 and newer, which pass a position and a limit to `latestOffset`."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from pyspark_multiclouddb.options import BACKLOG_RECORDS
from pyspark_multiclouddb.readers import StreamReader


class ChangeFeedStreamReader(StreamReader, SupportsTriggerAvailableNow):
    """Plans each micro-batch from the position and the limit that Spark passes."""

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
        most = None if by_default and self._batches.caught_up else most
        # Without `prepareForTriggerAvailableNow`, a run that ends has only one micro-batch: with the trigger
        # `once`, and if another source of the query does not support `availableNow`.
        return self._batches.after(start, most, tell_more=not self._batches.ends_by_itself)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return a summary for the query's progress. The summary is not an offset."""
        return self._batches.report
