"""Tests snapshots of real collections. Every row is returned, with any type of key and in any process."""

import threading

import bson
import pytest
from bson import ObjectId, Timestamp
from bson.raw_bson import RawBSONDocument

from multiclouddb_api import (
    ChangeFeedRequest,
    ClientConfig,
    Dropped,
    ErrorCategory,
    FromContinuationToken,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    OperationOptions,
    Renamed,
    ResourceAddress,
    Snapshot,
    SnapshotOrder,
    connect,
    encode_json,
)
from multiclouddb_api.event import ChangeEvent
from multiclouddb_conformance.sink import Sink
from multiclouddb_mongo import MongoOptions
from multiclouddb_mongo.position import At
from multiclouddb_mongo.provider import MongoProvider
from multiclouddb_mongo.source import Entry, Log

from .monitor import watched
from .scanning import IDS, is_done, keys, pages, rows

ORDERED = Snapshot(SnapshotOrder.ORDERED)


@pytest.fixture
def client(one):
    """Open one of the library's clients."""
    with connect(ClientConfig("mongo", {"url": one.uri()})) as made:
        yield made


@pytest.fixture
def mixed(one, database):
    """Make a collection with a key of every type; return its address, and the collection for native calls."""
    items = one.client()[database]["mixed"]
    for number, key in enumerate(IDS):
        items.insert_one({"_id": key, "n": number})
    return ResourceAddress(database, "mixed"), items


@pytest.fixture
def many(one, database):
    """Make a collection with forty rows."""
    items = one.client()[database]["many"]
    items.insert_many([{"_id": number, "n": number} for number in range(40)])
    return ResourceAddress(database, "many"), items


def merged(found, sink=None):
    """Return a target table to which some pages have been applied."""
    sink = sink or Sink()
    for page in found:
        sink.apply(page.events)
    return sink


def in_source(client, address):
    """Return the contents of the collection, read by a new snapshot."""
    return as_text({event.key: event.new_item_state for event in rows(pages(client, address, ORDERED))})


def as_text(found):
    """Return the documents by key, as JSON, because a NaN equals itself only in the library's JSON."""
    return {key.canonical(): encode_json(document) for key, document in found.items()}


