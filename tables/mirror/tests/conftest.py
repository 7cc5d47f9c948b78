"""Fixtures for all tests of mirrors."""

import pytest

from multiclouddb_embedded.feed import EmbeddedFeed


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Let the embedded store and `verify` wait for no clocks of other machines."""
    monkeypatch.setattr(EmbeddedFeed, "visible_after", lambda feed: 0.02)
    monkeypatch.setattr("multiclouddb_verify.source._CLOCK_ERROR", 0.0)
