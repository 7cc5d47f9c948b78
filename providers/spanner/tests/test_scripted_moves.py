"""Runs the suite's tests of splits and merges on a scripted server where each of them may move any key."""

from .scripted import MovesKeysHarness
from .suite import TestMerge, TestRetirement, TestSplit

__all__ = ["TestMerge", "TestRetirement", "TestSplit"]

HARNESS = MovesKeysHarness
