"""Draws the chart of the recorded run, which shows the events per second of each reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import attrs

from benchmarks.peers.peer import Group, Peer
from benchmarks.peers.peers import PEERS
from benchmarks.peers.record import Record
from benchmarks.peers.report import Outcome
from benchmarks.result import figure

__all__ = ["draw"]


@attrs.frozen
class Theme:
    """The colours of a chart for one theme of the documentation."""

    text: str
    grid: str
    main: str
    other: str


# The colours of the documentation's themes, without red and green; the background is transparent.
_THEMES: Final = {
    "light": Theme("#212529", "#d5dbdc", "#0e8f86", "#c2620f"),
    "dark": Theme("#dfe7e9", "#3b484c", "#5fd4c4", "#f0a35c"),
}
_TEXTS: Final = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
_GROUPS: Final = (Group.MONGO, Group.DYNAMO)
_ROOM: Final = 1.8


def draw(record: Record, theme: Literal["light", "dark"], file: Path) -> None:
    """Write a PNG with one bar for each peer that was measured; our bars have a different colour."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    colors = _THEMES[theme]
    outcomes = {outcome.name: outcome for outcome in record.outcomes}
    shown = [
        (peer, outcomes[peer.name]) for peer in PEERS if peer.name in outcomes and outcomes[peer.name].rate
    ]
    panels = {group: [line for line in shown if line[0].group is group] for group in _GROUPS}
    heights = [max(1, len(lines)) for lines in panels.values()]
    with plt.rc_context(dict.fromkeys(_TEXTS, colors.text)):
        size = (5, 2.1 + 0.48 * sum(heights))
        drawn, axes = plt.subplots(
            len(panels), figsize=size, layout="constrained", gridspec_kw={"height_ratios": heights}
        )
        drawn.suptitle("How many changes a second each reader reads", fontsize=12, weight="bold")
        for panel, (group, lines) in zip(axes, panels.items(), strict=True):
            _bars(panel, group, lines, colors)
            panel.set_xlabel("changes a second; further right is better")
        drawn.savefig(file, dpi=200, transparent=True)
        plt.close(drawn)


def _bars(axes: Any, group: Group, lines: list[tuple[Peer, Outcome]], colors: Theme) -> None:
    rates = [outcome.rate or 0.0 for _, outcome in lines]
    bars = [colors.main if "multiclouddb" in peer.title else colors.other for peer, _ in lines]
    axes.barh(range(len(lines)), rates, height=0.36, color=bars)
    for place, (peer, outcome) in enumerate(lines):
        # The text is above the bar instead of beside it, so that the chart is narrow enough for a phone.
        axes.text(0.0, place - 0.34, peer.title.replace("`", ""), va="center", fontsize=10)
        text = f"{figure(outcome.rate)} a second; {figure(outcome.cpu)} s of CPU"
        axes.annotate(
            text, (rates[place], place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=9
        )
    axes.set_title(f"{group.value}, CPU for 100,000 changes", fontsize=11, loc="left")
    axes.set_yticks([])
    axes.set_ylim(len(lines) - 0.4, -0.8)
    axes.set_xlim(0, max(rates, default=1.0) * _ROOM)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.xaxis.set_major_locator(_ticks())
    axes.tick_params(axis="x", color=colors.grid)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(colors.grid)


def _ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(4)
