"""Tests the errors of the sink: each invalid input causes one clear error, and nothing is written."""

import json
import random
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from multiclouddb_api import (
    ErrorCategory,
    MulticloudDbError,
)
from multiclouddb_spi.faults import key_digest
from multiclouddb_tables.changes import LACKS_STATE, lacks_state
from pyspark_multiclouddb import live_rows, merge_into_delta

from .micro_batches import LOST, apply, documents, random_changes, rows, table_of, with_columns

GOOD = rows(("a", 1, {"n": 1}))
LATER = rows(("a", 2, {"n": 2}))
NANOS, LONG = pa.timestamp("ns"), pa.decimal256(60, 10)
UNKNOWN = "whose type is not CREATE, UPDATE or DELETE"


def added(batch, name, values, kind=None):
    return batch.append_column(name, pa.array(values, kind))


def refused(path, batch, *parts, category=ErrorCategory.INVALID_REQUEST, **more):
    version = DeltaTable(path).version() if path.exists() else None
    with pytest.raises(MulticloudDbError) as caught:
        merge_into_delta(batch, **{"batch_id": 0, "table_path": path, "app_id": "app", **more})
    assert caught.value.detail.category == category
    assert [part for part in parts if part not in str(caught.value)] == []
    assert (DeltaTable(path).version() if path.exists() else None) == version


class TestRefused:
    def test_folder_that_cannot_be_written(self):
        nowhere = Path("/proc/self/table")  # not even root can write there
        refused(nowhere, GOOD, str(nowhere), category=ErrorCategory.PERMANENT_FAILURE)

    @pytest.mark.parametrize(
        ("fields", "parts"),
        [
            ({"id": pa.string()}, ("has no column key", "give a table of a sink")),
            ({"key": pa.int64()}, ("column key: is string in the batch and long in",)),
        ],
    )
    def test_table_of_another_form(self, path, fields, parts):
        DeltaTable.create(path, pa.schema([*fields.items(), ("order_key", pa.string())]))
        refused(path, GOOD, *parts)

    @pytest.mark.parametrize(
        ("batch", "part"),
        [
            (with_columns(GOOD, key=[7]), "column key: is int64"),
            (with_columns(GOOD, order_key=[7]), "column order_key: is int64"),
            (with_columns(GOOD, type=[7]), UNKNOWN),
            (added(GOOD, "KEY", [1]), "column KEY: differs from"),
            (added(GOOD, "_Deleted_At", [1]), "only in upper and lower case"),
            (added(added(GOOD, "Total", [1]), "TOTAL", [2]), "column TOTAL: differs from the column Total"),
            (added(GOOD, "_deleted_at", [None], pa.string()), "rename yours"),
        ],
        ids=range(7),
    )
    def test_batch(self, path, batch, part):
        refused(path, batch, part)
        assert not path.exists()

    def test_clash_with_a_column_of_the_table(self, path):
        merge_into_delta(added(added(GOOD, "n", [1]), "Total", [1]), 0, path, "app")
        refused(path, added(LATER, "n", ["1"]), "column n: is string in the batch and long", "cast")
        parts = ("column total", "column Total", "upper and lower case")
        refused(path, added(LATER, "total", [2]), *parts, new_columns="add")
        with pytest.raises(MulticloudDbError, match=r"columns: .* has no column total; choose among key, "):
            live_rows(path, ["key", "total"])

    @pytest.mark.parametrize(
        "kind",
        [NANOS, pa.timestamp("ns", "UTC"), pa.struct([("at", NANOS)]), pa.duration("us"), pa.float16(), LONG],
        ids=str,
    )
    @pytest.mark.parametrize("exists", [False, True])
    def test_type_that_a_table_cannot_store(self, path, kind, exists):
        """deltalake creates a table with nanoseconds, but cannot read this table again."""
        if exists:
            merge_into_delta(GOOD, 0, path, "app")
        batch = added(LATER, "n", [None], kind)
        refused(path, batch, "column n", "which a Delta table cannot store", new_columns="add")
        assert exists == path.exists()

    def test_texts_and_bytes_that_are_views_are_stored_as_others(self, path):
        given = {"key": pa.string_view(), "new_item_state": pa.string_view(), "b": pa.binary_view()}
        for number, batch in enumerate((GOOD, added(LATER, "b", [b"x"]))):
            fields = [pa.field(each.name, given.get(each.name, each.type)) for each in batch.schema]
            batch = pa.Table.from_arrays(
                [column.cast(field.type) for column, field in zip(batch.columns, fields, strict=True)],
                schema=pa.schema(fields),
            )
            merge_into_delta(batch, number, path, "app", new_columns="add")
        [row] = live_rows(path).read_all().to_pylist()
        assert (json.loads(row["new_item_state"]), row["b"]) == ({"n": 2}, b"x")

    @pytest.mark.parametrize("kind", [pa.list_(pa.string_view()), pa.struct([("at", pa.binary_view())])])
    def test_type_of_which_pyarrow_cannot_choose_rows(self, path, kind):
        refused(path, added(GOOD, "n", [None], kind), "column n", "cast it")

    @pytest.mark.parametrize(
        ("given", "part"),
        [
            ({"batch_id": None}, "batch_id: must be given together with app_id"),
            ({"app_id": None}, "batch_id: must be given together with app_id"),
            ({"max_bytes": 0}, "max_bytes"),
            ({"new_columns": "maybe"}, "new_columns"),
        ],
    )
    def test_arguments(self, path, given, part):
        refused(path, GOOD, part, **given)


