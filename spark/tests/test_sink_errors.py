"""Tests the errors of the sink: each invalid input causes one clear error, and nothing is written."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from multiclouddb_api import ErrorCategory, MulticloudDbError
from pyspark_multiclouddb import live_rows, merge_into_delta

from .tables import documents, rows, table_of, with_columns

GOOD = rows(("a", 1, {"n": 1}))
LATER = rows(("a", 2, {"n": 2}))
INCOMPLETE = "has rows without key, order_key or type"
UNKNOWN = "whose type is not CREATE, UPDATE or DELETE"


def added(batch, name, values, kind=None):
    return batch.append_column(name, pa.array(values, kind))


def refused(path, batch, *parts, category=ErrorCategory.INVALID_REQUEST, **more):
    version = DeltaTable(path).version() if path.exists() else None
    with pytest.raises(MulticloudDbError) as caught:
        merge_into_delta(batch, **{"batch_id": 1, "table_path": path, "app_id": "app", **more})
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
            ({"id": pa.string()}, ("has no column key", "give a table that this sink created")),
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
            (with_columns(GOOD, key=[None]).cast(GOOD.schema), INCOMPLETE),
            (with_columns(GOOD, order_key=[None]).cast(GOOD.schema), INCOMPLETE),
            (with_columns(GOOD, type=[None]).cast(GOOD.schema), INCOMPLETE),
            # Otherwise a delete would look like a document.
            (with_columns(rows(("a", 1, None), ("b", 2, None)), type=["car", "DELETE"]), UNKNOWN),
            (with_columns(GOOD, type=[7]), UNKNOWN),
            (added(GOOD, "KEY", [1]), "column KEY: differs from"),
            (added(GOOD, "_Deleted_At", [1]), "only in upper and lower case"),
            (added(added(GOOD, "Total", [1]), "TOTAL", [2]), "column TOTAL: differs from the column Total"),
            (added(GOOD, "_deleted_at", [None], pa.string()), "rename yours"),
        ],
        ids=range(11),
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
        [
            pa.timestamp("ns"),
            pa.timestamp("ns", tz="UTC"),
            pa.struct([("at", pa.timestamp("ns"))]),
            pa.duration("us"),
            pa.float16(),
            pa.decimal256(60, 10),
        ],
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

    def test_missing_table(self, path):
        refused(path, GOOD, "there is no Delta table", category=ErrorCategory.NOT_FOUND, create=False)


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
        # A column that a batch does not have keeps its values.
        merge_into_delta(rows(("c", 9, {})), 3, path, "app")
        found = {key: {row[name] for name in names} for key, row in table_of(path).items()}
        assert found == {"a": {2}, "b": {None}, "c": {-2}}

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
assert merge_into_delta(batch, None, {str(path)!r}, None)
print(live_rows({str(path)!r}).read_all().to_pylist())
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stdout == "[{'key': 'a', 'order_key': '1'}]\n", ran.stderr
