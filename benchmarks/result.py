"""The result of a row, and its form as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

__all__ = ["Result", "figure"]


@attrs.frozen
class Result:
    """One line of the table with its figures, all of them medians.

    Attributes:
        name: The name of the row.
        unit: The unit of value and baseline.
        value: Ours; None when the row failed.
        baseline: The value of the other side; None if there is no other side.
        ratio: Ours divided by the baseline, or None.
        goal: The bound on the ratio, or on the value if there is no baseline.
        at_most: True when the bound is an upper one.
        ok: True when the goal is met.
        reason: Why the goal is not met.
        failed: True when the row failed, and `reason` is the error.
        pairs: The number of pairs that were counted.
        seconds: Wall time of one run of ours.
        cpu: CPU time of one run of ours.
        baseline_seconds: Wall time of one run of the baseline.
        baseline_cpu: CPU time of one run of the baseline.
        notes: Further figures, in the same unit.
        recorded: The day of the run, for a record.
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
    seconds: float | None = None
    cpu: float | None = None
    baseline_seconds: float | None = None
    baseline_cpu: float | None = None
    notes: Mapping[str, float] = attrs.field(factory=dict, hash=False)
    recorded: str = ""

    @property
    def verdict(self) -> str:
        """In one word."""
        return "failed" if self.failed else "met" if self.ok else "missed"

    @property
    def achieved(self) -> float | None:
        """The figure that is compared with the goal's bound."""
        return self.value if self.ratio is None else self.ratio

    @property
    def score(self) -> float | None:
        """1 if the goal is just met, more if it is exceeded, for upper and lower bounds."""
        if not self.achieved:
            return None
        return self.goal / self.achieved if self.at_most else self.achieved / self.goal

    @property
    def goal_text(self) -> str:
        """The goal as text for people."""
        sign = "≤" if self.at_most else "≥"
        return f"{sign} {self.goal:g} {self._measure}"

    @property
    def achieved_text(self) -> str:
        """The figure to compare with the goal."""
        if self.achieved is None:
            return "-"
        digits = 2 if self.ratio is not None and self.achieved < 100 else 1
        return f"{self.achieved:.{digits}f} {self._measure}"

    @property
    def _measure(self) -> str:
        # Without a figure, it is not known if there would have been a baseline.
        return "x" if self.ratio is not None or self.value is None else self.unit

    def to_json(self) -> dict[str, Any]:
        """Plain values, figures to four digits."""
        return {name: _rounded(value) for name, value in attrs.asdict(self).items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Result:
        """The inverse of `to_json`."""
        return cls(**value)


def figure(number: float | None, unit: str = "") -> str:
    """A number for people, with its unit if there is one."""
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
