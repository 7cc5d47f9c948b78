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
    from pyspark_multiclouddb.cluster import merge_into_table
    from pyspark_multiclouddb.columns import EVENT_COLUMNS
    from pyspark_multiclouddb.errors import error_from_query
    from pyspark_multiclouddb.progress import ProgressTable, caught_up
    from pyspark_multiclouddb.rows import pages_to_dataframe
    from pyspark_multiclouddb.session import ensure_java, local_session
    from pyspark_multiclouddb.sinks import drop_tombstones, latest_by_key, live_rows, merge_into_delta
    from pyspark_multiclouddb.source import DefaultSource
    from pyspark_multiclouddb.table_target import TableTarget
    from pyspark_multiclouddb.verification import verify_with_spark

__all__ = [
    "EVENT_COLUMNS",
    "DefaultSource",
    "ProgressTable",
    "TableTarget",
    "caught_up",
    "drop_tombstones",
    "ensure_java",
    "error_from_query",
    "latest_by_key",
    "live_rows",
    "local_session",
    "merge_into_delta",
    "merge_into_table",
    "pages_to_dataframe",
    "verify_with_spark",
]

_HOMES = {
    "cluster": "merge_into_table",
    "columns": "EVENT_COLUMNS",
    "errors": "error_from_query",
    "progress": "ProgressTable caught_up",
    "rows": "pages_to_dataframe",
    "session": "ensure_java local_session",
    "sinks": "drop_tombstones latest_by_key live_rows merge_into_delta",
    "source": "DefaultSource",
    "table_target": "TableTarget",
    "verification": "verify_with_spark",
}


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
