"""The embedded provider compared with a loop over its file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import orjson

from benchmarks.row import Bench, Done, Section, Sides, row
from benchmarks.stores import ADDRESS, fill, pages, url
from multiclouddb_api import connect

_EVENTS: Final = 200_000
_BARE: Final = (
    "A loop over the same SQLite file that parses each document with `orjson.loads` and builds no "
    "event. This baseline stores no position, ignores partitions, and parses no key."
)


def bare_loop(path: Path) -> Done:
    """Read with a loop that is about as fast as possible in Python."""
    seqs = []
    with closing(sqlite3.connect(path)) as connection:
        for seq, _ts, _type, _key, doc in connection.execute("SELECT seq, ts, type, key, doc FROM log"):
            orjson.loads(doc)
            seqs.append(seq)
    return Done(len(seqs), ids=(f"{seq:019}" for seq in seqs))


def through_the_client(path: Path) -> Done:
    """Read as an application does: pages of the provider's default size, up to the first idle page."""
    ids: list[str] = []
    with connect(url(path)) as client:
        for page in pages(client.read_changes, ADDRESS):
            ids += [event.event_id for event in page.events]
    return Done(len(ids), ids)


@row(
    "embedded-events",
    Section.RATES,
    title="Embedded store, events",
    question="How many changes a second come from the embedded store?",
    goal=0.5,
    about="The client reads 200,000 events with documents of 300 bytes, in pages of 1,000 (the default).",
    against=_BARE,
    reason=(
        "Measured by hand, before the file was read in the thread of the caller: converting rows to events "
        "takes 55 % of the time. Half of these 55 % is spent on parsing documents and keys, which is most of "
        "the baseline's work. The engine takes 17 % of the time, and freeing events takes 11 %. Waiting for "
        "the thread that called SQLite took 17 %; it is gone, and the ratio rose from 0.28 to 0.41."
    ),
)
def embedded_events(bench: Bench) -> Iterator[Sides]:
    """Measure reading events as Python objects."""
    path = bench.folder / "store.db"
    fill(path, bench.size(_EVENTS))
    yield Sides(lambda: through_the_client(path), lambda: bare_loop(path))
