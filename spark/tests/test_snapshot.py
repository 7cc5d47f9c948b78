"""Tests `startingPosition=snapshot`: every existing row, then every change, on both stream classes."""

import json

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from multiclouddb_api import MulticloudDbError
from pyspark_multiclouddb import live_rows, merge_into_delta, micro_batches, stream
from pyspark_multiclouddb.connection import close_connections
from pyspark_multiclouddb.errors import SourceError
from pyspark_multiclouddb.options import parse_options
from pyspark_multiclouddb.readers import PlainStreamReader, settings_of
from pyspark_multiclouddb.rows import SPARK_SCHEMA
from pyspark_multiclouddb.stream import ChangeFeedStreamReader

COLLECTION = "orders"
ROWS = 120


class Sink:
    """Keeps the row with the highest `order_key` for each key, like `merge_into_delta`."""

    def __init__(self):
        self.rows, self.deleted, self.kinds = {}, {}, []

    def apply(self, rows):
        for row in sorted(rows, key=lambda row: row["order_key"]):
            self.kinds.append(row["backfilled"])
            name = json.loads(row["key"])["id"]
            if row["order_key"] <= self.rows.get(name, ("", None))[0]:
                continue
            if row["type"] == "DELETE":
                self.rows.pop(name, None)
            else:
                self.rows[name] = row["order_key"], json.loads(row["new_item_state"])

    def documents(self):
        return {name: document for name, (_, document) in self.rows.items()}


class Query:
    """A query as Spark runs it, with a log of offsets and a planning process that may be killed."""

    def __init__(self, source, plain, limit=None, **options):
        self.source, self.plain, self.limit = source, plain, limit
        bound = {} if limit is None else {"maxRecordsPerTrigger": str(limit)}
        self.settings = parse_options(
            source.options(
                startingPosition="snapshot",
                pollInterval="0",
                idleCheckpointInterval="1 hour",
                **bound,
                **options,
            )
        )
        self.log, self.sizes = [], []
        self.restart()

    def restart(self):
        close_connections()
        make = PlainStreamReader if self.plain else ChangeFeedStreamReader
        self.reader = make(self.settings.for_stream())
        if self.log and self.plain:
            self.reader.partitions(self.log[-1], self.log[-1])

    def plan(self):
        """Plan one micro-batch; return None if there is nothing to read."""
        start = self.log[-1] if self.log else self.reader.initialOffset()
        if self.plain:
            end = self.reader.latestOffset()
        else:
            end = self.reader.latestOffset(
                start, ReadMaxRows(self.limit) if self.limit else ReadAllAvailable()
            )
        return None if end == start else (start, json.loads(json.dumps(end)))

    def rows(self, start, end):
        tasks = self.reader.partitions(start, end)
        self.sizes.append(len(tasks))
        return [
            row for task in reversed(tasks) for batch in self.reader.read(task) for row in batch.to_pylist()
        ]

    def step(self, sink):
        planned = self.plan()
        if planned is None:
            return False
        sink.apply(self.rows(*planned))
        self.log.append(planned[1])
        return True

    def drain(self, sink):
        while self.step(sink):
            pass


def fill(source, count=ROWS):
    for number in range(count):
        source.store.put(COLLECTION, f"k{number}", {"n": number})
        source.documents[f"k{number}"] = {"n": number}


@pytest.fixture(params=[False, True], ids=["4.2", "4.0"])
def plain(request):
    return request.param


