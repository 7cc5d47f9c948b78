"""The DynamoDB provider compared with hand-written boto3 code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

from benchmarks.dynamo import ADDRESS, Local, local
from benchmarks.processes import on_client_core
from benchmarks.row import Bench, Done, Section, Sides, row
from benchmarks.stores import pages
from multiclouddb_api import connect

_ITEMS: Final = 24_000
_LOCAL: Final = (
    "24,000 items of 300 bytes, from one shard of DynamoDB Local. In both programs the client runs on one "
    "core and the server on another."
)
_BARE: Final = (
    "A loop over boto3's `get_records` that decodes no records. Each call asks for 1,000 records, "
    "with the iterator that the previous call returned."
)


# -- DynamoDB Local


def bare_loop(streams: Any, arn: str) -> Done:
    """Read records as boto3 returns them."""
    (shard,) = streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
    start = {"StreamArn": arn, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
    iterator = streams.get_shard_iterator(**start)["ShardIterator"]
    ids: list[str] = []
    while iterator:
        page = streams.get_records(ShardIterator=iterator, Limit=1000)
        if not page["Records"]:
            break
        ids += [record["eventID"] for record in page["Records"]]
        iterator = page.get("NextShardIterator")
    return Done(len(ids), ids)


def _by_hand(table: Local, loop: Any) -> Done:
    with on_client_core(), closing(table.streams()) as streams:
        done: Done = loop(streams, table.arn)
        return done


def _through_the_client(table: Local) -> Done:
    ids: list[str] = []
    with on_client_core(), connect(table.config) as client:
        for page in pages(client.read_changes, ADDRESS):
            ids += [event.event_id for event in page.events]
    return Done(len(ids), ids)


@row(
    "dynamo-events",
    Section.RATES,
    title="DynamoDB Local, events",
    question="How many changes a second come from DynamoDB?",
    goal=2.0,
    about=f"The client reads {_LOCAL}",
    against=_BARE,
)
def dynamo_events(bench: Bench) -> Iterator[Sides]:
    """Compare multiclouddb, which decodes events, with a loop that decodes nothing."""
    with local(bench.size(_ITEMS)) as table:
        yield Sides(lambda: _through_the_client(table), lambda: _by_hand(table, bare_loop))
