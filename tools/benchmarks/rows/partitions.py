"""Measures what many partitions cost: the time of a call that finds nothing, and the length of the token."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.row import Bench, Done, Sides, row
from benchmarks.stores import ADDRESS, fill, small_document, url
from multiclouddb_api import (
    Beginning,
    ChangeFeedPage,
    ChangeFeedRequest,
    ClientConfig,
    FromContinuationToken,
    Now,
    OperationOptions,
    StartPosition,
    connect,
)
from multiclouddb_api.request import ResourceAddress
from multiclouddb_spi.continuation.token import decode_token, encode_token

_MANY: Final = 10_000
_MOST: Final = 100_000
_SWEPT: Final = 20_000
"""The number of partition reads in one run, for any number of partitions per call."""
_TENTH: Final = 100
"""A tenth of the CPU time of a vendor's request, which is 1,000 µs or more: see the rows of `idle`."""
_PARTS: Final = 8
_BUSY: Final = 64
_ROUNDS: Final = 60
_CALLS: Final = 5

_AGAINST: Final = (
    "The same call with 1,000 partitions. The baseline makes the call ten times as often, so that both "
    "sides read the same number of partitions."
)


class Poller:
    """A consumer of an idle feed. Each call resumes from the previous token and reads every partition.

    Args:
        read: Reads a page.
        address: The collection.
        partitions: The number of partitions.
        swept: The number of partition reads in one run, over all calls.
    """

    def __init__(
        self,
        read: Callable[[ChangeFeedRequest], ChangeFeedPage],
        address: ResourceAddress,
        partitions: int,
        swept: int,
    ) -> None:
        self._read, self._address, self._partitions = read, address, partitions
        self._calls = max(1, swept // partitions)
        self._token = read(ChangeFeedRequest(address, Beginning())).continuation_token

    def milliseconds(self) -> float:
        """Return the mean time until a page says that every partition was read and has no events."""
        began = time.perf_counter()
        for _ in range(self._calls):
            idle = False
            while not idle:  # a call that reaches its time limit returns before it has read every partition
                page = self._read(ChangeFeedRequest(self._address, FromContinuationToken(self._token)))
                if page.events:
                    raise ValueError(f"a page of {self._partitions} partitions was not empty")
                idle, self._token = page.idle, page.continuation_token
        return 1000 * (time.perf_counter() - began) / self._calls


def _sides(pollers: dict[int, Poller], sizes: Sequence[int]) -> Sides:
    """Compare the largest size with the second largest one; the figures of the others are notes."""
    *others, base, many = sizes
    names = {size: f"{size:,} partitions" for size in others}

    def ours() -> Done:
        value = pollers[many].milliseconds()
        return Done(many, value=value, notes={names[n]: pollers[n].milliseconds() for n in names})

    return Sides(ours, lambda: Done(base, value=pollers[base].milliseconds()))


def _sizes(bench: Bench) -> tuple[int, int, int, int]:
    return bench.size(10), bench.size(100, 2), bench.size(1000, 3), bench.size(_MANY, 4)


def _pages(size: int, pages: int) -> Iterator[Sides]:
    """Read pages of a size from a backlog of eight partitions."""
    from multiclouddb_conformance.simulation import Simulation, SimulationProvider
    from multiclouddb_spi.engine import Engine

    sim = Simulation(_PARTS)
    for number in range(size * pages):
        sim.write(f"k{number % 1000}", {"number": number, "text": "x" * 100})
    with closing(Engine(SimulationProvider(sim), ClientConfig("simulation"))) as engine:

        def ours() -> Done:
            start: StartPosition = Beginning()
            count, began = 0, time.process_time()
            while count < size * pages:
                request = ChangeFeedRequest(sim.address, start, max_page_size=size)
                page = engine.read_changes(request, OperationOptions())
                count += len(page.events)
                start = FromContinuationToken(page.continuation_token)
            cpu = time.process_time() - began
            return Done(count, value=1e6 * cpu * size / count, cpu=cpu)

        yield Sides(ours)


_ABOUT: Final = (
    "The figure is the CPU time of a page of a backlog in eight partitions of the simulation, which has its "
    "records in memory. Most of it is the engine's, and the rest is making the events."
)


@row(
    "page-20",
    title="A page of 20 events",
    question="What does the engine cost a small page?",
    unit="µs",
    goal=400,
    at_most=True,
    about=_ABOUT,
    against="",
)
def page_20(bench: Bench) -> Iterator[Sides]:
    """This row measures what a page costs, whatever is on it."""
    yield from _pages(20, bench.size(500, 5))


@row(
    "page-1000",
    title="A page of 1,000 events",
    question="What does the engine cost a large page?",
    unit="µs",
    goal=15_000,
    at_most=True,
    about=_ABOUT,
    against="",
)
def page_1000(bench: Bench) -> Iterator[Sides]:
    """This row measures what an event costs."""
    yield from _pages(1000, bench.size(50, 2))


@row(
    "page-call",
    title="Idle call, 10,000 partitions",
    question="What does an idle call cost with 10,000 partitions?",
    unit="µs",
    goal=_TENTH,
    at_most=True,
    about=(
        "A call reads 10,000 partitions and finds no events; the figure is its time for each partition. The "
        "reader of each partition gives the same empty answer at once, so only the engine and its threads "
        "take time. The goal is a tenth of a vendor's request. The figure depends on the caches: it "
        "varied by a factor of two from hour to hour with the same code."
    ),
    against="",
)
def page_call(bench: Bench) -> Iterator[Sides]:
    """This row measures only the engine."""
    yield from _simulated(_sizes(bench), bench.size(_SWEPT))


@row(
    "page-call-resting",
    title="Call that leaves out 100,000 partitions",
    question="What do partitions cost that are at rest?",
    unit="µs",
    goal=5,
    at_most=True,
    same_work=False,
    about=(
        "The service says of nearly all of 100,000 partitions that they need not be asked again for an hour. "
        "The figure is the time of a call for each partition if the call returns events of some of the 64 "
        "others. The note is the time of a call for which no partition is due; it returns the given token."
    ),
    against="",
)
def page_call_resting(bench: Bench) -> Iterator[Sides]:
    """This row shows what a call does for partitions that it leaves out."""
    from multiclouddb_conformance.simulation import (
        ServerError,
        ServiceBehaviour,
        Simulation,
        SimulationProvider,
    )
    from multiclouddb_spi.engine import Engine

    count = bench.size(_MOST, 100)
    some = min(_BUSY, count // 20)
    # With one record in an answer, a partition with more records is due at once.
    behaviour = ServiceBehaviour(poll_after=3600, heartbeats=False, page_limit=1)
    with ExitStack() as stack:

        def engine_of(sim: Simulation) -> Callable[[StartPosition], tuple[ChangeFeedPage, float]]:
            engine = Engine(SimulationProvider(sim), ClientConfig("simulation"), attempts=1)
            stack.enter_context(closing(engine))

            def read(start: StartPosition) -> tuple[ChangeFeedPage, float]:
                began = time.perf_counter()
                request = ChangeFeedRequest(sim.address, start, max_page_size=some)
                page = engine.read_changes(request, OperationOptions(timeout_seconds=600, ask_all=False))
                return page, 1e6 * (time.perf_counter() - began) / count

            return read

        quiet, busy = Simulation(count, behaviour), Simulation(count, behaviour)
        # All partitions rest after the first page, but those whose first read fails.
        for number in range(some):
            busy.write(f"k{number}", {"n": 0})
        for name in {item.partition_id for item in busy.truth}:
            busy.fail_next(name, ServerError("503"))
        read_quiet, read_busy = engine_of(quiet), engine_of(busy)
        rests, _ = read_quiet(Now())
        while not rests.poll_after_seconds:
            rests, _ = read_quiet(FromContinuationToken(rests.continuation_token))
        page, _ = read_busy(Now())
        for number in range(some * _ROUNDS):
            busy.write(f"k{number % some}", {"n": number})

        def ours() -> Done:
            nonlocal page
            times = []
            for _ in range(_CALLS):
                page, each = read_busy(FromContinuationToken(page.continuation_token))
                if not page.events:
                    raise ValueError("no position has moved")
                times.append(each)
            _, nothing = read_quiet(FromContinuationToken(rests.continuation_token))
            return Done(count, value=sum(times) / _CALLS, notes={"µs if none is due": nothing})

        yield Sides(ours)


def _simulated(sizes: Sequence[int], swept: int) -> Iterator[Sides]:
    from multiclouddb_conformance.simulation import Simulation, SimulationProvider
    from multiclouddb_spi import Batch, Deadline, Feed, FeedSpec, Reader
    from multiclouddb_spi.engine import Engine

    class Prompt(Reader):
        """Gives its first answer again and again."""

        def __init__(self, inner: Reader) -> None:
            self._inner = inner
            self._answer: Batch | None = None

        def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
            if self._answer is None:
                self._answer = self._inner.fetch(max_records, max_bytes, wait, deadline)
            return self._answer

        def cancel(self) -> None:
            self._inner.cancel()

        def close(self) -> None:
            self._inner.close()

    class Idle(SimulationProvider):
        def open_feed(self, spec: FeedSpec, deadline: Deadline) -> Feed:
            feed = super().open_feed(spec, deadline)
            real = feed.open
            vars(feed).update(open=lambda *of: Prompt(real(*of)))
            return feed

    with ExitStack() as stack:

        def poller(count: int) -> Poller:
            sim = Simulation(count)
            engine = Engine(Idle(sim), ClientConfig("simulation"))
            stack.enter_context(closing(engine))

            def read(request: ChangeFeedRequest) -> ChangeFeedPage:
                return engine.read_changes(request, OperationOptions())

            return Poller(read, sim.address, count, swept)

        pollers = {count: poller(count) for count in sizes}

        def ours() -> Done:
            *others, many = (1000 * each.milliseconds() / count for count, each in pollers.items())
            notes = {f"{count:,} partitions": each for count, each in zip(sizes, others, strict=False)}
            return Done(sizes[-1], value=many, notes=notes)

        yield Sides(ours)


@row(
    "token",
    title="Token, bytes a partition",
    question="How large is a token with many partitions?",
    unit="bytes",
    goal=100,
    at_most=True,
    pairs=1,
    warm_up=False,
    about=(
        "The figure is the length of a token of the embedded store over 10,000 partitions, divided "
        "by the number of partitions. Each partition is at a different change, which gives the "
        "longest token. The benchmark also reads a page with this token, to check that the token is valid."
    ),
    against="",
)
def token(bench: Bench) -> Iterator[Sides]:
    """This benchmark checks that a token fits into a checkpoint."""
    sizes = _sizes(bench)
    for count in sizes:
        fill(bench.folder / f"{count}.db", 5 * count, count, small_document, batch=10)

    def ours() -> Done:
        figures = {count: len(_token_in_the_middle(bench.folder / f"{count}.db")) / count for count in sizes}
        value = figures.pop(sizes[-1])
        notes = {f"{count:,} partitions": size for count, size in figures.items()}
        return Done(sizes[-1], value=value, notes=notes)

    yield Sides(ours)


def _token_in_the_middle(path: Path) -> str:
    """Return a token in which each partition is at the position of a change.

    Reading up to these positions would take one call for each partition. Therefore the positions are written
    directly into the token.
    """
    with closing(sqlite3.connect(path)) as connection:
        changes = dict(
            connection.execute(
                "SELECT name, json_array(min(seq), ts) FROM log JOIN partitions ON partition = id GROUP BY id"
            )
        )
    with connect(url(path)) as client:
        first = client.read_changes(ChangeFeedRequest(ADDRESS, Beginning(), max_page_size=1))
        envelope = decode_token(first.continuation_token)
        state: Any = envelope.state
        read: Any = [[name, json.loads(changes.get(name, "null")) or cursor] for name, cursor in state["p"]]
        text = encode_token(attrs.evolve(envelope, state={**state, "p": read}))
        page = client.read_changes(ChangeFeedRequest(ADDRESS, FromContinuationToken(text)))
    if not page.events:
        raise ValueError("nothing is read from the token")
    return text
