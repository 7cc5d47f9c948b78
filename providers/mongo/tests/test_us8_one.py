"""Runs the suite on a replica set of one node."""

from multiclouddb_certify.suites.mongo import *  # noqa: F403

from .harness import SharedHarness

# What depends on replication: the only member is the majority, so a write is shown at once.
FORM = {
    "TestBeginning": "the oplog of the only member",
    "TestLoss::test_nothing_is_lost_by_a_consumer_of_pages": "writes are shown at once",
    "TestNow": "the latest write",
    "TestSnapshotUnderLoad": "a moment that one member has reached",
    "TestTrouble::test_nothing_is_lost": "no other member answers after a fault",
}

HARNESS = SharedHarness
