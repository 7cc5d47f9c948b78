"""Tests `startingPosition=snapshot`: every existing row, then every change, on both stream classes."""

import json

import pyarrow as pa
import pytest

from multiclouddb_api import MulticloudDbError
from pyspark_multiclouddb import merge_into_delta, micro_batches, stream
from pyspark_multiclouddb.errors import SourceError
from pyspark_multiclouddb.readers import settings_of
from pyspark_multiclouddb.rows import SPARK_SCHEMA

from .micro_batches import Query, ids
from .tables import documents, make_checkpoint

ROWS = 120
SEGMENTS = {"startingPosition": "snapshot", "snapshotSegments": "12"}
THIRTY = {**SEGMENTS, "maxRecordsPerTrigger": "30"}


class Sink:
    """Keeps the row with the highest `order_key` for each key, like `merge_into_delta`."""

    def __init__(self):
        self.rows, self.kinds = {}, []

    def apply(self, rows):
        for row in sorted(rows, key=lambda row: row["order_key"]):
            self.kinds.append(row["backfilled"])
            if row["order_key"] > self.rows.get(row["key"], ("",))[0]:
                self.rows[row["key"]] = row["order_key"], row["new_item_state"]

    def drain(self, query):
        while (rows := query.step()) is not None:
            self.apply(rows)

    def documents(self):
        return {json.loads(key)["id"]: json.loads(state) for key, (_, state) in self.rows.items() if state}


@pytest.fixture(params=[False, True], ids=["4.2", "4.0"])
def is_plain(request):
    return request.param


def number_of_tasks(query):
    return [size for number in range(len(query.log)) if (size := len(query.tasks(number)))]


class TestBothStreams:
    def test_restart_after_every_batch_and_a_replay_of_each(self, source, is_plain):
        """A replayed batch has the same rows, even in a new process, which knows nothing about earlier
        batches."""
        source.fill(ROWS)
        query, sink = Query(source, is_plain=is_plain, **{**SEGMENTS, "maxRecordsPerTrigger": "20"}), Sink()
        while query.plan():
            first = query.read()
            rows = query.restart().step()
            assert ids(rows) == ids(first)
            sink.apply(rows)
            query.restart()
            if len(query.log) < 11:
                source.write(3, seed=len(query.log))
        assert sink.documents() == source.documents

    def test_empty_collection_is_over_and_says_so(self, source, is_plain):
        query, sink = Query(source, is_plain=is_plain, startingPosition="snapshot"), Sink()
        for count in (0, 5):
            source.write(count)
            sink.drain(query)
            assert query.log[-1]["s"]["over"] is True
            assert {"floor", "plan"} <= query.log[-1]["s"].keys()
        assert sink.documents() == source.documents

    def test_limit_counts_whole_segments_and_offsets_and_progress_say_how_far_it_is(self, source, is_plain):
        source.fill(ROWS)
        query, shown = Query(source, is_plain=is_plain, **THIRTY), []
        while query.step() is not None:
            if query.reader._batches.report:
                shown.append(query.reader._batches.report["snapshot"])
        assert number_of_tasks(query) == [3] * 4
        assert len({(offset["s"]["plan"], offset["s"]["floor"]) for offset in query.log}) == 1
        overs = [offset["s"]["over"] for offset in query.log]
        assert overs == sorted(overs)
        assert overs[-1]
        running = [each for each in shown if not each["over"]]
        done = [each["segmentsDone"] for each in running]
        assert (done[-1], done) == (9, sorted(done))
        assert {(each["segments"], each["records"]) for each in running} == {(12, ROWS)}
        assert shown[-1] == {name: query.log[-1]["s"][name] for name in ("floor", "over", "plan")}

    def test_run_that_ends_by_itself_reads_the_scan_and_ends_where_the_feed_was(self, source):
        source.fill(ROWS)
        query, sink = Query(source, **THIRTY), Sink()
        query.reader.prepareForTriggerAvailableNow()
        for _ in range(2):
            sink.apply(query.step())
        source.store.put("orders", "later", {"n": -1})
        sink.drain(query)
        assert sink.documents() == source.documents
        sink.drain(query.restart())
        assert "later" in sink.documents()


def test_first_batch_of_a_spark_with_one_batch_a_run_has_rows(source):
    source.fill(ROWS)
    assert Query(source, is_plain=True, startingPosition="snapshot").step()


