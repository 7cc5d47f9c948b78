"""Defines the figures that a peer's program prints after a run, and the medians of several runs."""

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
    """Raised if a peer's program failed, or printed no figures."""


@attrs.frozen
class Report:
    """The figures of one run.

    Attributes:
        count: The number of changes that were read, including the warm-up.
        events: The number of changes that were measured.
        seconds: The wall time for the measured changes.
        cpu: The CPU seconds for the measured changes.
        mebibytes: The peak memory of the process; 0 if unknown.
        versions: The versions of the program's runtime.
    """

    count: int
    events: int
    seconds: float
    cpu: float
    mebibytes: float
    versions: Mapping[str, str] = attrs.field(factory=dict, hash=False)

    @classmethod
    def parse(cls, output: str) -> Report:
        """Return the figures from the last line that a program has printed.

        Raises:
            PeerError: Raised if there are no figures, or if nothing was measured.
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
        """The number of events per second."""
        return self.events / self.seconds

    @property
    def cpu_for_many(self) -> float:
        """The CPU seconds for 100,000 events."""
        return self.cpu / self.events * _FOR


@attrs.frozen
class Outcome:
    """The line of a peer in a table: the medians of its runs, or the reason why the line has no figures.

    Attributes:
        name: The name of the peer.
        state: The state, which says whether the peer was measured.
        reason: The reason why the peer was not measured.
        runs: The number of runs.
        rate: The number of events per second.
        cpu: The CPU seconds for 100,000 events.
        mebibytes: The peak memory of the process.
        versions: The versions of the peer's runtime and packages.
    """

    name: str
    state: State
    reason: str = ""
    runs: int = 0
    rate: float | None = None
    cpu: float | None = None
    mebibytes: float | None = None
    versions: Mapping[str, str] = attrs.field(factory=dict, hash=False)

    @classmethod
    def of(cls, name: str, reports: Sequence[Report], versions: Mapping[str, str]) -> Outcome:
        """Return the result of a peer, with the medians of its runs."""
        return cls(
            name,
            "measured",
            runs=len(reports),
            rate=median(report.rate for report in reports),
            cpu=median(report.cpu_for_many for report in reports),
            mebibytes=median(report.mebibytes for report in reports) or None,
            versions={**reports[-1].versions, **versions},
        )

    @property
    def verdict(self) -> str:
        """The text to show if the peer was not measured, for example `missing: no javac`."""
        return f"{self.state}: {self.reason}" if self.reason else self.state

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with figures rounded to four digits."""
        return {
            name: float(f"{value:.4g}") if isinstance(value, float) else value
            for name, value in attrs.asdict(self).items()
        }
