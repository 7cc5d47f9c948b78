"""Tests rows of MongoDB's change stream, retryable reads and run command specifications, as tables of cases.

A case begins with its row. PyMongo's own tests show the rows that PyMongo alone fulfils. The driver's
monitoring shows the commands, and fail points of the server cause the failures.
"""

import contextlib
import copy
import gc
import itertools
import threading
import time
import traceback
from datetime import UTC, date, datetime, timedelta

import attrs
import bson
import pytest
from bson import Binary, Code, Decimal128, Int64, ObjectId, Regex, Timestamp
from bson.raw_bson import RawBSONDocument
from bson.son import SON
from pymongo import MongoClient, ReadPreference, WriteConcern
from pymongo.read_preferences import Nearest, Secondary
from pymongo.server_api import ServerApi

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ChangeType,
    EntireCluster,
    EntireDatabase,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    OldItemStateMode,
    OperationOptions,
    ResourceAddress,
    Snapshot,
    connect,
)
from multiclouddb_conformance.waiting import assert_prompt, wait_until
from multiclouddb_mongo import MongoOptions
from multiclouddb_mongo.commands import Commands as RunningCommands

from .monitor import IMAGES, Feed, hanging, in_scope, keys, native, patient, refused, watched
from .servers.mongod import fail_command

INVALID, TRANSIENT = ErrorCategory.INVALID_REQUEST, ErrorCategory.TRANSIENT_FAILURE
UNREACHABLE, CURSOR_NOT_FOUND = 6, 43
ASKING = {
    "buildinfo",
    "count",
    "endSessions",
    "hello",
    "listCollections",
    "replSetGetConfig",
    "shardingState",
}
ASKING |= {"splitVector"}
"""The commands that ask about the server and the collection."""
FINAL = 8000  # a server error that no driver treats specially
LABEL = {"errorLabels": ["ResumableChangeStreamError"]}
RESUMABLE = {"errorCode": 6, **LABEL}
OVERLOAD = {"errorCode": 462, "errorLabels": ["SystemOverloadedError", "RetryableError"]}
LOST = {"closeConnection": True}
SLOW = {"blockConnection": True, "blockTimeMS": 2500}
OK, BAD = "succeeded", "failed"
# Long enough for a slow machine, but much shorter than a call without a limit.
SOON = 8.0
SECRET = "correct-horse-battery"
TAILABLE = {"find": "capped", "tailable": True}
AWAITING = {**TAILABLE, "awaitData": True}
TEN = {"find": "c", "batchSize": 3}


def table(*cases):
    """Return a parametrization; the first element of each case is its name, which begins with the row."""
    names = len(cases[0])
    arguments = ["one_of", "two_of", "three_of", "four_of"][: names - 1]
    return pytest.mark.parametrize(arguments, [case[1:] for case in cases], ids=[case[0] for case in cases])


def asked(**options):
    return {"provider_options": MongoOptions(**options)}


@pytest.fixture
def breaks(one, app):
    def breaking(*names, times=1, **failure):
        return fail_command(one, commands=list(names), app_name=app, times=times, **failure)

    return breaking


# -- Failures of a stream


@table(
    ("CS-2: a lost connection is resumed", ["getMore"], LOST, 1, [OK]),
    ("CS-3: code 43 is resumed", ["getMore"], {"errorCode": CURSOR_NOT_FOUND}, 1, [OK]),
    ("CS-4: code 6 with the label is resumed", ["getMore"], RESUMABLE, 1, [OK]),
    ("CS-4: any code with the label is resumed", ["getMore"], {"errorCode": FINAL, **LABEL}, 1, [OK]),
    ("CS-31: a resume whose retry works", ["getMore", "aggregate"], RESUMABLE, 2, [BAD, OK]),
    ("CS-42: a failing kill is no failure", ["getMore", "killCursors"], RESUMABLE, 2, [OK]),
)
def test_a_stream_is_resumed(breaks, warm, written, one_of, two_of, three_of, four_of):
    feed, commands = warm
    with breaks(*one_of, times=three_of, **two_of):
        written.insert_one({"_id": 1})
        assert keys(feed.events()) == [1]
    assert commands.tries() == four_of
    kills = {"closeConnection": [], CURSOR_NOT_FOUND: []}
    expected = kills.get(two_of.get("errorCode", "closeConnection"), [BAD if "killCursors" in one_of else OK])
    assert commands.ends("killCursors") == expected
    assert commands.ends("getMore")[0] == BAD


@table(
    ("CS-4: code 63 without the label", ["getMore"], {"errorCode": 63}, []),
    ("CS-31: none for another error", ["getMore"], {"errorCode": FINAL}, []),
    ("CS-31: a failed resume is not repeated", ["getMore", "aggregate"], RESUMABLE, [BAD, BAD]),
)
def test_a_stream_is_not_resumed(breaks, warm, written, one_of, two_of, three_of):
    feed, commands = warm
    with breaks(*one_of, times=None, **two_of):
        error = refused(feed.read)
        assert error.detail.native_code == str(two_of["errorCode"])
        assert commands.tries() == three_of
    written.insert_one({"_id": 1})
    assert keys(feed.events()) == [1]


