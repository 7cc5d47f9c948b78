"""Runs the tests of starts, losses and lineage on a simulation whose feed contains only latest versions."""

from multiclouddb_conformance.simulated import LatestSimulationHarness
from multiclouddb_conformance.us8 import (  # noqa: F401
    TestAtTime,
    TestBeginning,
    TestCapabilities,
    TestEventIdentity,
    TestEveryStart,
    TestFollowing,
    TestLatestVersions,
    TestLoss,
    TestMerge,
    TestPropagation,
    TestSplit,
    TestTransactions,
)

HARNESS = LatestSimulationHarness
