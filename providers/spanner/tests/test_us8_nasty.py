"""Runs the suite's tests of splits and pages on a server that is as awkward as the protocol allows."""

from multiclouddb_certify.suites.spanner import TestMerge, TestPageSize, TestTransactions

from .scripted import NastyHarness

__all__ = ["TestMerge", "TestPageSize", "TestTransactions"]

HARNESS = NastyHarness
