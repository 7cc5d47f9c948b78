"""Tests waits and the limits on their duration."""

import pytest

from multiclouddb_conformance.waiting import assert_prompt, wait_until


class TestWaitUntil:
    def test_returns_what_came_true(self):
        answers = iter([0, None, "yes"])
        assert wait_until(lambda: next(answers)) == "yes"

    def test_says_when_it_did_not(self):
        with pytest.raises(TimeoutError, match=r"0\.1 seconds"):
            wait_until(lambda: False, 0.1)


class TestPrompt:
    def attempts(self, *seconds):
        """Check attempts with the given durations; return the number of attempts made."""
        left = list(seconds)
        try:
            assert_prompt(1, lambda: left.pop(0), at_most=10, tries=3)
        finally:
            self.made = len(seconds) - len(left)

    @pytest.mark.parametrize(("seconds", "made"), [((0.9, 5), 1), ((5, 1, 0.9, 5), 3)], ids=["first", "last"])
    def test_one_quick_attempt_is_enough(self, seconds, made):
        self.attempts(*seconds)
        assert self.made == made

    def test_what_is_slow_each_time_is_found(self):
        with pytest.raises(AssertionError, match=r"no attempt took less than 1 seconds: \[1, 5, 2\]"):
            self.attempts(1, 5, 2, 0.5)
        assert self.made == 3

    def test_what_hangs_now_and_then_is_found_although_the_next_one_is_quick(self):
        with pytest.raises(AssertionError, match=r"10\.0 seconds.* it hung"):
            self.attempts(2, 10, 0.5)
        assert self.made == 2
