"""Makes the page of the documentation from the recorded run and the rows' own descriptions."""

from __future__ import annotations

import inspect
from typing import Final

from benchmarks.record import Record
from benchmarks.result import Result, figure
from benchmarks.row import Row, load_rows

__all__ = ["front_text", "page_text"]

_CHOSEN: Final = (
    "start",
    "cosmos-events",
    "dynamo-events",
    "mongo-events",
    "spanner-events",
    "embedded-events",
    "spark",
    "delta-merge",
)
"""The rows by which a user chooses, in the order of the first page."""

_FRONT: Final = """---
hide: [toc]
---

# Benchmarks

What does it cost to read through multiclouddb, compared with a loop that you write by hand over the
vendor's own client? Both sides read the same events on the same machine, in turns. For events and rows a
second, a ratio above 1 means that multiclouddb is faster. On DynamoDB it is faster, because it decodes more
cheaply than boto3. On Cosmos DB and on the embedded store it's slower, because it makes an event of each
document, while the loop takes the bare document. *Start* is a time, so there a ratio above 1 means that
multiclouddb takes longer; the program by hand imports only what it needs.
"""
_PICTURE: Final = """\
How fast is multiclouddb beside other readers of the same feed? Every program reads the same inserts of 325
bytes from the same server. The picture shows events a second; the page [behind it](../maintainers/peers.md)
has CPU, memory, delays, versions and settings. PyMongo's loop takes less CPU time, because it yields bare
documents; multiclouddb takes 1.2 times as much, and makes a portable event with a position.

<div class="picture chart" markdown>
![Events a second of each reader](../assets/peers-light.png#only-light)
![Events a second of each reader](../assets/peers-dark.png#only-dark)
</div>

---

*Made by `python -m benchmarks --record`. [All rows](../maintainers/benchmarks.md), for maintainers.*
"""
_HEAD: Final = """---
hide: [toc]
---

# All benchmarks

What does reading through multiclouddb (*ours*) cost, compared with hand-written code (*baseline*)? The sign
of a goal says whether more or less is better. A missed goal does not block a release.

<div class="picture chart" markdown>
![Each row's figure beside its goal](../assets/benchmarks-light.png#only-light)
![Each row's figure beside its goal](../assets/benchmarks-dark.png#only-dark)
</div>
"""
_HOW: Final = """## How it is measured

- Each row runs in a process of its own, so that no row depends on what another one did.
- The two sides run alternately on the same machine, and take turns in going first. The first pair of runs
  warms up and does not count; at least five pairs follow. Figures are medians, and the ratio compares the
  medians.
- The figures use wall time, unless the row says otherwise. The table also shows the CPU time of the client:
  the rest of the wall time is waiting time.
- *Load* is the load of the machine when the row began, an average of a minute. The rows before it count.
- Both sides report the number and the ids of the events that they read. If these differ, the row fails, so
  that neither side can be faster by reading less.
- The garbage collector is on, as in an application. Before each run, the garbage that the other
  side left is collected.
- Peak memory is measured once, in one fresh process per side.

Absolute figures are valid for one machine only, so rely on the ratios.
"""
_AGAIN: Final = """## Run it again

```sh
make bench                                     # all rows, some minutes
python -m benchmarks --only embedded-events    # one row; repeat --only for more
python -m benchmarks --json                    # for programs
python -m benchmarks --quick                   # a hundredth of the work, to see that all rows run
python -m benchmarks --record                  # write this page, its chart and its JSON
python -m benchmarks --redraw                  # page and chart again from the JSON
```

The exit code is 0 if all rows ran, even with missed goals, and 1 if a row failed. `--record` with `--only`
replaces only the given rows.
"""


def front_text(record: Record) -> str:
    """Return the first page: what the rows cost by which a user chooses, and the peers' picture."""
    rows = load_rows()
    shown = [(rows[name], record.results[name]) for name in _CHOSEN if name in record.results]
    lines = ["| | multiclouddb | by hand | ratio |", "|---|---:|---:|---:|"]
    for row, result in shown:
        by_hand = "" if result.baseline is None else figure(result.baseline, result.unit)
        ratio = "" if result.ratio is None else result.achieved_text
        lines.append(f"| {row.title} | {figure(result.value, result.unit)} | {by_hand} | {ratio} |")
    table = ["\n".join(lines) + "\n", _machines(shown)] if shown else []
    return "\n".join([_FRONT, *table, _PICTURE])


def page_text(record: Record) -> str:
    """Return the second page, with all rows."""
    rows = load_rows()
    shown = [(rows[name], result) for name, result in record.results.items() if name in rows]
    parts = [_HEAD, _table(shown), _machines(shown)]
    parts += _missed(shown)
    parts += [_HOW, "## The rows\n", *(_described(*pair) for pair in shown), _AGAIN]
    return "\n".join(parts)


def _table(shown: list[tuple[Row, Result]]) -> str:
    lines = [
        "| row | ours | baseline | ours / baseline | goal | verdict "
        "| ours: wall, CPU | baseline: wall, CPU | load |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row, result in shown:
        ratio = "" if result.ratio is None else result.achieved_text
        verdict = "met" if result.ok else f"**{result.verdict}**"
        baseline = "" if result.baseline is None else figure(result.baseline, result.unit)
        lines.append(
            f"| [{row.title}](#{row.name}) | {figure(result.value, result.unit)} | {baseline} | {ratio} "
            f"| {result.goal_text} | {verdict} | {_times(result.seconds, result.cpu)} "
            f"| {_times(result.baseline_seconds, result.baseline_cpu)} | {_load(result.load)} |"
        )
    return "\n".join(lines) + "\n"


def _load(load: float | None) -> str:
    return "" if load is None else f"{load:.1f}"


def _times(seconds: float | None, cpu: float | None) -> str:
    return "" if seconds is None else f"{figure(seconds)} s, {figure(cpu)} s"


def _machines(shown: list[tuple[Row, Result]]) -> str:
    """Name the machine and the days of the rows; the machine of most rows comes first."""
    names: dict[str, list[str]] = {}
    days: dict[str, set[str]] = {}
    for row, result in shown:
        names.setdefault(result.setting, []).append(f"`{row.name}`")
        days.setdefault(result.setting, set()).add(result.recorded)
    first, *others = sorted(names, key=lambda setting: len(names[setting]), reverse=True)
    lines = [f"Machine: {first}. Recorded on {_and(sorted(days[first]))}.\n"]
    lines += [
        f"Machine of {_and(names[other])}: {other}. Recorded on {_and(sorted(days[other]))}.\n"
        for other in others
    ]
    return "\n".join(lines)


def _and(parts: list[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def _missed(shown: list[tuple[Row, Result]]) -> list[str]:
    lines = [f"- **{row.title}**: {result.reason}" for row, result in shown if not result.ok]
    return ["Reasons for missed goals:\n", "\n".join(lines) + "\n"] if lines else []


def _described(row: Row, result: Result) -> str:
    # The table links to this heading, whose anchor is the name of the row.
    parts = [f"### {row.name}\n", f"**{row.question}** {row.title}. {row.about}\n"]
    if row.against:
        parts.append(f"Baseline: {row.against}\n")
    if result.notes:
        notes = (f"{name} {figure(value, result.unit)}" for name, value in result.notes.items())
        parts.append(f"Additional figures: {'; '.join(notes)}.\n")
    # The language is `py`, because tests run the blocks marked as `python`; the benchmark itself runs this
    # code.
    parts += [f"```py\n{inspect.getsource(function).rstrip()}\n```\n" for function in row.shown]
    return "\n".join(parts)
