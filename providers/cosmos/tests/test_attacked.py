"""Runs random histories with all faults at once. Exactly the written changes must arrive, in order for each
key."""

import random
from collections import defaultdict

import pytest
from azure.cosmos.exceptions import CosmosHttpResponseError

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    PhysicalPartition,
)
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_cosmos_emulator.faults import Act, Drop, Fail
from testing.seeds import seeds

from .world import ADDRESS, READ

pytestmark = pytest.mark.usefixtures("hasty")

KEYS = [f"k{number}" for number in range(12)]
STEPS = 40


def native(call, *arguments):
    while True:
        try:
            return call(*arguments)
        except CosmosHttpResponseError as error:
            if error.status_code != 410:
                raise


class Life:
    """Makes changes in a container, and records the events that must result from these changes."""

    def __init__(self, world, seed):
        self.world, self.dice = world, random.Random(seed)
        self.truth = defaultdict(list)
        self.alive = {}
        self.count = 0

    def step(self):
        deeds = [self.write, self.write, self.write, self.delete, self.batch, self.split, self.trouble]
        self.dice.choice(deeds)()

    def write(self):
        key = self.dice.choice(KEYS)
        self._note(key, "id")
        native(self.world.container.upsert_item, {"id": "id", "pk": key, "n": self.count})

    def _note(self, key, item_id, deleted=False):
        self.count += 1
        self.truth[key, item_id].append(None if deleted else self.count)
        if deleted:
            self.alive.pop((key, item_id))
        else:
            self.alive[key, item_id] = self.count

    def delete(self):
        there = [each for each in self.alive if each[1] == "id"]
        if there:
            key, item_id = self.dice.choice(sorted(there))
            native(self.world.container.delete_item, item_id, key)
            self._note(key, item_id, deleted=True)

    def batch(self):
        """Write a transaction, whose changes all have the same LSN, even two changes of one item."""
        key, operations = self.dice.choice(KEYS), []
        for number in range(self.dice.randint(2, 5)):
            self._note(key, f"b{number}")
            operations.append(("upsert", ({"id": f"b{number}", "pk": key, "n": self.count},)))
        if self.dice.random() < 0.5:
            self._note(key, "b0")
            operations.append(("upsert", ({"id": "b0", "pk": key, "n": self.count},)))
        native(self.world.container.execute_item_batch, operations, key)

    def split(self):
        parts = self.world.partitions()
        if len(parts) < 10:
            self.world.split(self.dice.choice(parts)["id"], completing=self.dice.choice([0, 0, 2]))

    def trouble(self):
        faults = [Fail(410, 1002), Fail(410, 1007), Fail(503), Fail(408), Fail(449), Fail(429, 3200, 0.01)]
        faults += [Drop(), Drop(mid_body=True), Act(self.split), Act(self.split)]
        after, action, times = self.dice.randint(0, 3), self.dice.choice(faults), self.dice.randint(1, 2)
        self.world.server.faults.add(action, READ, times=times, after=after)


class Reading:
    """A consumer that can be killed after any page.

    After a kill the consumer resumes from the last stored token.
    """

    def __init__(self, world, dice, **request):
        self.world, self.dice, self.request = world, dice, request
        self.client = world.client()
        self.events = {}
        self.order = defaultdict(list)
        self.twice = 0

    def page(self, start, scope=None, options=None):
        settings = dict(self.request, max_page_size=self.dice.choice([0, 1, 2, 7]))
        if scope is not None:
            settings["scope"] = scope
        for _ in range(60):
            try:
                page = self.client.read_changes(ChangeFeedRequest(ADDRESS, start, **settings))
                break
            except MulticloudDbError as error:
                if not error.retryable:
                    raise
        for event in page.events:
            if event.event_id in self.events:
                assert self.events[event.event_id].order_key == event.order_key
                self.twice += 1
                continue
            self.events[event.event_id] = event
            self.order[place(event)].append(event)
        return page

    def lives(self, life, token):
        """Let the life take its steps while pages are read; then yield pages until the feed is idle.

        The consumer is killed sometimes, and continues at a token that it stores now and then.
        """
        stored = token
        for _ in range(STEPS):
            life.step()
            if self.dice.random() < 0.6:
                page = self.page(FromContinuationToken(token))
                yield page
                token = page.continuation_token
            if self.dice.random() < 0.5:
                stored = token
            if self.dice.random() < 0.3:
                self.kill()
                token = stored
        life.world.server.faults.clear()
        token, idle = stored, 0
        while idle < 2:
            page = self.page(FromContinuationToken(token))
            yield page
            token, idle = page.continuation_token, idle + 1 if page.idle else 0

    def kill(self):
        self.client.close()
        self.client = self.world.client()


