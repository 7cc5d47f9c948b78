"""Tests the provider on a real server: starts, ends, positions, native clients, and closing."""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import attrs
import pytest
from bson import SON, Timestamp
from bson.codec_options import TypeCodec, TypeRegistry
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.errors import AutoReconnect
from pymongo.server_api import ServerApi

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    Dropped,
    EntireCluster,
    EntireDatabase,
    ErrorCategory,
    FeedEnded,
    FromContinuationToken,
    Invalidated,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    OperationOptions,
    Renamed,
    ResourceAddress,
    connect,
)
from multiclouddb_conformance.refusals import refusal as refused
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_mongo import MongoOptions
from multiclouddb_mongo.position import At
from multiclouddb_mongo.provider import PLUGIN
from multiclouddb_mongo.source import Entry, Log
from multiclouddb_spi import Deadline, Ended, FeedSpec, ProviderFault, Range, read_range

from .monitor import Commands, Feed, keys, patient, watched
from .native import hanging, native
from .servers.failpoint import fail_command

NAMES = itertools.count()
MANY_PAGES = 500
FOLLOW = MongoOptions(after_invalidate="follow")


@pytest.fixture
def app():
    return f"provider-{next(NAMES)}"


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
        """Return the change streams that clients of this test have open on the server."""
        now = {"$currentOp": {"allUsers": True, "idleCursors": True}}
        found = self.server.client().admin.aggregate(
            [now, {"$match": {"ns": {"$regex": f"^{self.database}\\."}}}]
        )
        return [
            each for each in found if "$changeStream" in str(each.get("cursor", {}).get("originatingCommand"))
        ]


@pytest.fixture
def room(one, database, app):
    made = Room(one, database, app)
    yield made
    made.close()


def read(client, address, place=None, size=0, *, timeout=30.0, wait=0.0, **asked):
    """Read one page; a text is used as a token."""
    start = FromContinuationToken(place) if isinstance(place, str) else place or Beginning()
    request = ChangeFeedRequest(address, start, max_page_size=size, **asked)
    return client.read_changes(request, OperationOptions(timeout, wait))


def walk(client, address, place=None, size=0, **asked):
    """Return the pages up to the first idle page."""
    for _ in range(MANY_PAGES):
        page = read(client, address, place, size, **asked)
        yield page
        if page.idle:
            return
        place = page.continuation_token
    pytest.fail("not idle")


def ids(*pages):
    return [event.key.components["_id"] for page in pages for event in page.events]


def all_ids(client, address, place=None, size=0, **asked):
    return ids(*walk(client, address, place, size, **asked))


def told(*pages):
    return [type(notice) for page in pages for notice in page.notices]


# -- Where a feed starts


