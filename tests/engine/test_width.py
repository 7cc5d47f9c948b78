"""Tests how many partitions are read at the same time."""

import threading
from concurrent.futures import Future
from types import SimpleNamespace

from multiclouddb_conformance.explore.world import RULES
from multiclouddb_conformance.simulation.reader import SimulationReader
from multiclouddb_spi import Deadline
from multiclouddb_spi.continuation.entry import Entry
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.fetching.turns import HEAD_SECONDS, Stage, Turns
from multiclouddb_spi.reading import poll
from multiclouddb_spi.reading.poll import Fetches


def test_not_more_than_the_width_are_asked_at_a_time(make_bench, monkeypatch):
    width, fetch = 2, SimulationReader.fetch
    running, most, changed = [0], [0], threading.Condition()

    def watched(self, *args):
        with changed:
            running[0] += 1
            most[0] = max(most[0], running[0])
            changed.notify_all()
            # Each read blocks until too many reads run, or long enough for too many reads to start.
            changed.wait_for(lambda: running[0] > width, 0.05)
        try:
            return fetch(self, *args)
        finally:
            with changed:
                running[0] -= 1

    monkeypatch.setattr(SimulationReader, "fetch", watched)
    bench = make_bench(partitions=10)
    bench.connect(threads=True, max_concurrency=width)
    bench.fill(100, keys=50)
    assert len(bench.drain()[0]) == 100
    assert most[0] == width


def test_slow_partitions_leave_their_places_to_others(monkeypatch):
    """Two partitions are read at a time. If two are slow, two others are read too, and no third one."""
    names = [f"p{number}" for number in range(7)]
    turns, now = Turns(Lineage([Entry.read(name, 1) for name in names], RULES)), [5000.0]
    monkeypatch.setattr(poll, "time", SimpleNamespace(monotonic=lambda: now[0]))
    budget = SimpleNamespace(limit=1 << 30, used=0, expected=0)
    context = SimpleNamespace(width=2, page_records=20, budget=budget, cache=None, closed=threading.Event())
    reading = Fetches(context, None, turns, len(names), 20, Deadline(now[0] + 60))
    turns.ask(names)

    def asked():
        """Start as many reads as are possible now, and return the partitions that are being read."""
        while reading.may_ask():
            reader = SimpleNamespace(batch=None, future=Future(), asked_at=now[0])
            reading.launch(next(iter(turns.due.values())), reader, 0.0)
        return list(turns.asked)

    assert asked() == names[:2]
    now[0] += HEAD_SECONDS / 2
    assert asked() == names[:2]
    now[0] += HEAD_SECONDS / 2
    assert asked() == names[:4]
    turns.asked["p2"].reader.future.set_result(None)
    turns.move(reading.land(0.0), Stage.ANSWERED)
    assert asked() == ["p0", "p1", "p3", "p4"]
    now[0] += HEAD_SECONDS
    assert asked() == ["p0", "p1", "p3", "p4", "p5", "p6"]
