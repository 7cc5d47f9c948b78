"""Runs the suite's reading tests on Google's emulator, where partitions live for three to six seconds."""

import pytest

from multiclouddb_certify.suites import spanner
from multiclouddb_certify.suites.spanner import TestNow

from .harness import HastyHarness
from .servers.emulator import HASTY

__all__ = ["TestLoss", "TestNow", "TestSnapshotUnderLoad"]

pytestmark = pytest.mark.emulator(*HASTY)

HARNESS = HastyHarness


class TestLoss(spanner.TestLoss):
    """`make test` runs the consumer of pages here."""

    @pytest.mark.soak
    def test_nothing_is_lost_by_an_iterator(self, harness):
        super().test_nothing_is_lost_by_an_iterator(harness)


class TestSnapshotUnderLoad(spanner.TestSnapshotUnderLoad):
    """Tokens are lost in test_us8_scripted.py, on a server that does not make a test wait."""

    test_a_lost_token_repeats_and_loses_nothing = None