class TestKeys:
    """Tests that rows with keys of every type are returned, wherever a segment begins or a page ends."""

    @pytest.mark.parametrize(("segments", "size"), [(None, 0), (3, 1), (26, 1)])
    def test_every_type_of_key_comes_once(self, client, mixed, segments, size):
        address, _ = mixed
        found = rows(pages(client, address, Snapshot(SnapshotOrder.ORDERED, segments=segments), size))
        assert len(found) == len(set(keys(found))) == len(IDS)
        assert sorted(event.new_item_state["n"] for event in found) == list(range(len(IDS)))

    def test_a_row_has_the_key_that_its_changes_have(self, client, mixed):
        address, items = mixed
        _, *found = pages(client, address, Snapshot(SnapshotOrder.ORDERED, segments=3))
        for key in IDS:
            items.update_one({"_id": key}, {"$set": {"changed": True}})
        changes = [
            event for page in pages(client, address, found[-1].continuation_token) for event in page.events
        ]
        by_row = {event.new_item_state["n"]: event for event in rows(found)}
        assert len(changes) == len(IDS)
        for change in changes:
            row = by_row[change.new_item_state.pop("n")]
            assert row.key == change.key
            wanted = {"_id": row.new_item_state["_id"], "changed": True}
            assert encode_json(change.new_item_state) == encode_json(wanted)
            assert row.order_key < change.order_key

    def test_a_row_with_a_key_of_every_type_is_looked_up(self, client, mixed):
        address, _ = mixed
        scanned = rows(pages(client, address, ORDERED))
        found = client.lookup(address, [row.key for row in scanned])
        assert None not in found.values()
        assert [encode_json(found[row.key].new_item_state) for row in scanned] == [
            encode_json(row.new_item_state) for row in scanned
        ]

    def test_another_client_goes_on_after_every_row(self, one, client, mixed):
        address, _ = mixed
        found = list(pages(client, address, Snapshot(SnapshotOrder.ORDERED, segments=5), 1))
        read = 0
        for page in found:
            read += len(page.events)
            with connect(one.uri()) as other:
                left = rows(pages(other, address, page.continuation_token))
            assert {*keys(rows(found))[read:]} == {*keys(left)}
        assert read == len(IDS)

    def test_a_long_key_is_a_position_and_no_border(self, client, one, database):
        items = one.client()[database]["long"]
        items.insert_many([{"_id": f"{number:02}" + "x" * 100_000} for number in range(30)])
        address = ResourceAddress(database, "long")
        found = list(pages(client, address, Snapshot(segments=10), 1))
        assert len(set(keys(rows(found)))) == len(rows(found)) == 30
        middle = found[10].continuation_token
        assert len(rows(pages(client, address, middle))) == 30 - len(rows(found[:11]))

    def test_keys_in_the_order_of_a_collation(self, client, one, database):
        how = {"locale": "en", "strength": 2, "numericOrdering": True}
        items = one.client()[database].create_collection("collated", collation=how)
        items.insert_many([{"_id": f"{letter}{number}"} for letter in "abCD" for number in range(12)])
        address = ResourceAddress(database, "collated")
        found = rows(pages(client, address, Snapshot(segments=7), 1))
        assert len(found) == len(set(keys(found))) == 48

    def test_a_collection_without_an_index_of_ids(self, client, one, database):
        index = {"key": {"_id": 1}, "unique": True}
        items = one.client()[database].create_collection("clustered", clusteredIndex=index)
        items.insert_many([{"_id": key} for key in IDS])
        found = rows(pages(client, ResourceAddress(database, "clustered"), Snapshot(segments=5), 1))
        assert len(found) == len(set(keys(found))) == len(IDS)

    def test_segments_that_samples_cut(self, client, mixed, monkeypatch):
        monkeypatch.setattr("multiclouddb_mongo.snapshots._MOST_COUNTED", 0)
        address, _ = mixed
        found = list(pages(client, address, Snapshot(segments=6), 1))
        assert len(rows(found)) == len(set(keys(rows(found)))) == len(IDS)


class TestLoad:
    """Tests snapshots during writes. In the end, the target equals the source."""

    @pytest.mark.parametrize("order", list(SnapshotOrder))
    def test_changes_of_every_type_of_key_during_the_scan(self, client, mixed, order):
        address, items = mixed
        over = threading.Event()

        def write():
            number = 0
            while not over.wait(0.001):
                key = IDS[number * 7 % len(IDS)]
                items.replace_one({"_id": key}, {"n": 1000 + number}, upsert=True)
                items.delete_one({"_id": IDS[number * 11 % len(IDS)]})
                number += 1

        writer = threading.Thread(target=write)
        writer.start()
        sink = Sink()
        try:
            for page in pages(client, address, Snapshot(order, segments=4), 2):
                sink.apply(page.events)
                if is_done(page):
                    break
        finally:
            over.set()
            writer.join()
        sink = merged(pages(client, address, page.continuation_token), sink)
        assert as_text(sink.rows()) == in_source(client, address)

    def test_a_cursor_that_the_server_has_closed_is_opened_again(self, client, many, monkeypatch):
        monkeypatch.setattr("multiclouddb_mongo.snapshots._LEAST_BATCH", 2)
        monkeypatch.setattr("multiclouddb_mongo.snapshots._MOST_BATCH", 2)
        address, items = many
        found, killed = [], 0
        for page in pages(client, address, ORDERED, 1):
            found += rows([page])
            for cursor in _scans(items):
                items.database.command("killCursors", items.name, cursors=[cursor])
                killed += 1
        assert killed
        assert len(found) == len(set(keys(found))) == 40


def _scans(items):
    now = {"$currentOp": {"allUsers": True, "idleCursors": True}}
    ours = {"$match": {"ns": items.full_name, "cursor.originatingCommand.find": {"$exists": True}}}
    return [each["cursor"]["cursorId"] for each in items.database.client.admin.aggregate([now, ours])]


