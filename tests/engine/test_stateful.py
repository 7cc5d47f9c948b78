"""Tests the engine with random histories of a partitioned log, compared with a simple model."""

import os

import attrs
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import multiclouddb_api as api
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_conformance.simulation import Listing, ServiceBehaviour, Simulation, SimulationProvider
from multiclouddb_conformance.simulation.ledger import Ledger
from multiclouddb_spi import Engine, InlineExecutor
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.token import decode_token

pytestmark = pytest.mark.slow

LIVES = int(os.environ.get("MULTICLOUDDB_LIVES", "20"))
BYTES = 65536
OPTIONS = api.OperationOptions(timeout_seconds=20)
PAGE_SIZES = st.sampled_from([0, 1, 2, 7, 50])


class Life(RuleBasedStateMachine):
    """A random history with writers, splits and merges, and one consumer that crashes and restarts."""

    @initialize(
        seed=st.integers(0, 2**20), partitions=st.integers(1, 4), width=st.sampled_from([1, 2, 16]),
        rough=st.booleans(), now=st.booleans(), attempts=st.sampled_from([1, 6]),
        form=st.sampled_from(list(Listing)), late=st.sampled_from([0, 0, 2]),
    )  # fmt: skip
    def begin(self, seed, partitions, width, rough, now, attempts, form, late):
        self.sim = Simulation(partitions=partitions)
        behaviour = ServiceBehaviour.rough(seed) if rough else ServiceBehaviour(seed=seed)
        self.sim.behaviour = attrs.evolve(behaviour, listing=form, late_siblings=late)
        self.config = api.ClientConfig("simulation", max_buffered_bytes=BYTES, max_concurrency=width)
        self.attempts = attempts
        self.number = 0
        self.engines = []
        self.engine = self.connect()
        self.write(0, 3)
        self.ledger = Ledger(self.sim)
        self.position = api.Now() if now else api.Beginning()
        self.tokens = []
        self.read(0, 1)

    def connect(self):
        self.provider = SimulationProvider(self.sim, page_records=20)
        settings = {"executor": InlineExecutor(), "attempts": self.attempts, "pause": lambda _: None}
        self.engines.append(Engine(self.provider, self.config, **settings))
        return self.engines[-1]

    @rule(key=st.integers(0, 9), count=st.integers(1, 8))
    def write(self, key, count):
        for offset in range(count):
            self.number += 1
            self.sim.write(f"k{(key + offset) % 10}", {"n": self.number})

    @rule(keys=st.lists(st.integers(0, 9), min_size=2, max_size=9, unique=True))
    def transaction(self, keys):
        self.number += 1
        self.sim.transaction([(f"k{key}", {"n": self.number}) for key in keys])

    @rule(key=st.integers(0, 9))
    def delete(self, key):
        self.sim.write(f"k{key}", None)

    @precondition(lambda self: len(self.sim.open_partitions) < 12)
    @rule(which=st.integers(0, 11), into=st.integers(2, 3))
    def split(self, which, into):
        names = self.sim.open_partitions
        self.sim.split(names[which % len(names)], into)

    @rule(which=st.integers(0, 11))
    def roll(self, which):
        names = self.sim.open_partitions
        self.sim.roll(names[which % len(names)])

    @precondition(lambda self: len(self.sim.open_partitions) > 1)
    @rule(which=st.integers(0, 11), other=st.integers(1, 11))
    def merge(self, which, other):
        names = self.sim.open_partitions
        first = which % len(names)
        second = (first + 1 + other % (len(names) - 1)) % len(names)
        self.sim.merge(names[first], names[second])

    @rule(size=PAGE_SIZES, pages=st.integers(1, 6))
    def read(self, size, pages):
        for _ in range(pages):
            self.page(self.engine, self.ledger, size)

    @rule()
    def crash(self):
        """Crash the consumer: it loses everything except its token."""
        self.engine = self.connect()

    @rule(crashing=st.booleans())
    def fair(self, crashing):
        """Check that small pages return events from every partition that has events, even if no reader stays
        open.
        """
        if not isinstance(self.position, api.FromContinuationToken):
            return
        self.write(0, 40 * len(self.sim.open_partitions))
        lineage = Lineage.from_json(decode_token(self.position.token).state, RULES)
        active = [entry.partition_id for entry in lineage.active()]
        hungry = {name: count for name in active if (count := self.ledger.undelivered(name))}
        for _ in range(3 * len(active) + 6):
            if crashing:
                self.crash()
            self.page(self.engine, self.ledger, 1)
        served = {name for name in hungry if self.ledger.undelivered(name) < hungry[name]}
        assert served == set(hungry), f"starved: {set(hungry) - served}"

    @precondition(lambda self: self.tokens)
    @rule(index=st.integers(0, 10**6), size=PAGE_SIZES)
    def rewind(self, index, size):
        """Read from an old token: it must deliver every event that was not delivered before it."""
        token, delivered = self.tokens[index % len(self.tokens)]
        before = {name for name, order in self.ledger.first.items() if order < delivered}
        came = set()
        engine, position = self.connect(), api.FromContinuationToken(token)
        for _ in range(3000 + 3 * len(self.sim.truth)):
            page = self.attempt(engine, position, size)
            if page is None:
                continue
            came |= {event.event_id for event in page.events}
            position = api.FromContinuationToken(page.continuation_token)
            if page.idle and self.sim.names_all():
                break
        else:
            raise AssertionError("the read from an old token does not end")
        assert self.ledger.expected() - before <= came, "an old token lost events"

    def page(self, engine, ledger, size):
        if isinstance(self.position, api.Now):
            ledger.restart(self.sim.head)
        page = self.attempt(engine, self.position, size)
        if page is None:
            return None
        ledger.take(page, size)
        assert engine.buffered_bytes <= BYTES + 4096, "the buffers exceed their bound"
        self.position = api.FromContinuationToken(page.continuation_token)
        self.tokens.append((page.continuation_token, len(ledger.first)))
        return page

    def attempt(self, engine, position, size):
        request = api.ChangeFeedRequest(self.sim.address, position, max_page_size=size)
        try:
            return engine.read_changes(request, OPTIONS)
        except api.MulticloudDbError as error:
            if not error.retryable:
                raise
            return None

    @invariant()
    def contract_is_kept(self):
        if hasattr(self, "provider"):
            assert not self.provider.calls.violations

    def teardown(self):
        if not hasattr(self, "ledger"):
            return
        try:
            for _ in range(3000):
                page = self.page(self.engine, self.ledger, 7)
                if page is not None and page.idle and self.sim.names_all():
                    break
            assert not self.ledger.missing(), "events were lost"
        finally:
            for engine in self.engines:
                engine.close()


# Shrinking a history takes minutes, so turn it on only after a failure.
PHASES = (
    tuple(Phase) if "MULTICLOUDDB_SHRINK" in os.environ else (Phase.explicit, Phase.reuse, Phase.generate)
)


class ManyLives(Life):
    """A hundred times as many."""


def _tests(life, count):
    life.TestCase.settings = settings(
        max_examples=count, stateful_step_count=30, deadline=None, phases=PHASES
    )
    return pytest.mark.usefixtures("looks_at_once")(life.TestCase)


TestLife = _tests(Life, LIVES)
TestManyLives = pytest.mark.soak(_tests(ManyLives, 100 * LIVES))
