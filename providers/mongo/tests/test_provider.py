"""Tests the provider on a real server: starts, ends, positions, native clients, and closing."""

import functools
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from uuid import uuid4

import attrs
import pytest
from bson import SON, Timestamp
from bson.codec_options import TypeCodec, TypeRegistry
from bson.raw_bson import RawBSONDocument
from pymongo import IndexModel, MongoClient
from pymongo.database import Database
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo.server_api import ServerApi
from pymongo.synchronous.pool import Connection

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    EntireCluster,
    EntireDatabase,
    ErrorCategory,
    FeedEnded,
    FromContinuationToken,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    ResourceAddress,
    Snapshot,
    connect,
)
from multiclouddb_conformance.refusals import refusal as refused
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_mongo import MongoOptions, provider, snapshots
from multiclouddb_mongo.oplog import Log, LogBeginning
from multiclouddb_mongo.position import At
from multiclouddb_mongo.provider import PLUGIN
from multiclouddb_mongo.source import SPLIT
from multiclouddb_spi import Deadline, FeedSpec, ProviderFault

from .monitor import IMAGES, Feed, hanging, ids, in_scope, keys, native, patient, read, told, walk, watched
from .servers.mongod import fail_command

FOLLOW = MongoOptions(after_invalidate="follow")


class Room:
    """One database, which native clients write and the library's clients read."""

    def __init__(self, server, database, app):
        self.server, self.database = server, database
        self.native = server.client()[database]
        self.uri = server.uri(appName=app)
        self._clients = []

    def collection(self, name="c", **options):
        return self.native.create_collection(name, **options)

    def address(self, name="c"):
        return ResourceAddress(self.database, name)

    def client(self, **options):
        """Open another client, as after a restart."""
        client = connect(ClientConfig("mongo", {"url": self.uri}), **options)
        self._clients.append(client)
        return client

    def close(self):
        for client in self._clients:
            client.close()

    def cursors(self):
        now = {"$currentOp": {"allUsers": True, "idleCursors": True}}
        ours = {"$match": {"ns": {"$regex": f"^{self.database}\\."}}}
        found = [each.get("cursor", {}) for each in self.server.client().admin.aggregate([now, ours])]
        return [each for each in found if "$changeStream" in str(each.get("originatingCommand"))]


@pytest.fixture
def room(one, database, app):
    made = Room(one, database, app)
    yield made
    made.close()


def all_ids(client, address, place=None, size=0, **asked):
    return ids(*walk(client, address, place, size, **asked))


# -- Where a feed starts


class TestStarts:
    def test_without_a_look_at_the_log_it_is_searched_for(self, room, monkeypatch):
        monkeypatch.setattr(Log, "first_entry", lambda self: None)
        room.collection().insert_one({"_id": 1})
        assert all_ids(room.client(), room.address(), Beginning()) == [1]

    def test_a_beginning_that_runs_away_is_said_so(self, room, monkeypatch):
        room.collection()
        monkeypatch.setattr("multiclouddb_mongo.source.ReaderContext.has", lambda *_: False)
        act = lambda: read(room.client(), room.address())  # noqa: E731
        assert refused(ErrorCategory.TRANSIENT_FAILURE, act, "removes entries faster").retryable

    def test_a_native_start_replaces_only_now_and_is_not_far_ahead(self, room):
        room.collection()
        client = room.client()
        time_2026, for_ever = AtTime(datetime(2026, 1, 1, tzinfo=UTC)), Timestamp(2**32 - 1, 1)
        for value, start in [(Timestamp(1, 1), Beginning()), (Timestamp(1, 1), time_2026), (for_ever, Now())]:
            asked = {"provider_options": MongoOptions(start_at_operation_time=value)}
            act = functools.partial(read, client, room.address(), start, **asked)
            refused(ErrorCategory.INVALID_REQUEST, act, "MongoOptions.start_at_operation_time")


