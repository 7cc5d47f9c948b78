"""Tests documents that the server accepts but no driver can read.

They stop only the feed that has to deliver them, and only until they are skipped.
"""

import functools
import struct
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import bson
import pytest
from bson import Binary, DatetimeMS, DBRef, Timestamp
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.errors import DocumentTooLarge, OperationFailure

from multiclouddb_api import (
    AtTime,
    BackfillDone,
    Beginning,
    EntireCluster,
    EntireCollection,
    EntireDatabase,
    ErrorCategory,
    MulticloudDbError,
    MulticloudDbKey,
    NotKnown,
    Now,
    OldItemStateMode,
    Renamed,
    ResourceAddress,
    Snapshot,
    connect,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_mongo import MongoOptions, oplog, snapshots
from multiclouddb_mongo.oplog import Log, LogBeginning
from multiclouddb_mongo.position import At

from .monitor import IMAGES, ids, in_scope, read, walk
from .test_rollover import World

POISON = ErrorCategory.PROVIDER_ERROR
DAMAGED = ({"_id": "damaged"}, {"_id": 1, "damaged": 1}, {"_id": 1, "msg": "damaged"})


def damaged(document):
    """Return a document in which a text is not UTF-8."""
    raw = bson.encode(document)
    assert b"damaged" in raw
    return RawBSONDocument(raw.replace(b"damaged", b"damage\xff"))


def reading(reader, address, place=None, **asked):
    return lambda: read(reader, address, place, **asked)


def walk_over(reader, address, place, *, partitions=1, **asked):
    """Return the ids of all changes, with None for each skipped change."""
    seen = []
    for _ in range(400):
        try:
            page = read(reader, address, place, **asked)
        except MulticloudDbError as error:
            if not error.detail.skip_token:
                raise
            if partitions == 1:  # of several, another may answer first when the same page is read again
                assert refusal(POISON, reading(reader, address, place, **asked), "skip_token")
            seen.append(None)
            place = error.detail.skip_token
            continue
        seen += ids(page)
        place = page.continuation_token
        if page.idle or any(isinstance(notice, BackfillDone) for notice in page.notices):
            return seen
    return pytest.fail("not idle")


@pytest.fixture
def _exact(monkeypatch):
    """Let a start at a time be early by 1.1 s, and not by 11 s."""
    monkeypatch.setattr("multiclouddb_mongo.feed._STAMPED_LATER_SECONDS", (0.1,))


def later_time():
    """Return a time that is 1.2 s after all changes so far."""
    time.sleep(1.2)
    return datetime.now(UTC)


class TestInTheFeed:
    @pytest.mark.parametrize(
        "document", [*DAMAGED, {"_id": 1, "a": {"b": [{"c": "damaged"}]}}, {"_id": {"a": "damaged"}}], ids=str
    )
    def test_wherever_the_damage_is(self, reader, here, written, document):
        token = read(reader, here, Now()).continuation_token
        written.insert_one({"_id": "before"})
        written.insert_one(damaged(document))
        written.insert_one({"_id": "after"})
        assert walk_over(reader, here, token) == ["before", None, "after"]

    def test_dates_beyond_all_calendars_are_no_damage(self, reader, here, written):
        token = read(reader, here, Now()).continuation_token
        written.insert_one({"_id": DatetimeMS(2**62), "at": DatetimeMS(-(2**62))})
        (event,) = read(reader, here, token).events
        assert event.key == MulticloudDbKey({"_id": DatetimeMS(2**62)})
        assert event.new_item_state["at"] == DatetimeMS(-(2**62))

    def test_the_one_that_is_named_is_the_one_that_a_filter_lets_through(self, reader, one, database):
        collection = one.client()[database].create_collection("c", **IMAGES)
        address = ResourceAddress(database, "c")
        asked = {
            "old_item_state_mode": OldItemStateMode.INCLUDE_IF_AVAILABLE,
            "provider_options": MongoOptions(pipeline=[{"$match": {"fullDocument.n": 1}}]),
        }
        large = "x" * 9_000_000
        collection.insert_one({"_id": "large", "text": large, "n": 1})
        token = read(reader, address, Now(), **asked).continuation_token
        collection.update_one({"_id": "large"}, {"$set": {"text": large[:-1]}})
        collection.insert_one({"_id": "good", "n": 1})
        assert walk_over(reader, address, token, **asked) == [None, "good"]


class TestTheFirstChange:
    """The first change after a start cannot be read: the start succeeds, and the change can be skipped."""

    @pytest.mark.usefixtures("_exact")
    @pytest.mark.parametrize("document", DAMAGED, ids=str)
    @pytest.mark.parametrize("scope", [EntireCollection(), EntireDatabase(), EntireCluster()], ids=repr)
    def test_after_a_time(self, reader, here, written, document, scope):
        since = AtTime(later_time())
        other = written.database["others"]
        other.insert_one(damaged(document))
        written.insert_one({"_id": "after"})
        expected = ["after"] if isinstance(scope, EntireCollection) else [None, "after"]
        asked = in_scope(scope, here)
        assert walk_over(reader, place=since, **asked) == expected
        if isinstance(scope, EntireCollection):
            address = ResourceAddress(here.database, "others")
            assert walk_over(reader, address, since) == [None]

    @pytest.mark.parametrize("document", DAMAGED, ids=str)
    def test_of_a_collection_and_its_rows(self, reader, one, database, document):
        address, collection = ResourceAddress(database, "c"), one.client()[database]["c"]
        collection.insert_one(damaged(document))
        collection.insert_one({"_id": "z"})
        assert walk_over(reader, address, Beginning()) == [None, "z"]
        assert sorted(walk_over(reader, address, Snapshot()), key=str) == [None, "z"]

    def test_of_a_document_that_is_looked_up(self, reader, one, database):
        """Of the other keys, the server says whether there is a document."""
        address, collection = ResourceAddress(database, "c"), one.client()[database]["c"]
        collection.insert_many([damaged({"_id": 1, "text": "damaged"}), {"_id": 2}])
        keys = [MulticloudDbKey({"_id": value}) for value in (1.0, 2, 3)]
        first, second, third = map(reader.lookup(address, keys).__getitem__, keys)
        assert isinstance(first, NotKnown)
        assert second.key == keys[1]
        assert third is None

    @pytest.mark.usefixtures("_exact")
    def test_is_larger_than_any_answer(self, reader, one, database):
        """Without an answer, the server closes the connection."""
        since, address = AtTime(later_time()), ResourceAddress(database, "c")
        collection, key = one.client()[database]["c"], "x" * 4_250_000
        collection.insert_one({"_id": key})
        collection.insert_one({"_id": 1})
        error = refusal(POISON, reading(reader, address, since), "16 MB")
        assert ids(*walk(reader, address, error.detail.skip_token)) == [1]


FIRST = {"op": "n", "ns": "", "o": {"msg": "initiating set"}}


class TestTheLog:
    """The first entry of the log may be the change of any document of the deployment."""

    @pytest.mark.parametrize(
        ("entry", "whole"),
        [
            (FIRST, True),
            (FIRST | {"t": -1}, True),
            (FIRST | {"t": 1}, False),  # somebody has written the note with `appendOplogNote`
            (FIRST | {"op": "i", "ns": "shop.c"}, False),
            (FIRST | {"op": "i", "ns": "shop.c", "o": {"_id": "damaged", "msg": "damaged"}}, False),
            (FIRST | {"o": {"msg": "damaged"}}, False),
            (FIRST | {"o": {"msg": Binary(b"x" * 36, 4)}}, False),
            (FIRST | {"op": "i", "o": {"msg": {"a": "damaged"}, "damaged": 1}}, False),
        ],
        ids=str,
    )
    def test_only_the_set_s_own_first_note_shows_that_nothing_was_removed(
        self, one, monkeypatch, entry, whole
    ):
        monkeypatch.setattr(oplog, "OPLOG", "copy")
        document = {"ts": Timestamp(7, 1), **entry}
        with MongoClient(one.uri(retryWrites="false")) as client:
            log = client["local"]["copy"]
            log.insert_one(damaged(document) if b"damaged" in bson.encode(document) else document)
            try:
                assert Log(SimpleNamespace(client=client)).first_entry() == LogBeginning(At(7, 1), whole)
            finally:
                log.drop()

    def test_full_of_damage_it_still_says_what_it_no_longer_contains(self, small, database):
        world, since = World(small, database), datetime.now(UTC)
        world.write(1)
        count = iter(range(10**6))
        world.roll_over(
            lambda: world.others.insert_one(damaged({"msg": "damaged" + "x" * 90_000, "n": next(count)}))
        )
        whole = in_scope(EntireDatabase(), world.address)
        with connect(small.uri()) as client:
            for asked in ({"address": world.address}, whole):
                act = functools.partial(read, client, place=AtTime(since), **asked)
                refusal(ErrorCategory.CHECKPOINT_EXPIRED, act)
            world.write(2)
            assert walk_over(client, world.address, Beginning()) == [2]


class TestTheCatalog:
    """The options of a collection contain values of users."""

    @pytest.mark.parametrize("value", ["damaged", Binary(b"x" * 36, 4)], ids=["text", "UUID"])
    def test_a_validator_that_cannot_be_read_stops_no_feed(self, reader, one, database, value):
        rule = bson.encode({"a": {"$ne": value}}).replace(b"damaged", b"damage\xff")
        collection = one.client()[database].create_collection("c", validator=RawBSONDocument(rule), **IMAGES)
        collection.insert_one({"_id": 1})
        address = ResourceAddress(database, "c")
        for start in (Beginning(), Snapshot()):
            assert walk_over(reader, address, start) == [1]
        assert walk_over(reader, place=Beginning(), **in_scope(EntireDatabase(), address)) == [1]
        collection.insert_many({"_id": number} for number in range(2, 300))
        begun = read(reader, address, Snapshot(), size=1).continuation_token
        collection.rename("d")
        assert reader.collections(database) == (ResourceAddress(database, "d"),)
        with connect(one.uri()) as another:  # the first has the rows of an answer
            notices = read(another, address, begun).notices
        assert Renamed(f"{database}/c", f"{database}/d") in notices


def element(kind, name, value):
    return bytes([kind]) + name + b"\0" + value


def document_of(*elements):
    body = b"".join(elements) + b"\0"
    return struct.pack("<i", len(body) + 4) + body


def text(value):
    return struct.pack("<i", len(value) + 1) + value + b"\0"


def binary(subtype, content):
    return struct.pack("<iB", len(content), subtype) + content


ONE = element(0x10, b"a", struct.pack("<i", 1))
OID = bytes(range(12))
FORMS = {
    **{
        f"binary {subtype} of {size}": (0x05, binary(subtype, b"x" * size))
        for subtype in (0, 1, 3, 4, 5, 6, 7, 8, 9, 127, 128, 255)
        for size in (0, 1, 15, 16, 17, 36)
    },
    "binary 2": (0x05, binary(2, struct.pack("<i", 2) + b"xy")),
    "binary 2, empty": (0x05, binary(2, struct.pack("<i", 0))),
    "binary 2 of another length": (0x05, binary(2, struct.pack("<i", 9) + b"xy")),
    "binary 2 without its length": (0x05, binary(2, b"xy")),
    "undefined": (0x06, b""),
    "symbol": (0x0E, text(b"sym")),
    "DBPointer": (0x0C, text(b"db.c") + OID),
    "code": (0x0D, text(b"f()")),
    "code with a scope": (
        0x0F,
        struct.pack("<i", 8 + len(text(b"f")) + len(document_of(ONE)) - 4 + 0)
        + text(b"f")
        + document_of(ONE),
    ),
    "regex": (0x0B, b"^a\0imsx\0"),
    "regex, unknown flags": (0x0B, b"^a\0zyx\0"),
    "regex, flags twice": (0x0B, b"^a\0iiimm\0"),
    "regex, empty": (0x0B, b"\0\0"),
    "date, first": (0x09, struct.pack("<q", -(2**63))),
    "date, last": (0x09, struct.pack("<q", 2**63 - 1)),
    "date, year 0": (0x09, struct.pack("<q", -62135596800001)),
    "date, year 10000": (0x09, struct.pack("<q", 253402300800000)),
    "timestamp": (0x11, b"\xff" * 8),
    "decimal, all bits": (0x13, b"\xff" * 16),
    "decimal, padded": (0x13, b"\xff" * 14 + b"\x00\x60"),
    "double, signalling NaN": (0x01, b"\x01\0\0\0\0\0\xf4\x7f"),
    "document, empty name": (0x03, document_of(element(0x10, b"", b"\1\0\0\0"))),
    "document, duplicate names": (0x03, document_of(ONE, ONE, element(0x02, b"a", text(b"x")))),
    "document, dollars and dots": (
        0x03,
        document_of(element(0x10, b"$a.b", b"\1\0\0\0"), element(0x10, b".", b"\1\0\0\0")),
    ),
    "document, looks like a reference": (
        0x03,
        document_of(
            element(0x02, b"$ref", text(b"c")),
            element(0x05, b"$id", binary(4, b"x")),
            element(0x05, b"y", binary(4, b"y" * 16)),
        ),
    ),
    "array, odd names": (0x04, document_of(element(0x10, b"7", b"\1\0\0\0"), element(0x0A, b"x", b""))),
    "array of binaries": (
        0x04,
        document_of(element(0x05, b"0", binary(4, b"x")), element(0x05, b"1", binary(4, b"y" * 16))),
    ),
    "text, NUL": (0x02, text(b"a\0b")),
    "text, overlong": (0x02, text(b"\xc0\x80")),
    "text, surrogate": (0x02, text(b"\xed\xa0\x80")),
    "text, above Unicode": (0x02, text(b"\xf4\x90\x80\x80")),
    "text, cut": (0x02, text(b"\xe2\x82")),
    "code, not UTF-8": (0x0D, text(b"\xff")),
    "symbol, not UTF-8": (0x0E, text(b"\xff")),
    "regex, not UTF-8": (0x0B, b"\xff\0\0"),
    "name, not UTF-8": (0x03, document_of(element(0x10, b"\xff", b"\1\0\0\0"))),
    "bool of 2": (0x08, b"\2"),
    "min key": (0xFF, b""),
    "max key": (0x7F, b""),
}


def deep(levels):
    inner = document_of()
    for _ in range(levels):
        inner = document_of(element(0x03, b"a", inner))
    return inner


FORMS |= {f"{levels} levels": (0x03, deep(levels)) for levels in (100, 150, 170, 176)}


def by_the_driver(raw):
    """Return a document as PyMongo decodes it with its defaults and dates of any year, or None."""
    try:
        return bson.decode(raw, CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_AUTO))
    except bson.errors.BSONError:
        return None


