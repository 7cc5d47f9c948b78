"""Tests reads of one physical or logical partition, and plans that spread a feed over readers."""

import pytest

from multiclouddb_api import (
    Beginning,
    ErrorCategory,
    MulticloudDbError,
    Now,
    PhysicalPartition,
)
from multiclouddb_conformance.simulation import ServerError, ServiceBehaviour

BEGINNING = Beginning()


def scope(bench, name):
    return PhysicalPartition(bench.sim.public_id(name))


def follow(bench, tokens, size=3, most=500):
    """Read every planned partition as an application would: each child once, after all its parents.

    If a parent is not in the plan, it was already read to its end before the plan was made.

    Returns:
        A mapping from each partition id to the ids of its events, in order.
    """
    came, waiting = {}, {}
    todo = list(tokens)
    for _ in range(most):
        if not todo:
            break
        name, token = todo.pop(0)
        page = bench.page(token, size, scope=PhysicalPartition(name))
        came.setdefault(name, []).extend(event.event_id for event in page.events)
        assert all(event.partition_id == name for event in page.events)
        if page.partition_retired:
            waiting.update({child.partition_id: child for child in page.child_partitions})
        elif not page.idle:
            todo.append((name, page.continuation_token))
        open_ones = {name for name, _ in todo}
        for child in [child for child in waiting.values() if open_ones.isdisjoint(child.parents)]:
            del waiting[child.partition_id]
            if child.partition_id not in came:
                came[child.partition_id] = []
                todo.append((child.partition_id, child.continuation_token))
    else:
        pytest.fail("it never ends")
    assert not waiting
    return came


def truth(bench, after=0):
    """Return the expected result of `follow`."""
    found = {bench.sim.public_id(name): [] for name in bench.sim.partitions}
    for item in bench.sim.truth:
        if item.commit > after:
            found[bench.sim.public_id(item.partition_id)].append(item.event_id)
    return {name: events for name, events in found.items() if events}


class TestRetirement:
    def test_retired_token_needs_nothing_that_retention_may_take(self, bench):
        bench.fill(5)
        bench.sim.split("p0")
        last = list(bench.walk(scope=scope(bench, "p0")))[-1]
        bench.sim.trim()
        assert bench.page(last.continuation_token, scope=scope(bench, "p0")).partition_retired

    def test_partition_whose_children_are_named_late_is_not_retired_until_then(self, bench):
        bench.fill(2)
        bench.sim.delay_children("p0", 3)
        bench.sim.split("p0")
        pages = list(bench.walk(scope=scope(bench, "p0")))
        assert len(pages) == 5
        assert not any(page.idle for page in pages)
        assert [page.partition_retired for page in pages] == [False] * 4 + [True]
        assert len(pages[-1].child_partitions) == 2

    def test_children_that_never_come_are_asked_for_at_the_end_and_then_once_a_page(self, bench):
        token = bench.page().continuation_token
        bench.sim.delay_children("p0", 10**6)
        bench.sim.split("p0")
        token = bench.page(token).continuation_token
        for _ in range(5):
            token = bench.page(token).continuation_token
        assert bench.calls.surveys == 1 + 5

    def test_children_are_asked_for_in_the_call_in_which_their_parent_ends(self, make_bench):
        bench = make_bench(partitions=1)
        bench.connect()
        token = bench.page().continuation_token
        bench.sim.delay_children("p0", 1)
        bench.sim.split("p0")
        bench.fill(4)
        token = bench.page(token).continuation_token  # requested but not named yet
        assert len(bench.page(token).events) == 4


class TestPlan:
    def test_start_is_resolved_once(self, make_bench):
        bench = make_bench(partitions=4)
        bench.connect()
        bench.fill(10)
        plan = bench.plan(Now())
        head = bench.sim.head
        bench.fill(20)
        assert bench.calls.starts == 1
        assert {name: events for name, events in follow(bench, plan).items() if events} == truth(bench, head)

    @pytest.mark.parametrize("pages", [0, 1, 3, 8])
    def test_plan_from_a_token_goes_on_where_the_token_stands(self, make_bench, ids, pages):
        bench = make_bench(partitions=3)
        bench.connect()
        bench.fill(20)
        bench.sim.merge("p0", "p1")
        bench.sim.split("p2")
        bench.fill(20)
        token, came = bench.page(size=1).continuation_token, []
        came = ids(bench.page(size=1))
        for _ in range(pages):
            page = bench.page(token, 4)
            came += ids(page)
            token = page.continuation_token
        rest = [name for events in follow(bench, bench.plan(token)).values() for name in events]
        assert sorted(came + rest) == sorted(bench.written())

    def test_plan_while_children_are_not_named_yet_is_complete(self, bench, ids):
        token = bench.page().continuation_token
        bench.fill(5)
        bench.sim.delay_children("p0", 3)
        bench.sim.split("p0")
        first = bench.page(token)
        bench.fill(5)
        plan = bench.plan(first.continuation_token)
        assert [name for name, _ in plan] == [bench.sim.public_id("p0")]
        rest = [name for events in follow(bench, plan).values() for name in events]
        assert sorted(ids(first) + rest) == sorted(bench.written())

    def test_child_that_waits_is_named_by_its_parents_and_not_planned(self, make_bench):
        bench = make_bench(partitions=2)
        bench.connect()
        token = bench.page(Now()).continuation_token
        bench.sim.merge("p0", "p1")
        bench.sim.fail_next("p1", ServerError("503"), times=None)
        token = bench.page(token).continuation_token
        bench.sim.forgive()
        bench.fill(10)
        plan = bench.plan(token)
        assert [name for name, _ in plan] == [bench.sim.public_id("p1")]
        found = follow(bench, plan)
        assert {name: events for name, events in found.items() if events} == truth(bench)

    def test_other_scopes_are_refused(self, bench):
        with pytest.raises(MulticloudDbError, match=r"ChangeFeedRequest\.scope") as caught:
            bench.plan(scope=scope(bench, "p0"))
        assert caught.value.category == ErrorCategory.INVALID_REQUEST

    def test_feed_that_is_over_plans_nothing(self, bench):
        bench.sim.behaviour = ServiceBehaviour(drop_notice=True)
        token = bench.page(Now()).continuation_token
        bench.sim.drop()
        assert bench.plan(bench.page(token).continuation_token) == ()


class TestList:
    def test_listing_shares_the_feed_with_reading(self, bench):
        bench.page()
        bench.partitions()
        assert bench.calls.feeds == 1
