"""Tests batches of Spark, which the executors write."""

import hashlib
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.classic.dataframe import DataFrame

from multiclouddb_api import ErrorCategory, MulticloudDbError
from multiclouddb_conformance.sink_harness import applied, drawn, key_of, rows
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_postgres import merge_into_postgres
from multiclouddb_spi.faults import key_digest
from multiclouddb_tables import Columns
from pyspark_multiclouddb import EVENT_COLUMNS
from testing.postgres_server import PostgresServer

pytestmark = pytest.mark.xdist_group("jvm")


def query(dsn, text):
    with psycopg.connect(dsn) as connection:
        return connection.execute(text).fetchall()


def documents(dsn):
    found = query(dsn, "SELECT key::json->>'id', new_item_state FROM orders WHERE _deleted_at IS NULL")
    return dict(found)


@pytest.fixture
def merge(spark, dsn):
    def call(batch, number, **options):
        frame = spark.createDataFrame(batch) if isinstance(batch, pa.Table) else batch
        return merge_into_postgres(frame, number, dsn, "orders", "app", **options)

    return call


def test_batches_and_replays(merge, dsn):
    import random

    dice, changes = random.Random(1), []
    for number in range(3):
        batch = drawn(dice, number * 300, 300, keys=150)
        changes += batch
        assert merge(rows(*batch), number, connections=2)
        assert merge(rows(*batch), number)
        assert documents(dsn) == applied(changes)[0]


def test_what_cannot_be_written_is_named_before_anything_is_written(merge, dsn):
    def refused(batch, text, **options):
        with pytest.raises(MulticloudDbError) as caught:
            merge(batch, 0, **options)
        assert caught.value.category == ErrorCategory.INVALID_REQUEST
        assert text in caught.value.message
        assert query(dsn, "SELECT to_regclass('orders')") == [(None,)]

    names = [f"k{number}" for number in range(20)]
    fine = rows(*((name, 1, {}) for name in names))
    refused(rows(("x" * 3000, 1, {}), *((name, 1, {}) for name in names)), 'long_keys="hash"')
    refused(fine.append_column("x", pa.array(["a"] * 19 + ["\0"])), "column x")
    refused(fine.append_column("s", pa.array([{"a": 1}] * 20)), "column s")


def test_a_name_in_backticks_is_no_pattern(merge, dsn, spark):
    """In a text, Spark takes `total (net)` for the pattern of a name, which no column has."""
    name = "spark.sql.parser.quotedRegexColumnNames"
    spark.conf.set(name, "true")
    try:
        batch = rows(("a", 1, {})).append_column("total (net)", pa.array(["x"]))
        assert merge(batch.append_column("day (net)", pa.array([date(2026, 1, 31)])), 0)
    finally:
        spark.conf.unset(name)
    assert query(dsn, 'SELECT "total (net)", "day (net)" FROM orders') == [("x", date(2026, 1, 31))]


def test_rows_that_nobody_may_keep_are_read_again(merge, dsn, monkeypatch, caplog):
    """As on Databricks' serverless compute."""

    def persist(*_):
        raise AnalysisException("[NOT_SUPPORTED_WITH_SERVERLESS] PERSIST TABLE is not supported")

    monkeypatch.setattr(DataFrame, "persist", persist)
    assert merge(rows(("a", 1, {"n": 1}), ("a", 2, {"n": 2}), ("b", 1, None)), 0)
    assert documents(dsn) == {"a": {"n": 2}}
    assert "refuses persist" in caplog.text


def test_names_of_columns_with_backticks_and_dots(merge, dsn):
    name, at = "a `name` with.dots", datetime(2026, 1, 2, tzinfo=UTC)
    batch = rows(("a", 1, {})).append_column(name, pa.array(["x"])).append_column(f"{name}2", pa.array([at]))
    assert merge(batch, 0)
    assert query(dsn, f'SELECT "{name}", "{name}2" FROM orders') == [("x", at)]


