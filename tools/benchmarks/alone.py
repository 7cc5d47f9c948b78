"""Measures one row for `python -m benchmarks`: `python -m benchmarks.alone NAME SCALE`.

Each line on the standard output is JSON: the pairs of runs that are done, and at the end the result. What a
row's servers print goes to the standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

from benchmarks.measure import failure, run_row
from benchmarks.result import Result
from benchmarks.row import Row, load_rows

__all__ = ["main", "measured"]


def measured(row: Row, scale: float, step: Callable[[int, int], None]) -> Result:
    """Measure a row; an error is its result."""
    try:
        return run_row(row, scale, step)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the row's result
        return failure(row, error)


def main(name: str, scale: str) -> None:
    """Measure a row, and print its result."""
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def step(pair: int, pairs: int) -> None:
        told.write(json.dumps({"pair": pair, "pairs": pairs}) + "\n")

    told.write(json.dumps(measured(load_rows()[name], float(scale), step).to_json()) + "\n")
    told.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
