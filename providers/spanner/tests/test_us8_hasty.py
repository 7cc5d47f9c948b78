"""Runs the suite on Google's emulator, where partitions live for three to six seconds."""

import pytest

from multiclouddb_certify.suites.spanner import *  # noqa: F403

from .harness import HastyHarness
from .servers.emulator import HASTY

pytestmark = pytest.mark.emulator(*HASTY)

HARNESS = HastyHarness

# What reads for longer than a partition of this server lives.
FORM = {
    "TestLoss::test_nothing_is_lost_by_a_consumer_of_pages": "partitions end while it reads",
    "TestNow": "partitions end between the start and the first change",
    "TestSnapshotUnderLoad::test_ordered_holds_the_changes_through_a_split": "partitions end meanwhile",
    "TestSnapshotUnderLoad::test_splits_and_merges_during_the_scan": "partitions end meanwhile",
    "TestSnapshotUnderLoad::test_updates_deletes_and_creates_during_the_scan": "partitions end meanwhile",
}
