"""Settings of Spark's JVM in tests: it starts with less work, and waits for its Python processes.

The JVM has the options of a short run, and an archive of its classes. Spark loads more than ten thousand
classes at each start. A JVM that has an archive of them neither reads them from the jars nor verifies them.
The archive is made once for a PySpark and a Java. Any other JVM ignores it.
"""

import fcntl
import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from pyspark_multiclouddb import ensure_java

EARLY = Path(__file__).with_name("early.py")
PROGRAM = Path(__file__).with_name("training.py")
# Each test runs Spark for seconds only: a compiler and a garbage collector that are quick to start save more
# than they cost.
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SECONDS = 200


def environment():
    """Return the variables of each process that starts Spark."""
    python = str(_python())
    return {"PYSPARK_PYTHON": python, "SPARK_SUBMIT_OPTS": _java_options(python)}


def _python():
    """Return a program that runs Python with less work, and lets streams connect to the JVM first.

    Spark puts an archive of PySpark first on the path, from which each process compiles modules again. The
    same modules are in the packages of this Python.
    """
    program, python = Path(sys.prefix, "bin", "spark-python"), shlex.quote(sys.executable)
    draft = program.with_name(f"{program.name}-{os.getpid()}")
    draft.write_text(
        "#!/bin/sh\n"
        'export PYTHONPATH="${PYTHONPATH##*/pyspark.zip:}"\n'
        f'case "$2" in pyspark.sql.*streaming.*) exec {python} {shlex.quote(str(EARLY))} "$2" ;; esac\n'
        f'exec {python} "$@"\n'
    )
    draft.chmod(0o755)
    draft.replace(program)
    return program


def _java_options(python):
    """Return the options for the JVM of Spark.

    The first call in a `.venv` makes the archive, which stays there; other processes wait for it.
    """
    import pyspark

    home = ensure_java() or os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    version = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    digest = hashlib.sha256(f"{pyspark.__file__} {pyspark.__version__} {version}".encode()).hexdigest()
    archive = Path(sys.prefix, f"spark-classes-{digest[:16]}.jsa")
    _make_once(archive, python)
    # A JVM that the archive is not for would say so on its standard output.
    return f"{OPTIONS} -XX:SharedArchiveFile={archive} -Xlog:disable"


def _make_once(archive, python):
    if archive.exists():
        return
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.exists():
            return
        place = {"dir": archive.parent, "ignore_cleanup_errors": True}
        with tempfile.TemporaryDirectory(**place) as folder:
            draft = Path(folder, archive.name)
            options = f"{OPTIONS} -XX:ArchiveClassesAtExit={draft} -Xlog:disable"
            with suppress(subprocess.SubprocessError):
                subprocess.run(
                    [sys.executable, str(PROGRAM), folder],
                    env={**os.environ, "PYSPARK_PYTHON": python, "SPARK_SUBMIT_OPTS": options},
                    capture_output=True,
                    timeout=SECONDS,
                    check=True,
                )
            # Some Javas cannot make an archive, and some machines are too slow. Then the archive is empty.
            # The JVM ignores it, and no process makes it again.
            draft.touch()
            draft.rename(archive)
