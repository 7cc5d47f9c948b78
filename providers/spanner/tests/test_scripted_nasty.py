"""Runs the suite's reading tests on a scripted server whose answers are as awkward as the protocol allows."""

from .scripted import NastyHarness
from .suite import TestCheckpoint, TestMerge, TestPageSize, TestRetirement, TestSplit, TestTransactions

__all__ = ["TestCheckpoint", "TestMerge", "TestPageSize", "TestRetirement", "TestSplit", "TestTransactions"]

HARNESS = NastyHarness
