"""Runs the cases that depend on the scope through `EntireCluster()`, on a server without other writers.

A feed of a cluster is the same as a feed of a database, except for one more option of the change stream.
"""

import pytest

from multiclouddb_api import EntireCluster
from multiclouddb_certify.suites import mongo
from multiclouddb_certify.suites.mongo import TestNotices, TestTransactions
from multiclouddb_conformance import us8
from multiclouddb_spi.continuation.token import decode_token

from .harness import SharedHarness

__all__ = ["TestBeginning", "TestLoss", "TestNotices", "TestTransactions"]


class ClusterHarness(SharedHarness):
    """A harness for a cluster. Tests of a collection, a partition or a key are in test_us8_one.py."""

    servers_name = "us8 cluster"
    scope = EntireCluster()
    can_alone = False
    can_notices = True


HARNESS = ClusterHarness


class TestBeginning(us8.TestBeginning):
    """The oplog begins when the test begins."""

    @pytest.fixture(autouse=True)
    def _nothing_before(self, harness):
        harness.trim(None)


def test_the_suite_reads_the_whole_cluster(collection):
    assert decode_token(collection.begin).scope == "cluster"


class TestLoss(mongo.TestLoss):
    """`make test` runs one consumer here, and all of them in test_us8_one.py."""

    @pytest.mark.soak
    def test_nothing_is_lost_by_an_iterator(self, harness):
        super().test_nothing_is_lost_by_an_iterator(harness)
