"""Tests that a look-up shows every write that was acknowledged before it, and what each read asks for."""

import math
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from threading import Thread

import pytest
from pymongo import MongoClient, WriteConcern
from pymongo.errors import OperationFailure

from multiclouddb_api import (
    AtTime,
    Beginning,
    ErrorCategory,
    MulticloudDbKey,
    NotKnown,
    Now,
    OperationOptions,
    ResourceAddress,
    Snapshot,
    connect,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_conformance.waiting import wait_until

from .monitor import deaf, read, walk, watched
from .servers.mongod import fail_command
from .test_mongos import Mongos

GONE, NEW, NEVER = (MulticloudDbKey({"_id": name}) for name in ("gone", "new", "never"))
HOST_UNREACHABLE, NOT_SUPPORTED = 6, 115
SHORT = OperationOptions(timeout_seconds=2.0)
# A server is given nine tenths of it, so its answer comes before the call is over on a busy machine too.
LONGER = OperationOptions(timeout_seconds=6.0)


@pytest.fixture
def items(three, database):
    """Return a collection with one document, which every member has."""
    three.wait_healthy()
    made = three.client()[database].create_collection("c", write_concern=WriteConcern(3))
    made.insert_one({"_id": "gone"})
    yield made
    three.wait_healthy()


def shown(client, items, options=SHORT):
    """Return which of the keys a look-up finds; a fault if one is not known."""
    found = client.lookup(ResourceAddress(items.database.name, "c"), [GONE, NEW], options)
    assert not any(isinstance(each, NotKnown) for each in found.values())
    return [key for key, row in found.items() if row is not None]


# "majority": one member lags. 1: no other member has the writes, so they may still be rolled back.
@pytest.mark.parametrize(("acknowledged", "preference"), [("majority", "secondary"), (1, "primary")])
def test_waits_for_what_was_acknowledged(three, items, acknowledged, preference):
    primary = three.wait_primary()
    others = [member for member in three.members if member != primary]
    lagging = others[:1] if acknowledged == "majority" else others

    def without_the_healthy(servers):
        """Let a client choose no secondary but the one that lags."""
        wanted = [primary, *lagging]
        return [each for each in servers if "{}:{}".format(*each.address) in wanted]

    uri = three.uri(readPreference=preference)
    with (
        MongoClient(uri, server_selector=without_the_healthy) as own,
        connect(uri, native_client=own) as client,
    ):
        assert shown(client, items) == [GONE]
        with ExitStack() as stack:
            for member in lagging:
                stack.enter_context(deaf(three.direct(member)))
            written = items.with_options(write_concern=WriteConcern(acknowledged))
            written.insert_one({"_id": "new"})
            written.delete_one({"_id": "gone"})
            refused = partial(shown, client, items, LONGER)
            refusal(ErrorCategory.TRANSIENT_FAILURE, refused, "acknowledged")
        assert shown(client, items) == [NEW]


def test_one_that_no_primary_can_be_asked_about_claims_no_absence(three, items):
    """A member that is read directly does not know what it lacks."""
    primary = three.wait_primary()
    member = next(each for each in three.members if each != primary)
    with connect(f"mongodb://{member}/?directConnection=true") as client:
        found = client.lookup(ResourceAddress(items.database.name, "c"), [GONE, NEVER])
    assert found[GONE].new_item_state == {"_id": "gone"}
    assert isinstance(found[NEVER], NotKnown)
    assert "primary" in found[NEVER].reason


@pytest.fixture
def cut_off(three, items):
    """Cut off the primary after it has told who it is; the others elect another one, which writes.

    Until it has heard of no majority for ten seconds, it takes itself for the primary.
    """
    former = three.wait_primary()

    def source(member):
        """Return from whom a member takes the writes."""
        return three.direct(member).admin.command("replSetGetStatus")["syncSourceHost"]

    def in_a_row():
        """Let the last member follow the next primary; it would wait long for the former one."""
        items.insert_one({})
        others = sorted(set(three.members) - {former}, key=lambda member: source(member) != former)
        if source(others[1]) != others[0]:
            three.direct(others[1]).admin.command("replSetSyncFrom", others[0])
        return others if [source(member) for member in others] == [former, others[0]] else None

    next_one, last = wait_until(in_a_row)
    heard = ["replSetHeartbeat", "replSetRequestVotes", "replSetUpdatePosition"]
    point = {"configureFailPoint": "failCommand"}
    data = {"failCommands": heard, "failInternalCommands": True, "errorCode": HOST_UNREACHABLE}
    three.direct(former).admin.command({**point, "mode": "alwaysOn", "data": data})
    try:
        three.pause(former)
        three.direct(next_one).admin.command("replSetStepUp")

        def is_primary():
            # Otherwise it waits for an answer of the former one.
            with suppress(OperationFailure):
                three.direct(next_one).admin.command("replSetAbortPrimaryCatchUp")
            return three.direct(next_one).admin.command("hello")["isWritablePrimary"]

        wait_until(is_primary)
        name = items.database.name
        written = three.direct(next_one)[name].get_collection("c", write_concern=WriteConcern("majority"))
        written.insert_one({"_id": "new"})
        written.delete_one({"_id": "gone"})
        for member in (next_one, last):
            three.pause(member)
        three.resume(former)
        yield former
    finally:
        for member in three.members:
            three.resume(member)
        three.direct(former).admin.command({**point, "mode": "off"})


def test_a_former_primary_that_is_cut_off_proves_nothing(items, cut_off):
    with connect(f"mongodb://{cut_off}/?directConnection=true") as client:
        error = refusal(ErrorCategory.TRANSIENT_FAILURE, partial(shown, client, items), "primary")
        assert error.retryable


def test_a_server_without_linearizable_reads_claims_no_absence(one, here, app):
    with (
        connect(one.uri(appName=app)) as client,
        fail_command(one, commands=["find"], app_name=app, errorCode=NOT_SUPPORTED),
    ):
        found = client.lookup(here, [MulticloudDbKey({"_id": 0}), NEVER])
    assert [isinstance(each, NotKnown) for each in found.values()] == [False, True]


def test_behind_a_mongos_the_primaries_say_what_is_acknowledged(brisk, database):
    """The secondaries of the shards may lag, and a `mongos` learns the time from those that it asks."""
    brisk.client()[database]["c"].insert_one({"_id": "gone"})
    with Mongos(brisk.members[0], 0) as mongos:
        Thread(target=mongos.serve_forever, args=(0.05,)).start()
        with watched(f"{mongos.uri}&readPreference=secondary") as (client, commands):
            client.lookup(ResourceAddress(database, "c"), [NEVER])
            commands.clear()
            found = client.lookup(ResourceAddress(database, "c"), [GONE, NEVER])
        mongos.shutdown()
    assert [row is not None for row in found.values()] == [True, False]
    streams = [body.get("$readPreference", {"mode": "primary"}) for body in commands.bodies("aggregate")]
    assert streams == [{"mode": "primary"}] * 2
    (rows,) = commands.bodies("find")[-1:]
    assert rows["$readPreference"] == {"mode": "secondary"}


def test_every_read_of_data_says_that_a_majority_must_have_it(one, database):
    """A server may not apply the deployment's default to a read that does not say it (SERVER-111031)."""
    one.client()[database]["c"].insert_one({"_id": "gone"})
    here = ResourceAddress(database, "c")
    with watched(one.uri(readConcernLevel="local")) as (client, commands):
        token = read(client, here, Now()).continuation_token
        for place in (token, Beginning(), AtTime(datetime.now(UTC)), Snapshot(segments=2)):
            assert list(walk(client, here, place))
        for seconds in (30.0, 1e9, math.inf):
            assert client.lookup(here, [GONE], OperationOptions(seconds))[GONE] is not None
    asked = [body for name in ("find", "aggregate", "count") for body in commands.bodies(name)]
    levels = {body.get("readConcern", {}).get("level") for body in asked if body["$db"] != "local"}
    # The other one finds nothing; it shows that the primary is still one.
    assert levels == {"majority", "linearizable"}


def test_a_member_that_lags_does_not_say_that_a_collection_is_missing(three, items):
    """Without a primary, a secondary is asked, which may not have a new collection yet."""
    primary = three.wait_primary()
    member = next(each for each in three.members if each != primary)
    here = ResourceAddress(items.database.name, "new")
    with connect(f"mongodb://{member}/?directConnection=true") as client:
        with deaf(three.direct(member)):
            made = WriteConcern("majority")
            items.database.get_collection("new", write_concern=made).insert_one({"_id": "new"})
            for act in (
                partial(read, client, here, Now(), timeout=2.0),
                partial(read, client, here, Snapshot(), timeout=2.0),
                partial(client.lookup, here, [NEW], SHORT),
            ):
                refusal(ErrorCategory.TRANSIENT_FAILURE, act, "no primary")
        wait_until(lambda: three.direct(member)[here.database]["new"].find_one())
        assert client.lookup(here, [NEW])[NEW].new_item_state == {"_id": "new"}
