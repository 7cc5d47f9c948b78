"""Tests Spark Connect with a client that does not have this project's package; only the server has it."""

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable

from multiclouddb_api import ErrorCategory
from pyspark_multiclouddb import error_from_query

from .environments import environment, free_port, zstandard
from .jvm_settings import environment_of
from .micro_batches import documents
from .test_source import through_the_client

pytestmark = pytest.mark.xdist_group("jvm apart")

SERVER, CLIENT = (Path(__file__).with_name(name) for name in ("serving.py", "remote.py"))
SECONDS = 300


def packages():
    """Return a folder with all packages except those of this project."""
    return str(Path(pyspark.__file__).parents[1])


def environ(*folders):
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}


@contextmanager
def serving(*folders, **variables):
    """Start a server on this machine and return its address."""
    port = free_port()
    command = [sys.executable, str(SERVER), str(port)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env={**environ(*folders), **variables}, stdin=pipe, stdout=pipe, text=True
    ) as server:
        assert server.stdout.readline() == "ready\n"
        try:
            yield f"sc://127.0.0.1:{port}"
        finally:
            server.stdin.close()
            server.wait(SECONDS)


def run_client(address, folder, *folders):
    """Return the results of the client. The client's path contains none of this project's packages."""
    ran = subprocess.run(
        [sys.executable, "-S", str(CLIENT), address, str(folder)],
        env=environ(*folders, packages()),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def check_client(found, source, written, folder):
    assert not found["ours"]
    assert sorted(found["batch"]) == sorted(written)
    assert documents(folder / "table") == source.documents
    categories = {name: error_from_query(RuntimeError(found[name])) for name in ("wrong", "missing", "other")}
    assert categories == {
        "wrong": ErrorCategory.INVALID_REQUEST,
        "missing": ErrorCategory.NOT_FOUND,
        "other": ErrorCategory.INVALID_REQUEST,
    }
    assert "did you mean maxRecordsPerTrigger?" in found["wrong"]
    assert "is of another source" in found["other"]


@pytest.mark.parametrize("version", [pyspark.__version__, pytest.param("4.0.5", marks=pytest.mark.soak)])
def test_batch_stream_sink_and_errors(source, tmp_path, version):
    source.write(45)
    source.split()
    source.write(45)
    source.store.create_collection("others")
    written = [row["event_id"] for row in through_the_client(source)]
    folders, java = [zstandard()], {}
    if version != pyspark.__version__:
        folders = [environment(version), *folders]
        java = environment_of(folders[0])
    (tmp_path / "events").mkdir()
    store = f"embedded://{source.store.path}"
    with serving(*folders, **java, STORE=store, EVENTS=str(tmp_path / "events")) as address:
        found = run_client(address, tmp_path, *folders)
    logged = "".join(each.read_text() for each in (tmp_path / "events").rglob("events_*"))
    assert "env:STORE" in logged
    assert store not in logged
    assert "correct-horse" in logged, "Spark does not write it any more: SECURITY.md can say so"
    assert "correct-horse" not in found["secret"]
    assert found["version"] == version
    check_client(found, source, written, tmp_path)
    reads = Counter((tmp_path / "reads").read_text().splitlines())
    assert max(reads.values()) == 1
    table = DeltaTable(tmp_path / "table")
    assert table.version() > len({line.split()[0] for line in reads}) + 2
