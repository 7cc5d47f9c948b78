"""Runs the contract of sinks on Spark's tables in other places: older versions, Spark Connect, a cluster.

Each place is a process of its own, which runs the tests of `test_table_targets.py`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .environments import DIGESTS, environment, free_port, sail, zstandard
from .scala_catalog import catalog_jar
from .test_connect import serving

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800), pytest.mark.xdist_group("jvm apart")]

HERE = Path(__file__).parent
CLUSTER = "local-cluster[2,1,1024]"
# What these processes need of their own.
OWN = ("SPARK_SUBMIT_OPTS", "SPARK_DIST_CLASSPATH", "PYSPARK_PYTHON")


def run(name, *more, folders=(), **variables):
    """Run tests of a file in another process."""
    # Older versions of PySpark leave sockets open.
    more = ["-p", "no:unraisableexception", *more]
    paths = os.pathsep.join(map(str, [*folders, *filter(None, [os.environ.get("PYTHONPATH")])]))
    given = {name: value for name, value in os.environ.items() if name not in OWN}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(HERE / name), *more],
        env={**given, "PYTHONPATH": paths, **variables},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert "skipped" not in ran.stdout


@pytest.mark.parametrize("version", DIGESTS)
def test_older_version(version):
    run("test_table_targets.py", folders=[environment(version)])


def test_connect():
    with serving(zstandard(), SPARK_DIST_CLASSPATH=str(catalog_jar())) as address:
        run("test_table_targets.py", "-k", "not executors", folders=[zstandard()], SPARK_REMOTE=address)


def test_cluster():
    run("test_table_targets.py", SPARK_TESTS_MASTER=CLUSTER)


def test_cluster_loses_an_executor_and_the_driver_does_little():
    run("table_on_cluster.py", SPARK_TESTS_MASTER=CLUSTER)


SAIL_CLIENT = "4.1.4"  # the newest that this version of Sail serves
PROGRAM = HERE / "sail_program.py"


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_real_tables_on_sail(kind, tmp_path):
    paths = [sail(), environment(SAIL_CLIENT), zstandard()]
    given = {name: value for name, value in os.environ.items() if name not in OWN}
    given |= {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "SAIL_EXECUTION__CHECKPOINT__PATH": f"file://{tmp_path}/kept",
    }
    port = str(free_port())
    command = [sys.executable, "-m", "pysail", "spark", "server", "--ip", "127.0.0.1", "--port", port]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, env=given, stdout=log, stderr=log)
    try:
        ran = subprocess.run(
            [sys.executable, str(PROGRAM), port, str(tmp_path), kind],
            env=given, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr[-6000:] + (tmp_path / "log").read_text()[-3000:]
    finally:
        server.kill()
        server.wait()
