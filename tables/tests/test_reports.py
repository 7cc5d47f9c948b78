"""Tests what users of other sinks reported, and what vendors document, on Delta and SQLite."""

import sqlite3
from contextlib import closing

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance.refusals import refusal
from multiclouddb_conformance.sink_harness import events, key_of, page, rows
from multiclouddb_tables import Columns
from multiclouddb_tables.delta import DeltaTarget
from multiclouddb_tables.delta_upkeep import compact
from multiclouddb_tables.merging import merge_changes
from multiclouddb_tables.sqlite import SqliteTable, merge_into_sqlite

SINKS = [Field("key", "string", nullable=False), Field("order_key", "string", nullable=False)]
SINKS += [Field(name, "timestamp") for name in ("timestamp", "_deleted_at")]
SINKS += [Field("new_item_state", "string")]


def made(path, *columns, **more):
    DeltaTable.create(str(path), schema=Schema([*SINKS, *columns]), **more)


def merged(path, *changes, **more):
    merge_changes(DeltaTarget(path), "a sink", page(events(*changes)), create="always", **more)


def stored(path, *names):
    table = DeltaTable(path).to_pyarrow_dataset().scanner(use_threads=False).to_table().sort_by("key")
    return [tuple(row.values()) for row in table.select(list(names)).to_pylist()]


@pytest.mark.parametrize(
    ("kind", "declared", "values"),
    [
        ("string", "string", ["a b", "a/b", "a%20b", "ü", "__HIVE_DEFAULT_PARTITION__", "=:", " x ", "\n"]),
        ("date", "date", ["0001-01-01", "9999-12-31"]),
        ("timestamp", "timestamp", ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59.123456Z"]),
        ("long", "int64", [-1, 2**62]),
        ("boolean", "boolean", [True, False]),
    ],
)
def test_an_empty_table_that_is_partitioned_is_filled(tmp_path, kind, declared, values):
    """A second merge of a row must not double it, whatever its value is in the name of a folder."""
    path, columns = tmp_path / "table", Columns({"part": declared, "n": "int64"})
    made(path, Field("part", PrimitiveType(kind)), partition_by=["part"])
    for n in (1, 2):
        changes = [(f"k{at}", n, {"part": value, "n": n}) for at, value in enumerate(values)]
        merged(path, *changes, columns=columns)
    merged(path, ("k0", 3, {"part": values[1], "n": 3}), ("k1", 3, None), columns=columns)
    compact(str(path))
    found = stored(path, "key", "n", "part")
    assert [row[:2] for row in found] == [
        (key_of(f"k{at}"), {0: 3, 1: None}.get(at, 2)) for at in range(len(values))
    ]
    assert found[1][2] is None  # in a tombstone
    assert len(set(found)) == len(values)


@pytest.mark.parametrize("partition", ["decimal(10,2)", "decimal(10,0)"])
def test_a_table_that_is_partitioned_by_a_decimal_with_a_fraction_is_refused(tmp_path, partition):
    """deltalake writes -0.50 as 0.-50, and then nobody can open the table."""
    path, columns = tmp_path / "table", Columns({"part": partition})
    made(path, Field("part", PrimitiveType(partition)), partition_by=["part"])
    if partition == "decimal(10,0)":
        merged(path, ("a", 1, {"part": -1}), columns=columns)
        assert stored(path, "part") == [(-1,)]
        return
    refusal(
        ErrorCategory.INVALID_REQUEST,
        lambda: merged(path, ("a", 1, {"part": -0.5}), columns=columns),
        "partitioned by the column part, a decimal",
    )
    assert DeltaTable(path).version() == 0


def test_a_table_with_a_column_that_delta_computes_is_refused(tmp_path):
    """deltalake computes it for a new row only, and refuses each commit that changes one."""
    path, columns = tmp_path / "table", Columns({"total": "int64"})
    computed = Field("twice", "long", metadata={"delta.generationExpression": "total * 2"})
    made(path, Field("total", "long"), computed)
    refusal(
        ErrorCategory.INVALID_REQUEST,
        lambda: merged(path, ("a", 1, {"total": 1}), columns=columns),
        "computes the column twice",
    )


def test_the_change_data_feed_of_a_table_has_each_change(tmp_path):
    path, columns = tmp_path / "table", Columns({"n": "int64"})
    made(path, Field("n", "long"), configuration={"delta.enableChangeDataFeed": "true"})
    merged(path, ("a", 1, {"n": 1}), ("b", 1, {"n": 1}), columns=columns)
    merged(path, ("a", 2, {"n": 2}), ("b", 2, None), columns=columns)
    feed = pa.table(DeltaTable(path).load_cdf(starting_version=0).read_all())
    found = feed.select(["key", "n", "_change_type"]).to_pylist()
    kinds = ("insert", "update_preimage", "update_postimage")
    assert {tuple(row.values()) for row in found} == {
        (key_of(name), n, kind)
        for name, numbers in (("a", (1, 1, 2)), ("b", (1, 1, None)))
        for n, kind in zip(numbers, kinds, strict=True)
    }


def test_a_column_with_a_time_without_a_zone_brings_the_table_feature(tmp_path):
    path = tmp_path / "table"
    merge_changes(DeltaTarget(path), "a sink", rows(("a", 1, {})))
    assert DeltaTable(path).protocol().min_writer_version == 2
    batch = rows(("a", 2, {"at": "2026-01-02T03:04:05"}))
    column = pa.array(["2026-01-02T03:04:05"]).cast(pa.timestamp("us"))
    batch = batch.append_column("at", column)
    merge_changes(DeltaTarget(path, new_columns="add"), "a sink", batch)
    assert "timestampNtz" in DeltaTable(path).protocol().writer_features
    assert len(stored(path, "at")) == 1


def test_sqlite_gives_no_declared_column_a_number_of_its_own(tmp_path):
    """It puts the number of the row into an INTEGER PRIMARY KEY in place of a null."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        for name in ("declared", "orders"):
            database.execute(
                f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, key TEXT NOT NULL, order_key TEXT NOT NULL, "
                "timestamp TIMESTAMP_TEXT, new_item_state TEXT, _deleted_at TIMESTAMP_TEXT)"
            )

    def merge(table, *changes, **more):
        merge_into_sqlite(page(events(*changes)), None, path, table, None, create="always", **more)

    columns = Columns({"id": "int64"})
    refusal(
        ErrorCategory.INVALID_REQUEST, lambda: merge("declared", ("a", 1, {}), columns=columns), "column id"
    )
    merge("orders", ("a", 1, {}), ("b", 1, {}))
    merge("orders", ("a", 2, {"n": 1}), ("b", 2, None))
    assert "id" not in SqliteTable(path, "orders").columns()
    with closing(sqlite3.connect(path)) as database:
        found = database.execute("SELECT id, new_item_state FROM orders ORDER BY id").fetchall()
    assert found == [(1, '{"n":1}'), (2, None)]
