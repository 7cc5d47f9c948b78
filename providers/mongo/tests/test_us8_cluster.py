"""Runs the suite through `EntireCluster()`, on a server without other writers."""

import pytest

from multiclouddb_api import EntireCluster
from multiclouddb_certify.suites.mongo import *  # noqa: F403
from multiclouddb_conformance import us8
from multiclouddb_spi.continuation.token import decode_token

from .harness import SharedHarness

# A feed of a cluster is that of a database, except for one more option of the change stream.
FORM = {
    "TestBeginning": "the oplog has other databases too",
    "TestLoss::test_nothing_is_lost_by_a_consumer_of_pages": "other databases are written to",
    "TestNotices": "other databases are dropped too",
    "TestTransactions": "a transaction may span databases",
}


class ClusterHarness(SharedHarness):
    """A harness for a cluster."""

    servers_name = "us8 cluster"
    scope = EntireCluster()
    can_alone = False
    can_notices = True


HARNESS = ClusterHarness
OWN_SETS = (ClusterHarness.servers_name,)


class NothingBefore:
    """The oplog begins when a test begins, so it has nothing that other tests have left in it."""

    @pytest.fixture(autouse=True)
    def _nothing_before(self, harness):
        harness.trim(None)


class TestBeginning(NothingBefore, us8.TestBeginning):
    pass


class TestPoison(NothingBefore, us8.TestPoison):
    pass


def test_the_suite_reads_the_whole_cluster(collection):
    assert decode_token(collection.begin).scope == "cluster"
