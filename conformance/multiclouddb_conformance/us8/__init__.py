"""User story 8, portable change feeds, as tests: `from multiclouddb_conformance.us8 import *`.

To change one test, define a subclass of the test's class after the import. The subclass must have
the same name as the class.
"""

from __future__ import annotations

from multiclouddb_conformance.us8.capability import TestCapabilities, TestNoFeed
from multiclouddb_conformance.us8.checkpoint import TestCheckpoint, TestPageSize
from multiclouddb_conformance.us8.coverage import TestLateSiblings, TestUncovered
from multiclouddb_conformance.us8.database_snapshot import TestDatabaseSnapshot
from multiclouddb_conformance.us8.delivery import TestPropagation, TestTransactions
from multiclouddb_conformance.us8.document import TestImages, TestKeys, TestValues
from multiclouddb_conformance.us8.expiry import TestExpiry, TestPoison
from multiclouddb_conformance.us8.faults import TestEndlessTrouble, TestTrimmedOnTheWay, TestTrouble
from multiclouddb_conformance.us8.following import TestFollowing
from multiclouddb_conformance.us8.identity import TestEventIdentity, TestForeignTokens, TestRecreated
from multiclouddb_conformance.us8.idle import TestIdle, TestLongPoll, TestReadUntil, TestWatermark
from multiclouddb_conformance.us8.lateness import TestLateness
from multiclouddb_conformance.us8.latest import TestLatestVersions
from multiclouddb_conformance.us8.lineage import (
    TestDescendants,
    TestLateChildren,
    TestMerge,
    TestRetirement,
    TestSplit,
)
from multiclouddb_conformance.us8.loss import TestLoss
from multiclouddb_conformance.us8.notices import TestNotices
from multiclouddb_conformance.us8.resnapshot import TestResnapshot, TestSnapshotUnderLoad
from multiclouddb_conformance.us8.rows import (
    TestLookup,
    TestNoLookup,
    TestNoRowsAlone,
    TestRowsAlone,
    TestScannedRow,
    TestSpellings,
)
from multiclouddb_conformance.us8.scope import TestLogicalPartition, TestPhysicalPartition, TestWiderScopes
from multiclouddb_conformance.us8.session import (
    TestClosing,
    TestDeadline,
    TestPickling,
    TestReleasing,
    TestSecrets,
    TestSharing,
)
from multiclouddb_conformance.us8.snapshot import TestNoSnapshot, TestSnapshot
from multiclouddb_conformance.us8.start import TestAtTime, TestBeginning, TestEveryStart, TestNow
from multiclouddb_conformance.us8.verified import TestVerified

__all__ = [
    "TestAtTime",
    "TestBeginning",
    "TestCapabilities",
    "TestCheckpoint",
    "TestClosing",
    "TestDatabaseSnapshot",
    "TestDeadline",
    "TestDescendants",
    "TestEndlessTrouble",
    "TestEventIdentity",
    "TestEveryStart",
    "TestExpiry",
    "TestFollowing",
    "TestForeignTokens",
    "TestIdle",
    "TestImages",
    "TestKeys",
    "TestLateChildren",
    "TestLateSiblings",
    "TestLateness",
    "TestLatestVersions",
    "TestLogicalPartition",
    "TestLongPoll",
    "TestLookup",
    "TestLoss",
    "TestMerge",
    "TestNoFeed",
    "TestNoLookup",
    "TestNoRowsAlone",
    "TestNoSnapshot",
    "TestNotices",
    "TestNow",
    "TestPageSize",
    "TestPhysicalPartition",
    "TestPickling",
    "TestPoison",
    "TestPropagation",
    "TestReadUntil",
    "TestRecreated",
    "TestReleasing",
    "TestResnapshot",
    "TestRetirement",
    "TestRowsAlone",
    "TestScannedRow",
    "TestSecrets",
    "TestSharing",
    "TestSnapshot",
    "TestSnapshotUnderLoad",
    "TestSpellings",
    "TestSplit",
    "TestTransactions",
    "TestTrimmedOnTheWay",
    "TestTrouble",
    "TestUncovered",
    "TestValues",
    "TestVerified",
    "TestWatermark",
    "TestWiderScopes",
]
