"""Measures what new processes need: until they have a first page, and until the command line answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.new_process import cpu_of
from benchmarks.row import Bench, Done, Sides, row
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
_COMMAND: Final = """
import sys
from multiclouddb_cli.script import run
sys.argv = ["multiclouddb", *sys.argv[1:]]
run()
"""


@row(
    "start",
    title="Start, from the import to the first page",
    unit="ms",
    goal=1.5,
    at_most=True,
    profiled=False,
    same_work=False,
    reason=(
        "Counted by hand with valgrind, from installed wheels: 490 million instructions, beside 296 of the "
        "baseline (1.66 times) and 817 before modules were imported on first use. Loading byte code takes "
        "11 %, collecting garbage 12 %, making classes 15 %, and generating the methods of 50 value classes "
        "13 %. attrs itself takes 30 %."
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
    return Done(1, value=1000 * cpu, cpu=cpu)


@row(
    "start-help",
    title="Command line, help",
    unit="ms",
    goal=1.3,
    at_most=True,
    profiled=False,
    same_work=False,
    about="The figure is the CPU time of `multiclouddb --help` in a new process.",
    against="A new process that runs `import typer`, the library of the command line.",
    reason=(
        "Counted by hand with valgrind: 387 million instructions, beside 272 of the baseline, and 443 "
        "before the entry points of 200 distributions were read once instead of twice. Most of the "
        "difference is that the library builds all commands to name them."
    ),
)
def start_help(bench: Bench) -> Iterator[Sides]:
    """Measure the shortest command."""
    yield Sides(lambda: _command("--help"), lambda: _process("-c", "import typer"))


@row(
    "start-providers",
    title="Command line, providers",
    unit="ms",
    goal=400,
    at_most=True,
    profiled=False,
    about="The figure is the CPU time of `multiclouddb providers` in a new process, with five providers.",
    against="",
    reason=(
        "The goal is a time, so the figure depends on the machine: `import typer` alone took 161 ms in the "
        "same minute, and 109 ms on the day on which this command took 382 ms."
    ),
)
def start_providers(bench: Bench) -> Iterator[Sides]:
    """Measure a command that names the providers."""
    yield Sides(lambda: _command("providers"))


@row(
    "start-capabilities",
    title="Command line, capabilities",
    unit="ms",
    goal=400,
    at_most=True,
    profiled=False,
    about="The figure is the CPU time of `multiclouddb capabilities` in a new process, with five providers.",
    against="",
    reason=(
        "Counted by hand with valgrind: 990 million instructions, and 1,137 before commands that list "
        "things left the engine alone. The library of the command line takes two thirds of them: it "
        "imports pydantic to convert the first argument."
    ),
)
def start_capabilities(bench: Bench) -> Iterator[Sides]:
    """Measure a command that describes the providers."""
    yield Sides(lambda: _command("capabilities"))


def _command(*words: str) -> Done:
    return _process("-c", _COMMAND, *words)


def _process(*arguments: str) -> Done:
    cpu, _ = cpu_of(*arguments)
    return Done(1, value=1000 * cpu, cpu=cpu)