class TestLimitOfTheFirstBatches:
    @pytest.fixture(autouse=True)
    def backlog(self, monkeypatch):
        """Limit the first batches to 30 rows, which are three segments."""
        monkeypatch.setattr(stream, "BACKLOG_RECORDS", 30)

    def test_holds_for_the_whole_scan(self, source):
        source.fill(ROWS)
        query = Query(source, **SEGMENTS)
        query.drain()
        assert number_of_tasks(query) == [3] * 4

    def test_holds_for_another_snapshot_in_the_same_process(self, source, monkeypatch):
        """The batch at which the snapshot begins reads nothing of the lost changes."""
        source.fill(ROWS)
        monkeypatch.setattr(micro_batches, "_FRESH_SECONDS", -1.0)
        query = Query(source, failOnDataLoss="resnapshot", snapshotSegments="12")
        query.drain()
        source.write(20)
        source.trim()
        assert query.step() == []
        assert query.log[-1]["s"]["plan"]
        query.log[:-1] = []
        query.done = 1
        query.drain()
        sizes = number_of_tasks(query)
        assert (len(sizes), max(sizes)) == (4, 3)


@pytest.mark.parametrize(
    ("options", "is_stream", "told"),
    [
        ({"snapshotOrder": "sideways"}, True, "snapshotOrder: is 'sideways'; write one of ordered, inter"),
        ({"startingPosition": "resnapshot"}, True, "startingPosition: is resnapshot.*failOnDataLoss=resnap"),
        ({"startingPosition": "now", "snapshotSegments": "3"}, True, "snapshotSegments: has no meaning"),
        ({"snapshotSegments": "0"}, True, "snapshotSegments: is '0'"),
        ({"endingPosition": "snapshot"}, True, "endingPosition: is snapshot; write latest"),
        ({"endingPosition": "2026-01-31T12:00:00Z"}, False, "endingPosition: is a time"),
    ],
)
def test_refused_option_is_named_with_the_way_out(source, options, is_stream, told):
    given = source.options(**{"startingPosition": "snapshot", **options})
    with pytest.raises(SourceError, match=told):
        settings_of(given, SPARK_SCHEMA, is_stream=is_stream)


def test_database_without_snapshots_is_refused(source):
    query = Query(source, startingPosition="snapshot", **{"connection.profile": "cosmos"})
    with pytest.raises(SourceError, match=r"\[MULTICLOUDDB:UNSUPPORTED_CAPABILITY\] startingPosition=sn"):
        query.plan()


@pytest.mark.parametrize("order", ["auto", pytest.param("interleaved", marks=pytest.mark.soak)])
def test_spark_reads_a_snapshot_into_delta_and_a_batch_that_failed_comes_again(
    spark, source, path, tmp_path, order
):
    """The table has older rows. The query's sink fails after its commit.

    A new query then continues from the same checkpoint.
    """
    source.fill(ROWS)
    stale = pa.table({"key": ['{"id":"stale"}'], "order_key": ["0"], "type": ["UPDATE"]})
    stale = stale.append_column("timestamp", pa.nulls(1, pa.timestamp("us", tz="UTC")))
    merge_into_delta(stale.append_column("new_item_state", pa.array(["{}"])), None, path, None)
    other, died = make_checkpoint(tmp_path / "other", "another"), []

    def merge(frame, batch_id):
        with pytest.raises(MulticloudDbError, match=r"belongs to the query another, but this query is .+-.+"):
            merge_into_delta(frame, batch_id, path, "snapshot", checkpoint=other)
        merge_into_delta(frame, batch_id, path, "snapshot", checkpoint=tmp_path / "checkpoint")
        if batch_id == 2 and not died:
            died.append(batch_id)
            source.write(20)
            source.split()
            raise RuntimeError("killed")

    options = {**SEGMENTS, "snapshotOrder": order, "snapshotSegments": "4", "maxRecordsPerTrigger": "60"}

    def run():
        feed = spark.readStream.format("multiclouddb").options(**source.options(**options)).load()
        writer = feed.writeStream.foreachBatch(merge).option("checkpointLocation", tmp_path / "checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="killed"):
        run()
    run()
    assert documents(path) == source.documents


def test_spark_reads_a_snapshot_in_one_batch(spark, source):
    source.fill(ROWS)
    source.put("k1", {"n": 1000})
    options = source.options(startingPosition="snapshot", snapshotSegments="5")
    found = spark.read.format("multiclouddb").options(**options).load().collect()
    assert {row.backfilled for row in found} == {True}
    assert len(found) == ROWS
