"""Runs the suite's reading tests on Google's emulator with its fastest settings.

Partitions live for 3 to 6 seconds.
"""

import pytest

from .harness import HastyHarness
from .servers.emulator import HASTY
from .suite import TestAtTime, TestBeginning, TestCheckpoint, TestLoss, TestNow, TestWatermark

__all__ = ["TestAtTime", "TestBeginning", "TestCheckpoint", "TestLoss", "TestNow", "TestWatermark"]

pytestmark = pytest.mark.emulator(*HASTY)

HARNESS = HastyHarness
