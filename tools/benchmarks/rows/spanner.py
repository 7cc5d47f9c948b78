"""The Spanner provider compared with the library's own change stream query."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from threading import Thread
from typing import Final

from benchmarks.arrow import plan_ranges, read_arrow
from benchmarks.processes import on_client_core
from benchmarks.row import Bench, Done, Sides, row
from benchmarks.spanner import Backlog, backlog
from multiclouddb_api import (
    BackfillDone,
    ChangeFeedPage,
    ChangeFeedRequest,
    FromContinuationToken,
    OperationOptions,
    Snapshot,
    SnapshotOrder,
    connect,
)

_EVENTS: Final = 20_000
_AT_ONCE: Final = 100
_ROWS: Final = 50_000
_SMALL_PAGE: Final = 5
_COMMITS: Final = 50
_WAIT: Final = 5.0
_PAUSE: Final = 0.3
_READ: Final = (
    "from Google's emulator, with churn turned off. A row has nine columns, which are about 300 bytes "
    "of JSON. In both programs the client runs on one core and the emulator on another. Both sides "
    "connect, resume before the first change, and stop after the last change."
)
_EMULATOR: Final = (
    "Measured by hand: both sides wait for the emulator, which takes more than half of the wall time. The "
    "CPU time of our side is half of the loop's. Most of it is converting values from Spanner's types."
)
_LOOP: Final = (
    "A loop over the change stream query of google-cloud-spanner (`execute_sql` on `READ_…`), "
    "partition by partition. The loop makes a dict for each record, and a dict for each change in the "
    "record, but no event."
)


# -- The library by hand


def dict_loop(changes: Backlog) -> Done:
    """Read records as the library returns them, and make dicts."""
    end, count = changes.now(), 0
    for token in changes.partitions():
        for data, _, _ in changes.query(token, end=end):
            for fields in data:
                record = dict(zip(changes.fields, fields, strict=True))
                for keys, new, old in record["mods"]:
                    _ = {"keys": keys, "new_values": new, "old_values": old}
                    count += 1
    return Done(count)


def _by_hand(changes: Backlog) -> Done:
    with on_client_core():
        return _counted(changes, dict_loop(changes))


# -- Our side


def _pages(
    read: Callable[[ChangeFeedRequest], ChangeFeedPage], changes: Backlog, max_page_size: int = 0
) -> Iterator[ChangeFeedPage]:
    token = changes.token
    while True:
        start = FromContinuationToken(token)
        page = read(ChangeFeedRequest(changes.address, start, max_page_size=max_page_size))
        yield page
        token = page.continuation_token


def _through_the_client(changes: Backlog, max_page_size: int = 0) -> Done:
    ids: set[str] = set()
    count = 0
    with on_client_core(), connect(changes.config) as client:
        for page in _pages(client.read_changes, changes, max_page_size):
            ids.update(event.event_id for event in page.events)
            count += len(page.events)
            if count >= changes.size:
                break
    return _counted(changes, Done(count, len(ids)))


def _through_arrow(changes: Backlog) -> Callable[[], Done]:
    parts = plan_ranges(changes.config, changes.address, changes.size, changes.token)

    def run() -> Done:
        with on_client_core():
            return _counted(changes, Done(read_arrow(changes.config, changes.address, parts).count))

    return run


def _counted(changes: Backlog, done: Done) -> Done:
    """Check that each change was delivered exactly once.

    Raises:
        ValueError: Raised if a change is missing or was delivered twice.
    """
    if done.count != changes.size or done.ids not in (0, changes.size):
        raise ValueError(f"read {done.count:,} changes, {done.ids} different, of {changes.size:,}")
    return Done(done.count)


# -- Rows


@row(
    "spanner-events",
    title="Spanner, events, a hundred in a transaction",
    question="How many changes a second come from Spanner?",
    goal=1.5,
    about=f"The client reads 20,000 inserts {_READ}",
    against=_LOOP,
    same_work=False,
    reason=_EMULATOR,
    shown=(dict_loop,),
)
def spanner_events(bench: Bench) -> Iterator[Sides]:
    """Measure the case in which one record contains many changes."""
    with backlog(bench.size(_EVENTS), _AT_ONCE) as changes:
        yield Sides(lambda: _through_the_client(changes), lambda: _by_hand(changes))


def scan(changes: Backlog) -> Done:
    """Read all rows of a snapshot."""
    ids: set[str] = set()
    count = 0
    start: Snapshot | FromContinuationToken = Snapshot(SnapshotOrder.ORDERED)
    with on_client_core(), connect(changes.config) as client:
        while True:
            page = client.read_changes(ChangeFeedRequest(changes.address, start))
            ids.update(event.event_id for event in page.events)
            count += len(page.events)
            if any(isinstance(notice, BackfillDone) for notice in page.notices):
                return _counted(changes, Done(count, len(ids)))
            start = FromContinuationToken(page.continuation_token)


def _shown_after(changes: Backlog, number: int, read: Callable[[], int]) -> float:
    """Return the milliseconds from a commit until a waiting reader receives its change."""
    committed: list[float] = []

    def write() -> None:
        time.sleep(_PAUSE + number % 7 / 50)
        changes.write(number, 1)
        committed.append(time.perf_counter())

    writer = Thread(target=write)
    writer.start()
    found = read()
    shown = time.perf_counter()
    writer.join()
    if found != 1:
        raise ValueError(f"{found} changes came from one commit")
    return 1000 * (shown - committed[0])


def latency(changes: Backlog, commits: int) -> Done:
    """Measure the latency of the client with `wait_seconds`."""
    waits = []
    with connect(changes.config) as client:
        token = changes.token

        def read() -> int:
            nonlocal token
            request = ChangeFeedRequest(changes.address, FromContinuationToken(token))
            page = client.read_changes(request, OperationOptions(wait_seconds=_WAIT))
            token = page.continuation_token
            return len(page.events)

        while read():
            pass
        for number in range(commits):
            waits.append(_shown_after(changes, number, read))
    return Done(commits, value=median(waits))
