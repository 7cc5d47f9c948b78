"""The suite's tests of reading on a scripted server that answers in the most awkward way there is."""

from .scripted import NastyHarness
from .suite import TestCheckpoint, TestMerge, TestPageSize, TestRetirement, TestSplit, TestTransactions

__all__ = ["TestCheckpoint", "TestMerge", "TestPageSize", "TestRetirement", "TestSplit", "TestTransactions"]

HARNESS = NastyHarness
