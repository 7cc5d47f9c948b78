"""Measures one row: runs the two sides alternately, and computes medians and the verdict."""

from __future__ import annotations

import gc
import os
import tempfile
import time
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

import attrs

from benchmarks.result import Result
from benchmarks.row import Bench, Done, Row, Side, Sides

__all__ = ["Sample", "UnequalError", "checksum", "failure", "run_row", "turns"]


class UnequalError(Exception):
    """Raised if the two sides have not read the same events."""


@attrs.frozen
class Sample:
    """The figures of one run, either of the library's side or of the baseline.

    Attributes:
        value: The figure.
        done: The side's report.
        checksum: The checksum of the event ids that the side read.
    """

    value: float
    done: Done
    checksum: int


def checksum(ids: Iterable[str] | int) -> int:
    """Return a checksum of the ids that does not depend on their order.

    A repeated or missing id changes the checksum.
    """
    return ids if isinstance(ids, int) else sum(zlib.crc32(text.encode()) for text in ids)


def turns(pairs: int, *, warm_up: bool) -> Sequence[bool]:
    """Return a value for each pair: True if the library's side runs first.

    The library's side runs first in every second pair, beginning with the first pair. If there is a
    warm-up, the warm-up pair is the first pair.
    """
    return [number % 2 == 0 for number in range(pairs + warm_up)]


def run_row(row: Row, scale: float = 1.0) -> Result:
    """Measure a row.

    Args:
        row: The row.
        scale: The fraction of the work: 1 for a real run, a smaller number to check that the row
            works.

    Raises:
        UnequalError: Raised if the sides have read different events.
        Exception: The error that a side raised.
    """
    load = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="benchmarks-") as folder,
        row.setup(Bench(Path(folder), scale)) as sides,
    ):
        ours, baseline = _pairs(row, sides)
        result = attrs.evolve(_result(row, ours, baseline), load=load)
        return result if result.ok else attrs.evolve(result, reason=row.reason)


def failure(row: Row, error: BaseException) -> Result:
    """Return the table's line for a row that failed."""
    lines = str(error).strip().splitlines() or ["no message"]
    reason = f"{type(error).__name__}: {lines[0]}"
    return Result(row.name, row.unit, None, None, None, row.goal, row.at_most, False, reason, failed=True)


def _pairs(row: Row, sides: Sides) -> tuple[list[Sample], list[Sample]]:
    ours: list[Sample] = []
    baseline: list[Sample] = []
    for ours_first in turns(row.pairs, warm_up=row.warm_up):
        steps = [(ours, sides.ours), (baseline, sides.baseline)]
        for samples, side in steps if ours_first else reversed(steps):
            if side is not None:
                samples.append(_sample(side))
        if row.same_work and baseline:
            _check_equal(ours[-1], baseline[-1])
    return ours[row.warm_up :], baseline[row.warm_up :]


def _sample(side: Side) -> Sample:
    gc.collect()  # this side's time must not include the collection of the other side's garbage
    began = time.perf_counter()
    done = side()
    seconds = time.perf_counter() - began if done.seconds is None else done.seconds
    value = done.count / seconds if done.value is None else done.value
    return Sample(value, done, checksum(done.ids))


def _check_equal(ours: Sample, baseline: Sample) -> None:
    if not ours.done.count:
        raise UnequalError("nothing was read")
    if ours.done.count != baseline.done.count:
        raise UnequalError(f"ours read {ours.done.count:,} and the baseline {baseline.done.count:,}")
    if ours.checksum != baseline.checksum:
        raise UnequalError(f"both read {ours.done.count:,}, but not the same ids")


def _result(row: Row, ours: list[Sample], baseline: list[Sample]) -> Result:
    value = median(sample.value for sample in ours)
    other = median(sample.value for sample in baseline) if baseline else None
    ratio = None if other is None else value / other
    achieved = value if ratio is None else ratio
    return Result(
        name=row.name,
        unit=row.unit,
        value=value,
        baseline=other,
        ratio=ratio,
        goal=row.goal,
        at_most=row.at_most,
        ok=achieved <= row.goal if row.at_most else achieved >= row.goal,
        pairs=row.pairs,
        notes={name: median(sample.done.notes[name] for sample in ours) for name in ours[0].done.notes},
    )
