"""The picture of a run: its rate, and the lag of every change."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any, Final

import attrs

from demo.places import Places, merged_batches, read_lines

__all__ = ["BUCKET_SECONDS", "Lag", "draw", "lags_of", "quantile", "rate_of_batches", "rate_of_writes"]

BUCKET_SECONDS: Final = 0.1
"""Changes that were committed within this time are counted together, with the lag of the earliest moment."""


@attrs.frozen
class Lag:
    """The time from the commit of some changes in the database until they were in the table.

    Attributes:
        committed: When the changes were committed, in seconds since 1970.
        seconds: How long after that they were in the table.
        changes: The number of changes.
    """

    committed: float
    seconds: float
    changes: int


def lags_of(merged: list[dict[str, Any]]) -> list[Lag]:
    """Return the lags of all changes in the order of their commits.

    Args:
        merged: The lines of the merged micro-batches.
    """
    found = [
        Lag(bucket * BUCKET_SECONDS, max(0.0, line["at"] - bucket * BUCKET_SECONDS), changes)
        for line in merged
        for bucket, changes in line["changes"]
    ]
    return sorted(found, key=lambda lag: lag.committed)


def quantile(lags: list[Lag], share: float) -> float:
    """Return the lag, in seconds, that this share of the changes does not exceed.

    Args:
        lags: The lags, at least one.
        share: From 0 to 1; with 1, the largest lag is returned.
    """
    left = share * sum(lag.changes for lag in lags)
    ordered = sorted(lags, key=lambda lag: lag.seconds)
    for lag in ordered:
        left -= lag.changes
        if left <= 0:
            return lag.seconds
    return ordered[-1].seconds


def draw(places: Places, killed_at: float | None) -> None:
    """Write `places.chart`, which shows the rate and the lag over time, and the time of the kill."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    written, merged = read_lines(places.written), merged_batches(places)
    began = written[0]["at"]
    figure, (rate, lag) = plt.subplots(2, 1, sharex=True, figsize=(5, 4.6), layout="constrained")
    figure.suptitle("Flights from the change feed into a Delta table")
    rate.step(*rate_of_batches(merged, began), where="post", label="merged into the table", color="#0a6fb7")
    rate.step(*rate_of_writes(written, began), where="post", label="written to the store", color="#8a8a8a")
    rate.set_ylabel("events a second")
    rate.legend(loc="upper right", fontsize=9)
    lags = lags_of(merged)
    lag.plot(
        [one.committed - began for one in lags],
        [one.seconds for one in lags],
        ".",
        markersize=2,
        color="#c4532d",
    )
    lag.set_ylabel("lag of each change\nin seconds")
    lag.set_xlabel("seconds; a change stands at the time of its commit")
    if lags:
        median, most, largest = (quantile(lags, share) for share in (0.5, 0.99, 1))
        lag.set_title(f"median {median:.1f} s, p99 {most:.1f} s, largest {largest:.1f} s", fontsize=9)
    for axis in (rate, lag):
        axis.grid(alpha=0.3)
        axis.set_ylim(bottom=0)
        if killed_at is not None:
            axis.axvline(killed_at - began, color="black", linestyle="--", linewidth=1)
    if killed_at is not None:
        rate.annotate(" SIGKILL", (killed_at - began, rate.get_ylim()[1]), ha="left", va="top", fontsize=9)
    figure.savefig(places.chart, dpi=160)
    plt.close(figure)


def rate_of_batches(merged: list[dict[str, Any]], began: float) -> tuple[list[float], list[float]]:
    """Return the rate as steps: that of a micro-batch while it is merged, and zero while none is.

    Args:
        merged: The lines of the merged micro-batches.
        began: The time that is zero in the chart.

    Returns:
        The seconds at which a step begins, and the events per second from then on.
    """
    times, rates = [0.0], [0.0]
    for line in sorted(merged, key=lambda line: line["begun"]):
        times += [line["begun"] - began, line["at"] - began]
        rates += [line["events"] / max(1e-3, line["at"] - line["begun"]), 0.0]
    return times, rates


def rate_of_writes(written: list[dict[str, Any]], began: float) -> tuple[list[float], list[float]]:
    """Return the rate of the writer in each second, also in those in which nothing was written.

    Args:
        written: The lines of the writer; the first counts what existed before, which is no write.
        began: The time that is zero in the chart.

    Returns:
        The seconds, and the events that were written in each.
    """
    seconds: Counter[int] = Counter()
    for before, line in pairwise(written):
        seconds[int(line["at"] - began)] += line["events"] - before["events"]
    last = int(written[-1]["at"] - began)
    times = [float(second) for second in range(last + 2)]
    return times, [float(seconds[int(second)]) for second in times]
