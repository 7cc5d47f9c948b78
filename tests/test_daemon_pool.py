"""Tests the threads in which an engine reads."""

import gc
import subprocess
import sys
import threading
import weakref

import pytest

from multiclouddb_api.daemon_pool import DaemonPool, PoolEndedError

FOR_EVER = """
import threading
from multiclouddb_api.daemon_pool import DaemonPool

pool, started = DaemonPool(2, "reads"), threading.Event()
pool.submit(lambda: started.set() or threading.Event().wait())
started.wait()
pool.shutdown(wait=False, cancel_futures=True)
"""


def named(name):
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


@pytest.fixture
def pool():
    made = DaemonPool(2, "pool-of-test")
    yield made
    made.shutdown()


def test_a_function_that_never_returns_does_not_keep_the_process_from_ending():
    """The pool of the standard library would."""
    subprocess.run([sys.executable, "-c", FOR_EVER], check=True, timeout=60)


def test_no_more_threads_than_needed_and_than_allowed(pool):
    for _ in range(3):
        assert pool.submit(lambda: 7).result(30) == 7
        while not pool._idle:  # until the thread waits again
            pass
    assert len(named("pool-of-test")) == 1
    go_on, running = threading.Event(), threading.Semaphore(0)
    futures = [pool.submit(lambda: running.release() or go_on.wait(30)) for _ in range(5)]
    for _ in range(2):
        assert running.acquire(timeout=30)
    assert not running.acquire(blocking=False)
    assert len(named("pool-of-test")) == 2
    go_on.set()
    assert all(each.result(30) for each in futures)


def test_an_error_is_that_of_the_future(pool):
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 / 0).result(30)
    assert pool.submit(divmod, 7, 2).result(30) == (3, 1)


@pytest.mark.parametrize("cancels", [True, False])
def test_after_its_end_what_waits_is_cancelled_or_run(cancels):
    pool, go_on, running = DaemonPool(1, "ended-of-test"), threading.Event(), threading.Event()
    first = pool.submit(lambda: running.set() or go_on.wait(30))
    assert running.wait(30)
    second = pool.submit(lambda: 8)
    pool.shutdown(wait=False, cancel_futures=cancels)
    with pytest.raises(PoolEndedError):
        pool.submit(lambda: 9)
    threads = named("ended-of-test")
    go_on.set()
    assert first.result(30)
    assert second.cancelled() if cancels else second.result(30) == 8
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_pool_that_nobody_has_any_more_ends_its_threads():
    pool = DaemonPool(2, "lost-of-test")
    pool.submit(lambda: None).result(30)
    threads, gone = named("lost-of-test"), weakref.ref(pool)
    assert threads
    del pool
    gc.collect()
    assert gone() is None
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_result_is_not_kept(pool):
    class Result:
        pass

    found = weakref.ref(pool.submit(Result).result(30))
    pool.submit(lambda: None).result(30)  # the thread has let go of the result before
    gc.collect()
    assert found() is None