@table(
    ("RR-2: code 6", {"errorCode": 6}, 1, [BAD, OK]),
    ("RR-21: the same command is repeated after code 13435", {"errorCode": 13435}, 1, [BAD, OK]),
    ("RR-1: a lost connection", LOST, 1, [BAD, OK]),
    ("RR-22: a second failure", {"errorCode": 6}, None, [BAD, BAD]),
    ("CS-6: the label makes no difference", {"errorCode": FINAL, **LABEL}, None, [BAD]),
    ("RR-18: another error", {"errorCode": FINAL}, None, [BAD]),
    ("RR-28: an overload that passes", OVERLOAD, 2, [BAD, BAD, OK]),
    ("RR-28: an overload that stays", OVERLOAD, None, [BAD] * 3),
)
def test_opening_a_feed_is_retried(breaks, ours, here, one_of, two_of, three_of):
    client, commands = ours
    feed = Feed(client, here)
    with breaks("aggregate", times=two_of, **one_of):
        if three_of[-1] == OK:
            feed.read()
        else:
            error = refused(feed.read)
            assert error.detail.retryable is (one_of.get("errorCode") != FINAL or "errorLabels" in one_of)
    assert commands.tries()[: len(three_of)] == three_of
    assert three_of[-1] == OK or len(commands.tries()) == len(three_of)
    opened = [
        {name: value for name, value in event.command.items() if name not in ("lsid", "$clusterTime")}
        for event in commands.opening()[: len(three_of)]
    ]
    assert all(body == opened[0] for body in opened)


@table(
    ("RR-7: retryReads=false in the connection string", {"retryReads": False}, 1, [BAD]),
    ("RR-5: on by default", {}, 1, [BAD, OK]),
    ("RR-27: a time limit of the client allows more", {"timeoutMS": 10_000}, 4, [BAD] * 4 + [OK]),
)
def test_the_connection_string_sets_the_retries(one, app, here, breaks, one_of, two_of, three_of):
    with (
        watched(one.uri(appName=app, **one_of)) as (client, commands),
        breaks("aggregate", times=two_of, errorCode=6),
        contextlib.suppress(MulticloudDbError),
    ):
        Feed(client, here).read()
    assert commands.tries()[: len(three_of)] == three_of


def test_rr_17_the_application_s_own_client_decides(one, app, here, breaks):
    with native(one.uri(appName=app), retryReads=False) as db, breaks("aggregate", errorCode=6):
        refused(Feed(db.client, here).read)
        assert db.commands.tries() == [BAD]


def test_nothing_is_written_and_the_client_of_the_application_stays_as_it_is(one, app, here, written):
    def state(client):
        return repr(client), client.options, client.nodes

    key = MulticloudDbKey({"_id": 0})
    with native(one.uri(appName=app)) as db:
        db.own.admin.command("ping")
        before = state(db.own)
        db.commands.clear()
        feed = Feed(db.client, here)
        feed.read()
        written.insert_one({"_id": 1})
        assert keys(feed.events()) == [1]
        scan = Feed(db.client, here, Snapshot())
        assert sorted(keys(scan.events(2))) == [0, 1]
        assert db.client.lookup(here, [key])[key].new_item_state["_id"] == 0
        assert db.client.list_physical_partitions(here)
        db.client.close()
        pipelines = [body["pipeline"] for body in db.commands.bodies("aggregate")]
        stages = {name for pipeline in pipelines for stage in pipeline for name in stage}
        assert {*db.commands.names()} <= {"aggregate", "getMore", "killCursors", "find", *ASKING}
        assert not stages & {"$out", "$merge"}
        assert state(db.own) == before
        assert db.own.admin.command("ping")["ok"] == 1


def test_rr_26_the_engine_adds_no_retry(breaks, ours, here):
    client, commands = ours
    with breaks("aggregate", times=None, errorCode=6):
        for calls in (1, 2, 3):
            assert refused(Feed(client, here).read).detail.retryable
            assert commands.tries() == [BAD] * 2 * calls


@pytest.mark.parametrize("option", ["retry_reads", "retryReads"])
def test_rr_06_no_command_has_the_switch(ours, option):
    assert refused(ours[0].run_command, "admin", {"ping": 1}, **{option: False}).category == INVALID
    for kind in (ChangeFeedRequest, OperationOptions, MongoOptions):
        assert [field.name for field in attrs.fields(kind) if "retr" in field.name.lower()] == []


@pytest.mark.parametrize("failure", [{"errorCode": 43}, LOST], ids=str)
def test_cs_31_a_getmore_that_always_fails_is_not_resumed_without_end(breaks, warm, written, failure):
    feed, commands = warm
    with breaks("getMore", times=None, **failure):
        with contextlib.suppress(MulticloudDbError):
            assert not feed.read(seconds=3).idle
        assert len(commands.tries()) <= 5
    written.insert_one({"_id": 1})
    assert keys(feed.events()) == [1]


@pytest.mark.parametrize("preference", ["secondary", "primary"])
def test_cs_32_the_read_preference_is_kept(three, app, database, preference):
    collection = three.client()[database].get_collection("c", write_concern=WriteConcern(3))
    collection.insert_one({"_id": 0})
    is_primary = preference == "primary"
    allowed = {m for m in three.members if (m == three.wait_primary()) is is_primary}
    with watched(three.uri(appName=app, readPreference=preference)) as (client, commands):
        feed = Feed(client, ResourceAddress(database, "c"))
        feed.read()
        with fail_command(three, commands=["getMore"], app_name=app, **LOST):
            collection.insert_one({"_id": 1})
            assert keys(feed.events()) == [1]
        # The request for the oplog's first entry goes to the same member, because oplogs differ in length.
        assert len(Feed(client, ResourceAddress(database, "c"), Beginning()).events(2)) == 2
        opened = commands.opening()
        assert {f"{host}:{port}" for host, port in (event.connection_id for event in opened)} <= allowed
        modes = {event.command.get("$readPreference", {}).get("mode", "primary") for event in opened}
        assert modes == {preference}


# -- Options of a stream