def test_a_start_at_a_time_has_what_stands_earlier_in_the_order(room, one):
    """A batch of inserts takes its places in the order, is written, and is stamped then."""
    collection = room.collection()
    collection.create_indexes([IndexModel([("a", 1), (f"f{number}", 1)]) for number in range(60)])
    log, admin, numbers = one.client().local["oplog.rs"], one.client().admin, itertools.count()

    def stamped_late():
        batch = next(numbers)
        documents = [{"_id": f"{batch}/{key}", "a": [*range(key, key + 20)]} for key in range(100)]
        with ThreadPoolExecutor(1) as pool:
            pool.submit(collection.insert_many, documents)
            for _ in range(10 * batch % 70):  # each time, the server stops at another moment of the batch
                admin.command("ping")
            with hanging(one):
                ends = time.monotonic() + 1.2
                wait_until(lambda: time.monotonic() > ends)
        entry = log.find_one({"ns": collection.full_name, "o._id": f"{batch}/99"})
        is_late = entry["wall"].timestamp() - entry["ts"].time > 1.1
        return (f"{batch}/99", entry["wall"]) if is_late else None

    key, moment = wait_until(stamped_late, 300.0)  # on a busy machine, the pause misses many batches
    assert key in ids(*walk(room.client(), room.address(), AtTime(moment)))


# -- Dropped, renamed and recreated resources


class TestRecreated:
    @pytest.mark.parametrize(
        ("start", "scope", "options"),
        [
            (Beginning, None, MongoOptions()),
            (AtTime, None, MongoOptions(allow_missing=True)),
            (Beginning, EntireDatabase(), MongoOptions()),
        ],
    )
    def test_what_had_the_name_before_the_start_is_no_end(self, room, start, scope, options):
        begin = Beginning() if start is Beginning else AtTime(datetime.now(UTC))
        asked = in_scope(scope, room.address()) | {"provider_options": options}
        room.collection().insert_one({"_id": 1})
        room.server.client().drop_database(room.database)
        room.collection().insert_one({"_id": 2})
        room.native["c"].drop()
        room.collection().insert_one({"_id": 3})
        for size in (0, 1):  # with a page a change, another process can continue from any page
            page, place, seen = None, begin, []
            while page is None or not page.idle:
                page = read(room.client(), place=place, size=size, **asked)
                assert FeedEnded not in told(page)
                seen += ids(page)
                place = page.continuation_token
            assert (size, seen) == (size, [1, 2, 3])

    def test_the_next_collection_may_keep_images(self, room):
        collection = room.collection()
        client = room.client()
        token = read(client, room.address(), Now(), provider_options=FOLLOW).continuation_token
        collection.drop()
        collection = room.collection(**IMAGES)
        collection.insert_one({"_id": 0, "n": 1})
        for number in (2, 3):
            collection.update_one({"_id": 0}, {"$set": {"n": number}})
        pages = list(walk(client, room.address(), token, provider_options=FOLLOW))
        # Without the images, each update has the document as it is now.
        assert [event.new_item_state["n"] for page in pages for event in page.events] == [1, 2, 3]

    def test_another_one_that_takes_its_name_refuses_its_token(self, room):
        collection, client = room.collection(), room.client()
        token = read(client, room.address(), Now()).continuation_token
        collection.insert_many([{"_id": number} for number in range(3)])
        room.native["other"].insert_one({"_id": 1})
        room.native["other"].rename("c", dropTarget=True)
        # The last changes of the earlier collection are returned without its end.
        page = read(client, room.address(), token)
        assert (ids(page), told(page), page.idle) == ([0, 1, 2], [], False)
        for _ in range(2):
            act = lambda: read(client, room.address(), page.continuation_token)  # noqa: E731
            refused(ErrorCategory.INVALID_REQUEST, act)


# -- Positions


