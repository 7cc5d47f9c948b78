"""Tests the engine with random histories of a partitioned log.

A `HardLife` has several faults at once that end only if the consumer reacts: poison, retention, permanent
failures. In a `FairLife`, every fault ends by itself, so a simple model can check each page.
"""

import os
import random
from contextlib import closing
from itertools import product

import attrs
import pytest

from multiclouddb_api import Beginning, ErrorCategory, MulticloudDbError, Now, SkipToOldest
from multiclouddb_conformance.simulation import (
    CorruptError,
    DeniedError,
    Listing,
    ServiceBehaviour,
    Simulation,
)
from multiclouddb_conformance.simulation.ledger import Ledger
from testing.seeds import in_soak
from tests.engine.conftest import Bench

BYTES = 65_536
LIVES = int(os.environ.get("MULTICLOUDDB_HARD_LIVES", "12"))


def lives(kept):
    """Give a test this number of lives, and others in `make soak`."""
    soak = pytest.param(in_soak(kept, 100 * kept), marks=pytest.mark.soak)
    return pytest.mark.parametrize("lives", [range(kept), soak], ids=len)


class HardLife:
    """A writer and one consumer, whose steps are chosen at random."""

    def __init__(self, bench, seed, *, threads):
        self.bench, self.sim, self.dice, self.threads = bench, bench.sim, random.Random(seed), threads
        self.place, self.first, self.skipped, self.expired = Beginning(), {}, 0, 0
        self.width = self.dice.choice([1, 2, 16])
        self.clock, self.pace = None, random.Random(f"pace {seed}")
        self.connect()

    def connect(self):
        self.bench.connect(
            threads=self.threads,
            max_concurrency=self.width,
            max_buffered_bytes=BYTES,
            attempts=self.dice.choice([1, 6]),
            pause=lambda seconds: None,
        )

    def live(self, steps):
        acts = [self.write] * 6 + [self.page] * 8 + [self.reshape] * 3
        acts += [self.poison, self.trim, self.fail, self.connect]
        for _ in range(steps):
            self.dice.choice(acts)()

    def write(self):
        for _ in range(self.dice.randrange(1, 12)):
            self.sim.write(f"k{self.dice.randrange(12)}", {"n": self.sim.head})

    def poison(self):
        self.sim.write(f"k{self.dice.randrange(12)}", {"n": self.sim.head}, poison=True)

    def trim(self):
        """Remove old records of all partitions, or of one and its ancestors (C2), as retention would."""
        chosen = self.dice.choice([None, None, *self.sim.partitions])
        upto = self.dice.randrange(self.sim.head + 1) // 2
        pending, names = [chosen], []
        while pending:
            names.append(pending.pop())
            pending += self.sim.lineage.get(names[-1], ())
        for name in dict.fromkeys(names):
            self.sim.trim(name, upto)

    def fail(self):
        name = self.dice.choice(list(self.sim.partitions))
        fault = self.dice.choice([CorruptError("broken"), DeniedError("not now")])
        self.sim.fail_next(name, fault, times=self.dice.randrange(1, 4))

    def reshape(self):
        names = self.sim.open_partitions
        match self.dice.randrange(3):
            case 0 if len(names) < 8:
                self.sim.split(self.dice.choice(names), self.dice.choice([2, 3]))
            case 1 if self.sim.may_merge():
                self.sim.merge(*self.dice.sample(names, 2))
            case _:
                self.sim.roll(self.dice.choice(names))

    def asks_all(self):
        """Return whether the next call asks all partitions; if there is a clock, time passes before it."""
        if self.clock is None:
            return True
        self.clock.pause(self.pace.choice([0, 0, 1, 3, 8]))
        return self.pace.random() < 0.2

    def page(self):
        """Read one page, and handle errors as a consumer would."""
        size = self.dice.choice([0, 1, 2, 7])
        try:
            page = self.bench.page(self.place, size, on_expired=SkipToOldest(), ask_all=self.asks_all())
        except MulticloudDbError as error:
            allowed = (ErrorCategory.PERMANENT_FAILURE, ErrorCategory.AUTHORIZATION_FAILED)
            if error.category == ErrorCategory.PROVIDER_ERROR:
                self.skipped += 1
                self.place = error.detail.skip_token
            elif not error.retryable and error.category not in allowed:
                raise
            return False
        for event in page.events:
            if event.event_id not in self.first:
                self.first[event.event_id] = len(self.first)
        self.place = page.continuation_token
        return page.idle

    def finish(self):
        """Stop all faults, and let the consumer read to the end."""
        self.sim.forgive()
        names = ("seed", "poison_at_fetch", "listing", "late_siblings", "proves_children")
        self.sim.behaviour = ServiceBehaviour(**{name: getattr(self.sim.behaviour, name) for name in names})
        idle = 0
        for _ in range(5000):
            idle = idle + 1 if self.page() else 0
            # A child that a listing has shown may never be named as well; a look comes with each page.
            if idle and (self.sim.names_all() or idle == 30):
                return
        raise AssertionError("the read does not end")

    def check(self):
        items = {item.event_id: item for item in self.sim.truth}
        sound = {name for name, item in items.items() if not item.poison}
        kept = {name for name in sound if self.kept(items[name])}
        assert set(self.first) <= sound, "poison was delivered"
        assert kept <= set(self.first), f"lost: {sorted(kept - set(self.first))}"
        poisons = [item for item in items.values() if item.poison]
        assert sum(self.kept(item) for item in poisons) <= self.skipped <= 3 * len(poisons)
        self.check_order(items)

    def kept(self, item):
        return item.commit > self.sim.partitions[item.partition_id].trimmed

    def check_order(self, items):
        last, latest = {}, {}
        for name in self.first:
            item = items[name]
            assert (item.commit, item.index) > last.get(item.partition_id, (0, 0)), f"{name} is out of order"
            last[item.partition_id] = (item.commit, item.index)
        for name, number in self.first.items():
            partition = items[name].partition_id
            latest[partition] = max(latest.get(partition, -1), number)
        for name, number in self.first.items():
            for parent in self.sim.lineage[items[name].partition_id]:
                assert latest.get(parent, -1) < number, f"{name} came before its parent {parent} was drained"


