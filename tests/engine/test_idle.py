"""Tests when a page may be idle."""

from __future__ import annotations

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    FromContinuationToken,
    OperationOptions,
)
from multiclouddb_conformance.simulation import ServiceBehaviour, Simulation, SimulationProvider
from multiclouddb_conformance.simulation.service_behaviour import CaughtUp
from multiclouddb_spi import Engine, InlineExecutor


def test_a_prefetched_nothing_from_before_a_write_does_not_make_the_next_page_idle() -> None:
    """The prefetch found nothing before the write. Only an answer received during the current call proves
    that the partition is idle.
    """
    sim = Simulation(partitions=1)
    sim.behaviour = ServiceBehaviour(caught_up=CaughtUp.WHEN_EMPTY)
    for number in range(4):
        sim.write(f"k{number}", {"n": number})
    provider = SimulationProvider(sim, page_records=2)
    engine = Engine(provider, ClientConfig("simulation"), executor=InlineExecutor())
    position: Beginning | FromContinuationToken = Beginning()
    for _ in range(2):
        page = engine.read_changes(
            ChangeFeedRequest(sim.address, position, max_page_size=2), OperationOptions()
        )
        position = FromContinuationToken(page.continuation_token)
        assert len(page.events) == 2
    assert provider.calls.fetches["p0"] == 3, "the second page should have started a read ahead"
    sim.write("late", {"n": 4})

    page = engine.read_changes(ChangeFeedRequest(sim.address, position), OperationOptions())

    assert [event.new_item_state for event in page.events] == [{"n": 4}]
    assert not page.idle
    engine.close()
