"""Runs the conformance suite, with other versions of the tests in which Spanner behaves differently."""

import pytest

from multiclouddb_conformance import us8
from multiclouddb_conformance.us8 import *  # noqa: F403


class TestLoss(us8.TestLoss):
    """The changes of a script are written one after another, and the test checks that they come in this
    order.
    """

    @pytest.fixture
    def harness_class(self, harness_class):
        """Inside a transaction Spanner orders changes by their type and by key, not in the order of
        writing."""
        return type("OneByOne", (harness_class,), {"can_batch": False})
