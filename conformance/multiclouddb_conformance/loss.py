"""The loss oracle: kills a consumer after every step of its life, and compares with what was written.

    oracle = LossOracle(world=make_world, client=make_client, request=request, life=scripted_life())
    report = oracle.run()
    print(report)
    report.assert_nothing_lost()

It knows the API only. The world (a database with one collection) and what happens to it are the
caller's, so it works with any provider, and with a consumer of the caller's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

import attrs

from multiclouddb_api import ChangeFeedRequest
from multiclouddb_conformance.consumer import (
    Consumer,
    Delivered,
    Failed,
    Pause,
    ReadsChanges,
    Received,
    Stored,
    iterator_consumer,
    page_consumer,
    page_consumer_with,
)
from multiclouddb_conformance.life import (
    Act,
    Change,
    Read,
    ReadUntilIdle,
    ScriptedWorld,
    Step,
    scripted_life,
)
from multiclouddb_conformance.report import LossReport, RunReport
from multiclouddb_conformance.run import Kill, Run, Snapshot
from multiclouddb_conformance.truth import Marker, marker_in

__all__ = [
    "Act",
    "Change",
    "Consumer",
    "Delivered",
    "Failed",
    "LossOracle",
    "LossReport",
    "Pause",
    "Read",
    "ReadUntilIdle",
    "Received",
    "RunReport",
    "ScriptedWorld",
    "Step",
    "Stored",
    "iterator_consumer",
    "marker_in",
    "page_consumer",
    "page_consumer_with",
    "scripted_life",
]

W = TypeVar("W")

NEVER = "never killed"
STEP = "killed after each step"
PAGE = "killed after each page"
LATE = "resumed at the end from each token"


@attrs.frozen(kw_only=True)
class LossOracle(Generic[W]):
    """Plays one scripted life many times, each time killing the consumer elsewhere.

    A kill discards the client and everything but the last stored token. Four plans:

    - never killed: the life as it is;
    - killed after each step of the consumer, once a run (a page received, an event done, a token
      stored), and resumed at once by a fresh client while the life goes on;
    - killed after each page, in one run: each client resumes the one before it;
    - resumed at the end from each token that was ever stored, when everything else has happened;
      acts that take changes out of retention are left out of that life.

    Lives have to be deterministic: every run gets a fresh world and plays the same steps.

    Attributes:
        world: Makes a fresh world, and clears it away behind the run.
        client: Makes a client on a world: anything with `read_changes`; closed if it can be.
        request: What the consumer reads, or a function that makes the request when it first reads.
        life: The script. At its end the consumer reads until the feed is idle.
        consumer: The application; `page_consumer` by default.
        marker: Where an event's marker is; the field `n` of its document by default.
        lineage: Partition id as events have it → parents, of everything that ever was in a world;
            None when nobody can tell: then only keys show whether a child was read too early.
        written_before: So many changes of the life come before the start (`AtTime`, a token). For
            `Now` and `Beginning` leave it out.
        idle_pages: So many idle pages in a row count as the end; more than one where the service
            shows what was written only after a while.
        max_pages: So many pages in one reading at most.
        max_failures: So many retryable failures in a row at most.
    """

    world: Callable[[], AbstractContextManager[W]]
    client: Callable[[W], ReadsChanges]
    request: ChangeFeedRequest | Callable[[W], ChangeFeedRequest]
    life: Sequence[Step[W]] = attrs.field(converter=tuple)
    consumer: Consumer = page_consumer
    marker: Marker = attrs.field(factory=lambda: marker_in("n"))
    lineage: Callable[[W], Mapping[str, tuple[str, ...]]] | None = None
    written_before: int | None = None
    idle_pages: int = 1
    max_pages: int = 100_000
    max_failures: int = 1000

    def run(self, max_kills: int | None = None) -> LossReport:
        """All plans.

        Args:
            max_kills: In the plans that kill once a run, and resume at the end: at so many places
                only, spread evenly. None for everywhere.
        """
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
    """At most so many numbers below `count`, the first and the last among them."""
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
        # An idle client without an event is let live: else nobody would ever see that it is idle.
        return isinstance(step, Pause) and run.token_moved and not (step.idle and not run.lived)

    return kill
