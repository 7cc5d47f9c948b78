"""Runs the suite's reading tests on Google's emulator, where partitions live for 20 to 40 seconds."""

import pytest

from .harness import RestlessHarness
from .servers.emulator import RESTLESS
from .suite import TestBeginning, TestCheckpoint, TestLoss, TestNow, TestSharing, TestWatermark

__all__ = ["TestBeginning", "TestCheckpoint", "TestLoss", "TestNow", "TestSharing", "TestWatermark"]

pytestmark = pytest.mark.emulator(*RESTLESS)

HARNESS = RestlessHarness
