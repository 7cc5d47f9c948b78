"""Tests what SQLite's documentation says about a database that several programs use."""

import sqlite3
from contextlib import closing

import pytest

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance.refusals import refusal
from multiclouddb_conformance.sink_harness import events, key_of, page
from multiclouddb_tables.sqlite import SqliteTable, merge_into_sqlite

COLUMNS = (
    "key TEXT NOT NULL, order_key TEXT NOT NULL, timestamp TIMESTAMP_TEXT, new_item_state TEXT, "
    "_deleted_at TIMESTAMP_TEXT"
)


def made(path, *statements):
    """Let another program, which has functions and collations of its own, make a table."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.create_function("plain", 1, str.lower, deterministic=True)
        database.create_collation("german", lambda a, b: (a > b) - (a < b))
        for each in statements:
            database.execute(each)
        database.commit()


def merge(path, *changes):
    merge_into_sqlite(page(events(*changes)), None, path, "orders", None, create="always")


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        ((f"CREATE TABLE orders ({COLUMNS})", "CREATE INDEX i ON orders (plain(key))"), "plain()"),
        ((f"CREATE TABLE orders ({COLUMNS}, name AS (plain(key)) STORED)",), "plain()"),
        ((f"CREATE TABLE orders ({COLUMNS}, CHECK (plain(key) <> ''))",), "plain()"),
        ((f"CREATE TABLE orders ({COLUMNS}, name TEXT COLLATE german UNIQUE)",), "german"),
    ],
)
def test_what_only_another_program_has_is_told(tmp_path, statements, said):
    """SQLite keeps the name of a function or a collation in the schema, and each program brings its own."""
    path = tmp_path / "shop.db"
    made(path, *statements)
    refusal(
        ErrorCategory.INVALID_REQUEST,
        lambda: merge(path, ("a", 1, {"n": 1})),
        said,
        "only the program has which has made it",
    )
    assert [batch.num_rows for batch in SqliteTable(path, "orders").rows()] == []


def test_an_order_key_with_a_collation_is_compared_by_its_code_points(tmp_path):
    path = tmp_path / "shop.db"
    made(path, f"CREATE TABLE orders ({COLUMNS})".replace("order_key TEXT", "order_key TEXT COLLATE NOCASE"))
    merge(path, ("a", 1, {"n": 1}))
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE orders SET order_key = 'b'")
        database.commit()
    table = SqliteTable(path, "orders")
    table.bury("C", {})
    table.outdate("c", {})
    assert [row["order_key"] for batch in table.rows() for row in batch.to_pylist()] == ["b"]
    assert [row["key"] for batch in table.rows() for row in batch.to_pylist()] == [key_of("a")]
