"""Tests that the sink finds the last change of each key and merges idempotently into a Delta table.

An older change may arrive after a newer one in many ways; tombstones keep it away, until they are removed.
"""

import json
import logging
import random
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Barrier
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.table import TableAlterer, TableMerger

from multiclouddb_api import (
    ErrorCategory,
    MulticloudDbError,
)
from multiclouddb_spi.sink_rules import PLACES, Scan, SinkTable
from pyspark_multiclouddb import drop_tombstones, latest_by_key, live_rows, merge_into_delta
from pyspark_multiclouddb.columns import ROW_SCHEMA
from pyspark_multiclouddb.delta import DeltaStorage

from .micro_batches import (
    Killed,
    apply,
    documents,
    make_checkpoint,
    notes_of,
    random_changes,
    rows,
    table_of,
    tombstones,
    with_columns,
    write_offset,
)
from .test_source import run_sink


class TestLatestByKey:
    @pytest.mark.parametrize(
        ("changes", "last"),
        [
            ([], []),
            ([("a", 1, {})], ["a@1"]),
            # An event that came twice is one row; the highest `order_key` wins in any order of the rows.
            ([("a", 1, {}), ("a", 1, {})], ["a@1"]),
            ([("b", 3, {}), ("a", 9, None), ("a", 10, {"n": 1}), ("b", 2, {"n": 2})], ["b@3", "a@10"]),
            # Rows keep their order.
            ([("d", 1, {}), ("b", 4, {}), ("c", 2, {}), ("b", 3, {})], ["d@1", "b@4", "c@2"]),
        ],
    )
    def test_last_changes(self, changes, last):
        table = latest_by_key(rows(*changes))
        assert table["event_id"].to_pylist() == last
        assert table.schema.equals(ROW_SCHEMA)

    def test_missing_order_key_counts_as_the_highest(self):
        table = rows(("a", 1, {}), ("a", 2, {}), ("a", 3, {}))
        table = with_columns(table, order_key=["000001", None, "9"])
        assert latest_by_key(table)["event_id"].to_pylist() == ["a@2"]

    @pytest.mark.parametrize("keys", [300, 100_000])
    def test_against_a_model(self, keys):
        dice = random.Random(1)
        changes = random_changes(dice, 0, 5000, keys=keys)
        model = {key: f"{key}@{order}" for key, order, _ in changes}
        dice.shuffle(changes)
        chunks = [rows(*changes[start : start + 700]) for start in range(0, 5000, 700)]
        got = latest_by_key(pa.concat_tables(chunks))
        assert sorted(got["event_id"].to_pylist()) == sorted(model.values())


class TestMergeIntoDelta:
    def test_empty_batch_makes_no_table(self, path):
        assert not merge_into_delta(rows(), 0, path, "app")
        assert not path.exists()

    def test_columns(self, path):
        def columns(batch, name):
            merge_into_delta(batch, 0, path / name, "app")
            return [field.name for field in DeltaTable(path / name).schema().fields]

        batch = rows(("a", 1, {"n": 1}))
        assert columns(batch, "a") == ["key", "timestamp", "new_item_state", "order_key", "_deleted_at"]
        names = ["type", "key", "order_key", "event_id", "backfilled", *PLACES]
        batch = batch.select(names).append_column("n", pa.array([1]))
        assert columns(batch, "b") == ["key", "order_key", "n", "_deleted_at"]
        with pytest.raises(MulticloudDbError, match="batch: has no column order_key"):
            columns(batch.drop_columns("order_key"), "c")

    def test_frame_of_a_session_in_another_time_zone(self, spark, path):
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        try:
            frame = spark.createDataFrame(rows(("a", 1, {"n": 1})))
            assert merge_into_delta(frame, 0, path, "app")
            assert merge_into_delta(frame.limit(1), 1, path, "app")
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
        assert merge_into_delta(rows(("b", 2, {"n": 2})), 2, path, "app")
        assert documents(path) == {"a": {"n": 1}, "b": {"n": 2}}