@table(
    ("CS-10: a mode", {"full_document": "whenAvailable"}, "stage", ("fullDocument", "whenAvailable")),
    ("CS-11: old", {"full_document_before_change": "off"}, "stage", ("fullDocumentBeforeChange", "off")),
    ("CS-11: none unless asked", {}, "stage", ("fullDocumentBeforeChange", None)),
    ("CS-12: the wait goes with getMore", {"max_await_time_ms": 77}, "getMore", ("maxTimeMS", 77)),
    ("CS-12: and not with the aggregate", {"max_await_time_ms": 77}, "aggregate", ("maxTimeMS", None)),
    ("CS-12: ours if none is given", {}, "getMore", ("maxTimeMS", 10)),
    ("CS-13: a batch size with the aggregate", {"batch_size": 3}, "aggregate", ("cursor", {"batchSize": 3})),
    ("CS-13: and with getMore", {"batch_size": 3}, "getMore", ("batchSize", 3)),
    ("CS-14: no collation", {}, "aggregate", ("collation", None)),
    ("CS-15: expanded events", {"show_expanded_events": True}, "stage", ("showExpandedEvents", True)),
    ("CS-16: a comment", {"comment": {"who": Int64(1)}}, "aggregate", ("comment", {"who": 1})),
    ("CS-16: and with getMore", {"comment": "text"}, "getMore", ("comment", "text")),
    ("CS-16: ours if none is given", {}, "getMore", ("comment", "multiclouddb")),
    ("CS-20: always majority", {}, "aggregate", ("readConcern", {"level": "majority"})),
)
def test_an_option_is_sent(ours, here, one_of, two_of, three_of):
    client, commands = ours
    feed = Feed(client, here, **asked(**one_of))
    for _ in range(2):
        feed.read()
    bodies = {
        "stage": commands.streams()[-1:],
        "aggregate": [commands.opening()[-1].command],
        "getMore": commands.bodies("getMore"),
    }[two_of]
    name, value = three_of
    assert bodies
    assert [body.get(name) for body in bodies] == [value] * len(bodies)


@table(
    ("CS-10: an unknown full_document", {"full_document": "unheard-of"}, 2),
    ("CS-11: an unknown full_document_before_change", {"full_document_before_change": ""}, 2),
    ("CS-19: a second $changeStream", {"pipeline": [{"$changeStream": {}}]}, 40602),
    ("CS-22: a stage that streams do not have", {"pipeline": [{"$group": {"_id": 1}}]}, 20),
    ("CS-22: a stage that nobody knows", {"pipeline": [{"$unheardOf": 1}]}, 40324),
    ("CS-23: a token that is removed", {"pipeline": [{"$project": {"_id": 0}}]}, 280),
    ("CS-23: a token that is altered", {"pipeline": [{"$addFields": {"_id": "mine"}}]}, 280),
    ("CS-30: every field that is replaced", {"pipeline": [{"$replaceRoot": {"newRoot": {"a": 1}}}]}, 280),
)
def test_the_server_refuses_an_option(ours, here, written, one_of, two_of):
    client, commands = ours
    feed = Feed(client, here, **asked(**one_of))

    def read():
        feed.read()
        written.insert_one({"_id": 1})
        feed.events()

    error = refused(read)
    assert (error.category, error.detail.native_code) == (INVALID, str(two_of))
    assert commands.opening()


INSERTS = {"$match": {"operationType": "insert"}}


@table(
    ("CS-21: in order", [INSERTS, {"$addFields": {"fullDocument.more": 1}}], {"_id": 1, "a": 1, "more": 1}),
    ("CS-21: there may be none", [], {"_id": 1, "a": 1}),
    ("CS-23: without times", [{"$project": {"clusterTime": 0, "wallTime": 0}}], {"_id": 1, "a": 1}),
    ("CS-23: another root", [{"$replaceRoot": {"newRoot": "$$ROOT"}}], {"_id": 1, "a": 1}),
    ("CS-8: further fields", [{"$addFields": {"ns.viewOn": "x", "later": [1]}}], {"_id": 1, "a": 1}),
)
def test_a_pipeline_may_change_events(ours, here, written, one_of, two_of):
    client, commands = ours
    feed = Feed(client, here, **asked(pipeline=one_of))
    feed.read()
    written.insert_one({"_id": 1, "a": 1})
    (event,) = feed.events()
    assert (event.type, event.key.components, event.new_item_state) == (ChangeType.CREATE, {"_id": 1}, two_of)
    sent = commands.opening()[-1].command["pipeline"]
    assert list(sent[0]) == ["$changeStream"]
    assert [stage for stage in sent if stage in one_of] == one_of


def test_cs_07_an_operation_that_nobody_knows_yet_is_skipped(ours, here, written):
    client, _ = ours
    strange = {"$cond": ["$fullDocument.strange", "zzz", "$operationType"]}
    feed = Feed(client, here, **asked(pipeline=[{"$addFields": {"operationType": strange}}]))
    feed.read()
    written.insert_many([{"_id": 1, "strange": True}, {"_id": 2}, {"_id": 3, "strange": True}, {"_id": 4}])
    assert keys(feed.events(2)) == [2, 4]


def test_cs_09_the_fields_of_changes(ours, here, written):
    client, _ = ours
    feed = Feed(client, here, include_native=True)
    feed.read()
    begin = datetime.now(UTC)
    written.insert_one({"_id": 1, "a": {"b": 1}, "gone": 1})
    written.update_one({"_id": 1}, {"$set": {"a.b": 2}, "$unset": {"gone": ""}})
    written.replace_one({"_id": 1}, {"a": 3})
    written.delete_one({"_id": 1})
    events = feed.events(4)
    update, natives = events[1].native, [event.native for event in events]
    assert [event.type.name for event in events] == ["CREATE", "UPDATE", "UPDATE", "DELETE"]
    assert [native["operationType"] for native in natives] == ["insert", "update", "replace", "delete"]
    for event, found in zip(events, natives, strict=True):
        assert found["ns"] == {"db": here.database, "coll": "c"}
        assert found["documentKey"] == event.key.components == {"_id": 1}
        assert event.event_id == found["_id"]["_data"]
        assert event.timestamp == found["wallTime"]
        assert abs(event.timestamp - begin) < timedelta(seconds=20)
    # The document was deleted before the server looked it up.
    states = [event.new_item_state for event in events]
    assert states == [{"_id": 1, "a": {"b": 1}, "gone": 1}, None, {"_id": 1, "a": 3}, None]
    assert update["updateDescription"]["removedFields"] == ["gone"]


