"""Tests what SQLite's documentation says about a database that several programs use."""

import resource
import signal
import sqlite3
from contextlib import closing

import pytest

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance.refusals import refusal
from multiclouddb_conformance.sink_harness import events, key_of, page
from multiclouddb_tables import Columns
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


@pytest.mark.parametrize("damage", ["cut off", "overwritten"])
def test_a_damaged_file_says_what_to_do(tmp_path, damage):
    path = tmp_path / "shop.db"
    merge(path, *((f"k{at}", 1, {"x": "x" * 3000}) for at in range(50)))
    size = path.stat().st_size
    with path.open("r+b") as file:
        if damage == "cut off":
            file.truncate(size // 2)
        else:
            file.seek(5 * 4096)
            file.write(b"\xff" * (size // 2))
    for call in (lambda: merge(path, ("k3", 2, {})), lambda: [*SqliteTable(path, "orders").rows()]):
        refusal(ErrorCategory.PERMANENT_FAILURE, call, "malformed", "bring it back from a backup")


def test_a_disk_without_space_says_what_to_do(tmp_path):
    path = tmp_path / "shop.db"
    merge(path, ("a", 1, {}))
    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        changes = [(f"k{at}", 1, {"x": "x" * 3000}) for at in range(50)]
        refusal(ErrorCategory.PERMANENT_FAILURE, lambda: merge(path, *changes), "check the disk")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        signal.signal(signal.SIGXFSZ, before)
    merge(path, ("a", 2, {}))
    assert sum(batch.num_rows for batch in SqliteTable(path, "orders").rows()) == 1


def test_a_file_with_two_names_is_refused(tmp_path):
    """SQLite has a log of commits for each name: what one has committed, the other one overwrites."""
    path, link = tmp_path / "shop.db", tmp_path / "link.db"
    merge(path, ("a", 1, {"n": 1}))
    link.hardlink_to(path)
    for each in (path, link):
        for call in (
            lambda each=each: merge(each, ("b", 1, {})),
            lambda each=each: SqliteTable(each, "orders"),
        ):
            refusal(ErrorCategory.INVALID_REQUEST, call, "hard links")
    link.unlink()
    link.symlink_to(path)
    merge(link, ("b", 1, {}))
    merge(path, ("c", 1, {}))
    assert sum(batch.num_rows for batch in SqliteTable(link, "orders").rows()) == 3


def test_a_column_of_the_sink_in_capitals_is_named(tmp_path):
    """SQLite does not tell KEY from key, but the sink would not find its column."""
    path = tmp_path / "shop.db"
    made(path, f"CREATE TABLE orders ({COLUMNS})".replace("key TEXT", "KEY TEXT", 1))
    refusal(
        ErrorCategory.INVALID_REQUEST, lambda: merge(path, ("a", 1, {})), "KEY in place of key", "rename it"
    )


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("ON DELETE CASCADE", "removes rows of the source"),
        ("ON DELETE SET NULL", "column n"),
        ("ON UPDATE CASCADE", "column n"),
        ("", None),
    ],
)
def test_a_foreign_key_that_changes_rows_is_refused(tmp_path, action, said):
    """The sink switches foreign keys off for itself, and another program does not."""
    path = tmp_path / "shop.db"
    made(
        path,
        "CREATE TABLE customers (id INTEGER PRIMARY KEY)",
        f"CREATE TABLE orders ({COLUMNS}, N INTEGER REFERENCES customers (id) {action})",
    )

    def run():
        merge_into_sqlite(
            page(events(("a", 1, {"n": 1}))), None, path, "orders", None,
            create="always", columns=Columns({"n": "int64"} if said else {"N": "int64"}),
        )  # fmt: skip

    if said is None:
        run()
        return
    refusal(ErrorCategory.INVALID_REQUEST, run, said)
    if action != "ON DELETE CASCADE":  # the column may be one of another program
        merge_into_sqlite(page(events(("b", 1, {}))), None, path, "orders", None, create="always")
