"""Measures the engine alone: a database in memory answers at once, so that only the library takes time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any, Final

import attrs

from benchmarks.row import Bench, Done, Section, Side, Sides, row
from benchmarks.stores import pages
from multiclouddb_api import (
    Beginning,
    ChangeFeedPage,
    ChangeFeedRequest,
    ClientConfig,
    FromContinuationToken,
    OperationOptions,
    StartPosition,
)
from multiclouddb_spi import Batch, Deadline, Feed, FeedSpec, Provider, Reader
from multiclouddb_spi.engine import Engine

_PARTS: Final = 8
_MANY: Final = 1000
_ROUNDS: Final = 200
_CALLS: Final = 20
_TENTH: Final = 100
"""A tenth of the CPU time of a vendor's request, which is 1,000 µs or more: see the rows of `idle`."""
_PARTITIONS: Final = 64
_LATENCY: Final = 0.02
# All partitions can be read at once, because the engine has at most one running read per partition.
_WIDTH: Final = _PARTITIONS


def _engine(provider: Provider, width: int | None = None) -> Engine:
    config = (
        ClientConfig("simulation") if width is None else ClientConfig("simulation", max_concurrency=width)
    )
    return Engine(provider, config, attempts=1)


# -- Pages of a backlog


def _pages(size: int, count: int) -> Iterator[Sides]:
    """Read pages of a size from a backlog of eight partitions."""
    from multiclouddb_conformance.simulation import Simulation, SimulationProvider

    sim = Simulation(_PARTS)
    for number in range(size * count):
        sim.write(f"k{number % 1000}", {"number": number, "text": "x" * 100})
    with closing(_engine(SimulationProvider(sim))) as engine:

        def ours() -> Done:
            start: StartPosition = Beginning()
            found, began = 0, time.process_time()
            while found < size * count:
                request = ChangeFeedRequest(sim.address, start, max_page_size=size)
                page = engine.read_changes(request, OperationOptions())
                found += len(page.events)
                start = FromContinuationToken(page.continuation_token)
            cpu = time.process_time() - began
            return Done(found, value=1e6 * cpu * size / found)

        yield Sides(ours)


_ABOUT: Final = (
    "The figure is the CPU time of a page of a backlog in eight partitions of the simulation, which has its "
    "records in memory. Most of it is the engine's, and the rest is making the events."
)