@pytest.mark.parametrize("scope", [None, EntireDatabase(), EntireCluster()], ids=str)
def test_cs_17_cs_25_cs_26_rr_10_each_scope_has_its_command(breaks, ours, here, written, scope):
    client, commands = ours
    feed = Feed(client, **in_scope(scope, here))
    with breaks("aggregate", **LOST):
        feed.read()
    written.insert_one({"_id": 1})
    events = []
    while not events:
        events = [event for event in feed.read(wait=5).events if event.address == here]
    assert keys(events) == [1]
    where = {None: (here.database, "c"), EntireDatabase(): (here.database, 1), EntireCluster(): ("admin", 1)}
    for event in commands.opening():
        assert (event.database_name, event.command["aggregate"]) == where[scope]
        stage = event.command["pipeline"][0]["$changeStream"]
        assert stage.get("allChangesForCluster", False) is (scope == EntireCluster())
    named = "$cmd.aggregate" if scope else "c"
    assert {body["collection"] for body in commands.bodies("getMore")} == {named}


def test_cs_10_no_document_is_asked_for_if_none_is_wanted(ours, here):
    client, commands = ours
    Feed(client, here, new_item_state_mode=NewItemStateMode.OMIT).read()
    assert all("fullDocument" not in stage for stage in commands.streams())


def test_cs_12_a_long_wait_is_sent_as_one_on_the_stream_that_is_open(warm):
    feed, commands = warm
    feed.read(wait=2.0)
    waits = [body["maxTimeMS"] for body in commands.bodies("getMore")]
    assert waits[0] == 1000
    assert len(waits) <= 4
    assert not commands.opening()


# -- Starts and tokens


@pytest.mark.parametrize("name", ["resume_after", "start_after", "start_at_operation_time"])
def test_cs_15_cs_34_cs_38_each_native_start(breaks, plain, ours, here, written, name):
    with plain[0][here.database]["c"].watch() as stream:
        written.insert_many([{"_id": 1}, {"_id": 2}])
        first, second = next(stream), next(stream)
    value = second["clusterTime"] if name == "start_at_operation_time" else first["_id"]
    client, commands = ours
    feed = Feed(client, here, **asked(**{name: value}))
    assert keys(feed.events()) == [2]
    words = name.split("_")
    assert commands.starts()[0] == {words[0] + "".join(map(str.title, words[1:])): value}
    commands.clear()
    with breaks("getMore", **LOST):
        feed.read()
    assert commands.starts()
    assert all(set(start) == {"resumeAfter"} for start in commands.starts())


def test_cs_35_two_starts_are_refused():
    starts = {name: {"_data": "82"} for name in ("resume_after", "start_after")}
    for two in itertools.combinations({**starts, "start_at_operation_time": Timestamp(1, 1)}.items(), 2):
        assert refused(MongoOptions, **dict(two)).category == INVALID, two


def test_cs_37_before_its_first_document_it_keeps_startafter(breaks, plain, ours, here, written):
    with plain[0][here.database]["c"].watch() as stream:
        written.drop()
        written.database.create_collection("c")
        _, invalidate = stream
    client, commands = ours
    feed = Feed(client, here, **asked(start_after=invalidate["_id"]))
    with breaks("getMore", **LOST):
        feed.read()
    assert [set(start) for start in commands.starts()[:2]] == [{"startAfter"}] * 2
    written.insert_one({"_id": 1})
    assert keys(feed.events()) == [1]


def token_of(commands):
    return commands.events("succeeded", "getMore")[-1].reply["cursor"]["postBatchResumeToken"]["_data"]


def test_cs_43_cs_46_an_empty_page_has_the_token_of_its_answer(one, app, warm, written):
    feed, commands = warm
    feed.read()
    before = token_of(commands)
    written.database["other"].insert_one({"_id": 1})
    wait_until(lambda: feed.read() and token_of(commands) > before)
    with watched(one.uri(appName=app)) as (other, seen):
        feed.by(other).read()
        assert seen.starts()[0] == {"resumeAfter": {"_data": token_of(commands)}}


def test_cs_29_cs_47_a_page_within_an_answer_has_its_last_token(one, app, ours, here, written):
    feed = Feed(ours[0], here, max_page_size=2)
    feed.read()
    written.insert_many({"_id": number} for number in range(1, 4))
    _, second = feed.events(2)
    with watched(one.uri(appName=app)) as (other, seen):
        assert keys(feed.by(other).events()) == [3]
        assert seen.starts()[0] == {"resumeAfter": {"_data": second.event_id}}


def test_cs_52_a_resume_repeats_the_command(breaks, ours, here, written):
    client, commands = ours
    feed = Feed(client, here, **asked(pipeline=[INSERTS], batch_size=7))
    feed.read()
    with breaks("getMore", **LOST):
        written.insert_one({"_id": 1})
        assert keys(feed.events()) == [1]
    first, second = (event.command for event in commands.opening()[-2:])
    assert all(first[name] == second[name] for name in ("aggregate", "cursor", "readConcern"))
    assert first["pipeline"][1:] == second["pipeline"][1:]
    kept, again = (body["pipeline"][0]["$changeStream"] for body in (first, second))
    assert {**kept, "resumeAfter": None} == {**again, "resumeAfter": None}


def test_cs_48_a_read_without_an_event_returns_soon(warm):
    feed, _ = warm

    def attempt():
        begin = time.monotonic()
        assert feed.read().events == ()
        return time.monotonic() - begin

    assert_prompt(0.5, attempt, at_most=10)


# -- Closing, limits


def test_cs_27_cs_28_a_closed_client_leaves_no_cursor(one, app, here, written):
    with watched(one.uri(appName=app)) as (client, commands):
        feed = Feed(client, here)
        feed.read()
        written.insert_many([{"_id": 1}, {"_id": 2}])
        with client.iterate_changes(feed.request) as changes:
            assert keys(itertools.islice(changes, 2)) == [1, 2]
    closed = {number for body in commands.bodies("killCursors") for number in body["cursors"]}
    assert {body["getMore"] for body in commands.bodies("getMore")} <= closed


