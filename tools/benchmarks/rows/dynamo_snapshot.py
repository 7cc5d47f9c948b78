"""A snapshot of a DynamoDB table compared with a parallel scan that is written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final

from benchmarks.dynamo import ADDRESS, Local, local
from benchmarks.processes import on_client_core
from benchmarks.row import Bench, Done, Sides, row
from multiclouddb_api import (
    BackfillDone,
    ChangeFeedRequest,
    FromContinuationToken,
    OperationOptions,
    Snapshot,
    SnapshotOrder,
    connect,
)

_ITEMS: Final = 24_000
_PARTS: Final = 8


def scanning_loop(tables: Any, table: str) -> Done:
    """Run the usual parallel scan: a thread for each segment, and items as Python values."""
    from boto3.dynamodb.types import TypeDeserializer

    decode = TypeDeserializer().deserialize

    def read(segment: int) -> list[str]:
        keys: list[str] = []
        part = {"TableName": table, "Segment": segment, "TotalSegments": _PARTS, "ConsistentRead": True}
        while True:
            page = tables.scan(**part)
            for item in page["Items"]:
                row = {name: decode(value) for name, value in item.items()}
                keys.append(row["pk"])
            if "LastEvaluatedKey" not in page:
                return keys
            part["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    with ThreadPoolExecutor(_PARTS) as threads:
        keys = [key for found in threads.map(read, range(_PARTS)) for key in found]
    return Done(len(keys), keys)


def _scanned_by_hand(table: Local) -> Done:
    with on_client_core(), closing(table.tables()) as tables:
        return scanning_loop(tables, str(ADDRESS.collection))


def _scanned_through_the_client(table: Local) -> Done:
    keys: list[str] = []
    position: Snapshot | FromContinuationToken = Snapshot(SnapshotOrder.ORDERED, segments=_PARTS)
    done = False
    with on_client_core(), connect(table.config) as client:
        while not done:
            page = client.read_changes(ChangeFeedRequest(ADDRESS, position), OperationOptions())
            keys += [event.key.components["pk"] for event in page.events if event.backfilled]
            done = any(isinstance(notice, BackfillDone) for notice in page.notices)
            position = FromContinuationToken(page.continuation_token)
    return Done(len(keys), keys)


@row(
    "dynamo-snapshot",
    title="DynamoDB Local, snapshot",
    unit="rows/s",
    goal=2.0,
    about=(
        "The client reads a snapshot of 24,000 items of 300 bytes, in eight segments, from DynamoDB Local. "
        "In both programs the client runs on one core and the server on another."
    ),
    against=(
        "The usual parallel scan with boto3: a thread for each of eight segments, consistent reads, and "
        "boto3's `TypeDeserializer` for each item."
    ),
    shown=(scanning_loop,),
)
def dynamo_snapshot(bench: Bench) -> Iterator[Sides]:
    """Both sides scan the table.

    Our side also makes events with ids, and computes a position after each row.
    """
    with local(bench.size(_ITEMS)) as table:
        yield Sides(lambda: _scanned_through_the_client(table), lambda: _scanned_by_hand(table))
