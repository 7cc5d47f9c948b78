"""Runs the classes that need a scripted server: splits, merges, retention, network faults.

Other classes read very often, and this server is much cheaper to read than Google's emulator.
"""

from multiclouddb_certify.suites.spanner import (  # noqa: F401
    TestCheckpoint,
    TestDescendants,
    TestEndlessTrouble,
    TestEventIdentity,
    TestExpiry,
    TestFollowing,
    TestForeignTokens,
    TestIdle,
    TestMerge,
    TestNotices,
    TestPhysicalPartition,
    TestPoison,
    TestReleasing,
    TestRetirement,
    TestSnapshot,
    TestSnapshotUnderLoad,
    TestSpellings,
    TestSplit,
    TestTrimmedOnTheWay,
    TestTrouble,
    TestVerified,
    TestWatermark,
)

from .scripted import ScriptedHarness

__all__ = [name for name in dir() if name.startswith("Test")]


HARNESS = ScriptedHarness
