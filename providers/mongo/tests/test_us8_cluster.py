"""Runs the conformance suite through `EntireCluster()`, on a server without other writers."""

import pytest

from multiclouddb_api import EntireCluster
from multiclouddb_conformance import us8
from multiclouddb_spi.continuation.token import decode_token

from .harness import MongoHarness
from .suite import *  # noqa: F403


class ClusterHarness(MongoHarness):
    """A harness for a cluster. Cases about a collection, a partition or a key are in test_us8_one.py."""

    servers_name = "us8 cluster"
    scope = EntireCluster()
    can_alone = False
    can_notices = True


HARNESS = ClusterHarness


class TestBeginning(us8.TestBeginning):
    """The beginning of the oplog is the beginning of the test."""

    @pytest.fixture(autouse=True)
    def _nothing_before(self, harness):
        harness.trim(None)


def test_the_suite_reads_the_whole_cluster(collection):
    assert decode_token(collection.begin).scope == "cluster"
