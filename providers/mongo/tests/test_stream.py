"""Tests how a stream is opened, and how it is closed."""

import contextlib
import logging
import time
from types import SimpleNamespace

import pymongo
import pytest
from bson import Decimal128, Timestamp
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.errors import AutoReconnect, NetworkTimeout, OperationFailure

from multiclouddb_api import (
    EntireCluster,
    EntireCollection,
    ErrorCategory,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    OldItemStateMode,
    ResourceAddress,
)
from multiclouddb_mongo import MongoOptions, members
from multiclouddb_mongo.driver import Closer, hushed
from multiclouddb_mongo.members import Majority, ServerClock
from multiclouddb_mongo.position import After, At, ticks_at
from multiclouddb_mongo.source import ENDINGS, LogEnd, ReaderContext
from multiclouddb_spi import FeedSpec, ProviderFault

from .monitor import Commands

NEW, OLD = NewItemStateMode, OldItemStateMode
OMITTED = {"new_item_state_mode": NEW.OMIT, "old_item_state_mode": OLD.OMIT}
KEPT = {"_id", "operationType", "documentKey", "wallTime", "fullDocumentBeforeChange", "to", "splitEvent"}
SPLIT = {"$changeStreamSplitLargeEvent": {}}
AN_END = {"operationType": {"$in": ["invalidate", "drop", "rename", "dropDatabase"]}}


@pytest.fixture
def lonely():
    with MongoClient("mongodb://127.0.0.1:1/", connect=False) as client:
        yield client


@pytest.fixture
def make(lonely, monkeypatch):
    """Make sources whose calls of `watch` are recorded and not sent."""

    def make(scope=None, client=lonely, *, images=False, splits=False, asked=None, **options):
        address, scope = ResourceAddress("shop", "orders"), scope or EntireCollection()
        spec = FeedSpec(address, scope=scope, options=MongoOptions(**options), **(asked or {}))
        source = ReaderContext(client, spec, spec.address, images=images, splits=splits)
        source.noted = []

        def watch(_target, stages, **settings):
            source.noted.append((stages, settings))
            return "stream"

        monkeypatch.setattr(Collection, "watch", watch)
        return source

    return make


def watched(source, **asked):
    """Return the stages and settings of one stream."""
    source.open(At(1), 100, 10, **asked)
    return source.noted[-1]


@pytest.mark.parametrize(
    ("asked", "options", "left_out"),
    [({}, {}, set()), (OMITTED, {}, {"fullDocument"}), (OMITTED, {"full_document": "whenAvailable"}, set())],
)
def test_what_nobody_wants_is_not_sent(make, asked, options, left_out):
    (stage,) = make(asked=asked, **options).pipeline()
    assert list(stage) == ["$project"]
    assert set(stage["$project"].values()) == {0}
    assert stage["$project"].keys() & {"updateDescription", "fullDocument", *KEPT} == {
        "updateDescription",
        *left_out,
    }


def test_a_cluster_that_pymongo_watches_in_another_way_is_refused(make, monkeypatch):
    monkeypatch.setattr(MongoClient, "watch", lambda client, *_, **__: client.get_database("admin"))
    with pytest.raises(ProviderFault, match=r"EntireDatabase\(\)") as refused:
        make(EntireCluster()).open(At(1), 100, 10)
    assert refused.value.fault.category == ErrorCategory.UNSUPPORTED_CAPABILITY


@pytest.mark.parametrize("key", [None, {"a": 1, "b": [2]}, {"$gt": ""}], ids=repr)
def test_a_key_is_matched_as_it_is_and_an_ending_always(make, key):
    stage = make(LogicalPartition(MulticloudDbKey({"_id": key}))).pipeline()[0]
    assert stage == {"$match": {"$or": [{"documentKey._id": {"$eq": key}}, AN_END]}}
    assert AN_END["operationType"]["$in"] == list(ENDINGS)


