"""Tests the iterator's clock and its waits."""

import time

import pytest

from multiclouddb_api.pacing import Backoff, Timer


@pytest.mark.parametrize("seconds", [0.02, 0.2])
def test_a_short_wait_is_waited(seconds):
    timer = Timer()
    began = time.monotonic()
    assert timer.wait(seconds)
    assert time.monotonic() - began >= seconds * 0.9


def test_a_stopped_clock_waits_no_more():
    timer = Timer()
    timer.stop()
    assert not timer.wait(600)


class TestBackoff:
    def longest(self, backoff, monkeypatch, count):
        monkeypatch.setattr("multiclouddb_api.pacing.random.uniform", lambda low, high: (low, high))
        return [backoff.next() for _ in range(count)]

    def test_each_wait_may_be_twice_as_long_up_to_the_most(self, monkeypatch):
        found = self.longest(Backoff(0.5, 3.0), monkeypatch, 5)
        assert found == [(0.0, 0.5), (0.0, 1.0), (0.0, 2.0), (0.0, 3.0), (0.0, 3.0)]

    def test_none_is_shorter_than_the_least(self, monkeypatch):
        assert self.longest(Backoff(1.0, 4.0, least=1.0), monkeypatch, 3) == [
            (1.0, 1.0),
            (1.0, 2.0),
            (1.0, 4.0),
        ]
        assert self.longest(Backoff(1.0, 0.5, least=1.0), monkeypatch, 2) == [(1.0, 1.0), (1.0, 1.0)]

    def test_it_begins_with_the_shortest_again(self, monkeypatch):
        backoff = Backoff(0.5, 30.0)
        self.longest(backoff, monkeypatch, 3)
        backoff.reset()
        assert self.longest(backoff, monkeypatch, 2) == [(0.0, 0.5), (0.0, 1.0)]

    def test_it_goes_on_for_ever(self, monkeypatch):
        assert self.longest(Backoff(0.5, 30.0), monkeypatch, 3000)[-1] == (0.0, 30.0)

    def test_waits_are_drawn_from_the_whole_range(self):
        backoff = Backoff(1.0, 1.0)
        drawn = [backoff.next() for _ in range(300)]
        assert all(0 <= seconds <= 1 for seconds in drawn)
        assert min(drawn) < 0.2
        assert max(drawn) > 0.8
