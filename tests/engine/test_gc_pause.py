"""Tests that the garbage collector is off while records are mapped, and is always on again afterwards."""

import gc
import subprocess
import sys

import pytest

from multiclouddb_api import Beginning, ChangeFeedRequest, OperationOptions
from multiclouddb_spi import collector_paused
from multiclouddb_spi.batch import _pausing

FORK = """
import gc, os, threading
from multiclouddb_spi import collector_paused

inside, forking = threading.Event(), threading.Event()
os.register_at_fork(before=forking.set)  # runs before the hook of the module

def pause():
    with collector_paused():
        inside.set()
        forking.wait(60)

thread = threading.Thread(target=pause)
thread.start()
inside.wait(60)
child = os.fork()
if child == 0:
    with collector_paused():
        paused = not gc.isenabled()
    os._exit(0 if paused and gc.isenabled() else 1)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture(autouse=True)
def collector():
    """Check that the collector is on before and after every test."""
    assert gc.isenabled()
    yield
    on, free = gc.isenabled(), _pausing.acquire(blocking=False)
    gc.enable()
    assert on
    assert free
    _pausing.release()


class TestPause:
    def test_an_error_brings_it_back(self):
        with pytest.raises(ValueError, match="inside"), collector_paused():
            raise ValueError("inside")
        assert gc.isenabled()


class TestThreads:
    def test_a_child_of_a_fork_has_it(self):
        ran = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK],
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        assert ran.stdout == "0\n"


class TestEngine:
    def test_views_run_without_it(self, make_bench):
        bench = make_bench(1)
        bench.sim.write("a", {"number": 1})
        states = []

        def view(batch, start, stop):
            states.append(gc.isenabled())
            return batch.events(start, stop)

        engine = bench.connect()
        engine.read(ChangeFeedRequest(bench.sim.address, Beginning()), OperationOptions(), view)
        assert states == [False]
