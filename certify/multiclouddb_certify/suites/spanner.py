"""The conformance suite, with replacements for the tests in which Spanner behaves differently."""

import pytest

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