class TestPositions:
    KEYS = (0.5, 1, 1.5, "a", None, -0.0, 7, True, 2**40, 2.0**60)

    def test_order_keys_sort_whatever_the_keys_are(self, room):
        """For keys of some types, a resume token contains a second field."""
        collection, client = room.collection(), room.client()
        token = read(client, room.address(), Now()).continuation_token
        for key in self.KEYS:
            collection.insert_one({"_id": key})
        found = [event for page in walk(client, room.address(), token, 3) for event in page.events]
        assert keys(found) == list(self.KEYS)
        names = [event.order_key for event in found]
        assert names == sorted(names)
        assert len({event.event_id for event in found}) == len(found)

    def test_a_key_may_be_long(self, room):
        collection = room.collection()
        token = read(room.client(), room.address(), Now()).continuation_token
        collection.insert_many([{"_id": "k" * 300_000}, {"_id": 2}])
        page = read(room.client(), room.address(), token, 1)
        assert [len(key) for key in ids(page)] == [300_000]
        assert all_ids(room.client(), room.address(), page.continuation_token) == [2]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (LogBeginning(At(100), whole=False), 100),
        (LogBeginning(At(100), whole=True), None),  # nothing was ever removed
        (LogBeginning(At(-100), whole=False), None),  # its times are of a clock that was ahead
        (None, None),
        (AutoReconnect("away"), None),
    ],
    ids=["cut", "whole", "behind", "no access", "failed"],
)
def test_the_headroom_is_the_time_since_the_log_s_beginning(room, monkeypatch, entry, expected):
    def first_entry(self):
        if isinstance(entry, Exception):
            raise entry
        return entry and attrs.evolve(entry, place=At(int(time.time()) - entry.place.seconds))

    room.collection()
    monkeypatch.setattr(Log, "first_entry", first_entry)
    found = read(room.client(), room.address(), Now()).diagnostics.retention_headroom_seconds
    assert found == expected if not expected else expected - 5 < found < expected + 30


@pytest.mark.parametrize(("code", "asks_again"), [(6, True), (13, False)], ids=["election", "no access"])
def test_only_who_may_not_look_at_the_log_gives_up(room, app, code, asks_again):
    room.collection()
    with closing(PLUGIN.connect(ClientConfig("mongo", {"url": room.uri}), None)) as provider:
        feed = provider.open_feed(FeedSpec(room.address(), options=MongoOptions()), Deadline.after(30))
        with fail_command(room.server, commands=["find"], app_name=app, times=2, errorCode=code):
            assert feed._log.first_entry() is None
        assert (feed._log.first_entry() is not None) is asks_again


@pytest.mark.parametrize("before", [0, 2])
def test_what_comes_before_a_missing_image_is_delivered_first(room, app, before):
    collection = room.collection()
    with watched(room.server.uri(appName=app)) as (client, commands):
        feed = Feed(client, room.address(), provider_options=MongoOptions(full_document="required"))
        feed.read()
        collection.insert_one({"_id": 0})
        assert keys(feed.events()) == [0]
        with room.server.client().start_session() as session, session.start_transaction():
            for number in range(before):
                collection.insert_one({"_id": 10 + number}, session=session)
            collection.update_one({"_id": 0}, {"$set": {"n": 1}}, session=session)
        commands.clear()
        if before:
            assert keys(feed.events(before)) == [10, 11]
        refused(ErrorCategory.UNSUPPORTED_CAPABILITY, feed.read, "image")
        if not before:
            assert len(commands.sent("aggregate")) == 1


# Behind a key of 3 MB there is another change: the server closes the connection without an answer.
@pytest.mark.parametrize(("size", "followed"), [(3_000_000, False), (4_250_000, True)])
def test_a_key_that_is_too_large_for_an_answer_can_be_stepped_over(room, size, followed):
    collection, address, key = room.collection(), room.address(), "x" * size
    client = room.client()
    start = read(client, address, Now()).continuation_token
    collection.insert_many([{"_id": 1}, {"_id": key}])
    if followed:
        collection.insert_one({"_id": 2})
    request = ChangeFeedRequest(address, FromContinuationToken(start))
    seen, skipped = [], 0
    for page in client.iterate_changes(request, on_poison="skip", until_idle=True).pages():
        seen += ids(page)
        skipped += len(page.notices)
        if not followed and skipped:
            collection.insert_one({"_id": 2})
            followed = True
    assert (seen, skipped) == ([1, 2], 1)
    if size > 4_000_000:
        error = refused(ErrorCategory.PROVIDER_ERROR, lambda: all_ids(client, address, start))
        assert error.detail.skip_token is not None
        assert key[:9] not in str(error)
        assert "its transaction or its batch of inserts" in str(error)  # the same time has both since 8.0
        without = {"new_item_state_mode": NewItemStateMode.OMIT}
        assert all_ids(client, address, start, **without) == [1, key, 2]


