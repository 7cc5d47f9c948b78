"""The scan of a snapshot compared with the service's own scan loop."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import orjson

from benchmarks.row import Bench, Done, Sides, row
from benchmarks.stores import ADDRESS, fill, url
from multiclouddb_api import (
    ChangeFeedRequest,
    FromContinuationToken,
    Snapshot,
    SnapshotOrder,
    StartPosition,
    connect,
)

_ROWS: Final = 100_000
_PAGE: Final = 1000


def bare_scan(path: Path) -> Done:
    """Read every document over one connection, and parse it."""
    ids = []
    with closing(sqlite3.connect(path)) as connection:
        for key, doc in connection.execute("SELECT key, doc FROM documents ORDER BY id"):
            orjson.loads(doc)
            ids.append(orjson.loads(key)["id"])
    return Done(len(ids), ids)


def through_a_snapshot(path: Path) -> Done:
    """Read pages to the end of the scan, as an application does."""
    ids: list[str] = []
    position: StartPosition = Snapshot(SnapshotOrder.ORDERED)
    with connect(url(path)) as client:
        while True:
            page = client.read_changes(ChangeFeedRequest(ADDRESS, position, max_page_size=_PAGE))
            ids += [event.key.components["id"] for event in page.events]
            if page.idle:
                return Done(len(ids), ids)
            position = FromContinuationToken(page.continuation_token)


@row(
    "embedded-snapshot",
    title="Embedded store, snapshot",
    goal=0.3,
    about="A snapshot reads 100,000 rows with documents of 300 bytes, in pages of 1,000.",
    against=(
        "A loop over the same SQLite file that parses key and document of each row. It cannot be continued, "
        "and what is written meanwhile is lost to it."
    ),
    reason=(
        "Each row becomes an event with an id that is the same in every read: a digest of its key. The "
        "engine cuts pages and writes a token for each; the loop keeps no position."
    ),
    shown=(bare_scan,),
)
def embedded_snapshot(bench: Bench) -> Iterator[Sides]:
    """Rows as events."""
    path = bench.folder / "store.db"
    fill(path, bench.size(_ROWS))
    yield Sides(lambda: through_a_snapshot(path), lambda: bare_scan(path))
