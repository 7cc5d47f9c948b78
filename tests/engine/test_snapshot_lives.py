"""Tests random runs of snapshots: in the end, a target that merges by key and `order_key` must equal its
source.

During the scan there are upserts, deletes, keys that are created again, splits and merges. A process is
killed after a third of the pages, a stored token is lost, and retention removes old changes. The tests also
show that a target without tombstones fails in a case that needs them.
"""

import os
import random

import pytest

import multiclouddb_api as api
from multiclouddb_conformance.simulation import ServiceBehaviour, Simulation, SimulationProvider
from multiclouddb_conformance.sink import Sink
from multiclouddb_spi import Engine, InlineExecutor
from testing.seeds import in_soak

from .reading import write

pytestmark = pytest.mark.slow

LIVES = 4 * int(os.environ.get("MULTICLOUDDB_LIVES", "1"))
lives = pytest.mark.parametrize(
    "seeds", [range(LIVES), pytest.param(in_soak(LIVES, 50 * LIVES), marks=pytest.mark.soak)], ids=len
)
ORDERED, INTERLEAVED, AUTO = api.SnapshotOrder.ORDERED, api.SnapshotOrder.INTERLEAVED, api.SnapshotOrder.AUTO
OPTIONS = api.OperationOptions()
KEYS = 40


class Life:
    """A source, a target and a random run, which depends only on the seed."""

    def __init__(self, seed, order, *, tombstones=True, point_in_time=False, rough=False, retention=None):
        self.dice = random.Random(f"life {seed} {order.value} {point_in_time}")
        habits = {
            "point_in_time": point_in_time,
            "splits_segments": self.dice.choice([0.0, 0.3]),
            "segments": self.dice.choice([1, 3, 12]),
            "splits_itself": self.dice.choice([None, 4, 9]),
        }
        if not tombstones:  # a repeated change without its later delete would need tombstones
            habits["redeliver"] = 0
        behaviour = ServiceBehaviour.rough(seed, **habits) if rough else ServiceBehaviour(seed=seed, **habits)
        self.sim = Simulation(self.dice.choice([1, 2, 4]), behaviour, retention_seconds=retention)
        self.retention, self.order = retention, order
        self.sink = Sink(tombstones=tombstones)
        self.size = self.dice.choice([1, 2, 5] if retention is None else [3])
        self.pages = self.kills = self.losses = 0
        self.engine = None
        write(self.sim, KEYS if retention is None else 5 * KEYS)

    def restart(self):
        if self.engine is not None:
            self.engine.close()
        provider = SimulationProvider(self.sim)
        config = api.ClientConfig("simulation", {}, coverage_audit_seconds=0.0)
        self.engine = Engine(provider, config, executor=InlineExecutor(), pause=lambda _: None)

    def change(self):
        """Make the changes that applications make between two pages."""
        for _ in range(self.dice.choice([0, 1, 2])):
            name = f"k{self.dice.randrange(KEYS + 10)}"
            if self.dice.random() < 0.4:
                self.sim.write(name, None)
            else:
                self.sim.write(name, {"n": self.dice.random()})
        names = list(self.sim.open_partitions)
        if self.dice.random() < 0.1 and len(names) < 6:
            self.sim.split(self.dice.choice(names))
        elif self.dice.random() < 0.1 and self.sim.may_merge():
            self.sim.merge(*self.dice.sample(names, 2))

    def read(self, position, on_expired=None):
        settings = {} if on_expired is None else {"on_expired": on_expired}
        request = api.ChangeFeedRequest(self.sim.address, position, max_page_size=self.size, **settings)
        return self.engine.read_changes(request, OPTIONS)

    def run(self, on_expired=None, quiet_after=400):
        """Read to the end of the snapshot, then until no more changes arrive."""
        self.restart()
        self.stored = api.Snapshot(self.order)
        self.done = False
        return self.go_on(on_expired, quiet_after)

    def go_on(self, on_expired=None, quiet_after=400):
        """Read from the stored token."""
        position, dropping = self.stored, False
        while True:
            page = self.read(position, on_expired)
            self.pages += 1
            assert self.pages < 5000
            self.apply(page)
            if self.pages < quiet_after:
                self.change()
                if self.retention is not None:
                    self.sim.advance(self.retention / 12)
                    self.sim.trim_older_than(self.retention)
            position = api.FromContinuationToken(page.continuation_token)
            if self.dice.random() < 0.3 and self.pages < quiet_after:
                self.restart()  # the process is killed, before or after it has stored the token
                self.kills += 1
                if self.dice.random() < 0.5 and not isinstance(self.stored, api.Snapshot):
                    position = self.stored
                    self.losses += 1
            if position is not self.stored:
                if dropping:
                    self.sink.drop_tombstones()
                    dropping = False
                self.stored = position
                dropping = any(isinstance(each, api.BackfillDone) for each in page.notices)
            if page.idle and self.pages >= quiet_after:
                return self

    def apply(self, page):
        for notice in page.notices:
            if isinstance(notice, api.SnapshotStarted):
                self.sink.begin_again()
        self.sink.apply(page.events)
        if any(isinstance(notice, api.BackfillDone) for notice in page.notices):
            self.done = True
            self.sink.end_backfill()

    def is_equal(self):
        assert self.done
        return self.sink.rows() == {key: dict(document) for key, document in self.sim.documents().items()}


def differing(seeds, *args, **settings):
    found = [Life(seed, *args, **settings).run(quiet_after=60) for seed in seeds]
    assert sum(life.kills for life in found) > len(seeds)
    assert sum(life.losses for life in found) > len(seeds) / 4
    return [seed for seed, life in zip(seeds, found, strict=True) if not life.is_equal()]


@lives
@pytest.mark.parametrize("rough", [False, True], ids=["fair", "rough"])
@pytest.mark.parametrize("point_in_time", [False, True], ids=["convergent", "point in time"])
@pytest.mark.parametrize("order", [ORDERED, INTERLEAVED, AUTO], ids=str)
def test_the_target_ends_equal_and_ordered_needs_no_tombstones(seeds, order, point_in_time, rough):
    settings = {"tombstones": order is not ORDERED, "point_in_time": point_in_time, "rough": rough}
    assert differing(seeds, order, **settings) == []


def test_interleaved_without_tombstones_differs():
    assert len(differing(range(LIVES), INTERLEAVED, tombstones=False, point_in_time=True)) > LIVES / 2


@lives
class TestLongScan:
    """Tests scans that take at least five times as long as the service keeps changes."""

    def test_ordered_expires_and_says_so(self, seeds):
        for seed in seeds:
            with pytest.raises(api.MulticloudDbError) as caught:
                Life(seed, ORDERED, retention=60.0).run()
            assert caught.value.category == api.ErrorCategory.CHECKPOINT_EXPIRED

    @pytest.mark.parametrize("order", [INTERLEAVED, AUTO], ids=["interleaved", "auto"])
    def test_any_other_order_ends_equal_and_a_snapshot_heals_an_expired_position(self, order, seeds):
        for seed in seeds:
            life = Life(seed, order, retention=60.0).run(quiet_after=120)
            assert life.pages > 5 * 12
            assert life.is_equal(), seed
            for _ in range(8):
                life.change()
            life.sim.advance(600)
            life.sim.trim_older_than(60.0)
            life.change()
            life.pages, life.done = 0, False
            life.go_on(api.Resnapshot(api.Snapshot(order)), quiet_after=60)
            assert life.is_equal(), seed
