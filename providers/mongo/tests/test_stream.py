"""Tests how a stream is opened, where it starts, and how it is closed."""

import logging
import time

import pymongo
import pytest
from bson import Decimal128
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, NetworkTimeout, OperationFailure

from multiclouddb_api import (
    EntireCollection,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    OldItemStateMode,
    ResourceAddress,
)
from multiclouddb_mongo import MongoOptions
from multiclouddb_mongo.position import At, ticks_at
from multiclouddb_mongo.pymongo_internals import Closer, hushed
from multiclouddb_mongo.source import ENDINGS, Source
from multiclouddb_spi import FeedSpec

from .monitor import Commands

NEW, OLD = NewItemStateMode, OldItemStateMode
TOKEN = "826B004E5A000000022B0229296E04"
NATIVE = {"include_native": True}
OMITTED = {"new_item_state_mode": NEW.OMIT, "old_item_state_mode": OLD.OMIT}
REQUIRED = {"new_item_state_mode": NEW.REQUIRE, "old_item_state_mode": OLD.REQUIRE}
KEPT = {"_id", "operationType", "documentKey", "wallTime", "fullDocumentBeforeChange", "to", "splitEvent"}
SPLIT = {"$changeStreamSplitLargeEvent": {}}


@pytest.fixture
def lonely():
    """Provide a client that has never called a server."""
    with MongoClient("mongodb://127.0.0.1:1/", connect=False) as client:
        yield client


@pytest.fixture
def make(lonely, monkeypatch):
    """Make sources whose calls of `watch` are recorded and not sent."""

    def make(scope=None, client=lonely, *, images=False, splits=False, asked=None, **options):
        spec = FeedSpec(
            ResourceAddress("shop", "orders"),
            scope=scope or EntireCollection(),
            options=MongoOptions(**options),
            **(asked or {}),
        )
        source = Source(client, spec, spec.address, images=images, splits=splits)
        source.noted = []

        class Target:
            def watch(self, stages, **settings):
                source.noted.append((stages, settings))
                return "stream"

        monkeypatch.setattr(source, "_target", Target)
        return source

    return make


def unwanted(stage):
    """Return the fields that a stage removes."""
    assert set(stage) == {"$project"}
    assert set(stage["$project"].values()) == {0}
    return set(stage["$project"])


def watched(source, place=None, **asked):
    """Return the stages and settings of one stream."""
    source.open(place or At(1), 100, 10, **asked)
    return source.noted[-1]


class TestStages:
    def test_what_happened_to_single_fields_is_left_away(self, make):
        (stage,) = make().pipeline()
        assert "updateDescription" in unwanted(stage)
        assert not unwanted(stage) & (KEPT | {"fullDocument"})

    def test_documents_that_nobody_wants_are_not_sent(self, make):
        (stage,) = make(asked=OMITTED).pipeline()
        assert "fullDocument" in unwanted(stage)
        assert not unwanted(stage) & KEPT
        (stage,) = make(asked=OMITTED, full_document="whenAvailable").pipeline()
        assert "fullDocument" not in unwanted(stage)

    @pytest.mark.parametrize("key", [None, {"a": 1, "b": [2]}, {"$gt": ""}], ids=repr)
    def test_a_key_is_matched_as_it_is_and_an_ending_always(self, make, key):
        stage = make(LogicalPartition(MulticloudDbKey({"_id": key}))).pipeline()[0]
        ending = {"operationType": {"$in": list(ENDINGS)}}
        assert stage == {"$match": {"$or": [{"documentKey._id": {"$eq": key}}, ending]}}

    def test_a_shard_key_is_matched_by_its_leading_parts(self, make):
        key = MulticloudDbKey({"country": "de", "customer": Decimal128("1.50").to_decimal(), "_id": 1}, 2)
        stage = make(LogicalPartition(key), pipeline=[{"$match": {}}]).pipeline()
        assert stage[0]["$match"]["$or"][0] == {
            "documentKey.country": {"$eq": "de"},
            "documentKey.customer": {"$eq": Decimal128("1.50")},
        }
        assert stage[1] == {"$match": {}}

    def test_and_by_one_that_is_nested(self, one, database, make):
        """With a nested shard key, the key in a change is `{"at.zip": 1}`: one name that contains a dot."""
        key = MulticloudDbKey({"country": "de", "at.zip": "$1", "_id": 1}, 2)
        stage = make(LogicalPartition(key)).pipeline()[0]
        kept = [
            {"_id": 1, "operationType": "insert", "documentKey": {"country": "de", "at.zip": "$1"}},
            {"_id": 2, "operationType": "drop"},
        ]
        others = [
            {"_id": 3, "operationType": "insert", "documentKey": {"country": "de", "at.zip": "$2"}},
            {"_id": 4, "operationType": "insert", "documentKey": {"country": "at", "at.zip": "$1"}},
            {"_id": 5, "operationType": "insert", "documentKey": {"country": "de"}},
        ]
        collection = one.client()[database]["changes"]
        collection.insert_many(kept + others)
        assert list(collection.aggregate([stage, {"$sort": {"_id": 1}}])) == kept

    def test_a_key_that_bson_has_not_is_refused(self, make):
        source = make(LogicalPartition(MulticloudDbKey({"_id": 2**70})))
        with pytest.raises(MulticloudDbError, match="64 bits"):
            source.pipeline()