@table(
    ("CS-50: opening ends with the client's time limit", "aggregate", {"timeoutMS": 1000}),
    ("CS-50: reading ends with it", "getMore", {"timeoutMS": 1000}),
    ("CS-50: a call ends with its own", "aggregate", {}),
)
def test_a_slow_server_is_given_up_in_time(one, app, breaks, here, written, one_of, two_of):
    with watched(one.uri(appName=app, **two_of)) as (client, _):
        feed = Feed(client, here)
        if one_of == "getMore":
            patient(feed.read)
            written.insert_one({"_id": 1})

        def attempt():
            begin = time.monotonic()
            error = refused(feed.read, seconds=20 if two_of else 1)
            assert error.category == TRANSIENT
            return time.monotonic() - begin

        with breaks("getMore", "aggregate", times=None, **SLOW):
            assert_prompt(2.2, attempt, at_most=10)
        if one_of == "getMore":
            assert keys(patient(feed.events)) == [1]


@pytest.mark.soak  # the servers' small journal takes a minute for such a write
@pytest.mark.parametrize("old", [OldItemStateMode.REQUIRE, OldItemStateMode.OMIT])
def test_cs_51_a_larger_event_can_be_skipped(one, ours, here, old):
    large = one.client()[here.database].create_collection("large", **IMAGES)
    feed = Feed(ours[0], ResourceAddress(here.database, "large"), old_item_state_mode=old)
    feed.read()
    large.insert_one({"_id": 1, "text": "x" * (9 << 20)})
    large.replace_one({"_id": 1}, {"text": "y" * (9 << 20)})
    large.insert_one({"_id": 2})
    if old is OldItemStateMode.OMIT:
        assert keys(feed.events(3)) == [1, 1, 2]
        return
    assert keys(feed.events()) == [1]
    error = refused(feed.events)
    assert (error.category, error.detail.native_code) == (ErrorCategory.PROVIDER_ERROR, "10334")
    feed.request = attrs.evolve(feed.request, start_position=FromContinuationToken(error.detail.skip_token))
    assert keys(feed.events()) == [2]


# -- Commands


@pytest.fixture
def db(one, database):
    """Provide a collection of ten documents and a capped collection of two documents."""
    fill(one, database)
    with native(one.uri(appName=database)) as opened:
        opened.run("admin", {"ping": 1})
        opened.commands.clear()
        yield opened


def fill(servers, database):
    where = servers.client().get_database(database, write_concern=WriteConcern(len(servers.members)))
    where["c"].insert_many([{"_id": number} for number in range(10)])
    where.create_collection("capped", capped=True, size=1 << 20).insert_many([{"_id": 0}, {"_id": 1}])


@attrs.frozen
class Between:
    """Equals the whole numbers from `low` to `high`."""

    low: int
    high: int

    def __eq__(self, other):
        return isinstance(other, int) and self.low <= other <= self.high


NEAREST = Nearest(tag_sets=[{"room": "1"}, {}])
TAGGED = {"mode": "nearest", "tags": [{"room": "1"}, {}]}
PING, FIND, PUT = {"ping": 1}, {"find": "c"}, {"insert": "c", "documents": [{}]}
LOCAL = {"readConcern": {"level": "local"}}
NOTHING = {"read_preference": None, "session": None, "timeout_ms": None}
CONCERNS = {"readConcernLevel": "majority", "w": "majority", "journal": True}
MINUTE = {"timeout_ms": 60_000}
FIVE_SECONDS = {"timeoutMS": 5000}
STRICT = {"server_api": ServerApi("1", strict=True)}
TIMED = FIND | {"maxTimeMS": 1234}


@table(
    ("RC-2: the preference of the call", {}, PING, {"read_preference": NEAREST}, {"$readPreference": TAGGED}),
    ("RC-9: no primary", {}, PING, {"read_preference": ReadPreference.PRIMARY}, {"$readPreference": None}),
    ("RC-14: a read concern of the command stays", {}, FIND | LOCAL, {}, LOCAL),
    ("RC-14: none is added", CONCERNS, FIND, {}, {"readConcern": None}),
    ("RC-14: no write concern is added", CONCERNS, PUT, {}, {"writeConcern": None}),
    ("RC-15: no transaction number", {}, PUT, {}, {"txnNumber": None}),
    ("RC-16: no fields of the stable API", {}, PING, {}, {"apiVersion": None, "apiStrict": None}),
    ("RC-16: unless the client has it", STRICT, PUT, {}, {"apiVersion": "1", "apiStrict": True}),
    ("RC-4: without a timeout no time is sent", {}, PING, {}, {"maxTimeMS": None}),
    ("RC-17: the command's own time is sent", {}, TIMED, {}, {"maxTimeMS": 1234}),
    ("RC-7: None is an option left out", {}, PING, NOTHING, {"maxTimeMS": None}),
    ("RC-4: the timeout is sent", {}, FIND, MINUTE, {"maxTimeMS": Between(1, 60_000)}),
    ("RC-17: it replaces the command's", {}, TIMED, MINUTE, {"maxTimeMS": Between(1235, 60_000)}),
    ("RC-4: the client's applies", FIVE_SECONDS, FIND, {}, {"maxTimeMS": Between(1, 5000)}),
    ("RC-4: it replaces the client's", FIVE_SECONDS, FIND, MINUTE, {"maxTimeMS": Between(5001, 60_000)}),
    ("RC-4: zero lifts the client's", FIVE_SECONDS, FIND, {"timeout_ms": 0}, {"maxTimeMS": None}),
)
def test_a_command_is_sent_as_it_is(one, database, one_of, two_of, three_of, four_of):
    with native(one.uri(), **one_of) as db:
        assert db.run(database, two_of, **three_of)["ok"] == 1
        body = db.body(next(iter(two_of)))
    assert {name: body.get(name) for name in four_of} == four_of
    assert body["$db"] == database  # RC-7


