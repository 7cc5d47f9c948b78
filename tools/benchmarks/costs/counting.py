"""Counts what servers receive from readers that run here, while they read a backlog and then an idle feed."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.costs.cost import Cost, Counted
from multiclouddb_api import (
    Beginning,
    ChangeFeedIterator,
    ChangeFeedRequest,
    ClientConfig,
    FromContinuationToken,
    IteratorSettings,
    Now,
    ResourceAddress,
    connect,
)

__all__ = ["SERVICES"]

_SETTLE_SECONDS: Final = 15.0
"""After the backlog, a reader asks again and again; our pauses are the longest after ten idle pages."""
_LONGEST_SECONDS: Final = 300.0
_SOON: Final = IteratorSettings(wait_seconds=5.0)
"""The reader always waits: a pause between two calls is shorter by what the last call has waited."""
_OURS: Final = (_SOON, IteratorSettings())


@attrs.define
class _Seen:
    """What a reader has read so far.

    Attributes:
        changes: The number of changes.
        units: The units of the bill, as the server's answers state them.
        over: Set when the reader shall end.
    """

    changes: int = 0
    units: float = 0.0
    over: threading.Event = attrs.field(factory=threading.Event)

    def take(self, changes: int, units: float = 0.0) -> bool:
        """Add changes and units; return True as long as the reader shall continue."""
        self.changes += changes
        self.units += units
        return not self.over.is_set()


_Reader = Callable[[_Seen], None]


def _counted(
    reader: _Reader,
    changes: int,
    seconds: float,
    reads: Callable[[], int],
    all_: Callable[[], int],
    *,
    bills: bool,
) -> Counted:
    """Run a reader in a thread, and count the requests for the backlog and those of the idle time after it.

    Args:
        reader: Reads until `take` returns False.
        changes: The size of the backlog.
        seconds: How long the idle feed is followed.
        reads: Returns the number of requests that have read the feed.
        all_: Returns the number of all requests.
        bills: True if the answers state units.
    """
    seen, failed = _Seen(), []

    def run() -> None:
        try:
            reader(seen)
        except BaseException as error:
            failed.append(error)
            raise

    before = reads()
    thread = threading.Thread(target=run, name="reader")
    thread.start()
    try:
        end = time.monotonic() + _LONGEST_SECONDS
        while seen.changes < changes:
            if failed or time.monotonic() > end:
                raise RuntimeError(f"the reader has read {seen.changes} of {changes} changes")
            time.sleep(0.01)
        backlog, units = reads() - before, seen.units
        time.sleep(min(_SETTLE_SECONDS, seconds))
        from_reads, from_all, from_units, began = reads(), all_(), seen.units, time.monotonic()
        time.sleep(seconds)
        to_reads, to_all, to_units, lasted = reads(), all_(), seen.units, time.monotonic() - began
    finally:
        seen.over.set()
        thread.join()
    if seen.changes != changes:
        raise RuntimeError(f"the reader has read {seen.changes} changes, and there were {changes}")
    idle = to_reads - from_reads
    return Counted(
        changes,
        backlog,
        units if bills else None,
        lasted,
        idle,
        to_all - from_all - idle,
        to_units - from_units if bills else None,
    )


def _ours(config: ClientConfig, request: ChangeFeedRequest, settings: IteratorSettings) -> _Reader:
    """Return our reader, whose pages state the units where the service does."""

    def read(seen: _Seen) -> None:
        with connect(config) as client, client.iterate_changes(request, **settings) as changes:
            threading.Thread(target=_stop_after, args=(seen.over, changes), daemon=True).start()
            for page in changes.pages():
                if not seen.take(len(page.events), page.diagnostics.native_charge or 0.0):
                    return

    return read


def _stop_after(over: threading.Event, changes: ChangeFeedIterator) -> None:
    over.wait()
    changes.stop()


def _named(settings: IteratorSettings) -> str:
    text = ", ".join(f"{name}={value:g}" for name, value in settings.items() if isinstance(value, float))
    return f"multiclouddb, `iterate_changes({text})`"


# -- DynamoDB: the bill counts the calls of GetRecords


def dynamo(changes: int, seconds: float, _folder: Path) -> Iterator[Cost]:
    """Count on our emulator, with one shard."""
    from benchmarks.dynamo import scripted

    for settings in _OURS:
        with scripted(8) as server:
            address = server.create("items")
            server.fill(address, changes)
            reader = _ours(server.config, ChangeFeedRequest(address, Beginning()), settings)
            yield _dynamo(server, changes, seconds, _named(settings), reader, ours=True)
    for name, loop in (
        ("boto3, a loop that sleeps a second if there is nothing", _boto3),
        ("bloop, the same loop", _bloop),
    ):
        with scripted(8) as server:
            address = server.create("items")
            server.fill(address, changes)
            reader = loop(server.config.connection, address)
            yield _dynamo(server, changes, seconds, name, reader, ours=False)


def _dynamo(server: Any, changes: int, seconds: float, name: str, reader: _Reader, *, ours: bool) -> Cost:
    def reads() -> int:
        return int(server.calls("GetRecords"))

    def all_() -> int:
        return int(
            server.calls("GetRecords", "GetShardIterator", "DescribeStream", "DescribeTable", "ListStreams")
        )

    counted = _counted(reader, changes, seconds, reads, all_, bills=False)
    # A read request unit is a call of GetRecords.
    counted = attrs.evolve(counted, units=float(counted.reads), idle_units=float(counted.idle_reads))
    return Cost.of("DynamoDB", name, counted, ours=ours)


def _boto3(connection: Any, address: ResourceAddress) -> _Reader:
    def read(seen: _Seen) -> None:
        session, endpoint = connection["session"], connection["endpoint_url"]
        described = session.client("dynamodb", endpoint_url=endpoint).describe_table(
            TableName=address.collection
        )
        arn = described["Table"]["LatestStreamArn"]
        streams = session.client("dynamodbstreams", endpoint_url=endpoint)
        (shard,) = streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
        start = {"StreamArn": arn, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        iterator = streams.get_shard_iterator(**start)["ShardIterator"]
        while True:
            page = streams.get_records(ShardIterator=iterator, Limit=1000)
            iterator = page["NextShardIterator"]
            if not seen.take(len(page["Records"])):
                return
            if not page["Records"]:
                seen.over.wait(1.0)

    return read


def _bloop(connection: Any, address: ResourceAddress) -> _Reader:
    from benchmarks.peers import environments

    def read(seen: _Seen) -> None:
        sys.path.insert(0, str(environments.bloop()))
        from bloop import BaseModel, Column, Engine, String

        session, endpoint = connection["session"], connection["endpoint_url"]
        tables = session.client("dynamodb", endpoint_url=endpoint)
        streams = session.client("dynamodbstreams", endpoint_url=endpoint)
        meta = type("Meta", (), {"table_name": address.collection, "stream": {"include": {"new"}}})
        model: Any = type("Item", (BaseModel,), {"Meta": meta, "pk": Column(String, hash_key=True)})
        engine = Engine(dynamodb=tables, dynamodbstreams=streams)
        engine.bind(model, skip_table_setup=True)
        model.Meta.stream["arn"] = tables.describe_table(TableName=address.collection)["Table"][
            "LatestStreamArn"
        ]
        stream = engine.stream(model, "trim_horizon")
        while seen.take(0):
            if next(stream) is None:
                seen.over.wait(1.0)
            else:
                seen.take(1)

    return read


# -- Cosmos DB: every answer states its request units


def cosmos(changes: int, seconds: float, _folder: Path) -> Iterator[Cost]:
    """Count on our emulator, with one range, in the feed of all versions and deletes."""
    from benchmarks.cosmos_feed import ADDRESS, account, start_by_hand

    for settings in _OURS:
        with account(1) as server:
            with connect(server.config()) as client:
                token = client.read_changes(ChangeFeedRequest(ADDRESS, Now())).continuation_token
            server.ask("fill", changes)
            request = ChangeFeedRequest(ADDRESS, FromContinuationToken(token))
            yield _cosmos(
                server,
                changes,
                seconds,
                _named(settings),
                _ours(server.config(), request, settings),
                ours=True,
            )
    with account(1) as server:
        container = server.container()
        reader = _azure(container, start_by_hand(container))
        server.ask("fill", changes)
        name = "azure-cosmos, a loop that sleeps a second if there is nothing"
        yield _cosmos(server, changes, seconds, name, reader, ours=False)


def _cosmos(server: Any, changes: int, seconds: float, name: str, reader: _Reader, *, ours: bool) -> Cost:
    counted = _counted(
        reader, changes, seconds, lambda: server.ask("count"), lambda: server.ask("requests"), bills=True
    )
    return Cost.of("Cosmos DB", name, counted, ours=ours)


def _azure(container: Any, continuation: str) -> _Reader:
    def read(seen: _Seen) -> None:
        headers: list[Any] = []
        at = continuation
        while True:
            pages = container.query_items_change_feed(
                continuation=at, max_item_count=1000, response_hook=lambda found, _: headers.append(found)
            ).by_page()
            items = sum(len(list(page)) for page in pages)
            units = sum(float(found["x-ms-request-charge"]) for found in headers)
            at = str(headers[-1]["etag"])
            headers.clear()
            if not seen.take(items, units):
                return
            if not items:
                seen.over.wait(1.0)

    return read


# -- Spanner and MongoDB: a request has no price


def spanner(changes: int, seconds: float, _folder: Path) -> Iterator[Cost]:
    """Count on our scripted server, with one partition."""
    from benchmarks.spanner import scripted

    for settings in _OURS:
        with scripted(1) as server:
            address = server.create("items")
            with connect(ClientConfig("spanner", {"url": server.url})) as client:
                token = client.read_changes(ChangeFeedRequest(address, Now())).continuation_token
            server.fill(address, changes)
            request = ChangeFeedRequest(address, FromContinuationToken(token))
            reader = _ours(ClientConfig("spanner", {"url": server.url}), request, settings)
            counted = _counted(reader, changes, seconds, server.queries, server.calls, bills=False)
            yield Cost.of("Spanner", _named(settings), counted, ours=True, waits="wait_seconds" in settings)


def mongo(changes: int, seconds: float, folder: Path) -> Iterator[Cost]:
    """Count on a server of MongoDB, which states how many commands it has received."""
    from benchmarks.mongo import ADDRESS, backlog

    with backlog(folder, changes) as server:

        def reads() -> int:
            return server.get_mores() + server.aggregates()

        def all_() -> int:
            return reads() + server.finds()

        request = ChangeFeedRequest(ADDRESS, FromContinuationToken(server.token))
        for settings in _OURS:
            reader = _ours(server.config, request, settings)
            counted = _counted(reader, changes, seconds, reads, all_, bills=False)
            yield Cost.of("MongoDB", _named(settings), counted, ours=True, waits="wait_seconds" in settings)
        counted = _counted(_pymongo(server), changes, seconds, reads, all_, bills=False)
        yield Cost.of("MongoDB", "PyMongo, `try_next` in a loop", counted, waits=True)


def _pymongo(server: Any) -> _Reader:
    from benchmarks.mongo import ADDRESS

    def read(seen: _Seen) -> None:
        with server.client() as client:
            collection = client[ADDRESS.database][ADDRESS.collection]
            with collection.watch(start_after=server.resume_token) as stream:
                while seen.take(stream.try_next() is not None):
                    pass

    return read


SERVICES: Final[dict[str, Callable[[int, float, Path], Iterator[Cost]]]] = {
    "dynamo": dynamo,
    "cosmos": cosmos,
    "spanner": spanner,
    "mongo": mongo,
}
"""The counts of each service: a function of the backlog's size, the idle seconds, and an empty folder."""
