"""Tests `startingPosition=snapshot`: every existing row, then every change, on both stream classes."""

import json
import os
import random
import shutil
from datetime import timedelta
from functools import partial
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from multiclouddb_api import MulticloudDbError
from multiclouddb_conformance.sink_harness import Death
from multiclouddb_tables.delta import DeltaTarget
from pyspark_multiclouddb import drop_tombstones, merge_into_delta, micro_batches, stream
from pyspark_multiclouddb.errors import SourceError
from testing.seeds import seeds

from .micro_batches import (
    MergedQuery,
    Query,
    check_equal,
    documents,
    ids,
    make_checkpoint,
    rows,
    scanned,
    table_of,
    tombstones,
    with_columns,
    write_offset,
)

ROWS = 120
SEGMENTS = {"startingPosition": "snapshot", "snapshotSegments": "12"}
THIRTY = {**SEGMENTS, "maxRecordsPerTrigger": "30"}


@pytest.fixture(params=[False, True], ids=["4.2", "4.0"])
def is_plain(request):
    return request.param


def number_of_tasks(query):
    return [size for number in range(len(query.log)) if (size := len(query.tasks(number)))]


class TestBothStreams:
    def test_restart_after_every_batch_and_a_replay_of_each(self, source, tmp_path, is_plain):
        """A replayed batch has the same rows, even in a new process, which knows no earlier batches."""
        source.fill(ROWS)
        options = {**SEGMENTS, "maxRecordsPerTrigger": "20"}
        query = MergedQuery(source, tmp_path, is_plain=is_plain, **options)
        while query.plan():
            first = query.read()
            assert ids(query.restart().step()) == ids(first)
            query.restart()
            if len(query.log) < 11:
                source.write(3, seed=len(query.log))
        check_equal(query.table, source)

    def test_empty_collection_is_over_and_says_so(self, source, tmp_path, is_plain):
        query = MergedQuery(source, tmp_path, is_plain=is_plain)
        for count in (0, 5):
            source.write(count)
            query.drain()
            assert query.snapshot["over"] is True
            assert {"floor", "plan"} <= query.snapshot.keys()
        check_equal(query.table, source)

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

    def test_run_that_ends_by_itself_reads_the_scan_and_ends_where_the_feed_was(self, source, tmp_path):
        source.fill(ROWS)
        query = MergedQuery(source, tmp_path, **THIRTY)
        query.reader.prepareForTriggerAvailableNow()
        for _ in range(2):
            query.step()
        before = {**source.documents}
        source.put("later", {"n": -1})
        query.drain()
        assert documents(query.table) == before
        query.restart().drain()
        check_equal(query.table, source)


def test_first_batch_of_a_spark_with_one_batch_a_run_has_rows(source):
    source.fill(ROWS)
    assert Query(source, is_plain=True, startingPosition="snapshot").step()


class TestLimitOfTheFirstBatches:
    @pytest.fixture(autouse=True)
    def backlog(self, monkeypatch):
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


def test_database_without_snapshots_is_refused(source):
    query = Query(source, startingPosition="snapshot", **{"connection.profile": "cosmos"})
    with pytest.raises(SourceError, match=r"\[MULTICLOUDDB:UNSUPPORTED_CAPABILITY\] startingPosition=sn"):
        query.plan()


@pytest.mark.parametrize("order", ["auto", pytest.param("interleaved", marks=pytest.mark.soak)])
def test_spark_reads_a_snapshot_into_delta_and_a_batch_that_failed_comes_again(
    spark, source, path, tmp_path, order
):
    """The table has older rows. The query's sink fails after its commit."""
    source.fill(ROWS)
    merge_into_delta(with_columns(rows(("stale", 0, {})), order_key=["0"]), None, path, None)
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


LIVES = int(os.environ.get("MULTICLOUDDB_LIVES", "1"))
SEEDS = seeds(LIVES, 40)
RESNAPSHOT = {"failOnDataLoss": "resnapshot"}
SMALL = {"maxRecordsPerTrigger": "5", "snapshotSegments": "8"}
SCAN = {"plan": "p", "floor": "000010~", "over": False, "whole": True}


