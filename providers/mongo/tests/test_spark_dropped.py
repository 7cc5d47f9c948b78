"""Tests that Spark reads the last changes and the end of a collection that was dropped between queries."""

import pytest
from pyspark.errors import StreamingQueryException

from multiclouddb_api import ErrorCategory
from pyspark_multiclouddb import error_from_query

from .test_spark import run

pytestmark = pytest.mark.xdist_group("jvm")


def rows(spark, folder):
    """Return the keys and types of the rows that the query has written, in order."""
    frame = spark.read.parquet(str(folder / "rows")).orderBy("order_key")
    return [(row.key, row.type) for row in frame.collect()]


@pytest.mark.parametrize("bound", [{"maxRecordsPerTrigger": "1"}], ids=["bounded"])
def test_last_changes_of_a_dropped_collection_come_and_then_its_end(
    spark, one, here, written, tmp_path, bound
):
    run(spark, one, here, tmp_path, **bound)
    written.insert_one({"_id": 1})
    written.delete_one({"_id": 0})
    written.drop()
    expected = [('{"_id":0}', "CREATE"), ('{"_id":1}', "CREATE"), ('{"_id":0}', "DELETE")]
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="all its changes were delivered") as caught:
            run(spark, one, here, tmp_path, **bound)
        assert error_from_query(caught.value) == ErrorCategory.NOT_FOUND
        assert rows(spark, tmp_path) == expected
