"""The result of a row, with its form as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

__all__ = ["Result", "figure"]


@attrs.frozen
class Result:
    """One line of the table; all measured figures are medians.

    Attributes:
        name: The name of the row.
        unit: The unit of the value and the baseline.
        value: The value that was measured for the library; None if the row failed.
        baseline: The value of the other side; None if there is no other side.
        ratio: The library's value divided by the baseline, or None.
        goal: The bound on the ratio; if there is no baseline, the bound on the value.
        at_most: True if the bound is an upper bound.
        ok: True if the goal is met.
        reason: The reason why the goal is not met.
        failed: True if the row failed; then `reason` is the error.
        pairs: The number of pairs of runs, without the warm-up.
        notes: Further figures, whose names contain their units.
        load: The load of the machine (average of a minute) when the row began; None if it was not recorded.
        recorded: The day of the run; empty if the result was not recorded.
        setting: The machine and the versions of the software; empty if the result was not recorded.
    """

    name: str
    unit: str
    value: float | None
    baseline: float | None
    ratio: float | None
    goal: float
    at_most: bool
    ok: bool
    reason: str = ""
    failed: bool = False
    pairs: int = 0
    notes: Mapping[str, float] = attrs.field(factory=dict, hash=False)
    load: float | None = None
    recorded: str = ""
    setting: str = ""

    @property
    def verdict(self) -> str:
        """Return the verdict in one word."""
        return "failed" if self.failed else "met" if self.ok else "missed"

    @property
    def achieved(self) -> float | None:
        """Return the figure that is compared with the goal's bound."""
        return self.value if self.ratio is None else self.ratio

    @property
    def goal_text(self) -> str:
        """Return the goal as text for people."""
        sign = "≤" if self.at_most else "≥"
        return f"{sign} {self.goal:g} {self._measure}"

    @property
    def achieved_text(self) -> str:
        """Return the figure to compare with the goal, as text."""
        if self.achieved is None:
            return "-"
        digits = 2 if self.ratio is not None and self.achieved < 100 else 1
        return f"{self.achieved:.{digits}f} {self._measure}"

    @property
    def _measure(self) -> str:
        # Without a figure, it is unknown whether there would have been a baseline.
        return "x" if self.ratio is not None or self.value is None else self.unit

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with figures rounded to four digits."""
        return {name: _rounded(value) for name, value in attrs.asdict(self).items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Result:
        """Return the result that was passed to `to_json`."""
        return cls(**value)


def figure(number: float | None, unit: str = "") -> str:
    """Format a number for people, with its unit if there is one."""
    if number is None:
        return "-"
    text = f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
    return f"{text} {unit}".rstrip()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return value
