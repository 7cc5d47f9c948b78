"""Measures the peak memory of a process that reads a store.

The command of this process is `python -m benchmarks.rows.memory FILE`.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.new_process import report_of
from benchmarks.row import Bench, Done, Sides, row
from benchmarks.stores import ADDRESS, fill, grow, pages, small_document, url

_EVENTS: Final = 500_000
_TIMES: Final = 10
_STATUS: Final = Path("/proc/self/status")


def read_all(path: Path) -> dict[str, Any]:
    """Read a store through the client, keep nothing, and return the figures."""
    from multiclouddb_api import connect

    count = total = 0
    with connect(url(path)) as client:
        for page in pages(client.read_changes, ADDRESS):
            count += len(page.events)
            total += sum(int(event.event_id) for event in page.events)
    return {"count": count, "total": total, "mebibytes": peak_mebibytes(), "cpu": time.process_time()}


def peak_mebibytes() -> float:
    """Return the peak resident memory of this process.

    On Linux, the function does not use `ru_maxrss`, because that value starts with the parent's peak.
    """
    if _STATUS.exists():
        (line,) = [line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # macOS reports the value in bytes


def _fresh_process(path: Path, events: int) -> Done:
    report = report_of("-m", __name__, str(path))
    # Sequence numbers count from 1 after the head of an empty store.
    if (report["count"], report["total"]) != (events, events * (events + 1) // 2):
        raise ValueError(f"read {report['count']:,} of {events:,} events, or not the right ones")
    return Done(events, value=report["mebibytes"], cpu=report["cpu"])


@row(
    "memory",
    title="Peak memory, 5 million events",
    question="Does memory grow with the length of a feed?",
    unit="MiB",
    goal=1.1,
    at_most=True,
    about=(
        "The figure is the peak resident memory of a fresh process that reads 5 million events from"
        " the embedded store. The benchmark writes 500,000 events, and SQLite appends copies of these "
        "events with new ids."
    ),
    against="The same program, in a fresh process, reads only the 500,000 events.",
    pairs=1,
    warm_up=False,
    same_work=False,
    shown=(read_all,),
)
def memory(bench: Bench) -> Iterator[Sides]:
    """This row checks that memory does not grow with the length of a feed."""
    small, large = bench.folder / "small.db", bench.folder / "large.db"
    events = bench.size(_EVENTS)
    fill(small, events, make=small_document)
    grow(small, large, _TIMES)
    yield Sides(lambda: _fresh_process(large, _TIMES * events), lambda: _fresh_process(small, events))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(read_all(Path(sys.argv[1]))))
