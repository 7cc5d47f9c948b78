"""Tests snapshots in DynamoDB Local: under load, with rollovers, and for longer than the retention.

The answers of DynamoDB Local contain no time, so `AUTO` stays `ORDERED`. The change to `INTERLEAVED` is
tested in test_snapshots.py.
"""

import itertools

import pytest

from multiclouddb_api import (
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    OperationOptions,
    ResourceAddress,
    Snapshot,
    SnapshotOrder,
    connect,
)
from multiclouddb_conformance.sink import Sink

from .servers.local import LocalDynamo
from .servers.server import REGION, new_session
from .test_snapshots import INTERLEAVED, ORDERED, is_done

TABLE = "orders"
ADDRESS = ResourceAddress(collection=TABLE)
ITEMS = 60

pytestmark = pytest.mark.usefixtures("hasty")


@pytest.fixture
def local():
    with LocalDynamo() as server:
        server.create_table(TABLE, "NEW_IMAGE", "at", partition_key="id", types={"at": "N"})
        yield server


class Table:
    """A table with a record of the items that must be in it."""

    def __init__(self, server):
        self.server, self.items, self.numbers = server, {}, itertools.count()

    def put(self, *keys):
        for key in keys:
            number = next(self.numbers)
            item = self.key(key) | {"n": {"N": str(number)}, "raw": {"B": b"\x00\xff"}}
            self.server.client().put_item(TableName=TABLE, Item=item)
            self.items[key] = number

    def delete(self, key):
        self.items.pop(key, None)
        self.server.client().delete_item(TableName=TABLE, Key=self.key(key))

    @staticmethod
    def key(key):
        """Return the key for a number: each partition key gets three sort keys."""
        return {"id": {"S": f"c{key // 3}"}, "at": {"N": str(key % 3)}}

    def is_in(self, sink):
        expected = {(f"c{key // 3}", key % 3): number for key, number in self.items.items()}
        return {tuple(key.components.values()): item["n"] for key, item in sink.rows().items()} == expected


def read(server, start, size, between):
    """Read pages up to the first idle page, each in another process."""
    session = new_session()
    for number in range(500):
        position = FromContinuationToken(start) if isinstance(start, str) else start
        connection = {"region": REGION, "endpoint_url": server.endpoint_url, "session": session}
        with connect(ClientConfig("dynamo", connection)) as client:
            asked = ChangeFeedRequest(ADDRESS, position, max_page_size=size)
            page = client.read_changes(asked, OperationOptions(timeout_seconds=60))
        yield page
        if page.idle:
            return
        start = page.continuation_token
        between(number)
    raise AssertionError("neither idle nor over")


@pytest.mark.parametrize(
    "start", [ORDERED, INTERLEAVED, Snapshot(segments=16)], ids=["ordered", "inter", "auto"]
)
def test_the_target_equals_the_table_under_load_and_roll_overs(local, start):
    table, sink = Table(local), Sink()
    table.put(*range(ITEMS))

    def between(number):
        if number < 12:
            table.put(number * 7 % ITEMS, ITEMS + number)
            table.delete(number * 11 % ITEMS)
            if number % 3 == 0:
                local.rollover()

    pages = []
    for page in read(local, start, 7, between):
        pages.append(page)
        sink.apply(page.events)
    assert sum(map(is_done, pages)) == 1
    assert table.is_in(sink)


def test_interleaved_outlasts_the_retention(local):
    table, sink = Table(local), Sink()
    table.put(*range(ITEMS))
    # Otherwise the stream repeats these changes: without a time, the library cannot recognize that they are
    # old.
    local.dilate_time(25)

    def between(number):
        if number < 8:
            table.put(number * 7 % ITEMS)
            table.delete(number * 11 % ITEMS)
            local.dilate_time(5)

    for page in read(local, INTERLEAVED, 8, between):
        sink.apply(page.events)
    assert table.is_in(sink)


def test_ordered_expires_loudly(local):
    table = Table(local)
    table.put(*range(ITEMS))

    def between(number):
        if number < 8:
            table.put(number)
            local.dilate_time(6)

    with pytest.raises(MulticloudDbError) as caught:
        list(read(local, Snapshot(SnapshotOrder.ORDERED), 8, between))
    assert caught.value.category == ErrorCategory.CHECKPOINT_EXPIRED


def test_rows_of_a_table_that_was_created_since_never_come(local):
    table = Table(local)
    table.put(*range(ITEMS))

    def between(number):
        if number == 2:
            local.client().delete_table(TableName=TABLE)
            local.create_table(TABLE, "NEW_IMAGE", "at", partition_key="id", types={"at": "N"})
            table.put(*range(1000, 1020))

    seen, pages = [], read(local, ORDERED, 8, between)
    with pytest.raises(MulticloudDbError) as caught:
        seen += pages
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    rows = [event.new_item_state["n"] for page in seen for event in page.events]
    assert rows
    assert max(rows) < ITEMS