class TestBothStreams:
    @pytest.mark.parametrize("limit", [None, 1, 30])
    def test_rows_then_changes(self, source, plain, limit):
        fill(source)
        query, sink = Query(source, plain, limit, snapshotSegments="12"), Sink()
        assert query.step(sink)
        source.write(40)
        source.split()
        query.drain(sink)
        assert sink.documents() == source.documents
        assert sink.kinds == sorted(sink.kinds, reverse=True)
        assert sink.kinds.count(True) >= ROWS - 40

    def test_limit_counts_whole_segments_each_in_its_task(self, source, plain):
        fill(source)
        query, sink = Query(source, plain, 30, snapshotSegments="12"), Sink()
        query.drain(sink)
        assert [size for size in query.sizes if size] == [3] * 4

    def test_first_batch_of_a_spark_with_one_batch_a_run_has_rows(self, source):
        fill(source)
        query = Query(source, plain=True)
        assert query.rows(*query.plan())

    def test_restart_after_every_batch_and_a_replay_of_each(self, source, plain):
        """A replayed batch has the same rows, even in a new process, which knows nothing about earlier
        batches."""
        fill(source)
        query, sink = Query(source, plain, 20, snapshotSegments="12"), Sink()
        number = 0
        while (planned := query.plan()) is not None:
            first = sorted(row["event_id"] for row in query.rows(*planned))
            query.restart()
            again = query.rows(*planned)
            assert sorted(row["event_id"] for row in again) == first
            sink.apply(again)
            query.log.append(planned[1])
            query.restart()
            if number < 10:
                source.write(3, seed=number)
            number += 1
        assert sink.documents() == source.documents

    def test_empty_collection_is_over_and_says_so(self, source, plain):
        query, sink = Query(source, plain), Sink()
        query.drain(sink)
        assert query.log[-1]["s"]["over"] is True
        assert {"floor", "plan"} <= query.log[-1]["s"].keys()
        source.write(5)
        query.drain(sink)
        assert query.log[-1]["s"]["over"] is True
        assert sink.documents() == source.documents

    def test_offsets_and_progress_say_how_far_it_is(self, source, plain):
        fill(source)
        query, sink, shown = Query(source, plain, 30, snapshotSegments="12"), Sink(), []
        while query.step(sink):
            if query.reader._batches.report:
                shown.append(query.reader._batches.report["snapshot"])
        plans = {(offset["s"]["plan"], offset["s"]["floor"]) for offset in query.log}
        assert len(plans) == 1
        overs = [offset["s"]["over"] for offset in query.log]
        assert overs == sorted(overs)
        assert overs[-1]
        done = [each["segmentsDone"] for each in shown if not each["over"]]
        assert done[-1] == 9
        assert done == sorted(done)
        assert {(each["segments"], each["records"]) for each in shown if not each["over"]} == {(12, ROWS)}
        assert shown[-1] == {name: query.log[-1]["s"][name] for name in ("floor", "over", "plan")}


def test_available_now_reads_the_scan_and_ends_where_the_feed_was(source):
    fill(source)
    query, sink = Query(source, plain=False, limit=30, snapshotSegments="12"), Sink()
    query.reader.prepareForTriggerAvailableNow()
    query.step(sink)
    query.step(sink)
    source.store.put(COLLECTION, "later", {"n": -1})
    query.drain(sink)
    assert sink.documents() == source.documents
    query.restart()
    query.drain(sink)
    assert "later" in sink.documents()


def default_sizes(reader, start):
    """Return the number of tasks of each batch with rows, with the limit of a query that sets no limit."""
    sizes, limit = [], reader.getDefaultReadLimit()
    while (end := reader.latestOffset(start, limit)) != start:
        sizes.append(len(reader.partitions(start, end)))
        start = end
    return [size for size in sizes if size], start


@pytest.fixture
def backlog(monkeypatch):
    """Limit the first batches to 30 rows, which are three segments."""
    monkeypatch.setattr(stream, "BACKLOG_RECORDS", 30)


def test_limit_of_the_first_batches_holds_for_the_whole_scan(source, backlog):
    fill(source)
    reader = Query(source, plain=False, snapshotSegments="12").reader
    assert default_sizes(reader, reader.initialOffset())[0] == [3] * 4


