"""python worker.py SOURCE COLLECTION POSITIONS TARGET SECONDS: follows the partitions that nobody follows."""

import hashlib
import json
import random
import signal
import sqlite3
import sys
import threading
import time
from contextlib import closing

from multiclouddb import (
    Beginning, ChangeFeedRequest, ErrorCategory, FromContinuationToken, MulticloudDbError, PhysicalPartition,
    ResourceAddress, connect, open_checkpoint_store,
)  # fmt: skip

DONE = "done"
FREE = "free "  # before the token of a partition that its worker has given back
TABLE = "CREATE TABLE IF NOT EXISTS copy (id TEXT PRIMARY KEY, order_key TEXT, document TEXT)"
UPSERT = """
INSERT INTO copy VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE
SET order_key = excluded.order_key, document = excluded.document WHERE excluded.order_key > copy.order_key
"""


def row(event):
    document = None if event.new_item_state is None else json.dumps(event.new_item_state, default=str)
    return str(event.key["id" if "id" in event.key.components else "_id"]), event.order_key, document


def entry(partition_id, start, parents=()):
    """Make the entry of a plan: the name of a checkpoint, and what to follow."""
    name = hashlib.sha256(partition_id.encode()).hexdigest()[:16]
    return name, {"id": partition_id, "start": start, "parents": [entry(each, "")[0] for each in parents]}


class Worker:
    def __init__(self, client, address, store, target, still_seconds):
        self.client, self.address, self.store = client, address, store
        self.target, self.still_seconds = target, still_seconds
        self.stop, self.followed, self.finished = threading.Event(), {}, set()
        self.seen, self.failure = {}, None

    def save(self, name, token, expected):
        """Save if nobody else has; return None if somebody has."""
        try:
            return self.store.save(name, token, expected)
        except MulticloudDbError as error:
            if error.category != ErrorCategory.CONFLICT:
                raise
            return None

    def plan(self):
        """Return the plan and its version; the first worker of all makes it."""
        while (found := self.store.load("plan")) is None:
            request = ChangeFeedRequest(self.address, Beginning())
            planned = dict(entry(*each[:2]) for each in self.client.plan_partitions(request))
            self.save("plan", json.dumps(planned), None)
        return json.loads(found.token), found.version

    def extend(self, children):
        """Add the children of an ended partition to the plan, and leave out what is done."""
        added = dict(entry(each.partition_id, each.continuation_token, each.parents) for each in children)
        saved = None
        while saved is None:
            plan, version = self.plan()
            kept = {name: each for name, each in plan.items() if name not in self.finished}
            saved = self.save("plan", json.dumps({**added, **kept}), version)

    def is_done(self, name):
        found = self.store.load(name)
        return found is not None and found.token == DONE

    def claim(self, plan, name):
        """Return the checkpoint of a partition that nobody follows, now that this worker follows it."""
        found = self.store.load(name)
        if found is None:
            # A parent that is not in the plan is done, older than the retention, or not found yet.
            ready = all(map(self.is_done, plan.keys() & plan[name]["parents"]))
            return self.save(name, plan[name]["start"], None) if ready else None
        if found.token == DONE:
            return None
        if found.token.startswith(FREE):
            return self.save(name, found.token.removeprefix(FREE), found.version)
        version, since = self.seen.get(name, (None, 0.0))
        if found.version != version:  # it moves, so somebody follows it
            self.seen[name] = found.version, time.monotonic()
            return None
        stands_still = time.monotonic() - since >= self.still_seconds
        return self.save(name, found.token, found.version) if stands_still else None

    def changes_of(self, planned, claimed):
        start, scope = FromContinuationToken(claimed.token), PhysicalPartition(planned["id"])
        request = ChangeFeedRequest(self.address, start, scope, max_page_size=100)
        return self.client.iterate_changes(request, max_idle_backoff_seconds=self.still_seconds / 8)

    def follow(self, name, changes, claimed):
        """Follow one partition to its end, until another worker has claimed it, or until `stop`."""
        with closing(sqlite3.connect(self.target, timeout=60)) as copy, changes:
            for page in changes.pages():
                with copy:
                    copy.executemany(UPSERT, map(row, page.events))
                if page.partition_retired:
                    self.extend(page.child_partitions)
                token = DONE if page.partition_retired else page.continuation_token
                claimed = self.save(name, token, claimed.version)
                if claimed is None:
                    return
                if page.partition_retired:
                    self.finished.add(name)
        if claimed.token != DONE:  # it was stopped: another worker need not wait
            self.save(name, FREE + claimed.token, claimed.version)

    def run_follower(self, *arguments):
        try:
            self.follow(*arguments)
        except Exception as error:  # it ends the process
            self.failure = error
            self.stop.set()

    def run(self):
        with closing(sqlite3.connect(self.target, timeout=60)) as copy, copy:
            copy.execute(TABLE)
        while not self.stop.is_set():
            plan, _ = self.plan()
            for name in plan.keys() - self.followed.keys():
                if (claimed := self.claim(plan, name)) is not None:
                    changes = self.changes_of(plan[name], claimed)
                    thread = threading.Thread(target=self.run_follower, args=(name, changes, claimed))
                    self.followed[name] = thread, changes
                    thread.start()
                    break  # one at a time, so that the other workers get some too
            self.followed = {name: each for name, each in self.followed.items() if each[0].is_alive()}
            self.stop.wait(random.uniform(0.1, 0.2) * min(1.0, self.still_seconds))
        for _, changes in self.followed.values():
            changes.stop()  # ends a read that is running, after the page in hand
        for thread, _ in self.followed.values():
            thread.join()
        if self.failure is not None:
            raise self.failure


def main():
    source, collection, positions, target, still_seconds = sys.argv[1:]
    address, store = ResourceAddress.parse(collection), open_checkpoint_store(positions)
    with connect(source) as client:
        worker = Worker(client, address, store, target, float(still_seconds))
        signal.signal(signal.SIGTERM, lambda *_: worker.stop.set())
        worker.run()


if __name__ == "__main__":
    main()
