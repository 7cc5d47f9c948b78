"""Tests that the planner sends each request through its function `call`, so that each is retried alone."""

import pytest

from multiclouddb_api import Beginning, Now, SkipToOldest, Snapshot, SnapshotOrder
from multiclouddb_conformance.simulation import (
    ServerError,
    ServiceBehaviour,
    Simulation,
    SimulationFeed,
    SimulationProvider,
)
from multiclouddb_spi import Deadline, FeedSpec, Planner, read_range

from .test_planner import Headless

REQUESTS = [
    "clock",
    "start",
    "survey",
    "heads",
    "snapshot",
    "segments",
]


class Failing:
    """Makes the first attempt of every request fail, and repeats it as a `call` of the planner does."""

    def __init__(self, monkeypatch):
        self.sent, self.reading, self._attempt = set(), False, 0
        for name in REQUESTS:
            monkeypatch.setattr(SimulationFeed, name, self._failing(name, getattr(SimulationFeed, name)))

    def _failing(self, name, original):
        def request(feed, *args, **named):
            if self.reading:  # a range has its own retries
                return original(feed, *args, **named)
            assert self._attempt, f"{name} is not sent through `call`"
            if self._attempt == 1:
                raise ServerError("503")
            self.sent.add(name)
            return original(feed, *args, **named)

        return request

    def __call__(self, ask, deadline):
        for self._attempt in (1, 2, 3):
            try:
                return ask()
            except ServerError:
                continue
            finally:
                self._attempt = 0
        pytest.fail("a request failed twice, so it was sent with another one")


def _consume(provider, feed, planner, failing, at, deadline):
    """Read every planned step; return the ids of the events and the last lineage."""
    came = []
    for _ in range(10):  # the service names children late, so a step without news is not the end
        step = planner.advance(at, None, deadline)
        failing.reading = True
        for part in step.ranges():
            for batch in read_range(provider, feed, part, SkipToOldest()):
                came += [event.event_id for event in batch.events(0, len(batch))]
        failing.reading, at = False, step.after
    return came, at


def test_each_request_is_repeated_alone(monkeypatch):
    sim = Simulation(partitions=4, behaviour=ServiceBehaviour(late_children=1))
    write = lambda: [sim.write(f"k{key}", {"n": sim.head}) for key in range(12)]  # noqa: E731
    write()
    failing, deadline = Failing(monkeypatch), Deadline.after(60)
    provider = SimulationProvider(sim)
    feed = provider.open_feed(FeedSpec(sim.address), deadline)
    planner = Planner(provider, feed, SkipToOldest(), call=failing, audit_seconds=1e-9)
    for position in [Beginning(), Snapshot(order=SnapshotOrder.AUTO)]:
        at = planner.start(position, deadline)
        came, at = _consume(provider, feed, planner, failing, at, deadline)
        assert len(came) == 12
    planner.target(at, deadline)
    left, _ = sim.split("p0")
    merged = sim.merge(left, "p1")
    write()
    sim.trim("p0")
    sim.split(merged)
    write()
    came, _ = _consume(provider, feed, planner, failing, at, deadline)
    assert len(set(came)) == len(came)
    assert {item.event_id for item in sim.truth[12:] if item.partition_id != "p0"} == set(came)
    planner.target_at(sim.commit_time(sim.head), deadline)
    assert failing.sent == set(REQUESTS)


def test_a_read_that_finds_an_end_is_repeated_alone(monkeypatch):
    """Without `heads`, the planner reads each partition to its end."""
    sim = Simulation(partitions=8)
    provider, deadline = SimulationProvider(sim), Deadline.after(60)
    monkeypatch.setattr("multiclouddb_spi.planning.ranges._sleep", lambda seconds: None)
    feed = Headless(provider.open_feed(FeedSpec(sim.address), deadline))

    def call(ask, deadline):
        for _ in range(3):
            try:
                return ask()
            except ServerError:
                continue
        pytest.fail("the request failed too often")

    planner = Planner(provider, feed, call=call, audit_seconds=1e9)
    at = planner.start(Now(), deadline)
    for key in range(40):
        sim.write(f"k{key}", {"n": key})
    sim.fail_next("p6", ServerError("503"), times=7)  # one more than the attempts of a read
    before = sum(provider.calls.fetches.values())
    assert planner.advance(at, None, deadline).moved
    fetches = provider.calls.fetches
    others = sum(fetches.values()) - before - fetches["p6"]
    without = [name for name in fetches if name != "p6"]
    assert others <= 2 * len(without), "no other partition is read again"
