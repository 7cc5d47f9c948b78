"""Tests pages that become a DataFrame."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pyspark.sql import Row
from pyspark.sql.types import DoubleType, StringType, StructField, StructType

from multiclouddb_api import (
    Beginning,
    ChangeEvent,
    ChangeFeedPage,
    ChangeFeedRequest,
    ChangeType,
    MulticloudDbKey,
    ResourceAddress,
    connect,
)
from pyspark_multiclouddb import pages_to_dataframe
from pyspark_multiclouddb.rows import SPARK_SCHEMA

NOON = datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC)


def event(number, document, partition="p0"):
    return ChangeEvent(
        event_id=f"e{number}",
        key=MulticloudDbKey({"id": f"k{number}"}),
        type=ChangeType.UPDATE if document is not None else ChangeType.DELETE,
        timestamp=NOON,
        new_item_state=document,
        old_item_state=None,
        order_key=f"{number:04d}",
        by_expiry=None,
        backfilled=False,
        address=ResourceAddress("shop", "orders"),
        partition_id=partition,
    )


def page(*events):
    return ChangeFeedPage(events=events, continuation_token="token")


def test_one_row_an_event(spark):
    pages = iter([page(event(1, {"n": 1}), event(2, None, "p1")), page(), page(event(3, {"n": 3}))])
    frame = pages_to_dataframe(spark, pages)
    assert frame.schema == SPARK_SCHEMA
    rows = sorted(frame.toArrow().to_pylist(), key=lambda row: row["order_key"])
    same = {
        "timestamp": NOON, "old_item_state": None, "by_expiry": None, "backfilled": False,
        "database": "shop", "collection": "orders",
    }  # fmt: skip
    names = [name for name in frame.columns if name not in same]
    assert [dict(zip(names, map(row.get, names), strict=True)) | same for row in rows] == rows
    assert [tuple(map(row.get, names)) for row in rows] == [
        ("e1", "UPDATE", '{"id":"k1"}', '{"n":1}', "0001", "p0", 0),
        ("e2", "DELETE", '{"id":"k2"}', None, "0002", "p1", 0),
        ("e3", "UPDATE", '{"id":"k3"}', '{"n":3}', "0003", "p0", 1),
    ]


@pytest.mark.parametrize(
    "schema",
    [
        "status STRING, total DOUBLE, price STRUCT<`$decimal`: STRING>",
        StructType([StructField("status", StringType()), StructField("total", DoubleType())]),
    ],
    ids=["DDL", "StructType"],
)
def test_documents_are_parsed_with_a_schema(spark, schema):
    first = event(1, {"status": "new", "total": 9.5, "price": Decimal("1.50")})
    frame = pages_to_dataframe(spark, [page(first, event(2, None), event(3, {"total": 1}))], schema)
    documents = [row.new_item_state for row in frame.orderBy("order_key").collect()]
    assert (documents[0].status, documents[0].total) == ("new", 9.5)
    if isinstance(schema, str):
        assert documents[0].price == Row(**{"$decimal": "1.50"}), "a value beyond JSON stays readable"
    assert documents[1] is None
    assert (documents[2].status, documents[2].total) == (None, 1.0)
    assert frame.columns == SPARK_SCHEMA.fieldNames()


def test_pages_of_an_iterator_and_of_nothing(spark, source):
    source.write(50)
    request = ChangeFeedRequest(ResourceAddress(None, "orders"), Beginning(), max_page_size=7)
    with connect(f"embedded://{source.store.path}") as client:
        frame = pages_to_dataframe(spark, client.iterate_changes(request, until_idle=True).pages())
    assert frame.count() == len(source.truth)
    empty = pages_to_dataframe(spark, [page()])
    assert (empty.schema, empty.count()) == (SPARK_SCHEMA, 0)
