"""Runs the classes that need no splits and no faults on DynamoDB Local, with the unmodified boto3."""

import pytest

from multiclouddb_conformance.us8 import (  # noqa: F401
    TestBeginning,
    TestCheckpoint,
    TestEventIdentity,
    TestExpiry,
    TestImages,
    TestKeys,
    TestLookup,
    TestNow,
    TestPropagation,
    TestRecreated,
    TestRowsAlone,
    TestScannedRow,
    TestSnapshot,
    TestTransactions,
    TestValues,
)

from .harness import LocalHarness

pytestmark = pytest.mark.usefixtures("hasty")


HARNESS = LocalHarness
