"""Runs the conformance suite in the mode of latest versions, on an account without continuous backup."""

import pytest

from multiclouddb_certify.suites import cosmos
from multiclouddb_conformance.us8 import *  # noqa: F403

from .harness import LatestHarness

TestEventIdentity, TestRetirement = cosmos.TestEventIdentity, cosmos.TestRetirement

pytestmark = pytest.mark.usefixtures("hasty")

HARNESS = LatestHarness
