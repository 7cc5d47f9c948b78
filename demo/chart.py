"""The picture of a run: its rate, and how far the table was behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from demo.places import Places, read_lines
from demo.table import Merge, merges

__all__ = ["Behind", "draw", "lag", "quantile", "rate_of_merges", "rate_of_writes"]

Behind = tuple[float, float]
"""A moment, in seconds since 1970, and how many seconds the table was behind the store then."""


def lag(at: float, newest: float, written: Sequence[float]) -> float:
    """Return how far the table was behind: for how long its oldest missing change had been committed.

    Args:
        at: The moment, in seconds since 1970.
        newest: When the newest change of the table was committed.
        written: When the writer committed its changes, in order.
    """
    return at - min((each for each in written if newest < each <= at), default=at)


def quantile(behind: Sequence[Behind], share: float) -> float:
    """Return the lag, in seconds, that the table did not exceed in this share of the time.

    Args:
        behind: The lags at moments of equal distance, at least one.
        share: From 0 to 1; with 1, the largest lag is returned.
    """
    ordered = sorted(seconds for _, seconds in behind)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def draw(places: Places, behind: Sequence[Behind], killed_at: float | None) -> None:
    """Write `places.chart`, which shows the rate and the lag over time, and the time of the kill."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    written = read_lines(places.written)
    began = written[0]["at"]
    figure, (rate, late) = plt.subplots(2, 1, sharex=True, figsize=(5, 4.6), layout="constrained")
    figure.suptitle("Flights mirrored into a Delta table")
    merged = rate_of_merges(merges(places.table), began)
    rate.step(*merged, where="post", label="merged into the table", color="#0a6fb7")
    rate.step(*rate_of_writes(written, began), where="post", label="written to the store", color="#8a8a8a")
    rate.set_ylabel("rows a second")
    rate.legend(loc="upper right", fontsize=9)
    late.plot([at - began for at, _ in behind], [seconds for _, seconds in behind], color="#c4532d")
    late.set_ylabel("seconds that the table\nis behind the store")
    late.set_xlabel("seconds")
    if behind:
        median, most, largest = (quantile(behind, share) for share in (0.5, 0.99, 1))
        late.set_title(f"median {median:.1f} s, p99 {most:.1f} s, largest {largest:.1f} s", fontsize=9)
    for axis in (rate, late):
        axis.grid(alpha=0.3)
        axis.set_ylim(bottom=0)
        if killed_at is not None:
            axis.axvline(killed_at - began, color="black", linestyle="--", linewidth=1)
    if killed_at is not None:
        rate.annotate(" SIGKILL", (killed_at - began, rate.get_ylim()[1]), ha="left", va="top", fontsize=9)
    figure.savefig(places.chart, dpi=160)
    plt.close(figure)


def rate_of_merges(merged: Sequence[Merge], began: float) -> tuple[list[float], list[float]]:
    """Return the rate of the mirror in each second.

    Args:
        merged: The merges.
        began: The time that is zero in the chart.

    Returns:
        The seconds, and the rows that were merged in each.
    """
    return _each_second([(merge.at - began, merge.rows) for merge in merged])


def rate_of_writes(written: list[dict[str, Any]], began: float) -> tuple[list[float], list[float]]:
    """Return the rate of the writer in each second, also in those in which nothing was written.

    Args:
        written: The lines of the writer; the first counts what existed before, which is no write.
        began: The time that is zero in the chart.

    Returns:
        The seconds, and the writes in each.
    """
    return _each_second(
        [(line["at"] - began, line["writes"] - before["writes"]) for before, line in pairwise(written)]
    )


def _each_second(done: Sequence[tuple[float, int]]) -> tuple[list[float], list[float]]:
    seconds: Counter[int] = Counter()
    for at, many in done:
        seconds[int(at)] += many
    times = range(max(seconds, default=0) + 2)
    return [float(second) for second in times], [float(seconds[second]) for second in times]
