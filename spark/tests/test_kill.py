"""Kills the driver and its JVM with SIGKILL in mid-batch: the contents of the sink must equal the source."""

import json
import os
import random
import time

import pytest
from deltalake import DeltaTable

from pyspark_multiclouddb import live_rows

from .databases import EVENTS, KEYS
from .following import Follower
from .queries import marks


def table_of(folder):
    table = live_rows(folder / "table").read_all()
    return {json.loads(row["key"])["id"]: json.loads(row["new_item_state"]) for row in table.to_pylist()}


def deleted_in(folder):
    """Return the keys of the tombstones."""
    table = DeltaTable(folder / "table").to_pyarrow_dataset().scanner(use_threads=False).to_table()
    return {json.loads(row["key"])["id"] for row in table.to_pylist() if row["_deleted_at"] is not None}


@pytest.mark.timeout(900)  # this test starts Spark six times
def test_every_moment_of_a_kill_gives_the_same_rows(databases, start_queries):
    """The test uses three databases at once.

    Each start begins with the batch that the last kill interrupted.
    """
    queries = start_queries(list(databases("killed", "embedded", "dynamo", "mongo")))
    for moment in ("planning", "planned", "task", "sink", "commit"):
        queries.start(moment)
        if moment == "planning":
            queries.write()
        queries.reach()
        queries.kill()
        for place in queries.places():
            pending = marks(place, "offsets") - marks(place, "commits")
            # A batch that was planned is not completed. If the kill comes after the sink's commit, the rows
            # are there.
            assert len(pending) == (moment != "planning")
            kept = {number for number in pending if (place / "rows" / str(number)).exists()}
            assert kept == (pending if moment in ("sink", "commit") else set())
    queries.start()
    queries.end()
    queries.check()
    table = table_of(queries.folder / "embedded")
    assert table == {f"k{number % KEYS}": {"n": number} for number in range(EVENTS - KEYS, EVENTS)}


@pytest.mark.timeout(900)  # this test starts Spark three times
def test_table_equals_the_source_after_kills_at_random_moments(source, tmp_path):
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    dice = random.Random(seed)
    for number in range(int(os.environ.get("MULTICLOUDDB_KILLS", "5"))):
        source.write(150, seed=f"{seed} {number}")
        follower = Follower(tmp_path)
        follower.wait_for_files(dice.randint(1, 12))
        time.sleep(dice.random() / 10)
        follower.kill()
    last = Follower(tmp_path)
    last.end(0)
    assert last.noise() == []
    assert table_of(tmp_path) == source.documents
    assert deleted_in(tmp_path) == {key for _, key, _ in source.truth} - source.documents.keys()
