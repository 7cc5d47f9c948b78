"""Runs the suite's tests of loss and of sharing on Google's emulator, where partitions live for 20 to 40
seconds by default. test_us8_hasty.py runs all reading tests on partitions that live for 3 to 6 seconds.
"""

import pytest

from .harness import RestlessHarness
from .servers.emulator import RESTLESS
from .suite import TestLoss, TestSharing

__all__ = ["TestLoss", "TestSharing"]

pytestmark = pytest.mark.emulator(*RESTLESS)

HARNESS = RestlessHarness
