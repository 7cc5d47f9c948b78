"""Tests readers that follow partitions and their descendants, with random histories of a log.

Each root partition has one follower, which reads, crashes and restarts.
"""

from __future__ import annotations

import os

import attrs
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    FromContinuationToken,
    MulticloudDbError,
    OperationOptions,
    PhysicalPartition,
    StartPosition,
)
from multiclouddb_conformance.simulation import Listing, ServiceBehaviour, Simulation, SimulationProvider
from multiclouddb_spi import Engine, InlineExecutor

LIVES = int(os.environ.get("MULTICLOUDDB_LIVES", "80"))
OPTIONS = OperationOptions(timeout_seconds=20)
MOST_PAGES = 5000


@attrs.define
class Follower:
    """A follower of a partition and its descendants.

    Attributes:
        sim: The simulation that the follower reads.
        root: The partition from which the follower starts.
        engine: The engine, which is replaced after a crash.
        position: The last token.
        first: Maps each event id to the number of events that came before it.
        tokens: Every token, with the number of events that were delivered before it.
    """

    sim: Simulation
    root: str
    engine: Engine
    position: StartPosition = attrs.field(factory=Beginning)
    first: dict[str, int] = attrs.field(factory=dict)
    tokens: list[tuple[str, int]] = attrs.field(factory=list)

    def branch(self) -> set[str]:
        """Return the root and all its descendants."""
        found = {self.root}
        for name, parents in self.sim.lineage.items():
            if found.intersection(parents):
                found.add(name)
        return found

    def missing(self) -> set[str]:
        """Return the events that were written in the branch and have not been delivered."""
        names = self.branch()
        return {item.event_id for item in self.sim.history if item.partition_id in names} - self.first.keys()

    def page(self, size: int) -> bool:
        """Read one page; return True if it is idle."""
        page = self.attempt(self.position, size)
        if page is None:
            return False
        for event in page.events:
            self.first.setdefault(event.event_id, len(self.first))
        assert not page.partition_retired
        self.position = FromContinuationToken(page.continuation_token)
        self.tokens.append((page.continuation_token, len(self.first)))
        if page.idle and self.sim.names_all():
            assert not self.missing(), f"{self.root}: idle, but events are missing"
        return page.idle

    def attempt(self, position: StartPosition, size: int):
        scope = PhysicalPartition(self.sim.public_id(self.root), with_descendants=True)
        request = ChangeFeedRequest(self.sim.address, position, scope, max_page_size=size)
        try:
            return self.engine.read_changes(request, OPTIONS)
        except MulticloudDbError as error:
            if not error.retryable:
                raise
            return None

    def ancestors(self, name: str) -> set[str]:
        """Return all ancestors of a partition."""
        parents = self.sim.lineage[name]
        return set(parents).union(*map(self.ancestors, parents))

    def check_order(self) -> None:
        """Check that a partition's events come in order and after those of its ancestors in the branch."""
        names = self.branch()
        places: dict[str, list[int]] = {name: [] for name in names}
        for item in self.sim.history:
            if item.event_id in self.first:
                places[item.partition_id].append(self.first[item.event_id])
        for name in names:
            assert places[name] == sorted(places[name]), f"{name} is out of order"
            for above in names & self.ancestors(name):
                if places[above] and places[name]:
                    assert places[above][-1] < places[name][0], f"{name} came before the end of {above}"


