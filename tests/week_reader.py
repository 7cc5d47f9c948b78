"""Reads a feed for `test_week.py` in a process of its own, whose memory is the reader's alone.

python week_reader.py pages|spark SOURCE COLLECTION FOLDER answers each line of its input with a line of JSON.
"""

import ctypes
import gc
import json
import logging
import os
import runpy
import sys
import threading
import time
from pathlib import Path

import multiclouddb_api as api

LIBC = ctypes.CDLL("libc.so.6")
BATCHES = Path(__file__).parents[1] / "spark/tests/micro_batches.py"


class Clock:
    """Moves this process's clocks; the wall clock also goes back."""

    def __init__(self):
        self._wall = self._steady = 0.0
        wall, steady = time.time, time.monotonic
        time.time = lambda: wall() + self._wall
        time.monotonic = lambda: steady() + self._steady

    def advance(self, seconds):
        self._wall += seconds
        self._steady += seconds

    def step(self, seconds):
        self._wall += seconds


class LogVolume(logging.Handler):
    """Counts the characters that the library logs between two answers."""

    def __init__(self):
        super().__init__(logging.INFO)
        self._count = 0

    def emit(self, record):
        self._count += len(record.getMessage())

    def taken(self):
        count, self._count = self._count, 0
        return count


class Pages:
    """Reads pages and single events by turns, and keeps the position in a file."""

    def __init__(self, source, collection, folder):
        self._source, self._folder = source, Path(folder)
        self._request = api.ChangeFeedRequest(api.ResourceAddress.parse(collection), api.Beginning())
        self._store = api.FileCheckpointStore(folder)
        self._client, self._turn = api.connect(source), 0
        self.found = {}

    def restart(self):
        self._client.close()
        self._client = api.connect(self._source)

    def read(self):
        """Read until the feed is idle; within a key, changes come in order."""
        changes = self._client.iterate_changes(
            self._request, until_idle=True, checkpoint_store=self._store, checkpoint_name="orders"
        )
        self._turn += 1
        with changes:
            if self._turn % 2:
                events = (event for page in changes.pages() for event in page.events)
            else:
                events = iter(changes)
            for event in events:
                self.found[str(event.key["id"])] = int(event.new_item_state["number"])

    def size(self):
        """Return the length of the token, and the bytes of all files."""
        files = sum(each.stat().st_size for each in self._folder.iterdir())
        return len(self._store.load("orders").token), files


class Place:
    """What a query reads."""

    def __init__(self, source, collection):
        database, slash, name = collection.rpartition("/")
        self._place = {"url": source, "collection": name, **({"database": database} if slash else {})}

    def options(self, **more):
        return {**self._place, **more}


class Spark:
    """Reads micro-batches as Spark does, with offsets that were JSON in between."""

    def __init__(self, source, collection, folder):
        make = runpy.run_path(str(BATCHES))["Query"]
        self._query = make(Place(source, collection), startingPosition="beginning")
        self._newest, self.found = {}, {}

    def restart(self):
        self._query.restart()

    def read(self):
        """Run micro-batches until nothing is left; of two changes of a key the later sorts higher."""
        for row in self._query.drain():
            key = json.loads(row["key"])["id"]
            if row["order_key"] > self._newest.get(key, ""):
                self._newest[key] = row["order_key"]
                self.found[key] = int(json.loads(row["new_item_state"])["number"])
        # Spark keeps the offsets of the last batches only.
        del self._query.log[:-2]
        self._query.done = len(self._query.log)

    def size(self):
        """Return the length of the newest offset; Spark itself keeps it in files."""
        return len(json.dumps(self._query.log[-1])), 0


def main():
    reader = {"pages": Pages, "spark": Spark}[sys.argv[1]](*sys.argv[2:])
    log = LogVolume()
    logging.getLogger("multiclouddb").addHandler(log)
    clock = Clock()
    for line in sys.stdin:
        match line.split():
            case ["restart"]:
                reader.restart()
            case ["advance", seconds]:
                clock.advance(float(seconds))
            case ["step", seconds]:
                clock.step(float(seconds))
            case ["read"]:
                reader.read()
        position, files = reader.size() if reader.found else (0, 0)
        gc.collect()
        LIBC.malloc_trim(0)  # else freed memory counts that the allocator keeps for later
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        sample = {
            "memory": pages * os.sysconf("SC_PAGE_SIZE"),
            "handles": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
            "position": position,
            "files": files,
            "log": log.taken(),
        }
        sys.stdout.write(json.dumps([reader.found, sample]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
