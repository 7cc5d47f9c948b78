"""Runs the suite's reading tests on Google's emulator, where partitions live for three to six seconds."""

import pytest

from .harness import HastyHarness
from .servers.emulator import HASTY
from .suite import TestLoss, TestNow, TestSnapshotUnderLoad

__all__ = ["TestLoss", "TestNow", "TestSnapshotUnderLoad"]

pytestmark = pytest.mark.emulator(*HASTY)

HARNESS = HastyHarness