def test_rc_05_every_value_arrives_as_it_is(db, database):
    values = {
        "number": Int64(2**60), "exact": Decimal128("1.10"), "id": ObjectId(), "stamp": Timestamp(5, 6),
        "bytes": Binary(b"x", 128), "regex": Regex("a.*"), "code": Code("f()"),
        "list": [1, {"$deep": {"": None}}],
    }  # fmt: skip
    db.run(database, {"insert": "values", "documents": [{"_id": 1, **values}]})
    assert list(db.own.get_database(database)["values"].find({}, {"_id": 0})) == [values]


@table(
    ("RC-5: a field that nobody knows", {"find": "c", "typo": 1}, "40415"),
    ("RC-5: a command that nobody knows", {"frobnicate": 1, "x": {"y": [2]}}, "59"),
)
@pytest.mark.parametrize("call", ["run", "cursor"])
def test_a_command_is_not_inspected(db, database, call, one_of, two_of):
    error = refused(getattr(db, call), database, one_of)
    assert one_of.items() <= db.commands.bodies(next(iter(one_of)))[0].items()
    assert (error.category, error.detail.native_code) == (INVALID, two_of)


@pytest.mark.parametrize("kind", [dict, SON, lambda parts: RawBSONDocument(bson.encode(dict(parts)))])
@pytest.mark.parametrize("options", [{}, MINUTE | {"timeout_mode": "iteration"}])
def test_rc_06_a_command_is_not_changed(db, database, kind, options):
    command = kind([("find", "c"), ("batchSize", 2), ("filter", {"_id": {"$gte": 0}})])
    before = copy.deepcopy(command)
    assert len(list(db.cursor(database, command, **options))) == 10
    assert db.run(database, command, timeout_ms=options.get("timeout_ms"))["ok"] == 1
    assert (command, list(command)) == (before, list(before))


def test_rc_02_rc_08_a_preference_selects_the_server(three, database):
    fill(three, database)
    with native(three.uri(readPreference="secondary")) as db:
        primary = three.wait_primary()
        db.run(database, {"ping": 1})
        assert (db.nodes("ping"), "$readPreference" in db.body("ping")) == ([primary], False)
        assert db.run(database, {"count": "c"}, read_preference=ReadPreference.SECONDARY)["n"] == 10
        assert db.nodes("count")[0] in set(three.members) - {primary}
        # The secondary reports this error, not the library.
        error = refused(db.run, database, PUT, read_preference=ReadPreference.SECONDARY)
        assert (error.category, error.detail.native_code) == (TRANSIENT, "10107")


def test_rc_02_a_preference_that_nobody_meets(db, database):
    error = refused(db.run, database, {"ping": 1}, read_preference=Secondary(), timeout_ms=50)
    assert (error.category, error.retryable, db.commands.names("ping")) == (TRANSIENT, True, [])


def test_rc_03_rc_10_rc_20_a_session_is_used_and_stays_open(one, db, database):
    with db.own.start_session() as session:
        lsid = session.session_id  # from here on, no other session uses this id
        db.run(database, {"ping": 1}, session=session)
        db.run(database, {"ping": 1})
        list(db.cursor(database, TEN, session=session))
        assert not session.has_ended
    given, taken = (body["lsid"] for body in db.commands.bodies("ping"))
    assert given == lsid != taken
    assert all(event.command["lsid"] == lsid for event in db.commands.sent("find", "getMore"))
    with MongoClient(one.uri()) as other, other.start_session() as foreign:
        for bad in (session, foreign):
            assert refused(db.run, database, {"hello": 1}, session=bad).category == INVALID
    assert db.commands.names("hello") == []


@table(
    ("RC-15: a lost connection", {"find": "c"}, LOST),
    ("RC-15: a retryable write", PUT, {"errorCode": 6, "errorLabels": ["RetryableWriteError"]}),
    ("RR-15: not a command", {"ping": 1}, {"errorCode": 91}),
)
@pytest.mark.parametrize("call", ["run", "cursor"])
def test_a_command_that_fails_is_not_tried_again(one, db, database, call, one_of, two_of):
    name = next(iter(one_of))
    with fail_command(one, commands=[name], app_name=database, times=1, **two_of):
        error = refused(getattr(db, call), database, one_of)
    assert (error.category, error.retryable) == (TRANSIENT, True)
    assert db.commands.names(name) == [name]


@pytest.mark.parametrize(("retries", "tries"), [(0, 1), (1, 2)])
def test_rc_15_an_overloaded_server_is_asked_as_often_as_the_client_says(one, database, retries, tries):
    with native(one.uri(appName=database, maxAdaptiveRetries=retries)) as db:
        with fail_command(one, commands=["ping"], app_name=database, times=None, **OVERLOAD):
            error = refused(db.run, database, {"ping": 1})
        assert len(db.commands.names("ping")) == tries
    assert error.category == ErrorCategory.THROTTLED


@table(
    ("RC-4: a call that hangs", "run", {"ping": 1}, {"timeout_ms": 100}),
    ("RC-29: a cursor command", "cursor", TEN, {"timeout_ms": 300, "timeout_mode": "iteration"}),
    ("RC-29: a tailable one", "cursor", AWAITING, {"timeout_ms": 300, "cursor_type": "tailable_await"}),
)
def test_a_server_that_hangs_is_given_up(one, database, one_of, two_of, three_of):
    fill(one, database)
    with native(one.uri(socketTimeoutMS=15000)) as db:
        db.run(database, {"ping": 1})
        with hanging(one):
            began = time.monotonic()
            error = refused(getattr(db, one_of), database, two_of, **three_of)
            assert time.monotonic() - began < SOON
        # The limit may be sent only if the server does not apply it to the cursor's whole life.
        assert one_of == "run" or ("maxTimeMS" in db.body("find")) is (two_of is AWAITING)
    assert (error.category, error.retryable) == (TRANSIENT, True)


