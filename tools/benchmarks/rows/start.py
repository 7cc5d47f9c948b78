"""Measures what a new process needs until it has a first page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.new_process import cpu_of
from benchmarks.row import Bench, Done, Section, Sides, row
from benchmarks.stores import fill, url

_EVENTS: Final = 100

# Texts and not modules, because a module of this package imports the API before the program can.
_FIRST_PAGE: Final = """
import sys
from multiclouddb import Beginning, ChangeFeedRequest, ResourceAddress, connect
with connect(sys.argv[1]) as client:
    page = client.read_changes(ChangeFeedRequest(ResourceAddress("main", "items"), Beginning()))
print(len(page.events))
"""
_BARE: Final = "import attrs, sqlite3, importlib.metadata, json, datetime, typing"


@row(
    "start",
    Section.PROCESS,
    title="Start, from the import to the first page",
    question="How long does a start take?",
    unit="ms",
    goal=1.5,
    at_most=True,
    same_work=False,
    reason=(
        "Measured by hand with 15 starts of each commit, alternately, on a busy machine: 190 ms of user CPU, "
        "beside 185 when the names of the packages were imported on first use, and 198 before internal "
        "classes that nobody compares or prints went without the methods for it. A class of attrs with all "
        "its methods takes 0.45 ms, 0.19 ms without these, and 0.01 ms if it is written by hand; a first "
        "page makes 109."
    ),
    about=(
        "The figure is the CPU time of a new process that connects to the embedded store and reads a first "
        "page of at most 100 events. The start of Python itself counts on both sides."
    ),
    against=f"A new process that runs `{_BARE}`, which such a program cannot do without.",
)
def start(bench: Bench) -> Iterator[Sides]:
    """This row measures what a function or command with a short life waits for."""
    path = bench.folder / "start.db"
    fill(path, _EVENTS)
    yield Sides(lambda: _first_page(path), lambda: _process("-c", _BARE))


def _first_page(path: Path) -> Done:
    cpu, said = cpu_of("-c", _FIRST_PAGE, url(path))
    # The first page contains the events of the partitions that answer first.
    if not 0 < int(said) <= _EVENTS:
        raise ValueError(f"the first page has {said.strip()} of {_EVENTS} events")
    return Done(1, value=1000 * cpu)


def _process(*arguments: str) -> Done:
    cpu, _ = cpu_of(*arguments)
    return Done(1, value=1000 * cpu)
