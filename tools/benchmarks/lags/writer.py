"""Commits changes at a steady rate; `python -m benchmarks.lags.writer FOLDER CHANGES RATE`."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from typing import Any, Final

from demo.flights import KEY
from demo.places import Places, append_line
from demo.stores import open_store
from multiclouddb_embedded import Put

__all__ = ["NUMBER", "write"]

NUMBER: Final = "flight"
"""The column of a change that contains its number."""
_POLL_SECONDS: Final = 0.05


def write(places: Places, changes: int, rate: float) -> None:
    """Create a document for each change, and note its number and when the database acknowledged it.

    The change 0 is not measured: it shows that the reader runs. With Spark, it is the first micro-batch, for
    which processes of Python have to start.

    Args:
        places: The files of the run.
        changes: The number of changes after the change 0.
        rate: The number of changes in a second.
    """
    with closing(open_store()) as store:

        def put(number: int) -> None:
            store.write([_change(number)])
            append_line(places.written, number=number, at=time.time())

        _wait_for_lines(places, 1)  # the position at which the reader starts is stored
        put(0)
        _wait_for_lines(places, 2)
        began = time.monotonic()
        for number in range(1, changes + 1):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            put(number)


def _change(number: int) -> Put:
    key: dict[str, Any] = dict.fromkeys(KEY, "none")
    # The first two columns decide on the partition, if the database lets a user say so.
    key |= {"origin": f"origin-{number % 7}", NUMBER: number}
    return Put(key, {**key, "status": "scheduled"})


def _wait_for_lines(places: Places, count: int) -> None:
    while not places.merged.exists() or places.merged.read_bytes().count(b"\n") < count:
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    write(Places(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
