"""The DynamoDB provider compared with hand-written boto3 code, and measured on streams of many shards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, Final

import attrs

from benchmarks.arrow import plan_ranges, read_arrow
from benchmarks.dynamo import ADDRESS, Local, Scripted, local, scripted
from benchmarks.processes import on_client_core
from benchmarks.row import Bench, Done, Sides, row
from benchmarks.stores import pages
from multiclouddb_api import (
    ResourceAddress,
    connect,
)

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


def _through_arrow(table: Local, items: int) -> Callable[[], Done]:
    parts = plan_ranges(table.config, ADDRESS, items)

    def run() -> Done:
        with on_client_core():
            return read_arrow(table.config, ADDRESS, parts)

    return run


@row(
    "dynamo-events",
    title="DynamoDB Local, events",
    question="How many changes a second come from DynamoDB?",
    goal=2.0,
    about=f"The client reads {_LOCAL}",
    against=_BARE,
    shown=(bare_loop,),
)
def dynamo_events(bench: Bench) -> Iterator[Sides]:
    """Compare multiclouddb, which decodes events, with a loop that decodes nothing."""
    with local(bench.size(_ITEMS)) as table:
        yield Sides(lambda: _through_the_client(table), lambda: _by_hand(table, bare_loop))


# -- The scripted server

_SHARDS: Final = 64
_LATENCY: Final = 0.02


def _read_shards(server: Scripted, address: ResourceAddress, latency: float) -> tuple[Done, int]:
    """Read everything in a stream; return the events and the number of calls."""
    operations = ("GetShardIterator", "GetRecords", "DescribeStream", "DescribeTable")
    server.ask("troubles.end")
    if latency:
        server.ask("troubles.delay", None, latency)
    before = server.calls(*operations)
    began, cpu = time.perf_counter(), time.process_time()
    ids: list[str] = []
    with on_client_core(), connect(server.config) as client:
        for page in pages(client.read_changes, address):
            ids += [event.event_id for event in page.events]
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return Done(len(ids), ids, seconds=seconds, cpu=cpu), server.calls(*operations) - before


def ideal(server: Scripted, address: ResourceAddress) -> Done:
    """Return the larger of two times: the latency on all threads, or the CPU time."""
    done, calls = _read_shards(server, address, latency=0.0)
    assert done.cpu is not None
    return attrs.evolve(done, seconds=max(calls * _LATENCY / _SHARDS, done.cpu))


_PAGE: Final = 1000
_RECORD_BYTES: Final = 1000


def _sent_for_each(server: Scripted, address: ResourceAddress) -> float:
    """Return the number of records that the server sends per delivered event."""
    before = server.records_sent()
    ids: list[str] = []
    with on_client_core(), connect(server.config) as client:
        for page in pages(client.read_changes, address, _PAGE):
            ids += [event.event_id for event in page.events]
    if len(ids) != len(set(ids)):
        raise ValueError(f"{len(ids) - len(set(ids)):,} events were delivered twice")
    return (server.records_sent() - before) / len(ids)


@row(
    "dynamo-sent",
    title="DynamoDB, records sent for each event",
    question="How much of what DynamoDB sends and bills becomes an event?",
    unit="records",
    goal=1.2,
    at_most=True,
    pairs=1,
    warm_up=False,
    about=(
        "The figure is the number of records that the server sends for each delivered event. The benchmark "
        "reads 16 and then 64 shards of a scripted server, with pages of 1,000 events and the "
        "default buffer. An answer has one megabyte, as from the service itself. After parsing, "
        "sixteen answers are larger than the buffer. If the records of an answer did not fit into the "
        "buffer, the server would have to send them again. "
        "The larger of the two figures counts."
    ),
    against="",
)
def dynamo_sent(bench: Bench) -> Iterator[Sides]:
    """This row checks that fetched records are delivered and not fetched again."""
    with ExitStack() as stack:
        tables = {}
        for shards in (16, _SHARDS):
            server = stack.enter_context(scripted(32, initial_shards=shards))
            tables[f"{shards} shards"] = server, (address := server.create("items"))
            for shard in server.ask("open_shards", address.collection):
                server.ask("fill", shard, bench.size(1000), _RECORD_BYTES)

        def ours() -> Done:
            sent = {shards: _sent_for_each(*table) for shards, table in tables.items()}
            return Done(len(sent), value=max(sent.values()), notes=sent)

        yield Sides(ours)
