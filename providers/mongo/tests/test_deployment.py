"""Tests that a token is used only in the deployment that it came from."""

import functools
import logging
from urllib.parse import quote
from uuid import uuid4

import pytest
from bson import Binary, ObjectId
from pymongo import WriteConcern

from multiclouddb_api import (
    EntireCluster,
    EntireCollection,
    EntireDatabase,
    ErrorCategory,
    MulticloudDbKey,
    Now,
    PhysicalPartition,
    ResourceAddress,
    connect,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_mongo import MongoOptions
from multiclouddb_tables.mark import FeedSource

from .harness import SMALL
from .monitor import ids, in_scope, read
from .servers.mongod import PASSWORD, fail_command, shared

OWN_SETS = ("shard",)
UNAUTHORIZED = 13
SCOPES = [EntireCollection(), EntireDatabase(), EntireCluster()]


@pytest.fixture
def both(one, small, database):
    """Return the urls of two deployments whose collection has one UUID, as after a copy of the data files."""
    uuid = Binary.from_uuid(uuid4())
    for server in (one, small):
        made = {"op": "c", "ns": f"{database}.$cmd", "ui": uuid, "o": {"create": "c"}}
        server.client().admin.command("applyOps", [made])
        server.client()[database]["c"].insert_one({"_id": 0})
        (listed,) = server.client()[database].list_collections()
        assert listed["info"]["uuid"] == uuid
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


@pytest.mark.parametrize("after_invalidate", ["end", "follow"])
def test_a_collection_that_is_followed_by_its_name(both, database, after_invalidate):
    options = MongoOptions(after_invalidate=after_invalidate, allow_missing=True)
    asked = {**in_scope(EntireCollection(), ResourceAddress(database, "c")), "provider_options": options}
    with connect(both[0]) as here, connect(both[1]) as there:
        token = read(here, place=Now(), **asked).continuation_token
        assert read(here, place=token, **asked).events == ()
        act = functools.partial(read, there, place=token, **asked)
        refusal(ErrorCategory.INVALID_REQUEST, act, "another replica set")


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


@pytest.mark.parametrize("way", [1, -1], ids=["then it is known", "it was known"])
def test_partition_ids_and_marks_of_tables_do_not_depend_on_what_a_user_may_know(roles, way):
    _, *urls = roles
    address = ResourceAddress("mine", "c")
    with connect(urls[::way][0]) as first, connect(urls[::way][1]) as second:
        (name,) = first.list_physical_partitions(address)
        assert second.list_physical_partitions(address) == (name,)
        asked = {"address": address, "scope": PhysicalPartition(name)}
        token = read(first, place=Now(), **asked).continuation_token
        assert read(second, place=token, **asked).events == ()
        other = read(second, place=Now(), address=address).continuation_token
        assert FeedSource.of_token(token) == FeedSource.of_token(other)


@pytest.fixture(scope="module")
def shard():
    """Provide a server that believes to be a shard of a cluster; nobody answers as its config server."""
    made = shared("shard", shard=True)
    identity = {"clusterId": ObjectId(), "shardName": "s0", "configsvrConnectionString": "config/127.0.0.1:1"}
    version = made.client().admin.get_collection("system.version", write_concern=WriteConcern("majority"))
    version.replace_one({"_id": "shardIdentity"}, identity, upsert=True)
    return made


def test_a_shard_is_refused_in_place_of_a_mongos(shard, database, app):
    shard.client()[database]["c"].insert_one({"_id": 0})
    here = ResourceAddress(database, "c")
    with connect(f"mongodb://{shard.members[0]}/?directConnection=true&appName={app}") as client:
        for act in (
            functools.partial(read, client, here, Now()),
            functools.partial(client.lookup, here, [MulticloudDbKey({"_id": 0})]),
        ):
            error = refusal(ErrorCategory.INVALID_REQUEST, act, "the shard 's0'", "mongos")
            assert not error.retryable
        # A user without the role does not know that it is one.
        with fail_command(shard, commands=["shardingState"], app_name=app, errorCode=UNAUTHORIZED):
            assert ids(read(client, here)) == [0]
