"""Tests fetches that end after their call, and feeds that accept a token of another incarnation."""

import threading
import time
from contextlib import contextmanager

import pytest

from multiclouddb_api import Beginning, ErrorCategory, MulticloudDbError
from multiclouddb_conformance.simulation import ServerError, SimulationFeed, SimulationReader
from multiclouddb_conformance.waiting import assert_prompt

BEGINNING = Beginning()
SOON = 0.4
KINDS = pytest.mark.parametrize("longest", [60.0, 0.0], ids=["is kept", "is given up"])


@contextmanager
def within(seconds):
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < seconds, f"it took {took:.2f} s"


@pytest.fixture
def outlasting(make_bench, monkeypatch):
    """Make a bench with threads; a fetch that takes longer than `longest` is given up when its call ends."""

    def make(partitions=1, longest=60.0, **config):
        monkeypatch.setattr(SimulationReader, "longest_fetch", lambda reader: longest)
        bench = make_bench(partitions)
        bench.connect(threads=True, **config)
        return bench

    return make


class TestOutlasts:
    @KINDS
    def test_a_call_ends_at_its_deadline_in_any_case(self, outlasting, longest):
        bench = outlasting(longest=longest)
        bench.fill(3)
        bench.sim.hold("p0")

        def attempt():
            began = time.monotonic()
            error = bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=SOON, match="deadline")
            assert error.retryable
            assert bench.sim.public_id("p0") in error.message
            return time.monotonic() - began

        assert_prompt(2, attempt, at_most=10)

    def test_the_next_call_takes_the_answer_that_came_too_late(self, outlasting, ids):
        bench = outlasting()
        bench.fill(3)
        bench.sim.hold("p0")
        for _ in range(5):
            bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=SOON)
        assert bench.calls.fetches["p0"] == 1
        bench.sim.release("p0")
        assert ids(bench.page()) == bench.written()
        assert (bench.calls.fetches["p0"], bench.calls.opens["p0"]) == (1, 1)
        assert bench.calls.cancels == 0

    def test_one_that_runs_for_too_long_is_given_up_and_asked_for_again(self, outlasting, ids):
        bench = outlasting(longest=0.0)
        bench.fill(3)
        bench.sim.hold("p0")
        for number in (1, 2, 3):
            while bench.calls.opens["p0"] < number:  # tries again if no thread was free in time
                bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=SOON)
            assert bench.calls.cancels == bench.calls.opens["p0"] == number
        bench.sim.release("p0")
        assert ids(bench.page()) == bench.written()

    def test_a_call_that_waits_long_enough_gets_it(self, outlasting, ids):
        bench = outlasting()
        bench.fill(3)
        bench.sim.hold("p0")
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=SOON)
        threading.Timer(SOON, bench.sim.release, ["p0"]).start()
        with within(10):
            assert ids(bench.page(timeout=30)) == bench.written()
        assert bench.calls.fetches["p0"] == 1

    def test_it_is_for_that_position_alone(self, outlasting, ids):
        bench = outlasting()
        bench.fill(40)
        token = bench.page(size=10).continuation_token
        bench.sim.hold("p0")
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, token, timeout=SOON)
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, BEGINNING, timeout=SOON)
        bench.sim.release("p0")
        assert ids(bench.page(token, size=10)) == bench.written()[10:20]
        assert ids(bench.page(BEGINNING, size=10)) == bench.written()[:10]

    def test_two_callers_of_one_position_do_not_share_it(self, outlasting, ids):
        bench = outlasting()
        bench.fill(3)
        bench.sim.hold("p0")
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=SOON)
        pages = []
        threads = [threading.Thread(target=lambda: pages.append(bench.page(timeout=60))) for _ in range(3)]
        for thread in threads:
            thread.start()
        bench.sim.release("p0")
        for thread in threads:
            thread.join(90)
        assert [ids(page) for page in pages] == [bench.written()] * 3

    def test_the_others_are_read_meanwhile(self, outlasting, ids):
        bench = outlasting(2)
        bench.fill_partition("p0", 2)
        prompt = bench.fill_partition("p1", 2)
        bench.sim.hold("p0")
        with within(20):
            page = bench.page(timeout=30)
        assert ids(page) == prompt
        assert not page.idle
        late = bench.page(page.continuation_token, timeout=5)
        assert not late.idle
        assert list(late.diagnostics.partition_errors) == [bench.sim.public_id("p0")]
        bench.sim.release("p0")
        events, _ = bench.drain(late.continuation_token)
        assert sorted(ids(page) + ids(events)) == sorted(bench.written())
        assert bench.calls.opens["p0"] == 1

    def test_an_answer_that_failed_behind_the_deadline_is_asked_for_again(self, outlasting, ids, eventually):
        bench = outlasting(attempts=1)
        bench.fill(3)
        bench.sim.fail_next("p0", ServerError("too late"))
        bench.sim.hold("p0")
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=SOON)
        bench.sim.release("p0")
        eventually(lambda: bench.calls.open_readers == 0)
        assert ids(bench.page()) == bench.written()

    def test_a_token_of_before_still_has_everything(self, outlasting, ids):
        bench = outlasting()
        bench.fill(30)
        token = bench.page(size=10).continuation_token
        bench.sim.hold("p0")
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, token, timeout=SOON)
        bench.connect(threads=True)
        bench.sim.release("p0")
        assert ids(bench.drain(token)[0]) == bench.written()[10:]

    def test_closing_ends_it_in_a_second(self, outlasting):
        def attempt():
            bench = outlasting()
            bench.sim.hold("p0")
            bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=SOON)
            began = time.monotonic()
            bench.engine.close()
            return time.monotonic() - began

        assert_prompt(1, attempt, at_most=10)

    def test_one_that_has_run_for_too_long_between_two_calls_is_given_up(self, outlasting, ids):
        bench = outlasting(longest=2 * SOON)
        bench.fill(3)
        bench.sim.hold("p0")
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=SOON)
        assert bench.calls.cancels == 0
        time.sleep(2 * SOON)
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=SOON)
        assert bench.calls.cancels == 1
        assert bench.calls.opens["p0"] == 2
        bench.sim.release("p0")
        assert ids(bench.page()) == bench.written()

    def test_it_is_not_used_after_the_collection_was_recreated(self, outlasting, ids):
        bench = outlasting()
        bench.fill(3)
        token = bench.page(size=1).continuation_token
        bench.sim.hold("p0")
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, token, timeout=SOON)
        bench.sim.recreate()
        bench.fill(2)
        bench.sim.release("p0")
        with pytest.raises(MulticloudDbError):
            bench.page(token)
        assert ids(bench.page()) == bench.written()[-2:]

    def test_an_answer_is_used_once(self, outlasting, ids):
        bench = outlasting()
        bench.fill(3)
        bench.sim.hold("p0")
        bench.refused(ErrorCategory.TRANSIENT_FAILURE, timeout=SOON)
        bench.sim.release("p0")
        page = bench.page(size=2)
        again = bench.page(size=2)
        rest = bench.page(page.continuation_token)
        assert ids(page) == ids(again) == bench.written()[:2]
        assert ids(rest) == bench.written()[2:]

    def test_when_its_bytes_are_needed_it_goes(self, outlasting, ids):
        bench = outlasting(2, max_buffered_bytes=65_536)
        bench.fill_partition("p0", 2)
        bench.fill_partition("p1", 2)
        bench.sim.hold("p0")
        first = bench.page()
        bench.sim.release("p0")
        events, _ = bench.drain(first.continuation_token, size=1)
        assert sorted(ids(first) + ids(events)) == sorted(bench.written())


