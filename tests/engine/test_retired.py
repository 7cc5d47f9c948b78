"""Tests that the token of a retired partition returns exactly the same page again."""

import pytest

from multiclouddb_api import PhysicalPartition
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_spi import Child
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
