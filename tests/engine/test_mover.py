"""Tests that a lineage changes completely or not at all: a failure during a change loses nothing."""

import pytest

from multiclouddb_api import Beginning, ErrorCategory, MulticloudDbError, Now, SkipToOldest
from multiclouddb_conformance.simulation import ServerError, SimulationFeed, SimulationProvider
from multiclouddb_spi import Child, Deadline, Drained, FeedSpec, Lineage, Planner
from multiclouddb_spi.continuation.entry import Active
from multiclouddb_spi.continuation.entry import AwaitingChildren as Ending
from multiclouddb_spi.continuation.watching import settle

ALWAYS = 1e-9
LATE = 10**6


def broken(*_):
    raise ZeroDivisionError("a bug in the provider")


@pytest.mark.parametrize("size", [1, 0])
def test_a_join_that_fails_leaves_no_partition_out(make_bench, monkeypatch, ids, size):
    """The page has events of another partition, and its token must still contain the merged child."""
    bench = make_bench(3)
    bench.connect()
    bench.sim.merge("p1", "p2")
    for name in ("p0", "p3"):
        bench.fill_partition(name, 3)
    monkeypatch.setattr(SimulationFeed, "join", broken)
    place, came = Beginning(), []
    for _ in range(6):
        try:
            page = bench.page(place, size)
        except MulticloudDbError:
            continue
        place, came = page.continuation_token, came + ids(page)
    monkeypatch.undo()
    came += ids(bench.drain(place)[0])
    assert sorted(came) == sorted(bench.written())


def test_a_child_that_could_not_be_taken_up_keeps_the_watch_open(bench):
    """The child is named by the last search before the watch ends."""
    feed = SimulationProvider(bench.sim).open_feed(FeedSpec(bench.sim.address), Deadline.after(30))
    lineage = Lineage([Ending("p", 1, ("x",), 6000), Active("x", 1)], feed.join)
    outcome = Drained((Child("x", ("p",), 1), Child("y", ("p", "z"), 1)), complete=False)
    assert settle(feed, lineage, lineage.awaiting_children(), {"p": outcome}, 600, lambda *_: []) == []
    assert lineage.ending("p") is not None
    took = lambda name, found: lineage.retire(name, found.children, complete=False)  # noqa: E731
    settle(feed, lineage, lineage.awaiting_children(), {"p": outcome}, 600, took)
    assert lineage.ending("p") is None
    assert "y" in lineage


def test_a_question_of_an_audit_that_fails_costs_no_page(make_bench, ids):
    bench = make_bench(3)
    bench.connect(coverage_audit_seconds=1e9)
    bench.sim.hide("p1", LATE)
    token = bench.page(Now()).continuation_token
    bench.sim.merge("p0", "p1")
    token = bench.page(token).continuation_token  # the merged child waits
    written = bench.fill_partition("p2", 3)
    bench.connect(coverage_audit_seconds=ALWAYS)
    bench.sim.fail_next(None, ServerError("503"), times=None, operation="oldest")
    page = bench.page(token)
    assert ids(page) == written
    bench.sim.forgive()
    bench.sim.trim("p1")
    bench.refused(ErrorCategory.CHECKPOINT_EXPIRED, page.continuation_token)


class Blind:
    """A feed that cannot compare positions."""

    def __init__(self, feed):
        self._feed, self.oldests = feed, 0

    def for_one_call(self):
        return self

    def __getattr__(self, name):
        if name == "heads":
            raise AttributeError(name)
        return getattr(self._feed, name)

    def compare(self, a, b):
        return 0 if a == b else 1

    def oldest(self, names, deadline):
        self.oldests += 1
        return self._feed.oldest(names, deadline)


def test_a_plan_asks_for_each_expired_position_once(make_bench, caplog):
    bench = make_bench(12)
    provider = SimulationProvider(bench.sim)
    feed = Blind(provider.open_feed(FeedSpec(bench.sim.address), Deadline.after(30)))
    planner = Planner(provider, feed, SkipToOldest())
    lineage = planner.start(Now(), Deadline.after(30))
    bench.fill(60, keys=60)
    bench.sim.trim()
    step = planner.advance(lineage, None, Deadline.after(30), allow_empty=True)
    assert step.moved
    assert feed.oldests <= 12
    assert "were lost to retention" in caplog.text


def test_a_plan_of_all_ends_asks_once_for_all_positions_when_one_has_expired(make_bench):
    """Each such question may list every partition, so a question for each partition costs the square."""
    bench = make_bench(12)
    provider = SimulationProvider(bench.sim)
    feed = provider.open_feed(FeedSpec(bench.sim.address), Deadline.after(30))
    planner = Planner(provider, feed, SkipToOldest())
    lineage = planner.start(Now(), Deadline.after(30))
    bench.fill(60, keys=60)
    bench.sim.trim("p3")
    step = planner.advance(lineage, None, Deadline.after(30), allow_empty=True)
    assert [text.split()[0] for text in step.skipped] == [feed.public_id("p3")]
    assert provider.calls.oldests == 1