class TestPrunedFiles:
    """A merge reads only the files that can contain its keys, and never skips such a file."""

    def test_neighbouring_keys_are_merged_without_the_other_files(self, path):
        for first in range(0, 800, 100):
            merge_into_delta(rows(*((f"k{first + n:04d}", 1, {}) for n in range(100))), None, path, None)
        assert len(DeltaTable(path).file_uris()) == 8
        merge_into_delta(rows(*((f"k{number:04d}", 2, {}) for number in range(310, 320))), None, path, None)
        found = DeltaTable(path).history(1)[0]["operationMetrics"]
        assert found["num_target_files_scanned"] == 1
        assert found["num_target_files_skipped_during_scan"] == 7
        assert found["num_target_rows_updated"] == 10

    def test_keys_of_any_length_and_script_are_found_again(self, path):
        """Delta truncates the statistics of long texts, and cannot round up a text of the highest
        character."""
        dice, model = random.Random(3), {}
        ends = ["", "a", "é", "\uffff", "\U0010ffff", "\U0010ffff" * 40, "z" * 300, "\U0010fffe"]
        heads = ("", "a", "\U0010ffff", "ü")
        names = sorted({head * many + end for head in heads for many in (1, 63, 200) for end in ends})
        for batch in range(15):
            first = dice.randrange(len(names))
            keys = dice.choices(names[first : first + 8], k=20)
            drawn = random_changes(dice, batch * 100, 20)
            changes = [(name, *rest) for name, (_, *rest) in zip(keys, drawn, strict=True)]
            apply(model, changes)
            texts = [json.dumps({"id": name}, ensure_ascii=False) for name in keys]
            merge_into_delta(with_columns(rows(*changes), key=texts), None, path, None)
        assert documents(path) == model
        assert model.keys() <= table_of(path).keys()


def test_replay_whose_number_was_lost(path):
    """A merge that changes nothing does not commit, so the number of its batch is not stored."""
    merge_into_delta(rows(("a", 1, {"n": 1}), ("b", 2, None)), 0, path, "app")
    version = DeltaTable(path).version()
    for number in range(1, 3):
        assert merge_into_delta(rows(("a", 1, {"n": 1}), ("b", 1, {})), number, path, "app")
    assert (DeltaTable(path).version(), DeltaTable(path).transaction_version("app")) == (version, 0)


class TestCleaning:
    def test_only_old_tombstones_go_and_the_number_of_the_last_batch_stays(self, path):
        before = datetime.now(UTC)
        merge_into_delta(rows(("a", 1, {"n": 1}), ("b", 2, None), ("c", 3, None)), 4, path, "app")
        for lifetime in (timedelta(hours=1), timedelta(days=365 * 2_000), timedelta.max):
            assert drop_tombstones(path, lifetime) == 0
        assert drop_tombstones(path) == 0
        assert drop_tombstones(path, datetime.now(UTC) - before + timedelta(hours=1)) == 0
        assert tombstones(path).keys() == {"b", "c"}
        assert drop_tombstones(path, timedelta(0)) == 2
        assert tombstones(path) == {}
        assert documents(path) == {"a": {"n": 1}}
        assert not merge_into_delta(rows(("b", 1, {})), 4, path, "app")

    def test_lifetime_begins_at_the_merge_and_a_replay_does_not_renew_it(self, path):
        merge_into_delta(rows(("b", 2, None)), None, path, None)
        first = table_of(path)["b"]["_deleted_at"]
        merge_into_delta(rows(("b", 2, None)), None, path, None)
        assert table_of(path)["b"]["_deleted_at"] == first

    def test_negative_lifetime_is_refused(self, path):
        with pytest.raises(MulticloudDbError, match="older_than: is negative"):
            drop_tombstones(path, timedelta(seconds=-1))

    @pytest.mark.parametrize("call", [drop_tombstones, live_rows])
    def test_missing_table(self, path, call):
        with pytest.raises(MulticloudDbError, match="there is no Delta table at") as caught:
            call(path)
        assert caught.value.detail.category == ErrorCategory.NOT_FOUND


