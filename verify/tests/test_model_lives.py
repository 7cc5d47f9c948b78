"""Lives of a Delta table and the embedded store, judged by a model of their own."""

import shutil

import pytest

from multiclouddb_api import Beginning, connect
from multiclouddb_conformance.model_lives import Life
from multiclouddb_embedded import EmbeddedStore

from .delta_model import DeltaModelTable
from .tables import VALUES

SEEDS = [pytest.param(seed, marks=[pytest.mark.soak] * (seed >= 4)) for seed in range(1000)]


class EmbeddedSource:
    start = Beginning()

    def __init__(self, folder):
        self.store = EmbeddedStore(folder / "shop.db", durable=False)
        self.client = connect(f"embedded://{self.store.path}")
        self.address = self.store.create_collection("orders", partitions=2)

    def close(self):
        self.client.close()
        self.store.close()

    def key(self, name):
        return {"id": name}

    def write(self, name, number):
        document = {"n": number, "v": VALUES[number % len(VALUES)]}
        self.store.put("orders", name, document)
        return document

    def remove(self, name):
        self.store.delete("orders", name)

    def recreate(self):
        self.store.drop_collection("orders")
        self.store.create_collection("orders", partitions=2)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_verdict_is_todays_and_no_right_row_is_damaged(seed, tmp_path):
    source = EmbeddedSource(tmp_path)
    try:
        Life(seed, tmp_path, source, DeltaModelTable(tmp_path / "table")).live()
    finally:
        source.close()
        shutil.rmtree(tmp_path)