class FairLife(HardLife):
    """A life in which every page is checked, and every old token can be read again."""

    def __init__(self, bench, seed, *, threads):
        super().__init__(bench, seed, threads=threads)
        self.place = self.dice.choice([Beginning(), Now()])
        self.ledger, self.tokens = Ledger(self.sim), []

    def live(self, steps):
        acts = [self.write] * 5 + [self.transaction, self.delete] + [self.page] * 8 + [self.reshape] * 3
        acts += [self.connect, self.rewind]
        self.page()
        for _ in range(steps):
            self.dice.choice(acts)()

    def transaction(self):
        keys = self.dice.sample(range(12), self.dice.randrange(2, 9))
        self.sim.transaction([(f"k{key}", {"n": self.sim.head}) for key in keys])

    def delete(self):
        self.sim.write(f"k{self.dice.randrange(12)}", None)

    def attempt(self, place, size):
        try:
            return self.bench.page(place, size, timeout=20, ask_all=self.asks_all())
        except MulticloudDbError as error:
            if not error.retryable:
                raise
            return None

    def page(self):
        size = self.dice.choice([0, 1, 2, 7, 50])
        if isinstance(self.place, Now):
            self.ledger.restart(self.sim.head)
        page = self.attempt(self.place, size)
        if page is None:
            return False
        self.ledger.take(page, size)
        assert self.bench.engine.buffered_bytes <= BYTES + 4096, "the buffers exceed their bound"
        self.place = page.continuation_token
        self.tokens.append((self.place, len(self.ledger.first)))
        return page.idle

    def rewind(self):
        """Read from an old token: it must deliver every event that was not delivered before it."""
        if not self.tokens:
            return
        token, delivered = self.dice.choice(self.tokens)
        before, came = {name for name, order in self.ledger.first.items() if order < delivered}, set()
        for _ in range(3000 + 3 * len(self.sim.truth)):
            page = self.attempt(token, self.dice.choice([0, 1, 7]))
            if page is not None:
                came |= {event.event_id for event in page.events}
                token = page.continuation_token
                if page.idle and self.sim.names_all():
                    break
        else:
            raise AssertionError("the read from an old token does not end")
        assert self.ledger.expected() - before <= came, "an old token lost events"

    def finish(self):
        for _ in range(3000):
            if self.page() and self.sim.names_all():
                return
        raise AssertionError("the read does not end")

    def check(self):
        assert not self.ledger.missing(), "events were lost"


def run(seed, *, threads, form=Listing.ALL, kind=HardLife, clock=None):
    dice = random.Random(seed)
    behaviour = ServiceBehaviour.rough(seed) if dice.random() < 0.5 else ServiceBehaviour(seed=seed)
    if dice.random() < 0.5 and kind is HardLife:
        behaviour = ServiceBehaviour.rough(seed, poison_at_fetch=True, redeliver=0)
    behaviour = attrs.evolve(behaviour, listing=form, late_siblings=dice.choice([0, 0, 2]))
    if clock is not None:
        behaviour = attrs.evolve(behaviour, poll_after=5.0)
    try:
        # Each life ends its threads: those of a thousand lives are too many.
        with closing(Bench(Simulation(dice.randrange(1, 4), behaviour=behaviour))) as bench:
            life = kind(bench, seed, threads=threads)
            life.clock = clock
            life.live(120)
            life.finish()
            life.check()
    except (AssertionError, MulticloudDbError) as error:
        error.add_note(f"seed {seed}, threads {threads}, {form}")
        raise


@pytest.mark.parametrize("form", list(Listing), ids=lambda form: form.value)
@pytest.mark.parametrize("threads", [False, True], ids=["inline", "threads"])
@lives(LIVES)
def test_nothing_is_lost_whatever_happens(looks_at_once, lives, threads, form):
    fewer = (1 + threads) * (1 + (form is not Listing.ALL))
    for number in lives[: len(lives) // fewer]:
        run(number + 500_000 * threads, threads=threads, form=form)


@pytest.mark.parametrize("form", list(Listing), ids=lambda form: form.value)
@lives(LIVES // 2)
def test_every_page_is_right_and_every_token_stays_good(looks_at_once, lives, form):
    for seed in lives:
        run(seed, threads=False, form=form, kind=FairLife)


@pytest.mark.parametrize("kind", [HardLife, FairLife], ids=["hard", "fair"])
@lives(LIVES)
def test_nothing_is_lost_if_calls_leave_out_partitions(looks_at_once, moved_clock, lives, kind):
    for number, form in product(lives, Listing):
        run(900_000 + number, threads=False, form=form, kind=kind, clock=moved_clock)


def test_life_in_which_a_partition_was_gone_before_it_had_named_all_its_children(looks_at_once):
    """Its other children exist, so a listing has to be asked for them before the partition is given up."""
    run(1003, threads=False)


@pytest.mark.parametrize("seed", [424, 1259, 3162])
def test_life_in_which_a_merge_once_waited_for_a_parent_that_was_lost(looks_at_once, seed):
    run(seed, threads=False)
