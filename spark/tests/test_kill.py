"""Kills the driver and its JVM with SIGKILL in mid-batch: the table must equal the source at the end."""

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


def marks(folder, kind):
    return {int(path.name) for path in (folder / "checkpoint" / kind).iterdir() if path.name.isdigit()}


@pytest.mark.timeout(900)  # it starts Spark four times
def test_table_equals_the_source_after_kills_at_every_stage(source, tmp_path):
    """Each restart begins with the batch that the last kill interrupted."""
    source.write(150)

    # In the first batch, which fixes the start: it is planned but not finished.
    follower = Follower(tmp_path)
    follower.wait_for("offsets/0")
    follower.kill()

    # Before the sink, then after it: the next start delivers that batch again.
    for place, batch in (("before-sink", 2), ("after-sink", 4)):
        source.split(batch)
        source.write(60, seed=place)
        Follower(tmp_path, f"{place}:{batch}").end(-signal.SIGKILL)
        assert marks(tmp_path, "offsets") - marks(tmp_path, "commits") == {batch}

    source.merge(1)
    source.write(30, seed="last")
    last = Follower(tmp_path)
    last.end(0)
    assert last.noise() == []
    assert marks(tmp_path, "offsets") == marks(tmp_path, "commits")
    assert table_of(tmp_path) == source.documents


@pytest.mark.timeout(900)  # it starts Spark six times
def test_table_equals_the_source_after_kills_at_random_moments(source, tmp_path):
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    dice = random.Random(seed)
    for number in range(int(os.environ.get("MULTICLOUDDB_KILLS", "5"))):
        source.write(150, seed=f"{seed} {number}")
        follower = Follower(tmp_path)
        follower.wait_for_files(dice.randint(1, 12))
        time.sleep(dice.random() / 10)
        follower.kill()
    Follower(tmp_path).end(0)
    assert table_of(tmp_path) == source.documents
    assert deleted_in(tmp_path) == {key for _, key, _ in source.truth} - source.documents.keys()
