"""The DynamoDB provider compared with hand-written boto3 code, and measured on streams of many shards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, Final

import attrs

from benchmarks.arrow import AS_A_TASK, plan_ranges, read_arrow
from benchmarks.dynamo import ADDRESS, Local, Scripted, local, scripted
from benchmarks.processes import on_client_core
from benchmarks.row import Bench, Done, Sides, row
from benchmarks.stores import pages
from multiclouddb_api import (
    ChangeFeedRequest,
    FromContinuationToken,
    MulticloudDbClient,
    Now,
    OperationOptions,
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


def decoding_loop(streams: Any, arn: str) -> Done:
    """Read records as boto3 returns them, with keys and items as Python values."""
    from boto3.dynamodb.types import TypeDeserializer

    decode = TypeDeserializer().deserialize
    (shard,) = streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
    start = {"StreamArn": arn, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
    iterator = streams.get_shard_iterator(**start)["ShardIterator"]
    ids: list[str] = []
    while iterator:
        page = streams.get_records(ShardIterator=iterator, Limit=1000)
        if not page["Records"]:
            break
        for record in page["Records"]:
            change = record["dynamodb"]
            {name: decode(value) for name, value in change["Keys"].items()}
            {name: decode(value) for name, value in change["NewImage"].items()}
            ids.append(record["eventID"])
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
    goal=2.0,
    about=f"The client reads {_LOCAL}",
    against=_BARE,
    shown=(bare_loop,),
)
def dynamo_events(bench: Bench) -> Iterator[Sides]:
    """Compare multiclouddb, which decodes events, with a loop that decodes nothing."""
    with local(bench.size(_ITEMS)) as table:
        yield Sides(lambda: _through_the_client(table), lambda: _by_hand(table, bare_loop))


@row(
    "dynamo-decoded",
    title="DynamoDB Local, events compared with decoded records",
    goal=2.5,
    about=f"The client reads {_LOCAL}",
    against=(
        "The usual code: a loop over boto3's `get_records`, with boto3's `TypeDeserializer` for the"
        " key and the item of each record."
    ),
    shown=(decoding_loop,),
)
def dynamo_decoded(bench: Bench) -> Iterator[Sides]:
    """In this row, both sides decode the records."""
    with local(bench.size(_ITEMS)) as table:
        yield Sides(lambda: _through_the_client(table), lambda: _by_hand(table, decoding_loop))


@row(
    "dynamo-arrow",
    title="DynamoDB Local, Arrow",
    goal=3.0,
    about=f"{AS_A_TASK}, with items as JSON text: {_LOCAL}",
    against=_BARE,
)
def dynamo_arrow(bench: Bench) -> Iterator[Sides]:
    """Measure how fast events are read in the form that Spark needs."""
    items = bench.size(_ITEMS)
    with local(items) as table:
        yield Sides(_through_arrow(table, items), lambda: _by_hand(table, bare_loop))


# -- The scripted server

_SHARDS: Final = 64
_LATENCY: Final = 0.02
_PAGE_BYTES: Final = 64 * 1024  # about 100 records


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


@row(
    "dynamo-fan-out",
    title="DynamoDB, 64 shards",
    goal=0.8,
    about=(
        "The client reads 32,000 events from 64 shards of a scripted server. The client reads all shards "
        "at the same time (`max_concurrency=64`), about 100 events per call. The server runs in another "
        "process, "
        "on another core, and takes 20 ms for each call."
    ),
    against=(
        "The ideal time, computed from a run of the same calls without latency. The ideal is the "
        "larger of two times: calls * latency / 64, and the client's CPU time in that run."
    ),
    shown=(ideal,),
)
def dynamo_fan_out(bench: Bench) -> Iterator[Sides]:
    """This row measures the cost of waiting for many shards."""
    with scripted(_SHARDS, initial_shards=_SHARDS, page_bytes=_PAGE_BYTES) as server:
        address = server.create("items")
        server.fill(address, bench.size(500))
        yield Sides(
            lambda: _read_shards(server, address, _LATENCY)[0],
            lambda: ideal(server, address),
        )


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


class _Follower:
    """Reads the new changes of a table's stream with one client.

    Args:
        server: The server that contains the table.
        client: The client that reads the stream.
        table: The name of the table.
        listed: The number of all shards; 64 of these shards are open.
    """

    def __init__(self, server: Scripted, client: MulticloudDbClient, table: str, listed: int) -> None:
        self._server, self._client = server, client
        self._address = server.create(table)
        server.ask("grow", table, listed, _SHARDS)
        with on_client_core():
            self._token = client.read_changes(ChangeFeedRequest(self._address, Now())).continuation_token

    def cost_of_pages(self, records: int) -> Done:
        """Return the CPU time of a call that reads a page of 64 events.

        Args:
            records: The number of events to read from each shard.
        """
        self._server.fill(self._address, records)
        listings = self._server.calls("DescribeStream")
        cpu, calls, events = time.process_time(), 0, 0
        with on_client_core():
            while events < _SHARDS * records:
                events += self._page()
                calls += 1
        cpu = time.process_time() - cpu
        if self._server.calls("DescribeStream") != listings:
            raise ValueError("shards were listed although none had ended")
        return Done(calls, value=1000 * cpu / calls, cpu=cpu)

    def cost_of_children(self, times: int) -> Done:
        """Return how many times shards are listed for each shard that ends."""
        before = self._server.calls("DescribeStream")
        for _ in range(times):
            self._server.ask("roll_over", self._server.ask("open_shards", self._address.collection)[0])
            self._server.fill(self._address, 1)
            events = 0
            while events < _SHARDS:
                events += self._page()
        return Done(times, value=(self._server.calls("DescribeStream") - before) / times)

    def _page(self) -> int:
        position = FromContinuationToken(self._token)
        page = self._client.read_changes(
            ChangeFeedRequest(self._address, position, max_page_size=_SHARDS), OperationOptions()
        )
        self._token = page.continuation_token
        return len(page.events)


@row(
    "dynamo-active",
    title="DynamoDB, 64 active of 5,000 shards",
    unit="ms",
    goal=1.5,
    at_most=True,
    about=(
        "The figure is the CPU time of a page call that resumes from a token. The stream lists "
        "5,000 shards, of which 64 are open and have new records. Pages have 64 events. The benchmark "
        "checks that no call lists shards."
    ),
    against="The same page call in a stream that lists only those 64 shards.",
    same_work=False,
)
def dynamo_active(bench: Bench) -> Iterator[Sides]:
    """This row checks that the cost of a page call depends only on the shards that are read."""
    records = bench.size(100)
    with (
        scripted(_SHARDS, initial_shards=_SHARDS) as server,
        connect(server.config) as ours,
        connect(server.config) as other,
    ):
        many = _Follower(server, ours, "many", bench.size(5000, _SHARDS))
        few = _Follower(server, other, "few", _SHARDS)
        yield Sides(lambda: many.cost_of_pages(records), lambda: few.cost_of_pages(records))


@row(
    "dynamo-discovery",
    title="DynamoDB, discovery in 5,000 shards",
    unit="calls",
    goal=4,
    at_most=True,
    about=(
        "The figure is the number of DescribeStream calls for each shard that rolls over. The "
        "stream has 5,000 shards, listed in 50 pages, and the service allows ten calls a second. "
        "The reader asks for the children of one parent. A single child may be one half of a split,"
        " so the reader looks for the other half for one second. The list is read only at the start. "
        "A start at `Now` reads the list twice, so that it finds a shard that ends in the meantime. The "
        "goal allows four calls: one search, two more searches within a second, and one in reserve."
    ),
    against="",
)
def dynamo_discovery(bench: Bench) -> Iterator[Sides]:
    """This row checks that, after the start, only child shards are requested."""
    with scripted(_SHARDS, initial_shards=_SHARDS) as server, connect(server.config) as client:
        follower = _Follower(server, client, "many", bench.size(5000, _SHARDS))
        notes = {"at the start": float(server.calls("DescribeStream"))}
        yield Sides(lambda: attrs.evolve(follower.cost_of_children(bench.size(2)), notes=notes))
