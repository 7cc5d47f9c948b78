"""Makes the page *How late a change comes* from the record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.lags.record import Record, Row
from benchmarks.lags.run import SERVICES
from benchmarks.record import ROOT

__all__ = ["page_text", "table_of", "write_docs"]

_READERS: Final = {"events": "worker", "spark": "Spark"}
_HEAD: Final = """---
hide: [toc]
---

# How late a change comes

Lag is the time from a commit's acknowledgement until the handler has the change. A program commits {rate:g}
changes a second for {minutes:g} minutes. In the middle, the reader is killed with SIGKILL and started again
at once, and the figures include the changes that wait for the new process. Every change has to arrive; if one
arrives twice, its lag ends at the first arrival.

- *Worker*: `iterate_changes` with a checkpoint in a file. *Spark*: a stream with `foreachBatch`. All settings
  are the defaults.
- *Without the restart*: the largest lag of all changes except those that waited for the new process.

The load of the machine was {least:.0f} to {most:.0f}, which makes the lags much larger; see below.

"""
_HOW: Final = """
- *Load*: how many processes ran or waited for a core, on average. If there were more such processes than
  cores, a row shows the busy machine rather than the reader. The load delays the restart most: a new process
  of Spark needs about 20 s of CPU, and a new worker about one.
- *Twice*: the changes that came again after the restart.
- The servers are mongod, DynamoDB Local, Google's emulator of Spanner, whose partitions move every few
  seconds, and our emulator of Cosmos DB. They run on the reader's machine, so a network would add to
  the lags.
- The more changes Google's emulator keeps, the slower it answers: Google's own client waits 24 ms for a query
  at first, and 146 ms after 1,500 changes.

{facts}

---

*Made by `python -m benchmarks.lags --record`.*
"""


def page_text(record: Record) -> str:
    """Return the page."""
    rate, seconds = record.rows[0].rate, record.rows[0].lags.seconds
    loads = [row.load for row in record.rows]
    head = _HEAD.format(rate=rate, minutes=round(seconds / 60, 1), least=min(loads), most=max(loads))
    return head + table_of(record.rows) + _HOW.format(facts="\n\n".join(_machines(record.rows)))


def table_of(rows: Sequence[Row]) -> str:
    """Return the table."""
    lines = [
        "| database | reader | median | p99 | largest | without the restart | changes | twice | load |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        lags = row.lags
        cells = [
            SERVICES[row.service], _READERS[row.reader],
            *map(_seconds, (lags.median, lags.p99, lags.largest, lags.without_restart)),
            f"{lags.changes:,}", f"{lags.again:,}", f"{row.load:.1f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write_docs(record: Record, root: Path = ROOT) -> None:
    """Write the record and its page."""
    record.write(root)
    (root / "reference" / "lags.md").write_text(page_text(record), encoding="utf-8")


def _machines(rows: Sequence[Row]) -> Iterator[str]:
    """Name each machine once, with the days and the commits of its rows."""
    for setting in dict.fromkeys(row.setting for row in rows):
        runs = [row for row in rows if row.setting == setting]
        days = ", ".join(dict.fromkeys(row.day for row in runs))
        commits = list(dict.fromkeys(f"`{row.commit}`" for row in runs))
        word = "commit" if len(commits) == 1 else "commits"
        yield f"Machine: {setting}. Recorded on {days}, {word} {', '.join(commits)}."


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.0f} ms"
