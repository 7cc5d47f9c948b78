"""Runs the cases that depend on replication on a replica set of three nodes.

These cases concern starts, positions, waiting, faults, snapshots and lost events. The whole conformance suite
runs in test_us8_one.py.
"""

from .harness import MongoHarness
from .suite import (
    TestAtTime,
    TestBeginning,
    TestCheckpoint,
    TestDeadline,
    TestEndlessTrouble,
    TestEveryStart,
    TestIdle,
    TestLongPoll,
    TestLoss,
    TestNotices,
    TestNow,
    TestRecreated,
    TestReleasing,
    TestResnapshot,
    TestSecrets,
    TestSharing,
    TestSnapshot,
    TestSnapshotUnderLoad,
    TestTransactions,
    TestTrimmedOnTheWay,
    TestTrouble,
    TestWatermark,
)

__all__ = [
    "TestAtTime",
    "TestBeginning",
    "TestCheckpoint",
    "TestDeadline",
    "TestEndlessTrouble",
    "TestEveryStart",
    "TestIdle",
    "TestLongPoll",
    "TestLoss",
    "TestNotices",
    "TestNow",
    "TestRecreated",
    "TestReleasing",
    "TestResnapshot",
    "TestSecrets",
    "TestSharing",
    "TestSnapshot",
    "TestSnapshotUnderLoad",
    "TestTransactions",
    "TestTrimmedOnTheWay",
    "TestTrouble",
    "TestWatermark",
]


class ThreeHarness(MongoHarness):
    """A harness with three nodes. A write is stored on at least two of the nodes before a feed shows it."""

    servers_name = "us8 three"
    members = 3


HARNESS = ThreeHarness
