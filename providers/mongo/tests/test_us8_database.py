"""Runs the cases that depend on the scope through `EntireDatabase()`. Every test has its own database."""

import pytest

from multiclouddb_api import EntireDatabase
from multiclouddb_certify.suites import mongo
from multiclouddb_certify.suites.mongo import (
    TestEventIdentity,
    TestForeignTokens,
    TestNotices,
    TestTransactions,
)
from multiclouddb_spi.continuation.token import decode_token

from .harness import SharedHarness

__all__ = ["TestEventIdentity", "TestForeignTokens", "TestLoss", "TestNotices", "TestTransactions"]


class DatabaseHarness(SharedHarness):
    """A harness for a database. test_us8_one.py tests cases about one collection, a partition or a key."""

    scope = EntireDatabase()
    can_alone = False
    can_notices = True


HARNESS = DatabaseHarness


def test_the_suite_reads_the_whole_database(collection):
    assert decode_token(collection.begin).scope == "database"


class TestLoss(mongo.TestLoss):
    """test_loss.py reads a database with an iterator, too."""

    @pytest.mark.soak
    def test_nothing_is_lost_by_an_iterator(self, harness):
        super().test_nothing_is_lost_by_an_iterator(harness)
