"""Tests that the sink finds the last change of each key and merges idempotently into a Delta table.

An older change may arrive after a newer one in many ways; tombstones keep it away, until they are removed.
"""

import json
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from urllib.parse import unquote

import attrs
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.table import TableAlterer, TableMerger

from multiclouddb_api import (
    BackfillDone,
    ErrorCategory,
    MulticloudDbError,
    ResourceAddress,
    SnapshotStarted,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_conformance.sink_harness import events, page
from multiclouddb_spi import encode_partition_id
from multiclouddb_tables.batch import MergedSnapshot
from multiclouddb_tables.delta import DeltaTarget
from multiclouddb_tables.merging import MergeRules
from multiclouddb_tables.rules import PLACES
from pyspark_multiclouddb import (
    drop_tombstones,
    latest_by_key,
    live_rows,
    merge_into_delta,
    remove_history,
)
from pyspark_multiclouddb.source_columns import ROW_SCHEMA

from .micro_batches import (
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
    def test_empty_batch_makes_the_table_only_if_it_is_the_first(self, path):
        assert not merge_into_delta(rows(), None, path, None)
        assert not path.exists()
        assert not merge_into_delta(rows(), 0, path, "app")
        assert DeltaTable(path).to_pyarrow_dataset().count_rows() == 0

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


def test_file_with_more_rows_than_deltalake_reads_at_once(path):
    """Versions of deltalake number its rows once for each part that they read, and take two rows for one."""
    for order in (1, 2):
        assert merge_into_delta(
            rows(*((f"k{n}", order, {"n": order}) for n in range(20_000))), None, path, None
        )
    assert documents(path) == {f"k{n}": {"n": 2} for n in range(20_000)}


class TestPrunedFiles:
    """A merge reads only the files that can contain its keys, and never skips such a file."""

    def test_neighbouring_keys_are_merged_without_the_other_files(self, path):
        for first in range(0, 800, 100):
            merge_into_delta(
                rows(*((f"k{first + n:04d}-order", 1, {}) for n in range(100))), None, path, None
            )
        assert len(DeltaTable(path).file_uris()) == 8
        merge_into_delta(
            rows(*((f"k{number:04d}-order", 2, {}) for number in range(310, 320))), None, path, None
        )
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


class TestStatistics:
    """Other writers, and older versions of deltalake, write other statistics of a file, or fewer."""

    @pytest.mark.parametrize("lacks", [["nullCount"], ["nullCount", "numRecords"], ["minValues"]])
    def test_live_rows_of_a_file_with_fewer(self, path, lacks):
        batch = rows(("a", 1, {"n": 1}), ("b", 2, None), ("c", 3, {}))
        merge_into_delta(batch, 0, path, "app")
        for entry in (path / "_delta_log").glob("*.json"):
            actions = [json.loads(line) for line in entry.read_text().splitlines()]
            for each in actions:
                if "add" in each:
                    stats = json.loads(each["add"]["stats"])
                    assert stats["nullCount"]["_deleted_at"] in (0, 2, 3)
                    each["add"]["stats"] = json.dumps({k: v for k, v in stats.items() if k not in lacks})
            entry.write_text("".join(json.dumps(each) + "\n" for each in actions))
        live = live_rows(path, ["key"]).read_all()
        assert live.schema.names == ["key"]
        assert sorted(live["key"].to_pylist()) == batch["key"].take([0, 2]).to_pylist()
        assert live_rows(path, ["_deleted_at", "key", "_deleted_at"]).read_all().num_rows == 2

    def test_a_list_with_as_many_nulls_as_there_are_rows_is_no_null(self, path):
        lists = [[None, 1], [None]]
        batch = rows(("a", 1, {}), ("b", 1, {})).append_column("list", pa.array(lists, pa.list_(pa.int64())))
        merge_into_delta(batch, 0, path, "app")
        assert live_rows(path, ["list"]).read_all()["list"].to_pylist() == lists
        states = [row["state"] for part in DeltaTarget(path).rows(own=["list"]) for row in part.to_pylist()]
        assert [json.loads(state)["list"] for state in states] == lists


class TestCleaning:
    def test_only_old_tombstones_go(self, path):
        before = datetime.now(UTC)
        merge_into_delta(rows(("a", 1, {"n": 1}), ("b", 2, None), ("c", 3, None)), 0, path, "app")
        for lifetime in (timedelta(hours=1), timedelta(days=365 * 2_000), timedelta.max):
            assert drop_tombstones(path, lifetime) == 0
        assert drop_tombstones(path) == 0
        assert drop_tombstones(path, datetime.now(UTC) - before + timedelta(hours=1)) == 0
        assert tombstones(path).keys() == {"b", "c"}
        assert drop_tombstones(path, timedelta(0)) == 2
        assert tombstones(path) == {}
        assert documents(path) == {"a": {"n": 1}}

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
def test_checkpoint_that_was_restored_or_copied_delivers_other_rows_under_old_numbers(path, first, number):
    for at, change in enumerate((A, B)):
        merge_into_delta(change, at, path, "app", checkpoint=first)
    assert merge_into_delta(C, number, path, "app", checkpoint=first)
    assert documents(path) == {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}}


class TestAnotherTable:
    """A query delivers each row once, so the table of another one lacks what it has delivered before."""

    def test_that_does_not_exist(self, path, first):
        problem = "delivered rows before, or began with a batch without rows that was not passed: pass every"
        with pytest.raises(MulticloudDbError, match=problem) as caught:
            merge_into_delta(B, 1, path, "app", checkpoint=first)
        assert caught.value.category == ErrorCategory.NOT_FOUND
        assert not path.exists()

    def test_of_another_query(self, path, first, second):
        merge_into_delta(A, 0, path, "app", checkpoint=first)
        version = DeltaTable(path).version()
        with pytest.raises(MulticloudDbError, match=r"does not contain what .*after-an-outage"):
            merge_into_delta(B, 1, path, "app", checkpoint=second)
        assert DeltaTable(path).version() == version
        assert merge_into_delta(B, 0, path, "app", checkpoint=second)
        assert merge_into_delta(C, 1, path, "app", checkpoint=second)

    def test_that_somebody_has_made_again(self, path, first):
        merge_into_delta(A, 0, path, "app", checkpoint=first)
        empty = DeltaTable(path).to_pyarrow_dataset().schema.empty_table()
        shutil.rmtree(path)
        write_deltalake(path, empty)
        with pytest.raises(MulticloudDbError, match="made again"):
            merge_into_delta(B, 1, path, "app", checkpoint=first)
        assert merge_into_delta(B, 1, path, "app", checkpoint=first, create="always")
        assert merge_into_delta(C, 2, path, "app", checkpoint=first)
        assert documents(path) == {"b": {"n": 2}, "c": {"n": 3}}

    @pytest.mark.parametrize("empty", [False, True])
    def test_without_a_checkpoint_the_numbers_of_a_query_begin_with_0(self, path, empty):
        """Who leaves out an empty first batch looks like the query of a table that was made again."""
        merge_into_delta(rows(("seed", 1, {})), None, path, None)
        version = DeltaTable(path).version()
        for _ in range(2):
            with pytest.raises(
                MulticloudDbError, match=r"first batch, number 0, was not passed.*checkpoint="
            ):
                merge_into_delta(A, 1, path, "app")
        assert DeltaTable(path).version() == version
        merge_into_delta(A.slice(0, 0) if empty else A, 0, path, "app")
        # It is stopped, killed and started again at any batch; the last ones come again.
        for number in (1, 1, 2, 0, 1, 2, 9):
            assert merge_into_delta(B, number, path, "app")
        with pytest.raises(MulticloudDbError, match="was not passed"):
            merge_into_delta(C, 1, path, "another app")
        assert documents(path).keys() == {"seed", "b"} | (set() if empty else {"a"})

    @pytest.mark.parametrize("number", [0, 1, 2])
    def test_offset_says_whether_a_row_was_delivered(self, path, first, number):
        """The first batches of a query may have no rows, and may not have come to the sink."""
        for at in range(number):
            write_offset(first, at, fresh=True)
        assert merge_into_delta(A, number, path, "app", checkpoint=first)
        assert documents(path) == {"a": {"n": 1}}


class TestRestored:
    """RESTORE takes back rows which no query delivers again."""

    def fill(self, path, first):
        versions = []
        for at, change in enumerate((A, B, C)):
            merge_into_delta(change, at, path, "app", checkpoint=first)
            versions.append(DeltaTable(path).version())
        return versions

    @pytest.mark.parametrize("then", [0, 1])
    @pytest.mark.parametrize("commits", [0, 40])
    def test_further_than_the_checkpoint_is_refused(self, path, first, then, commits):
        version = self.fill(path, first)[then]
        DeltaTable(path).restore(version)
        for _ in range(commits):
            write_deltalake(path, DeltaTable(path).to_pyarrow_dataset().schema.empty_table(), mode="append")
        with pytest.raises(MulticloudDbError, match=r"restored to an earlier version.*after-an-outage"):
            merge_into_delta(rows(("d", 4, {})), 3, path, "app", checkpoint=first)
        # With the checkpoint, the query delivers the rest again.
        for at, change in list(enumerate((A, B, C)))[then + 1 :]:
            assert merge_into_delta(change, at, path, "app", checkpoint=first)
        assert merge_into_delta(rows(("d", 4, {})), 3, path, "app", checkpoint=first)
        assert documents(path).keys() == {"a", "b", "c", "d"}

    def test_between_two_commits_of_a_batch_is_refused(self, path, first):
        """The first of them names the batch, and does not contain its rows."""
        merge_into_delta(A, 0, path, "app", checkpoint=first)
        wider = B.append_column("total", pa.array([1.5]))
        merge_into_delta(wider, 1, path, "app", checkpoint=first, new_columns="add")
        between = max(e["version"] for e in DeltaTable(path).history() if "PROPERTIES" in e["operation"])
        DeltaTable(path).restore(between)
        with pytest.raises(MulticloudDbError, match="restored to an earlier version"):
            merge_into_delta(C, 2, path, "app", checkpoint=first)
        assert merge_into_delta(wider, 1, path, "app", checkpoint=first, new_columns="add")
        assert merge_into_delta(C, 2, path, "app", checkpoint=first)
        assert documents(path).keys() == {"a", "b", "c"}

    def test_number_of_another_copy_of_the_checkpoint_proves_nothing(self, path, first):
        merge_into_delta(A, 0, path, "app", checkpoint=first)
        merge_into_delta(B, 1, path, "app", checkpoint=first)
        version = DeltaTable(path).version()
        # A copy of the checkpoint has another batch 1, which is longer.
        write_offset(first, 1, c={"p": 2})
        longer = pa.concat_tables([B, C])
        merge_into_delta(longer, 1, path, "app", checkpoint=first)
        DeltaTable(path).restore(version)
        with pytest.raises(MulticloudDbError, match="restored to an earlier version"):
            merge_into_delta(rows(("d", 4, {})), 2, path, "app", checkpoint=first)
        assert merge_into_delta(longer, 1, path, "app", checkpoint=first)
        assert merge_into_delta(rows(("d", 4, {})), 2, path, "app", checkpoint=first)
        assert documents(path).keys() == {"a", "b", "c", "d"}

    def test_before_the_query_began_is_refused(self, path, first):
        merge_into_delta(rows(("x", 1, {})), None, path, None)
        version = DeltaTable(path).version()
        self.fill(path, first)
        DeltaTable(path).restore(version)
        with pytest.raises(MulticloudDbError, match="does not contain what"):
            merge_into_delta(rows(("d", 4, {})), 3, path, "app", checkpoint=first)

    def test_pages_begin_a_snapshot_again(self, path):
        merge_into_delta(page(events(("a", 1, {}))), None, path, None)
        version = DeltaTable(path).version()
        merge_into_delta(page(events(("b", 2, {}))), None, path, None)
        DeltaTable(path).restore(version)
        later = attrs.evolve(page(events(("c", 3, {}))), resumed_from="token")
        with pytest.raises(MulticloudDbError, match="restored to an earlier version"):
            merge_into_delta(later, None, path, None)
        plan = encode_partition_id("provider", ResourceAddress("main", "orders"), "first", "snapshot:s")
        merge_into_delta(page([], SnapshotStarted("000010~", plan)), None, path, None)
        scan = events(("b", 0, {}), mark="snapshot:s:", backfilled=True, floor="000010~")
        scan = page(scan, BackfillDone(plan, "000010~"))
        merge_into_delta(attrs.evolve(scan, resumed_from="token"), None, path, None)
        assert documents(path) == {"b": {}}

    def test_takes_back_what_is_known_of_a_snapshot(self, path):
        """A snapshot that the table has forgotten begins again, and ends again."""
        merge_into_delta(page(events(("a", 1, {}), ("gone", 2, {}))), None, path, None)
        version = DeltaTable(path).version()
        plan = encode_partition_id("provider", ResourceAddress("main", "orders"), "first", "snapshot:s")
        scan = events(("a", 0, {"s": 1}), mark="snapshot:s:", backfilled=True, floor="000010~")
        pages = [page([], SnapshotStarted("000010~", plan)), page(scan, BackfillDone(plan, "000010~"))]
        for _ in range(2):
            for each in pages:
                merge_into_delta(each, None, path, None)
            assert documents(path) == {"a": {"s": 1}}
            DeltaTable(path).restore(version)


def test_commit_names_what_the_offset_says_is_left_out(path, first):
    poison = {"count": 2, "first": [["p0", "7"]]}
    write_offset(first, 1, poison=poison, warning="lost 5 to 7", lost=1)
    for number, change in enumerate((A, B, C)):
        merge_into_delta(change, number, path, "app", checkpoint=first)
    assert [json.loads(each) for each in notes_of(path, "poison")] == [poison]
    assert notes_of(path, "warning") == ["lost 5 to 7"]
    assert "multiclouddb.poison" in DeltaTable(path).history()[1]


def test_batch_of_which_nothing_can_be_decoded_is_noted(path, first):
    merge_into_delta(A, 0, path, "app", checkpoint=first)
    poison = {"count": 1, "first": [["p0", "sequence 4"]]}
    write_offset(first, 7, poison=poison)
    assert not merge_into_delta(rows(), 7, path, "app", checkpoint=first)
    assert [json.loads(each) for each in notes_of(path, "poison")] == [poison]


def test_batch_after_which_other_rows_exist_is_refused(path, first):
    merge_into_delta(A, 0, path, "app", checkpoint=first)
    write_offset(first, 1, gone=["main/orders was dropped"])
    version = DeltaTable(path).version()
    for batch in (B, rows()):
        with pytest.raises(MulticloudDbError, match=r"main/orders was dropped.*startingPosition=snapshot"):
            merge_into_delta(batch, 1, path, "app", checkpoint=first)
    assert DeltaTable(path).version() == version


class TestWithoutAQuery:
    def test_frame_of_connect_needs_the_checkpoint(self, spark, path, tmp_path, monkeypatch):
        frame = spark.createDataFrame(A)
        unknown = property(lambda session: (_ for _ in ()).throw(AttributeError("not over Connect")))
        monkeypatch.setattr(type(spark), "sparkContext", unknown)
        for checkpoint in (None, make_checkpoint(tmp_path / "no id", batches=1)):
            with pytest.raises(MulticloudDbError, match=r"app_id: .*pass checkpoint="):
                merge_into_delta(frame, 0, path, "app", checkpoint=checkpoint)
        assert merge_into_delta(frame, None, path, None)


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

        def call(self, fields, **settings):
            monkeypatch.setattr(TableAlterer, "add_columns", add_columns)
            DeltaTable(path).alter.add_columns(fields)
            add_columns(self, fields, **settings)

        monkeypatch.setattr(TableAlterer, "add_columns", call)
        batch = rows(("a", 2, {"n": 2})).append_column("n", pa.array([2]))
        assert merge_into_delta(batch, 1, path, "app", new_columns="add")
        assert DeltaTable(path).to_pyarrow_table()["n"].to_pylist() == [2]

    def test_restores_an_earlier_version(self, path, others):
        """The query does not deliver again what the table has lost by that."""
        merge_into_delta(rows(("a", 1, {"n": 1})), 0, path, "app")
        version = DeltaTable(path).version()
        merge_into_delta(rows(("b", 2, {"n": 2})), 1, path, "app")
        others.append(lambda: DeltaTable(path).restore(version))
        batch = rows(("c", 3, {"n": 3}))
        with pytest.raises(MulticloudDbError, match=r"restored.*try again") as caught:
            merge_into_delta(batch, 2, path, "app")
        assert (caught.value.category, caught.value.retryable) == (ErrorCategory.CONFLICT, True)
        with pytest.raises(MulticloudDbError, match="restored to an earlier version"):
            merge_into_delta(batch, 2, path, "app")
        assert documents(path) == {"a": {"n": 1}}

    def test_at_the_begin_and_at_the_end_of_a_snapshot(self, path, others):
        merge_into_delta(rows(("a", 5, {}), ("gone", 6, {})), 0, path, "older")
        target = MergeRules(DeltaTarget(path), "sink")
        others.append(lambda: put(path, "b", 7))
        target.begin(MergedSnapshot("plan", "000000", is_first=True, was_over=False, is_over=False))
        merge_into_delta(rows(("a", 0, {"scan": "a"}), ("b", 0, {"scan": "b"})), None, path, None)
        others.append(lambda: put(path, "later", 9))
        target.end(MergedSnapshot("plan", "000000", is_first=False, was_over=False, is_over=True))
        assert others == []
        assert documents(path) == {"a": {"scan": "a"}, "b": {"scan": "b"}, "later": {"n": 9}}
        assert tombstones(path) == {"gone": "000000"}

    def test_at_every_attempt_is_a_conflict(self, path, others, monkeypatch):
        merge_into_delta(rows(("a", 1, {})), 0, path, "app")
        others.extend(partial(put, path, "a", 100 + number) for number in range(50))
        monkeypatch.setattr("multiclouddb_tables.delta_log._PATIENCE_SECONDS", 0.0)
        with pytest.raises(MulticloudDbError, match="let them commit less often") as caught:
            merge_into_delta(rows(("a", 200, {"n": 200})), 1, path, "app")
        assert caught.value.detail.category == ErrorCategory.CONFLICT
        assert caught.value.detail.retryable
        others.clear()
        assert merge_into_delta(rows(("a", 200, {"n": 200})), 1, path, "app")
        assert documents(path) == {"a": {"n": 200}}


class TestThreads:
    def test_two_queries_and_cleaning_in_one_process_never_refuse_each_other(self, path, monkeypatch):
        """Each commit may fail once, because its thread does not know the latest version of the table."""
        waits = []
        clock = SimpleNamespace(sleep=waits.append, monotonic=time.monotonic)
        monkeypatch.setattr("multiclouddb_tables.delta_log.time", clock)
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
        assert len(waits) <= 3 * 8


@pytest.mark.parametrize("compacts", [False, True])
def test_a_person_whose_document_was_deleted_is_in_no_file_of_the_table(path, compacts):
    name = "a.forgotten@example.org"

    def holding(word):
        found = [each for each in path.rglob("*") if each.is_file() and word in each.read_bytes()]
        return sorted(str(each.relative_to(path)) for each in found)

    merge_into_delta(rows((name, 1, {"phone": "555-0199"}), ("b", 1, {})), None, path, None)
    if compacts:
        merge_into_delta(rows(("c", 1, {})), None, path, None)
        DeltaTable(path).optimize.compact()
        DeltaTable(path).create_checkpoint()
    merge_into_delta(rows((name, 2, None), ("b", 2, {})), None, path, None)
    assert drop_tombstones(path, timedelta(0)) == 1
    assert holding(b"forgotten")
    assert holding(b"555-0199")
    remove_history(path, timedelta(0))
    assert holding(b"forgotten") == holding(b"555-0199") == []
    merge_into_delta(rows(("b", 3, {"n": 3})), None, path, None)
    assert documents(path)["b"] == {"n": 3}


@pytest.mark.parametrize("age", [timedelta(0), timedelta(days=7)])
def test_the_history_of_a_table_that_is_around_another_one_stays(path, age):
    """A full VACUUM removes all files that are not of the table, also the log and the rows of another one."""
    inner = path / "inner"
    for each in (path, inner):
        merge_into_delta(rows(("a", 1, {}), ("b", 1, {})), None, each, None)
        merge_into_delta(rows(("a", 2, None)), None, each, None)
    refusal(ErrorCategory.INVALID_REQUEST, lambda: remove_history(path, age), "inner/_delta_log/", "beside")
    assert [documents(each).keys() for each in (path, inner)] == [{"b"}, {"b"}]
    assert DeltaTable(path).metadata().configuration.get("delta.logRetentionDuration") is None


def test_the_history_of_a_table_whose_folder_has_other_files_stays(path):
    merge_into_delta(rows(("a", 1, {}), ("b", 1, {})), None, path, None)
    merge_into_delta(rows(("a", 2, None)), None, path, None)
    for folder in ("checkpoint", "_checkpoint", ".checkpoint"):
        (path / folder).mkdir()
        (path / folder / "metadata").write_text("{}")
    refusal(
        ErrorCategory.INVALID_REQUEST,
        lambda: remove_history(path, timedelta(0)),
        "has files that are not of this table",
        "such as checkpoint/metadata",
    )
    shutil.rmtree(path / "checkpoint")
    remove_history(path, timedelta(0))
    assert (path / "_checkpoint" / "metadata").exists()
    assert (path / ".checkpoint" / "metadata").exists()


def test_a_storage_that_lists_folders_as_files_has_no_other_files(path, monkeypatch):
    """As S3 does for the folders that Hadoop makes there."""
    texts = [(name, pa.string()) for name in ("key", "order_key", "new_item_state", "country")]
    times = [(name, pa.timestamp("us", tz="UTC")) for name in ("timestamp", "_deleted_at")]
    DeltaTable.create(path, pa.schema([*texts, *times]), partition_by=["country"])
    for number in (1, 2):
        batch = rows(("a", number, {}), ("b", number, {}))
        merge_into_delta(
            batch.append_column("country", pa.array(["D E", None])), None, path, None, create="always"
        )
    vacuum, folders = DeltaTable.vacuum, ["country=D%20E", "country=__HIVE_DEFAULT_PARTITION__"]

    def listing(table, *arguments, **named):
        return [*vacuum(table, *arguments, **named), *(folders if named["dry_run"] else [])]

    monkeypatch.setattr(DeltaTable, "vacuum", listing)
    assert all((path / folder).is_dir() for folder in folders)
    remove_history(path, timedelta(0))
    assert DeltaTable(path).to_pyarrow_dataset().count_rows() == 2
    folders.append("empty")
    refusal(ErrorCategory.INVALID_REQUEST, lambda: remove_history(path, timedelta(0)), "such as empty")


@pytest.mark.parametrize("name", ["table", "100 % ü"])
@pytest.mark.parametrize("columns", [["key"], ["country", "key"]])
def test_the_name_of_an_empty_folder_holds_no_key_of_a_removed_row(tmp_path, name, columns):
    path = tmp_path / name
    texts = [(each, pa.string()) for each in ("key", "order_key", "new_item_state", "country")]
    times = [(each, pa.timestamp("us", tz="UTC")) for each in ("timestamp", "_deleted_at")]
    DeltaTable.create(path, pa.schema([*texts, *times]), partition_by=columns)

    def merge(*changes):
        batch = rows(*changes).append_column("country", pa.array(["D / E"] * len(changes)))
        merge_into_delta(batch, None, path, None, create="always")

    def folders():
        return sorted(unquote(each.name) for each in path.rglob("*=*") if each.is_dir())

    merge(("forgotten ü", 1, {}), ("b", 1, {"n": 1}))
    [folder] = path.rglob("key=*forgotten*")
    for file in folder.iterdir():  # as Hadoop writes it
        file.with_name(f".{file.name}.crc").write_bytes(b"crc")
    (path / "kept").mkdir()
    merge(("forgotten ü", 2, None))
    assert drop_tombstones(path, timedelta(0)) == 1
    remove_history(path)
    assert any("forgotten" in each for each in folders()), "its files are too young"
    remove_history(path, timedelta(0))
    outer = ["country=D / E"] if len(columns) == 2 else []
    assert folders() == [*outer, 'key={"id": "b"}']
    assert (path / "kept").is_dir()
    assert documents(path) == {"b": {"n": 1}}


def test_an_empty_folder_that_cannot_be_removed_is_told(path, monkeypatch):
    texts = [(each, pa.string()) for each in ("key", "order_key", "new_item_state")]
    times = [(each, pa.timestamp("us", tz="UTC")) for each in ("timestamp", "_deleted_at")]
    DeltaTable.create(path, pa.schema([*texts, *times]), partition_by=["key"])
    (path / "key=a").mkdir()

    def refuse(folder):
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr("os.rmdir", refuse)
    refusal(ErrorCategory.PERMANENT_FAILURE, lambda: remove_history(path), "permissions of its folder")


def test_history_that_is_young_enough_stays(path):
    merge_into_delta(rows(("a", 1, {})), None, path, None)
    merge_into_delta(rows(("a", 2, None)), None, path, None)
    files = DeltaTable(path, version=1).file_uris()
    remove_history(path)
    assert DeltaTable(path, version=1).file_uris() == files
    assert all(Path(each).exists() for each in files)
    assert (
        DeltaTable(path).metadata().configuration["delta.logRetentionDuration"] == "interval 604800 seconds"
    )
    with pytest.raises(MulticloudDbError, match=r"older_than: is negative"):
        remove_history(path, timedelta(days=-1))
    with pytest.raises(MulticloudDbError, match=r"there is no Delta table"):
        remove_history(path / "other")
