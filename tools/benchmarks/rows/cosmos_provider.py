"""The Cosmos DB provider compared with a loop over azure-cosmos, and measured on many ranges."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs

from benchmarks.arrow import plan_ranges, read_arrow
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
    question="How many changes a second come from Cosmos DB?",
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


# -- Many ranges
