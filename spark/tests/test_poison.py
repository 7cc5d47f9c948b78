"""Tests the option `onPoison`: what a stream does with a change that cannot be decoded."""

import json
import logging
import pickle
import sqlite3
from contextlib import closing

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from multiclouddb_api import ErrorCategory
from pyspark_multiclouddb import error_from_query, live_rows, merge_into_delta
from pyspark_multiclouddb.connection import close_connections
from pyspark_multiclouddb.errors import SourceError
from pyspark_multiclouddb.options import parse_options
from pyspark_multiclouddb.readers import ChangeFeedReader, PlainStreamReader
from pyspark_multiclouddb.rows import ROW_SCHEMA
from pyspark_multiclouddb.stream import ChangeFeedStreamReader

from .test_sinks import documents
from .test_source import SECONDS, load

ALL = ReadAllAvailable()
WRITTEN = 12


@pytest.fixture
def orders(source):
    """Provide a collection whose changes 4, 5 and 9 cannot be decoded."""
    for number in range(1, WRITTEN + 1):
        source.store.put("orders", f"k{number}", {"n": number})
    damage(source, 4, 5, 9)
    return source


def damage(source, *numbers):
    with closing(sqlite3.connect(source.store.path)) as database, database:
        database.executemany("UPDATE log SET doc = 'damaged' WHERE seq = ?", [(each,) for each in numbers])


def stream(source, **options):
    """Return a reader as a new process has it."""
    close_connections()
    return ChangeFeedStreamReader(parse_options(source.options(pollInterval="0", **options)).for_stream())


def delivered(reader, tasks):
    tasks = pickle.loads(pickle.dumps(tasks))
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    return sorted(json.loads(row["new_item_state"])["n"] for row in rows)


def pinned(reader):
    return reader.latestOffset(reader.initialOffset(), ALL)


def drain(reader):
    here = pinned(reader)
    while (end := reader.latestOffset(here, ALL)) != here:
        delivered(reader, reader.partitions(here, end))
        here = end


LEFT = [n for n in range(1, WRITTEN + 1) if n not in (4, 5, 9)]


class TestSkip:
    def test_the_offset_the_report_and_the_log_name_what_is_left_out(self, orders, caplog):
        reader = stream(orders, onPoison="skip")
        start = pinned(reader)
        with caplog.at_level(logging.WARNING, "multiclouddb.spark"):
            end = reader.latestOffset(start, ALL)
        assert delivered(reader, reader.partitions(start, end)) == LEFT
        assert end["poison"]["count"] == 3
        places = [position for _, position in end["poison"]["first"]]
        assert sorted(places) == ["sequence 4", "sequence 5", "sequence 9"]
        names = {part.partition_id for part in orders.store.partitions("orders")}
        assert all(name.rpartition(":")[2] in names for name, _ in end["poison"]["first"])
        assert reader.reportLatestOffset()["poison"]["count"] == 3
        assert all(any(place in each.getMessage() for each in caplog.records) for place in places)

    def test_a_limit_counts_them_and_every_change_is_named_once(self, orders):
        reader = stream(orders, onPoison="skip")
        here, seen, named = pinned(reader), [], []
        while (end := reader.latestOffset(here, ReadMaxRows(2))) != here:
            seen += delivered(reader, reader.partitions(here, end))
            named += end.get("poison", {"first": []})["first"]
            here = end
        assert sorted(seen) == LEFT
        assert len(named) == 3

    @pytest.mark.parametrize("option", ["skip", "fail"])
    def test_a_replay_leaves_out_the_same_changes(self, orders, option):
        """Even if the option has been changed in the meantime, the batch is what its offset says."""
        reader = stream(orders, onPoison="skip")
        start = pinned(reader)
        end = reader.latestOffset(start, ALL)
        again = stream(orders, onPoison=option)
        assert delivered(again, again.partitions(start, end)) == LEFT
        assert again.latestOffset(end, ALL) == end

    def test_a_batch_that_was_planned_without_it_goes_on_and_the_next_offset_names_it(self, orders):
        """Spark repeats the batch that has failed; its end is already stored."""
        reader = stream(orders)
        start = pinned(reader)
        end = reader.latestOffset(start, ALL)
        assert "poison" not in end
        again = stream(orders, onPoison="skip")
        assert delivered(again, again.partitions(start, end)) == LEFT
        after = again.latestOffset(end, ALL)
        assert after["poison"]["count"] == 3
        assert again.reportLatestOffset()["poison"]["count"] == 3
        assert list(again.partitions(end, after)) == []
        assert again.latestOffset(after, ALL) == after

    def test_the_first_batch_of_older_versions_of_spark(self, orders):
        close_connections()
        settings = parse_options(orders.options(onPoison="skip", pollInterval="0")).for_stream()
        reader = PlainStreamReader(settings)
        end = reader.latestOffset()
        assert delivered(reader, reader.partitions(reader.initialOffset(), end)) == LEFT
        assert end["poison"]["count"] == 3

    def test_a_batch_leaves_them_out_and_its_tasks_say_so(self, orders, caplog):
        reader = ChangeFeedReader(parse_options(orders.options(onPoison="skip")).for_batch())
        with caplog.at_level(logging.WARNING, "multiclouddb.spark"):
            assert delivered(reader, reader.partitions()) == LEFT
        assert sum("sequence" in each.getMessage() for each in caplog.records) == 3

    def test_many_are_counted_and_the_first_ones_named(self, source):
        for number in range(60):
            source.store.put("orders", f"k{number}", {"n": number})
        damage(source, *range(1, 51))
        reader = stream(source, onPoison="skip")
        start = pinned(reader)
        end = reader.latestOffset(start, ALL)
        assert end["poison"]["count"] == 50
        assert len(end["poison"]["first"]) < 50
        assert delivered(reader, reader.partitions(start, end)) == list(range(50, 60))

    def test_a_row_of_a_snapshot_is_never_left_out(self, orders):
        """A sink would take the document for a deleted one."""
        with closing(sqlite3.connect(orders.store.path)) as database, database:
            changed = database.execute("UPDATE documents SET doc = 'damaged' WHERE key LIKE '%k7%'").rowcount
        assert changed == 1
        reader = stream(orders, onPoison="skip", startingPosition="snapshot")
        with pytest.raises(SourceError, match=r"PROVIDER_ERROR\].*onPoison.*change or delete"):
            drain(reader)


