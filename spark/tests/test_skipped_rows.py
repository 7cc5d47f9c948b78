"""Tests that a document that cannot be decoded is never taken for a deleted one."""

import json
import sqlite3
from contextlib import closing

import pytest
from deltalake import DeltaTable

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    MulticloudDbError,
    ResourceAddress,
    Snapshot,
    connect,
)
from pyspark_multiclouddb import merge_into_delta

from .conftest import COLLECTION
from .test_sinks import documents, rows

ADDRESS = ResourceAddress(collection=COLLECTION)


def follow(source, table, start, **settings):
    """Merge every page of a run, with a client of its own."""
    with connect(f"embedded://{source.store.path}") as client:
        changes = client.iterate_changes(ChangeFeedRequest(ADDRESS, start), until_idle=True, **settings)
        for page in changes.pages():
            merge_into_delta(page, None, table, None)


def test_a_page_with_a_skipped_row_of_a_snapshot_is_refused(source, tmp_path):
    for number in range(10):
        source.store.put(COLLECTION, f"k{number}", {"n": number})
    table = tmp_path / "table"
    follow(source, table, Snapshot())
    before = documents(table)
    assert len(before) == 10
    with closing(sqlite3.connect(source.store.path)) as database, database:
        database.execute("UPDATE documents SET doc = 'damaged' WHERE key LIKE '%k7%'")
    with pytest.raises(MulticloudDbError, match=r"INVALID_REQUEST.*cannot be decoded"):
        follow(source, table, Snapshot(), on_poison="skip")
    assert documents(table) == before


def test_a_skipped_change_is_no_reason_to_refuse_a_page(source, tmp_path):
    for number in range(10):
        source.store.put(COLLECTION, f"k{number}", {"n": number})
    with closing(sqlite3.connect(source.store.path)) as database, database:
        database.execute("UPDATE log SET doc = 'damaged' WHERE seq = 4")
    follow(source, tmp_path / "table", Beginning(), on_poison="skip")
    assert len(documents(tmp_path / "table")) == 9


def test_a_batch_of_which_nothing_can_be_decoded_is_noted_once(tmp_path):
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    merge_into_delta(rows(("a", 1, {"n": 1})), None, table, None)
    poison = {"count": 1, "first": [["p0", "sequence 4"]]}
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id": "a query"}')
    offset = {"v": 1, "src": "0", "inc": None, "c": {"p": []}, "poison": poison}
    (checkpoint / "offsets" / "7").write_text("v1\n{}\n" + json.dumps(offset))
    for _ in range(2):
        assert not merge_into_delta(rows(("a", 1, {"n": 1}))[:0], 7, table, "app", checkpoint=checkpoint)
    found = [each for each in DeltaTable(table).history() if "multiclouddb.poison" in each]
    assert [json.loads(each["multiclouddb.poison"]) for each in found] == [poison]