class Lives(RuleBasedStateMachine):
    """A random history: writers, splits and merges, and followers that read the changes."""

    @initialize(
        seed=st.integers(0, 2**20),
        partitions=st.integers(2, 4),
        rough=st.booleans(),
        form=st.sampled_from(list(Listing)),
        late=st.sampled_from([0, 0, 2]),
        heartbeats=st.booleans(),
        listed_late=st.sampled_from([0, 0, 3]),
    )
    def begin(
        self,
        seed: int,
        partitions: int,
        rough: bool,
        form: Listing,
        late: int,
        heartbeats: bool,
        listed_late: int,
    ) -> None:
        self.sim = Simulation(partitions=partitions)
        behaviour = ServiceBehaviour.rough(seed) if rough else ServiceBehaviour(seed=seed)
        self.sim.behaviour = attrs.evolve(
            behaviour,
            listing=form,
            late_siblings=late,
            late_listing=listed_late,
            heartbeats=heartbeats,
            strict_retention=heartbeats,
            proves_children=behaviour.proves_children or bool(late),
        )
        # If children may be late, search until they are named; otherwise one search is enough.
        self.watch_seconds = 600.0 if late else 0.0
        self.number = 0
        self.engines: list[Engine] = []
        self.followers = [Follower(self.sim, name, self.connect()) for name in self.sim.open_partitions]
        self.write(0, 5)

    def connect(self) -> Engine:
        engine = Engine(
            SimulationProvider(self.sim, page_records=20),
            ClientConfig("simulation", child_watch_seconds=self.watch_seconds),
            executor=InlineExecutor(),
            pause=lambda _: None,
        )
        self.engines.append(engine)
        return engine

    @rule(key=st.integers(0, 19), count=st.integers(1, 12))
    def write(self, key: int, count: int) -> None:
        for offset in range(count):
            self.number += 1
            self.sim.write(f"k{(key + offset) % 20}", {"n": self.number})

    @precondition(lambda self: len(self.sim.open_partitions) < 12)
    @rule(which=st.integers(0, 11), into=st.integers(1, 3))
    def split(self, which: int, into: int) -> None:
        names = self.sim.open_partitions
        self.sim.reshape([names[which % len(names)]], into)

    @precondition(lambda self: len(self.sim.open_partitions) > 1)
    @rule(which=st.integers(0, 11), other=st.integers(1, 11))
    def merge(self, which: int, other: int) -> None:
        names = self.sim.open_partitions
        first = which % len(names)
        second = (first + 1 + other % (len(names) - 1)) % len(names)
        self.sim.merge(names[first], names[second])

    @rule(which=st.integers(0, 3), size=st.sampled_from([0, 1, 2, 7]), pages=st.integers(1, 6))
    def read(self, which: int, size: int, pages: int) -> None:
        follower = self.followers[which % len(self.followers)]
        for _ in range(pages):
            follower.page(size)

    @rule(which=st.integers(0, 3))
    def crash(self, which: int) -> None:
        """Crash a follower: it loses everything except its token."""
        self.followers[which % len(self.followers)].engine = self.connect()

    @rule(which=st.integers(0, 3), index=st.integers(0, 10**6))
    def rewind(self, which: int, index: int) -> None:
        """Read again from an old token: the events that followed the token must all be delivered again."""
        follower = self.followers[which % len(self.followers)]
        if not follower.tokens:
            return
        token, delivered = follower.tokens[index % len(follower.tokens)]
        first = {name: place for name, place in follower.first.items() if place < delivered}
        again = attrs.evolve(
            follower,
            engine=self.connect(),
            position=FromContinuationToken(token),
            first=first,
            tokens=[],
        )
        self.finish(again)

    def finish(self, follower: Follower) -> None:
        for _ in range(MOST_PAGES):
            if follower.page(7) and not follower.missing():
                break
        else:
            raise AssertionError(f"{follower.root}: the read does not end")
        follower.check_order()

    def teardown(self) -> None:
        if not hasattr(self, "followers"):
            return
        try:
            for follower in self.followers:
                self.finish(follower)
            came = set[str]().union(*(follower.first for follower in self.followers))
            assert came == {item.event_id for item in self.sim.history}
            for engine in self.engines:
                assert not engine.provider.calls.violations
        finally:
            for engine in self.engines:
                engine.close()


PHASES = (
    tuple(Phase) if "MULTICLOUDDB_SHRINK" in os.environ else (Phase.explicit, Phase.reuse, Phase.generate)
)
Lives.TestCase.settings = settings(max_examples=LIVES, stateful_step_count=30, deadline=None, phases=PHASES)
TestLives = pytest.mark.usefixtures("looks_at_once")(Lives.TestCase)