@pytest.mark.parametrize(("order", "is_plain"), [("ordered", False), ("interleaved", True), ("auto", False)])
@pytest.mark.parametrize("seed", SEEDS)
def test_equal_after_kills_splits_expired_positions_and_another_query(
    source, tmp_path, kills, order, is_plain, seed
):
    dice = random.Random(f"{seed} {order} {is_plain}")
    source.write(120, seed=seed)
    options = {"snapshotOrder": order, "snapshotSegments": dice.choice(["1", "5", "12"]), **RESNAPSHOT}
    if limit := dice.choice([None, 8, 20]):
        options["maxRecordsPerTrigger"] = str(limit)
    start = partial(MergedQuery, source, tmp_path, is_plain=is_plain, **options)
    query, deaths, losses = start("first"), 0, 0
    for moment in range(40):
        kills(dice=dice, chance=dice.choice([0.0, 0.3]))
        try:
            query.step()
        except Death:
            deaths += 1
            query.restart()
        source.write(dice.choice([0, 2, 5]), seed=f"{seed} {moment}")
        if dice.random() < 0.1:
            source.split(dice.randrange(9))
        if moment in (12, 25) and query.done == len(query.log):
            source.lose()
            losses += 1
            query.restart()
        if moment == 32:
            # Another query repairs the same table.
            query = start("second")
    kills(dice=None)
    query.restart().drain()
    assert query.snapshot["over"]
    assert deaths + losses > 1
    check_equal(query.table, source)


class TestRefusals:
    def test_batch_that_was_planned_and_expired_says_what_to_do(self, source, tmp_path):
        source.write(40)
        query = MergedQuery(source, tmp_path, maxRecordsPerTrigger="5", **RESNAPSHOT)
        query.drain()
        source.write(20, seed="more")
        assert query.plan()  # the process dies before the sink
        source.lose()
        with pytest.raises(SourceError, match=r"CHECKPOINT_EXPIRED.*startingPosition=snapshot"):
            query.restart().step()
        second = MergedQuery(source, tmp_path, "second")
        second.drain()
        check_equal(second.table, source)

    @pytest.mark.parametrize("steps", [1, 4])
    def test_checkpoint_that_comes_when_rows_were_merged_without_it(self, source, tmp_path, steps):
        """The table does not know the query of the checkpoint, so nobody knows what it contains."""
        source.write(40)
        query = MergedQuery(source, tmp_path, passes_checkpoint=False, **SMALL)
        for _ in range(steps):
            query.step()
        query.passes_checkpoint = True
        with pytest.raises(MulticloudDbError, match=r"does not contain what the query|has no mark"):
            query.drain()

    def test_checkpoint_without_the_batch(self, tmp_path, path):
        checkpoint = make_checkpoint(tmp_path / "one", "query-1")
        with pytest.raises(MulticloudDbError, match=r"has no offsets/9"):
            merge_into_delta(rows(("a", 1, {})), 9, path, "one", checkpoint=checkpoint)
        with pytest.raises(MulticloudDbError, match="checkpoint: must be given together with batch_id"):
            merge_into_delta(rows(("a", 1, {})), None, path, None, checkpoint=checkpoint)


class Merging:
    """A query whose checkpoint is written by hand, and its table."""

    def __init__(self, folder, name="query"):
        self.table, self.name, self.number = folder / "table", name, 0
        self.checkpoint = make_checkpoint(folder / name)
        self.passes_checkpoint = True

    def batch(self, changes, **scan):
        """Merge the next batch, which belongs to the snapshot with these fields in its offset."""
        write_offset(self.checkpoint, self.number, s={**SCAN, **scan})
        self.number += 1
        checkpoint = self.checkpoint if self.passes_checkpoint else None
        return merge_into_delta(changes, self.number - 1, self.table, self.name, checkpoint=checkpoint)


@pytest.fixture
def query(tmp_path):
    return Merging(tmp_path)


