"""Measures the peak memory of a process that reads: a long feed, and large documents.

The command of this process is `python -m benchmarks.rows.memory URL DATABASE COLLECTION TOKEN COUNT`. Without
a token, it reads from the beginning.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.new_process import report_of
from benchmarks.row import Bench, Done, Section, Sides, row
from benchmarks.stores import ADDRESS, fill, grow, small_document, url
from multiclouddb_api import ResourceAddress

_EVENTS: Final = 500_000
_TIMES: Final = 3
_STATUS: Final = Path("/proc/self/status")
_BUDGET: Final = 64
_TOTAL: Final = 400_000_000
_BYTES: Final = 10_000_000


def read_all(source: str, database: str, collection: str, token: str, wanted: str) -> dict[str, Any]:
    """Read so many events through the client, keep nothing, and return the figures."""
    from multiclouddb_api import Beginning, ChangeFeedRequest, FromContinuationToken, connect

    count = size = 0
    last = ""
    with connect(source) as client:
        start = FromContinuationToken(token) if token else Beginning()
        request = ChangeFeedRequest(ResourceAddress(database or None, collection), start)
        while count < int(wanted):
            page = client.read_changes(request)
            for event in page.events:
                count += 1
                size += len((event.new_item_state or {}).get("text", ""))
                last = max(last, event.event_id)
            request = ChangeFeedRequest(request.address, FromContinuationToken(page.continuation_token))
            del page
    return {"count": count, "size": size, "last": last, "mebibytes": peak_mebibytes()}


def peak_mebibytes() -> float:
    """Return the peak resident memory of this process.

    On Linux, the function does not use `ru_maxrss`, because that value starts with the parent's peak.
    """
    if _STATUS.exists():
        (line,) = [line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # macOS reports the value in bytes


def fresh_process(
    source: str, address: ResourceAddress, token: str, count: int
) -> tuple[Done, dict[str, Any]]:
    """Read so many events in a process of its own; return its peak memory, and its report."""
    words = (source, address.database or "", str(address.collection), token, str(count))
    report = report_of("-m", __name__, *words)
    if report["count"] != count:
        raise ValueError(f"read {report['count']:,} of {count:,} events")
    return Done(count, value=report["mebibytes"]), report


def _whole(path: Path, events: int) -> Done:
    done, report = fresh_process(url(path), ADDRESS, "", events)
    # Sequence numbers count from 1 after the head of an empty store.
    if int(report["last"]) != events:
        raise ValueError(f"the last event is {int(report['last']):,}, and not {events:,}")
    return done


@row(
    "memory",
    Section.PROCESS,
    title="Peak memory, 1.5 million events",
    question="Does memory grow with the length of a feed?",
    unit="MiB",
    goal=1.1,
    at_most=True,
    about=(
        "The figure is the peak resident memory of a fresh process that reads 1.5 million events from"
        " the embedded store. The benchmark writes 500,000 events, and SQLite appends copies of these "
        "events with new ids."
    ),
    against="The same program, in a fresh process, reads only the 500,000 events.",
    pairs=1,
    warm_up=False,
    same_work=False,
)
def memory(bench: Bench) -> Iterator[Sides]:
    """This row checks that memory does not grow with the length of a feed."""
    small, large = bench.folder / "small.db", bench.folder / "large.db"
    events = bench.size(_EVENTS)
    fill(small, events, make=small_document)
    grow(small, large, _TIMES)
    yield Sides(lambda: _whole(large, _TIMES * events), lambda: _whole(small, events))


@row(
    "memory-large",
    Section.PROCESS,
    title="Peak memory, MongoDB with documents of 10 MB",
    question="How much memory does a reader need at documents of 10 MB?",
    unit="MiB",
    goal=2 * _BUDGET + 60,
    at_most=True,
    about=(
        "The figure is the peak resident memory of a fresh process that reads 400 MB in documents of 10 MB "
        f"with the default `max_buffered_bytes` of {_BUDGET} MiB. The goal is twice that, and 60 MiB."
    ),
    against="",
    pairs=1,
    warm_up=False,
)
def memory_large(bench: Bench) -> Iterator[Sides]:
    """This row checks that memory is bounded in bytes."""
    from benchmarks import mongo

    count = bench.size(_TOTAL // _BYTES, 4)
    with mongo.backlog(bench.folder, 0, cache_gb=1.0) as changes:
        with changes.client() as client:
            collection = client[mongo.ADDRESS.database][mongo.ADDRESS.collection]
            for number in range(count):
                collection.insert_one({"_id": f"k{number:05}", "text": chr(97 + number % 26) * _BYTES})

        def ours() -> Done:
            done, report = fresh_process(changes.url, mongo.ADDRESS, changes.token, count)
            if report["size"] != count * _BYTES:
                raise ValueError(f"the documents have {report['size']:,} bytes, and not {count * _BYTES:,}")
            return done

        yield Sides(ours)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(read_all(*sys.argv[1:])))
