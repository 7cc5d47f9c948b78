"""Tests that micro-batches together are the log, and that each gives the same rows when it is read again.

The calls come in the order of Spark 4.2, or of Spark 4.0 and 4.1.
"""

import json
import pickle

import pytest

from multiclouddb_spi.planning import ranges
from pyspark_multiclouddb.errors import SourceError
from pyspark_multiclouddb.readers import PlainStreamReader
from pyspark_multiclouddb.rows import ROW_SCHEMA

from .micro_batches import Query, ids


def live(source, query):
    """Write, split and merge between the micro-batches, and sometimes let a backlog grow."""
    source.write(60)
    found = [query.step()]
    for turn in range(6):
        found.append(query.step())
        source.write(25, seed=turn)
        source.split(turn)
        found.append(query.step())
        source.write(10, seed=turn)
        if turn % 2:
            source.merge(turn)
        found.append(query.step())
    return [rows for rows in [*found, *iter(query.step, None)] if rows is not None]


@pytest.mark.parametrize("limit", [{}, {"maxRecordsPerTrigger": "7"}, {"maxRecordsPerTrigger": "40"}])
def test_batches_are_the_log_in_order_and_the_same_when_they_are_read_again(source, limit):
    query = Query(source, **limit)
    batches = live(source, query)
    rows = sorted((row for rows in batches for row in rows), key=lambda row: row["order_key"])
    assert [(row["type"], json.loads(row["key"])["id"], row["new_item_state"]) for row in rows] == [
        (kind, key, document and json.dumps(document, separators=(",", ":")))
        for kind, key, document in source.truth
    ]
    assert max(map(len, batches)) <= int(limit.get("maxRecordsPerTrigger", 1000))
    last = {}
    for batch in batches:
        for row in sorted(batch, key=lambda row: row["order_key"]):
            assert last.get(row["key"], "") < row["order_key"]
            last[row["key"]] = row["order_key"]
    source.write(50, seed="later")
    source.split(1)
    source.merge(0)
    assert [query.restart().read(number) for number in range(len(query.log))] == batches


def test_sequence_counts_rows_in_partition_and_batch(source, monkeypatch):
    monkeypatch.setattr(ranges, "_RECORDS", 7)
    source.write(100)
    found = {}
    for row in sorted(Query(source).drain(), key=lambda row: row["order_key"]):
        found.setdefault(row["partition_id"], []).append(row["sequence"])
    assert len(found) == 3
    assert all(numbers == list(range(len(numbers))) for numbers in found.values())


def test_rows_have_the_exact_schema(source):
    query = Query(source, oldItemState="include_if_available")
    source.write(30)
    query.drain()
    assert all(batch.schema.equals(ROW_SCHEMA) for batch in query.batches())


def test_tasks_are_few_and_bounded(source):
    query = Query(source, maxTasksPerBatch="2")
    source.split(0)
    source.split(3)
    source.write(200)
    query.drain()
    assert max(len(query.tasks(number)) for number in range(len(query.log))) == 2


def test_planning_a_replay_needs_no_database(source, tmp_path):
    query = Query(source)
    source.write(30)
    query.drain()
    before = query.tasks()
    source.store.close()
    (tmp_path / "store.db").rename(tmp_path / "gone.db")
    assert [task.value for task in query.restart().tasks()] == [task.value for task in before]


class TestPlainStream:
    """The stream of Spark 4.0 and 4.1, of which a run that ends by itself has one micro-batch."""

    @pytest.fixture
    def query(self, source):
        source.write(60)
        return Query(source, is_plain=True, maxRecordsPerTrigger="20")

    def run(self, query):
        """Return the rows of one run, and whether more may follow."""
        rows = query.restart().step()
        return rows or [], rows is not None and query.log[-1].get("more", False)

    @pytest.mark.parametrize("limit", [{}, {"maxRecordsPerTrigger": "20"}])
    def test_runs_until_nothing_more_follows_read_all(self, source, limit):
        source.write(50)
        source.split()
        source.write(20)
        query, found, more = Query(source, is_plain=True, **limit), [], True
        while more:
            rows, more = self.run(query)
            found += ids(rows)
        assert len(set(found)) == len(found) == len(source.truth)

    def test_nothing_more_follows_a_position_that_moved_without_a_record(self, source, query):
        source.store.create_collection("others")
        query.restart(idleCheckpointInterval="0", maxRecordsPerTrigger="100").step()
        source.store.put("others", "k", {"n": 1})
        before = len(query.log)
        assert self.run(query) == ([], False)
        assert len(query.log) == before + 1

    @pytest.mark.parametrize("done", [0, 1])
    def test_pending_batch_is_read_again_and_the_next_one_follows_it(self, source, query, done):
        for _ in range(done):
            self.run(query)
        assert query.restart().plan()
        first = query.read()
        source.write(10)
        assert query.restart().step() == first
        assert set(ids(query.step())).isdisjoint(ids(first))

    def test_batch_that_was_planned_without_the_checkpoint_is_refused(self, query):
        for _ in range(2):
            self.run(query)
        blind = PlainStreamReader(query.settings)
        assert blind.latestOffset() != query.log[-1]
        with pytest.raises(SourceError, match=r"triggerAvailableNowWrapper\.enabled"):
            blind.partitions(query.log[-1], query.log[-1])

    def test_start_is_resolved_once(self, source):
        """Changes after the start would be lost if a second call resolved the start again."""
        source.write(10)
        query = Query(source, is_plain=True, startingPosition="now")
        assert query.plan()
        source.write(5)
        assert query.reader.latestOffset() == query.log[-1]
        assert query.step() == []
        assert len(query.step()) == 5

    def test_copy_in_another_process_has_the_same_options(self, query):
        copy = pickle.loads(pickle.dumps(query.reader))
        assert type(copy) is PlainStreamReader
        assert copy._batches.settings == query.settings
