"""The page of the documentation: made of the recorded run and of what the rows say about themselves."""

from __future__ import annotations

import inspect
from typing import Final

from benchmarks.record import Record
from benchmarks.result import Result, figure
from benchmarks.row import Row, load_rows

__all__ = ["page_text"]

_HEAD: Final = """# Benchmarks

Made by `python -m benchmarks --record`, table and chart of the same run.

What does reading through multiclouddb cost beside doing it by hand? Each row runs our side and a baseline in
turns on the same machine and compares them. A goal that is missed stays in the table as missed, with what a
profile says about it; it blocks nothing.

![Each row's figure beside its goal](../assets/benchmarks-light.png#only-light)
![Each row's figure beside its goal](../assets/benchmarks-dark.png#only-dark)
"""
_HOW: Final = """## How it is measured

- Ours and the baseline run in turns in one run: one pair to warm up, which is not counted, then at least five
  that are. Which side goes first alternates. Figures are medians; the ratio is that of the medians.
- Wall time counts. CPU time of the client stands beside it: what is wall time and no CPU time is waiting.
- Both sides say how many events they read and what their ids were. Where these differ, the row fails: nobody
  is fast by reading less.
- The garbage collector runs, as it does for users. Before each run what the other side left is collected.
- Peak memory is that of one fresh process a side, and is not repeated. Tokens have no baseline, but a bound.

Absolute figures are those of one machine. Take the ratios with you, and measure the rest on yours.
"""
_AGAIN: Final = """## Run it again

```sh
make bench                                     # all rows, some minutes
python -m benchmarks --only embedded-events    # one row; give --only again for more
python -m benchmarks --json                    # for programs
python -m benchmarks --quick                   # a hundredth of the work: do all rows still run?
python -m benchmarks --record                  # write this page, its chart and its JSON
python -m benchmarks --redraw                  # page and chart anew from the JSON
```

The exit code is 0 when all rows ran, whatever their verdict, and 1 when one broke. `--record` with `--only`
exchanges those rows and keeps the others; on another machine, or with other versions, all have to be recorded
together.

A further row is one decorated function in a module of `benchmarks/rows`; `benchmarks/row.py` shows one.
"""


def page_text(record: Record) -> str:
    """The whole page."""
    rows = load_rows()
    shown = [(rows[name], result) for name, result in record.results.items() if name in rows]
    parts = [_HEAD, _table(shown), f"Machine: {record.setting}.{_days(shown)}\n"]
    parts += _missed(shown)
    parts += [_HOW, "## The rows\n", *(_described(*pair) for pair in shown), _AGAIN]
    return "\n".join(parts)


def _table(shown: list[tuple[Row, Result]]) -> str:
    lines = [
        "| row | ours | baseline | ours / baseline | goal | verdict | wall, CPU of ours | of the baseline |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row, result in shown:
        ratio = "" if result.ratio is None else result.achieved_text
        verdict = "met" if result.ok else f"**{result.verdict}**"
        baseline = "" if result.baseline is None else figure(result.baseline, result.unit)
        lines.append(
            f"| [{row.title}](#{row.name}) | {figure(result.value, result.unit)} | {baseline} | {ratio} "
            f"| {result.goal_text} | {verdict} | {_times(result.seconds, result.cpu)} "
            f"| {_times(result.baseline_seconds, result.baseline_cpu)} |"
        )
    return "\n".join(lines) + "\n"


def _times(seconds: float | None, cpu: float | None) -> str:
    return "" if seconds is None else f"{figure(seconds)} s, {figure(cpu)} s"


def _days(shown: list[tuple[Row, Result]]) -> str:
    days = sorted({result.recorded for _, result in shown if result.recorded})
    return f" Recorded on {' and '.join(days)}." if days else ""


def _missed(shown: list[tuple[Row, Result]]) -> list[str]:
    lines = [f"- **{row.title}**: {result.reason}" for row, result in shown if not result.ok]
    return ["Why goals are missed:\n", "\n".join(lines) + "\n"] if lines else []


def _described(row: Row, result: Result) -> str:
    # The heading's anchor is the name, which the table links to.
    parts = [f"### {row.name}\n", f"{row.title}. {row.about}\n"]
    if row.against:
        parts.append(f"Baseline: {row.against}\n")
    if result.notes:
        notes = (f"{name} {figure(value, result.unit)}" for name, value in result.notes.items())
        parts.append(f"Besides: {'; '.join(notes)}.\n")
    # `py`, not `python`: it is shown, not run; the benchmark itself runs it.
    parts += [f"```py\n{inspect.getsource(function).rstrip()}\n```\n" for function in row.shown]
    return "\n".join(parts)
