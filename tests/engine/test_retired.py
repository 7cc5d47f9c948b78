"""Tests that the token of a retired partition returns exactly the same page again."""

import pytest

from multiclouddb_api import Gap, Now, PhysicalPartition, SkipToOldest
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_conformance.simulation import ServiceBehaviour
from multiclouddb_spi import Child
from multiclouddb_spi.continuation.entry import Entry, Stage
from multiclouddb_spi.continuation.state import Retired, end_to_json, state_from_json


@pytest.fixture
def merged(make_bench):
    """Make three partitions, two of which have merged, and return the last page of the first partition."""
    bench = make_bench(partitions=3)
    bench.connect()
    bench.fill(6)
    bench.sim.merge("p0", "p1")
    (*_, page) = bench.walk(scope=PhysicalPartition(bench.sim.public_id("p0")))
    return bench, page


def test_a_child_of_two_has_the_same_parents_again(merged):
    bench, page = merged
    parents = [child.parents for child in page.child_partitions]
    assert [set(names) for names in parents] == [{bench.sim.public_id("p0"), bench.sim.public_id("p1")}]
    for _ in range(2):
        bench.connect()
        page = bench.page(page.continuation_token, scope=PhysicalPartition(bench.sim.public_id("p0")))
        assert page.partition_retired
        assert [child.parents for child in page.child_partitions] == parents


@pytest.mark.parametrize("parents", [(), ("p",), ("q", "p"), ("p", "q"), ("x", "q", "p")], ids=str)
def test_parents_come_back_in_their_order(parents):
    state = Retired("p", (Child("c", parents, [1]), Child("d", ("p",), 2)))
    assert state_from_json(end_to_json(state), RULES) == state


def test_a_search_after_a_loss_comes_back_as_one():
    state = Retired("p", (Child("c", ("p",), [1]),), Entry("p", Stage.END, (), children=("c",)))
    assert state_from_json(end_to_json(state), RULES) == state


@pytest.fixture
def worker(make_bench):
    """Read one partition of a service that lists late up to its last record, and then split it."""
    bench = make_bench(behaviour=ServiceBehaviour(late_listing=1))
    bench.connect()
    settings = {"scope": PhysicalPartition(bench.sim.public_id("p0")), "on_expired": SkipToOldest()}
    token = bench.page(Now(), **settings).continuation_token
    bench.fill_partition("p0")

    def read(times):
        nonlocal token
        pages = []
        for _ in range(times):
            pages.append(bench.page(token, **settings))
            token = pages[-1].continuation_token
        return pages

    return bench, read, bench.sim.split("p0")


@pytest.mark.parametrize("restarts", [False, True], ids=["goes-on", "restarts"])
def test_a_child_that_is_listed_late_after_a_loss_is_named(worker, looks_at_once, restarts):
    bench, read, children = worker
    bench.sim.hide(children[1], 4)
    bench.sim.trim("p0")
    for _ in range(8):
        (page,) = read(1)
        if restarts:
            bench.connect()
    assert [child.partition_id for child in page.child_partitions] == list(map(bench.sim.public_id, children))
    assert not page.diagnostics.partition_errors


def test_every_child_is_named_if_the_partition_is_lost_before_that(worker, ids):
    bench, read, children = worker
    bench.sim.delay_children("p0", 1000)
    assert [len(ids(page)) for page in read(2)] == [1, 0]
    for name in children:
        bench.fill_partition(name)
    bench.sim.trim("p0")
    bench.sim.split(children[0])  # only the first one ends
    first, *_, last = read(4)
    assert [type(notice) for notice in first.notices] == [Gap]
    assert [child.partition_id for child in last.child_partitions] == list(map(bench.sim.public_id, children))
    assert (first.partition_retired, ids(last)) == (True, [])
