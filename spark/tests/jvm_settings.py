"""Settings of Spark's JVM in tests: less work at the start, no failures on a busy machine.

The JVM runs with options for a short run, and with an archive of its classes. Spark loads more than ten
thousand classes at each start. If a JVM has an archive of these classes, it neither reads them from the jars
nor verifies them. One archive is made for each combination of PySpark and Java. Any other JVM ignores the
archive.
"""

import fcntl
import hashlib
import os
import runpy
import shlex
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from pyspark_multiclouddb import ensure_java

CATALOG = Path(__file__).with_name("scala_catalog.py")
EARLY = Path(__file__).with_name("early.py")
PROGRAM = Path(__file__).with_name("training.py")
# Each test runs Spark for only a few seconds, so a simple compiler and a simple garbage collector save more
# time than they cost, and so does a query that is interpreted instead of compiled.
OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
)
SECONDS = 200


def environment():
    """Return the environment variables for each process that starts Spark."""
    import pyspark

    # `runpy` runs this file too, so it cannot import the module beside it.
    jar = runpy.run_path(str(CATALOG))["catalog_jar"]()
    variables, packages = {"PYSPARK_PYTHON": str(_python())}, f"{pyspark.__file__} {pyspark.__version__}"
    return {
        **variables,
        "SPARK_SUBMIT_OPTS": _java_options(Path(sys.prefix), packages, variables),
        "SPARK_DIST_CLASSPATH": str(jar),
    }


def environment_of(place):
    """Return the environment variable that a process needs to start another version of Spark."""
    path = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")]))
    return {"SPARK_SUBMIT_OPTS": _java_options(place.parent, place, {"PYTHONPATH": path})}


def _python():
    """Return a program that starts Python faster for Spark, and lets streams connect to the JVM first."""
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


def _java_options(folder, packages, variables):
    """Return the options for the JVM of Spark."""
    home = ensure_java() or os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    version = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    digest = hashlib.sha256(f"{packages} {version}".encode()).hexdigest()
    archive = folder / f"spark-classes-{digest[:16]}.jsa"
    _make_once(archive, variables)
    # If the archive does not fit a JVM, the JVM would otherwise print a warning on its standard output.
    return f"{OPTIONS} -XX:SharedArchiveFile={archive} -Xlog:disable"


def _make_once(archive, variables):
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
                    env={**os.environ, **variables, "SPARK_SUBMIT_OPTS": options},
                    capture_output=True,
                    timeout=SECONDS,
                    check=True,
                )
            # Some versions of Java cannot make an archive, and some machines are too slow. In these cases the
            # archive is an empty file. The JVM ignores the file, and no process tries to make it again.
            draft.touch()
            draft.rename(archive)
