"""Tests that a refusal of a merge names what can be done in a mirror, and no argument of a sink."""

import re
import sqlite3
from contextlib import ExitStack, closing

import psycopg
import pytest

from multiclouddb_api import (
    ChangeFeedPage,
    Checkpoint,
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    MulticloudDbError,
    RecordSkipped,
    connect,
)
from multiclouddb_api.checkpoint import conflict
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_mirror import mirror, mirroring
from multiclouddb_mirror.advice import advised
from multiclouddb_postgres.long_keys import key_too_long
from multiclouddb_tables import Columns
from multiclouddb_tables.batch import repair, rows_stay, scans_in
from multiclouddb_tables.changes import missing_state_error
from multiclouddb_tables.rules import lacking_columns
from testing.postgres_server import PostgresServer

FOREIGN = re.compile(
    r"startingPosition|checkpointLocation|checkpoint=|app_id|batch_id|create=|missing_state|new_columns|"
    r"long_keys|Snapshot\(\)|Spark"
)


@pytest.fixture
def store(tmp_path):
    with EmbeddedStore(tmp_path / "shop.db") as made:
        made.create_collection("orders")
        made.put("orders", "o-1", {"total": 1})
        yield made


@pytest.fixture
def client(store, tmp_path):
    with connect(f"embedded://{tmp_path}/shop.db") as made:
        yield made


def refusal_of(function, *arguments):
    with pytest.raises(MulticloudDbError) as caught:
        function(*arguments)
    return caught.value


def page_with(*notices):
    return ChangeFeedPage((), "t", notices=notices)


def refused(client, target, **settings):
    with pytest.raises(MulticloudDbError) as caught:
        mirror(client, "main/orders", target, **settings)
    message = caught.value.message
    assert not FOREIGN.search(message), message
    return message


def in_table(tmp_path, statement):
    with closing(sqlite3.connect(tmp_path / "table.db")) as database:
        database.execute(statement)
        database.commit()


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("DELETE FROM orders", "is empty.*; run once with resync=True \\(--resync\\)"),
        ("ALTER TABLE orders DROP COLUMN timestamp", "timestamp.*; give the table the columns"),
    ],
)
def test_a_damaged_table(client, store, tmp_path, statement, told):
    target = f"sqlite:{tmp_path}/table.db#orders"
    mirror(client, "main/orders", target)
    in_table(tmp_path, statement)
    store.put("orders", "o-2", {})
    assert re.search(told, refused(client, target))


def test_another_declaration_of_columns(client, store, tmp_path):
    target = f"sqlite:{tmp_path}/table.db#orders"
    mirror(client, "main/orders", target)
    store.put("orders", "o-2", {})
    message = refused(client, target, columns=Columns({"total": "int64"}))
    assert "; run once with refill=True (--refill)" in message
    assert "the table has 1 row, and" in message


def test_a_key_that_is_too_long_for_postgres(client, store):
    store.put("orders", "k" * 3000, {})
    with PostgresServer() as server:
        target = f"postgres:{server.dsn}#orders"
        message = refused(client, target)
        assert all(way_out in message for way_out in ("set_aside= (--set-aside)", "a shorter key, or delete"))
        store.delete("orders", "k" * 3000)
        assert mirror(client, "main/orders", target, resync=True, prove=True).proof.equal


ADVISED = {
    "no document": missing_state_error('{"id":"o-1"}', 3),
    "replaced": rows_stay("main/orders was dropped"),
    "a checkpoint that was deleted": conflict("postgres:shop#positions", "public.orders", "3", None),
    "rows are missing": MulticloudDbError(
        f"table: x does not exist; {repair('a sink')}",
        ErrorDetail(ErrorCategory.NOT_FOUND, reason=ErrorReason.ROWS_MISSING),
    ),
    "a long key": key_too_long("k" * 3000),
    "a row that cannot be decoded": refusal_of(
        scans_in, page_with(RecordSkipped("embedded:x:snapshot:1:0", "a position"))
    ),
    "a column that is gone": refusal_of(
        lacking_columns, "the table", {"timestamp": "time"}, {"key": "text"}, "refuse"
    ),
    "a column that is gone in PostgreSQL": MulticloudDbError(
        "batch: has columns that x does not have: timestamp; leave them out, or set new_columns='add'",
        ErrorDetail(ErrorCategory.INVALID_REQUEST, reason=ErrorReason.WRONG_COLUMNS),
    ),
}


