"""Provides servers with a table that no run may touch, and the command."""

from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from typer.testing import CliRunner

from multiclouddb_cli.main import app
from multiclouddb_dynamo_emulator import ScriptedStreams
from testing.provider_servers import server_module
from testing.servers import cache_folder

SECRET = "a/secret/that/nobody/may/see"
NEIGHBOUR = "orders"


class Dynamo:
    """A scripted server, with a table of somebody else."""

    def __init__(self):
        self.script = ScriptedStreams()
        self.script.__enter__()
        self.url = f"dynamo://eu-west-1?endpoint_url={self.script.endpoint_url}"
        once = Config(retries={"mode": "standard", "total_max_attempts": 1})
        self.native = boto3.client(
            "dynamodb", region_name="eu-west-1", endpoint_url=self.script.endpoint_url, config=once
        )
        self.make(NEIGHBOUR)

    def make(self, name, **settings):
        self.native.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            **settings,
        )

    def names(self):
        return self.native.list_tables()["TableNames"]

    def close(self):
        self.native.close()
        self.script.stop()


@pytest.fixture(scope="session")
def programs():
    """Bring the programs of servers into the cache of this user, because a test has a cache of its own."""
    for provider, name in (("dynamo", "local"), ("mongo", "mongod")):
        server_module(provider, name).fetch()


@pytest.fixture(autouse=True)
def environment(programs, monkeypatch, tmp_path):
    """Set credentials for the servers, and keep the files of runs in the folder of the test."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "no-such-file"))
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    mine = tmp_path / "cache" / "multiclouddb"
    mine.mkdir(parents=True)
    for server in cache_folder("").glob("*"):
        if server.name != "certify":
            (mine / server.name).symlink_to(server)
    monkeypatch.setenv("XDG_CACHE_HOME", str(mine.parent))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def dynamo():
    made = Dynamo()
    yield made
    made.close()


@pytest.fixture
def run():
    """Run a command in this process."""

    def invoke(*words):
        return CliRunner().invoke(app, [str(word) for word in words])

    return invoke


def report_of(folder):
    """Return both files of a report, as one text."""
    files = sorted(Path(folder).iterdir())
    assert [file.name for file in files] == ["report.json", "report.md"]
    return "\n".join(file.read_text() for file in files)
