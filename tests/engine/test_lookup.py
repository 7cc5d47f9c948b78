"""Tests `lookup` in the engine: partial answers, failures, the time limit, and a provider without it."""

import pytest

from multiclouddb_api import (
    Capability,
    CapabilitySet,
    ErrorCategory,
    MulticloudDbError,
    MulticloudDbKey,
    OperationOptions,
    ScanFacts,
    ScanFloor,
)
from multiclouddb_conformance.delegating import WrappedProvider
from multiclouddb_conformance.simulation import (
    ALL_CAPABILITIES,
    ServerError,
    SimulationProvider,
    capabilities_without,
)


def key(number):
    return MulticloudDbKey({"id": f"k{number}"})


KEYS = [key(number) for number in range(30)]


class Stingy(WrappedProvider):
    """A service that processes one key of each call, the last one."""

    def __init__(self, inner):
        super().__init__(inner)
        self.asked = []

    def look_up(self, feed, keys, deadline):
        self.asked.append(len(keys))
        return super().look_up(feed, keys[-1:], deadline)


@pytest.fixture
def bench(make_bench):
    made = make_bench(2)
    for number in range(0, 30, 2):
        made.sim.write(f"k{number}", {"n": number})
    return made


def look_up(bench, keys=KEYS, timeout=30.0):
    return bench.engine.lookup(bench.sim.address, keys, OperationOptions(timeout), None)


def test_what_the_service_did_not_process_is_asked_again(bench):
    stingy = Stingy(SimulationProvider(bench.sim))
    bench.connect(provider=stingy)
    rows = look_up(bench)
    assert list(rows) == KEYS
    assert [row and row.new_item_state for row in rows.values()] == [
        {"n": number} if number % 2 == 0 else None for number in range(30)
    ]
    assert stingy.asked == list(range(30, 0, -1))


def test_the_time_limit_holds_while_keys_are_left(bench):
    class Empty(WrappedProvider):
        def look_up(self, feed, keys, deadline):
            return {}

    bench.connect(provider=Empty(SimulationProvider(bench.sim)))
    with pytest.raises(MulticloudDbError) as caught:
        look_up(bench, timeout=0.05)
    assert caught.value.category == ErrorCategory.TRANSIENT_FAILURE
    assert caught.value.retryable


def test_a_failure_is_retried_and_then_told(bench):
    bench.sim.fail_next(None, ServerError("503"), times=2, operation="lookup")
    assert look_up(bench, KEYS[:1])[KEYS[0]] is not None
    bench.sim.fail_next(None, ServerError("503"), times=100, operation="lookup")
    with pytest.raises(MulticloudDbError) as caught:
        look_up(bench, KEYS[:1])
    assert (caught.value.retryable, caught.value.detail.operation) == (True, "lookup")


def test_a_provider_without_the_ability_is_refused(bench):
    lacking = capabilities_without(Capability.LOOKUP)
    bench.connect(provider=SimulationProvider(bench.sim, capabilities=lacking))
    with pytest.raises(MulticloudDbError, match="use another simulation") as caught:
        look_up(bench)
    assert caught.value.category == ErrorCategory.UNSUPPORTED_CAPABILITY


@pytest.mark.parametrize("floor", list(ScanFloor))
def test_a_row_has_an_order_key_only_where_it_is_its_own(bench, floor):
    facts = CapabilitySet(ALL_CAPABILITIES.notes, ScanFacts(floor, 0, "free"))
    bench.connect(provider=SimulationProvider(bench.sim, capabilities=facts))
    (row,) = look_up(bench, KEYS[:1]).values()
    assert bool(row.order_key) is (floor is ScanFloor.ROW)
    assert row.partition_id == ""


def test_a_recreated_collection_is_opened_again(bench):
    assert look_up(bench, KEYS[:1])[KEYS[0]] is not None
    bench.sim.recreate()
    bench.sim.write("k0", {"n": "new"})
    assert look_up(bench, KEYS[:1])[KEYS[0]].new_item_state == {"n": "new"}
