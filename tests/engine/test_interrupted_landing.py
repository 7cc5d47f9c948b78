"""Tests that an interrupt at any line of a call reaches the caller."""

import pytest

from multiclouddb_spi.fetching.readers import PartitionReader


def test_an_interrupt_while_an_answer_is_taken_reaches_the_caller(make_bench, monkeypatch, eventually):
    """Wherever Ctrl-C arrives, the interrupt is raised and the other readers of the call are closed."""
    bench = make_bench(4)
    bench.connect(threads=True)
    bench.fill(40)
    bench.sim.hold("p3")

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(PartitionReader, "land", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.page(size=3)
    monkeypatch.undo()
    bench.sim.release()
    eventually(lambda: bench.calls.open_readers == 0)
    eventually(lambda: bench.engine.buffered_bytes == 0)
