"""Runs what depends on replication on a replica set of three nodes: starts, positions, waiting, trouble,
snapshots and loss. test_us8_one.py runs the whole conformance suite.
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
    """A harness with three nodes. A write is on at least two of them before it appears in a feed."""

    servers_name = "us8 three"
    members = 3


HARNESS = ThreeHarness
