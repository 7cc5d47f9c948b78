"""Tests which feed the rules of a merge find in the columns of a batch."""

import pyarrow as pa
import pytest

from multiclouddb_api import MulticloudDbError, ResourceAddress
from multiclouddb_conformance.sink_harness import rows
from multiclouddb_spi import encode_partition_id
from multiclouddb_tables.changes import piece_of
from multiclouddb_tables.rules import PLACES

ORDERS = ResourceAddress("main", "orders")


def batch_of(*places):
    """Make a batch of one row a place, an address and a partition, with a dictionary for each row."""
    found = []
    for number, (address, partition) in enumerate(places):
        row = rows((f"k{number}", 1, {}))
        values = (encode_partition_id("provider", address, "first", partition), "main", address.collection)
        for name, value in zip(PLACES, values, strict=True):
            at = row.column_names.index(name)
            row = row.set_column(at, name, pa.array([value]).dictionary_encode())
        found.append(row)
    return pa.concat_tables(found)


def test_partitions_of_one_feed_may_come_with_different_dictionaries():
    (piece,) = piece_of(batch_of((ORDERS, "p0"), (ORDERS, "p1")), "refuse")
    assert (piece.source.address, piece.rows.num_rows) == (ORDERS, 2)


def test_two_feeds_with_different_dictionaries_are_refused():
    with pytest.raises(MulticloudDbError, match="several feeds"):
        list(piece_of(batch_of((ORDERS, "p0"), (ResourceAddress("main", "users"), "p0")), "refuse"))


@pytest.mark.parametrize("value", [7, b"orders"])
def test_a_name_that_is_no_text_is_refused(value):
    batch = batch_of((ORDERS, "p0"))
    at = batch.column_names.index("collection")
    with pytest.raises(MulticloudDbError) as refused:
        list(piece_of(batch.set_column(at, "collection", pa.array([value])), "refuse"))
    assert refused.value.category == "INVALID_REQUEST"
