"""Runs the suite on a scripted server, which splits, merges and trims, and on whose network faults happen."""

from multiclouddb_certify.suites.spanner import *  # noqa: F403

from .scripted import ScriptedHarness

HARNESS = ScriptedHarness

# What Google's emulator cannot do on request, and what reads so often that its price counts. What the service
# itself decides runs in test_us8.py.
FORM = {
    "TestCheckpoint": "it reads very often",
    "TestDescendants": "splits and merges",
    "TestEndlessTrouble": "faults",
    "TestEventIdentity": "splits, and it reads very often",
    "TestExpiry": "retention",
    "TestFollowing": "it reads very often",
    "TestForeignTokens": "it reads very often",
    "TestIdle": "retention",
    "TestMerge": "merges",
    "TestNotices": "dropped tables, and it reads very often",
    "TestPhysicalPartition": "several partitions that stay",
    "TestPoison": "a record that cannot be decoded",
    "TestReleasing": "it reads very often",
    "TestRetirement": "splits",
    "TestSnapshot": "it reads very often",
    "TestSnapshotUnderLoad": "splits during a scan",
    "TestSpellings": "it reads very often",
    "TestSplit": "splits",
    "TestTrimmedOnTheWay": "retention",
    "TestTrouble": "faults",
    "TestVerified": "it reads very often",
    "TestWatermark": "partitions that are at different times",
}