class TestStarts:
    def test_at_a_time_is_early_by_less_than_a_second_and_never_late(self, room):
        collection = room.collection()
        collection.insert_one({"_id": "long ago"})
        numbers = itertools.count()

        def in_a_second():
            """Return a change and a later time in the same second, or None if the machine was too slow."""
            # Do not write directly after the start of a second, because a change may then get a late
            # timestamp.
            time.sleep(1.15 - time.time() % 1)
            now, number = datetime.now(UTC), next(numbers)
            moment = now + timedelta(milliseconds=300)
            collection.insert_one({"_id": number})
            same = int(now.timestamp()) == int(moment.timestamp()) == int(time.time())
            return (number, moment) if same else None

        number, moment = wait_until(in_a_second)
        wait_until(lambda: datetime.now(UTC) > moment)
        collection.insert_one({"_id": "after"})
        assert all_ids(room.client(), room.address(), AtTime(moment)) == [number, "after"]

    def test_without_a_look_at_the_log_it_is_searched_for(self, room, monkeypatch):
        monkeypatch.setattr(Log, "first_entry", lambda self: None)
        room.collection().insert_one({"_id": 1})
        assert all_ids(room.client(), room.address(), Beginning()) == [1]

    def test_before_the_log_there_is_nothing(self, room, monkeypatch):
        room.collection()
        monkeypatch.setattr("multiclouddb_mongo.source.Source.reaches", lambda self, place: False)
        act = AtTime(datetime(2020, 1, 1, tzinfo=UTC))
        client = room.client()
        refused(ErrorCategory.CHECKPOINT_EXPIRED, lambda: read(client, room.address(), act), "2020")

    def test_a_beginning_that_runs_away_is_said_so(self, room, monkeypatch):
        room.collection()
        monkeypatch.setattr("multiclouddb_mongo.source.Source.reaches", lambda self, place: False)
        client = room.client()
        error = refused(
            ErrorCategory.TRANSIENT_FAILURE, lambda: read(client, room.address()), "removes entries faster"
        )
        assert error.retryable

    @pytest.mark.parametrize("name", ["resume_after", "start_after", "start_at_operation_time"])
    def test_a_native_one_replaces_now_and_nothing_else(self, room, name):
        collection = room.collection()
        with collection.watch(batch_size=0) as stream:
            collection.insert_one({"_id": 1})
            change = stream.next()
        value = change["clusterTime"] if name == "start_at_operation_time" else change["_id"]
        collection.insert_one({"_id": 2})
        asked = {"provider_options": MongoOptions(**{name: value})}
        client = room.client()
        page = read(client, room.address(), Now(), **asked)
        assert ids(page) == ([1, 2] if name == "start_at_operation_time" else [2])
        collection.insert_one({"_id": 3})
        assert all_ids(client, room.address(), page.continuation_token, **asked) == [3]
        for start in (Beginning(), AtTime(datetime.now(UTC))):
            refused(
                ErrorCategory.INVALID_REQUEST,
                lambda start=start: read(client, room.address(), start, **asked),
                f"MongoOptions.{name}",
                "Now()",
            )

    def test_a_native_time_far_ahead_would_be_silent_for_ever(self, room):
        room.collection()
        client = room.client()
        options = MongoOptions(start_at_operation_time=Timestamp(2**32 - 1, 1))
        refused(
            ErrorCategory.INVALID_REQUEST,
            lambda: read(client, room.address(), Now(), provider_options=options),
            "start_at_operation_time",
        )


# -- Dropped, renamed and recreated resources


