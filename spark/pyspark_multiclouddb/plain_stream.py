"""Implements the stream for Spark 4.0 and 4.1, which pass neither a position nor a limit to `latestOffset`.

After a restart and before the first `latestOffset()`, these Spark versions call
`partitions(last, last)`; `last` is the newest offset in the query's offset log. The reader learns
the position of the checkpoint from this call of `partitions`. The reader itself applies the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from multiclouddb_api import invalid_request
from pyspark_multiclouddb.errors import source_errors
from pyspark_multiclouddb.micro_batches import MicroBatches
from pyspark_multiclouddb.options import Settings

__all__ = ["PlainStreamReader"]

_WRAPPER: Final = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


class PlainStreamReader(DataSourceStreamReader):
    """Plans micro-batches from the offsets that it returned earlier, and from the offset of a restart.

    A query that ends by itself (`availableNow`, `once`) runs one micro-batch. In such a query, the
    first batch resolves the start position and also reads rows. If the first batch only resolved
    the start position, the run would deliver no rows.

    Args:
        settings: The options, checked for a stream.
    """

    def __init__(self, settings: Settings) -> None:
        self._batches = MicroBatches(settings)
        self._first: dict[str, Any] | None = None
        self._position: dict[str, Any] | None = None

    def __reduce__(self) -> tuple[type[PlainStreamReader], tuple[Settings]]:
        return type(self), (self._batches.settings,)

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query.

        This method does not resolve the start, because Spark asks for the start again when it
        replays a batch.
        """
        return self._batches.initial()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override] # as Spark 4.0 and 4.1 call it
        """Return the end of the next micro-batch, or the current position if there is nothing to read."""
        most = self._batches.settings.max_records
        if self._position is not None:
            return self._batches.after(self._position, most, tell_more=True)
        if self._first is None:
            self._first = self._batches.first(most)
        return self._first

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the work of a micro-batch. After this call, `end` is the position of the query.

        Raises:
            SourceError: Raised if Spark passes the position in the query's checkpoint too late.
                Spark must pass this position before it requests the first batch. No rows have been
                written when this error is raised.
        """
        if self._position is None and self._first not in (None, end):
            with source_errors():
                raise invalid_request(
                    "checkpoint",
                    "has a position, but this Spark version passes it only after the first batch is planned",
                    f"set {_WRAPPER} to false, its default, or use Spark 4.2 or newer",
                )
        self._position = end
        return self._batches.tasks(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task."""
        return self._batches.read(partition)
