"""Tests how many partitions are read at the same time."""

import threading

from multiclouddb_conformance.simulation.reader import SimulationReader


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