def test_what_was_merged_outlives_a_crash_whatever_the_role_has_set(spark):
    """Spark goes on behind a batch that the server has not written to its disk."""
    with PostgresServer("wal_writer_delay=10s", "wal_writer_flush_after=1GB") as server:
        lazy = f"{server.dsn} options='-c synchronous_commit=off'"
        frame = spark.createDataFrame(rows(("a", 1, {})))
        merge_into_postgres(frame, 0, lazy, "orders", "app")
        server.kill()
        server.start()
        wait_until(lambda: query(server.dsn, "SELECT NOT pg_is_in_recovery()") == [(True,)], seconds=60)
        assert documents(server.dsn) == {"a": {}}
        found = query(server.dsn, "SELECT count(*) FROM multiclouddb_marks WHERE name LIKE '%query%'")
        assert found == [(1,)]


def test_long_keys_are_under_their_hashes_or_left_out(merge, dsn, caplog):
    names = ["x" * 3000, "y" * 3000]
    batch = rows(*((name, 1, {}) for name in (*names, *map(str, range(20)))))
    assert merge(batch, 0, long_keys="skip")
    assert len(documents(dsn)) == 20
    [record] = [each for each in caplog.records if each.name == "multiclouddb.postgres"]
    assert all(key_digest(key_of(name)) in record.getMessage() for name in names)
    assert query(dsn, "SELECT value FROM multiclouddb_marks WHERE name = 'multiclouddb-skipped'") == [(2,)]
    for order in (2, 1):
        assert merge(rows((names[0], order, {"n": order}), (names[1], order, None)), 1, long_keys="hash")
    found = query(dsn, "SELECT key, _long_key, new_item_state->>'n' FROM orders WHERE order_key = '000002'")
    assert sorted(found) == sorted(
        ("sha256:" + hashlib.sha256(key_of(name).encode()).hexdigest(), key_of(name), text)
        for name, text in zip(names, ("2", None), strict=True)
    )


def test_document_that_jsonb_refuses_is_named_with_its_category(merge, dsn):
    batch = rows(*((f"k{number}", 1, {}) for number in range(20)))
    at = batch.column_names.index("new_item_state")
    texts = [json.dumps({"t": "\0"} if number == 7 else {}) for number in range(20)]
    batch = batch.set_column(at, "new_item_state", pa.array(texts))
    with pytest.raises(MulticloudDbError) as caught:
        merge(batch, 0, documents="jsonb")
    named = key_digest(key_of("k7")) in caught.value.message
    assert (caught.value.category, named) == (ErrorCategory.INVALID_REQUEST, True)


def test_columns_of_documents_become_columns_of_the_table_or_are_refused_by_name(spark, merge, dsn, tmp_path):
    typed = "n BIGINT, name STRING, price DECIMAL(9, 2), at TIMESTAMP, `the day` DATE, "
    typed += "local TIMESTAMP_NTZ, raw BINARY"
    at = datetime(2026, 11, 1, 5, 30, tzinfo=UTC)  # an hour that New York has twice
    with EmbeddedStore(tmp_path / "shop.db", durable=False) as store:
        store.create_collection("orders")
        whole = {"n": 1, "name": "A", "price": Decimal("1.50"), "at": at, "the day": "2026-01-31"}
        store.put("orders", "a", {**whole, "local": "2026-01-31T12:00:00", "raw": b"\x00", "tags": ["x"]})
        store.put("orders", "b", {"n": 2})
        store.delete("orders", "b")

        def frame(columns):
            read = spark.read.format("multiclouddb").schema(f"{EVENT_COLUMNS}, {columns}")
            return read.option("url", f"embedded://{store.path}").option("collection", "orders").load()

        with pytest.raises(MulticloudDbError, match=r"column tags: is list.*convert it to JSON text"):
            merge(frame("tags ARRAY<STRING>"), 0)
        zone = spark.conf.get("spark.sql.session.timeZone")
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        try:
            assert merge(frame(f"{typed}, tags STRING"), 0)
        finally:
            spark.conf.set("spark.sql.session.timeZone", zone)
    found = query(dsn, 'SELECT n, name, price, at, "the day", local, raw, tags FROM orders ORDER BY key')
    first = (1, "A", Decimal("1.50"), at, date(2026, 1, 31), datetime(2026, 1, 31, 12), b"\x00", '["x"]')  # noqa: DTZ001
    assert found == [first, (None,) * 8]


