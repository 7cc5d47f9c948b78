"""Runs the suite's snapshot tests on Google's emulator, whose partitions live for three to six seconds."""

import pytest

from .harness import HastyHarness
from .servers.emulator import HASTY
from .suite import TestResnapshot, TestSnapshotUnderLoad

__all__ = ["TestResnapshot", "TestSnapshotUnderLoad"]

pytestmark = pytest.mark.emulator(*HASTY)

HARNESS = HastyHarness
