"""The conformance suite, with replacements for the tests in which Spanner behaves differently."""

import pytest

from multiclouddb_api import PhysicalPartition
from multiclouddb_conformance import us8
from multiclouddb_conformance.us8 import *  # noqa: F403


class TestLoss(us8.TestLoss):
    """The test writes the changes of a script one after another, and checks that they arrive in this
    order.
    """

    @pytest.fixture
    def harness_class(self, harness_class):
        """Spanner orders the changes of a transaction by type and key, not in the order in which they were
        written.
        """
        return type("OneByOne", (harness_class,), {"can_batch": False})


class TestWiderScopes(us8.TestWiderScopes):
    """A whole database can be read if one change stream watches every table."""

    @pytest.fixture
    def harness_class(self, harness_class):
        """Make one change stream FOR ALL, in place of one for each table."""
        return type("ForAll", (harness_class,), {"for_all": True})


class TestDatabaseSnapshot(us8.TestDatabaseSnapshot):
    """The changes of a whole database need one change stream that watches every table."""

    @pytest.fixture
    def harness_class(self, harness_class):
        """Make one change stream FOR ALL, in place of one for each table."""
        return type("ForAll", (harness_class,), {"for_all": True})


class TestIdle(us8.TestIdle):
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
            collection.harness.advance(20 * 3600)
            collection.restart()
        assert collection.last(token, scope=scope).idle