class TestReads:
    """Tests the commands that a scan sends."""

    def test_rows_are_never_older_than_the_start_of_the_stream(self, one, many, app):
        address, _ = many
        with watched(one.uri(appName=app)) as (client, commands):
            started, *_ = pages(client, address, ORDERED)
            floor = int(started.notices[0].floor[2:], 16)
            bodies = [
                body for body in commands.bodies("find") if body["find"] == "many" and "skip" not in body
            ]
            assert bodies
            for body in bodies:
                concern = body["readConcern"]
                assert concern["level"] == "majority"
                stamp = concern["afterClusterTime"]
                assert isinstance(stamp, Timestamp)
                assert (stamp.time << 32 | stamp.inc) >= floor - 1
                assert body["sort"] == body["hint"] == {"_id": 1}

    def test_only_the_keys_are_sent_without_documents(self, one, many, app):
        address, _ = many
        with watched(one.uri(appName=app)) as (client, commands):
            found = rows(pages(client, address, ORDERED, new_item_state_mode=NewItemStateMode.OMIT))
            assert [event.new_item_state for event in found] == [None] * 40
            assert commands.bodies("find")[-1]["projection"] == {"_id": 1}


class TestAuto:
    """Tests the order `AUTO`. The stream is read again before its position in the log expires."""

    def test_auto_becomes_interleaved_when_half_of_the_log_is_used(self, client, many, monkeypatch):
        address, _ = many
        monkeypatch.setattr("multiclouddb_mongo.feed._LOG_SECONDS", 0.0)
        monkeypatch.setattr("multiclouddb_mongo.snapshots._LEAST_BATCH", 2)
        monkeypatch.setattr("multiclouddb_mongo.snapshots._MOST_BATCH", 2)
        begun = []

        def first_entry(log):
            now = begun[0] if begun else int(log._source.now().data[2:10], 16)
            begun.append(now)
            return Entry(At(now - (100 if len(begun) < 5 else 40)), False)

        monkeypatch.setattr(Log, "first_entry", first_entry)
        orders = [
            page.diagnostics.snapshot.order
            for page in pages(client, address, Snapshot(), 2)
            if page.diagnostics.snapshot is not None
        ]
        assert orders[0] is SnapshotOrder.ORDERED
        assert orders[-1] is SnapshotOrder.INTERLEAVED


class TestGone:
    """Tests that a drop during the scan is detected and rows of another collection are never returned."""

    @pytest.mark.parametrize(
        ("what", "follow", "restarted"),
        [
            ("dropped", False, False),
            ("renamed", True, True),
            ("recreated", False, True),
            ("recreated", True, False),
            ("swapped", False, False),
            ("swapped", True, True),
        ],
    )
    def test_the_scan_ends_with_a_notice(self, one, many, what, restarted, follow, monkeypatch):
        monkeypatch.setattr("multiclouddb_mongo.snapshots._LEAST_BATCH", 2)
        monkeypatch.setattr("multiclouddb_mongo.snapshots._MOST_BATCH", 2)
        address, items = many
        options = MongoOptions(after_invalidate="follow" if follow else "end")
        config = ClientConfig("mongo", {"url": one.uri()})
        found = []
        with connect(config) as client:
            for page in pages(client, address, ORDERED, 3, provider_options=options):
                found.append(page)
                if len(found) == 4:
                    break
            _end(items, what)
            token = page.continuation_token
            if not restarted:
                refused = _read_on(client, address, token, options, found)
        if restarted:
            with connect(config) as client:
                refused = _read_on(client, address, token, options, found)
        events = [event for page in found for event in page.events]
        assert all("other" not in event.new_item_state for event in events if event.backfilled)
        notices = [notice for page in found for notice in page.notices]
        if refused:  # the engine compares the UUID of the token
            assert refused.category is ErrorCategory.INVALID_REQUEST
        else:
            gone = Renamed if what in ("renamed", "swapped") else Dropped
            assert any(isinstance(notice, gone) for notice in notices), notices
        assert not any(map(is_done, found))
        assert len(rows(found)) < 40

    def test_a_collection_that_was_not_there_has_no_rows(self, client, one, database):
        address = ResourceAddress(database, "later")
        options = MongoOptions(allow_missing=True)
        found = list(pages(client, address, Snapshot(), provider_options=options))
        assert [event for page in found for event in page.events] == []
        assert any(map(is_done, found))
        one.client()[database]["later"].insert_one({"_id": 1})
        request = ChangeFeedRequest(
            address, FromContinuationToken(found[-1].continuation_token), provider_options=options
        )
        page = client.read_changes(request, OperationOptions(wait_seconds=5))
        assert [event.key.components for event in page.events] == [{"_id": 1}]