class TestRecreated:
    def ended(self, room, client, **asked):
        """Return a feed that a client has read to its end. Then the collection was created again."""
        collection = room.collection()
        page = read(client, room.address(), Now(), **asked)
        collection.insert_one({"_id": "old"})
        collection.drop()
        pages = list(walk(client, room.address(), page.continuation_token, **asked))
        assert ids(*pages) == ["old"]
        room.collection().insert_one({"_id": "new"})
        return pages

    def test_the_same_client_starts_on_the_new_one(self, room):
        client = room.client()
        self.ended(room, client)
        page = read(client, room.address(), Now())
        room.native["c"].insert_one({"_id": "newer"})
        # A client that has the token continues with the new collection.
        assert all_ids(room.client(), room.address(), page.continuation_token) == ["newer"]
        assert all_ids(client, room.address(), Beginning())[-2:] == ["new", "newer"]

    @pytest.mark.parametrize("start", ["Beginning", "AtTime"])
    @pytest.mark.parametrize(
        "asked", [{}, {"provider_options": MongoOptions(allow_missing=True)}, None], ids=str
    )
    def test_what_had_the_name_before_the_start_is_no_end(self, room, start, asked):
        moment = datetime.now(UTC)
        asked = {"scope": EntireDatabase()} if asked is None else asked
        address = ResourceAddress(database=room.database) if "scope" in asked else room.address()
        room.collection().insert_one({"_id": 1})
        room.server.client().drop_database(room.database)
        room.collection().insert_one({"_id": 2})
        room.native["c"].drop()
        room.collection().insert_one({"_id": 3})
        place = Beginning() if start == "Beginning" else AtTime(moment)
        pages = list(walk(room.client(), address, place, **asked))
        assert ids(*pages) == [1, 2, 3]
        assert FeedEnded not in told(*pages)
        # Another process can continue from any page.
        token, seen = place, []
        for _ in range(20):
            page = read(room.client(), address, token, 1, **asked)
            seen += ids(page)
            token = page.continuation_token
            if page.idle:
                break
        assert seen == [1, 2, 3]

    def test_nor_is_it_behind_a_gap(self, room):
        """After SkipToOldest, the oplog may still contain the end of an earlier collection."""
        # The feed does not report it.
        room.collection().insert_one({"_id": 1})
        room.native["c"].drop()
        room.collection().insert_one({"_id": 2})
        provider = PLUGIN.connect(ClientConfig("mongo", {"url": room.uri}), None)
        try:
            deadline = Deadline.after(30)
            feed = provider.open_feed(FeedSpec(room.address(), options=MongoOptions()), deadline)
            asked = {"0": feed.start(Now(), None, deadline)[0].cursor}
            survey = feed.survey(asked, deadline, expired={"0"})
            (part,) = survey.present
            assert not survey.gone
            with closing(feed.open("0", part.oldest)) as reader:
                seen = []
                while 2 not in seen:
                    batch = reader.fetch(100, 1 << 20, 0.0, deadline)
                    assert not isinstance(batch.outcome, Ended)
                    seen += [event.key.components["_id"] for event in batch.events(0, len(batch))]
        finally:
            provider.close()

    def test_a_page_that_goes_on_behind_an_end_is_not_idle(self, room):
        collection = room.collection()
        client = room.client()
        token = read(client, room.address(), Now(), provider_options=FOLLOW).continuation_token
        collection.drop()
        room.collection().insert_many([{"_id": number} for number in range(3)])
        pages = list(walk(client, room.address(), token, provider_options=FOLLOW))
        assert ids(*pages) == [0, 1, 2]
        assert told(*pages) == [Dropped, Invalidated]
        assert all(page.idle is False for page in pages[:-1])

    def test_the_next_collection_may_keep_images(self, room):
        collection = room.collection()
        client = room.client()
        token = read(client, room.address(), Now(), provider_options=FOLLOW).continuation_token
        collection.drop()
        collection = room.collection(changeStreamPreAndPostImages={"enabled": True})
        collection.insert_one({"_id": 0, "n": 1})
        for number in (2, 3):
            collection.update_one({"_id": 0}, {"$set": {"n": number}})
        pages = list(walk(client, room.address(), token, provider_options=FOLLOW))
        # Without the images, each update has the document as it is now.
        assert [event.new_item_state["n"] for page in pages for event in page.events] == [1, 2, 3]

    def test_renamed_away_and_back_is_an_end(self, room):
        """This feed does not contain changes that were made while the collection had another name."""
        collection = room.collection()
        client = room.client()
        token = read(client, room.address(), Now()).continuation_token
        collection.rename("away")
        room.native["away"].insert_one({"_id": "unseen"})
        room.native["away"].rename("c")
        pages = list(walk(client, room.address(), token))
        assert told(*pages) == [Renamed, Invalidated, FeedEnded]

    @pytest.mark.parametrize("renamed", [False, True])
    @pytest.mark.parametrize("unread", [0, 3])
    def test_another_one_of_its_name_refuses_the_first_read(self, room, unread, renamed):
        collection = room.collection()
        client = room.client()
        token = read(client, room.address(), Now()).continuation_token
        for number in range(unread):
            collection.insert_one({"_id": number})
        if renamed:
            room.native["other"].insert_one({"_id": 1})
            room.native["other"].rename("c", dropTarget=True)
        else:
            collection.drop()
            room.collection()
        for _ in range(2):
            refused(ErrorCategory.INVALID_REQUEST, lambda: read(client, room.address(), token))

    def test_a_fresh_client_reads_what_was_left_when_it_was_dropped(self, room):
        collection = room.collection()
        token = read(room.client(), room.address(), Now()).continuation_token
        collection.insert_many([{"_id": number} for number in range(5)])
        collection.drop()
        pages = list(walk(room.client(), room.address(), token, 2))
        assert ids(*pages) == list(range(5))
        assert told(*pages) == [Dropped, Invalidated, FeedEnded]
        assert told(read(room.client(), room.address(), pages[-1].continuation_token)) == [FeedEnded]

    def test_or_waited_for(self, room):
        asked = {"provider_options": MongoOptions(allow_missing=True)}
        client = room.client()
        token = read(client, room.address(), Now(), **asked).continuation_token
        room.native["c"].insert_one({"_id": 1})
        assert all_ids(client, room.address(), token, **asked) == [1]


# -- Positions