# -- Streams that stay open


class TestStreams:
    def test_an_idle_feed_is_asked_little(self, room):
        room.collection()
        with watched(room.server.uri(serverMonitoringMode="auto")) as (client, commands):
            page = read(client, room.address(), Now())
            commands.clear()
            for _ in range(2):
                page = read(client, room.address(), page.continuation_token, wait=1.5)
            assert len(commands.sent("getMore")) <= 10
            assert len(commands.opening()) <= 1
            assert not commands.sent("hello")
            for _ in range(10):
                page = read(client, room.address(), page.continuation_token)
            assert len(commands.opening()) <= 2

    def test_a_long_look_at_the_log_is_not_begun_anew(self, room, app):
        """A scan of the whole oplog, which a filter may need, continues from call to call."""
        # If a call ends before the scan, the next call does not restart the scan.
        collection = room.collection()
        scope = {"scope": LogicalPartition(MulticloudDbKey({"_id": 1}))}
        with watched(room.uri) as (client, commands):
            token = read(client, room.address(), Now(), **scope).continuation_token
            collection.insert_many([{"_id": number} for number in range(3)])
            commands.clear()
            seen, late = [], 0
            slow = {"blockConnection": True, "blockTimeMS": 2000}
            with fail_command(room.server, commands=["getMore"], app_name=app, **slow):
                while not seen:
                    try:
                        seen = ids(read(client, room.address(), token, timeout=0.1, **scope))
                    except MulticloudDbError as error:
                        late += error.category == ErrorCategory.TRANSIENT_FAILURE
            assert seen == [1]
            assert late >= 2
            assert len(commands.sent("getMore")) <= 2
            assert not commands.opening()

    def test_nothing_is_opened_any_more_once_it_is_closed(self, room):
        # The application's client stays open, so a late stream would stay open too.
        room.collection()
        deadline = Deadline.after(30)
        with MongoClient(room.uri) as own:
            provider = PLUGIN.connect(ClientConfig("mongo", {}), own)
            feed = provider.open_feed(FeedSpec(room.address(), options=MongoOptions()), deadline)
            (seed,) = feed.start(Now(), None, deadline)
            provider.close()
            with pytest.raises(ProviderFault, match="closed"):
                feed.open(seed.partition_id, seed.cursor).fetch(1, 1, 0.0, deadline)
            for start in (Now(), AtTime(datetime.now(UTC))):
                with pytest.raises(ProviderFault, match="closed"):
                    feed.start(start, None, deadline)
            assert not room.cursors()

    def test_closing_beside_a_server_that_hangs_says_nothing(self, room, caplog):
        # Without the provider, PyMongo would print a traceback for each cursor if logging is not set up.
        client = room.client()
        for number in range(3):
            room.collection(f"c{number}")
            read(client, room.address(f"c{number}"), Now())
        with hanging(room.server):
            client.close()
        assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("wire", "version", "splits"),
    [(21, None, True), (20, None, False), (17, [6, 0, 9], True), (17, [6, 0, 8], False)],
)
def test_a_server_that_splits_large_events_is_told_to(room, monkeypatch, wire, version, splits):
    original, told = Database.command, {"hello": {"maxWireVersion": wire}}
    told["buildinfo"] = {"versionArray": version}

    def run(database, what, *arguments, **named):
        answer = original(database, what, *arguments, **named)
        return answer | told[str(what)] if str(what) in told else answer

    monkeypatch.setattr(Database, "command", run)
    room.collection()
    with watched(room.uri) as (client, commands):
        assert read(client, room.address(), Now()).idle  # this server does not know the stage
        stages = commands.opening()[0].command["pipeline"]
    assert ({"$changeStreamSplitLargeEvent": {}} in stages) is splits