A, B, C = rows(("a", 1, {"n": 1})), rows(("b", 2, {"n": 2})), rows(("c", 3, {"n": 3}))


@pytest.fixture
def first(tmp_path):
    return make_checkpoint(tmp_path / "first", "query-1", batches=8)


@pytest.fixture
def second(tmp_path):
    return make_checkpoint(tmp_path / "second", "query-2", batches=8)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_another_query_is_refused_under_the_same_app_id(path, first, second, number):
    """The numbers of a new checkpoint begin again; 0 and 1 would count as replays."""
    merge_into_delta(A, 0, path, "app", checkpoint=first)
    merge_into_delta(B, 1, path, "app", checkpoint=first)
    version = DeltaTable(path).version()
    assert version == 2, "number and query are one commit with the rows"
    with pytest.raises(MulticloudDbError, match=r"app_id: is 'app'.*after-an-outage") as caught:
        merge_into_delta(C, number, path, "app", checkpoint=second)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert DeltaTable(path).version() == version
    assert merge_into_delta(C, 0, path, "other", checkpoint=second)
    assert not merge_into_delta(C, 0, path, "other", checkpoint=second)
    assert documents(path) == {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}}


class TestOlderTable:
    """A table whose batch numbers were stored without the id of a query."""

    @pytest.mark.parametrize("number", [0, 4, 5])
    def test_no_batch_is_left_out_and_the_way_out_is_said_once(self, path, first, second, caplog, number):
        merge_into_delta(A, 4, path, "app")
        with caplog.at_level(logging.WARNING, "multiclouddb.spark"):
            assert merge_into_delta(B, number, path, "app", checkpoint=first)
            assert merge_into_delta(C, number + 1, path, "app", checkpoint=first)
        [said] = caplog.records
        assert "after-an-outage" in said.getMessage()
        assert documents(path) == {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}}
        assert not merge_into_delta(C, number + 1, path, "app", checkpoint=first)
        with pytest.raises(MulticloudDbError, match="app_id: is 'app'"):
            merge_into_delta(C, 0, path, "app", checkpoint=second)

    def test_process_that_dies_between_two_pieces(self, spark, path, first, kills):
        """The old number must not count for the new query while its batch is incomplete."""
        merge_into_delta(A, 4, path, "app")
        changes = rows(*((f"k{number}", number, {"n": number}) for number in range(10, 20)))

        def merge():
            frame = spark.createDataFrame(changes)
            return merge_into_delta(frame, 0, path, "app", checkpoint=first, max_bytes=1)

        kills(dice=SimpleNamespace(random=iter([1, 0, 1]).__next__), chance=0.5)  # at the second commit
        version = DeltaTable(path).version()
        with pytest.raises(Killed):
            merge()
        assert DeltaTable(path).version() > version
        kills(dice=None)
        assert merge()
        assert len(documents(path)) == 11


def test_commit_names_what_the_offset_says_is_left_out(path, first):
    poison = {"count": 2, "first": [["p0", "7"]]}
    write_offset(first, 1, poison=poison, warning="lost 5 to 7", lost=True)
    for number, change in enumerate((A, B, C)):
        merge_into_delta(change, number, path, "app", checkpoint=first)
    assert [json.loads(each) for each in notes_of(path, "poison")] == [poison]
    assert notes_of(path, "warning") == ["lost 5 to 7"]
    assert "multiclouddb.poison" in DeltaTable(path).history()[1]


def test_batch_of_which_nothing_can_be_decoded_is_noted_once(path, first):
    merge_into_delta(A, None, path, None)
    poison = {"count": 1, "first": [["p0", "sequence 4"]]}
    write_offset(first, 7, poison=poison)
    for _ in range(2):
        assert not merge_into_delta(rows(), 7, path, "app", checkpoint=first)
    assert [json.loads(each) for each in notes_of(path, "poison")] == [poison]


