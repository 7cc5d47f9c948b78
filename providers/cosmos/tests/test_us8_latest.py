"""Runs the conformance suite in the mode of latest versions, on an account without continuous backup.

The classes about the client alone run in test_us8.py, because a client is the same in both modes.
"""

import pytest

from multiclouddb_certify.suites import cosmos
from multiclouddb_conformance import us8
from multiclouddb_conformance.us8 import *  # noqa: F403

from .harness import LatestHarness

for name in ("TestClosing", "TestDeadline", "TestPickling", "TestReleasing", "TestSharing"):
    del globals()[name]
TestEventIdentity, TestRetirement = cosmos.TestEventIdentity, cosmos.TestRetirement

pytestmark = pytest.mark.usefixtures("hasty")

HARNESS = LatestHarness


@pytest.mark.soak
class TestCheckpoint(us8.TestCheckpoint):
    """`make test` runs it only in test_us8.py."""


@pytest.mark.soak
class TestTrouble(us8.TestTrouble):
    """`make test` runs it only in test_us8.py."""
