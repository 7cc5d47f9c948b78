"""Makes the page of the documentation, and that of the rows, from the recorded run and their descriptions."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.record import ROOT, Record
from benchmarks.result import Result, figure
from benchmarks.row import Row, Section, load_rows
from multiclouddb_api.errors import DOCS_URL

__all__ = ["page_text", "rows_text", "write_docs"]

# A page for maintainers is not in the repository, so links to it are whole.
_MAINTAINERS: Final = f"{DOCS_URL}maintainers/"

_HEAD: Final = f"""# Benchmarks

*By hand* is a program without multiclouddb that does the same work on the same machine; if this is empty,
nothing comparable exists, and the goal bounds our figure. A *ratio* above 1 means that multiclouddb is faster
at changes and rows a second, and takes more of time, memory and requests. Servers and emulators ran on the
same machine, so rely on the ratios. Each question leads to [what was measured, and why a goal is
missed]({_MAINTAINERS}benchmarks/).
"""
_PEERS: Final = f"""## Compared with other readers

Every program reads the same inserts of 325 bytes from the same server. [CPU, memory, versions and
settings]({_MAINTAINERS}peers/).

<div class="picture chart" markdown>
![Events a second of each reader](../assets/peers-light.png#only-light)
![Events a second of each reader](../assets/peers-dark.png#only-dark)
</div>

---

*Made by `python -m benchmarks --record`.*
"""
_ROWS: Final = "# The rows of the benchmarks\n\n[The figures](../reference/benchmarks.md)\n"
_HOW: Final = """## How it is measured

- The two sides run alternately on the same machine, and take turns in going first. In most rows,
  the first pair of runs warms up and does not count. Figures are medians, and the ratio compares the medians.
- Each row runs in a process of its own. The figures use wall time, unless the row says otherwise.
- Both sides report the number and the ids of the events that they read. If these differ, the row fails, so
  that neither side can be faster by reading less.
- The garbage collector is on, as in an application. Before each run, the garbage that the other
  side left is collected.
- The servers run on the same machine: mongod, DynamoDB Local, Google's emulator of Spanner, and our emulators
  of Cosmos DB, DynamoDB Streams and Spanner. A network would add to the times of both sides.
"""
_AGAIN: Final = """## Run it again

```sh
python -m benchmarks                           # all rows, about ten minutes
python -m benchmarks --only embedded-events    # one row; repeat --only for more
python -m benchmarks --json                    # for programs
python -m benchmarks --scale 0.01              # a hundredth of the work, to see that all rows run
python -m benchmarks --record                  # write this page and its JSON
```

The exit code is 0 if all rows ran, even with missed goals, and 1 if a row failed. `--record` with `--only`
replaces only the given rows.
"""


def write_docs(record: Record, root: Path = ROOT) -> None:
    """Write the record and its page."""
    record.write(root)
    page = root / "reference" / "benchmarks.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    # With the figures as they are stored, rounded to four digits.
    page.write_text(page_text(Record.read(root) or record), encoding="utf-8")


def page_text(record: Record) -> str:
    """Return the page."""
    rows = load_rows()
    shown = [(rows[name], result) for name, result in record.results.items() if name in rows]
    parts = [_HEAD]
    for section in Section:
        if some := [pair for pair in shown if pair[0].section is section]:
            parts += [f"## {section.value}\n", _table(some)]
    if missing := [f"`{name}`" for name in rows if name not in record.results]:
        parts.append(f"Not recorded yet: {_and(missing)}.\n")
    return "\n".join([*parts, _machines(shown), _PEERS])


def rows_text(record: Record) -> str:
    """Return the page for maintainers that describes each row."""
    rows = load_rows()
    described = [_described(rows[name], result) for name, result in record.results.items() if name in rows]
    return "\n".join([_ROWS, _HOW, _AGAIN, *described])


def _table(shown: list[tuple[Row, Result]]) -> str:
    lines = ["| | multiclouddb | by hand | ratio | goal |", "|---|---:|---:|---:|---|"]
    for row, result in shown:
        by_hand = "" if result.baseline is None else figure(result.baseline)
        ratio = "" if result.ratio is None else result.achieved_text.removesuffix(" x")
        verdict = "met" if result.ok else f"**{result.verdict}**"
        lines.append(
            f"| [{row.question}]({_MAINTAINERS}benchmarks/#{row.name}) | {figure(result.value, result.unit)} "
            f"| {by_hand} | {ratio} | {result.goal_text}: {verdict} |"
        )
    return "\n".join(lines) + "\n"


def _machines(shown: list[tuple[Row, Result]]) -> str:
    """Name the machine and the days of the rows; the machine of most rows comes first."""
    names: dict[str, list[str]] = {}
    days: dict[str, set[str]] = {}
    for row, result in shown:
        names.setdefault(result.setting, []).append(f"`{row.name}`")
        days.setdefault(result.setting, set()).add(result.recorded)
    first, *others = sorted(names, key=lambda setting: len(names[setting]), reverse=True)
    loads = [result.load for _, result in shown if result.load is not None]
    busy = f" The load was {min(loads):.1f} to {max(loads):.1f}." if loads else ""
    lines = [f"Machine: {first}. Recorded on {_and(sorted(days[first]))}.{busy}\n"]
    lines += [
        f"Machine of {_and(names[other])}: {other}. Recorded on {_and(sorted(days[other]))}.\n"
        for other in others
    ]
    return "\n".join(lines)


def _and(parts: list[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def _described(row: Row, result: Result) -> str:
    # The table of the figures links to this heading, whose anchor is the name of the row.
    parts = [f"## {row.name}\n", f"{row.title}. {row.about}\n"]
    if row.against:
        parts.append(f"By hand: {row.against}\n")
    if result.notes:
        notes = (f"{name}: {figure(value)}" for name, value in result.notes.items())
        parts.append(f"Further figures: {'; '.join(notes)}.\n")
    if not result.ok and result.reason:
        parts.append(f"Why the goal is missed: {result.reason}\n")
    return "\n".join(parts)