def test_a_shard_key_is_matched_by_its_leading_parts(make):
    key = MulticloudDbKey({"country": "de", "customer": Decimal128("1.50").to_decimal(), "_id": 1}, 2)
    stage = make(LogicalPartition(key), pipeline=[{"$match": {}}]).pipeline()
    wanted = {"documentKey.country": {"$eq": "de"}, "documentKey.customer": {"$eq": Decimal128("1.50")}}
    assert stage[0]["$match"]["$or"][0] == wanted
    assert stage[1] == {"$match": {}}


def test_a_nested_field_of_the_shard_key_is_matched(one, database, make):
    """In a change, the key is `{"at.zip": 1}`: one name that contains a dot."""
    scope = LogicalPartition(MulticloudDbKey({"country": "de", "at.zip": "$1", "_id": 1}, 2))
    stage = make(scope).pipeline()[0]
    keys = [{"country": "de", "at.zip": zip_} for zip_ in ("$1", "$2")]
    keys += [{"country": "at", "at.zip": "$1"}, {"country": "de"}]
    collection = one.client()[database]["changes"]
    collection.insert_one({"_id": "end", "operationType": "drop"})
    collection.insert_many(
        {"_id": str(number), "operationType": "insert", "documentKey": key} for number, key in enumerate(keys)
    )
    assert [each["_id"] for each in collection.aggregate([stage, {"$sort": {"_id": 1}}])] == ["0", "end"]


def test_a_key_that_bson_has_not_is_refused(make):
    with pytest.raises(MulticloudDbError, match="64 bits"):
        make(LogicalPartition(MulticloudDbKey({"_id": 2**70}))).pipeline()


@pytest.mark.parametrize(
    ("asked", "images", "options", "expected"),
    [
        (OMITTED, True, {}, (None, None)),
        ({"old_item_state_mode": OLD.INCLUDE_IF_AVAILABLE}, False, {}, ("updateLookup", "whenAvailable")),
        ({"old_item_state_mode": OLD.REQUIRE}, True, {}, ("whenAvailable", "required")),
        ({"new_item_state_mode": NEW.REQUIRE}, True, {}, ("required", None)),
        (OMITTED, True, {"full_document": "", "full_document_before_change": "x"}, ("", "x")),
    ],
)
def test_where_the_documents_come_from(make, asked, images, options, expected):
    _, settings = watched(make(asked=asked, images=images, **options))
    assert (settings["full_document"], settings["full_document_before_change"]) == expected


def test_a_change_that_is_only_named_has_the_same_filter_and_no_document(make):
    """Without documents, the filter and options stay the same, because the filter may need documents."""
    required = {"new_item_state_mode": NEW.REQUIRE, "old_item_state_mode": OLD.REQUIRE}
    source = make(asked=required, pipeline=[{"$match": {"fullDocument.a": 1}}], splits=True)
    stages, settings = watched(source, slim=True)
    assert stages[0] == {"$match": {"fullDocument.a": 1}}
    assert "fullDocument" not in stages[-1]["$project"]
    assert stages[-1]["$project"]["_id"] == 1
    assert SPLIT not in stages
    assert SPLIT in source.pipeline()
    assert settings["full_document"] == settings["full_document_before_change"] == "whenAvailable"


@pytest.mark.parametrize(
    ("limits", "asked", "sent"),
    [
        ({}, 500, 500),
        ({"timeoutMS": 300}, 500, 75),
        ({"timeoutMS": 300}, 10, 10),
        ({"timeoutMS": 2}, 10, 1),
        ({"socketTimeoutMS": 400}, 500, 100),
        ({"socketTimeoutMS": 400, "timeoutMS": 100_000}, 500, 100),
        ({"timeoutMS": 100_000}, 500, 500),
    ],
    ids=str,
)
def test_a_wait_is_shorter_than_what_the_driver_waits(make, limits, asked, sent):
    with MongoClient("mongodb://127.0.0.1:1/", connect=False, **limits) as client:
        source, cursor = make(client=client), SimpleNamespace(_max_await_time_ms=1000)
        source.open(At(1), 100, asked)
        source.wait_next(SimpleNamespace(_cursor=cursor), asked)
    assert source.noted[-1][1]["max_await_time_ms"] == cursor._max_await_time_ms == sent


