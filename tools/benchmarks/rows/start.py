"""Measures how long a new process needs until it has its first page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.new_process import report_of
from benchmarks.row import Bench, Done, Sides, row
from benchmarks.stores import fill, url

_EVENTS: Final = 100

# A text and not a module, because a module of this package imports the API before the program can measure it.
_PROGRAM: Final = """
import json, sys, time
began = time.perf_counter()
from multiclouddb_api import Beginning, ChangeFeedRequest, ResourceAddress, connect
imported = time.perf_counter()
with connect(sys.argv[1]) as client:
    page = client.read_changes(ChangeFeedRequest(ResourceAddress("main", "items"), Beginning()))
    read = time.perf_counter()
print(json.dumps({
    "events": len(page.events), "import": imported - began, "total": read - began, "cpu": time.process_time(),
}))
"""


@row(
    "start",
    title="Start, from the import to the first page",
    unit="ms",
    goal=150,
    at_most=True,
    profiled=False,
    reason=(
        "Measured by hand: importing modules takes 85 % of the time. Building 119 attrs classes takes 34 %, "
        "and finding the provider's entry point takes 19 %. The start takes 790 million instructions."
    ),
    about=(
        "The figure is the time that a new process needs from the import of `multiclouddb_api` to the first "
        "page of the embedded store. The page has at most 100 events. The start of Python itself does not "
        "count."
    ),
    against="",
)
def start(bench: Bench) -> Iterator[Sides]:
    """This row measures what a function or command with a short life waits for."""
    path = bench.folder / "start.db"
    fill(path, _EVENTS)
    yield Sides(lambda: _new_process(path))


def _new_process(path: Path) -> Done:
    report = report_of("-c", _PROGRAM, url(path))
    # The first page contains the events of the partitions that answer first.
    if not 0 < report["events"] <= _EVENTS:
        raise ValueError(f"the first page has {report['events']} of {_EVENTS} events")
    notes = {"import of `multiclouddb_api`": 1000 * report["import"]}
    return Done(1, value=1000 * report["total"], cpu=report["cpu"], notes=notes)
