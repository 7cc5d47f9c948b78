"""Tests random histories in the mode of latest versions, with splits, merges, restarts and trouble."""

import random

import pytest

from multiclouddb_api import AtTime, Beginning, MulticloudDbError, Now
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_cosmos_emulator import Lag
from multiclouddb_cosmos_emulator.faults import Drop, Fail
from multiclouddb_cosmos_emulator.writes import Transaction
from testing.seeds import seeds

from .world import DATABASE, NAME, READ

pytestmark = pytest.mark.usefixtures("hasty")

OPTIONS = CosmosOptions(mode="latest", delete_marker="/deleted")


class Life:
    """A writer and one consumer, whose steps are chosen at random."""

    def __init__(self, world, seed):
        self.world, self.dice, self.written = world, random.Random(f"latest {seed}"), 0
        self.states, self.versions = {}, {}
        world.server.all_versions(False)
        for _ in range(self.dice.choice([0, 12])):
            self.write()
        world.server.advance(2)
        start = self.dice.choice([Beginning(), Now(), AtTime(world.server.clock.now())])
        # The items of the past belong to the feed only if it starts at the beginning.
        self.before = 0 if isinstance(start, Beginning) else self.written
        size = self.dice.choice([0, 1, 3])
        self.consumer = world.consumer(start, provider_options=OPTIONS, max_page_size=size)
        self.read()

    def write(self):
        """Change some items of one partition key in one transaction."""
        with self.world.server._lock:
            container = self.world.server._container(DATABASE, NAME)
            key = f"p{self.dice.randrange(6)}"
            transaction = Transaction(container, container.definition.of_values((key,)))
            for name in self.dice.sample("abcd", self.dice.choice([1, 1, 1, 3])):
                self.written += 1
                where = (key, name)
                if where in self.states and self.dice.random() < 0.2:
                    transaction.delete(name)
                    self.states.pop(where)
                    continue
                item = {"id": name, "pk": key, "n": self.written}
                if self.dice.random() < 0.15:
                    item["deleted"] = True
                transaction.upsert(item)
                self.states[where] = None if "deleted" in item else item
                self.versions.setdefault(where, []).append(self.written)
            transaction.commit()

    def reshape(self):
        ids = [each["id"] for each in self.world.partitions()]
        if len(ids) > 1 and self.dice.random() < 0.5:
            place = self.dice.randrange(len(ids) - 1)
            self.world.server.merge(DATABASE, NAME, ids[place], ids[place + 1])
        elif len(ids) < 6:
            self.world.split(self.dice.choice(ids))

    def trouble(self):
        fault = self.dice.choice([Fail(429, 3200, 0.01), Fail(503), Drop(mid_body=True), Lag(2)])
        self.world.server.faults.add(fault, READ, times=self.dice.randrange(1, 3))

    def read(self):
        try:
            self.consumer.read()
        except MulticloudDbError as error:
            if not error.retryable:
                raise

    def live(self, steps):
        acts = [self.write] * 5 + [self.read] * 4 + [self.reshape, self.trouble]
        acts += [lambda: self.world.server.advance(1), lambda: self.consumer.restart()]
        for _ in range(steps):
            self.dice.choice(acts)()
        self.world.server.faults.clear()
        for _ in range(2):
            self.consumer.until_idle()

    def check(self):
        last, order = {}, {}
        for event in self.consumer.events:
            where = (event.key.components["pk"], event.key.components["id"])
            state = event.new_item_state or event.old_item_state
            assert state["n"] in self.versions[where]
            assert event.order_key > order.get(where, ""), f"{where} is out of order"
            order[where], last[where] = event.order_key, event.new_item_state
        lost = {
            where
            for where, state in self.states.items()
            if last.get(where, "never") != state and self.versions[where][-1] > self.before
        }
        assert not lost


@pytest.mark.parametrize("seed", seeds(3, 50))
def test_every_item_ends_with_its_last_state(make_world, seed):
    life = Life(make_world(random.Random(seed).choice([1, 2, 3])), seed)
    life.live(120)
    life.check()
