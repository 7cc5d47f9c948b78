"""The Cosmos DB provider compared with a loop over azure-cosmos, and measured on many ranges."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs

from benchmarks.arrow import AS_A_TASK, plan_ranges, read_arrow
from benchmarks.cosmos_feed import ADDRESS, Account, account, bare_loop, start_by_hand
from benchmarks.processes import on_client_core
from benchmarks.row import Bench, Done, Sides, row
from multiclouddb_api import ChangeFeedRequest, FromContinuationToken, Now, connect

_ITEMS: Final = 24_000
_RANGES: Final = 4
_MANY: Final = 64
_LATENCY: Final = 0.02
_CPU: Final = (
    "24,000 changes of 400 bytes in 4 ranges, in pages of 1,000 items that the emulator stores as text. The "
    "figure counts CPU time of the client, not wall time. The client runs on one core and the server on "
    "another."
)
_BARE: Final = (
    "A loop over `query_items_change_feed` of azure-cosmos, for all ranges at once. The loop builds"
    " no events."
)
_SHARE: Final = (
    "Measured by hand, in µs for an item: the client takes 12, of which SDK, HTTP and JSON take 8, as in the "
    "loop. Taking the system fields out of an item takes 2, its event id 1.8, and the objects of event and "
    "key 1.7. The ratio of one run was between 0.65 and 1.3 on two shared cores."
)
_REQUESTS: Final = (
    "Measured by hand: nearly all CPU time is in azure-cosmos and HTTP, where no function takes more than "
    "4 %, and all requests share one interpreter. The loop's CPU time is a quarter of its wall time, so "
    "nothing that sends its requests from one process can be more than 4 times as fast."
)


def _start(server: Account, mode: str = "all_versions") -> str:
    with connect(server.config(mode=mode)) as client:
        return client.read_changes(ChangeFeedRequest(ADDRESS, Now())).continuation_token


def _walk(read: Callable[[ChangeFeedRequest], Any], token: str) -> Iterator[Any]:
    while True:
        page = read(ChangeFeedRequest(ADDRESS, FromContinuationToken(token)))
        yield page
        if page.idle:
            return
        token = page.continuation_token


def _events(server: Account, token: str, mode: str = "all_versions") -> Done:
    ids: list[str] = []
    with on_client_core(), connect(server.config(mode=mode)) as client:
        began = time.process_time()
        for page in _walk(client.read_changes, token):
            ids += [event.event_id for event in page.events]
        cpu = time.process_time() - began
    return Done(len(ids), seconds=cpu, cpu=cpu)


def _arrow(server: Account, token: str, size: int, mode: str = "all_versions") -> Callable[[], Done]:
    config = server.config(mode=mode)
    parts = plan_ranges(config, ADDRESS, size, token)

    def run() -> Done:
        with on_client_core():
            began = time.process_time()
            done = read_arrow(config, ADDRESS, parts)
            cpu = time.process_time() - began
        return attrs.evolve(done, ids=0, seconds=cpu, cpu=cpu)

    return run


def _by_hand(container: Any, continuation: str) -> Done:
    with on_client_core():
        began = time.process_time()
        count = bare_loop(container, continuation)
        cpu = time.process_time() - began
    return Done(count, seconds=cpu, cpu=cpu)


@row(
    "cosmos-events",
    title="Cosmos DB, events",
    goal=0.77,
    about=f"The client reads {_CPU}",
    against=_BARE,
    reason=_SHARE,
)
def cosmos_events(bench: Bench) -> Iterator[Sides]:
    """The goal is at most 1.3 times the CPU time of the loop."""
    with account(_RANGES) as server:
        token, container = _start(server), server.container()
        continuation = start_by_hand(container)
        server.ask("fill", bench.size(_ITEMS, 2000))
        yield Sides(lambda: _events(server, token), lambda: _by_hand(container, continuation))


@row(
    "cosmos-arrow",
    title="Cosmos DB, Arrow",
    goal=0.95,
    about=f"{AS_A_TASK}, with items as JSON text: {_CPU}",
    against=_BARE,
    reason=_SHARE,
)
def cosmos_arrow(bench: Bench) -> Iterator[Sides]:
    """The goal is at most 1.1 times the CPU time of the loop."""
    with account(_RANGES) as server:
        token, container = _start(server), server.container()
        continuation = start_by_hand(container)
        items = bench.size(_ITEMS, 2000)
        server.ask("fill", items)
        yield Sides(_arrow(server, token, items), lambda: _by_hand(container, continuation))


_LATEST: Final = (
    "A loop over `query_items_change_feed` of azure-cosmos in the mode `LatestVersion`, for all ranges at"
    " once. The loop builds no events."
)


@row(
    "cosmos-latest-events",
    title="Cosmos DB, events of latest versions",
    goal=0.9,
    about=f"With `mode=latest`, the client reads {_CPU}",
    against=_LATEST,
    reason=_SHARE,
)
def cosmos_latest_events(bench: Bench) -> Iterator[Sides]:
    """The goal is at most 1.1 times the CPU time of the loop."""
    with account(_RANGES) as server:
        token, container = _start(server, "latest"), server.container()
        continuation = start_by_hand(container, "LatestVersion")
        server.ask("fill", bench.size(_ITEMS, 2000))
        yield Sides(lambda: _events(server, token, "latest"), lambda: _by_hand(container, continuation))


@row(
    "cosmos-latest-arrow",
    title="Cosmos DB, Arrow of latest versions",
    goal=1.0,
    about=f"With `mode=latest`. {AS_A_TASK}, with items as JSON text: {_CPU}",
    against=_LATEST,
    reason=_SHARE,
)
def cosmos_latest_arrow(bench: Bench) -> Iterator[Sides]:
    """The goal is at most the CPU time of the loop."""
    with account(_RANGES) as server:
        token, container = _start(server, "latest"), server.container()
        continuation = start_by_hand(container, "LatestVersion")
        items = bench.size(_ITEMS, 2000)
        server.ask("fill", items)
        ours = _arrow(server, token, items, "latest")
        yield Sides(ours, lambda: _by_hand(container, continuation))


# -- Many ranges


def _all_ranges(server: Account, token: str, latency: float) -> tuple[Done, int]:
    before = server.ask("delay", latency)
    began, cpu = time.perf_counter(), time.process_time()
    ids: list[str] = []
    with connect(server.config(_MANY)) as client:
        for page in _walk(client.read_changes, token):
            ids += [event.event_id for event in page.events]
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return Done(len(ids), seconds=seconds, cpu=cpu), server.ask("count") - before


def _ideal(server: Account, token: str) -> Done:
    done, calls = _all_ranges(server, token, latency=0.0)
    assert done.cpu is not None
    server.ask("delay", 0)
    return attrs.evolve(done, seconds=max(calls * _LATENCY / _MANY, done.cpu))


def _one_by_one(server: Account, container: Any, continuation: str) -> Done:
    server.ask("delay", _LATENCY)
    began = time.perf_counter()
    count = bare_loop(container, continuation)
    return Done(count, seconds=time.perf_counter() - began)


_WIDE: Final = "The client reads 64 ranges with 20 ms of latency added to each call (`max_concurrency=64`)."


@row(
    "cosmos-ranges",
    title="Cosmos DB, 64 ranges",
    goal=0.85,
    about=_WIDE,
    against=(
        "The ideal time, computed from a run of the same calls without latency. The ideal is the "
        "larger of two times: calls * latency / 64, and the CPU time of that run."
    ),
    reason=_REQUESTS,
)
def cosmos_ranges(bench: Bench) -> Iterator[Sides]:
    """This row measures the cost of many concurrent requests over HTTP."""
    with account(_MANY) as server:
        token = _start(server)
        server.ask("fill", bench.size(_ITEMS, 1000))
        yield Sides(lambda: _all_ranges(server, token, _LATENCY)[0], lambda: _ideal(server, token))


@row(
    "cosmos-ranges-by-hand",
    title="Cosmos DB, 64 ranges compared with a loop",
    goal=3.0,
    about=_WIDE,
    against=f"{_BARE} In this benchmark, the loop queries one range after the other.",
    reason=_REQUESTS,
)
def cosmos_ranges_by_hand(bench: Bench) -> Iterator[Sides]:
    """Our side reads all ranges at the same time; the loop reads them one by one."""
    with account(_MANY) as server:
        token, container = _start(server), server.container()
        continuation = start_by_hand(container)
        server.ask("fill", bench.size(_ITEMS, 1000))
        yield Sides(
            lambda: _all_ranges(server, token, _LATENCY)[0],
            lambda: _one_by_one(server, container, continuation),
        )


def _idle(server: Account, token: str, calls: int) -> Done:
    requests = 0
    with on_client_core(), connect(server.config()) as client:
        client.read_changes(ChangeFeedRequest(ADDRESS, FromContinuationToken(token)))
        began = time.perf_counter()
        for _ in range(calls):
            page = client.read_changes(ChangeFeedRequest(ADDRESS, FromContinuationToken(token)))
            requests, token = requests + page.diagnostics.requests, page.continuation_token
        seconds = time.perf_counter() - began
    return Done(requests, seconds=seconds, notes={"requests a call": requests / calls})


@row(
    "cosmos-thousand",
    title="Cosmos DB, 1,000 ranges",
    unit="ranges/s",
    goal=0.8,
    same_work=False,
    about=(
        "The benchmark measures calls on an idle feed of 1,000 ranges. In a loop that waits between calls, "
        "each range is queried at most once in ten seconds, so all ranges together get at most 6,000 "
        "requests a minute."
    ),
    against=(
        "The same calls on a feed of 100 ranges. The ratio shows whether the time of a call is proportional "
        "to the number of ranges."
    ),
)
def cosmos_thousand(bench: Bench) -> Iterator[Sides]:
    """This benchmark checks that the time of a call grows only linearly with the number of ranges."""
    with account(bench.size(1000, 50)) as wide, account(bench.size(100, 5)) as narrow:
        tokens = _start(wide), _start(narrow)
        yield Sides(lambda: _idle(wide, tokens[0], 2), lambda: _idle(narrow, tokens[1], 20))
