"""Runs the cases that depend on replication on a replica set of three nodes.

These cases concern starts, faults, snapshots and lost events. The whole conformance suite
runs in test_us8_one.py.
"""

from multiclouddb_certify.suites.mongo import (
    TestBeginning,
    TestLoss,
    TestNow,
    TestSnapshotUnderLoad,
    TestTrouble,
)

from .harness import SharedHarness

__all__ = ["TestBeginning", "TestLoss", "TestNow", "TestSnapshotUnderLoad", "TestTrouble"]


class ThreeHarness(SharedHarness):
    """A harness with three nodes. A write is stored on at least two of the nodes before a feed shows it."""

    servers_name = "us8 three"
    members = 3


HARNESS = ThreeHarness