class TestPositions:
    KEYS = (0.5, 1, 1.5, "a", None, -0.0, 7, True, 2**40, 2.0**60)

    def test_order_keys_sort_whatever_the_keys_are(self, room):
        """For keys of some types, a resume token contains a second field."""
        collection = room.collection()
        client = room.client()
        token = read(client, room.address(), Now()).continuation_token
        for key in self.KEYS:
            collection.insert_one({"_id": key})
        found = [event for page in walk(client, room.address(), token, 3) for event in page.events]
        assert [event.key.components["_id"] for event in found] == list(self.KEYS)
        names = [event.order_key for event in found]
        assert names == sorted(names)
        assert len({event.event_id for event in found}) == len(found)

    @pytest.mark.parametrize("length", [10, 40_000, 300_000])
    def test_a_key_may_be_long(self, room, length):
        collection = room.collection()
        token = read(room.client(), room.address(), Now()).continuation_token
        collection.insert_one({"_id": "k" * length})
        collection.insert_one({"_id": 2})
        page = read(room.client(), room.address(), token, 1)
        assert [len(key) for key in ids(page)] == [length]
        assert all_ids(room.client(), room.address(), page.continuation_token) == [2]


class TestRanges:
    """The range between two positions always gives the same events, even during writes."""

    @pytest.fixture
    def world(self, room):
        room.collection()
        provider = PLUGIN.connect(ClientConfig("mongo", {"url": room.uri}), None)
        yield room, provider
        provider.close()

    def feed(self, room, provider, options=None):
        spec = FeedSpec(room.address(), options=options or MongoOptions())
        return provider.open_feed(spec, Deadline.after(30))

    def now(self, feed):
        (seed,) = feed.start(Now(), None, Deadline.after(30))
        return seed.cursor

    def read(self, provider, feed, start, until):
        batches = read_range(provider, feed, Range("0", start, until))
        return [event.key.components["_id"] for batch in batches for event in batch.events(0, len(batch))]

    def test_up_to_each_change(self, world):
        room, provider = world
        feed = self.feed(room, provider)
        start, keys = self.now(feed), [0.5, 1, 2.5, "x", 7.25]
        for key in keys:
            room.native["c"].insert_one({"_id": key})
        batch = feed.open("0", start).fetch(100, 1 << 20, 0.0, Deadline.after(30))
        ends = [batch.cursor_after(count) for count in range(1, len(keys) + 1)]
        room.native["c"].insert_one({"_id": "later"})
        for a, b in itertools.combinations(range(len(keys) + 1), 2):
            assert self.read(provider, feed, [start, *ends][a], ends[b - 1]) == keys[a:b]

    def test_up_to_behind_an_end(self, world):
        room, provider = world
        feed = self.feed(room, provider, FOLLOW)
        start = self.now(feed)
        room.native["c"].insert_one({"_id": 1})
        room.native["c"].drop()
        middle = self.now(self.feed(room, provider, MongoOptions(allow_missing=True)))
        room.collection().insert_one({"_id": 2})
        until = self.now(self.feed(room, provider, FOLLOW))
        assert self.read(provider, feed, start, until) == [1, 2]
        assert self.read(provider, feed, start, middle) == [1]
        assert self.read(provider, feed, middle, until) == [2]


class TestHeadroom:
    def headroom(self, room, monkeypatch, entry):
        asked = []

        def first_entry(self):
            asked.append(1)
            if isinstance(entry, Exception):
                raise entry
            return entry

        room.collection().insert_one({"_id": 1})
        client = room.client()
        token = read(client, room.address(), Now()).continuation_token
        monkeypatch.setattr(Log, "first_entry", first_entry)
        monkeypatch.setattr("multiclouddb_mongo.feed._LOG_SECONDS", 30.0)
        pages = []
        for _ in range(3):
            fresh = room.client()
            pages.append(read(fresh, room.address(), token))
        return [page.diagnostics.retention_headroom_seconds for page in pages], asked

    def test_it_is_the_time_between_the_log_s_beginning_and_here(self, room, monkeypatch):
        oldest = At(int(time.time()) - 100)
        seconds, asked = self.headroom(room, monkeypatch, Entry(oldest, whole=False))
        assert all(95 < found < 130 for found in seconds)
        assert len(asked) == 3

    def test_a_log_that_has_never_been_cut_has_no_end_in_sight(self, room, monkeypatch):
        seconds, _ = self.headroom(room, monkeypatch, Entry(At(int(time.time()) - 100), whole=True))
        assert seconds == [None] * 3

    @pytest.mark.parametrize("entry", [None, AutoReconnect("away")], ids=["no access", "failed"])
    def test_it_costs_a_figure_and_no_page(self, room, monkeypatch, entry):
        seconds, _ = self.headroom(room, monkeypatch, entry)
        assert seconds == [None] * 3

    @pytest.mark.parametrize(("code", "asks_again"), [(6, True), (13, False)], ids=["election", "no access"])
    def test_only_who_may_not_look_gives_up(self, room, app, code, asks_again):
        room.collection()
        with closing(PLUGIN.connect(ClientConfig("mongo", {"url": room.uri}), None)) as provider:
            feed = provider.open_feed(FeedSpec(room.address(), options=MongoOptions()), Deadline.after(30))
            with fail_command(room.server, commands=["find"], app_name=app, times=2, errorCode=code):
                assert feed._log.first_entry() is None
            assert (feed._log.first_entry() is not None) is asks_again

    def test_behind_its_beginning_it_is_none_at_all(self, room, monkeypatch):
        seconds, _ = self.headroom(room, monkeypatch, Entry(At(int(time.time()) + 100), whole=False))
        assert seconds == [0.0] * 3


