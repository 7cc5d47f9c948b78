"""Draws a chart of the recorded run, which shows how far each row is above or below its goal."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import attrs

from benchmarks.record import Record
from benchmarks.result import Result
from benchmarks.row import load_rows

__all__ = ["draw"]


@attrs.frozen
class _Theme:
    ground: str
    text: str
    grid: str
    met: str
    missed: str


# Colours that do not need red and green; the backgrounds are those of the documentation's themes.
_THEMES: Final = {
    "light": _Theme("#ffffff", "#1f2328", "#d0d7de", "#1f77b4", "#d9730d"),
    "dark": _Theme("#1e2129", "#e2e4e9", "#3d4350", "#58a6e0", "#f0963c"),
}
_TEXTS: Final = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
_TICKS: Final = (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000)
_WIDEST: Final = 1000.0


def draw(record: Record, theme: Literal["light", "dark"], file: Path) -> None:
    """Write a PNG with one bar per row: 1 is the goal, and more is better for every kind of goal."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    colors, rows = _THEMES[theme], load_rows()
    results = [result for name, result in record.results.items() if name in rows and result.score]
    with plt.rc_context(dict.fromkeys(_TEXTS, colors.text)):
        figure, axes = plt.subplots(figsize=(10, 1.6 + 0.5 * len(results)), layout="constrained")
        figure.suptitle("Benchmarks: each row compared with its goal")
        _bars(axes, results, colors)
        axes.set_yticks(range(len(results)), [rows[result.name].title for result in results])
        _frame(axes, results, colors)
        figure.savefig(file, dpi=120, facecolor=colors.ground)
        plt.close(figure)


def _score(result: Result) -> float:
    return min(_WIDEST, result.score or 0.0)


def _bars(axes: Any, results: list[Result], colors: _Theme) -> None:
    axes.barh(
        range(len(results)),
        [_score(result) - 1.0 for result in results],
        left=1.0,
        height=0.62,
        color=[colors.met if result.ok else colors.missed for result in results],
    )
    for place, result in enumerate(results):
        axes.annotate(
            f"{result.verdict}: {result.achieved_text} (goal {result.goal_text})",
            (max(1.0, _score(result)), place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            bbox={"facecolor": colors.ground, "edgecolor": "none", "pad": 1.0},
        )


def _frame(axes: Any, results: list[Result], colors: _Theme) -> None:
    scores = [_score(result) for result in results]
    low, high = 0.8 * min([0.5, *scores]), max([2.0, *scores])
    axes.set_facecolor(colors.ground)
    axes.invert_yaxis()
    axes.set_xscale("log")
    # Room at the right of the bars for the text.
    axes.set_xlim(low, high * (high / low) ** 0.75)
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    axes.set_xticks(ticks, ["goal" if tick == 1 else f"{tick:g} x" for tick in ticks])
    axes.minorticks_off()
    axes.tick_params(axis="both", length=0)
    axes.axvline(1.0, color=colors.text, linewidth=1.4)
    axes.grid(axis="x", color=colors.grid, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("multiple of the goal, logarithmic; further right is better")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(colors.grid)