class TestFail:
    def test_the_error_names_partition_position_and_option(self, orders):
        reader = stream(orders)
        start = pinned(reader)
        end = reader.latestOffset(start, ALL)
        match = r"^\[MULTICLOUDDB:PROVIDER_ERROR\] embedded:\S+: record at sequence \d.*onPoison=skip"
        with pytest.raises(SourceError, match=match):
            delivered(reader, reader.partitions(start, end))

    def test_other_values_are_refused(self, orders):
        with pytest.raises(Exception, match=r"onPoison.*write fail or skip"):
            parse_options(orders.options(onpoison="ignore"))


class TestTable:
    """A batch without one change that can be decoded, and a table that does not exist yet."""

    @pytest.fixture
    def query(self, source, tmp_path):
        """Provide a function that merges a batch of a query into the table, as `foreachBatch` does."""
        for number in (1, 2):
            source.store.put("orders", f"k{number}", {"n": number})
        damage(source, 1, 2)
        reader = stream(source, onPoison="skip")
        offsets = [pinned(reader)]
        (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
        (tmp_path / "checkpoint" / "metadata").write_text(json.dumps({"id": "q1"}))

        def merge(number):
            while len(offsets) <= number:
                source.store.put("orders", "k3", {"n": 2 + len(offsets)}) if len(offsets) > 1 else None
                offsets.append(reader.latestOffset(offsets[-1], ALL))
                file = tmp_path / "checkpoint" / "offsets" / str(len(offsets) - 1)
                file.write_text("\n".join(["v1", "{}", json.dumps(offsets[-1])]))
            start, end = offsets[number - 1], offsets[number]
            again = stream(source, onPoison="fail")
            rows = [batch for task in again.partitions(start, end) for batch in again.read(task)]
            table = pa.Table.from_batches(rows, schema=ROW_SCHEMA).append_column(
                "total", pa.array([1.5] * sum(map(len, rows)), pa.float64())
            )
            return merge_into_delta(
                table, number, tmp_path / "table", "app", checkpoint=tmp_path / "checkpoint"
            )

        return merge

    def test_its_first_commit_names_what_is_left_out_and_a_replay_is_the_same(self, query, tmp_path):
        assert not query(1)
        [poison] = noted(tmp_path)
        assert (poison["count"], {position for _, position in poison["first"]}) == (
            2,
            {"sequence 1", "sequence 2"},
        )
        assert not query(1), "the batch stands in the table"
        assert noted(tmp_path) == [poison]
        assert query(2), "the table has the columns of the batch"
        assert live_rows(tmp_path / "table").read_all()["total"].to_pylist() == [1.5]


def run(spark, source, folder, **options):
    def merge(frame, batch_id):
        where = folder / "checkpoint"
        merge_into_delta(frame, batch_id, folder / "table", "orders", checkpoint=where)

    stream = load(spark.readStream, source, **options).writeStream.foreachBatch(merge)
    query = stream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination(SECONDS)
    return query


def test_a_query_that_has_failed_goes_on_with_the_option(spark, source, tmp_path):
    for number in (1, 2):
        source.store.put("orders", f"k{number}", {"n": number})
    damage(source, 1, 2)
    run(spark, source, tmp_path, onPoison="skip")
    assert [each["count"] for each in noted(tmp_path)] == [2], (
        "no change can be decoded, and there was no table"
    )
    for number in range(3, WRITTEN + 1):
        source.store.put("orders", f"k{number}", {"n": number})
    damage(source, 4, 5, 9)
    with pytest.raises(StreamingQueryException, match="onPoison=skip") as caught:
        run(spark, source, tmp_path)
    assert error_from_query(caught.value) == ErrorCategory.PROVIDER_ERROR
    query = run(spark, source, tmp_path, onPoison="skip")
    assert sorted(each["n"] for each in documents(tmp_path / "table").values()) == LEFT[2:]
    ends = [json.loads(each["sources"][0]["endOffset"]) for each in query.recentProgress]
    assert [end["poison"]["count"] for end in ends if "poison" in end] == [3]
    assert [each["count"] for each in noted(tmp_path)] == [2, 3]


def noted(folder):
    history = DeltaTable(folder / "table").history()
    found = [each["multiclouddb.poison"] for each in history if "multiclouddb.poison" in each]
    return [json.loads(each) for each in reversed(found)]
