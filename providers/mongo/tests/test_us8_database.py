"""Runs the suite through `EntireDatabase()`. Every test has its own database."""

from multiclouddb_api import EntireDatabase
from multiclouddb_certify.suites.mongo import *  # noqa: F403
from multiclouddb_spi.continuation.token import decode_token

from .harness import SharedHarness

# The scope is an option of the change stream. Collections, partitions and keys do not depend on it.
FORM = {
    "TestDatabaseSnapshot": "the rows of several collections",
    "TestEventIdentity": "events of several collections",
    "TestForeignTokens": "a token of another scope",
    "TestLoss::test_nothing_is_lost_by_a_consumer_of_pages": "test_loss.py reads with an iterator",
    "TestNotices": "collections are dropped and renamed in the feed",
    "TestTransactions": "a transaction may span collections",
}


class DatabaseHarness(SharedHarness):
    """A harness for a database."""

    scope = EntireDatabase()
    can_alone = False
    can_notices = True


HARNESS = DatabaseHarness


def test_the_suite_reads_the_whole_database(collection):
    assert decode_token(collection.begin).scope == "database"