class Stubborn:
    def __init__(self, seconds=0.0, error=None):
        self.seconds, self.error, self.closed, self.allowed = seconds, error, 0, []

    def close(self):
        self.closed += 1
        self.allowed.append(pymongo._csot.remaining())
        time.sleep(min(self.seconds, self.allowed[-1]))
        if self.error is not None:
            raise self.error


class TestCloser:
    @pytest.mark.parametrize(
        "error",
        [None, AutoReconnect("away"), NetworkTimeout("slow"), OperationFailure("no", 13), ValueError("x")],
    )
    def test_it_raises_nothing_and_keeps_on_speaking(self, error):
        closer = Closer()
        for stream in (Stubborn(error=error), Stubborn(error=error)):
            closer.close(stream, reachable=True)
            assert stream.closed == 1
            assert stream.allowed[0] > 0.3

    def test_a_server_that_hangs_costs_its_time_once(self):
        closer, streams = Closer(), [Stubborn(20.0, NetworkTimeout("slow")) for _ in range(20)]
        for stream in streams:
            closer.close(stream, reachable=True)
        assert all(stream.closed == 1 for stream in streams)
        assert sum(stream.allowed[0] for stream in streams) < 1

    def test_one_that_is_known_to_be_away_costs_none(self):
        stream = Stubborn(20.0, AutoReconnect("away"))
        Closer().close(stream, reachable=False)
        assert stream.closed == 1
        assert stream.allowed[0] < 0.1

    def test_after_a_while_it_speaks_again(self, monkeypatch):
        clock = [1000.0]
        monkeypatch.setattr("multiclouddb_mongo.driver.time.monotonic", lambda: clock[0])

        class Slow(Stubborn):
            def close(self):
                super().close()
                clock[0] += self.allowed[-1]

        closer = Closer()
        closer.close(Slow(), reachable=True)
        deaf, later = Slow(), Slow()
        closer.close(deaf, reachable=True)
        clock[0] += 60
        closer.close(later, reachable=True)
        assert deaf.allowed[0] < 0.1 < later.allowed[0]


def test_of_two_clients_that_are_closed_neither_is_heard_before_both_are(caplog):
    log = logging.getLogger("pymongo.client")

    def fail():
        log.error("it failed", exc_info=NetworkTimeout("slow"))

    with hushed():
        with hushed():
            fail()
        fail()
        log.error("a line")
    assert caplog.messages == ["a line"]
    fail()
    assert caplog.messages == ["a line", "it failed"]


@pytest.mark.parametrize(("sharded", "longest"), [(False, 50), (True, 400)], ids=["members", "mongos"])
def test_the_log_is_asked_where_the_changes_come_from(one, here, app, sharded, longest):
    """The logs of two members differ in length. A `mongos` first asks the shards, so it gets more time."""
    # If the time limit ended the command before the shards answer, the log would seem to contain everything.
    commands = Commands()
    uri = one.uri(appName=app, readPreference="secondaryPreferred")
    with MongoClient(uri, event_listeners=[commands]) as client:
        source = ReaderContext(client, FeedSpec(here, options=MongoOptions()), here, sharded=sharded)
        assert source.reaches(At(0, 1))  # the oplog has never been truncated
        (command,) = commands.bodies("aggregate")
        assert source.reaches(At((ticks_at(source.now()) >> 32) + 5, 1))
    assert command["maxTimeMS"] == longest
    assert command["$readPreference"] == {"mode": "secondaryPreferred"}


