"""Measures the peak memory of a process that reads large documents.

The command of this process is `python -m benchmarks.rows.large_documents URL DATABASE COLLECTION TOKEN BUDGET
COUNT`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
_BYTES: Final = 16_000_000
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
def _mongo(folder: Path) -> Iterator[Place]:
    module = server_module("mongo", "mongod")
    with module.ReplicaSet(folder / "mongod", cache_gb=1.0) as servers:
        collection = servers.client()[_DATABASE].create_collection("items")
        yield (
            servers.uri(),
            ResourceAddress(_DATABASE, "items"),
            lambda key, text: collection.insert_one({"_id": key, "text": text}),
        )


@row(
    "memory-mongo-large",
    title="Peak memory, MongoDB with documents of 16 MB",
    question="How much memory does a reader need if documents are as large as the database allows?",
    unit="MiB",
    goal=_GOAL,
    at_most=True,
    about=(
        "The figure is the peak resident memory of a fresh process that reads 400 MB in documents of 16 MB "
        f"with the default `max_buffered_bytes` of {_BUDGET} MiB. The goal is twice that, and 60 MiB."
    ),
    against="",
    pairs=1,
    warm_up=False,
    same_work=False,
    profiled=False,
)
def memory_mongo_large(bench: Bench) -> Iterator[Sides]:
    """This row checks that memory is bounded in bytes."""
    count = bench.size(_TOTAL // _BYTES, 4)
    with _mongo(bench.folder) as (url, address, put):
        with connect(url) as client:
            token = client.read_changes(ChangeFeedRequest(address, Now())).continuation_token
        for number in range(count):
            put(f"k{number:05}", chr(97 + number % 26) * _BYTES)

        def ours() -> Done:
            words = (url, address.database or "", str(address.collection), token, str(_BUDGET << 20))
            report = report_of("-m", __name__, *words, str(count))
            if (report["count"], report["total"]) != (count, count * _BYTES):
                raise ValueError(f"read {report['count']:,} of {count:,} documents")
            return Done(count, value=report["mebibytes"], cpu=report["cpu"])

        yield Sides(ours)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(read_large(*sys.argv[1:])))
