"""Runs the cases that depend on replication on a replica set of three nodes.

These cases concern starts, faults, snapshots and lost events. The whole conformance suite
runs in test_us8_one.py.
"""

import pytest

from multiclouddb_certify.suites import mongo
from multiclouddb_certify.suites.mongo import TestBeginning, TestNow, TestSnapshotUnderLoad

from .harness import SharedHarness

__all__ = ["TestBeginning", "TestLoss", "TestNow", "TestSnapshotUnderLoad", "TestTrouble"]


class ThreeHarness(SharedHarness):
    """A harness with three nodes. A write is stored on at least two of the nodes before a feed shows it."""

    servers_name = "us8 three"
    members = 3


HARNESS = ThreeHarness


class TestLoss(mongo.TestLoss):
    """`make test` runs one consumer here, and all of them in test_us8_one.py."""

    @pytest.mark.soak
    def test_nothing_is_lost_by_an_iterator(self, harness):
        super().test_nothing_is_lost_by_an_iterator(harness)

    @pytest.mark.soak
    @pytest.mark.needs("alone")
    def test_nothing_is_lost_from_the_beginning(self, harness):
        super().test_nothing_is_lost_from_the_beginning(harness)


class TestTrouble(mongo.TestTrouble):
    """The order of a key and a killed consumer do not depend on replication: test_us8_one.py tests them."""

    test_the_changes_of_a_key_stay_in_order = None
    test_a_consumer_that_is_killed_continues_without_the_trouble = None