class TestImages:
    @pytest.mark.parametrize(
        ("mode", "images", "expected"),
        [
            (NEW.OMIT, False, None),
            (NEW.OMIT, True, None),
            (NEW.INCLUDE_IF_AVAILABLE, False, "updateLookup"),
            (NEW.INCLUDE_IF_AVAILABLE, True, "whenAvailable"),
            (NEW.REQUIRE, True, "required"),
        ],
    )
    def test_where_a_new_document_comes_from(self, make, mode, images, expected):
        _, settings = watched(make(asked={"new_item_state_mode": mode}, images=images))
        assert settings["full_document"] == expected

    @pytest.mark.parametrize(
        ("mode", "expected"),
        [(OLD.OMIT, None), (OLD.INCLUDE_IF_AVAILABLE, "whenAvailable"), (OLD.REQUIRE, "required")],
    )
    def test_where_an_old_one_comes_from(self, make, mode, expected):
        _, settings = watched(make(asked={"old_item_state_mode": mode}))
        assert settings["full_document_before_change"] == expected

    @pytest.mark.parametrize("value", ["default", "nonsense", ""])
    def test_the_caller_s_word_comes_first(self, make, value):
        _, settings = watched(make(asked=OMITTED, full_document=value, full_document_before_change=value))
        assert (settings["full_document"], settings["full_document_before_change"]) == (value, value)

    def test_a_change_that_is_only_named_has_the_same_filter_and_no_document(self, make):
        """Without documents, the filter and options stay the same, because the filter may need documents."""
        source = make(asked=REQUIRED, pipeline=[{"$match": {"fullDocument.a": 1}}], splits=True)
        stages, settings = watched(source, slim=True)
        assert stages[0] == {"$match": {"fullDocument.a": 1}}
        assert "fullDocument" not in stages[-1]["$project"]
        assert stages[-1]["$project"]["_id"] == 1
        assert SPLIT not in stages
        assert settings["full_document"] == settings["full_document_before_change"] == "whenAvailable"


class TestWaiting:
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
    def test_it_is_shorter_than_what_the_driver_waits(self, make, limits, asked, sent):
        with MongoClient("mongodb://127.0.0.1:1/", connect=False, **limits) as client:
            source = make(client=client)
            source.open(At(1), 100, asked)
        assert source.noted[-1][1]["max_await_time_ms"] == sent


class Stubborn:
    """A stream that takes a long time to close."""

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
    def test_it_raises_nothing(self, error):
        stream = Stubborn(error=error)
        Closer().close(stream, reachable=True)
        assert stream.closed == 1

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
        monkeypatch.setattr("multiclouddb_mongo.pymongo_internals.time.monotonic", lambda: clock[0])

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


class TestRealServer:
    """Tests facts that only a real server can show."""

    @pytest.fixture
    def source(self, one, database):
        with MongoClient(one.uri(appName="stream")) as client:
            address = ResourceAddress(database, "c")
            one.client()[database].create_collection("c")
            yield Source(client, FeedSpec(address, options=MongoOptions()), address)

    def test_what_the_log_reaches(self, source):
        now = source.now()
        seconds = ticks_at(now) >> 32
        assert source.reaches(At(seconds, 1))
        assert source.reaches(At(seconds + 5, 1))
        assert source.reaches(At(0, 1))  # the oplog has never been truncated

    @pytest.mark.parametrize(("sharded", "longest"), [(False, 50), (True, 400)], ids=["members", "mongos"])
    def test_a_mongos_may_look_for_longer(self, one, here, app, sharded, longest):
        """A `mongos` gets a longer time limit than a member, because it must first ask the shards."""
        # If the time limit ended the command before the shards answer, the log would seem to contain
        # everything.
        commands = Commands()
        with MongoClient(one.uri(appName=app), event_listeners=[commands]) as client:
            spec = FeedSpec(here, options=MongoOptions())
            assert Source(client, spec, here, sharded=sharded).reaches(At(0, 1))
        assert [each["maxTimeMS"] for each in commands.bodies("aggregate")] == [longest]

    def test_the_member_that_sends_the_changes_is_asked(self, one, here, app):
        """The logs of two members may differ in length."""
        commands = Commands()
        uri = one.uri(appName=app, readPreference="secondaryPreferred")
        with MongoClient(uri, event_listeners=[commands]) as client:
            assert Source(client, FeedSpec(here, options=MongoOptions()), here).reaches(At(0, 1))
        (command,) = commands.bodies("aggregate")
        assert command["$readPreference"] == {"mode": "secondaryPreferred"}
