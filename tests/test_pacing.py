"""The iterator's clock."""

import time

import pytest

from multiclouddb_api.pacing import Timer


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
