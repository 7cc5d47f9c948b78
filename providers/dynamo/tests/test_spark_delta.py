"""Tests a query that is killed while it copies DynamoDB Local into a Delta table."""

import runpy
from pathlib import Path

import pytest

from .servers.local import LocalDynamo
from .servers.server import CREDENTIALS, REGION

pytestmark = pytest.mark.xdist_group("jvm apart")

LIVES = runpy.run_path(str(Path(__file__).parents[3] / "spark" / "tests" / "delta_lives.py"))


@pytest.mark.soak
def test_table_equals_the_source_after_a_kill(tmp_path, monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with LocalDynamo() as server:
        server.create_table("items")
        client = server.client()

        def put(name, number):
            item = {"pk": {"S": str(name)}, "n": {"N": str(number)}}
            client.put_item(TableName="items", Item=item)

        def delete(name):
            client.delete_item(TableName="items", Key={"pk": {"S": str(name)}})

        url = f"dynamo://{REGION}?endpoint_url={server.endpoint_url}"
        LIVES["live"](tmp_path, {"url": url, "collection": "items", "snapshotSegments": "4"}, put, delete)