class TestWithoutAQuery:
    def test_table_or_page_is_left_out_by_its_number_alone(self, path, first):
        merge_into_delta(A, 4, path, "app")
        assert not merge_into_delta(B, 4, path, "app")
        merge_into_delta(B, 1, path, "other", checkpoint=first)
        assert not merge_into_delta(C, 1, path, "other")
        assert documents(path) == {"a": {"n": 1}, "b": {"n": 2}}

    def test_frame_that_no_query_runs(self, spark, path):
        frame = spark.createDataFrame(A)
        assert merge_into_delta(frame, 0, path, "app")
        assert not merge_into_delta(frame, 0, path, "app")

    def test_frame_of_connect_needs_the_checkpoint(self, spark, path, tmp_path, monkeypatch):
        frame = spark.createDataFrame(A)
        unknown = property(lambda session: (_ for _ in ()).throw(AttributeError("not over Connect")))
        monkeypatch.setattr(type(spark), "sparkContext", unknown)
        for checkpoint in (None, make_checkpoint(tmp_path / "no id", batches=1)):
            with pytest.raises(MulticloudDbError, match=r"app_id: .*pass checkpoint="):
                merge_into_delta(frame, 0, path, "app", checkpoint=checkpoint)
        assert merge_into_delta(frame, None, path, None)


def test_spark_with_a_new_checkpoint_directory_and_the_same_app_id(spark, source, path, tmp_path):
    """The refused query has merged nothing."""

    def run(name):
        def merge(frame, batch_id):
            if name == "second":
                with pytest.raises(MulticloudDbError, match="app_id: is 'app'"):
                    merge_into_delta(frame.toArrow(), batch_id, path, "app")
            merge_into_delta(frame, batch_id, path, "app")

        return run_sink(spark, source, tmp_path / name, merge)

    source.write(30)
    run("first")
    before = documents(path)
    assert before == source.documents
    source.write(30)
    with pytest.raises(Exception, match=r"INVALID_REQUEST.*app_id: is 'app'"):
        run("second")
    assert documents(path) == before


@pytest.fixture
def others(monkeypatch):
    """Return a list of actions of another process."""
    waiting = []

    def patched(original):
        def call(*args, **kwargs):
            if waiting:
                action, *rest = waiting
                waiting.clear()
                action()
                waiting.extend(rest)
            return original(*args, **kwargs)

        return call

    monkeypatch.setattr(TableMerger, "execute", patched(TableMerger.execute))
    monkeypatch.setattr(DeltaTable, "update", patched(DeltaTable.update))
    return waiting


def put(path, key, order):
    source = rows((key, order, {"n": order})).select(["key", "order_key", "new_item_state"])
    columns = {name: f"s.{name}" for name in source.column_names}
    merger = DeltaTable(path).merge(source, "s.key = t.key", source_alias="s", target_alias="t")
    merger.when_matched_update(columns).when_not_matched_insert(columns).execute()


