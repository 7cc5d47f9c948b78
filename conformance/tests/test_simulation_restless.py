"""Tests a simulated service whose keys may move to any partition, and a service that splits partitions by
itself.
"""

from contextlib import contextmanager

import pytest

from multiclouddb_api import Beginning, ChangeFeedRequest, ClientConfig, ResourceAddress
from multiclouddb_conformance.loss import Act, Change, LossOracle
from multiclouddb_conformance.open_client import open_client
from multiclouddb_conformance.simulated import SimulationPlugin
from multiclouddb_conformance.simulation import ServiceBehaviour, Simulation

REQUEST = ChangeFeedRequest(ResourceAddress("sim", "items"), Beginning(), max_page_size=2)


def descends(sim, name, ancestor):
    return name == ancestor or any(descends(sim, parent, ancestor) for parent in sim.lineage[name])


def test_a_split_moves_keys_to_partitions_that_do_not_descend_from_theirs():
    sim = Simulation(partitions=4, behaviour=ServiceBehaviour(moves_keys=True))
    names = [f"k{number}" for number in range(50)]
    before = {name: sim.write(name, {"n": 1}).partition_id for name in names}
    assert {name: sim.write(name, {"n": 2}).partition_id for name in names} == before
    sim.split("p0")
    after = {name: sim.write(name, {"n": 3}).partition_id for name in names}
    assert [name for name in names if not descends(sim, after[name], before[name])]


def test_a_service_splits_merges_and_rolls_by_itself():
    sim = Simulation(partitions=2, behaviour=ServiceBehaviour(splits_itself=3))
    for number in range(2):
        sim.write("a", {"n": number})
    assert sim.open_partitions == ("p0", "p1")
    for number in range(100):
        sim.write("a", {"n": number})
    parents = [len(above) for above in sim.lineage.values()]
    children = [len(partition.children) for partition in sim.partitions.values()]
    assert {1, 2} <= set(parents)
    assert {1, 2} <= set(children)
    assert len(sim.open_partitions) <= 5


@pytest.mark.parametrize("key_order", [True, False])
def test_the_loss_oracle_asks_for_the_order_of_a_key_across_partitions_only_where_it_is_promised(key_order):
    @contextmanager
    def world():
        yield Simulation(partitions=4, behaviour=ServiceBehaviour(moves_keys=True))

    def write(number):
        def run(sim):
            sim.write("a", {"n": number})
            return [Change("a", number)]

        return Act("write", run)

    def client(sim):
        plugin = SimulationPlugin()
        plugin.sims.append(sim)
        return open_client(plugin, ClientConfig("simulation"))

    split = Act("split", lambda sim: sim.split(sim.open_partitions[0]) and None)
    life = [step for number in range(24) for step in (write(number), write(100 + number), split)]
    report = LossOracle(world=world, client=client, request=REQUEST, life=life, key_order=key_order).run(2)
    report.assert_nothing_lost()
    assert bool([run for run in report.runs if run.findings()]) is key_order
