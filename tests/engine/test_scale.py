"""Tests thousands of partitions: nothing is lost, and the work of a call grows at most linearly."""

import pytest

from multiclouddb_api import Now
from multiclouddb_spi.continuation.token import decode_token

pytestmark = pytest.mark.slow

LONG = 300  # seconds, for one call on a slow machine


@pytest.fixture
def large(make_bench):
    def make(partitions):
        bench = make_bench(partitions)
        bench.connect(page_records=1000)
        return bench

    return make


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_work_of_a_call_is_linear_in_partitions(large, count):
    bench = large(count)
    calls = bench.calls
    page = bench.page(Now(), timeout=LONG)
    assert page.idle
    assert (calls.total_fetches, sum(calls.opens.values()), calls.starts) == (count, count, 1)
    page = bench.page(page.continuation_token, timeout=LONG)
    assert page.idle
    assert calls.total_fetches == 2 * count
    assert sum(calls.opens.values()) == count, "readers live on"
    bench.fill(1000, keys=1000)
    page = bench.page(page.continuation_token, timeout=LONG)
    assert len(page.events) == 1000
    assert calls.total_fetches <= 3 * count
    assert calls.mapped == 1000
    bench.fill(100, keys=100)
    before = calls.total_fetches
    assert len(bench.page(page.continuation_token, size=1, timeout=LONG).events) <= 1
    assert calls.total_fetches - before <= count
    token = page.continuation_token
    assert len(token) < 40 * count
    assert len(decode_token(token).state["p"]) == count


def test_many_waiting_children_cost_no_more_than_their_number(large):
    """Each pair is merged, so every page handles all waiting children."""
    bench = large(2000)
    token = bench.page(Now()).continuation_token
    names = bench.sim.open_partitions
    for one, other in zip(names[::2], names[1::2], strict=True):
        bench.sim.merge(one, other)
    bench.fill(500, keys=500)
    before = bench.calls.total_fetches
    came = [event.event_id for page in bench.walk(token) for event in page.events]
    assert sorted(came) == sorted(bench.written())
    assert bench.calls.total_fetches - before <= 2000 + 3 * 1000
