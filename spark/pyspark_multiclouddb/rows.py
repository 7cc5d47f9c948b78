"""Reads ranges of a feed as rows, in the tasks of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    BooleanType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from multiclouddb_spi import Batch, Range, collector_paused, read_range
from multiclouddb_spi.arrow import EVENT_SCHEMA, events_to_arrow
from pyspark_multiclouddb.connection import connection_for
from pyspark_multiclouddb.errors import source_errors
from pyspark_multiclouddb.offsets import Pinned
from pyspark_multiclouddb.options import Settings

__all__ = ["ROW_SCHEMA", "SPARK_SCHEMA", "Work", "read_work", "with_sequence", "work_of"]

ROW_SCHEMA: Final = EVENT_SCHEMA.append(pa.field("sequence", pa.int64()))
"""The columns of an event, and `sequence`, the number of a row in its partition and batch."""

_SPARK_TYPES: Final[dict[pa.DataType, DataType]] = {
    pa.string(): StringType(),
    pa.bool_(): BooleanType(),
    pa.int64(): LongType(),
    pa.timestamp("us", tz="UTC"): TimestampType(),
}

SPARK_SCHEMA: Final = StructType([StructField(field.name, _SPARK_TYPES[field.type]) for field in ROW_SCHEMA])
"""The schema of the rows, as a Spark type."""


@attrs.frozen
class Work:
    """The work of one task; the value of an `InputPartition`.

    Attributes:
        incarnation: The incarnation of the resource for which the work was planned.
        ranges: The ranges to read, in this order.
    """

    incarnation: str | None
    ranges: tuple[Range, ...]


def work_of(settings: Settings, incarnation: str | None, ranges: Sequence[Range]) -> list[InputPartition]:
    """Assign ranges to tasks. The maximum number of tasks does not depend on the cores of the machine."""
    tasks = min(len(ranges), settings.max_tasks)
    return [InputPartition(Work(incarnation, tuple(ranges[first::tasks]))) for first in range(tasks)]


def read_work(settings: Settings, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Return the rows of one task.

    Args:
        settings: The options.
        partition: A partition from `work_of`, or a partition with the value None if there is nothing to read.

    Raises:
        SourceError: Raised for every error; the message begins with the marker of the category.
    """
    work: Work | None = partition.value
    if work is None:
        return
    with source_errors():
        connection = connection_for(settings)
        Pinned(work.incarnation, []).check_incarnation(connection.opened)
        for part in work.ranges:
            done = 0
            batches = read_range(connection.provider, connection.feed, part, settings.on_expired)
            while (rows := _next_rows(batches, done)) is not None:
                yield rows
                done += rows.num_rows


def _next_rows(batches: Iterator[Batch], done: int) -> pa.RecordBatch | None:
    """Return the next rows of a range, or None at the end of the range.

    `done` is the number of rows that the caller has already read from this range.
    """
    with collector_paused():
        batch = next(batches, None)
        if batch is None:
            return None
        return with_sequence(_to_arrow(batch), range(done, done + len(batch)))


def with_sequence(events: pa.RecordBatch, sequence: Sequence[int]) -> pa.RecordBatch:
    """Add the column `sequence` to the events, and return them."""
    return pa.RecordBatch.from_arrays([*events.columns, pa.array(sequence, pa.int64())], schema=ROW_SCHEMA)


def _to_arrow(batch: Batch) -> pa.RecordBatch:
    arrow = batch.arrow(0, len(batch))
    return events_to_arrow(batch.events(0, len(batch))) if arrow is None else arrow
