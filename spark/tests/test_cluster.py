"""Tests a stream on clusters of several processes, which are killed: the sink must equal the source.

`local-cluster` starts its own executors. The standalone cluster consists of a master and two workers, each a
process.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pyspark
import pytest

from multiclouddb_conformance.waiting import wait_until
from pyspark_multiclouddb import ensure_java

from .test_source import through_the_client

PROGRAM = Path(__file__).with_name("cluster_life.py")
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
SECONDS = 300


@pytest.fixture
def folder(source, tmp_path):
    """Return the folder of a store with 160 changes."""
    source.write(80)
    source.split()
    source.write(80)
    return tmp_path


@pytest.fixture
def processes():
    """Start programs; at the end, kill what is left of them and of their child processes."""
    with ExitStack() as stack:

        def start(log, *command):
            environ = {
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
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


def end(process):
    """Kill the session of a program; each program has its own session, so its group contains nothing else."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def drive(processes, folder, master):
    return processes(folder / "driver.log", sys.executable, str(PROGRAM), str(folder), master)


def batches(folder):
    return len(list((folder / "rows").iterdir())) if (folder / "rows").exists() else 0


def check(folder, source):
    rows = [row for file in (folder / "rows").iterdir() for row in json.loads(file.read_text())]
    assert sorted(rows) == sorted(row["event_id"] for row in through_the_client(source))
    assert max(len(json.loads(file.read_text())) for file in (folder / "rows").iterdir()) <= 20


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor_above(pid):
    """Return the JVM that runs a task, found from the process that its Python worker was forked from."""
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = parent_of(pid)
    return pid


def alive(driver, folder):
    assert driver.poll() is None, (folder / "driver.log").read_text()[-3000:]
    return True


def test_local_cluster_loses_an_executor_in_a_task(source, folder, processes):
    driver = drive(processes, folder, "local-cluster[2,1,512]")
    wait_until(lambda: alive(driver, folder) and (folder / "in-task").exists(), seconds=SECONDS)
    os.kill(executor_above(int((folder / "in-task").read_text())), signal.SIGKILL)
    (folder / "go").touch()
    assert driver.wait(SECONDS) == 0, (folder / "driver.log").read_text()[-3000:]
    check(folder, source)


def test_standalone_cluster_loses_an_executor_a_worker_and_the_driver(source, folder, processes):
    ensure_java()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log, place = folder / "cluster.log", ["--host", "127.0.0.1", "--webui-port", "0"]
    deploy, master = "org.apache.spark.deploy", f"spark://127.0.0.1:{port}"
    processes(log, str(SPARK_CLASS), f"{deploy}.master.Master", *place, "--port", str(port))
    wait_until(lambda: "I have been elected leader" in log.read_text(), seconds=SECONDS)
    room = ["--cores", "1", "--memory", "600m", "--work-dir", str(folder / "work")]
    workers = [
        processes(log, str(SPARK_CLASS), f"{deploy}.worker.Worker", *place, *room, master) for _ in range(2)
    ]
    wait_until(lambda: log.read_text().count("Registering worker") == 2, seconds=SECONDS)

    driver = drive(processes, folder, master)
    wait_until(lambda: alive(driver, folder) and (folder / "in-task").exists(), seconds=SECONDS)
    os.kill(executor_above(int((folder / "in-task").read_text())), signal.SIGKILL)
    (folder / "go").touch()
    wait_until(lambda: alive(driver, folder) and batches(folder) >= 3, seconds=SECONDS)
    end(workers[0])
    before = batches(folder)
    wait_until(lambda: alive(driver, folder) and batches(folder) > before, seconds=SECONDS)
    end(driver)
    assert len(json.loads((folder / "rows" / "1").read_text())) == 20
    again = drive(processes, folder, master)
    assert again.wait(SECONDS) == 0, (folder / "driver.log").read_text()[-3000:]
    check(folder, source)