class Member:
    """Simulates the source of a stream whose server has won an election, or is a secondary."""

    sharded, opening = False, contextlib.nullcontext

    def __init__(self, won, *, there=True, term=2, common=2, mode="poll", alone=False, **hello):
        self.is_alone = lambda: alone
        self.won, self.client, self.admin, self.topology_description = won, self, self, self
        self.has_writable_server, self.believed, self.majority = lambda: there, set(), Majority()
        self.clock = ServerClock()
        self.options = SimpleNamespace(server_monitoring_mode=mode)
        common = {"ts": Timestamp(5, common), "t": term}
        written = {"opTime": {"ts": Timestamp(5, 2), "t": 2}, "majorityOpTime": common}
        self.hello = {"isWritablePrimary": True, "electionId": ELECTION, "lastWrite": written, **hello}

    def command(self, *_, **__):
        return self.hello

    def election(self, stream):
        return self.won

    def is_believed(self, stream):
        return self.is_alone() or self.won in self.believed


ELECTION, EARLIER = "the last election", "the election before"
BEFORE, LAST, PAST = (After("h", f"82{5:08X}{number:08X}2B0229296E04") for number in (1, 2, 3))
CHANGE = After("e", f"82{5:08X}{2:08X}2B022C")


@pytest.mark.parametrize(
    ("won", "hello", "begin", "places", "ends"),
    [
        (ELECTION, {}, BEFORE, [BEFORE, BEFORE], [False, True]),  # the first answer came before the question
        (ELECTION, {"term": 1}, BEFORE, [BEFORE, BEFORE, CHANGE], [False, False, True]),
        (EARLIER, {}, BEFORE, [BEFORE, BEFORE, LAST], [False, False, True]),
        (None, {}, BEFORE, [BEFORE, BEFORE, LAST], [False, False, True]),
        (None, {}, LAST, [LAST, CHANGE], [False, True]),
        (None, {}, At(5, 2), [LAST, PAST], [False, True]),
        (None, {}, PAST, [PAST], [True]),
        # A majority does not have the last write, so the primary's answers do not show it.
        (ELECTION, {"common": 1}, BEFORE, [BEFORE, BEFORE, LAST], [False, False, True]),
        (None, {"common": 1}, BEFORE, [BEFORE, LAST], [False, True]),
        (None, {"there": False}, BEFORE, [PAST, PAST], [False, False]),
        (ELECTION, {"isWritablePrimary": False}, BEFORE, [PAST, PAST], [False, False]),
        # A secondary that is connected directly is asked itself. It may have a write of which it does not
        # know yet whether a majority has it.
        (None, {"isWritablePrimary": False, "alone": True}, BEFORE, [BEFORE], [True]),
        (
            None,
            {"isWritablePrimary": False, "alone": True, "common": 1},
            BEFORE,
            [BEFORE, LAST],
            [False, True],
        ),
    ],
)
def test_an_empty_answer_shows_the_end_of_the_log(won, hello, begin, places, ends):
    end = LogEnd(Member(won, **hello))
    assert [end.is_passed(place, "stream", begin) for place in places] == ends


@pytest.mark.parametrize(("mode", "believed"), [("stream", True), ("poll", False)])
def test_a_primary_is_asked_once_if_elections_are_told_at_once(monkeypatch, mode, believed):
    source = Member(ELECTION, mode=mode)
    assert not LogEnd(source).is_passed(BEFORE, "stream", BEFORE)
    assert LogEnd(source).is_passed(BEFORE, "stream", BEFORE) is believed
    # What a majority has is asked again after some seconds.
    monkeypatch.setattr(members, "_MAJORITY_SECONDS", 0.0)
    source.majority.has_all()
    source.hello["lastWrite"]["opTime"]["ts"] = Timestamp(5, 3)
    assert not LogEnd(source).is_passed(LAST, "stream", BEFORE)
    source.won = EARLIER  # the member of another election
    assert not LogEnd(source).is_passed(BEFORE, "stream", BEFORE)
