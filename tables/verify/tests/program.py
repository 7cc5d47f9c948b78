"""Parts of tests that run in a process of their own: `python program.py PART FOLDER …`."""

import json
import os
import resource
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import attrs
import pyarrow as pa
from deltalake import DeltaTable

from multiclouddb_api import FileCheckpointStore, ResourceAddress, connect
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_tables.contract import Fix
from multiclouddb_tables.delta_log import committed
from multiclouddb_tables.mark import Expected, FeedSource, FoundTable
from multiclouddb_verify import DeltaTarget, stored_position, verify
from multiclouddb_verify.source import Source
from multiclouddb_verify.verification import Verification
from pyspark_multiclouddb import merge_into_delta

ADDRESS = ResourceAddress("main", "orders")


def key_of(name):
    return json.dumps({"id": name}, separators=(",", ":"))


def verified(folder, phase, repairs):
    """Compare, and die in a phase."""

    def die(progress):
        if progress.phase == phase:
            os.kill(os.getpid(), signal.SIGKILL)

    with connect(f"embedded://{folder / 'shop.db'}") as client:
        verify(
            client, ADDRESS, DeltaTarget(folder / "table"), state=folder / "state", repair=repairs == "1",
            position=stored_position(FileCheckpointStore(folder / "checkpoints"), "sink"), on_progress=die,
        )  # fmt: skip


def merge(folder, commits):
    """Merge a change of a shared key and a new key, many times."""
    for number in range(int(commits)):
        names = ["shared", f"sink-{number}"]
        batch = pa.table(
            {
                "key": [key_of(name) for name in names],
                "order_key": [f"9{number:09d}"] * 2,
                "type": ["UPDATE"] * 2,
                "event_id": [f"{name}@{number}" for name in names],
                "backfilled": [False] * 2,
                "timestamp": pa.array([datetime.now(UTC)] * 2, pa.timestamp("us", tz="UTC")),
                "new_item_state": [json.dumps({"n": number})] * 2,
            }
        )
        merge_into_delta(batch, None, folder / "table", None, source="embedded:main/orders")


def fix(folder, commits):
    """Repair the shared key as it was some time ago, and add another key, many times."""
    target = DeltaTarget(folder / "table")
    found = target.found()
    source = FeedSource.of_text("embedded:main/orders")
    for number in range(int(commits)):
        fixes = [Fix(key_of(f"fix-{number}"), (), "1", '{"n":0}', None, datetime.now(UTC))]
        for batch in target.rows([key_of("shared")]):
            [order], [text] = (batch.column(name).to_pylist() for name in ("order_key", "state"))
            fixes.append(Fix(key_of("shared"), (order,), f"{order}~", text, None, datetime.now(UTC)))
        # What was seen is old when it is written, if the sink has merged meanwhile.
        time.sleep(0.001)
        target.fix(fixes, Expected(source, found))


def maintain(folder, commits):
    """Compact the table and remove old files while the others write."""
    for _ in range(int(commits) // 10 + 1):
        table = DeltaTable(folder / "table")
        committed(table, table.optimize.compact)
        table.vacuum(retention_hours=1, enforce_retention_duration=False, dry_run=False)
        time.sleep(0.2)


def many(folder, count, damage="0"):
    """Compare many rows that are made when they are read; one of so many rows differs in the table."""
    count, damage = int(count), int(damage)

    class Rows(Source):
        def scan(self, token):
            [page] = [self.first_page()]
            from multiclouddb_api import BackfillDone, ChangeEvent, ChangeType, MulticloudDbKey

            now = datetime.now(UTC)
            for start in range(0, count, 5000):
                events = tuple(
                    ChangeEvent(
                        f"e{n}", MulticloudDbKey({"id": f"{n:036x}"}), ChangeType.CREATE, now, {"n": n}, None,
                        "0", None, True, ADDRESS, "p",
                    )
                    for n in range(start, min(start + 5000, count))
                )  # fmt: skip
                yield attrs.evolve(page, events=events, notices=())
            yield attrs.evolve(page, events=(), notices=(BackfillDone("p"),))

    class Table:
        name = "memory"

        def rows(self, keys=None, *, own=False):
            if keys is not None and len(keys) == 0:
                return
            wanted = None if keys is None else set(keys)
            for start in range(0, count, 8192):
                numbers = range(start, min(start + 8192, count))
                names = [f'{{"id":"{n:036x}"}}' for n in numbers]
                batch = pa.RecordBatch.from_pydict(
                    {
                        "key": names,
                        "order_key": ["0"] * len(names),
                        "state": [f'{{"n":{-1 if damage and n % damage == 0 else n}}}' for n in numbers],
                        "deleted": [False] * len(names),
                    }
                )
                if wanted is not None:
                    batch = batch.filter(pa.array([name in wanted for name in names]))
                yield batch

        def position(self):
            return None

        def columns(self):
            return {}

        def found(self, since=None):
            return FoundTable(None)

        def complete(self, expected):
            raise AssertionError

        def fix(self, fixes, expected):
            raise AssertionError

    from multiclouddb_api import Beginning, ChangeFeedRequest
    from multiclouddb_embedded import EmbeddedStore

    with EmbeddedStore(folder / "shop.db") as store:
        store.create_collection("orders")
    with connect(f"embedded://{folder / 'shop.db'}") as client:
        token = client.read_changes(ChangeFeedRequest(ADDRESS, Beginning())).continuation_token
        report = Verification(
            Rows(client, ADDRESS), Table(), token, state=folder / "state", adopt=True, force=True
        ).run()
    used = resource.getrusage(resource.RUSAGE_SELF)
    told = {"different": sum(report.counts.differences.values()), "equal": report.counts.equal}
    told |= {"unsettled": report.counts.unsettled, "state_bytes": report.cost.state_bytes, "rss": peak()}
    print(json.dumps(told | {"cpu": used.ru_utime + used.ru_stime}))  # noqa: T201


def peak():
    """Return the most memory of this process; `ru_maxrss` counts also that of the one that started it."""
    status = Path("/proc/self/status").read_text().splitlines()
    [found] = [line.split()[1] for line in status if "VmHWM" in line]
    return int(found) * 1024


def spark(folder, segments):
    """Compare by Spark, whose JVM has a fixed amount of memory."""
    from pyspark_multiclouddb import local_session, verify_with_spark

    memory = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": 8}
    position = stored_position(FileCheckpointStore(folder / "checkpoints"), "sink")
    with connect(f"embedded://{folder / 'shop.db'}") as client, local_session("verify", **memory) as session:
        report = verify_with_spark(
            session, client, ADDRESS, DeltaTarget(folder / "table"), segments=int(segments),
            position=position, state=folder / "spark",
        )  # fmt: skip
    print(json.dumps({"report": report.to_dict(), "rss": peak()}))  # noqa: T201


if __name__ == "__main__":
    EmbeddedFeed.visible_after = lambda feed: 0.02
    part, folder, *rest = sys.argv[1:]
    parts = {
        "verify": verified,
        "merge": merge,
        "fix": fix,
        "maintain": maintain,
        "many": many,
        "spark": spark,
    }
    parts[part](Path(folder), *rest)