# -- Cursors


@table(
    ("RC-18: find", TEN, 10),
    ("RC-18: aggregate", {"aggregate": "c", "pipeline": [], "cursor": {"batchSize": 4}}, 10),
    ("RC-18: listCollections", {"listCollections": 1, "cursor": {"batchSize": 1}}, 2),
    ("RC-23: an empty batch is not the end", {"find": "c", "batchSize": 0}, 10),
)
def test_a_cursor_gives_every_document(db, database, one_of, two_of):
    cursor = db.cursor(database, one_of)
    assert len(list(cursor)) == two_of
    assert (list(cursor), cursor.try_next(), cursor.alive) == ([], None, False)
    # RC-20: every getMore is in the session of the command.
    name = next(iter(one_of))
    assert len({str(event.command["lsid"]) for event in db.commands.sent(name, "getMore")}) == 1
    assert db.commands.names("killCursors") == []


@table(
    ("RC-24: batch size and comment", {"batch_size": 4, "comment": {"who": 1}}, (4, {"who": 1})),
    ("RC-24: none unless given", {}, (None, None)),
    ("RC-24: PyMongo asks for two instead of one", {"batch_size": 1}, (2, None)),
)
def test_options_of_a_cursor_are_for_getmore(db, database, one_of, two_of):
    command = {"find": "c", "batchSize": 1, "maxTimeMS": 5000, "comment": "mine"}
    list(db.cursor(database, command, **one_of))
    assert {name: db.body("find")[name] for name in command} == command
    for body in db.commands.bodies("getMore"):
        assert (body.get("batchSize"), body.get("comment"), body.get("maxTimeMS")) == (*two_of, None)


def test_rc_19_a_reply_without_a_cursor_is_an_error(db, database):
    error = refused(db.cursor, database, {"ping": 1})
    assert (error.category, error.detail.operation) == (INVALID, "run_cursor_command")


def test_rc_25_the_batch_size_may_be_changed_on_the_way(db, database):
    with db.cursor(database, {"find": "c", "batchSize": 1}, batch_size=2, comment="x") as cursor:
        for size in (3, None):
            for _ in range(3):
                next(cursor)
            cursor.batch_size(size)
        assert refused(cursor.batch_size, 0).category == INVALID
        assert len(list(cursor)) == 4
    found = [(body.get("batchSize"), body["comment"]) for body in db.commands.bodies("getMore")]
    assert found == [(2, "x"), (3, "x"), (None, "x")]


@pytest.mark.parametrize(("command", "kind"), [(TAILABLE, "tailable"), (AWAITING, "tailable_await")])
def test_rc_24_rc_26_a_tailable_cursor_continues_after_an_empty_batch(one, db, database, command, kind):
    options = {"max_time_ms": 20} if kind == "tailable_await" else {}
    with db.cursor(database, command, cursor_type=kind, **options) as cursor:
        assert [next(cursor), next(cursor), cursor.try_next()] == [{"_id": 0}, {"_id": 1}, None]
        assert cursor.alive
        writer = threading.Timer(0.1, one.client()[database]["capped"].insert_one, [{"_id": 2}])
        writer.start()
        assert next(cursor) == {"_id": 2}
        writer.join()
    assert "maxTimeMS" not in db.body("find")
    assert db.commands.bodies("getMore")[0].get("maxTimeMS") == options.get("max_time_ms")


@pytest.mark.parametrize("failure", [{"errorCode": FINAL}, LOST], ids=["error", "cut"])
def test_rc_15_rr_14_a_cursor_that_has_failed_never_looks_like_one_at_its_end(one, db, database, failure):
    cursor = db.cursor(database, {"find": "c", "batchSize": 2})
    with fail_command(one, commands=["getMore"], app_name=database, **failure):
        assert [next(cursor), next(cursor)] == [{"_id": 0}, {"_id": 1}]
        first = refused(next, cursor)
    for again in (refused(next, cursor), refused(cursor.try_next)):
        assert (again.category, again.message) == (first.category, first.message)
    assert (cursor.alive, db.commands.names("getMore")) == (False, ["getMore"])


def is_gone(db, database):
    number = db.body("killCursors")["cursors"][0]
    error = refused(db.run, database, {"getMore": number, "collection": "c"})
    return error.detail.native_code == str(CURSOR_NOT_FOUND)


def test_rc_27_a_cursor_is_closed(db, database):
    with db.cursor(database, {"find": "c", "batchSize": 2}) as cursor:
        pass
    for _ in range(2):
        cursor.close()
    assert is_gone(db, database)
    assert db.body("killCursors")["lsid"] == db.body("find")["lsid"]
    assert not cursor.alive
    for step in (cursor.__next__, cursor.try_next):
        assert refused(step).category == INVALID


def test_rc_27_a_cursor_that_nobody_holds_is_closed(db, database):
    db.cursor(database, {"find": "c", "batchSize": 2})
    gc.collect()
    wait_until(lambda: db.commands.ends("killCursors"))
    assert is_gone(db, database)


def test_rc_27_a_kill_that_fails_is_ignored(one, db, database):
    with fail_command(one, commands=["killCursors"], app_name=database, times=None, **LOST):
        db.cursor(database, {"find": "c", "batchSize": 2}).close()
    assert db.run(database, {"ping": 1})["ok"] == 1


def test_rc_27_closing_the_client_closes_its_cursors(one, db, database):
    with connect(one.uri(), native_client=db.own) as client:
        cursor = client.run_cursor_command(database, {"find": "c", "batchSize": 2})
        next(cursor)
    assert refused(next, cursor).category == INVALID
    assert is_gone(db, database)
    db.commands.clear()
    commands = RunningCommands(db.own)
    commands.close()
    assert not commands.run_cursor_command(database, {"find": "c", "batchSize": 2}, {}).alive
    assert is_gone(db, database)


