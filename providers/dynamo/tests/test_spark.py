"""Tests a query on DynamoDB Local: nothing is lost by a kill, and the secret key is found nowhere."""

import runpy
from pathlib import Path

import pytest

from .servers.local import LocalDynamo
from .servers.server import CREDENTIALS, REGION

LIVES = runpy.run_path(str(Path(__file__).parents[3] / "spark" / "tests" / "lives.py"))


@pytest.fixture(scope="module")
def table():
    with LocalDynamo() as server:
        server.create_table("items")
        for number in range(120):
            item = {"pk": {"S": f"k{number % 40}"}, "n": {"N": str(number)}}
            server.client().put_item(TableName="items", Item=item)
        yield server


@pytest.mark.parametrize("version", LIVES["VERSIONS"])
def test_life(table, tmp_path, version):
    options = {"url": f"dynamo://{REGION}?endpoint_url={table.endpoint_url}", "collection": "items"}
    secret = CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
    LIVES["live"](tmp_path, version, options, 120, [secret], **CREDENTIALS)
