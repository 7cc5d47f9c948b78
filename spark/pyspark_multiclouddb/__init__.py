"""The Spark data source `multiclouddb`: change feeds as streams and batches.

Spark finds the data source by the name of this package, without registration:

    spark.readStream.format("multiclouddb").option("url", "embedded:///data/store.db").option(...)

Spark imports every package whose name starts with `pyspark_`. If the import of one of them fails, it uses
none. So this module imports others only when they are needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_multiclouddb.cluster import merge_into_table as merge_into_table
    from pyspark_multiclouddb.errors import error_from_query as error_from_query
    from pyspark_multiclouddb.errors import reason_from_query as reason_from_query
    from pyspark_multiclouddb.progress import ProgressTable as ProgressTable
    from pyspark_multiclouddb.progress import caught_up as caught_up
    from pyspark_multiclouddb.rows import pages_to_dataframe as pages_to_dataframe
    from pyspark_multiclouddb.session import ensure_java as ensure_java
    from pyspark_multiclouddb.session import local_session as local_session
    from pyspark_multiclouddb.sinks import drop_tombstones as drop_tombstones
    from pyspark_multiclouddb.sinks import latest_by_key as latest_by_key
    from pyspark_multiclouddb.sinks import live_rows as live_rows
    from pyspark_multiclouddb.sinks import merge_into_delta as merge_into_delta
    from pyspark_multiclouddb.sinks import remove_history as remove_history
    from pyspark_multiclouddb.source import DefaultSource as DefaultSource
    from pyspark_multiclouddb.source_columns import EVENT_COLUMNS as EVENT_COLUMNS
    from pyspark_multiclouddb.table_target import TableTarget as TableTarget
    from pyspark_multiclouddb.verification import verify_with_spark as verify_with_spark

_HOMES = {
    "cluster": "merge_into_table",
    "source_columns": "EVENT_COLUMNS",
    "errors": "error_from_query reason_from_query",
    "progress": "ProgressTable caught_up",
    "rows": "pages_to_dataframe",
    "session": "ensure_java local_session",
    "sinks": "drop_tombstones latest_by_key live_rows merge_into_delta remove_history",
    "source": "DefaultSource",
    "table_target": "TableTarget",
    "verification": "verify_with_spark",
}

__all__ = [name for names in _HOMES.values() for name in names.split()]


def __getattr__(name: str) -> Any:
    module = next((home for home, names in _HOMES.items() if name in names.split()), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        raise import_module(f"{__name__}.errors").no_pyspark(name) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
