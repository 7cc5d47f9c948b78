"""Tests a query that meets changes that cannot be decoded, from its failure to the table's commit."""

import json

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from multiclouddb_api import ErrorCategory
from pyspark_multiclouddb import error_from_query, merge_into_delta

from .test_poison import LEFT, WRITTEN, damage
from .test_sinks import documents
from .test_source import SECONDS, load


def run(spark, source, folder, **options):
    def merge(frame, batch_id):
        where = folder / "checkpoint"
        merge_into_delta(frame, batch_id, folder / "table", "orders", checkpoint=where)

    stream = load(spark.readStream, source, **options).writeStream.foreachBatch(merge)
    query = stream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination(SECONDS)
    return query


def test_a_query_that_has_failed_goes_on_with_the_option(spark, source, tmp_path):
    for number in (1, 2):
        source.store.put("orders", f"k{number}", {"n": number})
    damage(source, 1, 2)
    run(spark, source, tmp_path, onPoison="skip")
    assert noted(tmp_path) == [2], "no change can be decoded, and there was no table"
    for number in range(3, WRITTEN + 1):
        source.store.put("orders", f"k{number}", {"n": number})
    damage(source, 4, 5, 9)
    with pytest.raises(StreamingQueryException, match="onPoison=skip") as caught:
        run(spark, source, tmp_path)
    assert error_from_query(caught.value) == ErrorCategory.PROVIDER_ERROR
    query = run(spark, source, tmp_path, onPoison="skip")
    assert sorted(each["n"] for each in documents(tmp_path / "table").values()) == LEFT[2:]
    ends = [json.loads(each["sources"][0]["endOffset"]) for each in query.recentProgress]
    assert [end["poison"]["count"] for end in ends if "poison" in end] == [3]
    assert noted(tmp_path) == [2, 3]


def noted(folder):
    history = DeltaTable(folder / "table").history()
    found = [each["multiclouddb.poison"] for each in history if "multiclouddb.poison" in each]
    return [json.loads(each)["count"] for each in reversed(found)]
