"""Tests that `verify` finds and removes the rows that a source without a feed of deletes has deleted."""

import pytest

from multiclouddb_api import Beginning
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_cosmos_emulator.writes import Transaction
from multiclouddb_verify import DeltaTarget, Kind, verify
from pyspark_multiclouddb import merge_into_delta

from .world import ADDRESS, DATABASE, NAME

pytestmark = pytest.mark.usefixtures("hasty")

LATEST = CosmosOptions(mode="latest")
ITEMS, DELETED = 4500, 2000


def write(world, numbers, *, delete=False):
    """Write in the server itself, because thousands of requests would take long."""
    with world.server._lock:
        container = world.server._container(DATABASE, NAME)
        for number in numbers:
            transaction = Transaction(container, container.definition.of_values((f"k{number}",)))
            if delete:
                transaction.delete(f"k{number}")
            else:
                transaction.upsert({"id": f"k{number}", "pk": f"k{number}", "n": number})
            transaction.commit()


@pytest.mark.soak
def test_deletes_are_found_and_removed(world, tmp_path):
    world.server.all_versions(False)
    write(world, range(ITEMS))
    table, consumer = tmp_path / "orders", world.consumer(Beginning(), provider_options=LATEST)

    def merged():
        while True:
            page = consumer.read()
            merge_into_delta(page, None, table, None)
            if page.idle:
                return consumer.token

    merged()
    write(world, range(DELETED), delete=True)
    settings = {"position": merged, "provider_options": LATEST, "max_repairs": ITEMS}
    found = verify(world.client(), ADDRESS, DeltaTarget(table), state=tmp_path / "found", **settings)
    assert found.counts.differences == {Kind.GHOST: DELETED}
    assert found.counts.expected_ghosts == DELETED
    write(world, range(DELETED, DELETED + 10))
    fixed = verify(
        world.client(), ADDRESS, DeltaTarget(table), state=tmp_path / "fixed", repair=True, **settings
    )
    assert fixed.counts.repaired == DELETED
    again = verify(world.client(), ADDRESS, DeltaTarget(table), state=tmp_path / "again", **settings)
    assert again.equal
