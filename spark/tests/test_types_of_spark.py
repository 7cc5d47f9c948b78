"""Passes columns of types that only Spark has to the sinks that take rows out of Spark."""

import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from multiclouddb_api import ErrorCategory, MulticloudDbError
from multiclouddb_conformance.refusals import refusal
from pyspark_multiclouddb import latest_by_key, merge_into_delta, merge_into_table

from .micro_batches import rows
from .scala_catalog import table_in

KINDS = {
    "variant": "parse_json(new_item_state)",
    "array of variant": "array(parse_json(new_item_state))",
    "struct with a variant": "named_struct('v', parse_json(new_item_state))",
    "map of variants": "map('v', parse_json(new_item_state))",
    "interval of months": "INTERVAL '1' MONTH",
}


@pytest.fixture
def frame(spark):
    return spark.createDataFrame(rows(("a", 1, {"n": 1}), ("b", 2, {"n": 2})))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_empty", [False, True])
def test_one_that_would_become_bytes_in_a_delta_table_is_refused(frame, path, kind, is_empty):
    batch = frame.withColumn("extra", F.expr(KINDS[kind])).where(F.lit(not is_empty))
    with pytest.raises(MulticloudDbError, match=r"column extra: is (variant|interval month), ") as caught:
        merge_into_delta(batch, 0, path, "app")
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert not path.exists()


@pytest.mark.parametrize("value", ["v", "array(v)", "named_struct('v', v)"])
def test_a_column_of_the_type_of_a_library_is_not_made(spark, frame, path, value):
    vectors = spark.createDataFrame([(1, Vectors.dense([1.0, 2.0]))], ["i", "v"])
    batch = frame.crossJoin(vectors).withColumn("extra", F.expr(value)).drop("i", "v")
    table = table_in(spark, path)
    refusal(
        ErrorCategory.INVALID_REQUEST,
        lambda: merge_into_table(batch, 0, table, create_using="test"),
        "column extra: is vector, the type of a library",
        "vector_to_array",
    )
    merge_into_table(frame, 0, table, create_using="test")
    refusal(
        ErrorCategory.INVALID_REQUEST,
        lambda: merge_into_table(batch, 1, table, new_columns="add"),
        "column extra: is vector",
    )


@pytest.mark.parametrize("value", ["NULL", "array()", "map()", "named_struct('x', NULL)"])
def test_a_column_without_a_type_is_refused(spark, frame, path, value):
    """A table would get a column in which no later batch can store a value."""
    batch = frame.withColumn("extra", F.expr(value))
    table = table_in(spark, path)
    for call in (
        lambda: merge_into_delta(batch, 0, path, "app"),
        lambda: merge_into_table(batch, 0, table, create_using="test"),
    ):
        refusal(
            ErrorCategory.INVALID_REQUEST, call, "column extra: is ", "not known of which type", "cast it"
        )
    assert not path.exists()


def test_what_stays_in_spark_is_not_refused(frame):
    batch = frame.withColumn("extra", F.expr("parse_json(new_item_state)"))
    found = latest_by_key(batch).selectExpr("extra:n::int AS n").toArrow()["n"].to_pylist()
    assert sorted(found) == [1, 2]
