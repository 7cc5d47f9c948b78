"""Runs the suite on a replica set of three nodes, and finds no private name of PyMongo."""

import pytest

from multiclouddb_certify.suites.mongo import *  # noqa: F403

from .test_us8_three import HARNESS, OWN_SETS  # noqa: F401

pytestmark = pytest.mark.usefixtures("hidden")

# Without the names, the server may delay an empty answer, and nobody knows which member has sent it.
FORM = {
    "TestAtTime": "a search of the log is an empty answer",
    "TestBeginning": "a search of the log is an empty answer",
    "TestCheckpoint": "a stream is closed on a member that is not known",
    "TestDeadline": "an empty answer takes longer",
    "TestEndlessTrouble": "a stream is closed on a member that is not known",
    "TestEveryStart": "a page ends with another answer",
    "TestExpiry": "whether another member has a longer log is asked of all",
    "TestFollowing": "each read asks the primary too",
    "TestIdle": "the primary is asked whether more was written",
    "TestLateness": "the primary is asked whether more was written",
    "TestLongPoll": "an empty answer takes longer",
    "TestLoss": "the primary is asked whether more was written",
    "TestNotices": "a page ends with another answer",
    "TestNow": "the primary is asked for its last write",
    "TestPageSize": "a page ends with another answer",
    "TestReadUntil": "the primary is asked whether more was written",
    "TestReleasing": "a stream is closed on a member that is not known",
    "TestSnapshotUnderLoad": "the feed goes on where the scan began",
    "TestSharing": "a stream is closed on a member that is not known",
    "TestTrimmedOnTheWay": "whether another member has a longer log is asked of all",
    "TestTrouble": "a member that answers no more is not known",
    "TestWatermark": "the primary is asked for its last write",
}
