"""Provides a Spark session on this machine that prints only errors and is ready for the data source."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from multiclouddb_api.validators import check_type
from pyspark_multiclouddb.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["local_session"]

_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOG_OPTION: Final = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


def local_session(app_name: str, **conf: object) -> SparkSession:
    """Start Spark in this process, or return the running session.

    The function finds a Java (`ensure_java`), makes Spark's workers use this Python, listens only on the
    loopback interface, uses the time zone UTC, and prints only errors. The session has no progress bars and
    no web interface.

    Args:
        app_name: The name of the application in Spark's interface.
        conf: Spark settings; they override the settings of this function. If a value is None, the
            function does not set this setting. Names contain dots:
            `local_session("demo", **{"spark.master": "local[4]"})`. Java options are added to the
            options that this function sets. For example, the option `-XX:TieredStopAtLevel=1`
            halves the work of a short run.

    Returns:
        The session. By default, the session's master is `local[*]`, and Spark runs a failed task a second
        time.

    Raises:
        RuntimeError: Raised if there is no usable Java.

    Examples:
        >>> with local_session("orders") as spark:
        ...     spark.read.format("multiclouddb").option("url", url).option("collection", "orders").load()
    """
    check_type("app_name", app_name, str)
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", os.environ["PYSPARK_PYTHON"])
    from pyspark.sql import SparkSession

    java = " ".join([_LOG_OPTION, str(conf.get(_JAVA_OPTIONS) or "")]).strip()
    builder: SparkSession.Builder = SparkSession.builder
    for name, value in {**_settings(), **conf, _JAVA_OPTIONS: java, "spark.app.name": app_name}.items():
        if value is not None:
            builder = builder.config(name, str(value))
    return builder.getOrCreate()


def _settings() -> dict[str, object]:
    cores = os.cpu_count() or 1
    return {
        "spark.master": "local[*,2]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Streams disable this setting with a warning, and it does not help on a small machine.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": cores,
        "spark.sql.session.timeZone": "UTC",
    }
