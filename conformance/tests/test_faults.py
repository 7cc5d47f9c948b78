"""Tests that each fault script really causes its fault.

If a fault did not occur, the tests that use its script would prove nothing.
"""

import pytest

from multiclouddb_api import Beginning, SkipToOldest
from multiclouddb_conformance.collection import Collection
from multiclouddb_conformance.faults import (
    FAULTS,
    ChildrenFirst,
    FaultyPlugin,
    FaultyProvider,
    LateChildren,
    LateSiblings,
    Silent,
)
from multiclouddb_conformance.harness import CollectionKind
from multiclouddb_conformance.open_client import open_client
from multiclouddb_conformance.simulated import SimulationHarness
from multiclouddb_conformance.us8.faults import _act
from multiclouddb_spi import Continue, Deadline, FeedSpec


@pytest.fixture
def collection(tmp_path):
    harness = SimulationHarness(tmp_path)
    harness.open()
    address = harness.create("items", CollectionKind.PLAIN, 2)
    made = Collection(harness, address, harness.connect())
    yield made
    made.client.close()
    harness.close()


@pytest.mark.parametrize("name", FAULTS)
def test_a_script_makes_its_trouble(collection, name):
    script = FAULTS[name]
    act = _act(collection, script)
    collection.fill(10)
    if name.startswith("child"):
        collection.split()
    plugin = FaultyPlugin(collection.harness.plugin, script, act)
    with open_client(plugin, collection.harness.config()) as client:
        token = collection.begin
        for _ in range(6):
            page = collection.page(token, 2, client=client, on_expired=SkipToOldest())
            token = page.continuation_token
    (provider,) = plugin.providers
    assert provider.happened >= 1


def test_without_an_act_or_a_read_nothing_happens(collection):
    collection.fill(10)
    for script in (FAULTS["trimmed"], Silent()):
        plugin = FaultyPlugin(collection.harness.plugin, script, None)
        with open_client(plugin, collection.harness.config()) as client:
            if not isinstance(script, Silent):  # silence ends with the client
                assert len(collection.drain(collection.begin, client=client)) == 10
        assert plugin.providers[0].happened == 0


@pytest.mark.parametrize("script", [ChildrenFirst(), LateChildren(), LateSiblings()], ids=repr)
def test_a_head_names_the_children_that_a_read_names(collection, script):
    collection.fill(10)
    collection.split()
    soon = Deadline.after(10)
    provider = FaultyProvider(collection.harness.plugin.connect(collection.harness.config(), None), script)
    feed = provider.open_feed(FeedSpec(collection.address), soon)
    ends = 0
    for seed in feed.start(Beginning(), None, soon):
        head = feed.heads({seed.partition_id: seed.cursor}, None, soon)[seed.partition_id]
        reader = feed.open(seed.partition_id, seed.cursor)
        batch = reader.fetch(100, 1 << 20, 0.0, soon)
        while isinstance(batch.outcome, Continue) and len(batch):
            batch = reader.fetch(100, 1 << 20, 0.0, soon)
        assert head.outcome == batch.outcome
        ends += not isinstance(head.outcome, Continue)
        reader.close()
    assert ends == 1
    provider.close()
