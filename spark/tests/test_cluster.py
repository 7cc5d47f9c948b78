"""Tests streams on clusters whose processes are killed: the sinks must equal the sources.

`local-cluster` starts its own executors. The standalone cluster consists of a master and two workers, each in
its own process. Each cluster runs three queries at the same time: on the embedded store, on DynamoDB Local
and on MongoDB.
"""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path

import pyspark
import pytest

from multiclouddb_conformance.waiting import wait_until
from pyspark_multiclouddb import ensure_java
from testing.seeds import in_soak

from .delta_lives import files
from .drivers import EVENTS, KEYS, PARTS, SECONDS, end, marks
from .environments import free_port
from .micro_batches import documents, tombstones

pytestmark = [pytest.mark.soak, pytest.mark.xdist_group("jvm apart")]

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
DATABASES = ("embedded", "dynamo", "mongo")


@pytest.fixture
def processes():
    """Start programs. At the end, kill all remaining programs and their child processes."""
    with ExitStack() as stack:

        def start(log, *command):
            environ = {
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                # On a busy machine, processes answer later than Spark expects.
                "SPARK_AUTH_SOCKET_TIMEOUT": "120",
                "SPARK_NO_DAEMONIZE": "1",
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
            }
            out = stack.enter_context(log.open("a"))
            process = subprocess.Popen(command, env=environ, stdout=out, stderr=out, start_new_session=True)
            stack.callback(end, process)
            return process

        yield start


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor_above(pid):
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = parent_of(pid)
    return pid


def kill_executors(queries):
    """Kill the executors that are running a task, then let the queries continue."""
    for pid in {executor_above(pid) for pid in queries.reach()}:
        os.kill(pid, signal.SIGKILL)
    (queries.folder / "go").touch()


def test_standalone_cluster_loses_executors_a_worker_and_the_driver(
    databases, start_queries, processes, tmp_path
):
    ensure_java()
    port = free_port()
    log, place = tmp_path / "cluster.log", ["--host", "127.0.0.1", "--webui-port", "0"]
    deploy, master = "org.apache.spark.deploy", f"spark://127.0.0.1:{port}"
    feeds = list(databases("standalone", *DATABASES))  # workers pass their environment to executors
    processes(log, str(SPARK_CLASS), f"{deploy}.master.Master", *place, "--port", str(port))
    wait_until(lambda: "I have been elected leader" in log.read_text(), seconds=SECONDS)
    room = ["--cores", "2", "--memory", "600m", "--work-dir", str(tmp_path / "work")]
    workers = [
        processes(log, str(SPARK_CLASS), f"{deploy}.worker.Worker", *place, *room, master) for _ in range(2)
    ]
    wait_until(lambda: log.read_text().count("Registering worker") == 2, seconds=SECONDS)

    queries = start_queries(feeds, master=master)
    # The driver waits until this test has written all parts of the data.
    part = EVENTS // PARTS
    queries.start("task")
    queries.write(0)
    kill_executors(queries)
    queries.wait_for_more(part - 1)
    end(workers[0])
    queries.write(1)
    queries.wait_for_more(part)
    queries.kill()
    queries.start()
    queries.write(2)
    queries.end()
    queries.check()


MOMENTS = ("planning", "planned", "task", "sink", "commit")
# The queries on other databases are killed at only one moment, after which a whole batch is repeated.
MOMENT_OF_OTHERS = "sink"
OTHERS = ("dynamo", "mongo")


def check_pending(queries, moment):
    """Check which batches are incomplete after a kill at the given moment."""
    for place in queries.places():
        pending = marks(place, "offsets") - marks(place, "commits")
        # A batch that was planned is incomplete. If the sink has committed the batch, its rows exist.
        assert len(pending) == (moment != "planning")
        kept = {number for number in pending if (place / "rows" / str(number)).exists()}
        assert kept == (pending if moment in ("sink", "commit") else set())


@pytest.mark.parametrize("seed", in_soak(0, 1))
def test_kills_at_every_moment_and_at_random_ones_give_the_same_rows(databases, start_queries, source, seed):
    """One query is killed at each moment; a second one, in the same driver, at an arbitrary point."""
    dice = random.Random(seed)
    queries = start_queries(list(databases("killed", "embedded", *OTHERS)))
    followed = source.options(maxRecordsPerTrigger="30")
    folder = queries.folder / "followed"
    further = int(os.environ.get("MULTICLOUDDB_KILLS", "20")) - len(MOMENTS)
    for number, moment in enumerate([*MOMENTS, *repeat(None, further)]):
        others = OTHERS if moment == MOMENT_OF_OTHERS else ()
        queries.start(moment or "none", ["embedded", *others] if moment else [], followed)
        if moment == "planning":
            queries.write(names=["embedded"])
        elif others:
            queries.write(names=others)
        queries.reach()
        before, more = files(folder), dice.randint(1, 12)
        source.write(150, seed=f"{seed} {number}")
        queries.wait(lambda place: files(place) >= before + more, [folder])  # noqa: B023 - called here alone
        time.sleep(dice.random() / 10)
        queries.kill()
        check_pending(queries, moment)
    (queries.folder / "last").touch()
    queries.start(followed=followed)
    queries.end()
    queries.check()
    assert documents(queries.folder / "embedded" / "table") == {
        f"k{number % KEYS}": {"n": number} for number in range(EVENTS - KEYS, EVENTS)
    }
    assert documents(folder / "table") == source.documents
    assert (
        tombstones(folder / "table").keys() == {key for _, key, _ in source.truth} - source.documents.keys()
    )
