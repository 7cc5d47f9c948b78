"""The Spanner provider compared with the library's own change stream query."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from statistics import median
from threading import Thread
from typing import Any, Final

from benchmarks.arrow import AS_A_TASK, plan_ranges, read_arrow
from benchmarks.processes import on_client_core
from benchmarks.row import Bench, Done, Sides, row
from benchmarks.spanner import COLUMNS, Backlog, backlog
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
_SINGLE: Final = 2_500
_AT_ONCE: Final = 100
_ROWS: Final = 50_000
_ROWS_AT_ONCE: Final = 1000
_SMALL_PAGE: Final = 5
_SMALL_PAGES: Final = 500
_LARGE_PAGES: Final = 3
_COMMITS: Final = 50
_WAIT: Final = 5.0
_PAUSE: Final = 0.3
_PARALLEL: Final = 8
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


@row(
    "spanner-events-single",
    title="Spanner, events, one in a transaction",
    goal=1.3,
    about=f"The client reads 2,500 inserts {_READ}",
    against=_LOOP,
    same_work=False,
)
def spanner_events_single(bench: Bench) -> Iterator[Sides]:
    """In this row, one record contains one change."""
    with backlog(bench.size(_SINGLE), 1) as changes:
        yield Sides(lambda: _through_the_client(changes), lambda: _by_hand(changes))


@row(
    "spanner-arrow",
    title="Spanner, Arrow",
    goal=1.6,
    about=(f"{AS_A_TASK}, with rows as JSON text: 20,000 inserts {_READ}"),
    against=_LOOP,
    same_work=False,
    reason=_EMULATOR,
)
def spanner_arrow(bench: Bench) -> Iterator[Sides]:
    """Measure how fast events are read in the form that Spark needs."""
    with backlog(bench.size(_EVENTS), _AT_ONCE) as changes:
        yield Sides(_through_arrow(changes), lambda: _by_hand(changes))


def _milliseconds(changes: Backlog, max_page_size: int, pages: int) -> float:
    began = time.perf_counter()
    count = 0
    with on_client_core(), connect(changes.config) as client:
        for number, page in enumerate(_pages(client.read_changes, changes, max_page_size), 1):
            count += len(page.events)
            if number >= pages or count >= changes.size:
                break
    if count < min(changes.size, max_page_size * pages):
        raise ValueError(f"read {count:,} of {changes.size:,} changes")
    return 1000 * (time.perf_counter() - began)


def small_pages(changes: Backlog, pages: int) -> Done:
    """Return the extra milliseconds that it takes to read the same changes in small pages."""
    small = _milliseconds(changes, _SMALL_PAGE, pages)
    large = _milliseconds(changes, 1000, _LARGE_PAGES)
    more = max(1.0, small - large)  # less than a millisecond is noise
    return Done(pages, value=more, notes={"small pages": small, "large pages": large})


@row(
    "spanner-pages",
    title="Spanner, pages of five",
    unit="ms",
    goal=250,
    at_most=True,
    about=(
        "The figure shows how much longer it takes to read 500 pages of 5 events than 3 pages of 1,000 "
        "events. Both sides read a backlog of 2,500 commits with one row each. Each call uses the "
        "token of the previous page, in one process."
    ),
    against="",
)
def spanner_pages(bench: Bench) -> Iterator[Sides]:
    """This row checks that the server's streamed answer stays open between calls."""
    pages = bench.size(_SMALL_PAGES, 4)
    with backlog(pages * _SMALL_PAGE, 1) as changes:
        yield Sides(lambda: small_pages(changes, pages))


def scan_loop(changes: Backlog) -> Done:
    """Read rows with the library's partitioned read, all partitions at the same time, and make dicts."""
    from google.cloud.spanner_v1 import KeySet

    snapshot = changes.database.batch_snapshot()
    everything: Any = KeySet(all_=True)  # type: ignore[no-untyped-call]
    batches = snapshot.generate_read_batches("items", COLUMNS, everything)

    def read(batch: Any) -> int:
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in snapshot.process_read_batch(batch)]
        return len(rows)

    with ThreadPoolExecutor(_PARALLEL) as pool:
        return Done(sum(pool.map(read, batches)))


def _scan_by_hand(changes: Backlog) -> Done:
    with on_client_core():
        return _counted(changes, scan_loop(changes))


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


@row(
    "spanner-snapshot",
    title="Spanner, rows of a snapshot",
    unit="rows/s",
    goal=1.0,
    about=(
        "The client reads 50,000 existing rows with `Snapshot()` from Google's emulator. A row has "
        "nine columns, which are about 300 bytes of JSON. In both programs the client runs on one core"
        " and the emulator on another. A snapshot also determines the start of the change stream "
        "and the boundaries of the segments."
    ),
    against=(
        "The parallel scan of google-cloud-spanner (`generate_read_batches` and "
        "`process_read_batch` in eight threads). The baseline makes a dict of each row, but no event. "
        "Another process cannot continue the baseline's scan."
    ),
    same_work=False,
    shown=(scan_loop,),
)
def spanner_snapshot(bench: Bench) -> Iterator[Sides]:
    """This row reads all rows as they were at one point in time."""
    with backlog(bench.size(_ROWS), _ROWS_AT_ONCE) as changes:
        yield Sides(lambda: scan(changes), lambda: _scan_by_hand(changes))


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


def bare_latency(changes: Backlog, commits: int) -> Done:
    """Measure the latency of google-cloud-spanner's own change stream queries.

    Each partition has one query, which stays open and waits for changes.
    """
    waits = []
    for number in range(commits):
        start = changes.now() + timedelta(microseconds=1)
        found: list[Any] = []

        def follow(token: str, found: list[Any] = found, start: Any = start) -> None:
            for data, _, _ in changes.query(token, start=start, end=start + timedelta(seconds=2)):
                found.extend(data)
                if found:
                    return

        threads = [Thread(target=follow, args=(token,), daemon=True) for token in changes.partitions()]

        def read(threads: list[Thread] = threads, found: list[Any] = found) -> int:
            for thread in threads:
                thread.start()
            while not found:
                time.sleep(0.001)
            return len(found)

        waits.append(_shown_after(changes, number, read))
        for thread in threads:
            thread.join()
    return Done(commits, value=median(waits))


@row(
    "spanner-latency",
    title="Spanner, from a commit to its event",
    unit="ms",
    goal=1.2,
    at_most=True,
    about="A client waits (`wait_seconds`) for the change of one commit at a time. The figure is the "
    "median of 50 commits.",
    against="The change stream query of google-cloud-spanner for each partition, which stays open and waits.",
    same_work=False,
    pairs=1,
    warm_up=False,
)
def spanner_latency(bench: Bench) -> Iterator[Sides]:
    """This row checks that a wait ends as soon as a change arrives."""
    commits = bench.size(_COMMITS, 3)
    with backlog(1, 1) as changes:
        yield Sides(lambda: latency(changes, commits), lambda: bare_latency(changes, commits))
