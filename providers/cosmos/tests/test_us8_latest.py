"""Runs the conformance suite in the mode of latest versions, on an account without continuous backup."""

import pytest

from multiclouddb_conformance.us8 import *  # noqa: F403

from .harness import LatestHarness
from .suite import TestEventIdentity, TestRetirement  # noqa: F401

pytestmark = pytest.mark.usefixtures("hasty")

HARNESS = LatestHarness
