"""Tries a container that was deleted and restored in the same account, where it keeps its resource id.

Microsoft Learn, Restore a deleted database or container in the same account, "Understand container instance
identifiers": only the restore parameters in its definition tell it from the deleted one.
"""

import time
from types import SimpleNamespace

import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    MulticloudDbKey,
    PhysicalPartition,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_spi import ProviderFault

from .test_keys import drained
from .world import ADDRESS, DATABASE, NAME, soon

pytestmark = pytest.mark.usefixtures("hasty")
LATEST = CosmosOptions(mode="latest")
BOTH = pytest.mark.parametrize("options", [None, LATEST], ids=["all_versions", "latest"])


def restore(world, number, container=None):
    """Restore the deleted container with the number of its instance."""
    deleted = container or world.server._container(DATABASE, NAME)
    if container is None:
        world.database.delete_container(NAME)
    world.create(2)
    with world.server._lock:
        made = world.server._container(DATABASE, NAME)
        made.rid, made.link = deleted.rid, deleted.link
        made.properties |= {
            "_rid": deleted.rid,
            "_self": deleted.link,
            "restoreParameters": {"restoreSource": "account", "collectionInstanceId": f"{number}" * 8},
        }


@BOTH
@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("seen", ["seen", "unseen", "asleep"])
def test_a_token_of_the_deleted_container_is_refused(world, monkeypatch, options, restarted, seen):
    consumer = world.consumer(provider_options=options or CosmosOptions())
    world.fill(4)
    assert len(drained(consumer)) == 4
    deleted = world.server._container(DATABASE, NAME)
    world.database.delete_container(NAME)
    if seen == "seen":
        refusal(ErrorCategory.NOT_FOUND, consumer.read, "404/1003")
    elif seen == "asleep":  # with its machine, so that the time of `time.monotonic` stands still on Linux
        clocks = SimpleNamespace(monotonic=time.monotonic, time=lambda: time.time() + 3600)
        monkeypatch.setattr("multiclouddb_cosmos.source.time", clocks)
    else:  # the reader asked for nothing while the container was deleted, which takes longer than this
        monkeypatch.setattr("multiclouddb_cosmos.source._UNSEEN_SECONDS", 0.0)
    restore(world, 1, deleted)
    world.fill(30)
    if restarted:
        consumer.restart()
    for _ in range(2):
        refusal(ErrorCategory.INVALID_REQUEST, consumer.read, "recreated")


@BOTH
def test_so_is_one_of_an_earlier_restore(world, options):
    restore(world, 1)
    consumer = world.consumer(provider_options=options or CosmosOptions())
    written = world.fill(4)
    assert len(drained(consumer)) == 4
    consumer.restart()
    written += world.fill(4)
    drained(consumer)
    assert sorted(consumer.markers) == written
    restore(world, 2)
    world.fill(30)
    consumer.restart()
    refusal(ErrorCategory.INVALID_REQUEST, consumer.read, "recreated")


def test_partitions_and_look_ups_of_the_deleted_container_are_refused(world):
    with world.client() as client:
        first = client.list_physical_partitions(ADDRESS)[0]
    _, feed = world.feed()
    restore(world, 1)
    world.put("a")
    request = ChangeFeedRequest(ADDRESS, Beginning(), PhysicalPartition(first), provider_options=LATEST)
    refusal(ErrorCategory.INVALID_REQUEST, lambda: world.client().read_changes(request), "recreated")
    with pytest.raises(ProviderFault, match="recreated"):
        feed.lookup([MulticloudDbKey({"pk": "a", "id": "a"}, 1)], soon())
