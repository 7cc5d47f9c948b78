"""A snapshot of the embedded store compared with a loop.

Another row measures the lag of changes during the scan.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any, Final

import orjson

from benchmarks.row import Bench, Done, Sides, row
from benchmarks.stores import ADDRESS, fill, url
from multiclouddb_api import (
    BackfillDone,
    ChangeFeedPage,
    ChangeFeedRequest,
    ChangeType,
    FromContinuationToken,
    Snapshot,
    SnapshotOrder,
    StartPosition,
    connect,
)

__all__ = ["scan_pages"]

_ROWS: Final = 100_000
_PARTS: Final = 4
_PAUSE: Final = 0.02
_LEAST_CHANGES: Final = 3
_BOUND: Final = "SELECT id FROM documents ORDER BY id LIMIT 1 OFFSET ?"
_PART: Final = "SELECT key, doc FROM documents WHERE id > ? AND id <= ? ORDER BY id"


def parallel_scan(path: Path, size: int) -> Done:
    """Read each range of keys in its own thread, and make a dict with the fields of an event."""
    with closing(sqlite3.connect(path)) as connection:
        ends = [
            connection.execute(_BOUND, (size * number // _PARTS - 1,)).fetchone()[0]
            for number in range(1, _PARTS + 1)
        ]
    moment = time.time()

    def scan(after: bytes, end: bytes) -> list[str]:
        ids: list[str] = []
        with closing(sqlite3.connect(path)) as connection:
            for key, document in connection.execute(_PART, (after, end)):
                event = {
                    "event_id": f"snapshot:{key}",
                    "key": orjson.loads(key),
                    "type": ChangeType.CREATE,
                    "timestamp": moment,
                    "new_item_state": orjson.loads(document),
                    "old_item_state": None,
                    "order_key": "",
                    "by_expiry": False,
                    "backfilled": True,
                    "address": ADDRESS,
                    "partition_id": "0",
                }
                ids.append(event["key"]["id"])
        return ids

    with ThreadPoolExecutor(_PARTS) as threads:
        found = list(threads.map(scan, [b"", *ends], ends))
    ids = [each for part in found for each in part]
    return Done(len(ids), ids)


def scan_pages(client: Any, order: SnapshotOrder) -> Iterator[ChangeFeedPage]:
    """Yield the pages of a snapshot, up to the end of its scan."""
    position: StartPosition = Snapshot(order)
    while True:
        page = client.read_changes(ChangeFeedRequest(ADDRESS, position))
        yield page
        if any(isinstance(notice, BackfillDone) for notice in page.notices):
            return
        position = FromContinuationToken(page.continuation_token)


def _snapshot(path: Path) -> Done:
    ids: list[str] = []
    with connect(url(path)) as client:
        for page in scan_pages(client, SnapshotOrder.ORDERED):
            ids += [event.key.components["id"] for event in page.events]
    return Done(len(ids), ids)


@row(
    "embedded-snapshot",
    title="Embedded store, snapshot",
    unit="rows/s",
    goal=1.0,
    about="The client reads a snapshot of 100,000 documents of 300 bytes, up to the notice `BackfillDone`.",
    against=(
        "A program that uses the module `sqlite3` in four threads, each with a range of keys. The program "
        "parses key and document with `orjson`, and makes a dict with the fields of an event. This "
        "baseline "
        "computes no ids and stores no position."
    ),
    shown=(parallel_scan,),
)
def embedded_snapshot(bench: Bench) -> Iterator[Sides]:
    """In this row, both sides scan all rows in parallel."""
    path, size = bench.folder / "store.db", bench.size(_ROWS, 1000)
    fill(path, size)
    yield Sides(lambda: _snapshot(path), lambda: parallel_scan(path, size))


# -- The lag of changes during a scan


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """In a thread, write changes that contain the time of their commit."""
    from multiclouddb_embedded import EmbeddedStore, Put

    over = Event()

    def write() -> None:
        number = 0
        with EmbeddedStore(path, durable=False) as store:
            while not over.is_set():
                put = Put(f"new-{number:07}", {"at": time.monotonic()})
                store.batch(str(ADDRESS.collection), [put])
                number += 1
                over.wait(_PAUSE)

    writer = Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


def _lag(path: Path) -> Done:
    lags: list[float] = []
    with connect(url(path)) as client, _written(path):
        for page in scan_pages(client, SnapshotOrder.INTERLEAVED):
            now = time.monotonic()
            states = [event.new_item_state for event in page.events if not event.backfilled]
            lags += [1000 * (now - state["at"]) for state in states if state is not None]
    if len(lags) < _LEAST_CHANGES:
        raise ValueError(f"the scan delivered only {len(lags)} changes")
    return Done(len(lags), value=median(lags), notes={"longest": max(lags)})


@row(
    "snapshot-lag",
    title="Lag of changes during an interleaved scan",
    unit="ms",
    goal=100.0,
    at_most=True,
    about=(
        "A thread commits a change every 20 ms while the client scans 100,000 documents with "
        "`Snapshot(SnapshotOrder.INTERLEAVED)`. The figure is the median time from just before a "
        "commit until the page with its event arrives."
    ),
    against="",
)
def snapshot_lag(bench: Bench) -> Iterator[Sides]:
    """This row checks that changes are delivered during the scan, and not only after its end."""
    path = bench.folder / "store.db"
    fill(path, bench.size(_ROWS, 20_000))
    yield Sides(lambda: _lag(path))
