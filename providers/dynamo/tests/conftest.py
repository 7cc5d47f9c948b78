"""Provides credentials and service models to boto3 in the tests of this provider."""

import pytest
from botocore.loaders import create_loader

from .servers import local
from .servers.server import CREDENTIALS
from .world import World


@pytest.fixture(autouse=True)
def credentials(monkeypatch, tmp_path_factory):
    """Set credentials for the test servers, and hide the settings of the person who runs the tests."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    nowhere = tmp_path_factory.getbasetemp() / "no-such-file"
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(nowhere))
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hidden(monkeypatch):
    """Hide the private names of botocore, as if a version had none of them."""
    monkeypatch.setattr("multiclouddb_dynamo.client._bound", lambda client: None)


@pytest.fixture(scope="session", autouse=True)
def _models():
    """Read the service models once, because otherwise every boto3 session would read them."""
    loader = create_loader()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.session.create_loader", lambda *_: loader)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_local():
    yield
    local.stop()


@pytest.fixture(autouse=True)
def few_answers(monkeypatch):
    """Let two answers without records end an open shard, because one of these servers proves it.

    Tests of the real number replace this fixture.
    """
    monkeypatch.setattr("multiclouddb_dynamo.source.EMPTY_ANSWERS", 2)
    monkeypatch.setattr("multiclouddb_dynamo.reader._FEW", 1)
    monkeypatch.setattr("multiclouddb_dynamo.reader._LOOKS", (1,) * 10)


@pytest.fixture
def world():
    """Provide a table whose stream has one shard."""
    with World() as made:
        yield made


@pytest.fixture
def hasty_readers(monkeypatch):
    """Make the reader poll shards often, but search for children at the normal rate."""
    monkeypatch.setattr("multiclouddb_dynamo.reader._FIRST_PAUSE", 0.005)
    monkeypatch.setattr("multiclouddb_dynamo.reader._MOST_PAUSE", 0.02)


@pytest.fixture
def hasty(hasty_readers, monkeypatch):
    """Make the reader poll shards and search for children often: the test servers have no rate limit."""
    monkeypatch.setattr("multiclouddb_dynamo.shards._MOST_PAUSE", 0.005)
    monkeypatch.setattr("multiclouddb_dynamo.shards._LOOKS_AT_ONCE", 1000.0)
    monkeypatch.setattr("multiclouddb_dynamo.shards._SETTLED_SECONDS", 0.0)


@pytest.fixture
def no_pace(monkeypatch):
    """Allow any number of listings a second; other tests cover their rate."""
    monkeypatch.setattr("multiclouddb_dynamo.client._DESCRIBES_A_SECOND", 1000)
