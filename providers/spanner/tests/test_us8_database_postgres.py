"""Runs the suite through `EntireDatabase()` in the PostgreSQL dialect, on a scripted server."""

from multiclouddb_certify.suites.spanner import *  # noqa: F403
from multiclouddb_spi.continuation.token import decode_token

from .scripted import PostgresDatabaseHarness

HARNESS = PostgresDatabaseHarness

# The scope decides which records are read, and how their tables are told apart. Partitions, faults and
# positions are those of the stream.
FORM = {
    "TestDatabaseSnapshot": "the rows of several tables",
    "TestDescendants": "the partitions of the stream of a database",
    "TestEventIdentity": "events of several tables",
    "TestForeignTokens": "a token of another scope",
    "TestKeys": "each record names its own key columns",
    "TestLoss::test_nothing_is_lost_by_a_consumer_of_pages": "another scope is read",
    "TestMerge": "the partitions of the stream of a database",
    "TestPoison": "a record names its own table",
    "TestPropagation": "each record names its own table",
    "TestSplit": "the partitions of the stream of a database",
    "TestTransactions": "a transaction may span tables",
    "TestValues": "each record names its own columns",
}


def test_the_suite_reads_the_whole_database(collection):
    assert decode_token(collection.begin).scope == "database"