class TestCommitOfAnother:
    """Another process commits between the preparation of a commit and the commit itself."""

    def test_removes_tombstones(self, path, others):
        merge_into_delta(rows(("a", 1, {}), ("b", 2, None)), 0, path, "app")
        others.append(lambda: DeltaTable(path).delete("_deleted_at IS NOT NULL"))
        assert merge_into_delta(rows(("a", 3, {"n": 3}), ("b", 4, {"n": 4})), 1, path, "app")
        assert others == []
        assert documents(path) == {"a": {"n": 3}, "b": {"n": 4}}
        assert DeltaTable(path).transaction_version("app") == 1

    def test_merges_the_same_new_key(self, path, others):
        """The other process writes `a` at 5. The older change does not win, and makes no second row."""
        merge_into_delta(rows(("z", 1, {})), 0, path, "app")
        others.append(lambda: put(path, "a", 5))
        assert merge_into_delta(rows(("a", 4, {"n": 4}), ("z", 9, None)), 1, path, "app")
        assert documents(path) == {"a": {"n": 5}}
        assert DeltaTable(path).count() == 2

    def test_adds_the_same_column(self, path, monkeypatch):
        merge_into_delta(rows(("a", 1, {})), 0, path, "app")
        add_columns = TableAlterer.add_columns

        def call(self, fields):
            monkeypatch.setattr(TableAlterer, "add_columns", add_columns)
            DeltaTable(path).alter.add_columns(fields)
            add_columns(self, fields)

        monkeypatch.setattr(TableAlterer, "add_columns", call)
        batch = rows(("a", 2, {"n": 2})).append_column("n", pa.array([2]))
        assert merge_into_delta(batch, 1, path, "app", new_columns="add")
        assert DeltaTable(path).to_pyarrow_table()["n"].to_pylist() == [2]

    def test_at_the_begin_and_at_the_end_of_a_snapshot(self, path, others):
        merge_into_delta(rows(("a", 5, {}), ("gone", 6, {})), 0, path, "older")
        target = SinkTable(DeltaStorage(str(path), create=True, new_columns="refuse"), "sink")
        others.append(lambda: put(path, "b", 7))
        target.begin(Scan("plan", "000000", is_first=True, was_over=False, is_over=False))
        merge_into_delta(rows(("a", 0, {"scan": "a"}), ("b", 0, {"scan": "b"})), None, path, None)
        others.append(lambda: put(path, "later", 9))
        target.end(Scan("plan", "000000", is_first=False, was_over=False, is_over=True))
        assert others == []
        assert documents(path) == {"a": {"scan": "a"}, "b": {"scan": "b"}, "later": {"n": 9}}
        assert tombstones(path) == {"gone": "000000"}

    def test_at_every_attempt_is_a_conflict(self, path, others, monkeypatch):
        merge_into_delta(rows(("a", 1, {})), 0, path, "app")
        others.extend(partial(put, path, "a", 100 + number) for number in range(50))
        monkeypatch.setattr("multiclouddb_verify.delta._PATIENCE_SECONDS", 0.0)
        with pytest.raises(MulticloudDbError, match="let them commit less often") as caught:
            merge_into_delta(rows(("a", 200, {"n": 200})), 1, path, "app")
        assert caught.value.detail.category == ErrorCategory.CONFLICT
        assert caught.value.detail.retryable
        assert DeltaTable(path).transaction_version("app") == 0
        others.clear()
        assert merge_into_delta(rows(("a", 200, {"n": 200})), 1, path, "app")
        assert documents(path) == {"a": {"n": 200}}


class TestThreads:
    def test_two_queries_and_cleaning_in_one_process_never_refuse_each_other(self, path, monkeypatch):
        """Each commit may fail once, because its thread does not know the latest version of the table."""
        waits = []
        clock = SimpleNamespace(sleep=waits.append, monotonic=time.monotonic)
        monkeypatch.setattr("multiclouddb_verify.delta.time", clock)
        together = Barrier(3)
        merge_into_delta(rows(("seed", 1, {"n": 1})), None, path, None)

        def query(name):
            for number in range(8):
                together.wait(60)
                changes = [(f"k{key}", number * 10 + name, {"n": number * 10 + name}) for key in range(5)]
                own = (f"{name} {number}", number, None)
                merge_into_delta(rows(*changes, own), number, path, str(name))

        def clean():
            for _ in range(8):
                together.wait(60)
                drop_tombstones(path, timedelta(0))

        with ThreadPoolExecutor(3) as threads:
            for each in [threads.submit(query, 1), threads.submit(query, 2), threads.submit(clean)]:
                each.result()
        last = {"n": 72}
        assert documents(path) == {"seed": {"n": 1}} | dict.fromkeys((f"k{key}" for key in range(5)), last)
        assert {DeltaTable(path).transaction_version(name) for name in ("1", "2")} == {7}
        assert len(waits) <= 3 * 8
