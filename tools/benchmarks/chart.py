"""Draws a chart of the recorded run for maintainers: how far each row is above or below its goal."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten
from typing import Any, Final, Literal

import attrs

from benchmarks.record import Record
from benchmarks.result import Result
from benchmarks.row import load_rows

__all__ = ["TEXTS", "THEMES", "Theme", "draw"]


@attrs.frozen
class Theme:
    """The colours of a chart for one theme of the documentation."""

    text: str
    grid: str
    main: str
    other: str


# The colours of the documentation's themes, without red and green; the background is transparent.
THEMES: Final = {
    "light": Theme("#212529", "#d5dbdc", "#0e8f86", "#c2620f"),
    "dark": Theme("#dfe7e9", "#3b484c", "#5fd4c4", "#f0a35c"),
}
TEXTS: Final = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
_TICKS: Final = (0.04, 0.2, 1, 5, 25, 100, 1000)
_WIDEST: Final = 1000.0


def draw(record: Record, theme: Literal["light", "dark"], file: Path) -> None:
    """Write a PNG with one bar per row. The value 1 is the goal, and a higher value is always better."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    colors, rows = THEMES[theme], load_rows()
    results = [result for name, result in record.results.items() if name in rows and result.score]
    with plt.rc_context(dict.fromkeys(TEXTS, colors.text)):
        figure, axes = plt.subplots(figsize=(5, 1.0 + 0.48 * len(results)), layout="constrained")
        _bars(axes, results, colors)
        for place, result in enumerate(results):
            # The text is above the bar instead of beside it, so that the chart is narrow enough for a phone.
            across = axes.get_yaxis_transform()
            title = shorten(rows[result.name].title.replace("`", ""), 62, placeholder=" …")
            axes.text(0.0, place - 0.34, title, transform=across, va="center", fontsize=10, in_layout=False)
        _frame(axes, results, colors)
        figure.savefig(file, dpi=200, transparent=True)
        plt.close(figure)


def _score(result: Result) -> float:
    return min(_WIDEST, result.score or 0.0)


def _bars(axes: Any, results: list[Result], colors: Theme) -> None:
    axes.barh(
        range(len(results)),
        [_score(result) - 1.0 for result in results],
        left=1.0,
        height=0.36,
        color=[colors.main if result.ok else colors.other for result in results],
    )
    for place, result in enumerate(results):
        axes.annotate(
            f"{result.achieved_text} (goal {result.goal_text})",
            (max(1.0, _score(result)), place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            in_layout=False,
        )


def _frame(axes: Any, results: list[Result], colors: Theme) -> None:
    scores = [_score(result) for result in results]
    low, high = 0.8 * min([0.5, *scores]), max([2.0, *scores])
    axes.set_yticks([])
    axes.set_ylim(len(results) - 0.4, -0.8)
    axes.set_xscale("log")
    # Space for the text to the right of the bars.
    axes.set_xlim(low, high * (high / low) ** 0.75)
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    axes.set_xticks(ticks, ["goal" if tick == 1 else f"{tick:g} x" for tick in ticks])
    axes.minorticks_off()
    axes.tick_params(axis="x", color=colors.grid)
    places = range(len(results))  # one piece of the line for each bar, so that the line crosses no text
    axes.vlines([1.0] * len(results), [at - 0.2 for at in places], [at + 0.2 for at in places], colors.text)
    axes.set_title("Each row beside its goal", fontsize=12, weight="bold", loc="left")
    axes.set_xlabel("multiple of the goal, logarithmic; further right is better")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(colors.grid)
