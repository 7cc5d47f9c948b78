"""Tests the iterator's clock, its waits, and wakeups: a wait always ends, and a wakeup never waits."""

import signal
import threading
import time

import pytest

from multiclouddb_api import ChangeFeedPage
from multiclouddb_api.pacing import Backoff, PollSchedule, Timer, Wakeup


@pytest.mark.parametrize("wait", [Timer().wait, lambda seconds: not Wakeup().wait(seconds)])
def test_a_wait_takes_its_time(wait):
    began = time.monotonic()
    assert wait(0.05)
    assert time.monotonic() - began >= 0.045


def test_a_stopped_clock_waits_no_more():
    timer = Timer()
    timer.stop()
    assert [timer.wait(600) for _ in range(2)] == [False, False]


class TestBackoff:
    @pytest.mark.parametrize(
        ("backoff", "waits"),
        [
            (Backoff(0.5, 3.0), [(0.0, 0.5), (0.0, 1.0), (0.0, 2.0), (0.0, 3.0), (0.0, 3.0)]),
            (Backoff(1.0, 4.0, least=1.0), [(1.0, 1.0), (1.0, 2.0), (1.0, 4.0)]),
            (Backoff(1.0, 0.5, least=1.0), [(1.0, 1.0), (1.0, 1.0)]),
        ],
    )
    def test_each_wait_may_be_twice_as_long_up_to_the_most(self, monkeypatch, backoff, waits):
        monkeypatch.setattr("random.uniform", lambda low, high: (low, high))
        for _ in range(2):
            assert [backoff.next() for _ in waits] == waits
            assert [backoff.next() for _ in range(3000)][-1] == waits[-1]
            backoff.reset()

    def test_waits_are_drawn_from_the_whole_range(self):
        backoff = Backoff(1.0, 1.0)
        drawn = [backoff.next() for _ in range(300)]
        assert 0 <= min(drawn) < 0.2
        assert 0.8 < max(drawn) <= 1


def test_after_a_good_page_a_failure_waits_as_the_first_did(monkeypatch):
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    monkeypatch.setattr(Timer, "now", lambda timer: 100.0)
    schedule, waits = PollSchedule(Timer(), 1.0, 5.0, 600.0), []
    for _ in range(2):
        for _ in range(3):
            assert schedule.failed()
            waits.append(schedule.due - 100.0)
        schedule.succeeded(ChangeFeedPage((), "token"), 0.0)
    assert waits[:3] == waits[3:] == sorted(set(waits))


def test_a_pause_that_the_service_asks_for_becomes_at_most_a_little_longer(monkeypatch):
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    monkeypatch.setattr(Timer, "now", lambda timer: 100.0)
    schedule = PollSchedule(Timer(), 1.0, 5.0, 600.0)
    schedule.failed()
    pause = schedule.due - 100.0
    other = PollSchedule(Timer(), 1.0, 5.0, 600.0)
    other.failed(10.0)
    assert 10 < other.due - 100.0 < 10 + pause


class TestWakeup:
    @pytest.mark.parametrize("make", [Wakeup, Timer])
    def test_a_wait_ends_however_short_it_is(self, make):
        """Each iteration makes a new wakeup; the wait is over before a thread has begun to wait."""

        def wait():
            for _ in range(5_000):
                make().wait(1e-9)

        assert ends(wait)

    @pytest.mark.parametrize("seconds", [0.0, -1.0, -0.001])
    def test_without_any_time_it_is_only_asked(self, seconds):
        wakeup = Wakeup()
        assert not wakeup.wait(seconds)
        wakeup.send()
        assert wakeup.wait(seconds)
        assert not wakeup.wait(seconds)

    def test_a_time_without_end_is_one(self):
        wakeup = Wakeup()
        threading.Timer(0.05, wakeup.send).start()
        assert ends(lambda: wakeup.wait(float("inf")))

    def test_rung_often_it_rings_once(self):
        wakeup = Wakeup()
        for _ in range(3):
            wakeup.send()
        assert wakeup.wait(60)
        assert not wakeup.wait(0.01)

    def test_a_signal_handler_rings_in_the_thread_that_waits(self):
        wakeup = Wakeup()
        before = signal.signal(signal.SIGALRM, lambda *_: wakeup.send())
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            assert wakeup.wait(60)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def test_no_ring_is_lost_among_threads(self):
        """Threads add work and ring, as fetches do at their end; the waiter takes all work that is there."""
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

        for _ in range(4):
            threading.Thread(target=leave).start()
        assert ends(take)
        assert len(taken) == 2000


def ends(call, seconds=60):
    """Return whether an action ends; its thread cannot prevent the end of the tests."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


@pytest.mark.parametrize(("page", "wait"), [({"poll_after_seconds": 3.0}, 3.0), ({}, 0.0)])
def test_the_next_read_comes_when_a_partition_is_due(monkeypatch, page, wait):
    monkeypatch.setattr(Timer, "now", lambda timer: 100.0)
    schedule = PollSchedule(Timer(), 1.0, 5.0, 600.0)
    schedule.succeeded(ChangeFeedPage((), "token", **page), 0.0)
    assert schedule.due == 100.0 + wait
