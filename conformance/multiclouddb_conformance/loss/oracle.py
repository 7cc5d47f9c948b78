"""Runs one script many times, and kills the consumer at a different place each time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import attrs

from multiclouddb_conformance.loss.consumer import Pause
from multiclouddb_conformance.loss.report import LossReport, RunReport
from multiclouddb_conformance.loss.run import Kill, Run, Scenario, Snapshot

__all__ = ["LossOracle"]

W = TypeVar("W")

NEVER = "never killed"
STEP = "killed after each step"
PAGE = "killed after each page"
LATE = "resumed at the end from each token"


@attrs.frozen(kw_only=True)
class LossOracle(Scenario[W]):
    """Runs one script many times, and kills the consumer at a different place each time."""

    def run(self, max_kills: int | None = None) -> LossReport:
        """Run all plans."""
        baseline = self._play(NEVER, NEVER, None)
        runs = [baseline.report]
        if baseline.report.error is None:
            runs += self._killed_after_each_step(baseline.steps_done, max_kills)
            runs.append(self._play(PAGE, PAGE, _after_each_page()).report)
            runs += self._resumed_late(max_kills)
        return LossReport(len(self.life), tuple(runs))

    def _killed_after_each_step(self, steps: Sequence[str], most: int | None) -> Iterator[RunReport]:
        for number in _spread(len(steps), most):
            name = f"killed after step {number + 1}, {steps[number]}"
            yield self._play(STEP, name, _after_step(number + 1)).report

    def _resumed_late(self, most: int | None) -> list[RunReport]:
        with self.world() as world:
            first = self._new_run(world, None, forget=False)
            first.play()
            chosen = [first.snapshots[number] for number in _spread(len(first.snapshots), most)]
            return [self._late(world, first, snapshot) for snapshot in chosen]

    def _late(self, world: W, first: Run[W], snapshot: Snapshot) -> RunReport:
        run = self._new_run(world, None, forget=False)
        run.go_on_from(first, snapshot)
        return run.report(LATE, f"resumed from the token of step {snapshot.step}")

    def _play(self, plan: str, name: str, kill: Kill | None) -> _Played:
        with self.world() as world:
            run = self._new_run(world, kill, forget=True)
            run.play()
            return _Played(run.report(plan, name), run.steps_done)

    def _new_run(self, world: W, kill: Kill | None, *, forget: bool) -> Run[W]:
        return Run(self, world, kill, forget=forget)


@attrs.frozen
class _Played:
    report: RunReport
    steps_done: list[str]


def _spread(count: int, most: int | None) -> list[int]:
    """Return at most `most` numbers below `count`, including the first and the last one."""
    if most is None or count <= most:
        return list(range(count))
    if most <= 1:
        return [count - 1][:most]
    return sorted({round(number * (count - 1) / (most - 1)) for number in range(most)})


def _after_step(number: int) -> Kill:
    def kill(run: Run[W], step: object) -> bool:
        del step
        return len(run.steps_done) == number

    return kill


def _after_each_page() -> Kill:
    def kill(run: Run[W], step: object) -> bool:
        # A client that has received no event is not killed after an idle page. Otherwise, no client would
        # ever continue after that page.
        return isinstance(step, Pause) and run.token_moved and not (step.idle and not run.lived)

    return kill
