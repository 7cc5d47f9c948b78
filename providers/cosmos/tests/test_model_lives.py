"""Lives of a Delta table and a container of the emulator, judged by a model of their own."""

import runpy
from pathlib import Path

import pytest

from multiclouddb_api import ChangeFeedRequest, FromContinuationToken, Now
from multiclouddb_cosmos.feed import CosmosFeed
from multiclouddb_cosmos_emulator.writes import Transaction
from testing.model_lives import Life
from testing.seeds import seeds

from .world import ADDRESS, DATABASE, NAME

pytestmark = pytest.mark.usefixtures("hasty")

TABLE = runpy.run_path(str(Path(__file__).parents[3] / "tables" / "verify" / "tests" / "delta_model.py"))
SEEDS = seeds(1, 50)
ODD = ("", "/a b", "#1", "%20x", " end ")
"""Ends of ids that the service accepts, and that a gateway cannot be asked for."""


class CosmosSource:
    address = ADDRESS
    odd_names = ()  # each id has an odd end

    def __init__(self, world):
        self.world, self.client = world, world.client()
        self._start()

    def _start(self):
        page = self.client.read_changes(ChangeFeedRequest(self.address, Now()))
        self.start = FromContinuationToken(page.continuation_token)

    def recreate(self):
        self.world.recreate(2)
        self._start()

    def _id(self, name):
        return name + ODD[sum(map(ord, name)) % len(ODD)]

    def key(self, name):
        return {"pk": name, "id": self._id(name)}

    def _committed(self, name, operation):
        """Write in the server itself, because azure-cosmos refuses ids that the service accepts."""
        with self.world.server._lock:
            container = self.world.server._container(DATABASE, NAME)
            transaction = Transaction(container, container.definition.of_values((name,)))
            operation(transaction)
            transaction.commit()

    def write(self, name, number):
        item = {"id": self._id(name), "pk": name, "n": number, "own": "é"}
        self._committed(name, lambda transaction: transaction.upsert(dict(item)))
        return item

    def remove(self, name):
        self._committed(name, lambda transaction: transaction.delete(self._id(name)))

    def tick(self):
        pass  # the emulator has the clock of this machine


@pytest.fixture(autouse=True)
def _visible_at_once(monkeypatch):
    """What is committed in the emulator is in the feed at once."""
    monkeypatch.setattr(CosmosFeed, "visible_after", lambda feed: 0.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_verdict_is_todays_and_no_right_row_is_damaged(seed, world, tmp_path):
    Life(seed, tmp_path, CosmosSource(world), TABLE["DeltaModelTable"](tmp_path / "table")).live()
