"""Converts the pages of an iterator to a DataFrame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from multiclouddb_api import ChangeFeedPage, invalid_request
from multiclouddb_api.validators import check_type, type_name
from multiclouddb_spi.arrow import events_to_arrow
from pyspark_multiclouddb.arguments import check_has
from pyspark_multiclouddb.rows import ROW_SCHEMA, SPARK_SCHEMA, with_sequence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["pages_to_dataframe"]


def pages_to_dataframe(
    spark: SparkSession, pages: Iterable[ChangeFeedPage], schema: StructType | str | None = None
) -> DataFrame:
    """Return the events of some pages as a DataFrame with the columns of the data source.

    Use this function to pass events from `client.read_changes` or a `ChangeFeedIterator` to Spark if they fit
    into the memory of the driver. For more events, use a stream.

    Args:
        spark: The session.
        pages: The pages. All pages are read, so the iterator must end, for example `iterate_changes(…,
            until_idle=True)`.
        schema: The schema of documents, as `StructType` or DDL. With a schema, `new_item_state` is a struct.
            Without a schema, `new_item_state` stays JSON text. In this text, a value that has no JSON type is
            an object, such as `{"$decimal": "1.50"}`.

    Returns:
        One row per event; no row for pages without events. `sequence` counts the rows of each partition.

    Examples:
        >>> with connect(url) as client:
        ...     pages = [client.read_changes(request)]
        >>> pages_to_dataframe(spark, pages, "status STRING, total DOUBLE").show()
    """
    check_has("spark", spark, "createDataFrame", "a SparkSession")
    if not isinstance(pages, Iterable):
        raise invalid_request(
            "pages", f"must be pages, not {type_name(pages)}", "pass [client.read_changes(…)]"
        )
    if schema is not None and not isinstance(schema, str):
        check_has("schema", schema, "fieldNames", "a StructType or its DDL")
    seen: Counter[str] = Counter()
    batches = [_to_batch(page, seen) for page in map(_checked, pages) if page.events]
    frame = spark.createDataFrame(pa.Table.from_batches(batches, schema=ROW_SCHEMA), schema=SPARK_SCHEMA)
    if schema is None:
        return frame
    return frame.withColumn("new_item_state", F.from_json("new_item_state", schema))


def _checked(page: ChangeFeedPage) -> ChangeFeedPage:
    check_type("pages", page, ChangeFeedPage)
    return page


def _to_batch(page: ChangeFeedPage, seen: Counter[str]) -> pa.RecordBatch:
    sequence = []
    for event in page.events:
        sequence.append(seen[event.partition_id])
        seen[event.partition_id] += 1
    return with_sequence(events_to_arrow(page.events), sequence)
