"""Runs the suite on a replica set of three nodes."""

from multiclouddb_certify.suites.mongo import *  # noqa: F403

from .harness import SharedHarness

# What depends on replication: a write is shown when most members have it, and reads may go to any member.
FORM = {
    "TestBeginning": "the oplog of a member that is read",
    "TestLoss::test_nothing_is_lost_by_a_consumer_of_pages": "writes are shown late",
    "TestNow": "the latest write that most members have",
    "TestSnapshotUnderLoad": "a moment that most members have reached",
    "TestTrouble::test_nothing_is_lost": "another member may answer after a fault",
}


class ThreeHarness(SharedHarness):
    """A harness with three nodes. A write is stored on at least two of the nodes before a feed shows it."""

    servers_name = "us8 three"
    members = 3


HARNESS = ThreeHarness
