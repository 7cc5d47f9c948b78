"""Runs the classes of the suite that need a scripted server: splits, merges, retention, network faults."""

import pytest

from multiclouddb_api import PhysicalPartition
from multiclouddb_certify.suites import spanner as suite
from multiclouddb_certify.suites.spanner import (  # noqa: F401
    TestDescendants,
    TestEndlessTrouble,
    TestEventIdentity,
    TestExpiry,
    TestFollowing,
    TestMerge,
    TestNotices,
    TestPhysicalPartition,
    TestPoison,
    TestRetirement,
    TestSnapshotUnderLoad,
    TestSplit,
    TestTrimmedOnTheWay,
    TestTrouble,
    TestWatermark,
)

from .scripted import ScriptedHarness

__all__ = [name for name in dir() if name.startswith("Test")]


class TestIdle(suite.TestIdle):
    """Retention is a duration: a position that is a day old has expired, even if no changes follow it."""

    @pytest.mark.needs("several", "trim", "idle_moves", "still")
    def test_a_partition_that_is_idle_for_long_does_not_fall_out_of_retention(self, collection):
        mine, other = collection.partitions()[:2]
        busy = collection.key_in(other)
        scope = PhysicalPartition(mine)
        token = collection.last(collection.now(scope=scope), scope=scope).continuation_token
        for number in range(4):
            collection.put(busy, n=number)
            page = collection.last(token, scope=scope)
            assert page.events == ()
            token = page.continuation_token
            collection.harness.server.advance(20 * 3600)
            collection.restart()
        assert collection.last(token, scope=scope).idle


HARNESS = ScriptedHarness
