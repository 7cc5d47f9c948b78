"""A merged child that one parent names late is followed once, and the iterator understands its own token."""

import json
import time

import pytest

from multiclouddb_api import Beginning, ChangeFeedRequest, PhysicalPartition
from multiclouddb_api.follow import Branch
from multiclouddb_api.iterator import ChangeFeedIterator
from multiclouddb_conformance.simulation import Weather

QUICK = {"idle_backoff_seconds": 0.001, "max_idle_backoff_seconds": 0.002}


def is_settled(token):
    """Whether nothing more can be named, and nothing waits."""
    fields = json.loads(token)
    return not fields["watching"] and not fields["waiting"]


@pytest.mark.parametrize("seed", range(20))
def test_a_merged_child_that_is_named_late_is_followed_once(make_bench, ids, seed):
    bench = make_bench(1, weather=Weather(seed=seed, late_siblings=2, proves_children=False))
    bench.connect(child_watch_seconds=0.3)
    (root,) = bench.partitions()
    one, other = bench.sim.split(bench.sim.open_partitions[0])
    _, third = bench.sim.split(one)
    merged = bench.sim.merge(other, third)
    wanted = bench.fill_partition(merged, 2)
    bench.sim.roll(merged)
    request, came = ChangeFeedRequest(bench.sim.address, Beginning(), PhysicalPartition(root)), []
    end = time.monotonic() + 60
    with ChangeFeedIterator(bench.engine, request, follow_children=True, **QUICK) as changes:
        for page in changes.pages():
            came += ids(page)
            token = changes.continuation_token
            if token is None:
                continue
            Branch.from_text(root, token)
            if set(wanted) <= set(came) and is_settled(token):
                break
            assert time.monotonic() < end, "it never comes to an end"
    assert [name for name in came if name in wanted] == wanted
