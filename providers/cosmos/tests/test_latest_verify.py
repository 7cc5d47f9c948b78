"""Tests that `verify` finds and removes the rows that a source without a feed of deletes has deleted."""

import pytest

from multiclouddb_api import Beginning
from multiclouddb_conformance.waiting import Beside
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_cosmos_emulator.writes import Transaction
from multiclouddb_verify import DeltaTarget, DifferenceKind, verify
from pyspark_multiclouddb import live_rows, merge_into_delta

from .world import ADDRESS, DATABASE, NAME

pytestmark = pytest.mark.usefixtures("hasty")

LATEST = CosmosOptions(mode="latest")
ITEMS, DELETED = 4500, 2000


def write(world, numbers, *, delete=False, **values):
    """Write in the server itself, because thousands of requests would take long."""
    with world.server._lock:
        container = world.server._container(DATABASE, NAME)
        for number in numbers:
            transaction = Transaction(container, container.definition.of_values((f"k{number}",)))
            if delete:
                transaction.delete(f"k{number}")
            else:
                transaction.upsert({"id": f"k{number}", "pk": f"k{number}", "n": number, **values})
            transaction.commit()


class Stream(Beside):
    """Changes items and merges the feed into the table, both until the block ends."""

    def __init__(self, world, table, numbers):
        super().__init__(self._merge, self._put)
        self.world, self.table, self.numbers = world, table, numbers
        self.consumer = world.consumer(Beginning(), provider_options=LATEST)
        self.merged = 0

    def merge(self):
        """Merge one page, and return it."""
        page = self.consumer.read()
        merge_into_delta(page, None, self.table, None)
        self.token, self.merged = page.continuation_token, self.merged + len(page.events)
        return page

    def _merge(self, _):
        self.merge()

    def until_idle(self):
        while not self.merge().idle:
            pass

    def _put(self, number):
        write(self.world, [self.numbers[number % len(self.numbers)]], change=number)
        return 0.01


@pytest.mark.soak
def test_deletes_are_found_and_removed_while_the_stream_runs(world, tmp_path):
    world.server.all_versions(False)
    write(world, range(ITEMS))
    stream = Stream(world, tmp_path / "orders", range(DELETED, ITEMS))
    stream.until_idle()
    write(world, range(DELETED), delete=True)
    settings = {"position": lambda: stream.token, "provider_options": LATEST, "max_repairs": ITEMS}

    def verified(name, **more):
        target = DeltaTarget(tmp_path / "orders")
        return verify(world.client(), ADDRESS, target, state=tmp_path / name, **settings, **more)

    with stream:
        found = verified("found")
        assert found.counts.differences == {DifferenceKind.GHOST: DELETED}
        assert found.counts.expected_ghosts == DELETED
        before = stream.merged
        fixed = verified("fixed", repair=True)
        assert fixed.counts.repaired == DELETED
        assert stream.merged > before
    stream.until_idle()
    assert verified("again").equal
    assert len(live_rows(tmp_path / "orders").read_all()) == ITEMS - DELETED