@pytest.fixture
def late(monkeypatch):
    """Let this server count as one that splits large events, as servers that report a later version do."""
    monkeypatch.setattr(provider, "_WIRE_OF_7_0", 17)


class TestRefused:
    @pytest.mark.parametrize(
        ("code", "text"),
        [
            (None, ""),  # the server's own refusal
            (8000, "$changeStreamSplitLargeEvent is not allowed in this atlas tier"),
            (303, "Aggregation stage not supported: '$changeStreamSplitLargeEvent'"),
            (40324, "a text without a name"),
        ],
    )
    def test_a_stage_is_left_out_and_this_is_said_once(self, room, late, monkeypatch, caplog, code, text):
        original = Connection.command

        def command(connection, database, spec, *arguments, **named):
            if code is not None and SPLIT in str(dict(spec).get("pipeline")):
                raise OperationFailure(text, code, {"ok": 0, "errmsg": text, "code": code})
            return original(connection, database, spec, *arguments, **named)

        monkeypatch.setattr(Connection, "command", command)
        room.collection().insert_many([{"_id": number} for number in range(5)])
        with watched(room.uri) as (client, commands):
            for start in (Beginning(), Snapshot()):
                assert len(ids(*walk(client, room.address(), start))) == 5
            assert read(client, room.address(), Now()).idle
        assert len([each for each in caplog.messages if "larger than 16 MB" in each]) == 1
        with_stage = [each for each in commands.opening() if SPLIT in str(each.command["pipeline"])]
        assert len(with_stage) == (1 if code is None else 0)

    def test_another_refusal_is_told_as_it_is(self, room, late, caplog):
        room.collection()
        with connect(room.uri) as client:
            options = MongoOptions(pipeline=[{"$noStage": {}}])
            act = functools.partial(read, client, room.address(), Now(), provider_options=options)
            refused(ErrorCategory.INVALID_REQUEST, act, "noStage")
            assert "16 MB" not in caplog.text
            assert read(client, room.address(), Now()).idle

    def test_the_strict_stable_api_has_fewer_options(self, room, caplog, monkeypatch):
        monkeypatch.setattr(snapshots, "_LEAST_WIDTH", 5)
        room.collection().insert_many([{"_id": number} for number in range(40)])
        api = ServerApi("1", strict=True, deprecation_errors=True)
        expanded = {"provider_options": MongoOptions(show_expanded_events=True)}
        with native(room.uri, server_api=api) as found:
            rows = ids(*walk(found.client, room.address(), Snapshot(segments=4)))
            assert sorted(rows) == list(range(40))
            changes = ids(*walk(found.client, room.address(), Beginning(), **expanded))
            assert sorted(changes) == list(range(40))
        said = [each for each in caplog.messages if "the server refuses" in each]
        assert [each.split(" refuses ")[1].split(" ")[0] for each in said] == ["min", "showExpandedEvents"]


# -- The library's clients and the application's clients


class Shout(TypeCodec):
    python_type, bson_type = bytearray, str

    def transform_python(self, value):
        return value.decode()

    def transform_bson(self, value):
        return bytearray(value.upper(), "utf-8")


ODD = {
    "SON": {"document_class": SON},
    "raw documents": {"document_class": RawBSONDocument},
    "naive dates": {"tz_aware": False},
    "own types": {"type_registry": TypeRegistry([Shout()])},
    "old UUIDs": {"uuidRepresentation": "javaLegacy"},
    "no retries": {"retryReads": False},
    "local reads": {"readConcernLevel": "local"},
    "linearizable reads": {"readConcernLevel": "linearizable"},
    "one connection": {"maxPoolSize": 1},
    "other nodes": {"readPreference": "secondaryPreferred"},
    "damaged text ignored": {"unicode_decode_error_handler": "ignore"},
    "short calls": {"timeoutMS": 2000},
    "a short socket": {"socketTimeoutMS": 400},
    "a stable API": {"server_api": ServerApi("1", strict=True)},
    "dates as numbers": {"datetime_conversion": "DATETIME_MS"},
}