@row(
    "page-20",
    Section.ENGINE,
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
    Section.ENGINE,
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


# -- Calls that find nothing


@row(
    "page-call",
    Section.ENGINE,
    title="Idle call, 1,000 partitions",
    question="What does the engine add to each request of an idle feed of 1,000 partitions?",
    unit="µs",
    goal=_TENTH,
    at_most=True,
    about=(
        "A call reads 1,000 partitions and finds no events; the figure is its CPU time for each partition. "
        "The reader of each partition gives the same empty answer at once, so only the engine and its "
        "threads take time. The goal is a tenth of a vendor's request."
    ),
    against="",
)
def page_call(bench: Bench) -> Iterator[Sides]:
    """This row measures only the engine."""
    from multiclouddb_conformance.simulation import Simulation, SimulationProvider

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

    count = bench.size(_MANY, 4)
    sim = Simulation(count)
    with closing(_engine(Idle(sim))) as engine:

        def read(start: StartPosition) -> ChangeFeedPage:
            page = engine.read_changes(ChangeFeedRequest(sim.address, start), OperationOptions())
            if page.events:
                raise ValueError("a page was not empty")
            return page

        page = read(Beginning())

        def ours() -> Done:
            nonlocal page
            began = time.process_time()
            for _ in range(_CALLS):
                page = read(FromContinuationToken(page.continuation_token))
                while not page.idle:  # a call that reaches its time limit has not read every partition
                    page = read(FromContinuationToken(page.continuation_token))
            cpu = time.process_time() - began
            return Done(count, value=1e6 * cpu / _CALLS / count)

        yield Sides(ours)


@row(
    "page-call-resting",
    Section.ENGINE,
    title="Call that leaves out 999 of 1,000 partitions",
    question="What do 1,000 partitions cost that are at rest?",
    unit="µs",
    goal=8,
    at_most=True,
    about=(
        "The service says of 999 partitions that they need not be asked again for an hour. The figure is "
        "the CPU time of a call that returns an event of the partition that is left."
    ),
    against="The same call if there is only this partition.",
)
def page_call_resting(bench: Bench) -> Iterator[Sides]:
    """This row shows what a call does for partitions that it leaves out."""
    with ExitStack() as stack:
        yield Sides(_left_one(stack, bench.size(_MANY, 4)), _left_one(stack, 1))


def _left_one(stack: ExitStack, count: int) -> Side:
    """Return a side whose calls find something in one partition; the others are at rest."""
    from multiclouddb_conformance.simulation import ServiceBehaviour, Simulation, SimulationProvider

    # With one record in an answer, the partition with more records is due at once; the others rest.
    sim = Simulation(count, ServiceBehaviour(poll_after=3600, heartbeats=False, page_limit=1))
    engine = stack.enter_context(closing(_engine(SimulationProvider(sim))))

    def read(start: StartPosition) -> ChangeFeedPage:
        request = ChangeFeedRequest(sim.address, start, max_page_size=1)
        return engine.read_changes(request, OperationOptions(timeout_seconds=600, ask_all=False))

    def write(records: int) -> None:
        for number in range(records):
            sim.write("k", {"n": number})

    write(_CALLS)
    page, alone = read(Beginning()), 0
    while alone < _CALLS:
        write(1)
        page = read(FromContinuationToken(page.continuation_token))
        alone = alone + 1 if page.diagnostics.requests == 1 else 0

    def run() -> Done:
        nonlocal page
        write(_ROUNDS)
        began = time.process_time()
        for _ in range(_ROUNDS):
            page = read(FromContinuationToken(page.continuation_token))
            if len(page.events) != 1:
                raise ValueError("a call has not found the one event")
        cpu = time.process_time() - began
        return Done(_ROUNDS, value=1e6 * cpu / _ROUNDS)

    return run


# -- Many partitions over a slow network


def _read(sim: Any, latency: float) -> tuple[Done, int]:
    """Read everything in a simulated collection; return the report and the number of reads."""
    from multiclouddb_conformance.delegating import WrappedProvider, WrappedReader
    from multiclouddb_conformance.simulation import SimulationProvider

    class Distant(WrappedProvider):
        """A provider that answers late, as over a network; the delay uses no CPU time and no locks."""

        def fetch(self, reader: WrappedReader, *wishes: Any) -> Batch:
            if latency:
                reader.cancelled.wait(latency)
            return reader.inner.fetch(*wishes)

    provider = SimulationProvider(sim)
    ids: list[str] = []
    with closing(_engine(Distant(provider), _WIDTH)) as engine:

        def read(request: ChangeFeedRequest) -> Any:
            return engine.read_changes(request, OperationOptions())

        for page in pages(read, sim.address):
            ids += [event.event_id for event in page.events]
    return Done(len(ids), ids), provider.calls.total_fetches


def ideal(sim: Any) -> Done:
    """Return the larger of two times: the latency on all threads, or the CPU time."""
    cpu = time.process_time()
    done, reads = _read(sim, latency=0.0)
    cpu = time.process_time() - cpu
    return attrs.evolve(done, seconds=max(reads * _LATENCY / _WIDTH, cpu))


@row(
    "fan-out-100",
    Section.ENGINE,
    title="Fan-out, 64 partitions and 100 events a read",
    question="Does a feed of many partitions reach the rate of its partitions together?",
    goal=0.8,
    pairs=3,
    about=(
        "64 partitions are read at once, with 20 ms of latency for each read, as over a network. A read "
        "returns 100 events, so that waiting and CPU work take about the same time."
    ),
    against=(
        "The ideal time, computed from a run of the same reads without latency. The ideal is the larger of "
        "two times: reads * latency / 64, and the CPU time of that run."
    ),
    reason=(
        "The ideal assumes that waiting and computing overlap completely. An answer that has arrived waits "
        "for the interpreter's lock while events of another answer are mapped. Only then can the next read "
        "of its partition begin."
    ),
)
def fan_out_100(bench: Bench) -> Iterator[Sides]:
    """Measure a case in which latency and CPU work take about the same amount of time."""
    from multiclouddb_conformance.simulation import ServiceBehaviour, Simulation

    sim = Simulation(_PARTITIONS, ServiceBehaviour(page_limit=100))
    for number in range(bench.size(1000 * _PARTITIONS)):
        sim.write(f"key-{number}", {"number": number, "text": "x" * 200})
    yield Sides(lambda: _read(sim, _LATENCY)[0], lambda: ideal(sim))
