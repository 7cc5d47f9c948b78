"""What a run has done so far: its tests, its requests, and what they cost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs

from multiclouddb_certify.wire import REQUEST, add, cost

__all__ = ["Progress", "Test"]


@attrs.define
class Test:
    """One test of a run."""

    name: str
    outcome: str = "not run"
    seconds: float = 0.0
    units: dict[str, float] = attrs.field(factory=dict)
    error: dict[str, Any] | None = None


@attrs.define
class Progress:
    """What a run has done so far."""

    prices: Mapping[str, float]
    tests: dict[str, Test] = attrs.field(factory=dict)
    current: str | None = None
    began: float = attrs.field(factory=time.monotonic)
    units: dict[str, float] = attrs.field(factory=dict)
    operations: Counter[str] = attrs.field(factory=Counter)
    deselected: dict[str, int] = attrs.field(factory=dict)
    at_the_bound: bool = False
    refusal: tuple[str, str] | None = None
    ready: int | None = None
    code: int | None = None

    @property
    def usd(self) -> float:
        """What the run has cost, in US dollars."""
        return cost(self.units, self.prices)

    @property
    def seconds(self) -> float:
        """How long the run has taken."""
        return time.monotonic() - self.began

    def take(self, line: Mapping[str, Any]) -> None:
        """Take note of one line of the child."""
        match line:
            case {"asks": operation, "units": units}:
                add(self.units, units)
                self.operations[operation] += units.get(REQUEST, 0)
                if self.current is not None:
                    add(self.tests[self.current].units, units)
            case {"collected": name}:
                self.tests[name] = Test(name)
            case {"deselected": reason, "count": count}:
                self.deselected[reason] = self.deselected.get(reason, 0) + count
            case {"ready": count}:
                self.ready = count
            case {"begins": name}:
                self.current = name
                self.tests.setdefault(name, Test(name)).outcome = "stopped"
            case {"failed": name, **error}:
                test = self.tests[name]
                test.outcome, test.error = "failed", test.error or dict(error)
            case {"ends": name, "seconds": seconds}:
                test = self.tests[name]
                test.seconds = seconds
                if test.outcome == "stopped":
                    test.outcome = "passed"
                self.current = None
            case {"refused": category, "message": message}:
                self.refusal = category, message
            case {"bound": True}:
                self.at_the_bound = True
            case {"code": code}:
                self.code = code
            case _:
                raise AssertionError(line)
