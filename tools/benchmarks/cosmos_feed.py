"""Runs a container of the Cosmos emulator in a separate process, and reads its change feed by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Final

import attrs

from benchmarks.processes import served
from multiclouddb_api import ChangeFeedRequest, ClientConfig, Now, ResourceAddress, connect

__all__ = ["ADDRESS", "Account", "account", "bare_loop", "start_by_hand"]

ADDRESS: Final = ResourceAddress("shop", "orders")
_READ: Final = "ReadChangeFeed"


def _serve(pipe: Connection, ranges: int) -> None:
    from azure.cosmos import CosmosClient, PartitionKey

    from multiclouddb_cosmos_emulator import CosmosEmulator
    from multiclouddb_cosmos_emulator.writes import Transaction

    filled = 0

    def fill(items: int) -> None:
        nonlocal filled
        # The emulator's own transactions write the items, because writing over HTTP would take minutes.
        with server._lock:
            container = server._container("shop", "orders")
            for number in range(filled, filled + items):
                transaction = Transaction(container, None)
                text = f"{number:08d}" + "x" * 240
                transaction.create(
                    {"id": str(number), "pk": f"k{number % 997}", "number": number, "text": text}
                )
                transaction.commit()
        filled += items

    with CosmosEmulator() as server:
        with CosmosClient(server.endpoint, server.key, enable_endpoint_discovery=False) as client:
            database = client.create_database("shop")
            database.create_container("orders", PartitionKey("/pk"), offer_throughput=6_000 * ranges)
        pipe.send((server.endpoint, server.key))
        with suppress(EOFError):
            while True:
                name, argument = pipe.recv()
                if name == "fill":
                    fill(argument)
                pipe.send(server.journal.count(_READ))


@attrs.frozen
class Account:
    """An account in the emulator.

    Attributes:
        endpoint: The address of the emulator.
        key: The account's key.
        pipe: The pipe to the emulator's process.
    """

    endpoint: str
    key: str
    pipe: Any

    def ask(self, name: str, argument: int = 0) -> int:
        """Run a command in the emulator's process.

        Args:
            name: The name of the command: `fill` or `count`.
            argument: With `fill`, the number of items to write.

        Returns:
            The number of reads of the feed that the emulator has counted.
        """
        self.pipe.send((name, argument))
        counted: int = self.pipe.recv()
        return counted

    def config(self, concurrency: int = 32) -> ClientConfig:
        """Return the configuration for our client."""
        os.environ["AZURE_COSMOS_KEY"] = self.key
        return ClientConfig("cosmos", {"url": self.url}, max_concurrency=concurrency)

    @property
    def url(self) -> str:
        """The URL for `connect`; the key comes from the environment."""
        return f"cosmos://{self.endpoint.split('/')[2]}?tls=false"

    def token(self) -> str:
        """Return the present position, as this project's token."""
        with connect(self.config()) as client:
            return client.read_changes(ChangeFeedRequest(ADDRESS, Now())).continuation_token

    def container(self) -> Any:
        """Return the container from an azure-cosmos client.

        Like the provider's client, this client has the consistency level `Eventual`. Unlike the
        provider's client, it uses the default transport of azure-cosmos.
        """
        from azure.cosmos import CosmosClient

        client = CosmosClient(
            self.endpoint, self.key, consistency_level="Eventual", enable_endpoint_discovery=False
        )
        return client.get_database_client("shop").get_container_client("orders")


def start_by_hand(container: Any) -> str:
    """Return a continuation that starts now and covers all ranges."""
    seen: list[Any] = []
    pages = container.query_items_change_feed(
        mode="AllVersionsAndDeletes", start_time="Now", response_hook=lambda headers, _: seen.append(headers)
    ).by_page()
    next(pages, None)
    return str(seen[-1]["etag"])


def bare_loop(container: Any, continuation: str) -> int:
    """Read everything with azure-cosmos without building events; return the number of items."""
    pages = container.query_items_change_feed(continuation=continuation, max_item_count=1000).by_page()
    count = 0
    for page in pages:
        count += len(list(page))
    return count


@contextmanager
def account(ranges: int) -> Iterator[Account]:
    """Start an emulator with one empty container that has the given number of ranges.

    Args:
        ranges: The number of ranges.
    """
    with served(_serve, ranges) as ((endpoint, key), pipe):
        yield Account(endpoint, key, pipe)
