"""Runs the provider and the engine with a model of the service, for many pages. Every token must stay valid.

MULTICLOUDDB_SPANNER_LIVES sets the number of runs.
"""

import os
from collections import Counter

import attrs
import pytest

from multiclouddb_api import (
    AtTime,
    ChangeFeedRequest,
    ClientConfig,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    OperationOptions,
    PartitionFoundLate,
    ResourceAddress,
)
from multiclouddb_conformance.open_client import open_client

from .model import EPOCH, Model, ModelPlugin, timedelta

LIVES = int(os.environ.get("MULTICLOUDDB_SPANNER_LIVES", "16"))
ADDRESS = ResourceAddress("d", "items")
CONFIG = attrs.evolve(ClientConfig("spanner", {"url": "spanner://p/i"}), coverage_audit_seconds=0)


class Consumer:
    """An application that stores its token after each page, and sometimes crashes."""

    def __init__(self, model, start):
        self.model, self.start = model, start
        self.client = open_client(ModelPlugin(model), CONFIG)
        self.events, self.notices, self.idle = [], [], False
        self.tokens = []

    def page(self, size):
        request = ChangeFeedRequest(ADDRESS, self.start, max_page_size=size)
        try:
            page = self.client.read_changes(request, OperationOptions(5.0))
        except MulticloudDbError as error:
            if not error.retryable:
                raise
            return
        self.events += page.events
        self.notices += page.notices
        self.idle = page.idle
        self.start = FromContinuationToken(page.continuation_token)
        self.tokens.append((page.continuation_token, len(self.events)))

    def restart(self):
        self.client.close()
        self.client = open_client(ModelPlugin(self.model), CONFIG)

    def drain(self, size):
        for _ in range(1000):
            self.page(size)
            if self.idle:
                return
        pytest.fail("never idle")


def check(model, events, since):
    """Check that each change since a time came once, in its partition's order, and after its parents'
    changes."""
    expected = {change.event_id: change for change in model.changes if change.at >= since}
    got = Counter(event.event_id for event in events)
    assert set(expected) - set(got) == set(), "lost"
    assert set(got) - set(expected) == set(), "never written, or not wanted"
    assert max(got.values(), default=1) == 1, "came twice"
    by_partition, by_key, first, last = {}, {}, {}, {}
    for place, event in enumerate(events):
        change = expected[event.event_id]
        assert event.key.components["id"] == f"k{change.slot}"
        assert by_partition.get(change.partition, 0) <= change.at
        assert by_key.get(change.slot, 0) < change.at
        by_partition[change.partition] = by_key[change.slot] = change.at
        first.setdefault(change.partition, place)
        last[change.partition] = place
    for token, place in first.items():
        for parent in model.partitions[token].parents:
            assert last.get(parent, -1) < place


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch):
    """Make the reader query idle partitions again immediately, because the model's time stands still."""
    monkeypatch.setattr("multiclouddb_spanner.reader._MOST_PAUSE", 0.0)


def live(seed):
    """Make one run, and check that each change comes once and that each token delivers the rest."""
    trouble, slots = (0.0, 0.02, 0.1, 0.3)[seed % 4], (4, 0, 1)[seed // 2 % 3]
    model = Model(seed, trouble, partitions=1 + seed % 3, slots=slots)
    dice = model.dice
    for _ in range(dice.choice([0, 5])):
        dice.choice([model.commit, model.reshape, model.pass_time])()
    since = model.last
    start = AtTime(EPOCH + timedelta(microseconds=since))
    if dice.random() < 0.5:
        start = Now()
    consumer = Consumer(model, start)
    try:
        while start == Now() and not consumer.tokens:
            consumer.page(1)
            since = model.read + 1
        assert consumer.events == []
        for _ in range(60):
            actions = [model.commit] * 5 + [model.reshape] * 2 + [model.pass_time, consumer.restart]
            dice.choice(actions)()
            if dice.random() < 0.4:
                consumer.page(dice.choice([1, 2, 5, 0]))
        consumer.drain(dice.choice([1, 3, 0]))
        check(model, consumer.events, since)
        assert [each for each in consumer.notices if isinstance(each, PartitionFoundLate)] == []
        for token, count in dice.sample(consumer.tokens, min(4, len(consumer.tokens))):
            again = Consumer(model, FromContinuationToken(token))
            try:
                again.drain(dice.choice([1, 2, 0]))
            finally:
                again.client.close()
            rest = sorted(event.event_id for event in consumer.events[count:])
            assert sorted(event.event_id for event in again.events) == rest
    finally:
        consumer.client.close()


def start_now(seed):
    """`Now` lies after a change of the current microsecond, and before a change of the next microsecond."""
    model = Model(seed)
    model.commit()
    model.ticks = (0,)
    consumer = Consumer(model, Now())
    try:
        consumer.page(0)
        assert consumer.events == []
        at = model.commit(1)
        consumer.drain(1)
        check(model, consumer.events, at)
    finally:
        consumer.client.close()


@pytest.mark.parametrize("seed", range(4))
def test_now_is_exact(seed):
    start_now(seed)


@pytest.mark.parametrize("seed", range(LIVES))
def test_a_life_has_each_change_once_and_each_token_the_rest(seed):
    live(seed)


@pytest.mark.parametrize("size", [1, 0])
def test_a_moment_has_the_changes_of_a_partition_that_ends_in_it(size):
    model = Model(3, partitions=1)
    model.commit()
    at = model.commit()
    model.reshape(at)
    consumer = Consumer(model, AtTime(EPOCH + timedelta(microseconds=at)))
    try:
        consumer.drain(size)
        check(model, consumer.events, at)
        assert consumer.events
    finally:
        consumer.client.close()
