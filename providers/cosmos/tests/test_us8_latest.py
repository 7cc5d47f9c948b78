"""Runs the conformance suite in the mode of latest versions, on an account without continuous backup."""

import pytest

from multiclouddb_certify.suites import cosmos
from multiclouddb_conformance.us8 import *  # noqa: F403

from .harness import LatestHarness

TestEventIdentity, TestRetirement = cosmos.TestEventIdentity, cosmos.TestRetirement

pytestmark = pytest.mark.usefixtures("hasty")

# The mode has its own start, mapping, scan and position. A client, its errors and its calls are the same in
# both.
FORM = {
    "TestAtTime": "the service starts this mode at a time by itself",
    "TestBeginning": "the service starts this mode at the beginning by itself",
    "TestCapabilities": "other capabilities are emulated or missing",
    "TestDescendants": "a position is that of one mode",
    "TestEventIdentity": "an event is named by its version",
    "TestEveryStart": "the service starts this mode",
    "TestExpiry": "this mode has no retention",
    "TestFollowing": "positions and sizes of answers are those of the mode",
    "TestIdle": "an empty answer is another status",
    "TestImages": "there are no old documents",
    "TestKeys": "a record has another form",
    "TestLatestVersions": "it is about such feeds alone",
    "TestLogicalPartition": "the scope is a filter of this mode",
    "TestLookup": "the order key of a row is that of the mode",
    "TestLoss": "the oracle asks only for latest versions",
    "TestMerge": "a start at a time needs another header after a merge",
    "TestNow": "the service starts this mode at now by itself",
    "TestPageSize": "answers are cut elsewhere",
    "TestPoison": "a record has another form",
    "TestPropagation": "there are no deletes",
    "TestRecreated": "the container is asked for in another way",
    "TestRetirement": "a split is told at another place",
    "TestRowsAlone": "a row is read as its latest version",
    "TestScannedRow": "a row is read as its latest version",
    "TestSnapshot": "a scan is the feed from its beginning",
    "TestSnapshotUnderLoad": "a scan is the feed from its beginning",
    "TestSpellings": "a record has another form",
    "TestSplit": "a split is told at another place",
    "TestTransactions": "a transaction leaves the last version of each document",
    "TestValues": "a record has another form",
    "TestVerified": "deletes are found by `verify` alone",
    "TestWatermark": "a record's time is that of its latest version",
}

HARNESS = LatestHarness