class TestBegin:
    def test_rows_below_the_floor_are_not_rewritten(self, query):
        merge_into_delta(rows(("a", 1, {}), ("b", 2, {})), 0, query.table, "older")
        before = DeltaTable(query.table).file_uris()
        query.batch(rows())
        assert DeltaTable(query.table).file_uris() == before
        query.batch(scanned("a", "b", "c"), over=True)
        before = DeltaTable(query.table).file_uris()
        query.batch(rows(), plan="later", floor="000020~")
        assert DeltaTable(query.table).file_uris() == before

    def test_rows_of_another_snapshot_than_that_of_the_checkpoint(self, query):
        query.batch(scanned("a"))
        with pytest.raises(MulticloudDbError, match=r"belongs to the snapshot p, but the batch .* of other"):
            query.batch(scanned("b", plan="other"))
        assert documents(query.table) == {"a": {"scan": "a"}}

    @pytest.mark.parametrize("is_separate", [True, False], ids=["own line", "same line"])
    def test_query_that_also_reads_another_source(self, query, is_separate):
        """The rows of the other source are not in the snapshot, so the sink would delete them."""
        query.batch(rows())
        offsets = query.checkpoint / "offsets" / "0"
        *lines, offset = offsets.read_text().splitlines()
        both = json.dumps({"one": offset, "other": json.loads(offset)})
        offsets.write_text("\n".join([*lines, *([offset, offset] if is_separate else [both])]))
        with pytest.raises(MulticloudDbError, match="a query that reads a snapshot and another source"):
            merge_into_delta(rows(("a", 1, {})), 0, query.table, "query", checkpoint=query.checkpoint)
        assert documents(query.table) == {}

    def test_checkpoint_that_comes_when_a_scan_without_rows_is_over(self, query):
        """The sink does not know what the table contained before the scan, so it leaves these rows alone."""
        query.passes_checkpoint = False
        query.batch(rows(), over=True)
        query.batch(rows(("early", 1, {"n": 1}), ("a", 11, {"n": 11})), over=True)
        query.passes_checkpoint = True
        query.batch(rows(("a", 12, {"n": 12})), over=True)
        assert documents(query.table) == {"early": {"n": 1}, "a": {"n": 12}}

    def test_table_that_was_dropped_after_the_scan(self, query):
        query.batch(rows())
        query.batch(scanned("a"), over=True)
        shutil.rmtree(query.table)
        for batch in (rows(), rows(("b", 11, {})), rows(("c", 12, {}))):
            with pytest.raises(MulticloudDbError, match=r"does not exist, but .* was dropped"):
                query.batch(batch, over=True)
        again = {"plan": "again", "floor": "000020~"}
        query.batch(rows(), **again)
        query.batch(scanned("a", **again), **again, over=True)
        assert documents(query.table) == {"a": {"scan": "a"}}

    def test_death_after_a_first_batch_of_which_no_change_can_be_decoded(self, query):
        write_offset(query.checkpoint, 0, s=SCAN, poison={"count": 1, "first": []})

        def merge():
            return merge_into_delta(rows(), 0, query.table, "query", checkpoint=query.checkpoint)

        stored = DeltaTarget.store

        def stores_and_dies(*given):
            stored(*given)
            raise Death

        with patch.object(DeltaTarget, "store", stores_and_dies), pytest.raises(Death):
            merge()
        assert not merge()
        assert DeltaTable(query.table).metadata().configuration["multiclouddb-snapshot:p"] == "0"


class TestEnd:
    def test_tombstone_that_is_older_than_the_snapshot_keeps_its_time(self, query):
        merge_into_delta(rows(("a", 1, {}), ("b", 2, None)), 0, query.table, "older")
        before = table_of(query.table)["b"]["_deleted_at"]
        query.batch(rows())
        query.batch(scanned("c"), over=True)
        assert table_of(query.table)["b"]["_deleted_at"] == before
        assert set(tombstones(query.table)) == {"a", "b"}

    def test_table_without_tombstones_gets_them(self, query):
        """An earlier version of the sink created the table, and the snapshot contains no rows."""
        schema = pa.schema([("key", pa.string()), ("order_key", pa.string()), ("n", pa.int64())])
        table = pa.Table.from_pylist([{"key": '{"id": "a"}', "order_key": "000001", "n": 1}], schema=schema)
        write_deltalake(query.table, table)
        query.batch(rows(), over=True)
        assert tombstones(query.table) == {"a": "000010~"}

    def test_happens_once(self, query):
        query.batch(scanned("a"), over=True)
        version = DeltaTable(query.table).version()
        assert not query.batch(rows(), over=True)
        assert DeltaTable(query.table).version() == version
        query.batch(rows(("a", 11, {"n": 11})), over=True)
        assert DeltaTable(query.table).version() == version + 1
        merge_into_delta(rows(("late", 1, {"n": 1})), None, query.table, None)
        query.batch(rows(("a", 12, {"n": 12})), over=True)
        assert documents(query.table) == {"a": {"n": 12}, "late": {"n": 1}}

    def test_table_that_is_partitioned(self, query):
        """A document that the snapshot did not contain keeps its partition, and loses its other columns."""
        schema = rows().schema
        kept = [schema.field(name) for name in ("key", "order_key", "timestamp", "new_item_state")]
        DeltaTable.create(query.table, pa.schema([*kept, ("day", pa.string())]), partition_by="day")
        batch = rows(("a", 1, {"n": 1}), ("gone", 2, {"n": 2}))
        merge_into_delta(batch.append_column("day", pa.array(["mo", "tu"])), 0, query.table, "older")
        query.batch(rows())
        query.batch(scanned("a").append_column("day", pa.array(["we"])), over=True)
        assert documents(query.table) == {"a": {"scan": "a"}}
        found = {key: (row["day"], row["new_item_state"]) for key, row in table_of(query.table).items()}
        assert found == {"a": ("we", '{"scan": "a"}'), "gone": ("tu", None)}


def test_tombstones_stay_until_a_batch_after_the_scan_is_completed(query):
    def drop():
        return drop_tombstones(query.table, timedelta(0), checkpoint=query.checkpoint)

    query.batch(rows(("a", 11, None)))
    assert drop() == 0
    commits = query.checkpoint / "commits"
    (commits / "0").touch()
    assert drop() == 0
    query.batch(scanned("b"), over=True)
    assert drop() == 0
    (commits / "1").touch()
    assert drop() == 1
