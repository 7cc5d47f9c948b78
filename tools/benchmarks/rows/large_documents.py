"""Measures the peak memory of a process that reads large documents, with the default budget and with 1 MiB.

The command of this process is `python -m benchmarks.rows.large_documents URL DATABASE COLLECTION TOKEN BUDGET
COUNT`; with a COUNT of 0, it connects and reads nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.new_process import report_of
from benchmarks.row import Bench, Done, Sides, row
from benchmarks.rows.memory import peak_mebibytes
from benchmarks.servers import server_module
from multiclouddb_api import ChangeFeedRequest, ClientConfig, Now, ResourceAddress, connect

_BUDGET: Final = 64
_TOTAL: Final = 400_000_000
_GOAL: Final = 2 * _BUDGET + 60
_DOCUMENTS: Final = 12.0
_LEAST_BYTES: Final = 2_000_000
"""The growth of smaller documents is mostly the code that a first read loads."""
_DATABASE: Final = "large"
Place = tuple[str, ResourceAddress, Callable[[str, str], object]]


def read_large(
    source: str, database: str, collection: str, token: str, budget: str, wanted: str
) -> dict[str, Any]:
    """Read so many documents from a token through the client, keep nothing, and return the figures."""
    from multiclouddb_api import FromContinuationToken

    parsed = ClientConfig.from_url(source)
    config = ClientConfig(parsed.provider, parsed.connection, max_buffered_bytes=int(budget))
    count = total = 0
    with connect(config) as client:
        request = ChangeFeedRequest(
            ResourceAddress(database or None, collection), FromContinuationToken(token)
        )
        while count < int(wanted):
            page = client.read_changes(request)
            for event in page.events:
                count += 1
                total += len((event.new_item_state or {})["text"])
            request = ChangeFeedRequest(request.address, FromContinuationToken(page.continuation_token))
            del page
    return {"count": count, "total": total, "mebibytes": peak_mebibytes(), "cpu": time.process_time()}


@contextmanager
def _embedded(folder: Path) -> Iterator[Place]:
    from multiclouddb_embedded import EmbeddedStore

    with EmbeddedStore(folder / "large.db", durable=False) as store:
        address = store.create_collection("items", partitions=8)
        yield (
            f"embedded://{store.path}",
            address,
            lambda key, text: store.put("items", key, {"text": text}),
        )


@contextmanager
def _cosmos(folder: Path) -> Iterator[Place]:
    from azure.cosmos import CosmosClient, PartitionKey

    from multiclouddb_cosmos_emulator import CosmosEmulator

    del folder
    with CosmosEmulator() as server, CosmosClient(server.endpoint, server.key) as client:
        os.environ["AZURE_COSMOS_KEY"] = server.key
        container = client.create_database(_DATABASE).create_container("items", PartitionKey("/id"))
        yield (
            f"cosmos://{server.endpoint.split('/')[2]}?tls=false",
            ResourceAddress(_DATABASE, "items"),
            lambda key, text: container.upsert_item({"id": key, "text": text}),
        )


@contextmanager
def _mongo(folder: Path) -> Iterator[Place]:
    module = server_module("mongo", "mongod")
    with module.ReplicaSet(folder / "mongod", cache_gb=1.0) as servers:
        collection = servers.client()[_DATABASE].create_collection("items")
        yield (
            servers.uri(),
            ResourceAddress(_DATABASE, "items"),
            lambda key, text: collection.insert_one({"_id": key, "text": text}),
        )


@contextmanager
def _filled(
    bench: Bench, place: Callable[[Path], AbstractContextManager[Place]], nbytes: int
) -> Iterator[Callable[[int, bool], Done]]:
    """Write documents of a size, and return a function that measures a process with a budget."""
    count = bench.size(_TOTAL // nbytes, 4)
    with place(bench.folder) as (url, address, put):
        with connect(url) as client:
            token = client.read_changes(ChangeFeedRequest(address, Now())).continuation_token
        for number in range(count):
            put(f"k{number:05}", chr(97 + number % 26) * nbytes)

        def measured(mebibytes: int, reads: bool) -> Done:
            words = (url, address.database or "", str(address.collection), token, str(mebibytes << 20))
            wanted = count if reads else 0
            report = report_of("-m", __name__, *words, str(wanted))
            if (report["count"], report["total"]) != (wanted, wanted * nbytes):
                raise ValueError(f"read {report['count']:,} of {count:,} documents")
            return Done(count, value=report["mebibytes"], cpu=report["cpu"])

        yield measured


_memory_row = partial(row, at_most=True, against="", pairs=1, warm_up=False, same_work=False, profiled=False)


def _add(
    name: str, title: str, place: Callable[[Path], AbstractContextManager[Place]], nbytes: int, size: str
) -> None:
    @_memory_row(
        f"memory-{name}",
        title=f"Peak memory, {title} with documents of {size}",
        unit="MiB",
        goal=_GOAL,
        about=(
            f"The figure is the peak resident memory of a fresh process that reads 400 MB in documents of "
            f"{size} with the default `max_buffered_bytes` of {_BUDGET} MiB. The goal is twice that, and 60 "
            "MiB."
        ),
    )
    def default_budget(bench: Bench) -> Iterator[Sides]:
        with _filled(bench, place, nbytes) as measured:
            yield Sides(lambda: measured(_BUDGET, True))

    if nbytes < _LEAST_BYTES:
        return

    @_memory_row(
        f"memory-{name}-small",
        title=f"Peak memory, {title} with documents of {size} and 1 MiB",
        unit="documents",
        goal=_DOCUMENTS,
        about=(
            f"The same with `max_buffered_bytes` of 1 MiB. The figure is how much the peak memory grows over "
            f"that of a process that connects and reads nothing, in documents of {size}."
        ),
    )
    def small_budget(bench: Bench) -> Iterator[Sides]:
        with _filled(bench, place, nbytes) as measured:

            def ours() -> Done:
                nothing, done = measured(1, False), measured(1, True)
                grown = ((done.value or 0) - (nothing.value or 0)) * 2**20 / nbytes
                return Done(done.count, value=grown, cpu=done.cpu)

            yield Sides(ours)


_add("large", "the embedded store", _embedded, 400_000, "400 kB")
_add("embedded-large", "the embedded store", _embedded, 1_000_000, "1 MB")
_add("cosmos-large", "Cosmos DB", _cosmos, 2_000_000, "2 MB")
_add("mongo-large", "MongoDB", _mongo, 16_000_000, "16 MB")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(read_large(*sys.argv[1:])))
