"""Reads backlogs of many answers on each version of Spark, and looks into what Spark writes meanwhile."""

import json

import boto3
import pyspark
import pytest

from multiclouddb_dynamo_emulator import Habits, ScriptedStreams

from .drivers import SECONDS, credentials, end, start_driver
from .environments import DIGESTS

pytestmark = pytest.mark.xdist_group("jvm apart")

SHARDS, ANSWERS, LIMIT = 2, 10, 7_000
EVENTS = SHARDS * ANSWERS * 1000
"""An answer has at most 1,000 records."""
LARGE = 400_000
"""A record of this size is almost as large as what may be passed to one task."""
DOCUMENT = b"x" * 50
"""Each document of the server contains this, and nothing else does."""
VERSIONS = [pyspark.__version__, *DIGESTS]


class Tables:
    """Tables of a scripted server, each with its own shards."""

    def __init__(self, server):
        self.server, self.region = server, "us-east-1"
        self.client = boto3.client("dynamodb", self.region, endpoint_url=server.endpoint_url)
        self.shards = {}

    def options(self, name, records, record_bytes=300, **more):
        """Make a table whose shards have these records; return the options that read it."""
        self.client.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"},
        )
        self.shards[name] = self.server.open_shards(name)
        for shard in self.shards[name]:
            self.server.fill(shard, records, record_bytes)
        url = f"dynamo://{self.region}?endpoint_url={self.server.endpoint_url}"
        return {"url": url, "collection": name, "startingPosition": "beginning", **more}

    def opened(self, name):
        """Return how often a reader of the table was opened."""
        return sum(self.server.journal.count("GetShardIterator", shard) for shard in self.shards[name])


@pytest.fixture
def tables(monkeypatch):
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)
    with ScriptedStreams(habits=Habits(initial_shards=SHARDS)) as server:
        yield Tables(server)


def run(folder, version, events, queries, *, ends=True):
    """Run queries until each has delivered all events; return how many runs each took."""
    log, given = folder / "log", {"queries": queries, "events": events, "ends": ends}
    process = start_driver("backlogs", folder, log, version, **given)
    try:
        assert process.wait(SECONDS) == 0, log.read_text()[-5000:]
    finally:
        end(process)
    facts = json.loads((folder / "facts").read_text())
    assert facts["version"] == version
    return facts["runs"]


def batches_in(folder):
    return [json.loads(file.read_text()) for file in (folder / "rows").iterdir()]


def check_written(folder):
    """Check that nothing that Spark writes contains a document."""
    files = [folder / "log", *(file for file in (folder / "events").rglob("*") if file.is_file())]
    assert len(files) > 1
    assert [file for file in files if DOCUMENT in file.read_bytes()] == []


# test_planning.py plans such backlogs in `make test`, without Spark.
@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
def test_ten_answers_a_shard_with_and_without_a_limit(tables, tmp_path, version):
    free = tables.options("free", EVENTS // SHARDS)
    limited = tables.options("limited", EVENTS // SHARDS, maxRecordsPerTrigger=str(LIMIT))
    runs = run(tmp_path, version, EVENTS, {"free": free, "limited": limited})
    for name in ("free", "limited"):
        batches = batches_in(tmp_path / name)
        found = [each for batch in batches for each in batch]
        assert len(found) == len(set(found)) == EVENTS
        assert name == "free" or max(map(len, batches)) <= LIMIT
        assert len([batch for batch in batches if batch]) < ANSWERS, "a batch has several answers of a shard"
    # From 4.2 on, one run reads everything; in earlier versions, each run is one batch.
    assert version < "4.2" or runs == {"free": 1, "limited": 1}
    check_written(tmp_path)


MOST = "921600"
"""The most that the option `maxTaskPayload` allows."""


@pytest.mark.parametrize(
    ("more", "records"),
    [({}, 1), pytest.param({"maxTaskPayload": MOST}, 2, marks=pytest.mark.soak)],
    ids=["default", "most"],
)
def test_spark_does_not_warn_of_large_tasks(tables, tmp_path, more, records):
    queries = {
        "passed": tables.options("passed", records, LARGE, **more),
        "read": tables.options("read", records, LARGE, maxTaskPayload="0"),
    }
    run(tmp_path, pyspark.__version__, SHARDS * records, queries, ends=False)
    for name in queries:
        assert sum(map(len, batches_in(tmp_path / name))) == SHARDS * records
    assert tables.opened("passed") < tables.opened("read"), "some tasks have opened no reader"
    assert "very large size" not in (tmp_path / "log").read_text()
    check_written(tmp_path)
