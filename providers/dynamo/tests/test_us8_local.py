"""Runs the conformance suite on DynamoDB Local, with the unmodified boto3.

It splits no shard and produces no fault, so the whole suite runs on the scripted server in `make test`.
"""

import pytest

from multiclouddb_conformance.us8 import *  # noqa: F403

from .harness import LocalHarness

pytestmark = pytest.mark.usefixtures("hasty")

# What the vendor's server may answer in another way than ours: records, starts, keys and rows.
FORM = {
    "TestBeginning": "TRIM_HORIZON",
    "TestEventIdentity": "sequence numbers",
    "TestExpiry": "the refusal of a trimmed position",
    "TestImages": "view types",
    "TestKeys": "keys of all types",
    "TestLookup": "GetItem",
    "TestNow": "LATEST",
    "TestPropagation": "records",
    "TestRecreated": "a new stream has a new ARN",
    "TestScannedRow": "Scan",
    "TestSpellings": "numbers that are written in several ways",
    "TestTransactions": "TransactWriteItems",
    "TestValues": "values of all types",
}

HARNESS = LocalHarness
