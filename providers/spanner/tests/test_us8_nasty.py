"""Runs the suite's tests of splits and pages on a server that is as awkward as the protocol allows."""

from .scripted import NastyHarness
from .suite import TestMerge, TestPageSize, TestTransactions

__all__ = ["TestMerge", "TestPageSize", "TestTransactions"]

HARNESS = NastyHarness