@pytest.mark.parametrize("error", ADVISED.values(), ids=ADVISED)
def test_a_refusal_keeps_its_reason_and_category(error):
    told = advised(error)
    assert told is not error
    assert told.detail == error.detail
    assert told.message.partition("; ")[0] == error.message.partition("; ")[0]
    assert not FOREIGN.search(told.message.partition("; ")[2])


@pytest.mark.parametrize(
    "error",
    [
        MulticloudDbError("table: no; cast it", ErrorDetail(ErrorCategory.INVALID_REQUEST)),
        MulticloudDbError(
            "table: no; give another checkpoint, or start a query", ErrorDetail(ErrorCategory.INVALID_REQUEST)
        ),
        conflict("postgres:shop#positions", "public.orders", "3", Checkpoint("t", "4")),
        conflict("postgres:shop#positions", "public.orders", None, Checkpoint("t", "4")),
    ],
)
def test_an_error_without_such_a_reason_stays_as_it_is_whatever_its_words(error):
    assert advised(error) is error


def remove_position(target, names="'position'"):
    """Remove the position of a table, as somebody might who cleans up."""
    kind, _, rest = target.partition(":")
    if kind == "sqlite":
        with closing(sqlite3.connect(rest.partition("#")[0])) as database:
            done = database.execute(f"DELETE FROM multiclouddb_marks WHERE name IN ({names})").rowcount
            database.commit()
    else:
        with psycopg.connect(rest.partition("#")[0]) as database:
            done = database.execute("DELETE FROM multiclouddb_checkpoints").rowcount
    assert done == 1 + names.count(",")


@pytest.mark.parametrize("kind", ["sqlite", "claim", "postgres", "apart"])
def test_a_position_that_vanishes_is_no_second_mirror(client, store, tmp_path, kind, monkeypatch):
    monkeypatch.setattr(mirroring, "_PAGE_EVENTS", 3)
    target, settings = f"sqlite:{tmp_path}/table.db#orders", {}
    with ExitStack() as stack:
        if kind == "postgres":
            target = f"postgres:{stack.enter_context(PostgresServer()).dsn}#orders"
        if kind == "apart":
            settings["position"] = f"file://{tmp_path}/positions/orders"
        mirror(client, "main/orders", target, **settings)
        for number in range(10):
            store.put("orders", f"o-{number}", {"total": number})
        removed = []

        def once(progress):
            if not removed:
                removed.append(progress)
                if kind == "apart":
                    [file.unlink() for file in (tmp_path / "positions").glob("*orders*")]
                else:
                    remove_position(target, "'position', 'writer'" if kind == "claim" else "'position'")

        with pytest.raises(MulticloudDbError) as caught:
            mirror(client, "main/orders", target, on_progress=once, **settings)
        assert (caught.value.category, caught.value.reason) == (ErrorCategory.CONFLICT, ErrorReason.DELETED)
        assert caught.value.message.endswith(
            "; restore it; or start the mirror again, which copies every row"
        )
        assert "another" not in caught.value.message
        report = mirror(client, "main/orders", target, prove=True, **settings)
        assert report.began == "snapshot"
        assert report.proof.equal


@pytest.mark.parametrize(
    ("count", "told"),
    [(1, "contains 1 change without its document, "), (2, "contains 2 changes without their documents, ")],
)
def test_one_change_is_a_change(count, told):
    assert told in missing_state_error('{"id":"o-1"}', count).message
