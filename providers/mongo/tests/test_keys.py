"""Tests that two keys are equal exactly if the server takes them for one item.

The server itself says what is true.
"""

import itertools
import struct
from datetime import UTC, datetime
from decimal import Decimal

import bson
import pymongo
import pytest
from bson import Binary, Code, DatetimeMS, DBRef, Decimal128, Int64, ObjectId, Regex, Timestamp
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from hypothesis import strategies as st
from pymongo.errors import DuplicateKeyError, WriteError

from multiclouddb_api import (
    Beginning,
    LogicalPartition,
    MulticloudDbKey,
    Now,
    ResourceAddress,
    Snapshot,
    encode_json,
)
from multiclouddb_mongo.mapping import MongoMapper, MongoView
from multiclouddb_mongo.values import decode, normal_key, portable

from .fuzz import fuzzed
from .monitor import read, walk
from .test_poison import walk_over

PLAIN = CodecOptions(uuid_representation=UuidRepresentation.STANDARD)
U = bson.binary.UUID("12345678-1234-5678-9abc-def012345678")
WHOLE = [0, 1, -1, 2**31, 2**53, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)]
DOUBLES = [0.5, 0.1, 1.5, 1e22, 1e23, 2.0**63, 2.0**64, 2.0**100, 2.0**120, 1e300, 5e-324, 2.0**-40, 1e308]
TEXTS = (
    "0E-6176 -0 -0E+6111 1.0 1.50 1.5 0.1 0.1000000000000000055511151231257827 1E+3 1000.00 1E+6000 10E+5999 "
    "9007199254740993 9007199254740993.0 9223372036854775807 9223372036854775808 1E+22 1E+23 1E+300 "
    "1.000000000000000052504760255204421E+300 5E-324 1267650600228229401496703205376 1E-6176 10E-6176 0.50 "
    "1.329227995784915872903807060280345E+36 9.999999999999999999999999999999999E+6144 NaN -NaN sNaN "
    "Infinity -Infinity 9.094947017729282379150390625E-13"
)
# Significands that are too large for a Decimal128, which the server reads as 0.
PADDED = [
    Decimal128.from_bid(b"\xff" * 8 + bytes(6) + end) for end in (b"\x03\x30", b"\x00\x60", b"\xff\x6c")
]
NUMBERS = [
    *(kind(number) for number in WHOLE for kind in (Int64, float)),
    *(number for number in WHOLE),
    *(Decimal128(str(number)) for number in WHOLE),
    *DOUBLES,
    *(-number for number in DOUBLES),
    -0.0,
    float("inf"),
    float("-inf"),
    float("nan"),
    struct.unpack("<d", b"\1\0\0\0\0\0\xf8\xff")[0],
    *map(Decimal128, TEXTS.split()),
    *PADDED,
]
# PyMongo before 4.20 cannot read a UUID that has not the length of one.
SHORT_UUIDS = [Binary(b"1", 3), Binary(b"1", 4)] if pymongo.version_tuple >= (4, 20) else []
OTHERS = [
    *("1", "", "a", "A", "\u00e9", "e\u0301", "a\0", True, False, None, b"", b"1", Binary(b"1", 2)),
    *(Binary(b"1", 5), *SHORT_UUIDS, U, Binary(U.bytes, 3), U.bytes, Binary(U.bytes, 4)),
    *(datetime(1970, 1, 1, tzinfo=UTC), DatetimeMS(0), Timestamp(0, 0), DatetimeMS(2**62), Timestamp(0, 1)),
    *(ObjectId(bytes(12)), bytes(12), bson.MinKey(), bson.MaxKey(), Code("1"), Code("1", {}), "1\0"),
    *({}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": None}, {"": 1}, {"a": {"a": 1}}, DBRef("c", 1)),
    *(Code("f", {"n": 1}), Code("f", {"n": 1.0}), DBRef("c", 1.0), {"a": Regex("a")}, {"a": Regex("a", "i")}),
]
AROUND = (
    lambda value: value,
    lambda value: {"a": value},
    lambda value: {"a": [value, {"b": [value]}]},
)


def form(value):
    """Return the text of a key in its normal form."""
    document = bson.encode({"_id": value}, codec_options=PLAIN)
    return encode_json(normal_key(decode(document), document))


def items(collection, values):
    """Return for each value which of the values the server takes for the same item."""
    collection.delete_many({})
    found = []
    for number, value in enumerate(values):
        try:
            collection.insert_one({"_id": value, "n": number})
            found.append(number)
        except bson.errors.BSONError:
            raise
        except Exception as error:
            if getattr(error, "code", None) != 11000:
                raise
            found.append(collection.find_one({"_id": {"$eq": value}})["n"])
    return found


def same_forms(values):
    firsts = {}
    return [firsts.setdefault(form(value), number) for number, value in enumerate(values)]


@pytest.fixture
def items_of(one, database):
    return one.client()[database].get_collection("items", codec_options=PLAIN)


@pytest.mark.parametrize("around", AROUND, ids=["alone", "in a document", "in lists"])
def test_every_number_and_every_other_value(items_of, around):
    values = [around(value) for value in NUMBERS + OTHERS]
    assert items(items_of, values) == same_forms(values)


_integers = st.sampled_from(WHOLE) | st.integers(-(2**63), 2**63 - 1)
_decimals = st.builds(
    lambda sign, digits, exponent: Decimal128(Decimal((sign, tuple(map(int, str(digits))), exponent))),
    st.integers(0, 1), st.integers(0, 10**34 - 1) | st.integers(0, 99),
    st.integers(-6176, 6111) | st.integers(-30, 30),
)  # fmt: skip
_numbers = _integers | st.floats() | _decimals


def spellings(number):
    """Return a number in the types in which BSON may represent it."""
    exact = number.to_decimal() if isinstance(number, Decimal128) else Decimal(number)
    found = [number]
    if exact.is_finite():
        found.append(float(exact))
        if abs(exact) < 2**63:
            found.append(Int64(int(exact)))
        rounded = bson.decimal128.create_decimal128_context().create_decimal(exact)
        found += [Decimal128(rounded), Decimal128(Decimal(f"{float(exact)!r}"))]
        if len(rounded.as_tuple().digits) < 34 and rounded.as_tuple().exponent > -6000:
            found.append(Decimal128(rounded.scaleb(-1) * 10))
    return found


class TestAnyNumber:
    @pytest.fixture(autouse=True)
    def _server(self, items_of):
        self.items = items_of

    @fuzzed(st.lists(_numbers, min_size=1, max_size=6))
    def test_in_any_spelling(self, numbers):
        values = list(itertools.chain.from_iterable(map(spellings, numbers)))
        assert items(self.items, values) == same_forms(values)


def delivered(reader, address, start=None, **asked):
    return [event for page in walk(reader, address, start, **asked) for event in page.events]


class TestOneForm:
    """The key of a document has one form in events, in Arrow, in a scan and in a look-up."""

    SPELLINGS = (
        (1, 1.0),
        (1.5, Decimal128("1.50")),
        (Int64(7), Decimal128("7.0")),
        ({"a": [1]}, {"a": [1.0]}),
    )

    @pytest.mark.parametrize(("first", "second"), SPELLINGS, ids=str)
    def test_although_a_replace_changes_the_type(self, reader, here, written, first, second):
        written.insert_one({"_id": first, "n": 1})
        token = read(reader, here, Now()).continuation_token
        written.replace_one({"_id": first}, {"_id": second, "n": 2})
        written.update_one({"_id": first}, {"$set": {"n": 3}})
        written.delete_one({"_id": second})
        events = delivered(reader, here)[1:]
        assert [event.type.value for event in events] == ["CREATE", "UPDATE", "UPDATE", "DELETE"]
        assert len({event.key for event in events}) == 1
        stored = portable(decode(bson.encode({"_id": second}, codec_options=PLAIN)))
        assert repr(events[1].new_item_state["_id"]) == repr(stored["_id"])
        later = delivered(reader, here, token)
        assert [event.event_id for event in later] == [event.event_id for event in events[1:]]

    @pytest.mark.parametrize("spelling", ["5", "5.0", "50E-1"])
    def test_however_it_is_asked_for(self, reader, here, written, spelling):
        written.insert_one({"_id": Decimal128("5.00"), "n": Decimal128("5.00")})
        number = Decimal(spelling)
        asked = [MulticloudDbKey({"_id": value}) for value in (number, float(number), int(number))]
        found = reader.lookup(here, asked)
        assert found.keys() == set(asked)
        assert {event.key for event in found.values()} == {MulticloudDbKey({"_id": 5})}
        assert found[asked[0]].new_item_state["_id"] == Decimal("5.00")
        for key in asked:
            scope = LogicalPartition(key)
            for start in (Beginning(), Snapshot()):
                (event,) = delivered(reader, here, start, scope=scope)
                assert event.key == asked[-1]
                assert str(event.new_item_state["_id"]) == "5.00"

    def test_a_scan_and_arrow_have_the_same(self, reader, here, written):
        written.delete_many({})
        for value in NUMBERS:
            written.update_one({"_id": {"$eq": value}}, {"$set": {"n": 1}}, upsert=True)
        token = read(reader, here, Now()).continuation_token
        with written.with_options(
            codec_options=CodecOptions(document_class=RawBSONDocument)
        ).watch() as stream:
            written.update_many({}, {"$set": {"n": 2}})
            raws = [bytes(stream.next().raw) for _ in range(written.count_documents({}))]
        events = delivered(reader, here, token)
        texts = [encode_json(event.key.components).decode() for event in events]
        assert MongoMapper(MongoView(here, "0")).arrow(raws, 0, len(raws))["key"].to_pylist() == texts
        scanned = delivered(reader, here, Snapshot())
        assert sorted(encode_json(event.key.components).decode() for event in scanned) == sorted(texts)
        assert {event.key for event in scanned} == {event.key for event in events}
        keys = [event.key for event in events]
        assert [each.key for each in reader.lookup(here, keys).values()] == keys

    def test_a_form_is_short(self):
        for value in NUMBERS:
            assert len(form(value)) < 70


class TestWhatPyMongoChanges:
    """A key that PyMongo decodes like another document's is told, and not taken for the other one."""

    @staticmethod
    def id_of_fields(*fields):
        def document(*elements):
            body = b"".join(elements) + b"\0"
            return struct.pack("<i", len(body) + 4) + body

        inner = document(*(bytes([kind]) + name + b"\0" + value for kind, name, value in fields))
        return RawBSONDocument(document(b"\x03_id\0" + inner))

    @pytest.mark.parametrize(
        ("fields", "like"),
        [
            ([(0x06, b"a", b"")], {"a": None}),
            ([(0x10, b"a", b"\1\0\0\0"), (0x10, b"a", b"\2\0\0\0")], {"a": 2}),
            ([(0x0C, b"a", b"\2\0\0\0c\0" + bytes(12))], {"a": DBRef("c", ObjectId(bytes(12)))}),
            ([(0x0B, b"a", b"x\0mi\0")], {"a": Regex("x", "im")}),
        ],
        ids=["undefined", "two of one name", "DBPointer", "flags"],
    )
    def test_is_a_poison_record(self, reader, here, written, fields, like):
        written.delete_many({})
        token = read(reader, here, Now()).continuation_token
        written.insert_one({"_id": like})
        written.insert_one(self.id_of_fields(*fields))
        written.insert_one({"_id": "after"})
        assert walk_over(reader, here, token) == [like, None, "after"]
        scanned = walk_over(reader, here, Snapshot())
        assert len(scanned) == 3
        assert scanned.count(None) == 1
        key = MulticloudDbKey({"_id": like})
        assert reader.lookup(here, [key])[key].key == key


class TestCollation:
    """Whatever collation a collection has, the texts of keys are exact."""

    COLLATIONS = (
        {"locale": "en", "strength": 2},
        {"locale": "en", "numericOrdering": True},
        {"locale": "fr", "strength": 1},
    )

    @pytest.mark.parametrize("collation", COLLATIONS, ids=str)
    @pytest.mark.parametrize(("stored", "other"), [("Alice", "alice"), ("10", "010"), ("\u00e9", "e")])
    def test_a_scan_a_lookup_and_a_stream_say_the_same(self, reader, one, database, collation, stored, other):
        collection = one.client()[database].create_collection("c", collation=collation)
        address = ResourceAddress(database, "c")
        for value in (stored, {"a": [stored]}):
            collection.insert_one({"_id": value})
        for around in (lambda value: value, lambda value: {"a": [value]}):
            for value, count in ((stored, 1), (other, 0)):
                key = MulticloudDbKey({"_id": around(value)})
                for start in (Beginning(), Snapshot()):
                    found = delivered(reader, address, start, scope=LogicalPartition(key))
                    assert [event.key for event in found] == [key] * count
                event = reader.lookup(address, [key])[key]
                assert (event is not None) == bool(count)

    def test_the_server_itself_refuses_to_change_the_text_of_a_key(self, one, database):
        """So a key never changes from one text to another that compares equal."""
        collection = one.client()[database].create_collection("c", collation=self.COLLATIONS[0])
        collection.insert_one({"_id": "Alice"})
        with pytest.raises(WriteError, match="immutable"):
            collection.replace_one({"_id": "alice"}, {"_id": "alice"})
        with pytest.raises(DuplicateKeyError):
            collection.insert_one({"_id": "alice"})
