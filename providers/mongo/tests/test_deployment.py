"""Tests that a token of a database or a cluster is used only in the deployment that it came from."""

import functools
import logging
from urllib.parse import quote

import pytest

from multiclouddb_api import (
    EntireCluster,
    EntireDatabase,
    ErrorCategory,
    Now,
    ResourceAddress,
    connect,
)
from multiclouddb_conformance.refusals import refusal

from .harness import SMALL
from .monitor import ids, in_scope, read
from .servers.mongod import PASSWORD, shared

SCOPES = [EntireDatabase(), EntireCluster()]


@pytest.fixture
def both(one, small, database):
    """Return the urls of two deployments that have the same database."""
    for server in (one, small):
        server.client()[database]["c"].insert_one({"_id": 0})
    return one.uri(), small.uri()


@pytest.mark.parametrize("scope", SCOPES, ids=repr)
def test_a_token_of_another_deployment_is_refused(both, database, scope):
    asked = in_scope(scope, ResourceAddress(database, "c"))
    with connect(both[0]) as here, connect(both[1]) as there:
        token = read(here, place=Now(), **asked).continuation_token
        assert read(here, place=token, **asked).events == ()
        for _ in range(2):
            act = functools.partial(read, there, place=token, **asked)
            error = refusal(ErrorCategory.INVALID_REQUEST, act, "another replica set")
            assert "restored" in error.message
        assert read(there, place=Now(), **asked).events == ()


@pytest.fixture
def roles():
    """Return the url for a user without, and one for a user with the role that may see the id of the set."""
    server = shared("us8 one", 1, **SMALL)
    users, wide = server.client()["admin"], {"role": "readAnyDatabase", "db": "admin"}
    for name, more in (("blind", []), ("seeing", [{"role": "clusterMonitor", "db": "admin"}])):
        users.command("createUser", name, pwd=PASSWORD, roles=[wide, *more], mechanisms=["SCRAM-SHA-256"])
    server.client()["mine"]["c"].insert_one({"_id": 0})
    hosts = server.uri(authSource="admin").rpartition("@")[2]
    yield server, *(f"mongodb://{name}:{quote(PASSWORD, safe='')}@{hosts}" for name in ("blind", "seeing"))
    for name in ("blind", "seeing"):
        users.command("dropUser", name)
    server.client().drop_database("mine")


@pytest.mark.parametrize("scope", SCOPES, ids=repr)
@pytest.mark.parametrize("way", [1, -1], ids=["then it is known", "it was known"])
def test_what_a_user_may_not_know_is_accepted_with_a_warning(roles, scope, way, caplog):
    server, *urls = roles
    asked = in_scope(scope, ResourceAddress("mine", "c"))
    with connect(urls[::way][0]) as first, connect(urls[::way][1]) as second:
        token = read(first, place=Now(), **asked).continuation_token
        server.client()["mine"]["c"].insert_one({"_id": "new"})
        with caplog.at_level(logging.WARNING, "multiclouddb.mongo"):
            for _ in range(2):
                assert ids(read(second, place=token, **asked)) == ["new"]
    told = [record for record in caplog.records if "clusterMonitor" in record.getMessage()]
    assert len(told) == 1
