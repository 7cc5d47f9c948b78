"""Tests that a wait always ends and that a wakeup never waits."""

import signal
import threading
import time

import pytest

from multiclouddb_api.pacing import Timer, Wakeup


def aside(call, seconds=60):
    """Run an action in a daemon thread, which cannot prevent the end of the tests.

    Return False if the action does not end.
    """
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


@pytest.mark.parametrize("make", [Wakeup, Timer])
def test_a_wait_ends_however_short_it_is(make):
    done = []

    def wait():
        for number in range(20_000):
            # Each iteration makes a new wakeup, and the wait is over before a thread has begun to wait.
            make().wait(1e-9)
            done.append(number)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    while thread.is_alive():
        before = len(done)
        thread.join(20)
        assert len(done) > before or not thread.is_alive(), f"the wait hangs after {before}"


@pytest.mark.parametrize("seconds", [0.0, -1.0, -0.001])
def test_without_any_time_it_is_only_asked(seconds):
    wakeup = Wakeup()
    assert not wakeup.wait(seconds)
    wakeup.send()
    assert wakeup.wait(seconds)
    assert not wakeup.wait(seconds)


def test_a_time_without_end_is_one():
    wakeup = Wakeup()
    threading.Timer(0.05, wakeup.send).start()
    assert aside(lambda: wakeup.wait(float("inf")))


def test_nobody_ringing_it_takes_its_time():
    began = time.monotonic()
    assert not Wakeup().wait(0.1)
    assert time.monotonic() - began >= 0.1


def test_rung_often_it_rings_once():
    wakeup = Wakeup()
    for _ in range(3):
        wakeup.send()
    assert wakeup.wait(60)
    assert not wakeup.wait(0.01)


def test_a_signal_handler_rings_in_the_thread_that_waits():
    wakeup = Wakeup()
    before = signal.signal(signal.SIGALRM, lambda *_: wakeup.send())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert wakeup.wait(60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_no_ring_is_lost_among_threads():
    """Threads add work and wake up the waiter, as fetches do at their end.

    The waiter takes all work that is available.
    """
    wakeup, there, taken = Wakeup(), [], []

    def leave():
        for number in range(500):
            there.append(number)
            wakeup.send()

    def take():
        while len(taken) < 2000:
            while there:
                taken.append(there.pop())
            if len(taken) < 2000:
                assert wakeup.wait(60)

    threads = [threading.Thread(target=leave) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert aside(take)
    assert len(taken) == 2000
