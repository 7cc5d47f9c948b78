"""Measures the time from the start of an insert to the delivery of its change: `latency.py SPEC READER`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from statistics import median, quantiles
from typing import Any, Final

from benchmarks.peers.programs.meter import Meter, read_spec
from multiclouddb_api import (
    ChangeFeedRequest,
    ClientConfig,
    FromContinuationToken,
    Now,
    ResourceAddress,
    connect,
)

READY: Final = "ready"


def main() -> None:
    """Read until the last change."""
    spec = read_spec()
    late: list[float] = []
    with Meter(spec) as meter:
        for key, at in _READERS[sys.argv[2]](spec):
            late.append((time.monotonic_ns() - at) / 1e6)
            if meter.take(key):
                break
        counted = late[spec["warm_up"] :]
        # One hundredth of the values is above the last of the 99 cut points.
        meter.report(median_ms=median(counted), p99_ms=quantiles(counted, n=100)[-1])


def _ours(spec: dict[str, Any], **settings: Any) -> Iterator[tuple[str, int]]:
    address = ResourceAddress(spec["database"], spec["collection"])
    with connect(ClientConfig("mongo", {"url": spec["url"]})) as client:
        first = client.read_changes(ChangeFeedRequest(address, Now()))
        position = FromContinuationToken(first.continuation_token)
        _say_ready()
        for event in client.iterate_changes(ChangeFeedRequest(address, position), **settings):
            assert event.new_item_state is not None
            yield event.key.components["_id"], event.new_item_state["at"]


def _ours_waiting(spec: dict[str, Any]) -> Iterator[tuple[str, int]]:
    return _ours(spec, wait_seconds=1.0)


def _pymongo(spec: dict[str, Any]) -> Iterator[tuple[str, int]]:
    from pymongo import MongoClient

    client: MongoClient[dict[str, Any]] = MongoClient(spec["url"], tz_aware=True)
    with client, client[spec["database"]][spec["collection"]].watch() as stream:
        _say_ready()
        for change in stream:
            yield change["documentKey"]["_id"], change["fullDocument"]["at"]


def _say_ready() -> None:
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()


_READERS: Final = {"ours": _ours, "ours-waiting": _ours_waiting, "pymongo": _pymongo}

if __name__ == "__main__":
    main()
