"""Runs the conformance suite on Google's emulator, whose partitions do not change."""

import pytest

from multiclouddb_certify.suites.spanner import *  # noqa: F403

from .harness import EmulatorHarness
from .servers.emulator import STILL

pytestmark = pytest.mark.emulator(*STILL)

HARNESS = EmulatorHarness

# `make test` runs each class on the server that can say most about it. Here that is what Google's own server
# decides. What needs splits, merges, retention or faults, or reads very often, runs on a server of ours, in
# test_us8_scripted.py, and what needs partitions that move by themselves in test_us8_hasty.py.
FORM = {
    "TestAtTime": "the start of a query",
    "TestBeginning": "the start of a query",
    "TestCapabilities": "what the service can do",
    "TestClosing": "gRPC cancels a query that runs",
    "TestDeadline": "gRPC ends a query at its deadline",
    "TestEveryStart": "the start of a query",
    "TestImages": "value capture types",
    "TestKeys": "key columns of all types",
    "TestLateChildren": "what the service tells of children",
    "TestLateSiblings": "what the service tells of children",
    "TestLateness": "the service's clock",
    "TestLatestVersions": "refused here",
    "TestLogicalPartition": "refused here",
    "TestLongPoll": "how long a query waits",
    "TestLookup": "a read by key",
    "TestNoFeed": "what the service can do",
    "TestNoLookup": "what the service can do",
    "TestNoRowsAlone": "what the service can do",
    "TestNoSnapshot": "what the service can do",
    "TestPageSize": "transactions of the service",
    "TestPickling": "errors of gRPC",
    "TestPropagation": "records of all types of change",
    "TestReadUntil": "the end of a query",
    "TestRecreated": "a table that is made again",
    "TestResnapshot": "reads at a timestamp",
    "TestRowsAlone": "reads at a timestamp",
    "TestScannedRow": "reads at a timestamp",
    "TestSecrets": "what the SDK logs",
    "TestSharing": "sessions of the SDK",
    "TestTransactions": "transactions of the service",
    "TestUncovered": "what the service tells of children",
    "TestValues": "columns of all types",
    "TestWiderScopes": "refused here",
}
