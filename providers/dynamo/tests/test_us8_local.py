"""Runs the classes that need no splits and no faults on DynamoDB Local, with the unmodified boto3."""

import pytest

from multiclouddb_conformance import us8
from multiclouddb_conformance.us8 import (  # noqa: F401
    TestBeginning,
    TestEventIdentity,
    TestExpiry,
    TestImages,
    TestKeys,
    TestLookup,
    TestNow,
    TestPropagation,
    TestRecreated,
    TestScannedRow,
    TestSpellings,
    TestTransactions,
    TestValues,
)

from .harness import LocalHarness

pytestmark = pytest.mark.usefixtures("hasty")

HARNESS = LocalHarness


@pytest.mark.soak
class TestCheckpoint(us8.TestCheckpoint):
    """`make test` runs it only on the scripted server."""


@pytest.mark.soak
class TestRowsAlone(us8.TestRowsAlone):
    """`make test` runs it only on the scripted server."""


@pytest.mark.soak
class TestSnapshot(us8.TestSnapshot):
    """`make test` reads rows here in TestScannedRow, and runs this class on the scripted server."""
