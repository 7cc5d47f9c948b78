"""Measures what the library adds to the vendors' requests if it asks many partitions and finds nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from benchmarks.cosmos_feed import ADDRESS, Account, account
from benchmarks.dynamo import Scripted as Streams
from benchmarks.dynamo import scripted as streams
from benchmarks.row import Bench, Done, Section, Sides, row
from benchmarks.spanner import Backlog
from benchmarks.spanner import scripted as spanner
from multiclouddb_api import (
    ChangeFeedRequest,
    ClientConfig,
    FromContinuationToken,
    MulticloudDbClient,
    Now,
    OperationOptions,
    ResourceAddress,
    connect,
)

_PARTITIONS: Final = 1000
_WIDTH: Final = 8
"""How many requests run at once. By default, the vendors' clients keep at most ten connections."""
_OPTIONS: Final = OperationOptions(timeout_seconds=120)


def _row(
    provider: str, title: str, partitions: str, against: str
) -> Callable[[Callable[[Bench], Iterator[Sides]]], object]:
    return row(
        f"{provider}-idle",
        Section.COSTS,
        title=f"{title}, idle call over 1,000 {partitions}",
        question=f"What CPU time does an idle feed of 1,000 {partitions} cost on {title}?",
        unit="ms",
        goal=1.1,
        at_most=True,
        pairs=3,
        warm_up=False,
        about=(
            f"The figure is the CPU time of a call that asks 1,000 {partitions} of our emulator and finds "
            "nothing: what the library adds to the vendor's requests should be at most a tenth of them."
        ),
        against=against,
    )


def _timed(partitions: int, ask: Callable[[], int]) -> Callable[[], Done]:
    """Return a side.

    Args:
        partitions: The number of partitions.
        ask: Asks all partitions, which have nothing, and returns in how many requests.
    """

    def call() -> Done:
        began = time.process_time()
        requests = ask()
        cpu = time.process_time() - began
        if requests < partitions:
            raise ValueError(f"{requests} requests for {partitions} partitions")
        return Done(partitions, value=1000 * cpu * partitions / requests)

    return call


def _ours(
    client: MulticloudDbClient,
    address: ResourceAddress,
    partitions: int,
    asked: Callable[[], int] | None = None,
) -> Callable[[], Done]:
    """Return a side that reads until all partitions have answered that they have nothing.

    Args:
        client: The client.
        address: The collection.
        partitions: The number of its partitions.
        asked: Returns how often partitions were asked since the server began; by default, the pages tell it.
    """
    token = client.read_changes(ChangeFeedRequest(address, Now()), _OPTIONS).continuation_token

    def ask() -> int:
        nonlocal token
        before, requests, idle = 0 if asked is None else asked(), 0, False
        while not idle:  # on a busy machine, a server may answer too late
            page = client.read_changes(ChangeFeedRequest(address, FromContinuationToken(token)), _OPTIONS)
            _check_empty(page.events)
            token, idle, requests = page.continuation_token, page.idle, requests + page.diagnostics.requests
        return requests if asked is None else asked() - before

    return _timed(partitions, ask)


def _by_hand(ask: Callable[[str], None], partitions: Iterable[str]) -> Callable[[], Done]:
    """Return a side that asks each partition once, in as many threads as our client has."""
    names = list(partitions)

    def ask_all() -> int:
        with ThreadPoolExecutor(_WIDTH) as pool:
            return len(list(pool.map(ask, names)))

    return _timed(len(names), ask_all)


def _check_empty(records: Iterable[Any]) -> None:
    if any(True for _ in records):
        raise ValueError("a partition was not empty")


@_row("dynamo", "DynamoDB", "shards", "1,000 calls of boto3's `get_records`.")
def dynamo_idle(bench: Bench) -> Iterator[Sides]:
    """Measure the share of the library in what an idle stream of DynamoDB costs."""
    shards = bench.size(_PARTITIONS, 2)
    with streams(_WIDTH, initial_shards=shards) as server, connect(server.config) as client:
        address = server.create("items")
        yield Sides(
            _ours(client, address, shards, lambda: server.calls("GetRecords")), _boto3(server, address)
        )


def _boto3(server: Streams, address: ResourceAddress) -> Callable[[], Done]:
    session = server.config.connection["session"]
    endpoint = {"endpoint_url": server.config.connection["endpoint_url"]}
    with closing(session.client("dynamodb", **endpoint)) as tables:
        arn = tables.describe_table(TableName=address.collection)["Table"]["LatestStreamArn"]
    client, kind = session.client("dynamodbstreams", **endpoint), "TRIM_HORIZON"
    following: dict[str, str] = {}
    for shard in server.ask("open_shards", address.collection):
        start = client.get_shard_iterator(StreamArn=arn, ShardId=shard, ShardIteratorType=kind)
        following[shard] = start["ShardIterator"]

    def ask(shard: str) -> None:
        answer = client.get_records(ShardIterator=following[shard])
        _check_empty(answer["Records"])
        following[shard] = answer["NextShardIterator"]

    return _by_hand(ask, following)


@_row(
    "cosmos",
    "Cosmos DB",
    "ranges",
    "1,000 calls of azure-cosmos' `query_items_change_feed`, each with the continuation of a range.",
)
def cosmos_idle(bench: Bench) -> Iterator[Sides]:
    """Measure the share of the library in what an idle feed of Cosmos DB costs."""
    ranges = bench.size(_PARTITIONS, 2)
    with account(ranges) as server, connect(server.config(_WIDTH)) as client:
        yield Sides(_ours(client, ADDRESS, ranges), _azure(server))


def _azure(server: Account) -> Callable[[], Done]:
    container = server.container()
    following: dict[str, str] = {}

    def ask(name: str, **start: Any) -> None:
        told: list[Any] = []
        pages = container.query_items_change_feed(
            response_hook=lambda headers, _: told.append(headers),
            **(start or {"continuation": following[name]}),
        ).by_page()
        for page in pages:
            _check_empty(page)
        following[name] = told[-1]["etag"]

    for number, part in enumerate(container.read_feed_ranges()):
        ask(str(number), feed_range=part, mode="AllVersionsAndDeletes", start_time="Now")
    return _by_hand(ask, following)


@_row(
    "spanner",
    "Spanner",
    "partitions",
    "1,000 change stream queries of google-cloud-spanner (`execute_sql` on `READ_…`), each from the end of "
    "the previous one to the present.",
)
def spanner_idle(bench: Bench) -> Iterator[Sides]:
    """Measure the share of the library in what an idle change stream of Spanner costs."""
    partitions = bench.size(_PARTITIONS, 2)
    with spanner(partitions) as server:
        address = server.create("items")
        config = ClientConfig("spanner", {"url": server.url}, max_concurrency=_WIDTH)
        with connect(config) as client:
            now = datetime.now(UTC)
            table = Backlog(server.url, address, 0, "", now, server.database())
            yield Sides(_ours(client, address, partitions, server.queries), _google(table))


def _google(table: Backlog) -> Callable[[], Done]:
    following = dict.fromkeys(table.partitions(), table.start)

    def ask(token: str) -> None:
        end = datetime.now(UTC)
        _check_empty(data for data, _, _ in table.query(token, following[token], end) if data)
        following[token] = end + timedelta(microseconds=1)

    return _by_hand(ask, following)
