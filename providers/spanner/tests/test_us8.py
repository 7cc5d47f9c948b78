"""Runs the conformance suite on Google's emulator, whose partitions do not change.

The classes that need more of a server run on the scripted server or with moving partitions instead.
"""

import pytest

from multiclouddb_certify.suites import spanner
from multiclouddb_certify.suites.spanner import *  # noqa: F403

from .harness import EmulatorHarness
from .servers.emulator import STILL
from .test_us8_hasty import __all__ as hasty
from .test_us8_scripted import __all__ as scripted

pytestmark = pytest.mark.emulator(*STILL)

HARNESS = EmulatorHarness

for name in {*hasty, *scripted}:
    del globals()[name]


@pytest.mark.soak
class TestSnapshot(spanner.TestSnapshot):
    """`make test` reads rows here in TestScannedRow, and runs this class on the scripted server."""


@pytest.mark.soak
class TestForeignTokens(spanner.TestForeignTokens):
    """`make test` runs it only on the scripted server."""