class TestNewColumns:
    def test_may_have_any_name_and_are_added_only_when_asked(self, path):
        names = ["a`b", "`", "a.b", "a b", "a'b", 'a"b', "Total", "s", "select", "é\n"]

        def batch(number, *changes):
            made = rows(*changes)
            for name in names:
                made = added(made, name, [number, -number])
            return made

        merge_into_delta(rows(("a", 1, {}), ("b", 1, {})), 0, path, "app")
        refused(path, added(LATER, "n", [1]), "columns that", ": n;", "new_columns='add'")
        for number in (1, 2):
            changes = batch(number, ("a", number + 1, {}), ("c", number, {}))
            assert merge_into_delta(changes, number, path, "app", new_columns="add")
        # A column that a batch does not have is null after its changes, and keeps its values in other rows.
        merge_into_delta(rows(("c", 9, {})), 3, path, "app")
        found = {key: {row[name] for name in names} for key, row in table_of(path).items()}
        assert found == {"a": {2}, "b": {None}, "c": {None}}

    def test_time_of_another_time_zone_is_stored_in_utc(self, path):
        moment = datetime(2026, 1, 2, 3, tzinfo=UTC)
        for number, (batch, zone) in enumerate([(GOOD, "Asia/Tokyo"), (LATER, "UTC")]):
            merge_into_delta(added(batch, "at", [moment], pa.timestamp("us", tz=zone)), number, path, "app")
        [row] = live_rows(path).read_all().to_pylist()
        assert (row["at"], row["order_key"]) == (moment, "000002")

    def test_table_without_tombstones_gets_them(self, path):
        """The sink adds the column for tombstones to a table that an earlier version of the sink created."""
        names = ("key", "order_key", "new_item_state")
        DeltaTable.create(path, pa.schema([(name, pa.string()) for name in names]))
        batch = rows(("a", 1, {"n": 1}), ("b", 2, None)).drop_columns("timestamp")
        merge_into_delta(batch, 0, path, "app")
        assert documents(path) == {"a": {"n": 1}}
        assert DeltaTable(path).count() == 2


