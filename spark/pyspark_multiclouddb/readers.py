"""Checks what Spark passes when the source is loaded, and reads batches, and streams on Spark 4.0 and 4.1.

After a restart and before the first `latestOffset()`, Spark 4.0 and 4.1 call `partitions(last, last)`; `last`
is the newest offset in the query's offset log. The reader of a stream learns the position of the checkpoint
from this call of `partitions`. These versions pass no limit, so the reader itself applies it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from multiclouddb_api import invalid_request
from multiclouddb_api.registry import load_plugin
from multiclouddb_spi import Deadline, Planner, ProviderPlugin, Range
from pyspark_multiclouddb.connection import CALL_SECONDS, Connection, connected
from pyspark_multiclouddb.errors import source_errors
from pyspark_multiclouddb.micro_batches import MicroBatches
from pyspark_multiclouddb.options import Settings, parse_options
from pyspark_multiclouddb.rows import read_work, work_of
from pyspark_multiclouddb.source_columns import SPARK_SCHEMA, columns_of

_WRAPPER: Final = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


def checked_schema(options: Mapping[str, str]) -> StructType:
    """Return the columns of the source, if the options are valid."""
    with source_errors():
        settings = parse_options(options)
        columns_of(SPARK_SCHEMA, settings)
        config = settings.config
        plugin = load_plugin(config.provider)
        if isinstance(plugin, ProviderPlugin):
            plugin.check(config)
    return SPARK_SCHEMA


def settings_of(options: Mapping[str, str], schema: StructType | pa.Schema, *, is_stream: bool) -> Settings:
    """Return the checked options for one reader; Sail passes the columns as Arrow's schema."""
    with source_errors():
        if isinstance(schema, pa.Schema):
            schema = from_arrow_schema(schema, prefer_timestamp_ntz=True)
        settings = parse_options(options)
        settings = settings.for_stream() if is_stream else settings.for_batch()
        return attrs.evolve(settings, columns=columns_of(schema, settings))


class ChangeFeedReader(DataSourceReader):
    """Reads a feed once, as a batch."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def partitions(self) -> list[InputPartition]:
        """Resolve the start and the end, and assign the ranges between them to tasks."""
        with source_errors():
            return connected(self._settings, self._planned)

    def _planned(self, connection: Connection) -> list[InputPartition]:
        # Spark reuses the process that plans, so its open feed may belong to a resource that has since
        # been recreated.
        connection.opened.renew()
        start = connection.start(self._settings.start)
        end = self._settings.end
        target = None if end is None else connection.target_at(end)

        def ranges(planner: Planner, _: Deadline) -> list[Range]:
            steps = planner.steps(start, CALL_SECONDS, target)
            return [part for step in steps for part in step.ranges()]

        found = connection.plan("plan", ranges)
        skip = self._settings.skip_poison
        # A batch has no offset that could tell a loss, and restarted it would meet the next one: the logs do.
        return work_of(self._settings, connection.incarnation, found, skip_poison=skip, may_skip=True)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task."""
        return read_work(self._settings, partition)


class StreamReader(DataSourceStreamReader):
    """What both stream readers do. Spark does not always call `stop`, so nothing depends on it."""

    def __init__(self, settings: Settings) -> None:
        self._batches = MicroBatches(settings)

    def __reduce__(self) -> tuple[type[StreamReader], tuple[Settings]]:
        return type(self), (self._batches.settings,)

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query."""
        return self._batches.initial()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the work of a micro-batch."""
        return self._batches.tasks(start, end)

    def stop(self) -> None:
        """Stop waiting for changes."""
        self._batches.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task."""
        return read_work(self._batches.settings, partition)


class PlainStreamReader(StreamReader):
    """Plans micro-batches from the offsets that it returned earlier, and from the offset of a restart."""

    _first: dict[str, Any] | None = None
    _position: dict[str, Any] | None = None

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override] # as Spark 4.0 and 4.1 call it
        """Return the end of the next micro-batch, or the current position if there is nothing to read."""
        most = self._batches.settings.max_records
        if self._position is not None:
            return self._batches.after(self._position, most, tell_more=True)
        if self._first is None:
            self._first = self._batches.first(most)
        return self._first

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the work of a micro-batch. After this call, `end` is the position of the query."""
        if self._position is None and self._first not in (None, end):
            with source_errors():
                raise invalid_request(
                    "checkpoint",
                    "has a position, but this Spark version passes it only after the first batch is planned",
                    f"set {_WRAPPER} to false, its default, or use Spark 4.2 or newer",
                )
        self._position = end
        return super().partitions(start, end)
