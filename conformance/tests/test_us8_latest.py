"""Runs the suite on a simulation whose feed contains only latest versions."""

from multiclouddb_conformance.simulated import LatestSimulationHarness
from multiclouddb_conformance.us8 import *  # noqa: F403

# Such a feed leaves out versions and deletes. Clients, errors and scopes do not depend on it.
FORM = {
    "TestAtTime": "it starts at the latest version of each document",
    "TestBeginning": "it starts with every document",
    "TestCapabilities": "versions, deletes and types of changes are missing",
    "TestEventIdentity": "a version that is left out has no event",
    "TestEveryStart": "it starts at the latest version of each document",
    "TestFollowing": "a repeated version is no new one",
    "TestLatestVersions": "it is about such feeds alone",
    "TestLoss": "the oracle asks only for latest versions",
    "TestMerge": "a document moves with its partition",
    "TestPropagation": "there are no deletes",
    "TestSplit": "a document moves with its partition",
    "TestTransactions": "a transaction leaves the last version of each document",
}

HARNESS = LatestSimulationHarness