# -- Streams that stay open


class TestStreams:
    def test_a_hundred_pages_by_token_cost_one(self, room):
        collection = room.collection()
        with watched(room.uri) as (client, commands):
            token = read(client, room.address(), Now()).continuation_token
            collection.insert_many([{"_id": number} for number in range(200)])
            commands.clear()
            assert all_ids(client, room.address(), token, 2) == list(range(200))
            assert len(commands.opening()) == 0
            assert len(room.cursors()) == 1
        wait_until(lambda: not room.cursors())

    def test_an_idle_feed_is_asked_little(self, room):
        room.collection()
        with watched(room.uri) as (client, commands):
            page = read(client, room.address(), Now())
            commands.clear()
            for _ in range(2):
                page = read(client, room.address(), page.continuation_token, wait=1.5)
            assert len(commands.sent("getMore")) <= 10
            assert len(commands.opening()) <= 1
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

    def test_a_client_that_is_closed_in_the_middle_loses_nothing(self, room):
        collection = room.collection()
        client = room.client()
        token = read(client, room.address(), Now()).continuation_token
        collection.insert_many([{"_id": number} for number in range(3000)])
        seen = []
        timer = threading.Timer(0.03, client.close)
        timer.start()
        try:
            while len(seen) < 3000:
                page = read(client, room.address(), token, 3)
                seen += ids(page)
                token = page.continuation_token
        except MulticloudDbError:
            pass
        timer.join()
        assert seen + all_ids(room.client(), room.address(), token, 1000) == list(range(3000))

    @pytest.mark.parametrize("pool", [1, 100])
    def test_closing_ends_long_polls_in_a_second_and_leaves_nothing(self, room, pool):
        for number in range(3):
            room.collection(f"c{number}")
        uri = room.server.uri(appName="closing", maxPoolSize=pool)
        client = connect(ClientConfig("mongo", {"url": uri}))
        tokens = [read(client, room.address(f"c{number}"), Now()).continuation_token for number in range(3)]

        def poll(number):
            try:
                read(client, room.address(f"c{number}"), tokens[number], wait=20)
            except MulticloudDbError as error:
                return error.category
            return None

        with ThreadPoolExecutor(3) as threads:
            polls = [threads.submit(poll, number) for number in range(3)]
            wait_until(lambda: len(room.cursors()) == 3)
            began = time.monotonic()
            client.close()
            assert time.monotonic() - began < 10  # out of 20 polls; the conformance suite is stricter
            assert [each.result(10) for each in polls] == [ErrorCategory.TRANSIENT_FAILURE] * 3
        if pool > 1:  # with one connection, a poll may delay the command that would end the other polls
            wait_until(lambda: not room.cursors())

    def test_nothing_is_opened_any_more_once_it_is_closed(self, room):
        """After `close`, no more streams are opened."""
        # The application's client stays open, so a late stream would stay open too.
        room.collection()
        deadline = Deadline.after(30)
        with MongoClient(room.uri) as own:
            provider = PLUGIN.connect(ClientConfig("mongo", {}), own)
            feed = provider.open_feed(FeedSpec(room.address(), options=MongoOptions()), deadline)
            (seed,) = feed.start(Now(), None, deadline)
            provider.close()
            reader = feed.open(seed.partition_id, seed.cursor)
            for late in (
                lambda: reader.fetch(1, 1, 0.0, deadline),
                lambda: feed.start(Now(), None, deadline),
                lambda: feed.start(AtTime(datetime.now(UTC)), None, deadline),
            ):
                with pytest.raises(ProviderFault, match="closed"):
                    late()
            assert not room.cursors()

    def test_closing_beside_a_server_that_hangs_says_nothing(self, room, caplog):
        """No traceback is logged."""
        # Without the provider, PyMongo would print a traceback for each cursor if logging is not set up.
        client = room.client()
        for number in range(3):
            room.collection(f"c{number}")
            read(client, room.address(f"c{number}"), Now())
        with hanging(room.server):
            client.close()
        assert "Traceback" not in caplog.text


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