# In an `_id`, PyMongo makes the same of these forms as of others.
CHANGED = (
    "undefined", "symbol", "DBPointer", "regex, unknown flags", "regex, flags twice",
    "document, duplicate names", "array, odd names",
)  # fmt: skip
NESTED = (dict, DBRef)


class TestWhatTheDriverReads:
    """Every form of BSON that the server stores is delivered, unless PyMongo cannot read it."""

    @pytest.fixture
    def stored(self, written):
        """Provide the documents with each form in a field, and in their `_id`, that the server accepts."""
        stored = []
        for number, (name, (kind, value)) in enumerate(FORMS.items()):
            inside = document_of(element(0x10, b"n", struct.pack("<i", number)), element(kind, b"v", value))
            for key in (
                element(0x10, b"_id", struct.pack("<i", 1000 + number)),
                element(0x03, b"_id", inside),
                element(kind, b"_id", value),
            ):
                document = document_of(
                    key, element(0x02, b"form", text(name.encode())), element(kind, b"v", value)
                )
                try:
                    written.insert_one(RawBSONDocument(document))
                except (OperationFailure, DocumentTooLarge):
                    continue
                stored.append(
                    (
                        document,
                        name in CHANGED
                        and type((by_the_driver(document_of(key)) or {}).get("_id")) in NESTED,
                    )
                )
        return stored

    @pytest.mark.parametrize("most_counted", [None, 0], ids=["counted", "sampled"])
    def test_is_delivered(self, reader, here, stored, monkeypatch, most_counted):
        if most_counted is not None:  # as for a large or a sharded collection
            monkeypatch.setattr(snapshots, "_MOST_COUNTED", most_counted)
        count = sum(by_the_driver(document) is not None and not same for document, same in stored)
        assert count > 150
        assert count < len(stored)
        for start, partitions in ((Beginning(), 1), (Snapshot(segments=9), 9)):
            seen = walk_over(reader, here, start, partitions=partitions)
            assert len(seen) == len(stored) + 1
            assert sum(each is not None for each in seen) == count + 1
