"""Contains the stores and loops that several rows use."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from multiclouddb_api import Beginning, ChangeFeedRequest, FromContinuationToken, ResourceAddress
from multiclouddb_api.page import ChangeFeedPage

if TYPE_CHECKING:
    from multiclouddb_api import StartPosition

__all__ = ["ADDRESS", "document", "fill", "grow", "pages", "small_document", "url"]

ADDRESS: Final = ResourceAddress("main", "items")
_BIG_CACHE: Final = "PRAGMA cache_size = -400000"


def document(number: int) -> dict[str, Any]:
    """Make a document of 300 bytes of JSON in ten fields."""
    return {**{f"field{index}": "x" * 20 for index in range(9)}, "number": number}


def small_document(number: int) -> dict[str, Any]:
    """Make a small document, for stores that contain millions of documents."""
    return {"number": number, "status": "new"}


def url(path: Path) -> str:
    """The URL for `connect`."""
    return f"embedded://{path}"


def fill(
    path: Path,
    events: int,
    partitions: int = 4,
    make: Callable[[int], dict[str, Any]] = document,
    batch: int = 5000,
) -> None:
    """Create a store with `events` creates in `ADDRESS`, with `batch` creates in each transaction."""
    from multiclouddb_embedded import EmbeddedStore, Put

    assert ADDRESS.collection is not None
    with EmbeddedStore(path, durable=False) as store:
        store.create_collection(ADDRESS.collection, partitions)
        for first in range(0, events, batch):
            numbers = range(first, min(events, first + batch))
            store.batch(ADDRESS.collection, (Put(f"key-{number:07}", make(number)) for number in numbers))


def grow(source: Path, path: Path, times: int) -> None:
    """Copy a store and repeat its log, so that it contains `times` as many events, each with its own id.

    Writing millions of events one by one takes minutes, so the log is copied inside SQLite.
    """
    shutil.copyfile(source, path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(_BIG_CACHE)
        (head,) = connection.execute("SELECT head_seq FROM store").fetchone()
        (index,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'log_hash'").fetchone()
        connection.execute("DROP INDEX log_hash")  # creating it again below takes a tenth of the time
        for partition, written, volume in connection.execute("SELECT id, written, volume FROM partitions"):
            part = {"partition": partition, "written": written, "volume": volume, "head": head}
            for time in range(1, times):
                connection.execute(_REPEAT, {**part, "time": time})
        connection.execute(index)
        connection.execute(
            "UPDATE partitions SET last_seq = last_seq + ?, written = written * ?, volume = volume * ?",
            ((times - 1) * head, times, times),
        )
        connection.execute("UPDATE store SET head_seq = head_seq * ?, head_ts = head_ts + ?", (times, times))
        connection.execute("INSERT INTO commits SELECT head_ts, head_seq FROM store")


_REPEAT: Final = """
INSERT INTO log SELECT partition, seq + :time * :head, ts + :time, type, hash, ordinal + :time * :written,
    volume + :time * :volume, size, key, doc, old
FROM log WHERE partition = :partition AND seq <= :head ORDER BY seq
"""


def pages(
    read: Callable[[ChangeFeedRequest], ChangeFeedPage], address: ResourceAddress, max_page_size: int = 0
) -> Iterator[ChangeFeedPage]:
    """Yield pages from the beginning to the first idle page; each read uses the previous page's token."""
    position: StartPosition = Beginning()
    while True:
        page = read(ChangeFeedRequest(address, position, max_page_size=max_page_size))
        yield page
        if page.idle:
            return
        position = FromContinuationToken(page.continuation_token)
