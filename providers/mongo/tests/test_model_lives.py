"""Lives of a Delta table and a collection of a real server, judged by a model of their own."""

import runpy
from pathlib import Path

import pytest
from bson import Decimal128, Int64

from multiclouddb_api import ChangeFeedRequest, FromContinuationToken, Now, ResourceAddress
from multiclouddb_mongo import reader
from multiclouddb_mongo.feed import MongoFeed
from multiclouddb_spi import open_feed
from testing.model_lives import Life
from testing.seeds import seeds

TABLE = runpy.run_path(str(Path(__file__).parents[3] / "tables" / "verify" / "tests" / "delta_model.py"))
# A position counts seconds, so that a life takes a minute.
SEEDS = seeds(1, 10)
SPELLINGS = (int, float, Int64, lambda number: Decimal128(f"{number}.0"))
"""Numbers that the server takes for one `_id`."""


class MongoSource:
    """Documents whose `_id` is a number, which is written in another type each time."""

    odd_names = ()

    def __init__(self, client, database, native):
        self.client, self.native = client, native
        self.address = ResourceAddress(database, "lives")
        self.recreate()

    def recreate(self):
        self.native.drop()
        self.native.database.create_collection(self.native.name)
        page = self.client.read_changes(ChangeFeedRequest(self.address, Now()))
        self.start = FromContinuationToken(page.continuation_token)

    def _id(self, name):
        return sum(ord(letter) * 31**place for place, letter in enumerate(name)) % 2**31

    def key(self, name):
        return {"_id": self._id(name)}

    def write(self, name, number):
        own, fields = SPELLINGS[number % len(SPELLINGS)](self._id(name)), {"n": number, "t": "é"}
        self.native.delete_one({"_id": own})
        self.native.insert_one({"_id": own, **fields})
        (stored,) = self.native.find({"_id": own})
        shown = stored["_id"].to_decimal() if isinstance(stored["_id"], Decimal128) else stored["_id"]
        return {"_id": shown, **fields}

    def remove(self, name):
        self.native.delete_one({"_id": self._id(name)})

    def tick(self):
        """Write something else: an idle server moves the position of a stream only every ten seconds."""
        self.native.database["ticks"].insert_one({})


@pytest.fixture(autouse=True)
def _nothing_is_awaited(monkeypatch):
    """Positions of the log count in seconds, so compare the server's time in whole seconds with them."""
    clock = MongoFeed.clock
    monkeypatch.setattr(MongoFeed, "clock", lambda *arguments: clock(*arguments).replace(microsecond=0))
    monkeypatch.setattr(open_feed, "_CLOCK_SECONDS", 0.0)
    monkeypatch.setattr(reader, "_LONG_AWAIT_MS", 10)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_verdict_is_todays_and_no_right_row_is_damaged(seed, one, ours, database, tmp_path):
    source = MongoSource(ours[0], database, one.client()[database]["lives"])
    Life(seed, tmp_path, source, TABLE["DeltaModelTable"](tmp_path / "table")).live()
