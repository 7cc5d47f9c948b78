"""Reads many partitions of a simulated service.

Each read has an added latency, as over a network.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import attrs

from benchmarks.row import Bench, Done, Sides, row
from benchmarks.stores import pages
from multiclouddb_api import ChangeFeedRequest, ClientConfig, OperationOptions
from multiclouddb_spi import Batch
from multiclouddb_spi.engine import Engine

_PARTITIONS: Final = 64
_LATENCY: Final = 0.02
# All partitions can be read at once, because the engine has at most one running read per partition.
_WIDTH: Final = _PARTITIONS
_IDEAL: Final = (
    "The ideal time, computed from a run of the same reads without latency. The ideal is the larger"
    " of two times: reads * latency / 64, and the CPU time of that run."
)


def _engine(provider: Any) -> Engine:
    return Engine(provider, ClientConfig("simulation", max_concurrency=_WIDTH))


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
    with closing(_engine(Distant(provider))) as engine:

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
    return attrs.evolve(done, seconds=max(reads * _LATENCY / _WIDTH, cpu), cpu=cpu)


def _sides(bench: Bench, records: int) -> Iterator[Sides]:
    from multiclouddb_conformance.simulation import ServiceBehaviour, Simulation

    sim = Simulation(_PARTITIONS, ServiceBehaviour(page_limit=records))
    for number in range(bench.size(2000 * _PARTITIONS)):
        sim.write(f"key-{number}", {"number": number, "text": "x" * 200})
    yield Sides(lambda: _read(sim, _LATENCY)[0], lambda: ideal(sim))


@row(
    "fan-out-100",
    title="Fan-out, 100 events a read",
    question="Does a feed of many partitions reach the rate of its partitions?",
    goal=0.8,
    about="The reads are the same as in `fan-out-25`, but each read returns 100 events. Waiting and CPU work"
    " take about the same time.",
    against=_IDEAL,
    reason=(
        "The ideal assumes that waiting and computing overlap completely. In this row, waiting and computing "
        "take about the same time. "
        "An answer that has arrived waits for the interpreter's lock while events of another answer are "
        "mapped. Only then can the next read of its partition begin."
    ),
)
def fan_out_100(bench: Bench) -> Iterator[Sides]:
    """Measure a case in which latency and CPU work take about the same amount of time."""
    yield from _sides(bench, 100)
