"""Tests snapshots of real collections. Every row is returned, with any type of key and in any process."""

import contextlib
import datetime
import itertools
import threading
import uuid
from collections import deque
from types import SimpleNamespace

import bson
import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp
from bson.raw_bson import RawBSONDocument
from pymongo.errors import AutoReconnect

from multiclouddb_api import (
    BackfillDone,
    Dropped,
    ErrorCategory,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    Renamed,
    ResourceAddress,
    Snapshot,
    SnapshotOrder,
    connect,
    encode_json,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_conformance.sink import Sink
from multiclouddb_mongo import MongoOptions
from multiclouddb_mongo.look_up import look_up_documents
from multiclouddb_mongo.mapping import MongoView
from multiclouddb_mongo.oplog import Log, LogBeginning
from multiclouddb_mongo.position import At, scan_at
from multiclouddb_mongo.provider import MongoProvider
from multiclouddb_mongo.rows import RawRow
from multiclouddb_mongo.snapshots import SegmentReader, _in_commands, check_snapshot
from multiclouddb_spi import Deadline, FeedSpec, ProviderFault, Scanned

from .monitor import ids, keys, read, told, walk

# Every BSON type that the server accepts as an _id, with several values for some types.
IDS = (
    MinKey(),
    None,
    float("nan"),
    float("-inf"),
    1,
    2.5,
    Int64(2**53 + 1),
    Decimal128("4.50"),
    "",
    "$a",
    "b" * 50,
    {},
    {"a": 1},
    {"a": {"b": [1, 2]}},
    b"x",
    Binary(b"y", 5),
    Binary.from_uuid(uuid.UUID(int=7)),
    ObjectId("6b019d9fd29d1122ca89d32f"),
    False,
    True,
    datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    Timestamp(1, 1),
    Code("f()"),
    Code("f()", {"x": 1}),
    DBRef("c", 1),
    MaxKey(),
)


def rows(found):
    return [event for page in found for event in page.events if event.backfilled]


ORDERED = Snapshot(SnapshotOrder.ORDERED)
COLLATION = {"locale": "en", "strength": 2, "numericOrdering": True}


@pytest.fixture
def _small_batches(monkeypatch):
    for name in ("_LEAST_BATCH", "_MOST_BATCH"):
        monkeypatch.setattr(f"multiclouddb_mongo.snapshots.{name}", 2)


@pytest.fixture
def mixed(one, database):
    """Make a collection with a key of every type; return its address, and the collection for native calls."""
    items = one.client()[database]["mixed"]
    for number, key in enumerate(IDS):
        items.insert_one({"_id": key, "n": number})
    return ResourceAddress(database, "mixed"), items


@pytest.fixture
def many(one, database):
    items = one.client()[database]["many"]
    items.insert_many([{"_id": number, "n": number} for number in range(40)])
    return ResourceAddress(database, "many"), items


def as_text(found):
    """Return the documents by key, as JSON, because a NaN equals itself only in the library's JSON."""
    return {key.canonical(): encode_json(document) for key, document in found.items()}


def assert_once(found, count):
    """Check that some pages have this many rows, each once."""
    texts = [event.key.canonical() for event in rows(found)]
    assert len(texts) == len(set(texts)) == count


class TestKeys:
    """Tests that rows with keys of every type are returned, wherever a segment begins or a page ends."""

    @pytest.mark.parametrize(("segments", "size"), [(None, 0), (3, 1), (26, 1)])
    def test_every_type_of_key_comes_once(self, reader, mixed, segments, size):
        address, _ = mixed
        found = list(walk(reader, address, Snapshot(SnapshotOrder.ORDERED, segments=segments), size))
        assert_once(found, len(IDS))
        assert sorted(event.new_item_state["n"] for event in rows(found)) == list(range(len(IDS)))

    def test_a_row_has_the_key_that_its_changes_have(self, reader, mixed):
        address, items = mixed
        _, *found = walk(reader, address, Snapshot(SnapshotOrder.ORDERED, segments=3))
        for key in IDS:
            items.update_one({"_id": key}, {"$set": {"changed": True}})
        later = walk(reader, address, found[-1].continuation_token)
        changes = [event for page in later for event in page.events]
        by_row = {event.new_item_state["n"]: event for event in rows(found)}
        assert len(changes) == len(IDS)
        for change in changes:
            row = by_row[change.new_item_state.pop("n")]
            assert row.key == change.key
            wanted = {"_id": row.new_item_state["_id"], "changed": True}
            assert encode_json(change.new_item_state) == encode_json(wanted)
            assert row.order_key < change.order_key

    def test_a_row_with_a_key_of_every_type_is_looked_up(self, reader, mixed):
        address, _ = mixed
        scanned = rows(walk(reader, address, ORDERED))
        found = reader.lookup(address, [row.key for row in scanned])
        assert None not in found.values()
        assert [encode_json(found[row.key].new_item_state) for row in scanned] == [
            encode_json(row.new_item_state) for row in scanned
        ]

    def test_another_client_goes_on_after_every_row(self, one, reader, mixed):
        address, _ = mixed
        found = list(walk(reader, address, Snapshot(SnapshotOrder.ORDERED, segments=5), 1))
        assert_once(found, len(IDS))
        for number, page in enumerate(found):
            with connect(one.uri()) as other:
                left = rows(walk(other, address, page.continuation_token))
            assert {event.key for event in rows(found[number + 1 :])} == {event.key for event in left}

    def test_a_long_key_is_a_position_and_no_border(self, reader, one, database):
        items = one.client()[database]["long"]
        items.insert_many([{"_id": f"{number:02}" + "x" * 100_000} for number in range(30)])
        address = ResourceAddress(database, "long")
        found = list(walk(reader, address, Snapshot(segments=10), 1))
        assert_once(found, 30)
        assert len({event.partition_id for event in rows(found)}) == 1
        assert_once(walk(reader, address, found[10].continuation_token), 30 - len(rows(found[:11])))

    @pytest.mark.parametrize(
        ("made", "given"),
        [
            ({"collation": COLLATION}, [f"{letter}{number}" for letter in "abCD" for number in range(12)]),
            ({"clusteredIndex": {"key": {"_id": 1}, "unique": True}}, IDS),  # has no index of ids
        ],
        ids=["collated", "clustered"],
    )
    def test_a_collection_that_sorts_in_another_way(self, reader, one, database, made, given):
        one.client()[database].create_collection("c", **made).insert_many([{"_id": key} for key in given])
        assert_once(walk(reader, ResourceAddress(database, "c"), Snapshot(segments=7), 1), len(given))

    def test_segments_that_samples_cut(self, reader, mixed, monkeypatch):
        monkeypatch.setattr("multiclouddb_mongo.snapshots._MOST_COUNTED", 0)
        assert_once(walk(reader, mixed[0], Snapshot(segments=6), 1), len(IDS))


class TestLoad:
    """Tests snapshots during writes. In the end, the target equals the source."""

    @pytest.mark.parametrize("order", list(SnapshotOrder))
    def test_changes_of_every_type_of_key_during_the_scan(self, reader, mixed, order):
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
            for page in walk(reader, address, Snapshot(order, segments=4), 2):
                sink.apply(page.events)
                if BackfillDone in told(page):
                    break
        finally:
            over.set()
            writer.join()
        for later in walk(reader, address, page.continuation_token):
            sink.apply(later.events)
        source = {event.key: event.new_item_state for event in rows(walk(reader, address, ORDERED))}
        assert as_text(sink.rows()) == as_text(source)

    @pytest.mark.usefixtures("_small_batches")
    def test_a_cursor_that_the_server_has_closed_is_opened_again(self, reader, many):
        address, items = many
        now = {"$currentOp": {"allUsers": True, "idleCursors": True}}
        ours = {"$match": {"ns": items.full_name, "cursor.originatingCommand.find": {"$exists": True}}}
        found, killed = [], 0
        for page in walk(reader, address, ORDERED, 1):
            found.append(page)
            for each in items.database.client.admin.aggregate([now, ours]):
                items.database.command("killCursors", items.name, cursors=[each["cursor"]["cursorId"]])
                killed += 1
        assert killed
        assert_once(found, 40)

    @pytest.mark.usefixtures("_small_batches")
    def test_a_cursor_is_not_older_than_moved_documents_are_kept(self, ours, many, monkeypatch):
        """A shard deletes what was moved away under the cursors of its secondaries."""
        monkeypatch.setattr("multiclouddb_mongo.snapshots._CURSOR_SECONDS", 0.0)
        reader, commands = ours
        found = list(walk(reader, many[0], ORDERED, 2))
        assert_once(found, 40)
        begun = [each for each in commands.bodies("find") if each["find"] == "many" and "skip" not in each]
        assert len(begun) >= 20


class TestReads:
    def test_rows_are_never_older_than_the_start_of_the_stream(self, ours, many):
        reader, commands = ours
        started, *_ = walk(reader, many[0], ORDERED)
        floor = int(started.notices[0].floor[2:], 16)
        found = [each for each in commands.bodies("find") if each["find"] == "many" and "skip" not in each]
        assert found
        for body in found:
            concern = body["readConcern"]
            assert concern["level"] == "majority"
            stamp = concern["afterClusterTime"]
            assert isinstance(stamp, Timestamp)
            assert (stamp.time << 32 | stamp.inc) >= floor - 1
            assert body["sort"] == body["hint"] == {"_id": 1}

    def test_only_the_keys_are_sent_without_documents(self, ours, many):
        reader, commands = ours
        found = rows(walk(reader, many[0], ORDERED, new_item_state_mode=NewItemStateMode.OMIT))
        assert [event.new_item_state for event in found] == [None] * 40
        assert commands.bodies("find")[-1]["projection"] == {"_id": 1}


@pytest.mark.usefixtures("_small_batches")
def test_auto_becomes_interleaved_when_half_of_the_log_is_used(reader, many, monkeypatch):
    """The stream is read again before its position in the log expires."""
    monkeypatch.setattr("multiclouddb_mongo.feed._LOG_SECONDS", 0.0)
    begun = []

    def first_entry(log):
        now = begun[0] if begun else int(log._source.now().data[2:10], 16)
        begun.append(now)
        return LogBeginning(At(now - (100 if len(begun) < 5 else 40)), False)

    monkeypatch.setattr(Log, "first_entry", first_entry)
    scans = [page.diagnostics.snapshot for page in walk(reader, many[0], Snapshot(), 2)]
    orders = [scan.order for scan in scans if scan is not None]
    assert (orders[0], orders[-1]) == (SnapshotOrder.ORDERED, SnapshotOrder.INTERLEAVED)


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
    @pytest.mark.usefixtures("_small_batches")
    def test_the_scan_ends_with_a_notice(self, one, reader, many, what, restarted, follow):
        address, items = many
        asked = {"provider_options": MongoOptions(after_invalidate="follow" if follow else "end")}
        found, refused = list(itertools.islice(walk(reader, address, ORDERED, 3, **asked), 4)), None
        items.drop() if what in ("dropped", "recreated") else items.rename("elsewhere")
        if what in ("recreated", "swapped"):
            items.insert_many([{"_id": number, "other": True} for number in range(40)])
        with connect(one.uri()) as another:
            try:
                goes_on = another if restarted else reader
                found.extend(walk(goes_on, address, found[-1].continuation_token, 3, **asked))
            except MulticloudDbError as error:
                refused = error.category
        assert all("other" not in event.new_item_state for event in rows(found))
        gone = Renamed if what in ("renamed", "swapped") else Dropped
        # Otherwise, the engine has compared the UUID of the token.
        assert gone in told(*found) or refused is ErrorCategory.INVALID_REQUEST
        assert BackfillDone not in told(*found)
        assert len(rows(found)) < 40

    def test_a_collection_that_was_not_there_has_no_rows(self, reader, one, database):
        address = ResourceAddress(database, "later")
        options = MongoOptions(allow_missing=True)
        found = list(walk(reader, address, Snapshot(), provider_options=options))
        assert ids(*found) == []
        assert BackfillDone in told(*found)
        one.client()[database]["later"].insert_one({"_id": 1})
        token = found[-1].continuation_token
        assert ids(read(reader, address, token, wait=5.0, provider_options=options)) == [1]


@pytest.mark.parametrize("key", [ObjectId("6b019d9fd29d1122ca89d32f"), "secret"])
def test_a_row_that_cannot_be_decoded_is_named_and_skipped(reader, one, database, key):
    items = one.client()[database]["poisoned"]
    items.insert_many([{"_id": number} for number in range(3)])
    bad = bson.encode({"_id": key, "text": "damaged"}).replace(b"damaged", b"damage\xff")
    items.insert_one(RawBSONDocument(bad))
    items.insert_one({"_id": True})
    address, found = ResourceAddress(database, "poisoned"), []
    act = lambda: found.extend(walk(reader, address, ORDERED))  # noqa: E731
    error = refusal(ErrorCategory.PROVIDER_ERROR, act, "UTF-8", hidden=["secret"])
    assert ("6b019d9fd29d1122ca89d32f" in error.message) is (key != "secret")
    found.extend(walk(reader, address, error.detail.skip_token))
    assert ids(*found) == [0, 1, 2, True]


@pytest.mark.parametrize("size", [1, 0])
def test_a_row_has_the_shard_key_before_its_id(one, reader, database, size, monkeypatch):
    """The server only claims to be a `mongos`."""
    monkeypatch.setattr(MongoProvider, "_server", lambda provider: (False, True))
    native, address = one.client(), ResourceAddress(database, "items")
    native[database]["items"].insert_many(
        {"_id": number, "place": {"region": "eu"}, "n": number} for number in range(12)
    )
    key = {"place.region": 1, "n": 1}
    native.config.collections.insert_one({"_id": f"{database}.items", "key": key})
    try:
        found = rows(walk(reader, address, Snapshot(segments=3), size))
        wanted = LogicalPartition(MulticloudDbKey({"place.region": "eu", "n": 4, "_id": 4}, 2))
        (row,) = rows(walk(reader, address, Snapshot(), scope=wanted))
        other = MulticloudDbKey({"place.region": "us", "n": 4, "_id": 4}, 2)
        looked_up = reader.lookup(address, [*(event.key for event in found), other])
    finally:
        native.config.collections.delete_one({"_id": f"{database}.items"})
    assert looked_up.pop(other) is None
    assert {key: each.new_item_state for key, each in looked_up.items()} == {
        event.key: event.new_item_state for event in found
    }
    assert sorted(keys(found)) == list(range(12))
    for event in found:
        assert list(event.key.components) == ["place.region", "n", "_id"]
        assert event.key.partition_components == 2
    assert row.new_item_state["n"] == 4


@pytest.mark.parametrize("segments", [1, 3])
def test_a_sharded_scan_orders_texts_exactly(one, reader, database, segments, monkeypatch):
    """Two shards may contain texts that are equal under the collation; no position would lie between them."""
    monkeypatch.setattr(MongoProvider, "_server", lambda provider: (False, True))
    native, address = one.client(), ResourceAddress(database, "items")
    native[database].create_collection("items", collation=COLLATION)
    texts = [f"{letter}{number}" for letter in "aBcD" for number in (1, 2, 10)]
    native[database]["items"].insert_many({"_id": text} for text in texts)
    native.config.collections.insert_one({"_id": f"{database}.items", "key": {"_id": 1}})
    try:
        found = keys(rows(walk(reader, address, Snapshot(segments=segments), 1)))
        one_text = LogicalPartition(MulticloudDbKey({"_id": "B10"}))
        alone = keys(rows(walk(reader, address, Snapshot(), scope=one_text)))
    finally:
        native.config.collections.delete_one({"_id": f"{database}.items"})
    assert sorted(found) == sorted(texts)
    assert segments > 1 or found == sorted(texts)
    assert alone == ["B10"]


BEGAN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SEGMENT = scan_at("6500000000000001", BEGAN, "0" * 32, ()).segment("0")


class Row(RawRow):
    """A row that calls a function when its bytes are read."""

    __slots__ = ("at_read",)

    @property
    def _bytes(self):
        self.at_read()
        return bson.encode({"_id": 1})

    @_bytes.setter
    def _bytes(self, value):
        pass


class Cursor:
    """Simulates the part of the driver's cursor that a reader uses. It has one row in each answer."""

    def __init__(self, answers, at_answer, at_read):
        self.alive, self._left, self._at_answer, self._at_read = True, answers, at_answer, at_read

    def __iter__(self):
        return self

    def __next__(self):
        if not self._left:
            raise StopIteration
        self._left -= 1
        self.alive = bool(self._left)
        self._at_answer()
        row = Row(b"")
        row.at_read = self._at_read
        return row


class Source:
    """Simulates the part of a scanned collection that a reader uses."""

    calm = be_patient = staticmethod(lambda *_: None)
    client = SimpleNamespace(options=SimpleNamespace(retry_reads=True))
    in_scope = staticmethod(lambda rows, _: rows)

    def __init__(self, answers=2):
        self.answers, self.opened = answers, 0
        self.at_answer = self.at_read = lambda: None

    def at_work(self):
        return contextlib.nullcontext()

    opening = at_work

    def session(self, place):
        return None

    def rows(self, place, session, batch_size):
        self.opened += 1
        return Cursor(self.answers, lambda: self.at_answer(), lambda: self.at_read())

    def close(self, cursor):
        cursor.alive = False

    def gone(self, place):
        return None


def reader_of(source):
    view = MongoView(ResourceAddress("shop", "orders"), "p")
    return SegmentReader(source, view, SEGMENT, lambda: None)


def fetch(reader):
    return reader.fetch(10, 1 << 20, 0.0, Deadline.after(30))


class TestCancelled:
    """Tests that a cursor which `cancel` closes is not taken for one whose rows were all read."""

    def test_while_the_server_answers(self):
        source = Source()
        reader = reader_of(source)
        source.at_answer = reader.cancel
        with pytest.raises(ProviderFault, match="cancelled"):
            fetch(reader)

    def test_while_the_rows_are_taken(self):
        source = Source()
        reader = reader_of(source)
        source.at_read = reader.cancel
        with pytest.raises(ProviderFault, match="cancelled"):
            fetch(reader)

    def test_the_last_answer_ends_the_segment(self):
        assert isinstance(fetch(reader_of(Source(answers=1))).outcome, Scanned)


class TestLost:
    """Tests the number of tries. PyMongo has already retried a `find`, but not a `getMore`."""

    def test_a_cursor_that_cannot_be_opened_is_not_opened_again(self):
        source = Source()
        source.at_answer = failing(AutoReconnect("away"), None)
        with pytest.raises(AutoReconnect):
            fetch(reader_of(source))
        assert source.opened == 1

    def test_a_cursor_that_is_lost_is_opened_again_once(self):
        source = Source(answers=3)
        source.at_answer = failing(
            None, AutoReconnect("away"), None, AutoReconnect("one"), AutoReconnect("two")
        )
        reader = reader_of(source)
        assert len(fetch(reader)) == len(fetch(reader)) == 1
        assert source.opened == 2
        with pytest.raises(AutoReconnect, match="two"):
            fetch(reader)
        assert source.opened == 3


def failing(*failures):
    """Return a function that raises the given errors, one in each call; None raises nothing."""
    left = deque(failures)

    def fail():
        failure = left.popleft()
        if failure is not None:
            raise failure

    return fail


def test_keys_that_are_too_large_for_one_command_are_asked_in_several(ours, here, written):
    """A command may have 16 MB, and 200 of these keys have 20 MB."""
    client, commands = ours
    names = [f"{number:03}" + "k" * 100_000 for number in range(200)]
    for first in range(0, 200, 50):
        written.insert_many([{"_id": name} for name in names[first : first + 50]])
    asked = [MulticloudDbKey({"_id": name}) for name in (*names, "absent")]
    found = client.lookup(here, asked)
    assert [found[key] is None for key in asked] == [*[False] * 200, True]
    proof, *finds = commands.bodies("find")
    assert proof["readConcern"] == {"level": "linearizable"}
    assert 2 <= len(finds) <= 4
    # The fields of a shard key are asked for too.
    place = SimpleNamespace(names=("region",))
    keys = [MulticloudDbKey({"region": "r" * 7_000_000, "_id": number}, 1) for number in range(3)]
    sizes = [len(each["$or"]) for each in _in_commands(place, keys)]
    assert sizes == [1, 1, 1]


CLUSTERED = {"clusteredIndex": {"key": {"_id": 1}, "unique": True}}


def test_no_lookup_scans_a_clustered_collection(one, ours, database):
    """The server would scan all of it for several keys, and with notablescan it refuses even one."""
    client, commands = ours
    native = one.client()[database].create_collection("c", **CLUSTERED)
    native.insert_many([{"_id": number} for number in range(1000)])
    address = ResourceAddress(database, "c")
    asked = [MulticloudDbKey({"_id": number}) for number in (3, 990, 1000, "3")]
    one.client().admin.command("setParameter", 1, notablescan=True)
    try:
        found = client.lookup(address, asked)
        rows = sum(len(page.events) for page in walk(client, address, Snapshot()))
    finally:
        one.client().admin.command("setParameter", 1, notablescan=False)
    assert [found[key] is None for key in asked] == [False, False, True, True]
    assert rows == 1000
    for body in commands.bodies("find")[: 1 + len(asked)]:  # the first proves the primary
        ran = {name: body[name] for name in ("find", "filter", "hint")}
        told = one.client()[database].command({"explain": ran, "verbosity": "executionStats"})
        assert told["executionStats"]["totalDocsExamined"] <= 2


def test_a_client_that_encrypts_is_refused():
    """PyMongo reads no raw batches with this option."""
    client = SimpleNamespace(options=SimpleNamespace(auto_encryption_opts=object()))
    spec = FeedSpec(ResourceAddress("shop", "orders"), options=MongoOptions())
    for refused in (
        lambda: check_snapshot(spec, spec.address, None, encrypted=True),
        lambda: look_up_documents(SimpleNamespace(client=client), None, "", [], BEGAN, None),
    ):
        with pytest.raises(ProviderFault, match="auto_encryption_opts") as caught:
            refused()
        assert caught.value.fault.category == ErrorCategory.UNSUPPORTED_CAPABILITY
