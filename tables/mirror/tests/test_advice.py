"""Tests that a refusal of a merge names what can be done in a mirror, and no argument of a sink."""

import re
import sqlite3
from contextlib import closing

import pytest

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError, connect
from multiclouddb_api.checkpoint import conflict
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_mirror import mirror
from multiclouddb_mirror.advice import advised
from multiclouddb_tables import Columns
from multiclouddb_tables.batch import repair, rows_stay
from multiclouddb_tables.changes import missing_state_error
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
        assert "; give the document a shorter key" in refused(client, f"postgres:{server.dsn}#orders")


@pytest.mark.parametrize(
    "error",
    [
        missing_state_error('{"id":"o-1"}', 3),
        rows_stay("main/orders was dropped"),
        conflict("postgres:shop#positions", "public.orders", None, None),
        MulticloudDbError(
            f"table: x does not exist; {repair('a sink')}", ErrorDetail(ErrorCategory.NOT_FOUND)
        ),
    ],
)
def test_a_refusal_keeps_its_reason_and_category(error):
    told = advised(error)
    assert told.detail == error.detail
    assert told.message.partition("; ")[0] == error.message.partition("; ")[0]
    assert "--" in told.message or error.category is ErrorCategory.CONFLICT
    assert "give each worker" not in told.message
    assert not FOREIGN.search(told.message.partition("; ")[2])


def test_another_error_stays_as_it_is():
    error = MulticloudDbError("table: no; cast it", ErrorDetail(ErrorCategory.INVALID_REQUEST))
    assert advised(error) is error