def test_sink_works_where_there_is_no_pyspark(path):
    program = f"""
import sys
sys.modules["pyspark"] = None
import pyarrow as pa
from pyspark_multiclouddb import live_rows, merge_into_delta
batch = pa.table(dict(key=["a", "b"], order_key=["1", "2"], type=["CREATE", "DELETE"]))
batch = batch.append_column("event_id", batch["key"]).append_column("backfilled", pa.array([False] * 2))
assert merge_into_delta(batch, None, {str(path)!r}, None, source="mongo:shop/orders")
print(live_rows({str(path)!r}).read_all().to_pylist())
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stdout == "[{'key': 'a', 'order_key': '1'}]\n", ran.stderr


def keep(path, *changes):
    return merge_into_delta(rows(*changes), None, path, None, missing_state="keep")


def stale(path):
    return {key for key, row in table_of(path).items() if row["_stale_since"] is not None}


class TestRefuse:
    def test_nothing_of_the_batch_is_written(self, spark, path):
        merge_into_delta(rows(("a", 1, {"v": 1})), None, path, None)
        version = DeltaTable(path).version()
        batch = spark.createDataFrame(rows(("b", 3, {"v": 3}), ("a", 2, LOST), ("c", 4, LOST)))
        named = key_digest('{"id": "a"}')
        with pytest.raises(MulticloudDbError, match=f"2 changes .*{named}.*REQUIRE") as caught:
            merge_into_delta(batch, 0, path, "app", max_bytes=1)
        assert caught.value.category == ErrorCategory.INVALID_REQUEST
        assert DeltaTable(path).version() == version
        assert documents(path) == {"a": {"v": 1}}

    def test_only_the_last_change_of_a_key_counts(self, path):
        batch = rows(("a", 1, LOST), ("a", 2, {"v": 2}), ("b", 3, LOST), ("b", 4, None))
        merge_into_delta(batch, None, path, None)
        assert documents(path) == {"a": {"v": 2}}

    def test_batch_without_documents(self, path):
        assert merge_into_delta(rows(("a", 1, LOST)).drop_columns("new_item_state"), None, path, None)

    def test_wrong_argument_and_column(self, path):
        with pytest.raises(MulticloudDbError, match="missing_state: is 'drop'"):
            merge_into_delta(rows(), None, path, None, missing_state="drop")
        batch = rows(("a", 1, {})).append_column("_stale_since", pa.array([1]))
        with pytest.raises(MulticloudDbError, match="has a column _stale_since"):
            merge_into_delta(batch, None, path, None)


class TestKeep:
    def test_row_keeps_its_document_and_its_order_key_moves(self, spark, path):
        merge_into_delta(rows(("a", 1, {"v": 1}), ("b", 2, {"v": 2})), None, path, None)
        batch = spark.createDataFrame(rows(("a", 5, LOST), ("c", 6, LOST), ("d", 7, {"v": 7})))
        assert merge_into_delta(batch, None, path, None, missing_state="keep", max_bytes=1)
        found = {key: (row["new_item_state"], row["order_key"]) for key, row in table_of(path).items()}
        assert found == {
            "a": ('{"v": 1}', "000005"),
            "b": ('{"v": 2}', "000002"),
            "c": (None, "000006"),
            "d": ('{"v": 7}', "000007"),
        }
        assert stale(path) == {"a", "c"}
        merge_into_delta(rows(("a", 4, {"v": 4})), None, path, None)
        assert table_of(path)["a"]["new_item_state"] == '{"v": 1}'
        assert stale(path) == {"a", "c"}

    def test_the_time_of_the_first_is_kept(self, path):
        keep(path, ("a", 1, LOST))
        first = table_of(path)["a"]["_stale_since"]
        keep(path, ("a", 2, LOST))
        assert table_of(path)["a"]["_stale_since"] == first is not None

    def test_against_a_model_with_replays(self, path):
        dice, model, last, lost = random.Random(3), {}, {}, set()
        for number in range(6):
            batch = [
                (key, order, LOST if document and dice.random() < 0.3 else document)
                for key, order, document in random_changes(dice, number * 50, 50)
            ]
            for key, order, document in {change[0]: change for change in batch}.values():
                last[key] = f"{order:06d}"
                (lost.add if document == LOST else lost.discard)(key)
                if document != LOST:
                    apply(model, [(key, order, document)])
                else:
                    model.setdefault(key)
            for _ in range(dice.choice([1, 2])):
                keep(path, *batch)
            found = table_of(path)
            live = {key: row["new_item_state"] for key, row in found.items() if row["_deleted_at"] is None}
            assert {key: state and json.loads(state) for key, state in live.items()} == model
            assert stale(path) == lost
            assert {key: row["order_key"] for key, row in found.items()} == last


def test_the_condition_in_sql_and_in_arrow_say_the_same(spark):
    table = rows(("a", 1, LOST), ("b", 2, {"v": 1}), ("c", 3, None))
    assert lacks_state(table).to_pylist() == [True, False, False]
    assert [row.key for row in spark.createDataFrame(table).where(LACKS_STATE).collect()] == ['{"id": "a"}']
