"""Fixtures for all tests of mirrors."""

import pytest

from multiclouddb_embedded.feed import EmbeddedFeed
from testing.postgres_server import PostgresServer

from .worlds import KINDS, World


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Let the embedded store and `verify` wait for no clocks of other machines."""
    monkeypatch.setattr(EmbeddedFeed, "visible_after", lambda feed: 0.02)
    monkeypatch.setattr("multiclouddb_verify.source._CLOCK_ERROR", 0.0)


@pytest.fixture(scope="module")
def server():
    with PostgresServer() as made:
        yield made


@pytest.fixture(params=KINDS)
def world(request, tmp_path, monkeypatch):
    server = request.getfixturevalue("server") if request.param == "postgres" else None
    made = World(tmp_path, request.param, server, monkeypatch)
    made.begin()
    yield made
    made.client.close()
    made.store.close()
