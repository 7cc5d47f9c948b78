"""Tests on which cores the client and the servers run."""

import multiprocessing
import os
import threading

import pytest

from benchmarks.dynamo import scripted
from benchmarks.processes import on_client_core, on_server_core


def cores(pid=0):
    """Return the cores on which a process may run; empty if the system does not report them."""
    return sorted(getattr(os, "sched_getaffinity", lambda _: ())(pid))


ALL_CORES = cores()


class TestCores:
    @pytest.mark.parametrize(
        ("on_core", "place"), [(on_client_core, slice(1)), (on_server_core, slice(-1, None))]
    )
    def test_client_and_server_have_one_each(self, on_core, place):
        with on_core():
            assert cores() == ALL_CORES[place]
        assert cores() == ALL_CORES

    def test_a_thread_that_starts_inside_stays_there(self):
        found = []
        with on_client_core():
            thread = threading.Thread(target=lambda: found.append(cores()))
            thread.start()
            thread.join()
        assert found == [ALL_CORES[:1]]

    def test_an_error_gives_the_others_back(self):
        with pytest.raises(ValueError, match="inside"), on_client_core():
            raise ValueError("inside")
        assert cores() == ALL_CORES

    def test_the_scripted_server_has_its_own(self):
        with scripted(1):
            (server,) = multiprocessing.active_children()
            assert cores(server.pid) == ALL_CORES[-1:]
            assert cores() == ALL_CORES
