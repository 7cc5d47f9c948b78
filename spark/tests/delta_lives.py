"""Copies a collection into a Delta table, and kills the driver at a random commit to the table."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from deltalake import DeltaTable

from multiclouddb_conformance.waiting import wait_until

PROGRAM = Path(__file__).with_name("driver.py")
SECONDS = 300


def files(folder):
    """Return the number of commits to the table and of files in the checkpoint: the progress of a query."""
    places = ("table/_delta_log/*.json", "checkpoint/offsets/*", "checkpoint/commits/*")
    return sum(len(list(folder.glob(place))) for place in places)


class Follower:
    """The part `delta` of the driver, and its progress."""

    def __init__(self, folder, options):
        self.folder = folder
        (folder / "given").write_text(json.dumps(options))
        command = [sys.executable, str(PROGRAM), "delta", str(folder)]
        with (folder / "log").open("a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait(self, condition):
        def holds():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            return condition()

        wait_until(holds, seconds=SECONDS)

    def kill(self):
        # Both processes are stopped first, so that neither of them runs after the other is killed.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in (self.process.pid, int((self.folder / "jvm").read_text())):
                os.kill(pid, number)
        self.end(-signal.SIGKILL)

    def end(self, code):
        assert self.process.wait(SECONDS) == code, (self.folder / "log").read_text()


def live(seed, folder, options, put, delete):
    """Kill the program once and run it again; the table and its tombstones must match the collection."""
    dice, documents, deleted = random.Random(seed), {}, set()

    def write(count):
        for _ in range(count):
            name = dice.randrange(40)
            # Only deletes after the start of the snapshot become tombstones.
            if started and name in documents and dice.random() < 0.4:
                delete(name)
                del documents[name]
                deleted.add(name)
            else:
                documents[name] = dice.randrange(1000)
                deleted.discard(name)
                put(name, documents[name])

    started = False
    write(60)
    follower = Follower(folder, options)
    follower.wait((folder / "checkpoint" / "offsets" / "0").exists)
    started = True
    write(25)
    wanted = files(folder) + dice.randint(1, 8)
    follower.wait(lambda: files(folder) >= wanted)
    follower.kill()
    write(25)
    Follower(folder, options).end(0)
    table = (
        DeltaTable(folder / "table").to_pyarrow_dataset().scanner(use_threads=False).to_table().to_pylist()
    )
    live = {_id(row): json.loads(row["new_item_state"])["n"] for row in table if row["_deleted_at"] is None}
    assert live == documents
    assert {_id(row) for row in table if row["_deleted_at"] is not None} == deleted
    assert len(table) == len(documents) + len(deleted)


def _id(row):
    [name] = json.loads(row["key"]).values()
    return int(name)
