"""Tests that a micro-batch gives the same rows when read again, even after writes, splits and merges.

The tests use the reader as Spark does: the reader is pickled, and its offsets are converted to JSON and back.
"""

import json
import pickle

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from multiclouddb_spi.planning import ranges
from pyspark_multiclouddb.options import parse_options
from pyspark_multiclouddb.rows import ROW_SCHEMA
from pyspark_multiclouddb.stream import ChangeFeedStreamReader


class Query:
    """Makes the calls that a query makes to a reader."""

    def __init__(self, source, **options):
        self.settings = parse_options(source.options(pollInterval="0", **options)).for_stream()
        self.reader = self.restarted()
        self.offsets = [through_json(self.reader.initialOffset())]

    def restarted(self):
        return pickle.loads(pickle.dumps(ChangeFeedStreamReader(self.settings)))

    def plan(self, limit=None):
        start = self.offsets[-1]
        end = self.reader.latestOffset(start, ReadAllAvailable() if limit is None else ReadMaxRows(limit))
        if end is start:
            return False
        self.offsets.append(through_json(end))
        return True

    def plan_all(self, limit=None):
        while self.plan(limit):
            pass

    def rows(self, number, reader=None):
        """Return the rows of one micro-batch, by task."""
        reader = reader or self.reader
        tasks = reader.partitions(self.offsets[number], self.offsets[number + 1])
        return [list(reader.read(pickle.loads(pickle.dumps(task)))) for task in tasks]

    def batches(self, reader=None):
        return [self.rows(number, reader) for number in range(len(self.offsets) - 1)]


def through_json(offset):
    return json.loads(json.dumps(offset))


def events(batches):
    return [row for tasks in batches for task in tasks for batch in task for row in batch.to_pylist()]


def live(source, query, limit):
    """Write, split and merge between the micro-batches, and sometimes let a backlog grow."""
    source.write(60)
    query.plan(limit)
    for turn in range(6):
        query.plan(limit)
        source.write(25, seed=turn)
        source.split(turn)
        query.plan(limit)
        source.write(10, seed=turn)
        if turn % 2:
            source.merge(turn)
        query.plan(limit)
    query.plan_all(limit)


@pytest.mark.parametrize("limit", [None, 7, 40])
def test_every_batch_is_the_same_when_it_is_read_again(source, limit):
    query = Query(source)
    live(source, query, limit)
    first = query.batches()
    source.write(50, seed="later")
    source.split(1)
    source.merge(0)
    source.write(50, seed="later still")
    assert query.batches(query.restarted()) == first
    assert query.batches(query.restarted()) == first


@pytest.mark.parametrize("limit", [None, 7, 40])
def test_batches_together_are_the_log(source, limit):
    query = Query(source)
    live(source, query, limit)
    rows = events(query.batches())
    rows.sort(key=lambda row: row["order_key"])
    got = [(row["type"], json.loads(row["key"])["id"], row["new_item_state"]) for row in rows]
    assert got == [
        (kind, key, document and json.dumps(document, separators=(",", ":")))
        for kind, key, document in source.truth
    ]


def test_one_key_is_in_order_across_batches(source):
    query = Query(source)
    live(source, query, 7)
    last = {}
    for tasks in query.batches():
        for row in sorted(events([tasks]), key=lambda row: row["order_key"]):
            assert last.get(row["key"], "") < row["order_key"]
            last[row["key"]] = row["order_key"]


def test_limit_is_hard(source):
    query = Query(source)
    live(source, query, 7)
    sizes = [len(events([tasks])) for tasks in query.batches()]
    assert max(sizes) == 7


def test_sequence_counts_rows_in_partition_and_batch(source, monkeypatch):
    monkeypatch.setattr(ranges, "_RECORDS", 7)
    query = Query(source)
    source.write(100)
    query.plan_all()
    found = {}
    for row in sorted(events([query.rows(1)]), key=lambda row: row["order_key"]):
        found.setdefault(row["partition_id"], []).append(row["sequence"])
    assert len(found) == 3
    assert all(numbers == list(range(len(numbers))) for numbers in found.values())


def test_rows_have_the_exact_schema(source):
    query = Query(source, oldItemState="include_if_available")
    source.write(30)
    query.plan_all()
    for task in query.rows(1):
        for batch in task:
            assert batch.schema.equals(ROW_SCHEMA)


def test_tasks_are_few_and_bounded(source):
    query = Query(source, maxTasksPerBatch="2")
    source.split(0)
    source.split(3)
    source.write(200)
    query.plan_all()
    parts = [len(tasks) for tasks in query.batches()]
    assert max(parts) == 2


def test_planning_a_replay_needs_no_database(source, tmp_path):
    query = Query(source)
    source.write(30)
    query.plan_all()
    before = query.reader.partitions(*query.offsets[1:3])
    source.store.close()
    (tmp_path / "store.db").rename(tmp_path / "gone.db")
    assert [task.value for task in query.restarted().partitions(*query.offsets[1:3])] == [
        task.value for task in before
    ]
