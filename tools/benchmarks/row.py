"""Defines a row of the benchmarks: the question of a user, two sides that do the same work, and a goal.

To add a row, write one decorated function in a module of `tools/benchmarks/rows`:

    @row(
        "dynamo-events",
        Section.RATES,
        title="DynamoDB Local, events",
        question="How many changes a second come from DynamoDB?",
        goal=0.5,
        about="Read all events through the client.",
        against="A bare boto3 loop over the same shards.",
    )
    def dynamo_events(bench: Bench) -> Iterator[Sides]:
        with server() as endpoint:  # set-up and tear-down around the yield are not measured
            fill(endpoint, bench.size(50_000))
            yield Sides(ours=lambda: ..., baseline=lambda: ...)
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs

__all__ = ["Bench", "Done", "Row", "Section", "Side", "Sides", "load_rows", "row"]

EVENTS: Final = "events/s"


class Section(Enum):
    """A section of the page, in its order; the value is its heading."""

    RATES = "How fast a feed is read"
    TABLES = "How fast changes get into a table"
    LAGS = "How late a change comes"
    COSTS = "What an idle feed costs"
    PROCESS = "Memory and start"
    ENGINE = "What the engine takes, without a database"


@attrs.frozen
class Done:
    """The result of one run, either of our side or of the baseline.

    Attributes:
        count: The number of units that the run has processed, such as events or calls.
        ids: Ids of the events that the side read, in any order, or the checksum of these ids. The
            benchmark reads these ids after it has measured the time.
        value: The figure of the run. If it is None, the benchmark divides `count` by the seconds of
            the run.
        seconds: The wall time that replaces the measured time, for example a computed ideal time;
            None to use the measured time.
        notes: Further figures; maps each name, with its unit, to a number.
    """

    count: int
    ids: Iterable[str] | int = 0
    value: float | None = None
    seconds: float | None = None
    notes: Mapping[str, float] = attrs.field(factory=dict, hash=False)


Side: TypeAlias = Callable[[], Done]


@attrs.frozen
class Sides:
    """The two sides that run alternately.

    Attributes:
        ours: A function that does the work through this project.
        baseline: A function that does the same work without this project; None if the goal is an absolute
            figure.
    """

    ours: Side
    baseline: Side | None = None


@attrs.frozen
class Bench:
    """The working folder and the scale of a row.

    Attributes:
        folder: The folder is empty at the start and removed at the end.
        scale: The fraction of the work: 1 for a real run, a smaller number to check that a row
            works.
    """

    folder: Path
    scale: float = 1.0

    def size(self, full: int, least: int = 1) -> int:
        """Return an amount of work: the amount of a full run, multiplied by the scale of this run."""
        return max(least, round(full * self.scale))


@attrs.frozen
class Row:
    """One line of the table.

    Attributes:
        name: The name of the row for `--only`.
        section: The section of the page.
        title: The title of the row, for people.
        question: The question of a user that the row answers, in one sentence.
        goal: The bound on the ratio of the library's figure to the baseline's; if there is no baseline, the
            bound on the library's figure.
        about: The description of the measurement, in sentences.
        against: The description of the baseline, in sentences; empty if there is none.
        setup: The function that prepares both sides; the preparation is not timed.
        unit: The unit of the figures.
        at_most: True if less is better.
        pairs: The number of pairs of runs, without the warm-up.
        warm_up: True to run both sides once before the measurement; not needed if each run is a separate
            process.
        same_work: False if the two sides read different amounts on purpose. If it is False, each
            side itself checks how much it has read.
        reason: The known cause of a missed goal, from a profile.
    """

    name: str
    section: Section
    title: str
    question: str
    goal: float
    about: str
    against: str
    setup: Callable[[Bench], AbstractContextManager[Sides]]
    unit: str = EVENTS
    at_most: bool = False
    pairs: int = 5
    warm_up: bool = True
    same_work: bool = True
    reason: str = ""


_rows: dict[str, Row] = {}


def row(
    name: str, section: Section, **settings: Any
) -> Callable[[Callable[[Bench], Iterator[Sides]]], Callable[[Bench], Iterator[Sides]]]:
    """Register a generator function as a row.

    The function yields one `Sides`.

    Args:
        name: The name of the row.
        section: The section of the page.
        settings: Other fields of `Row`.
    """

    def register(setup: Callable[[Bench], Iterator[Sides]]) -> Callable[[Bench], Iterator[Sides]]:
        if name in _rows:
            raise ValueError(f"there are two rows {name!r}")
        _rows[name] = Row(name, section, setup=contextmanager(setup), **settings)
        return setup

    return register


def load_rows() -> dict[str, Row]:
    """Return every row in `tools/benchmarks/rows` by name, sorted by section, module and line number."""
    from benchmarks import rows

    for module in sorted(pkgutil.iter_modules(rows.__path__), key=lambda module: module.name):
        importlib.import_module(f"{rows.__name__}.{module.name}")
    return {row.name: row for row in sorted(_rows.values(), key=_place)}


def _place(row: Row) -> tuple[int, str, int]:
    # The order must not depend on which modules were imported before.
    setup: Any = row.setup
    return list(Section).index(row.section), setup.__module__, setup.__wrapped__.__code__.co_firstlineno