def test_stream_with_a_snapshot_and_an_outage(spark, dsn, tmp_path):
    with EmbeddedStore(tmp_path / "shop.db", durable=False) as store:
        store.create_collection("orders", partitions=2)
        for number in range(60):
            store.put("orders", f"k{number}", {"n": number})

        def run(name):
            stream = spark.readStream.format("multiclouddb").option("url", f"embedded://{store.path}")
            stream = stream.option("collection", "orders").option("startingPosition", "snapshot")
            checkpoint = str(tmp_path / name)

            def merge(batch, number):
                merge_into_postgres(batch, number, dsn, "orders", name, checkpoint=checkpoint)

            writer = stream.option("maxRecordsPerTrigger", 25).load().writeStream.foreachBatch(merge)
            writer.option("checkpointLocation", checkpoint).trigger(
                availableNow=True
            ).start().awaitTermination()
            truth = {key.components["id"]: value for key, value in store.scan("orders")}
            assert documents(dsn) == truth

        run("first")
        store.put("orders", "k1", {"n": -1})
        store.delete("orders", "k2")
        run("first")
        store.delete("orders", "k3")
        store.put("orders", "new", {})
        store.trim("orders", max_count=0)
        run("second")


@pytest.mark.parametrize(
    ("first", "last", "early", "late"),
    [
        ("DATE'0001-01-01'", "DATE'+32767-12-31'", "DATE'0000-12-31'", "DATE'+32768-01-01'"),
        (
            "TIMESTAMP'0001-01-01 00:00:00Z'",
            "TIMESTAMP'+32767-12-31 23:59:59.999999Z'",
            "TIMESTAMP'0000-12-31 23:59:59.999999Z'",
            "timestamp_micros(8639977881600123456L)",
        ),
        (
            "TIMESTAMP_NTZ'0001-01-01 00:00:00'",
            "TIMESTAMP_NTZ'+32767-12-31 23:59:59.999999'",
            "TIMESTAMP_NTZ'-0044-03-15 00:00:00'",
            "TIMESTAMP_NTZ'+32768-01-01 00:00:00'",
        ),
    ],
    ids=["date", "timestamp", "timestamp_ntz"],
)
def test_a_time_whose_year_has_no_text_is_refused_with_its_key(spark, merge, dsn, first, last, early, late):
    both = rows(("a", 1, {}), ("b", 1, {}))

    def frame(one, other):
        at = f"CASE WHEN key LIKE '%a%' THEN {one} ELSE {other} END AS `the time`"
        return spark.createDataFrame(both).selectExpr("*", at)

    for bad in (early, late):
        with pytest.raises(MulticloudDbError, match=r"column the time: has a time outside") as caught:
            merge(frame(first, bad), 0)
        assert key_digest(key_of("b")) in caught.value.message
        assert query(dsn, "SELECT to_regclass('orders')") == [(None,)]
    assert merge(frame(first, last), 0)
    years = query(dsn, 'SELECT extract(year FROM "the time")::int FROM orders ORDER BY key')
    assert years == [(1,), (32_767,)]


def test_declared_columns(merge, dsn):
    columns = Columns(
        {"n": "int64", "a.b": {"path": ["a"], "type": "json"}, "id": {"key": "id", "type": "string"}}
    )
    assert merge(rows(("a", 1, {"n": 1, "a": [Decimal("1.50")]}), ("b", 1, {"n": 2})), 0, columns=columns)
    found = query(dsn, 'SELECT id, n, "a.b"::text, pg_typeof("a.b")::text FROM orders ORDER BY id')
    assert found == [("a", 1, '[{"$decimal":"1.50"}]', "json"), ("b", 2, None, "json")]
    bad = rows(("a", 2, {"n": "x"}), ("b", 2, {"n": [1]}), ("c", 1, {"n": 3}))
    with pytest.raises(MulticloudDbError, match="2 of the documents") as caught:
        merge(bad, 1, columns=columns)
    assert key_digest(key_of("a")) in caught.value.message
    assert "a text" in caught.value.message
    assert query(dsn, "SELECT count(*) FROM orders") == [(2,)]
    assert merge(rows(("a", 3, None), ("b", 3, {"n": 2**40})), 1, columns=columns)
    found = query(dsn, 'SELECT id, n, "a.b"::text, new_item_state::text FROM orders ORDER BY id')
    assert found == [("a", None, None, None), ("b", 2**40, None, '{"n":1099511627776}')]
