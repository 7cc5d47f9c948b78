"""Runs the whole conformance suite on the embedded store."""

import pytest

from multiclouddb_certify.embedded import EmbeddedHarness
from multiclouddb_conformance import us8
from multiclouddb_conformance.us8 import *  # noqa: F403
from multiclouddb_embedded.feed import EmbeddedFeed

HARNESS = EmbeddedHarness


class TestVerified(us8.TestVerified):
    """The only writer is the test; each round of `verify` would wait five seconds for another one."""

    @pytest.fixture(autouse=True)
    def prompt(self, monkeypatch):
        monkeypatch.setattr(EmbeddedFeed, "visible_after", lambda feed: 0.02)
        monkeypatch.setattr("multiclouddb_verify.source._CLOCK_ERROR", 0.0)