def _end(items, what):
    database = items.database
    if what in ("dropped", "recreated"):
        items.drop()
    else:
        items.rename("elsewhere")
    if what in ("recreated", "swapped"):
        database["many"].insert_many([{"_id": number, "other": True} for number in range(40)])


def _read_on(client, address, token, options, found):
    try:
        found.extend(pages(client, address, token, 3, provider_options=options))
    except MulticloudDbError as error:
        return error
    return None


class TestPoison:
    """Tests a row that cannot be decoded. The error names the row, and the row can be skipped."""

    @pytest.mark.parametrize("key", [ObjectId("6b019d9fd29d1122ca89d32f"), "secret"])
    def test_it_is_named_and_skipped(self, client, one, database, key):
        items = one.client()[database]["poisoned"]
        items.insert_many([{"_id": number} for number in range(3)])
        bad = RawBSONDocument(bson.encode({"_id": key, "text": "damaged"}).replace(b"damaged", b"damage\xff"))
        items.insert_one(bad)
        items.insert_one({"_id": True})
        address = ResourceAddress(database, "poisoned")
        seen: list[ChangeEvent] = []
        error = _until_refused(client, address, seen)
        assert error.category is ErrorCategory.PROVIDER_ERROR
        assert "UTF-8" in error.message
        assert "secret" not in error.message
        assert ("6b019d9fd29d1122ca89d32f" in error.message) is (key != "secret")
        seen += rows(pages(client, address, error.detail.skip_token))
        assert [event.key.components["_id"] for event in seen] == [0, 1, 2, True]


def _until_refused(client, address, seen):
    try:
        for page in pages(client, address, ORDERED):
            seen += page.events
    except MulticloudDbError as error:
        return error
    raise AssertionError("nothing was refused")


class TestSharded:
    """Tests keys with a shard key, on a server that only claims to be a `mongos`."""

    @pytest.mark.parametrize("size", [1, 0])
    def test_a_row_has_the_shard_key_before_its_id(self, one, database, size, monkeypatch):
        monkeypatch.setattr(MongoProvider, "_server", lambda provider: (False, True))
        native = one.client()
        native[database]["items"].insert_many(
            [{"_id": number, "place": {"region": "eu"}, "n": number} for number in range(12)]
        )
        key = {"place.region": 1, "n": 1}
        native.config.collections.insert_one({"_id": f"{database}.items", "key": key})
        address = ResourceAddress(database, "items")
        try:
            with connect(ClientConfig("mongo", {"url": one.uri()})) as client:
                found = list(pages(client, address, Snapshot(segments=3), size))
                wanted = LogicalPartition(MulticloudDbKey({"place.region": "eu", "n": 4, "_id": 4}, 2))
                (row,) = rows(pages(client, address, Snapshot(), scope=wanted))
                other = MulticloudDbKey({"place.region": "us", "n": 4, "_id": 4}, 2)
                looked_up = client.lookup(address, [*(each.key for each in rows(found)), other])
        finally:
            native.config.collections.delete_one({"_id": f"{database}.items"})
        assert {event.key.components["_id"] for event in rows(found)} == set(range(12))
        assert len(rows(found)) == 12
        for event in rows(found):
            assert list(event.key.components) == ["place.region", "n", "_id"]
            assert event.key.partition_components == 2
        assert row.new_item_state["n"] == 4
        assert looked_up.pop(other) is None
        assert {each.key: each.new_item_state for each in looked_up.values()} == {
            each.key: each.new_item_state for each in rows(found)
        }
