"""The picture of a run: its rate, and how far the table was behind."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from demo.places import Places, read_lines
from demo.table import Merge

__all__ = ["Behind", "draw", "lag", "rates", "spread"]

Behind = tuple[float, float]
"""A moment, in seconds since 1970, and how many seconds the table was behind the store then."""


def lag(at: float, newest: float, written: Sequence[float]) -> float:
    """Return how far the table was behind: for how long its oldest missing change had been committed.

    Args:
        at: The moment, in seconds since 1970.
        newest: When the newest change of the table was committed.
        written: When the writer began to commit its changes, in order.
    """
    return at - min((each for each in written if newest < each <= at), default=at)


def spread(behind: Sequence[Behind]) -> str:
    """Say how far the table was behind, for lags at moments of equal distance; at least one."""
    median, most, largest = np.quantile([seconds for _, seconds in behind], [0.5, 0.99, 1])
    return f"median {median:.1f} s, p99 {most:.1f} s, largest {largest:.1f} s"


def rates(done: Sequence[tuple[float, int]], began: float) -> tuple[Any, Any]:
    """Return the rows of each second since `began`, for times and rows; and the seconds' edges."""
    times, rows = np.array(done, float).reshape(-1, 2).T
    edges = np.arange(int(max(times, default=began) - began) + 2)
    return np.histogram(times - began, edges, weights=rows)


def draw(places: Places, merged: Sequence[Merge], behind: Sequence[Behind], killed_at: float | None) -> None:
    """Write `places.chart`, which shows the rate and the lag over time, and the time of the kill."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    written = read_lines(places.written)
    began = written[0]["at"]
    figure, (rate, late) = plt.subplots(2, 1, sharex=True, figsize=(5, 4.6), layout="constrained")
    figure.suptitle("Flights mirrored into a Delta table")
    # The first line counts what existed before, which is no write.
    writes = [(line["at"], line["writes"] - before["writes"]) for before, line in pairwise(written)]
    for done, label, color in (
        (merged, "merged into the table", "#0a6fb7"),
        (writes, "written to the store", "#8a8a8a"),
    ):
        rate.stairs(*rates(done, began), label=label, color=color)
    rate.set_ylabel("rows a second")
    rate.legend(loc="upper right", fontsize=9)
    late.plot([at - began for at, _ in behind], [seconds for _, seconds in behind], color="#c4532d")
    late.set_ylabel("seconds that the table\nis behind the store")
    late.set_xlabel("seconds")
    if behind:
        late.set_title(spread(behind), fontsize=9)
    for axis in (rate, late):
        axis.grid(alpha=0.3)
        axis.set_ylim(bottom=0)
        if killed_at is not None:
            axis.axvline(killed_at - began, color="black", linestyle="--", linewidth=1)
    if killed_at is not None:
        rate.annotate(" SIGKILL", (killed_at - began, rate.get_ylim()[1]), ha="left", va="top", fontsize=9)
    figure.savefig(places.chart, dpi=160)
    plt.close(figure)
