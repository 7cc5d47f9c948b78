"""Measures one row for `python -m benchmarks`: `python -m benchmarks.alone NAME SCALE`.

The result goes to the standard output as JSON. What a row's servers print goes to the standard error.
"""

from __future__ import annotations

import json
import os
import sys

from benchmarks.measure import failure, run_row
from benchmarks.result import Result
from benchmarks.row import Row, load_rows

__all__ = ["main", "measured"]


def measured(row: Row, scale: float) -> Result:
    """Measure a row; an error is its result."""
    try:
        return run_row(row, scale)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the row's result
        return failure(row, error)


def main(name: str, scale: str) -> None:
    """Measure a row, and print its result."""
    with os.fdopen(os.dup(1), "w") as told:
        os.dup2(2, 1)
        json.dump(measured(load_rows()[name], float(scale)).to_json(), told)


if __name__ == "__main__":
    main(*sys.argv[1:])
