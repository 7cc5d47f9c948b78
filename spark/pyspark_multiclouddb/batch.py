"""Reads a feed as a batch from its start to its end, through every split and merge."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from multiclouddb_spi import Deadline, Planner, Range
from pyspark_multiclouddb.connection import connection_for
from pyspark_multiclouddb.errors import source_errors
from pyspark_multiclouddb.options import Settings
from pyspark_multiclouddb.rows import read_work, work_of

__all__ = ["ChangeFeedReader"]


class ChangeFeedReader(DataSourceReader):
    """Reads a feed once, as a batch.

    Each action on a DataFrame plans the read again and may end at a later position.

    The tasks run in any order, and a child partition may be in a different task than its parent. Therefore
    `order_key`, not the order of rows, shows which of two changes to a key is the later one.

    Args:
        settings: The options, checked for a batch.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def partitions(self) -> list[InputPartition]:
        """Resolve the start and the end, and assign the ranges between them to tasks."""
        with source_errors():
            connection = connection_for(self._settings)
            # Spark reuses the process that plans, so its open feed may belong to a resource that has since
            # been recreated.
            connection.opened.renew()
            start = connection.start(self._settings.start)
            end = self._settings.end
            target = None if end is None else connection.target_at(end)

            def ranges(planner: Planner, deadline: Deadline) -> list[Range]:
                steps = planner.steps(start, deadline, target)
                return [part for step in steps for part in step.ranges()]

            found = connection.plan("plan", ranges)
            return work_of(
                self._settings, connection.incarnation, found, skip_poison=self._settings.skip_poison
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task."""
        return read_work(self._settings, partition)