class TestNativeClient:
    @pytest.mark.parametrize("options", ODD.values(), ids=ODD)
    def test_it_may_be_set_up_for_anything(self, room, options):
        collection = room.collection()
        noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
        with native(room.uri, **options) as found:
            for scope in (None, EntireDatabase(), EntireCluster()):
                asked = {"client": found.client, **in_scope(scope, room.address())}
                token = patient(lambda asked=asked: read(place=Now(), **asked)).continuation_token
                key = uuid4()
                collection.insert_one({"_id": key, "at": noon, "text": "text"})
                asked |= {"place": token, "wait": 0 if scope else 0.6}
                pages = patient(lambda asked=asked: list(walk(**asked)))
                seen = [event for page in pages for event in page.events]
                (event,) = [each for each in seen if each.address == room.address()]
                assert event.key == MulticloudDbKey({"_id": key})
                assert event.new_item_state == {"_id": key, "at": noon, "text": "text"}
            # The application owns the client, so the library does not close it.
            found.client.close()
            assert found.own.admin.command("ping")["ok"] == 1

    @pytest.mark.parametrize("value", ["mongodb://localhost", 7, object()])
    def test_it_is_pymongo_s(self, value):
        with pytest.raises(MulticloudDbError, match=r"pymongo\.MongoClient") as caught:
            connect("mongodb://127.0.0.1/", native_client=value)
        assert caught.value.category == ErrorCategory.INVALID_REQUEST

    def test_the_database_of_the_connection_string_is_used(self, room):
        room.collection().insert_one({"_id": 1})
        uri = room.uri.replace("/?", f"/{room.database}?")
        with connect(ClientConfig("mongo", {"url": uri})) as client:
            event = read(client, ResourceAddress(collection="c")).events[0]
            assert event.address.collection == "c"
            # The same feed with its full name needs another token.
            assert all_ids(client, room.address()) == [1]

    def test_without_one_it_has_to_be_named(self, room):
        client = room.client()
        act = lambda: read(client, ResourceAddress(collection="c"))  # noqa: E731
        refused(ErrorCategory.INVALID_REQUEST, act, "ChangeFeedRequest.address", "mongodb://HOST/DATABASE")


class TestImages:
    @pytest.mark.parametrize("mode", [NewItemStateMode.REQUIRE, OldItemStateMode.REQUIRE], ids=repr)
    def test_what_a_collection_does_not_keep_is_refused_up_front(self, room, mode):
        room.collection()
        name = "new_item_state_mode" if isinstance(mode, NewItemStateMode) else "old_item_state_mode"
        act = lambda: read(room.client(), room.address(), Now(), **{name: mode})  # noqa: E731
        refused(ErrorCategory.UNSUPPORTED_CAPABILITY, act, name, "changeStreamPreAndPostImages", "collMod")

    def test_a_change_from_before_they_were_kept_is_named_and_can_be_read_without(self, room):
        collection = room.collection()
        token = read(room.client(), room.address(), Now()).continuation_token
        collection.insert_one({"_id": 1})
        collection.update_one({"_id": 1}, {"$set": {"n": 1}})
        room.native.command({"collMod": "c", **IMAGES})
        collection.update_one({"_id": 1}, {"$set": {"n": 2}})
        client = room.client()
        require = {"new_item_state_mode": NewItemStateMode.REQUIRE}
        page = read(client, room.address(), token, **require)
        assert ids(page) == [1]
        for _ in range(2):
            act = lambda: read(client, room.address(), page.continuation_token, **require)  # noqa: E731
            refused(ErrorCategory.UNSUPPORTED_CAPABILITY, act, "INCLUDE_IF_AVAILABLE")
        for without in ({}, {"new_item_state_mode": NewItemStateMode.OMIT}):
            assert all_ids(client, room.address(), page.continuation_token, **without) == [1, 1]


def test_commands_of_a_feed_are_few(room):
    """Opening a feed opens a stream and asks for the collection, what the server is, and the oplog's end."""
    room.collection()
    with watched(room.server.uri(serverMonitoringMode="auto")) as (client, commands):
        read(client, room.address(), Now())
    names = [name for name in commands.names() if name not in ("killCursors", "endSessions", "find")]
    assert len(names) <= 10, names
