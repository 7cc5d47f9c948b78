"""Kills the driver and its JVM with SIGKILL in mid-batch: the contents of the sink must equal the source."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pyspark_multiclouddb import live_rows

from .databases import EVENTS, KEYS
from .queries import marks

PROGRAM = Path(__file__).with_name("follower.py")
SECONDS = 300


class Follower:
    """The running program, and its progress."""

    def __init__(self, folder, argument="", program=PROGRAM):
        self.folder = folder
        self.log = (folder / "log").open("a")
        self.printed = self.log.tell()
        self.process = subprocess.Popen(
            [sys.executable, str(program), str(folder), argument], stdout=self.log, stderr=self.log
        )

    def noise(self):
        """Return the program's output without the unavoidable warnings of Java's launcher."""
        lines = (self.folder / "log").read_text()[self.printed :].splitlines()
        return [line for line in lines if not line.startswith("WARNING: ")]

    def wait_for(self, name):
        """Wait until a file of the checkpoint exists."""
        deadline = time.monotonic() + SECONDS
        while not (self.folder / "checkpoint" / name).exists():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, f"{name} does not come"
            time.sleep(0.002)

    def files(self):
        """Return the number of commits and marks, which show the progress of a run."""
        places = ("table/_delta_log/*.json", "checkpoint/offsets/*", "checkpoint/commits/*")
        return sum(len(list(self.folder.glob(place))) for place in places)

    def wait_for_files(self, more):
        deadline, wanted = time.monotonic() + SECONDS, self.files() + more
        while self.files() < wanted:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "it makes no progress"
            time.sleep(0.001)

    def kill(self):
        # Both are stopped first, so that neither runs while the other one is dead.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in (self.process.pid, int((self.folder / "jvm").read_text())):
                os.kill(pid, number)
        self.end(-signal.SIGKILL)

    def end(self, code):
        found = self.process.wait(SECONDS)
        self.log.close()
        assert found == code, (self.folder / "log").read_text()


def table_of(folder):
    table = live_rows(folder / "table").read_all()
    return {json.loads(row["key"])["id"]: json.loads(row["new_item_state"]) for row in table.to_pylist()}


def deleted_in(folder):
    """Return the keys of the tombstones."""
    table = DeltaTable(folder / "table").to_pyarrow_dataset().scanner(use_threads=False).to_table()
    return {json.loads(row["key"])["id"] for row in table.to_pylist() if row["_deleted_at"] is not None}


@pytest.mark.timeout(900)  # it starts Spark six times
def test_every_moment_of_a_kill_gives_the_same_rows(databases, start_queries):
    """The test uses three databases at once.

    Each start begins with the batch that the last kill interrupted.
    """
    queries = start_queries(list(databases("killed", "embedded", "dynamo", "mongo")))
    for moment in ("planning", "planned", "task", "sink", "commit"):
        queries.start(moment)
        if moment == "planning":
            queries.write()
        queries.reach()
        queries.kill()
        for place in queries.places():
            pending = marks(place, "offsets") - marks(place, "commits")
            # Where a batch was planned, it is not done; past the sink, its rows are there.
            assert len(pending) == (moment != "planning")
            kept = {number for number in pending if (place / "rows" / str(number)).exists()}
            assert kept == (pending if moment in ("sink", "commit") else set())
    queries.start()
    queries.end()
    queries.check()
    table = table_of(queries.folder / "embedded")
    assert table == {f"k{number % KEYS}": {"n": number} for number in range(EVENTS - KEYS, EVENTS)}


@pytest.mark.timeout(900)  # it starts Spark three times
def test_table_equals_the_source_after_kills_at_random_moments(source, tmp_path):
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    dice = random.Random(seed)
    for number in range(int(os.environ.get("MULTICLOUDDB_KILLS", "2"))):
        source.write(150, seed=f"{seed} {number}")
        follower = Follower(tmp_path)
        follower.wait_for_files(dice.randint(1, 12))
        time.sleep(dice.random() / 10)
        follower.kill()
    last = Follower(tmp_path)
    last.end(0)
    assert last.noise() == []
    assert table_of(tmp_path) == source.documents
    assert deleted_in(tmp_path) == {key for _, key, _ in source.truth} - source.documents.keys()
