"""Defines the data source with its name, its schema and its options.

Spark imports this module in a worker process to find the source. An import error here would disable every
Python data source of the session. So it imports only the standard library and classes of PySpark. If another
module is missing, the error is raised when the source is used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

_OLDEST_PYTHON: Final = (3, 11)
# Spark introduced this class together with the interface that passes positions and limits (4.2). Some
# platforms also offer it in older versions.
_LIMITS: Final = "pyspark.sql.streaming.datasource"


class DefaultSource(DataSource):
    """Implements `format("multiclouddb")` for `spark.readStream` and `spark.read`.

    The module `pyspark_multiclouddb.options` lists the options.

    Each row is one change. The rows of a batch have no particular order, but of two changes to one key the
    later has the higher `order_key`. `key`, `new_item_state` and `old_item_state` are JSON text. With
    `.schema(…)`, the rows have exactly the columns of that schema; a column that is not among `EVENT_COLUMNS`
    is a field of the documents.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "multiclouddb"

    def schema(self) -> StructType:
        """Check the options, and return the columns of a frame without `.schema(…)`."""
        schema: StructType = _room("readers").checked_schema(self.options)
        return schema

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of micro-batches.

        Args:
            schema: The schema of the user, or the one that `schema` returned; Spark passes it.
        """
        settings = _room("readers").settings_of(self.options, schema, is_stream=True)
        reader: DataSourceStreamReader = (
            _room("stream").ChangeFeedStreamReader(settings)
            if find_spec(_LIMITS) is not None
            else _room("readers").PlainStreamReader(settings)
        )
        return reader

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of one batch.

        Args:
            schema: The schema of the user, or the one that `schema` returned; Spark passes it.
        """
        settings = _room("readers").settings_of(self.options, schema, is_stream=False)
        reader: DataSourceReader = _room("readers").ChangeFeedReader(settings)
        return reader


def _room(name: str) -> Any:
    """Import a module of this package; raise one clear error if this process cannot import it."""
    trouble = f"Python {sys.version.split()[0]} is too old, 3.11 is needed"
    if sys.version_info >= _OLDEST_PYTHON:
        try:
            return import_module(f"pyspark_multiclouddb.{name}")
        except ImportError as error:
            trouble = str(error)
    raise ImportError(
        f"[MULTICLOUDDB:INVALID_REQUEST] multiclouddb cannot run in {sys.executable}: {trouble}; "
        'install "multiclouddb[spark]" and the provider in the Python of the driver and of every worker '
        "(PYSPARK_PYTHON)"
    )
