"""Tests a query that copies a snapshot and later changes from MongoDB into a Delta table, and is killed."""

import runpy
from pathlib import Path

import pytest

from testing.seeds import seeds

pytestmark = pytest.mark.xdist_group("jvm apart")

LIVES = runpy.run_path(str(Path(__file__).parents[3] / "spark" / "tests" / "delta_lives.py"))


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_table_equals_the_source_after_a_kill(one, here, written, tmp_path, seed):
    def put(name, number):
        written.replace_one({"_id": name}, {"n": number}, upsert=True)

    options = {"url": one.uri(), "database": here.database, "collection": here.collection}
    options |= {"snapshotSegments": "4"}
    written.delete_many({})
    LIVES["live"](seed, tmp_path, options, put, lambda name: written.delete_one({"_id": name}))
