"""Compiles the test catalog with the Scala compiler in PySpark's own jars, once for each version of both."""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import uuid
import zipfile
from pathlib import Path

from pyspark_multiclouddb import ensure_java

SOURCES = sorted((Path(__file__).parent / "catalog").glob("*.scala"))
CLASS = "multiclouddb.test.Catalog"
SECONDS = 300


def catalog_jar():
    """Return the jar with the catalog."""
    import pyspark

    text = b"".join(source.read_bytes() for source in SOURCES)
    digest = hashlib.sha256(text + pyspark.__version__.encode()).hexdigest()
    jar = Path(sys.prefix) / f"spark-catalog-{digest[:16]}.jar"
    if jar.exists():
        return jar
    with jar.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jar.exists():
            _compile(jar, Path(pyspark.__file__).parent / "jars")
    return jar


def table_in(spark, folder):
    """Return the name of a table in a catalog of its own, whose files are in a folder."""
    name = f"lake_{uuid.uuid4().hex}"
    spark.conf.set(f"spark.sql.catalog.{name}", CLASS)
    spark.conf.set(f"spark.sql.catalog.{name}.root", str(folder))
    return f"{name}.shop.orders"


def _compile(jar, jars):
    home = ensure_java() or os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    with tempfile.TemporaryDirectory(dir=jar.parent) as folder:
        command = [java, "-Xss16m", "-cp", f"{jars}/*", "scala.tools.nsc.Main", "-usejavacp", "-nowarn"]
        ran = subprocess.run(
            [*command, "-d", folder, *map(str, SOURCES)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        draft = Path(folder, jar.name)
        with zipfile.ZipFile(draft, "w") as archive:
            for each in Path(folder).rglob("*.class"):
                archive.write(each, each.relative_to(folder))
        draft.replace(jar)
