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

from .test_sinks import documents, rows

GOOD = ("a", 1, {"n": 1})
LATER = ("a", 2, {"n": 2})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table"


def refused(path, batch, *parts, category=ErrorCategory.INVALID_REQUEST, **more):
    version = DeltaTable(path).version() if path.exists() else None
    with pytest.raises(MulticloudDbError) as caught:
        merge_into_delta(batch, 1, path, "app", **more)
    assert caught.value.detail.category == category
    for part in parts:
        assert part in str(caught.value)
    assert (DeltaTable(path).version() if path.exists() else None) == version


def with_column(batch, name, values, kind=None):
    return batch.append_column(name, pa.array(values, kind))


class TestRefused:
    def test_missing_table(self, path):
        refused(path, rows(GOOD), "there is no Delta table", category=ErrorCategory.NOT_FOUND, create=False)

    def test_folder_that_cannot_be_written(self):
        nowhere = Path("/proc/self/table")  # not even root can write there
        refused(nowhere, rows(GOOD), str(nowhere), category=ErrorCategory.PERMANENT_FAILURE)

    def test_table_without_the_columns_of_the_sink(self, path):
        DeltaTable.create(path, pa.schema([("id", pa.string()), ("order_key", pa.string())]))
        refused(path, rows(GOOD), "has no column key", "give a table that this sink created")

    def test_key_of_another_type(self, path):
        DeltaTable.create(path, pa.schema([("key", pa.int64()), ("order_key", pa.string())]))
        refused(path, rows(GOOD), "column key: is string in the batch and long in")

    @pytest.mark.parametrize("name", ["key", "order_key"])
    def test_batch_whose_key_is_no_text(self, path, name):
        batch = rows(GOOD)
        batch = batch.set_column(batch.column_names.index(name), name, pa.array([7]))
        refused(path, batch, f"column {name}: is int64")

    @pytest.mark.parametrize(
        ("name", "values", "problem"),
        [
            ("key", ["a", None], "has rows without key, order_key or type"),
            ("order_key", ["1", None], "has rows without key, order_key or type"),
            ("type", ["CREATE", None], "has rows without key, order_key or type"),
            # Otherwise a delete would look like a document.
            ("type", ["car", "van"], "whose type is not CREATE, UPDATE or DELETE"),
            ("type", [7, 8], "whose type is not CREATE, UPDATE or DELETE"),
        ],
    )
    def test_row_without_a_valid_value(self, path, name, values, problem):
        batch = rows(GOOD, ("b", 1, None))
        batch = batch.set_column(batch.column_names.index(name), name, pa.array(values))
        refused(path, batch, problem, "give other names to columns")

    def test_clash_of_types(self, path):
        merge_into_delta(with_column(rows(GOOD), "n", [1]), 0, path, "app")
        refused(
            path, with_column(rows(LATER), "n", ["1"]), "column n: is string in the batch and long", "cast"
        )

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
            merge_into_delta(rows(GOOD), 0, path, "app")
        batch = with_column(rows(LATER), "n", [None], kind)
        refused(path, batch, "column n", "which a Delta table cannot store", new_columns="add")
        assert exists == path.exists()

    @pytest.mark.parametrize("name", ["KEY", "_Deleted_At"])
    def test_name_that_differs_only_in_case_from_a_column_of_the_sink(self, path, name):
        refused(path, with_column(rows(GOOD), name, [1]), f"column {name}", "only in upper and lower case")
        assert not path.exists()

    def test_name_that_differs_only_in_case_from_a_column_of_the_table(self, path):
        merge_into_delta(with_column(rows(GOOD), "Total", [1]), 0, path, "app")
        batch = with_column(rows(LATER), "total", [2])
        refused(path, batch, "column total", "column Total", "upper and lower case", new_columns="add")
        both = with_column(with_column(rows(LATER), "Total", [1]), "TOTAL", [2])
        refused(path, both, "column TOTAL", "column Total")

    def test_column_that_is_read_and_does_not_exist(self, path):
        merge_into_delta(rows(GOOD), 0, path, "app")
        with pytest.raises(MulticloudDbError, match=r"columns: .* has no column total; choose among key, "):
            live_rows(path, ["key", "total"])

    def test_column_of_the_sink(self, path):
        refused(path, with_column(rows(GOOD), "_deleted_at", [None], pa.string()), "rename yours")

    @pytest.mark.parametrize(("batch_id", "app_id"), [(None, "app"), (3, None)])
    def test_number_without_a_name(self, path, batch_id, app_id):
        with pytest.raises(MulticloudDbError, match="batch_id: must be given together with app_id"):
            merge_into_delta(rows(GOOD), batch_id, path, app_id)

    def test_arguments(self, path):
        refused(path, rows(GOOD), "max_bytes", max_bytes=0)
        refused(path, rows(GOOD), "new_columns", new_columns="maybe")


class TestNewColumns:
    @pytest.mark.parametrize("name", ["a`b", "`", "a.b", "a b", "a'b", 'a"b', "Total", "s", "select", "é\n"])
    def test_may_have_any_name(self, path, name):
        merge_into_delta(rows(GOOD, ("b", 1, {})), 0, path, "app")
        for number in (1, 2):
            batch = with_column(rows(("a", number + 1, {}), ("c", number, {})), name, [number, -number])
            merge_into_delta(batch, number, path, "app", new_columns="add")
        found = {row["key"]: row[name] for row in DeltaTable(path).to_pyarrow_table().to_pylist()}
        assert found == {'{"id": "a"}': 2, '{"id": "b"}': None, '{"id": "c"}': -2}

    def test_time_of_another_time_zone_is_stored_in_utc(self, path):
        moment = datetime(2026, 1, 2, 3, tzinfo=UTC)
        batch = with_column(rows(GOOD), "at", [moment], pa.timestamp("us", tz="Asia/Tokyo"))
        merge_into_delta(batch, 0, path, "app")
        merge_into_delta(
            with_column(rows(LATER), "at", [moment], pa.timestamp("us", tz="UTC")), 1, path, "app"
        )
        [row] = live_rows(path).read_all().to_pylist()
        assert (row["at"], row["order_key"]) == (moment, "000002")

    def test_are_refused_by_default(self, path):
        merge_into_delta(rows(GOOD), 0, path, "app")
        refused(path, with_column(rows(LATER), "n", [1]), "columns that", ": n;", "new_columns='add'")

    def test_are_added_when_asked(self, path):
        merge_into_delta(rows(GOOD, ("b", 1, {})), 0, path, "app")
        assert merge_into_delta(with_column(rows(LATER), "n", [1]), 1, path, "app", new_columns="add")
        found = {row["key"]: row["n"] for row in DeltaTable(path).to_pyarrow_table().to_pylist()}
        assert found == {'{"id": "a"}': 1, '{"id": "b"}': None}

    def test_column_that_a_batch_does_not_have_keeps_its_values(self, path):
        merge_into_delta(with_column(rows(GOOD), "n", [1]), 0, path, "app")
        merge_into_delta(rows(LATER), 1, path, "app")
        [row] = DeltaTable(path).to_pyarrow_table().to_pylist()
        assert (row["n"], row["order_key"]) == (1, "000002")

    def test_table_without_tombstones_gets_them(self, path):
        """The sink adds the column for tombstones to a table that an earlier version of the sink created."""
        schema = pa.schema(
            [("key", pa.string()), ("order_key", pa.string()), ("new_item_state", pa.string())]
        )
        DeltaTable.create(path, schema)
        batch = rows(GOOD, ("b", 2, None)).drop_columns("timestamp")
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
