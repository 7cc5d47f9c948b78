"""What boto3's credential chain finds in the tests of this provider."""

import pytest

from .servers.server import CREDENTIALS


@pytest.fixture(autouse=True)
def credentials(monkeypatch, tmp_path_factory):
    """Keys that the test servers take, and nothing of the person who runs the tests."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    nowhere = tmp_path_factory.getbasetemp() / "no-such-file"
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(nowhere))
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hasty(monkeypatch):
    """An empty shard is asked again soon: there is no service to spare."""
    monkeypatch.setattr("multiclouddb_dynamo.reader._FIRST_PAUSE", 0.005)
    monkeypatch.setattr("multiclouddb_dynamo.reader._MOST_PAUSE", 0.02)
    monkeypatch.setattr("multiclouddb_dynamo.shards._ALONE_SECONDS", 0.0)
