"""Pages of an iterator as a DataFrame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from multiclouddb_api import ChangeFeedPage
from multiclouddb_spi.arrow import events_to_arrow
from pyspark_multiclouddb.rows import ROW_SCHEMA, SPARK_SCHEMA, with_sequence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["pages_to_dataframe"]


def pages_to_dataframe(
    spark: SparkSession, pages: Iterable[ChangeFeedPage], schema: StructType | str | None = None
) -> DataFrame:
    """The events of some pages as a DataFrame with the columns of the data source.

    The thin way from `client.read_changes` or a `ChangeFeedIterator` to Spark, for what fits into the
    memory of the driver. The stream is the other way, for what does not.

    Args:
        spark: The session.
        pages: Read to the end, so it has to have one: `iterate_changes(…, until_idle=True)`.
        schema: What documents look like, as `StructType` or DDL: `new_item_state` is then a struct.
            By default it stays JSON text. Values that JSON has no form for are objects there, such
            as `{"$decimal": "1.50"}`.

    Returns:
        One row an event; no row for pages without events. `sequence` counts them by partition.

    Examples:
        >>> with connect(url) as client:
        ...     pages = [client.read_changes(request)]
        >>> pages_to_dataframe(spark, pages, "status STRING, total DOUBLE").show()
    """
    seen: Counter[str] = Counter()
    batches = [_to_batch(page, seen) for page in pages if page.events]
    frame = spark.createDataFrame(pa.Table.from_batches(batches, schema=ROW_SCHEMA), schema=SPARK_SCHEMA)
    if schema is None:
        return frame
    return frame.withColumn("new_item_state", F.from_json("new_item_state", schema))


def _to_batch(page: ChangeFeedPage, seen: Counter[str]) -> pa.RecordBatch:
    sequence = []
    for event in page.events:
        sequence.append(seen[event.partition_id])
        seen[event.partition_id] += 1
    return with_sequence(events_to_arrow(page.events), sequence)
