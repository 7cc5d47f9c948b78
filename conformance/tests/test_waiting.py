"""Tests waits and the limits on their duration."""

import pytest

from multiclouddb_conformance.waiting import assert_prompt, wait_until


def test_a_wait_returns_what_came_true_or_says_that_nothing_did():
    answers = iter([0, None, "yes"])
    assert wait_until(lambda: next(answers)) == "yes"
    with pytest.raises(TimeoutError, match=r"0\.1 seconds"):
        wait_until(lambda: False, 0.1)


@pytest.mark.parametrize(
    ("seconds", "made", "message"),
    [
        ((0.9, 5), 1, None),
        ((5, 1, 0.9, 5), 3, None),
        ((1, 5, 2, 0.5), 3, r"no attempt took less than 1 seconds: \[1, 5, 2\]"),
        ((2, 10, 0.5), 2, r"10\.0 seconds.* it hung"),  # although the next one is quick
    ],
)
def test_one_quick_attempt_is_enough(seconds, made, message):
    left = list(seconds)

    def attempt():
        return assert_prompt(1, lambda: left.pop(0), at_most=10, tries=3)

    if message is None:
        attempt()
    else:
        with pytest.raises(AssertionError, match=message):
            attempt()
    assert len(seconds) - len(left) == made
