"""Counts the requests with which readers follow an idle feed, and those that read a backlog."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import attrs

from benchmarks.row import Bench, Done, Section, Sides, row
from multiclouddb_api import (
    Beginning,
    ChangeFeedIterator,
    ChangeFeedRequest,
    ClientConfig,
    FromContinuationToken,
    ResourceAddress,
    connect,
)

_CHANGES: Final = 10_000
_SECONDS: Final = 10
_SETTLE_SECONDS: Final = 3
"""After the backlog, a reader asks again and again; its pauses grow."""
_LONGEST_SECONDS: Final = 120.0
_HOUR: Final = 3600
_MILLION: Final = 1_000_000
_WAIT: Final = 5.0


@attrs.define
class _Seen:
    """What a reader has read so far.

    Attributes:
        changes: The number of changes.
        over: Set when the reader shall end.
    """

    changes: int = 0
    over: threading.Event = attrs.field(factory=threading.Event)

    def take(self, changes: int) -> bool:
        """Add changes; return True as long as the reader shall continue."""
        self.changes += changes
        return not self.over.is_set()


_Reader = Callable[[_Seen], None]


def counted(reader: _Reader, changes: int, seconds: float, reads: Callable[[], int]) -> Done:
    """Run a reader, and count its requests: those for the backlog, and those of the idle time after it.

    Args:
        reader: Reads until `take` returns False.
        changes: The size of the backlog.
        seconds: How long the idle feed is followed, at least.
        reads: Returns the number of requests that have read the feed.
    """
    seen, before = _Seen(), reads()
    end = time.monotonic() + _LONGEST_SECONDS + seconds

    def wait(condition: Callable[[], bool]) -> float:
        while not condition():
            if running.done() or time.monotonic() > end:
                raise RuntimeError(
                    f"the reader has read {seen.changes} of {changes} changes, and stands still"
                )
            time.sleep(0.005)
        return time.monotonic()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(reader, seen)
        try:
            wait(lambda: seen.changes >= changes)
            backlog = reads()
            time.sleep(seconds * _SETTLE_SECONDS / _SECONDS)
            # From one request to another, so that the rate is that of the reader and not of the clock.
            settled = reads()
            began = wait(lambda: reads() > settled)
            first = reads()
            time.sleep(seconds)
            until = reads()
            lasted = wait(lambda: reads() > until) - began
            idle = until + 1 - first
        finally:
            seen.over.set()
        running.result()
    if seen.changes != changes:
        raise RuntimeError(f"the reader has read {seen.changes} changes, and there were {changes}")
    notes = {"requests for a million changes": (backlog - before) * _MILLION / changes}
    return Done(idle, value=idle * _HOUR / lasted, notes=notes)


def _ours(config: ClientConfig, request: ChangeFeedRequest) -> _Reader:
    def read(seen: _Seen) -> None:
        with connect(config) as client, client.iterate_changes(request, wait_seconds=_WAIT) as changes:
            threading.Thread(target=_stop_after, args=(seen.over, changes), daemon=True).start()
            for page in changes.pages():
                if not seen.take(len(page.events)):
                    return

    return read


def _stop_after(over: threading.Event, changes: ChangeFeedIterator) -> None:
    over.wait()
    changes.stop()


def _row(
    provider: str, title: str, unit: str, against: str
) -> Callable[[Callable[[Bench], Iterator[Sides]]], object]:
    return row(
        f"cost-{provider}",
        Section.COSTS,
        title=f"{title}, requests of an idle hour",
        question=f"How many requests does an idle feed of {title} send in an hour?",
        unit="requests",
        goal=1.1,
        at_most=True,
        pairs=1,
        warm_up=False,
        same_work=False,
        about=(
            "The figure is the number of requests that `iterate_changes(wait_seconds=5)` sends for one idle "
            f"partition, and that read it; they are counted at the server for {_SECONDS} seconds. {unit}"
        ),
        against=against,
    )


@_row(
    "dynamo",
    "DynamoDB",
    "A bill counts these calls of `GetRecords`, and no others.",
    "A loop over boto3's `get_records` that sleeps a second if there is nothing.",
)
def cost_dynamo(bench: Bench) -> Iterator[Sides]:
    """Count on our emulator, with one shard for each side."""
    from benchmarks.dynamo import scripted

    changes, seconds = bench.size(_CHANGES, 100), bench.size(_SECONDS)
    with scripted(8) as server, scripted(8) as other:
        for each in (server, other):
            address = each.create("items")
            each.fill(address, changes)
        ours = _ours(server.config, ChangeFeedRequest(address, Beginning()))
        theirs = _boto3(other.config.connection, address)
        yield Sides(
            lambda: counted(ours, changes, seconds, lambda: server.calls("GetRecords")),
            lambda: counted(theirs, changes, seconds, lambda: other.calls("GetRecords")),
        )


def _boto3(connection: Any, address: ResourceAddress) -> _Reader:
    def read(seen: _Seen) -> None:
        session, endpoint = connection["session"], connection["endpoint_url"]
        tables = session.client("dynamodb", endpoint_url=endpoint)
        arn = tables.describe_table(TableName=address.collection)["Table"]["LatestStreamArn"]
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


@_row(
    "cosmos",
    "Cosmos DB",
    "An answer without items costs a request unit in our emulator.",
    "A loop over azure-cosmos' `query_items_change_feed` that sleeps a second if there is nothing.",
)
def cost_cosmos(bench: Bench) -> Iterator[Sides]:
    """Count on our emulator, with one range, in the feed of all versions and deletes."""
    from benchmarks.cosmos_feed import ADDRESS, account, start_by_hand

    changes, seconds = bench.size(_CHANGES, 100), bench.size(_SECONDS)
    with account(1) as server, account(1) as other:
        request = ChangeFeedRequest(ADDRESS, FromContinuationToken(server.token()))
        ours = _ours(server.config(), request)
        container = other.container()
        theirs = _azure(container, start_by_hand(container))
        for each in (server, other):
            each.ask("fill", changes)
        yield Sides(
            lambda: counted(ours, changes, seconds, lambda: server.ask("count")),
            lambda: counted(theirs, changes, seconds, lambda: other.ask("count")),
        )


def _azure(container: Any, continuation: str) -> _Reader:
    def read(seen: _Seen) -> None:
        headers: list[Any] = []
        at, items = continuation, 0
        while seen.take(items):
            if headers and not items:
                seen.over.wait(1.0)
            headers.clear()
            pages = container.query_items_change_feed(
                continuation=at, max_item_count=1000, response_hook=lambda found, _: headers.append(found)
            ).by_page()
            items = sum(len(list(page)) for page in pages)
            at = str(headers[-1]["etag"])

    return read