def test_rc_27_a_client_closes_soon_though_its_server_hangs(one, db, database):
    with connect(one.uri(), native_client=db.own) as client:
        cursors = [client.run_cursor_command(database, {"find": "c", "batchSize": 2}) for _ in range(3)]
        with hanging(one):
            began = time.monotonic()
            client.close()
            assert time.monotonic() - began < SOON
    assert not any(cursor.alive for cursor in cursors)


@pytest.mark.parametrize(("wait", "works"), [(4999, True), (5000, False)])
def test_rc_28_the_wait_stays_below_the_timeout_of_the_client(one, database, wait, works):
    fill(one, database)
    with native(one.uri(timeoutMS=5000)) as db:
        options = {"cursor_type": "tailable_await", "max_time_ms": wait}
        with contextlib.nullcontext() if works else pytest.raises(MulticloudDbError):
            db.cursor(database, AWAITING, **options).close()


@pytest.mark.parametrize("limit", ["call", "client"])
def test_rc_29_a_timeout_is_for_the_whole_life_of_a_cursor(one, database, limit):
    fill(one, database)
    with native(one.uri(**({"timeoutMS": 1000} if limit == "client" else {}))) as db:
        options = {"timeout_ms": 1000} if limit == "call" else {}
        cursor = patient(lambda: db.cursor(database, TEN, **options))
        next(cursor)
        time.sleep(1.05)
        # Documents that have already arrived are returned even after the time limit.
        assert [next(cursor), next(cursor)] == [{"_id": 1}, {"_id": 2}]
        assert refused(next, cursor).category == TRANSIENT
        assert db.commands.names("getMore") == []


def test_rc_29_with_iteration_each_step_has_the_whole_timeout(db, database):
    # Each document takes the server 300 ms, so one limit for the cursor's life would stop it half-way.
    slow = {"find": "c", "batchSize": 1, "filter": {"$where": "sleep(300) || true"}}
    options = {"timeout_ms": 2500, "timeout_mode": "iteration", "batch_size": 2}
    assert len(list(db.cursor(database, slow, **options))) == 10
    assert not [body for body in db.commands.bodies("find") if "maxTimeMS" in body]
    db.commands.clear()
    list(db.cursor(database, FIND | {"maxTimeMS": 7777}, timeout_ms=60_000, timeout_mode="iteration"))
    assert db.body("find")["maxTimeMS"] == 7777


# -- Wrong calls and secrets

AWAITED, TAILED = {"cursor_type": "tailable_await"}, {"cursor_type": "tailable"}


@table(
    ("RC-28: a timeout and a time for getMore", "cursor", AWAITED | {"timeout_ms": 1000, "max_time_ms": 10}),
    ("RC-29: tailable for its life", "cursor", TAILED | {"timeout_mode": "cursor_lifetime", "timeout_ms": 9}),
    ("RC-29: a mode needs a timeout", "cursor", {"timeout_mode": "iteration"}),
    ("RC-29: an unknown mode", "cursor", {"timeout_mode": "ITERATION", "timeout_ms": 5}),
    ("RC-26: an unknown type", "cursor", {"cursor_type": "tailable_awaits"}),
    ("RC-24: a batch size of 0", "cursor", {"batch_size": 0}),
    ("RC-24: a batch size that is a truth value", "cursor", {"batch_size": True}),
    ("RC-24: a negative wait", "cursor", {"max_time_ms": -1}),
    ("RC-24: a name of another spelling", "cursor", {"batchSize": 5}),
    ("RC-1: an unknown option", "run", {"timeoutMS": 5}),
    ("RC-1: an option of cursors alone", "run", {"timeout_mode": "iteration"}),
    ("RC-14: there is no read concern", "run", {"read_concern": "majority"}),
    ("RC-4: a negative timeout", "cursor", {"timeout_ms": -1}),
    ("RC-4: a fraction", "run", {"timeout_ms": 1.5}),
    ("RC-4: a timeout beyond 32 bits", "run", {"timeout_ms": 2**31}),
    ("RC-2: the name of a preference", "run", {"read_preference": "secondary"}),
    ("RC-3: something that is no session", "run", {"session": object()}),
)
def test_a_wrong_option_is_refused(db, database, one_of, two_of):
    assert refused(getattr(db, one_of), database, FIND, **two_of).category == INVALID
    assert db.commands.names() == []


@pytest.mark.parametrize("call", ["run", "cursor"])
def test_rc_01_a_wrong_command_or_database_is_refused(db, database, call):
    commands = [None, "ping", [("ping", 1)], 7, {}, {1: 1}, {b"ping": 1}]
    values = [object(), 2**64, "\ud800", {1: 1}, {1, 2}, date(2026, 1, 1)]
    commands += [{"insert": "c", "documents": [{"x": value}]} for value in values]
    names = ["", None, 5, b"x", "a.b", "a b", "$x", "a\0"]
    for name, command in [(database, each) for each in commands] + [(each, {"ping": 1}) for each in names]:
        assert refused(getattr(db, call), name, command).category == INVALID, (name, command)
    assert db.commands.names() == []


class Hidden:
    def __repr__(self):
        return SECRET


@pytest.mark.parametrize(
    "more",
    [{"roles": "x"}, {"roles": [], "typo": 1}, {"roles": [{1, 2}]}, {"pwd": Hidden()}],
    ids=["type", "typo", "set", "value"],
)
def test_a_password_in_a_command_is_in_no_error_and_no_log(db, database, caplog, more):
    with caplog.at_level("DEBUG"):
        error = refused(db.run, database, {"createUser": "u", "pwd": SECRET, **more})
    shown = "".join(traceback.format_exception(error)) + repr(error) + repr(error.detail) + caplog.text
    assert SECRET not in shown
