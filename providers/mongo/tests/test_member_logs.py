"""Tests members of a replica set whose oplogs differ in length."""

from functools import partial

import pytest
from pymongo import ReadPreference, WriteConcern
from pymongo.errors import OperationFailure

from multiclouddb_api import (
    AtTime,
    Beginning,
    ErrorCategory,
    LogicalPartition,
    MulticloudDbKey,
    Now,
    ResourceAddress,
    SkipToOldest,
    connect,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_mongo.source import ReaderContext

from .monitor import ids, keys, read, walk, watched
from .servers.mongod import fail_command, shared
from .test_rollover import NOTE

OWN_SETS = ("uneven",)
ALL = list(range(8))
CURSOR_NOT_FOUND, EXCEEDED, HISTORY_LOST = 43, 50, 286
# MongoDB's least size of an oplog whose size is changed, in MB.
LEAST_RESIZED = 990.0
MAJORITY = WriteConcern("majority")


def first(server, member):
    return server.direct(member).local["oplog.rs"].find_one({}, ["ts"], sort=[("$natural", 1)])["ts"]


@pytest.fixture(scope="module")
def uneven():
    """Provide a primary with a large oplog, and a secondary with an oplog of 1 MB."""
    made = shared("uneven", 2, oplog_mb=1)
    made.direct(made.primary()).admin.command("replSetResizeOplog", size=LEAST_RESIZED)
    return made


@pytest.fixture
def items(uneven, database):
    """Provide a collection with one document that both members have."""
    collection = uneven.client()[database]["c"].with_options(write_concern=MAJORITY)
    collection.insert_one({"_id": -1})
    return collection


def lose(server, items):
    """Write changes that then only the primary still has."""
    primary = server.primary()
    secondary = next(member for member in server.members if member != primary)
    items.insert_many([{"_id": key} for key in ALL])
    since = server.direct(primary).local["oplog.rs"].find_one({}, ["ts"], sort=[("$natural", -1)])["ts"]
    note = {"appendOplogNote": 1, "data": {"note": NOTE}, "writeConcern": {"w": 2}}

    def rolled_over():
        for _ in range(12):
            server.client().admin.command(note)
        server.direct(secondary).admin.command("fsync")
        return first(server, secondary) > since

    wait_until(rolled_over, 180.0)
    assert first(server, primary) <= since


@pytest.fixture
def lost(uneven, items, database):
    """Return the address, and a token whose changes only the primary still has."""
    here = ResourceAddress(database, "c")
    with connect(uneven.uri(readPreference="secondary")) as client:
        page = read(client, here, Now())
    lose(uneven, items)
    return here, page.continuation_token


@pytest.mark.parametrize("preference", ["secondaryPreferred", "nearest", "primaryPreferred"])
def test_the_primary_is_read_if_only_it_still_has_the_changes(uneven, lost, preference):
    here, token = lost
    with connect(uneven.uri(readPreference=preference)) as client:
        assert ids(*walk(client, here, token, on_expired=SkipToOldest())) == ALL
        scope = LogicalPartition(MulticloudDbKey({"_id": 5}))
        assert ids(*walk(client, here, AtTime(_moment(uneven, here)), scope=scope)) == [5]
        assert ids(*walk(client, here, Beginning()))[-9:] == [-1, *ALL]


def _moment(server, here):
    with connect(server.uri()) as client:
        page = next(page for page in walk(client, here, Beginning()) if page.events)
    return page.events[0].timestamp


def test_it_is_read_only_until_it_has_caught_up(uneven, lost):
    here, token = lost
    with watched(uneven.uri(readPreference="secondaryPreferred")) as (client, commands):
        for page in walk(client, here, token, 3):
            token = page.continuation_token
        commands.clear()
        uneven.client()[here.database]["c"].insert_one({"_id": "last"})
        assert keys(read(client, here, token, wait=10.0).events) == ["last"]
        asked = {event.connection_id for event in commands.sent("aggregate") + commands.sent("getMore")}
        assert {f"{host}:{port}" for host, port in asked} == set(uneven.members) - {uneven.primary()}


@pytest.fixture
def hurried(monkeypatch):
    """Let the first search of the primary take longer than `defaultMaxTimeMS` allows, as since MongoDB 8.0.

    A member that no longer has the position says so before it searches.
    """
    watch = ReaderContext._watch

    def limited(source, batch_size, *arguments, **named):
        if batch_size and named.get("preference") == ReadPreference.PRIMARY:
            raise OperationFailure("operation exceeded time limit", EXCEEDED)
        return watch(source, batch_size, *arguments, **named)

    monkeypatch.setattr(ReaderContext, "_watch", limited)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("preference", ["secondaryPreferred", "secondary"])
def test_a_time_limit_hides_no_longer_log(uneven, lost, preference):
    here, token = lost
    with connect(uneven.uri(readPreference=preference)) as client:
        if preference == "secondaryPreferred":
            assert ids(*walk(client, here, token, on_expired=SkipToOldest())) == ALL
        else:
            act = partial(read, client, here, token, on_expired=SkipToOldest())
            assert refusal(ErrorCategory.TRANSIENT_FAILURE, act, "secondaryPreferred").retryable


def test_who_must_not_read_the_primary_is_told_which_member_is_short(uneven, lost):
    here, token = lost
    secondary = next(member for member in uneven.members if member != uneven.primary())
    with connect(uneven.uri(readPreference="secondary")) as client:
        for start in (token, AtTime(_moment(uneven, here))):
            error = refusal(
                ErrorCategory.TRANSIENT_FAILURE,
                lambda start=start: read(client, here, start, on_expired=SkipToOldest()),
                f"({secondary})",
            )
            assert error.retryable
            assert "secondaryPreferred" in error.message
        # It has no other beginning.
        assert ids(*walk(client, here, Beginning())) == []


@pytest.mark.parametrize("preference", ["secondaryPreferred", "secondary"])
def test_nothing_is_skipped_if_the_driver_resumes_an_open_stream(uneven, items, app, preference):
    """The server forgets the cursor, and the driver asks the same member to go on."""
    here = ResourceAddress(items.database.name, "c")
    with watched(uneven.uri(readPreference=preference, appName=app)) as (client, commands):
        page = read(client, here, Now())
        lose(uneven, items)
        commands.clear()

        def go_on():
            return read(client, here, page.continuation_token, on_expired=SkipToOldest())

        with fail_command(uneven, commands=["getMore"], app_name=app, errorCode=CURSOR_NOT_FOUND):
            if preference == "secondaryPreferred":
                assert ids(go_on()) == ALL
            else:
                assert refusal(ErrorCategory.TRANSIENT_FAILURE, go_on).retryable
    failed = [(event.command_name, event.failure["code"]) for event in commands.events("failed")]
    assert failed[:2] == [("getMore", CURSOR_NOT_FOUND), ("aggregate", HISTORY_LOST)]
