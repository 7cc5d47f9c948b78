"""Tests what Spark's documentation and release notes say about tables, on a table that Spark merges."""

from datetime import timedelta

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.pandas.types import from_arrow_schema

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance.refusals import refusal
from multiclouddb_conformance.sink_harness import key_of, rows
from multiclouddb_tables import Columns
from pyspark_multiclouddb import (
    TableTarget,
    drop_tombstones,
    live_rows,
    merge_into_delta,
    merge_into_table,
)

from .scala_catalog import table_in

COLUMNS = "order_key STRING, timestamp TIMESTAMP, new_item_state STRING, _deleted_at TIMESTAMP"


@pytest.fixture
def table(spark, tmp_path):
    return table_in(spark, tmp_path / "lake")


@pytest.fixture
def settings(spark):
    """Return a function that sets settings of the session until the end of the test."""
    before = {}

    def change(**wanted):
        for name, value in wanted.items():
            setting = f"spark.sql.{name.replace('__', '.')}"
            before.setdefault(setting, spark.conf.get(setting, None))
            spark.conf.set(setting, value)

    yield change
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def merge(spark, table, number, *changes, **more):
    batch = rows(*changes)
    frame = spark.createDataFrame(batch, from_arrow_schema(batch.schema, prefer_timestamp_ntz=True))
    return merge_into_table(frame, number, table, create_using="test", **more)


def test_a_column_whose_name_spark_would_replace_is_refused(spark, table, settings):
    """In the text of a statement, Spark puts the value of a setting in place of ${...}, in names too."""
    name = "total${spark.app.name}"
    columns = Columns({name: {"path": ["n"], "type": "int64"}})
    refusal(
        ErrorCategory.INVALID_REQUEST,
        lambda: merge(spark, table, 0, ("a", 1, {"n": 1}), columns=columns),
        "has ${ in its name",
        "spark.sql.variable.substitute",
    )
    assert not TableTarget(spark, table).exists
    settings(variable__substitute="False ")
    assert merge(spark, table, 0, ("a", 1, {"n": 1}), columns=columns)
    assert spark.table(table).select(f"`{name}`").collect() == [(1,)]


def test_a_name_in_backticks_is_no_pattern(spark, table, path, settings):
    """In a text, Spark takes `total (net)` for the pattern of a name, which no column has."""
    settings(parser__quotedRegexColumnNames="true")
    columns = Columns({"total (net)": {"path": ["n"], "type": "int64"}})
    merge(spark, table, 0, ("a", 1, {"n": 1}), columns=columns)
    merge(spark, table, 1, ("a", 2, {"n": 2}), ("b", 2, {"n": 3}), columns=columns)
    merge(spark, table, 2, ("b", 3, None), columns=columns)
    [batch] = TableTarget(spark, table).rows(own=True)
    assert sorted(batch["state"].to_pylist()) == ['{"total (net)":2}', "{}"]
    frame = spark.createDataFrame(rows(("a", 1, {"n": 1}))).withColumn("total (net)", F.lit(7))
    merge_into_delta(frame.limit(0), 0, path, "app")
    merge_into_delta(frame, 1, path, "app")
    assert live_rows(path, ["total (net)"]).read_all().to_pylist() == [{"total (net)": 7}]


def test_a_temporary_view_is_not_taken_for_the_table_of_its_name(spark, table, settings):
    """Spark looks for a temporary view first, so a proof would read other rows than the sink has written."""
    merge(spark, table, 0, ("a", 1, {"n": 1}), ("b", 1, {"n": 1}))
    catalog, schema, name = table.split(".")
    before = spark.catalog.currentCatalog(), spark.catalog.currentDatabase()
    spark.sql(f"USE {catalog}.{schema}")
    try:
        assert merge(spark, name, 1, ("a", 2, {"n": 2}))
        spark.table(table).where("key LIKE '%a%'").createOrReplaceTempView(name)
        for call in (
            lambda: [*TableTarget(spark, name).rows()],
            lambda: merge(spark, f"`{name}`", 2, ("a", 3, {"n": 3})),
            lambda: drop_tombstones(name, timedelta(0), spark=spark),
        ):
            refusal(ErrorCategory.INVALID_REQUEST, call, "is a temporary view of this session", "shop.orders")
        assert merge(spark, f"{schema}.{name}", 2, ("a", 3, {"n": 3}))
    finally:
        spark.catalog.dropTempView(name)
        spark.sql(f"USE {'.'.join(before)}")


def test_a_table_with_a_default_collation_is_refused(spark, table):
    """With UTF8_LCASE, the keys A and a would be one."""
    spark.sql(f"CREATE TABLE {table} (key STRING, {COLUMNS}) USING test DEFAULT COLLATION UTF8_LCASE")
    refusal(
        ErrorCategory.INVALID_REQUEST,
        lambda: merge(spark, table, 0, ("a", 1, {}), ("A", 1, {})),
        "column key: is string collate UTF8_LCASE",
        "default collation",
    )


@pytest.mark.parametrize("kind", ["VARIANT", "INTERVAL YEAR TO MONTH", "STRUCT<v VARIANT>"])
def test_a_column_whose_values_cannot_be_compared_is_said_to_be_one(spark, table, kind):
    """`verify` refuses it by name, if `transform` returns a value for it, and else leaves it out."""
    spark.sql(f"CREATE TABLE {table} (key STRING, {COLUMNS}, v {kind}, n BIGINT) USING test")
    merge(spark, table, 0, ("a", 1, {"n": 1}), columns=Columns({"n": "int64"}))
    found = TableTarget(spark, table).columns()
    assert found["v"] is None
    assert found["n"] is not None
    [batch] = TableTarget(spark, table).rows(own=("n",))
    assert batch["state"].to_pylist() == ['{"n":1}']


def test_a_time_in_nanoseconds_is_refused(spark, table, settings):
    """Spark 4.3 has the types, and PySpark 4.3 does not."""
    kind = "TIMESTAMP_LTZ(9)"
    settings(timestampNanosTypes__enabled="true")
    spark.sql(f"CREATE TABLE {table} (key STRING, {COLUMNS}, at {kind}) USING test")
    for work in (
        lambda: merge(spark, table, 0, ("a", 1, {})),
        lambda: [*TableTarget(spark, table).rows()],
    ):
        refusal(ErrorCategory.UNSUPPORTED_CAPABILITY, work, kind.lower(), "PySpark does not have")


def test_reserved_words_are_names_of_columns(spark, table, settings):
    settings(ansi__enforceReservedKeywords="true")
    columns = Columns({"order": {"path": ["n"], "type": "int64"}})
    merge(spark, table, 0, ("a", 1, {"n": 1}), ("b", 1, {"n": 1}), columns=columns)
    merge(spark, table, 1, ("a", 2, {"n": 2}), ("b", 2, None), columns=columns)
    found = spark.table(table).select("key", "`order`").orderBy("key").collect()
    assert found == [(key_of("a"), 2), (key_of("b"), None)]
    assert [each for batch in TableTarget(spark, table).rows(own=True) for each in batch["deleted"]]
