"""Tests which failure is raised if several partitions have failed."""

import pytest

from multiclouddb_api import Beginning, ErrorCategory, MulticloudDbError
from multiclouddb_conformance.simulation import ThrottledError


def test_a_throttle_is_raised_before_an_answer_that_is_late(make_bench):
    """An error of a throttled call is more informative than one of a late answer: it contains the time to
    wait.
    """
    bench = make_bench(2)
    bench.connect(threads=True, attempts=1)
    bench.fill(10)
    bench.sim.hold("p0")
    bench.sim.fail_next("p1", ThrottledError("too fast", 7.0), None)
    with pytest.raises(MulticloudDbError) as caught:
        bench.page(Beginning(), timeout=0.5)
    assert caught.value.category == ErrorCategory.THROTTLED
