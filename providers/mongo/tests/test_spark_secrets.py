"""Tests a query on MongoDB with a password: nothing is lost by a kill, and the password is found nowhere."""

import runpy
from pathlib import Path
from urllib.parse import quote

import pytest

from .servers.mongod import PASSWORD, ReplicaSet

LIVES = runpy.run_path(str(Path(__file__).parents[3] / "spark" / "tests" / "lives.py"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Provide a server that requires a password, and a collection with 120 changes."""
    with ReplicaSet(tmp_path_factory.mktemp("guarded"), auth=True) as server:
        items = server.client()["shop"]["items"]
        items.insert_one({"_id": 0})
        items.insert_many([{"_id": number, "n": number} for number in range(1, 100)])
        items.update_many({"_id": {"$lt": 10}}, {"$set": {"n": -1}})
        items.delete_many({"_id": {"$gte": 90}})
        yield server


@pytest.mark.parametrize("version", LIVES["VERSIONS"])
def test_life(guarded, tmp_path, version):
    quoted = quote(PASSWORD, safe="")
    options = {"url": guarded.uri(), "database": "shop", "collection": "items"}
    assert quoted in options["url"]
    LIVES["live"](tmp_path, version, options, 120, [PASSWORD, quoted])
