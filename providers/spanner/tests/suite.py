"""The conformance suite, with the cases in which Spanner needs something else to show the same."""

import pytest

from multiclouddb_conformance import us8
from multiclouddb_conformance.us8 import *  # noqa: F403


class TestLoss(us8.TestLoss):
    """A life is written one change after the other: it is checked that they come so."""

    @pytest.fixture
    def harness_class(self, harness_class):
        """Inside a transaction Spanner orders changes by what they do and by key, not as they were made."""
        return type("OneByOne", (harness_class,), {"can_batch": False})