def place(event):
    return event.key.components["pk"], event.key.components["id"]


def marker(event):
    return None if event.new_item_state is None else event.new_item_state["n"]


def check(life, reading):
    """Check that exactly the changes of every key arrived, in the order of `order_key`, each once."""
    assert reading.twice == 0
    told = {}
    for name, events in reading.order.items():
        keys = [event.order_key for event in events]
        assert keys == sorted(set(keys)), f"{name} went back"
        told[name] = [marker(event) for event in events]
    assert told == dict(life.truth)


@pytest.mark.parametrize("seed", seeds(range(1000, 1001), 100))
def test_a_consumer_that_is_killed_anywhere_loses_nothing(make_world, seed):
    life = Life(make_world(2), seed)
    reading = Reading(life.world, life.dice)
    for _ in reading.lives(life, reading.page(Now()).continuation_token):
        pass
    found = {
        name: [marker(each) for each in sorted(events, key=lambda event: event.order_key)]
        for name, events in reading.order.items()
    }
    assert found == dict(life.truth)


@pytest.mark.parametrize("seed", seeds(range(2000, 2001), 100))
def test_partitions_read_alone_and_their_children_give_every_change(make_world, seed):
    life = Life(make_world(3), seed)
    reading = Reading(life.world, life.dice)
    todo = {
        name: reading.page(Now(), PhysicalPartition(name)).continuation_token
        for name in reading.client.list_physical_partitions(ADDRESS)
    }
    done, idle = set(), set()
    steps = STEPS
    while steps or set(todo) - idle:
        if steps:
            steps -= 1
            life.step()
            idle.clear()
        else:
            life.world.server.faults.clear()
        if not todo:
            continue
        name = life.dice.choice(sorted(set(todo) - idle) or sorted(todo))
        page = reading.page(FromContinuationToken(todo[name]), PhysicalPartition(name))
        todo[name] = page.continuation_token
        if page.partition_retired:
            del todo[name]
            done.add(name)
            for child in page.child_partitions:
                assert child.partition_id not in done
                todo[child.partition_id] = child.continuation_token
        elif page.idle:
            idle.add(name)
        if life.dice.random() < 0.2:
            reading.kill()
    check(life, reading)


@pytest.mark.parametrize("seed", seeds(range(3000, 3001), 100))
def test_a_backfill_under_load_ends_with_what_is_there(make_world, seed):
    """Rows and then changes are merged by key and `order_key`. The consumer may be killed after any page."""
    life = Life(make_world(2), seed)
    for _ in range(STEPS):
        life.dice.choice([life.write, life.write, life.delete, life.batch])()
    reading = Reading(life.world, life.dice, provider_options=CosmosOptions(backfill=True))
    target = {}
    for page in reading.lives(life, reading.page(Beginning()).continuation_token):
        for event in page.events:
            before = target.get(place(event))
            if before is None or before[0] <= event.order_key:
                target[place(event)] = (event.order_key, marker(event))
    assert {name: value for name, (_, value) in target.items() if value is not None} == life.alive
