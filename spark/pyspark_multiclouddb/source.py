"""The data source itself: its name, its schema, its options."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from multiclouddb_api import invalid_request
from multiclouddb_api.registry import load_plugin
from pyspark_multiclouddb.batch import ChangeFeedReader
from pyspark_multiclouddb.errors import source_errors
from pyspark_multiclouddb.options import parse_options
from pyspark_multiclouddb.rows import SPARK_SCHEMA
from pyspark_multiclouddb.stream import ChangeFeedStreamReader

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """`format("multiclouddb")`, for `spark.readStream` and `spark.read`.

    The module `pyspark_multiclouddb.options` begins with the table of options.

    Each row is one change. `key`, `new_item_state` and `old_item_state` are JSON text. Of two changes
    of one key the later has the higher `order_key`; rows of a batch come in no particular order.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "multiclouddb"

    def schema(self) -> StructType:
        """The columns, the same for every provider; this also checks the options."""
        with source_errors():
            load_plugin(parse_options(self.options).config.provider)
        return SPARK_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of micro-batches.

        Args:
            schema: The result of `schema`; Spark passes it.
        """
        with source_errors():
            _check_schema(schema)
            return ChangeFeedStreamReader(parse_options(self.options).for_stream())

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of one batch.

        Args:
            schema: The result of `schema`; Spark passes it.
        """
        with source_errors():
            _check_schema(schema)
            return ChangeFeedReader(parse_options(self.options).for_batch())


def _check_schema(schema: StructType) -> None:
    if schema != SPARK_SCHEMA:
        raise invalid_request(
            "schema",
            "differs from the schema of this source, which is fixed",
            "leave .schema(…) out, and parse documents with from_json(new_item_state, …)",
        )
