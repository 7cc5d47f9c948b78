"""Runs the tests of slow and broken links, and finds no private name of botocore."""

import pytest

from testing import slow_link_suite

from .test_slow_link import TestCut, TestEnd, behind  # noqa: F401

pytestmark = pytest.mark.usefixtures("hidden")


class TestSlow(slow_link_suite.TestSlow):
    """A silent connection is given up by botocore's own `read_timeout`, which is ten seconds."""

    def test_silence_is_given_up(self, behind):  # noqa: F811
        consumer = behind.backlog(1, text=10, timeout=1.0)
        behind.link.forget()
        assert consumer.until(1, at_most=20) < 15
