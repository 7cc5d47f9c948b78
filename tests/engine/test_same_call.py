"""Tests the work of a call before it returns its page, and what a repeated page contains."""

from multiclouddb_api import Now, PhysicalPartition
from multiclouddb_conformance.simulation import ServiceBehaviour


def test_a_partition_whose_time_comes_is_asked_again_in_the_same_call(make_bench):
    bench = make_bench(behaviour=ServiceBehaviour(poll_after=0.2))
    bench.connect(threads=True)
    token = bench.page(Now()).continuation_token
    bench.fill(3)
    page = bench.page(token, timeout=25)
    assert [event.event_id for event in page.events] == bench.written()


def test_the_page_of_a_retired_partition_is_never_idle(bench):
    bench.fill(2)
    scope = PhysicalPartition(bench.sim.public_id("p0"))
    bench.sim.split("p0")
    page = list(bench.walk(scope=scope))[-1]
    for _ in range(2):
        assert (page.partition_retired, page.idle) == (True, False)
        page = bench.page(page.continuation_token, scope=scope)