class TestDifferences:
    """Tests what a runner of the unified tests counts differently for PyMongo alone."""

    # The reasons are at the end of docs/reference/mongodb-conformance.md.

    @pytest.mark.parametrize("before", [0, 2])
    def test_a_missing_image_costs_one_more_stream_which_delivers_what_comes_before(self, room, app, before):
        collection = room.collection()
        with watched(room.server.uri(appName=app)) as (client, commands):
            feed = Feed(client, room.address(), provider_options=MongoOptions(full_document="required"))
            feed.read()
            collection.insert_many([{"_id": number} for number in range(3)])
            assert ids(feed.read()) == [0, 1, 2]
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


class TestLargeKey:
    """Tests keys that the server accepts, but cannot send in a change."""

    # Behind a key of 3 MB there is another change: the server closes the connection without an answer.
    @pytest.mark.parametrize(
        ("size", "followed"), [(3_000_000, False), (4_250_000, True), (4_250_000, False)]
    )
    def test_a_key_that_is_too_large_can_be_stepped_over(self, one, database, size, followed):
        native = one.client()[database]
        native["c"].insert_one({"_id": 0})
        address = ResourceAddress(database, "c")
        with connect(ClientConfig("mongo", {"url": one.uri()})) as client:
            start = client.read_changes(ChangeFeedRequest(address, Now())).continuation_token
            native["c"].insert_many([{"_id": 1}, {"_id": "x" * size}])
            if followed:
                native["c"].insert_one({"_id": 2})
            request = ChangeFeedRequest(address, FromContinuationToken(start))
            seen, skipped = [], 0
            for page in client.iterate_changes(request, on_poison="skip", until_idle=True).pages():
                seen += [event.key.components["_id"] for event in page.events]
                skipped += len(page.notices)
                if not followed and skipped:
                    native["c"].insert_one({"_id": 2})
                    followed = True
            assert (seen, skipped) == ([1, 2], 1)

    def test_such_a_change_can_be_read_without_its_document(self, one, database):
        native = one.client()[database]
        native["c"].insert_one({"_id": 0})
        address, key = ResourceAddress(database, "c"), "x" * 4_250_000
        with connect(ClientConfig("mongo", {"url": one.uri()})) as client:
            start = client.read_changes(ChangeFeedRequest(address, Now())).continuation_token
            native["c"].insert_many([{"_id": key}, {"_id": 2}])
            request = ChangeFeedRequest(address, FromContinuationToken(start))
            with pytest.raises(MulticloudDbError) as caught:
                client.read_changes(request)
            assert caught.value.category == ErrorCategory.PROVIDER_ERROR
            assert key[:9] not in str(caught.value)
            assert caught.value.detail.skip_token is not None
            bare = attrs.evolve(request, new_item_state_mode=NewItemStateMode.OMIT)
            events = client.read_changes(bare).events
            assert [event.key.components["_id"] for event in events] == [key, 2]


