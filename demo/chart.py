"""Draws a chart of the run: its rate, and the lag of the table."""

from __future__ import annotations

from typing import Any

from demo.places import Places, merged_batches, read_lines

__all__ = ["draw"]


def draw(places: Places, killed_at: float | None) -> None:
    """Write `places.chart`, which shows the rate and the lag over time, and the time of the kill."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    written, merged = read_lines(places.written), merged_batches(places)
    began, existed = written[0]["at"], written[0]["events"]
    written = [{**line, "events": line["events"] - existed} for line in written]
    figure, (rate, lag) = plt.subplots(2, 1, sharex=True, figsize=(5, 4.6), layout="constrained")
    figure.suptitle("Flights from the change feed into a Delta table")
    rate.plot(
        *_rate(written, "events", began), label="written to the store", color="#8a8a8a", drawstyle="steps-pre"
    )
    rate.plot(
        *_rate(_summed(merged), "events", began),
        label="merged into the table",
        color="#0a6fb7",
        drawstyle="steps-pre",
    )
    rate.set_ylabel("events a second")
    rate.legend(loc="upper right", fontsize=9)
    lag.plot(
        [line["at"] - began for line in merged if line["lag"] is not None],
        [line["lag"] for line in merged if line["lag"] is not None],
        "o-",
        markersize=4,
        color="#c4532d",
    )
    lag.set_ylabel("lag in seconds")
    lag.set_xlabel("seconds")
    for axis in (rate, lag):
        axis.grid(alpha=0.3)
        axis.set_ylim(bottom=0)
        if killed_at is not None:
            axis.axvline(killed_at - began, color="black", linestyle="--", linewidth=1)
    if killed_at is not None:
        lag.annotate(" SIGKILL", (killed_at - began, lag.get_ylim()[1]), ha="left", va="top", fontsize=9)
    figure.savefig(places.chart, dpi=160)
    plt.close(figure)


def _summed(merged: list[dict[str, Any]]) -> list[dict[str, Any]]:
    total, lines = 0, []
    for line in merged:
        total += line["events"]
        lines.append({**line, "events": total})
    return lines


def _rate(lines: list[dict[str, Any]], name: str, began: float) -> tuple[list[float], list[float]]:
    """Return the rate in events per second, computed between lines that are at least one second apart."""
    times, rates = [], []
    at, total = began, 0
    for line in lines:
        if line["at"] - at >= 1.0:
            times.append(line["at"] - began)
            rates.append((line[name] - total) / (line["at"] - at))
            at, total = line["at"], line[name]
    return times, rates
