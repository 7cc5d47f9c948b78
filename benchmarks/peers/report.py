"""The figures of one run of a peer, as its program prints them, and the medians of several runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final, Literal

import attrs

__all__ = ["Outcome", "PeerError", "Report", "State"]

_FOR: Final = 100_000
State = Literal["measured", "missing", "failed"]


class PeerError(Exception):
    """A peer's program failed, or printed no figures."""


@attrs.frozen
class Report:
    """The figures of one run.

    Attributes:
        count: The number of changes that were read, those of the warm-up included.
        events: The number of changes that were measured.
        seconds: The wall time for these.
        cpu: The CPU seconds for these.
        mebibytes: The peak memory of the process; 0 if unknown.
        median_ms: The median delay of delivery in milliseconds, or None.
        p99_ms: The delay that one change of a hundred exceeds, or None.
        versions: The version of the program's runtime.
    """

    count: int
    events: int
    seconds: float
    cpu: float
    mebibytes: float
    median_ms: float | None = None
    p99_ms: float | None = None
    versions: Mapping[str, str] = attrs.field(factory=dict, hash=False)

    @classmethod
    def parse(cls, output: str) -> Report:
        """Return the figures that a program has printed as its last line.

        Raises:
            PeerError: Raised if there are none, or if nothing was measured.
        """
        lines = output.strip().splitlines() or ["nothing"]
        try:
            report = cls(**json.loads(lines[-1]))
        except (TypeError, ValueError):
            raise PeerError(f"its last line is not its figures: {lines[-1][:200]}") from None
        if report.events <= 0 or report.seconds <= 0:
            raise PeerError("all changes came with the warm-up, so nothing was measured: use more --events")
        return report

    @property
    def rate(self) -> float:
        """Events a second."""
        return self.events / self.seconds

    @property
    def cpu_for_many(self) -> float:
        """CPU seconds for 100,000 events."""
        return self.cpu / self.events * _FOR


@attrs.frozen
class Outcome:
    """The line of a peer: medians of its runs, or the reason why there are none.

    Attributes:
        name: The name of the peer.
        state: Whether it was measured.
        reason: The reason why it was not.
        runs: The number of runs.
        rate: Events a second.
        cpu: CPU seconds for 100,000 events.
        mebibytes: The peak memory of the process.
        median_ms: The median delay of delivery in milliseconds, or None.
        p99_ms: The delay that one change of a hundred exceeds, or None.
        versions: The versions of its runtime and its packages.
    """

    name: str
    state: State
    reason: str = ""
    runs: int = 0
    rate: float | None = None
    cpu: float | None = None
    mebibytes: float | None = None
    median_ms: float | None = None
    p99_ms: float | None = None
    versions: Mapping[str, str] = attrs.field(factory=dict, hash=False)

    @classmethod
    def of(cls, name: str, reports: Sequence[Report], versions: Mapping[str, str]) -> Outcome:
        """Return the medians of a peer's runs."""
        return cls(
            name,
            "measured",
            runs=len(reports),
            rate=median(report.rate for report in reports),
            cpu=median(report.cpu_for_many for report in reports),
            mebibytes=median(report.mebibytes for report in reports) or None,
            median_ms=_median([report.median_ms for report in reports]),
            p99_ms=_median([report.p99_ms for report in reports]),
            versions={**reports[-1].versions, **versions},
        )

    @property
    def verdict(self) -> str:
        """What to show if it was not measured: `missing: no javac`."""
        return f"{self.state}: {self.reason}" if self.reason else self.state

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with figures rounded to four digits."""
        return {
            name: float(f"{value:.4g}") if isinstance(value, float) else value
            for name, value in attrs.asdict(self).items()
        }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
