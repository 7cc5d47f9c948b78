"""Passes columns of types that only Spark has to the sink whose rows the executors write."""

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from multiclouddb_api import ErrorCategory, MulticloudDbError
from multiclouddb_conformance.sink_harness import rows
from multiclouddb_postgres import merge_into_postgres

pytestmark = pytest.mark.xdist_group("jvm")


@pytest.mark.parametrize("value", ["parse_json(new_item_state)", "INTERVAL '1' MONTH"])
def test_one_that_python_cannot_get_is_refused_by_its_column(spark, dsn, value):
    batch = spark.createDataFrame(rows(("a", 1, {"n": 1}))).withColumn("extra", F.expr(value))
    with pytest.raises(MulticloudDbError, match=r"column extra: is (variant|interval month), ") as caught:
        merge_into_postgres(batch, 0, dsn, "orders", "app")
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