class TestResumes:
    """The feed decides which tokens it can resume.

    By default, a feed resumes only tokens of its own incarnation.
    """

    def recreated(self, bench):
        bench.fill(3)
        token = bench.page().continuation_token
        bench.sim.recreate()
        bench.connect()
        return token

    def test_by_default_none_of_an_earlier_one(self, bench):
        token = self.recreated(bench)
        bench.refused(ErrorCategory.INVALID_REQUEST, token, match="recreated")

    def test_a_feed_may_go_on_from_it(self, bench, monkeypatch):
        token = self.recreated(bench)
        asked = []

        def resumes(feed, incarnation):
            asked.append((incarnation, feed.identity.incarnation))
            return True

        monkeypatch.setattr(SimulationFeed, "resumes", resumes)
        # From here on, the service's answer decides, not the token.
        bench.refused(ErrorCategory.NOT_FOUND, token)
        (before, now), *_ = asked
        assert before != now

    def test_and_may_refuse_what_is_its_own(self, bench, monkeypatch):
        bench.fill(3)
        token = bench.page().continuation_token
        monkeypatch.setattr(SimulationFeed, "resumes", lambda feed, incarnation: False)
        with pytest.raises(MulticloudDbError, match="recreated"):
            bench.page(token)

    def test_one_that_does_not_is_opened_anew_before_that_is_believed(self, bench, monkeypatch, ids):
        """A feed that was opened long ago may belong to an earlier collection with the same name."""
        bench.fill(3)
        bench.page()
        bench.sim.recreate()
        bench.fill(2)
        other = bench.engine
        bench.connect()
        token = bench.page(size=1).continuation_token
        feeds = other.provider.calls.feeds
        assert ids(bench.page(token, engine=other)) == bench.written()[-1:]
        assert other.provider.calls.feeds == feeds + 1
