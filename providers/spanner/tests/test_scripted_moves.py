"""Runs the suite's tests of splits and merges on a scripted server. Each split or merge may move any key."""

from .scripted import MovesKeysHarness
from .suite import TestMerge, TestRetirement, TestSplit

__all__ = ["TestMerge", "TestRetirement", "TestSplit"]

HARNESS = MovesKeysHarness
