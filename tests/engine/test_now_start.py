"""Tests `Now` and audits: the recorded start of a feed is never later than its start according to the
service's clock.
"""

import time

from multiclouddb_api import Now, PartitionFoundLate
from multiclouddb_conformance.simulation import ServiceBehaviour


def test_a_start_at_now_does_not_trust_a_clock_that_was_carried_on(make_bench, monkeypatch):
    """Events after the start are delivered even if the service's clock was set back or one of its machines
    has a slow clock.
    """
    bench = make_bench(2, behaviour=ServiceBehaviour(proves_children=False))
    bench.connect(coverage_audit_seconds=1e-9)
    real, ahead = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: real() + ahead[0])
    bench.page(Now())
    ahead[0] = 20.0
    late = bench.sim.open_partitions[1]
    bench.sim.hide(late, 2)
    place = bench.page(Now()).continuation_token
    wanted = bench.fill_partition(late, 3)
    bench.sim.split(late)
    found, came = [], []
    for _ in range(10):
        page = bench.page(place)
        found += [notice for notice in page.notices if isinstance(notice, PartitionFoundLate)]
        came += [event.event_id for event in page.events]
        place = page.continuation_token
    assert found
    assert came == wanted
