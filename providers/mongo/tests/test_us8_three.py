"""Runs the cases that depend on replication on a replica set of three nodes.

These cases concern starts, faults, snapshots and lost events. The whole conformance suite
runs in test_us8_one.py.
"""

from .harness import MongoHarness
from .test_us8_one import TestBeginning, TestLoss, TestNow, TestSnapshotUnderLoad, TestTrouble

__all__ = ["TestBeginning", "TestLoss", "TestNow", "TestSnapshotUnderLoad", "TestTrouble"]


class ThreeHarness(MongoHarness):
    """A harness with three nodes. A write is stored on at least two of the nodes before a feed shows it."""

    servers_name = "us8 three"
    members = 3


HARNESS = ThreeHarness
