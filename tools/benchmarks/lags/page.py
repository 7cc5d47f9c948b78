"""Makes the page *How late a change comes* from the record."""

from __future__ import annotations

from collections.abc import Sequence
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

The time from the acknowledgement of a commit until the handler has the change. A program commits {rate:g}
changes a second for {minutes:g} minutes. In the middle, the reader is killed with SIGKILL and started again
at once, and the changes that wait for it count. Every change has to arrive; one that comes twice counts once.

- *Worker*: `iterate_changes` with a checkpoint in a file. *Spark*: a stream with `foreachBatch`. All settings
  are the defaults.
- *Without the restart*: the largest lag of all changes except those that waited for the new process.

"""
_HOW: Final = """
The servers are mongod, DynamoDB Local, Google's emulator of Spanner, whose partitions move every few seconds,
and our emulator of Cosmos DB. They run on the reader's machine, so a network comes on top. *Load* is the mean
load of the machine during the run, with everything else that ran on it. *Twice*: the changes that came again.

{facts}

---

*Made by `python -m benchmarks.lags --record`.*
"""


def page_text(record: Record) -> str:
    """Return the page."""
    rate, seconds = record.rows[0].rate, record.rows[0].lags.seconds
    head = _HEAD.format(rate=rate, minutes=round(seconds / 60, 1))
    facts = dict.fromkeys(
        f"Machine: {row.setting}. Recorded on {row.day} at {row.commit}." for row in record.rows
    )
    return head + table_of(record.rows) + _HOW.format(facts="\n\n".join(facts))


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


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.0f} ms"
