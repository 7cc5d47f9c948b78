"""Tests a query on the Cosmos DB emulator, from now on and through a split.

The account's key must be found nowhere.
"""

import runpy
from pathlib import Path

import pyspark
import pytest

from multiclouddb_conformance.harness import Kind, Write
from multiclouddb_cosmos_emulator.auth import WELL_KNOWN_KEY

from .harness import CosmosHarness

LIVES = runpy.run_path(str(Path(__file__).parents[3] / "spark" / "tests" / "lives.py"))


@pytest.fixture
def harness(tmp_path):
    made = CosmosHarness(tmp_path)
    made.open()
    yield made
    made.close()


def test_life(harness, tmp_path):
    address = harness.create("items", Kind.PLAIN, 2)

    def write():
        for number in range(40):
            if number == 20:
                (first, *_) = harness.server.partitions(address.database, address.collection)
                harness.server.split(address.database, address.collection, first["id"])
            harness.write(address, [Write(f"k{number % 10}", {"n": number})])

    options = {
        "url": harness.config().connection["url"],
        "database": address.database,
        "collection": address.collection,
        "startingPosition": "now",
    }
    LIVES["live"](
        tmp_path, pyspark.__version__, options, 40, [WELL_KNOWN_KEY], write, AZURE_COSMOS_KEY=WELL_KNOWN_KEY
    )
