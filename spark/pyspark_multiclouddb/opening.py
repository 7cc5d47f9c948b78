"""Checks options and schema when the data source is loaded, without I/O."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructType

from multiclouddb_api import invalid_request
from multiclouddb_api.registry import load_plugin
from multiclouddb_spi import ProviderPlugin
from pyspark_multiclouddb.errors import source_errors
from pyspark_multiclouddb.options import Settings, parse_options
from pyspark_multiclouddb.rows import SPARK_SCHEMA

__all__ = ["checked_schema", "settings_of"]


def checked_schema(options: Mapping[str, str]) -> StructType:
    """Return the columns of the source, if the options are valid.

    Args:
        options: The options, as Spark passes them.

    Raises:
        SourceError: `INVALID_REQUEST`; the message names the option and a solution.
    """
    with source_errors():
        config = parse_options(options).config
        plugin = load_plugin(config.provider)
        if isinstance(plugin, ProviderPlugin):
            plugin.check(config)
    return SPARK_SCHEMA


def settings_of(options: Mapping[str, str], schema: StructType, *, is_stream: bool) -> Settings:
    """Return the checked options for one reader.

    Args:
        options: The options, as Spark passes them.
        schema: The schema that Spark wants to read.
        is_stream: True for a stream, False for a batch.

    Raises:
        SourceError: `INVALID_REQUEST`; the message names the option or the schema, and a solution.
    """
    with source_errors():
        if schema != SPARK_SCHEMA:
            raise invalid_request(
                "schema",
                "differs from the schema of this source, which is fixed",
                "leave .schema(…) out, and parse documents with from_json(new_item_state, …)",
            )
        settings = parse_options(options)
        return settings.for_stream() if is_stream else settings.for_batch()
