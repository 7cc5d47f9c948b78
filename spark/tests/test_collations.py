"""Merges changes where Spark compares texts by another collation than by their bytes."""

import pytest

from multiclouddb_api import ErrorCategory, MulticloudDbError
from pyspark_multiclouddb import TableTarget, latest_by_key, merge_into_delta, merge_into_table

from .micro_batches import rows
from .scala_catalog import table_in

COLUMNS = "key STRING, order_key STRING, timestamp TIMESTAMP, new_item_state STRING, _deleted_at TIMESTAMP"


@pytest.fixture
def frame(spark):
    return spark.createDataFrame(rows(("a", 1, {"n": 1}), ("A", 2, {"n": 2})))


def refused(merge, name, kind):
    problem = rf"column {name}: is string collate {kind}\b.*UTF8_BINARY"
    with pytest.raises(MulticloudDbError, match=problem) as caught:
        merge()
    assert caught.value.category == ErrorCategory.INVALID_REQUEST


@pytest.mark.parametrize("name", ["key", "order_key"])
def test_keys_that_differ_in_case_are_not_taken_for_one(spark, frame, path, name):
    """As in a frame of a table whose schema has a default collation."""
    batch = frame.withColumn(name, frame[name].try_cast("STRING COLLATE UTF8_LCASE"))
    for call in (
        lambda: latest_by_key(batch).collect(),
        lambda: merge_into_delta(batch, 0, path, "app"),
        lambda: merge_into_table(batch, 0, table_in(spark, path), create_using="test"),
    ):
        refused(call, name, "UTF8_LCASE")
    assert not path.exists()
    assert latest_by_key(frame).count() == 2


@pytest.mark.parametrize(
    ("name", "columns", "default"),
    [
        ("key", COLUMNS, "DEFAULT COLLATION UTF8_LCASE"),
        ("order_key", COLUMNS.replace("order_key STRING", "order_key STRING COLLATE UTF8_LCASE"), ""),
    ],
)
def test_a_table_with_such_columns_is_refused_with_the_way_out(spark, frame, path, name, columns, default):
    table = table_in(spark, path)
    spark.sql(f"CREATE TABLE {table} ({columns}) USING test {default}")
    for call in (
        lambda: merge_into_table(frame, 0, table),
        lambda: list(TableTarget(spark, table).rows()),
        lambda: TableTarget(spark, table).fix([], None),
    ):
        refused(call, name, "UTF8_LCASE")
    assert spark.table(table).isEmpty()