def test_another_snapshot_in_the_same_process_reads_nothing_of_the_gap_and_keeps_the_limit(
    source, backlog, monkeypatch
):
    fill(source)
    monkeypatch.setattr(micro_batches, "_FRESH_SECONDS", -1.0)
    options = {"startingPosition": "beginning", "failOnDataLoss": "resnapshot", "snapshotSegments": "12"}
    reader = ChangeFeedStreamReader(parse_options(source.options(pollInterval="0", **options)))
    _, last = default_sizes(reader, reader.initialOffset())
    source.write(20)
    source.store.trim(COLLECTION, max_count=0)
    begun = reader.latestOffset(last, reader.getDefaultReadLimit())
    assert begun["s"]["plan"]
    assert list(reader.partitions(last, begun)) == []
    sizes, _ = default_sizes(reader, begun)
    assert len(sizes) == 4
    assert max(sizes) <= 3


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"snapshotOrder": "sideways"}, "snapshotOrder: is 'sideways'; write one of ordered, inter"),
            ({"startingPosition": "resnapshot"}, "startingPosition: is resnapshot.*failOnDataLoss=resnap"),
            ({"startingPosition": "now", "snapshotSegments": "3"}, "snapshotSegments: has no meaning"),
            ({"snapshotSegments": "0"}, "snapshotSegments: is '0'"),
            ({"endingPosition": "snapshot"}, "endingPosition: is snapshot; write latest"),
        ],
    )
    def test_names_the_option_and_the_way_out(self, source, options, told):
        with pytest.raises(SourceError, match=told):
            settings_of(
                source.options(**{"startingPosition": "snapshot", **options}), SPARK_SCHEMA, is_stream=True
            )

    def test_a_batch_that_ends_before_its_snapshot(self, source):
        options = source.options(startingPosition="snapshot", endingPosition="2026-01-31T12:00:00Z")
        with pytest.raises(SourceError, match="endingPosition: is a time"):
            settings_of(options, SPARK_SCHEMA, is_stream=False)

    @pytest.mark.parametrize("profile", ["cosmos"])
    def test_a_database_without_snapshots(self, source, profile):
        query = Query(source, plain=False, **{"connection.profile": profile})
        with pytest.raises(SourceError, match=r"\[MULTICLOUDDB:UNSUPPORTED_CAPABILITY\] startingPosition=sn"):
            query.plan()


@pytest.mark.parametrize("order", ["interleaved", "auto"])
def test_spark_reads_a_snapshot_into_delta_and_a_batch_that_failed_comes_again(
    spark, source, tmp_path, order
):
    """The table has older rows. The query's sink fails after its commit.

    A new query then continues from the same checkpoint.
    """
    fill(source)
    stale = pa.table({"key": ['{"id":"stale"}'], "order_key": ["0"], "type": ["UPDATE"]})
    stale = stale.append_column("timestamp", pa.nulls(1, pa.timestamp("us", tz="UTC")))
    stale = stale.append_column("new_item_state", pa.array(["{}"]))
    merge_into_delta(stale, None, tmp_path / "table", None)
    table, died = tmp_path / "table", []

    (tmp_path / "other" / "offsets").mkdir(parents=True)
    (tmp_path / "other" / "metadata").write_text('{"id": "another"}')

    def merge(frame, batch_id):
        with pytest.raises(MulticloudDbError, match=r"belongs to the query another, but this query is .+-.+"):
            merge_into_delta(frame, batch_id, table, "snapshot", checkpoint=tmp_path / "other")
        merge_into_delta(frame, batch_id, table, "snapshot", checkpoint=tmp_path / "checkpoint")
        if batch_id == 2 and not died:
            died.append(batch_id)
            source.write(20)
            source.split()
            raise RuntimeError("killed")

    options = source.options(
        startingPosition="snapshot", snapshotOrder=order, snapshotSegments="4", maxRecordsPerTrigger="60"
    )

    def run():
        stream = spark.readStream.format("multiclouddb").options(**options).load()
        writer = stream.writeStream.foreachBatch(merge)
        checkpointed = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = checkpointed.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    with pytest.raises(Exception, match="killed"):
        run()
    run()
    found = live_rows(table).read_all().to_pylist()
    documents = {json.loads(row["key"])["id"]: json.loads(row["new_item_state"]) for row in found}
    assert documents == source.documents


def test_spark_reads_a_snapshot_in_one_batch(spark, source):
    fill(source)
    source.store.put(COLLECTION, "k1", {"n": 1000})
    options = source.options(startingPosition="snapshot", snapshotSegments="5")
    found = spark.read.format("multiclouddb").options(**options).load().collect()
    assert {row.backfilled for row in found} == {True}
    assert len(found) == ROWS