class TestNativeClient:
    @pytest.mark.parametrize("options", ODD.values(), ids=ODD)
    def test_it_may_be_set_up_for_anything(self, room, options):
        collection = room.collection()
        noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
        with native(room.uri, **options) as found:
            for scope in (None, EntireDatabase(), EntireCluster()):
                asked = {"scope": scope} if scope else {}
                address = {
                    EntireDatabase: ResourceAddress(database=room.database),
                    EntireCluster: ResourceAddress(),
                }.get(type(scope), room.address())
                asked |= {"client": found.client, "address": address}
                token = patient(lambda asked=asked: read(place=Now(), **asked)).continuation_token
                key = uuid4()
                collection.insert_one({"_id": key, "at": noon, "text": "text"})
                asked |= {"place": token, "wait": 0 if scope else 0.6}
                events = [
                    event
                    for page in patient(lambda asked=asked: list(walk(**asked)))
                    for event in page.events
                    if event.address == room.address()
                ]
                (event,) = events
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
    def test_what_a_collection_does_not_keep_is_refused_up_front(self, room):
        room.collection()
        client = room.client()
        for asked in (
            {"new_item_state_mode": NewItemStateMode.REQUIRE},
            {"old_item_state_mode": OldItemStateMode.REQUIRE},
        ):
            act = lambda asked=asked: read(client, room.address(), Now(), **asked)  # noqa: E731
            refused(ErrorCategory.UNSUPPORTED_CAPABILITY, act, "changeStreamPreAndPostImages", "collMod")

    def test_a_change_from_before_they_were_kept_is_named_and_can_be_read_without(self, room):
        collection = room.collection()
        token = read(room.client(), room.address(), Now()).continuation_token
        collection.insert_one({"_id": 1})
        collection.update_one({"_id": 1}, {"$set": {"n": 1}})
        room.native.command({"collMod": "c", "changeStreamPreAndPostImages": {"enabled": True}})
        collection.update_one({"_id": 1}, {"$set": {"n": 2}})
        client = room.client()
        require = {"new_item_state_mode": NewItemStateMode.REQUIRE}
        page = read(client, room.address(), token, **require)
        assert ids(page) == [1]
        for _ in range(2):
            act = lambda: read(client, room.address(), page.continuation_token, **require)  # noqa: E731
            refused(ErrorCategory.UNSUPPORTED_CAPABILITY, act, "INCLUDE_IF_AVAILABLE")
        assert all_ids(client, room.address(), page.continuation_token) == [1, 1]
        assert all_ids(client, room.address(), page.continuation_token, **require | {
            "new_item_state_mode": NewItemStateMode.OMIT}) == [1, 1]  # fmt: skip


class TestFeed:
    def test_which_tokens_go_on(self, room):
        provider = PLUGIN.connect(ClientConfig("mongo", {"url": room.uri}), None)

        def resumes(options=None):
            spec = FeedSpec(room.address(), options=options or MongoOptions())
            feed = provider.open_feed(spec, Deadline.after(30))
            return [feed.resumes(each) for each in (None, feed.identity.incarnation, "another")]

        try:
            assert resumes() == [
                True,
                True,
                True,
            ]  # the collection no longer exists, but its changes in the oplog are still read
            room.collection()
            assert resumes() == [True, True, False]
            assert resumes(FOLLOW) == [True, True, True]
            assert resumes(MongoOptions(allow_missing=True)) == [True, True, True]
        finally:
            provider.close()

    def test_a_kind_that_has_no_stream_is_refused(self, room):
        room.collection()
        room.collection("view", viewOn="c", pipeline=[])
        room.collection("series", timeseries={"timeField": "at"})
        client = room.client()
        for name in ("view", "series"):
            act = lambda name=name: read(client, room.address(name), Now())  # noqa: E731
            refused(ErrorCategory.INVALID_REQUEST, act, name)


def test_a_fault_is_a_fault_of_ours(room):
    """Errors that the provider itself finds are not exceptions of the driver."""
    provider = PLUGIN.connect(ClientConfig("mongo", {"url": room.uri}), None)
    try:
        feed = provider.open_feed(FeedSpec(room.address(), options=MongoOptions()), Deadline.after(30))
        with pytest.raises(ProviderFault) as caught:
            feed.start(Now(), None, Deadline.after(30))
        assert caught.value.fault.category == ErrorCategory.NOT_FOUND
        with pytest.raises(ProviderFault):
            feed.survey({}, Deadline.after(30))
    finally:
        provider.close()


def test_commands_of_a_feed_are_few(room):
    """Opening a feed opens a stream and asks for the collection, the kind of server and the oplog's end."""
    room.collection()
    commands = Commands()
    with (
        MongoClient(room.uri, event_listeners=[commands]) as own,
        connect(room.uri, native_client=own) as client,
    ):
        read(client, room.address(), Now())
    names = [name for name in commands.names() if name not in ("killCursors", "endSessions", "find")]
    assert len(names) <= 9, names
