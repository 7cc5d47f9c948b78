"""Tests the stream of Spark 4.0 and 4.1 without Spark; calls come in the order that these versions use."""

import json
import pickle

import pytest

from pyspark_multiclouddb.errors import SourceError
from pyspark_multiclouddb.options import parse_options
from pyspark_multiclouddb.readers import PlainStreamReader


class Runs:
    """The runs of one query that ends by itself; each run has its own process and one micro-batch."""

    def __init__(self, source, **options):
        self.settings = parse_options(source.options(pollInterval="0", **options)).for_stream()
        self.log = []

    def restarted(self):
        reader = PlainStreamReader(self.settings)
        if self.log:
            assert list(reader.partitions(self.log[-1], self.log[-1])) == []
        return reader

    def plan(self, reader):
        """Add the end of the next batch to the log; return its start, or None if there is nothing to read."""
        start = self.log[-1] if self.log else reader.initialOffset()
        end = json.loads(json.dumps(reader.latestOffset()))
        if end == start:
            return None
        self.log.append(end)
        return start

    def rows(self, reader, start):
        tasks = reader.partitions(start, self.log[-1])
        return [row["event_id"] for task in tasks for rows in reader.read(task) for row in rows.to_pylist()]

    def run(self):
        """Return the rows of one run, and whether more may follow."""
        reader = self.restarted()
        start = self.plan(reader)
        if start is None:
            return [], False
        return self.rows(reader, start), self.log[-1].get("more", False)


@pytest.mark.parametrize("limit", [None, "20"])
def test_runs_until_nothing_more_follows_read_all(source, limit):
    source.write(50)
    source.split()
    source.write(20)
    runs = Runs(source, **({} if limit is None else {"maxRecordsPerTrigger": limit}))
    found, more = [], True
    while more:
        ids, more = runs.run()
        found += ids
    assert len(set(found)) == len(found) == len(source.truth)


def test_nothing_more_follows_a_position_that_moved_without_a_record(source):
    source.store.create_collection("others")
    source.write(5)
    runs = Runs(source, maxRecordsPerTrigger="20", idleCheckpointInterval="0")
    runs.run()
    source.store.put("others", "k", {"n": 1})
    before = len(runs.log)
    assert runs.run() == ([], False)
    assert len(runs.log) == before + 1


@pytest.mark.parametrize("done", [0, 1])
def test_pending_batch_is_read_again_and_the_next_one_follows_it(source, done):
    source.write(60)
    runs = Runs(source, maxRecordsPerTrigger="20")
    for _ in range(done):
        runs.run()
    reader = runs.restarted()
    start = runs.plan(reader)
    first = runs.rows(reader, start)
    source.write(10)
    again = runs.restarted()
    assert runs.rows(again, start) == first
    following = runs.plan(again)
    assert set(runs.rows(again, following)).isdisjoint(first)


def test_batch_that_was_planned_without_the_checkpoint_is_refused(source):
    source.write(60)
    runs = Runs(source, maxRecordsPerTrigger="20")
    runs.run()
    runs.run()
    blind = PlainStreamReader(runs.settings)
    planned = blind.latestOffset()
    with pytest.raises(SourceError, match=r"triggerAvailableNowWrapper\.enabled"):
        blind.partitions(runs.log[-1], runs.log[-1])
    assert planned != runs.log[-1]


def test_start_is_resolved_once(source):
    """Changes after the start would be lost if a second call resolved the start again."""
    source.write(10)
    reader = Runs(source, startingPosition="now").restarted()
    start = reader.initialOffset()
    first = reader.latestOffset()
    source.write(5)
    assert reader.latestOffset() is first
    assert list(reader.partitions(start, first)) == []
    tasks = reader.partitions(first, reader.latestOffset())
    assert sum(rows.num_rows for task in tasks for rows in reader.read(task)) == 5


def test_copy_in_another_process_has_the_same_options(source):
    runs = Runs(source, startingPosition="now", maxTasksPerBatch="3", maxRecordsPerTrigger="7")
    copy = pickle.loads(pickle.dumps(runs.restarted()))
    assert type(copy) is PlainStreamReader
    assert copy._batches.settings == runs.settings
