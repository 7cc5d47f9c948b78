"""Runs the suite's reading tests on Google's emulator, where partitions live for three to six seconds."""

import pytest

from multiclouddb_certify.suites.spanner import TestLoss, TestNow, TestSnapshotUnderLoad

from .harness import HastyHarness
from .servers.emulator import HASTY

__all__ = ["TestLoss", "TestNow", "TestSnapshotUnderLoad"]

pytestmark = pytest.mark.emulator(*HASTY)

HARNESS = HastyHarness
