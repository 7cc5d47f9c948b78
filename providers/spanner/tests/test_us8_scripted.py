"""Runs the classes of the suite that need a scripted server: splits, merges, retention, network faults."""

from multiclouddb_certify.suites.spanner import (  # noqa: F401
    TestDescendants,
    TestEndlessTrouble,
    TestEventIdentity,
    TestExpiry,
    TestFollowing,
    TestIdle,
    TestMerge,
    TestNotices,
    TestPhysicalPartition,
    TestPoison,
    TestRetirement,
    TestSnapshotUnderLoad,
    TestSplit,
    TestTrimmedOnTheWay,
    TestTrouble,
    TestWatermark,
)

from .scripted import ScriptedHarness

__all__ = [name for name in dir() if name.startswith("Test")]


HARNESS = ScriptedHarness
