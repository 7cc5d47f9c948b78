"""Tests the conversion of every BSON type to Python values and JSON and back.

The tests use examples and random values.
"""

import functools
import re
import struct
from copy import deepcopy
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import bson
import orjson
import pytest
from bson import (
    Binary,
    Code,
    DatetimeMS,
    DBRef,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Timestamp,
)
from bson.errors import InvalidBSON
from hypothesis import strategies as st

from multiclouddb_api import ErrorCategory, MulticloudDbError, MulticloudDbKey, encode_json
from multiclouddb_api.codec import Tagged, decode_json
from multiclouddb_conformance import refusals
from multiclouddb_mongo.values import CODEC, TEXT_CODEC, decode_all, json_text, portable, to_bson

from .fuzz import fuzzed

OID = ObjectId("65f0a1b2c3d4e5f60718293a")
U = UUID("12345678-1234-5678-9abc-def012345678")
NOON = datetime(2026, 1, 31, 12, 0, 0, 123000, tzinfo=UTC)


def encoded(document):
    return bson.encode(document, codec_options=CODEC)


def decoded(value):
    """Return a value in the form of an event: converted to BSON and decoded by PyMongo."""
    return bson.decode(encoded({"v": value}), CODEC)["v"]


def raw(kind, payload):
    """Return the value in a BSON document that the test writes byte by byte."""
    body = bytes([kind]) + b"v\0" + payload + b"\0"
    return bson.decode(struct.pack("<i", len(body) + 4) + body, CODEC)["v"]


def text(value):
    return struct.pack("<i", len(value) + 1) + value + b"\0"


refused = functools.partial(refusals.refused, ErrorCategory.INVALID_REQUEST)


# Each row: a value as the application stores it, the value in the event, and its JSON.
VALUES = [
    ("text", "text", b'"text"'),
    (True, True, b"true"),
    (None, None, b"null"),
    (7, 7, b"7"),
    (Int64(8), 8, b"8"),
    (Int64(-(2**63)), -(2**63), b"-9223372036854775808"),
    (2**63 - 1, 2**63 - 1, b"9223372036854775807"),
    (1.5, 1.5, b"1.5"),
    (-0.0, -0.0, b"-0.0"),
    (float("inf"), float("inf"), b'{"$float":"Infinity"}'),
    (float("-inf"), float("-inf"), b'{"$float":"-Infinity"}'),
    (b"hi", b"hi", b'{"$bytes":"aGk="}'),
    (Binary(b"hi", 0), b"hi", b'{"$bytes":"aGk="}'),
    (Binary(b"hi", 2), Binary(b"hi", 2), b'{"$mongo.binary":[2,"aGk="]}'),
    (Binary(U.bytes, 3), Binary(U.bytes, 3), b'{"$mongo.binary":[3,"EjRWeBI0VniavN7wEjRWeA=="]}'),
    (Binary(b"hi", 128), Binary(b"hi", 128), b'{"$mongo.binary":[128,"aGk="]}'),
    (U, U, b'{"$uuid":"12345678-1234-5678-9abc-def012345678"}'),
    (NOON, NOON, b'{"$date":"2026-01-31T12:00:00.123000Z"}'),
    (datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC), b'{"$date":"0001-01-01T00:00:00Z"}'),
    (DatetimeMS(253402300800000), DatetimeMS(253402300800000), b'{"$mongo.datetime":253402300800000}'),
    (DatetimeMS(-(2**63)), DatetimeMS(-(2**63)), b'{"$mongo.datetime":-9223372036854775808}'),
    (Decimal128("1.50"), Decimal("1.50"), b'{"$decimal":"1.50"}'),
    (OID, OID, b'{"$mongo.objectid":"65f0a1b2c3d4e5f60718293a"}'),
    (Timestamp(1700000000, 4294967295), Timestamp(1700000000, 4294967295), None),
    (Regex("^a", "im"), Regex("^a", 10), b'{"$mongo.regex":["^a","im"]}'),
    (Regex("a", 126), Regex("a", 126), b'{"$mongo.regex":["a","ilmsux"]}'),
    (Code("f()"), Code("f()"), b'{"$mongo.code":["f()",null]}'),
    (Code("f()", {}), Code("f()", {}), b'{"$mongo.code":["f()",{}]}'),
    (Code("f()", {"n": OID}), Code("f()", {"n": OID}), None),
    (DBRef("c", OID), DBRef("c", OID), None),
    (DBRef("c", 1, "d", x=[b"b"]), DBRef("c", 1, "d", x=[b"b"]), None),
    (MinKey(), MinKey(), b'{"$mongo.minkey":1}'),
    (MaxKey(), MaxKey(), b'{"$mongo.maxkey":1}'),
    ({}, {}, b"{}"),
    ({"": {"$set": 1, "a": OID}}, {"": {"$set": 1, "a": OID}}, None),
    ([[], [OID, Decimal128("1")]], [[], [OID, Decimal("1")]], None),
]


class TestEveryType:
    @pytest.mark.parametrize(("stored", "event", "written"), VALUES, ids=repr)
    def test_comes_as_python_has_it_and_goes_back_and_may_be_a_key(self, stored, event, written):
        found = portable({"v": decoded(stored)})["v"]
        assert found == event
        utc = "FixedOffset(datetime.timedelta(0), 'UTC')"
        assert repr(found).replace(utc, "datetime.timezone.utc") == repr(event)
        assert written is None or encode_json(found) == written
        back = decode_json(json_text({"v": decoded(stored)}))["v"]
        assert back == event
        assert type(back) is type(event)
        narrow = int(stored) if type(stored) is Int64 else stored
        assert encoded({"v": to_bson(back)}) == encoded({"v": narrow})
        key = MulticloudDbKey({"_id": found})
        again = MulticloudDbKey({"_id": decode_json(encode_json(key.components))["_id"]})
        assert key == again
        assert hash(key) == hash(again)

    def test_a_nan_is_a_nan(self):
        line = json_text({"v": decoded(float("nan"))})
        assert line == b'{"v":{"$float":"NaN"}}'
        back = to_bson(decode_json(line)["v"])
        assert back != back

    def test_symbols_undefined_and_dbpointers_are_what_pymongo_makes_of_them(self):
        assert raw(0x0E, text(b"sym")) == "sym"
        assert raw(0x06, b"") is None
        assert raw(0x0C, text(b"c") + OID.binary) == DBRef("c", OID)

    def test_a_document_that_looks_like_one_of_ours_is_itself(self):
        objectid = {"$mongo.objectid": "65f0a1b2c3d4e5f60718293a"}
        for document in (objectid, {"$decimal": "1"}, {"$map": {"a": 1}}, {"a": {"$date": "soon"}}):
            assert decode_json(json_text(decoded(document))) == document


DIGITS = (
    "0 -0 0E-6176 -0E+6111 1E-6176 1E+6111 1E+3 1.500 NaN -NaN sNaN -sNaN Infinity -Infinity "
    "9.999999999999999999999999999999999E+6144 1000000000000000000000000000000000E+6111 "
    "-9999999999999999999999999999999999 12345678901234567890123456789012.34"
)


class TestDecimals:
    @pytest.mark.parametrize("digits", DIGITS.split())
    def test_every_digit_and_sign_is_kept(self, digits):
        stored = Decimal128(digits)
        found = portable({"v": decoded(stored)})["v"]
        assert type(found) is Decimal
        assert repr(found) == repr(stored.to_decimal()) == repr(decode_json(json_text({"v": stored}))["v"])
        assert to_bson(found).bid == stored.bid

    @fuzzed(st.binary(min_size=16, max_size=16))
    def test_any_bits_come_back(self, bid):
        stored = Decimal128.from_bid(bid)
        found = portable({"v": stored})["v"]
        assert to_bson(found).bid == bid
        if type(found) is Decimal:
            assert repr(found) == repr(stored.to_decimal())

    def test_they_are_found_at_any_depth_and_the_document_is_the_same(self):
        d, e = Decimal128("1.0"), Decimal("1.0")
        document = {"a": d, "b": {"c": [d, {"d": [[d]]}]}, "e": "x"}
        found = portable(document)
        assert found is document
        assert found == {"a": e, "b": {"c": [e, {"d": [[e]]}]}, "e": "x"}

    @pytest.mark.parametrize(
        "number", ["1" * 35, "1E+6145", "1E-6177", "NaN123", "-sNaN5", "1." + "0" * 40 + "1"]
    )
    def test_what_does_not_fit_is_refused(self, number):
        with refused("Decimal", "34 digits"):
            to_bson(Decimal(number))


class TestToBson:
    @pytest.mark.parametrize(
        ("value", "words"),
        [
            ({1, 2}, ["a set", "list"]),
            (frozenset(), ["a set", "use a list"]),
            ([{"a": {1}}], ["set"]),
            (datetime(2026, 1, 1), ["naive datetime", "tzinfo=UTC"]),  # noqa: DTZ001
            (NOON.replace(microsecond=1), ["millisecond"]),
            (2**63, ["64 bits"]),
            (-(2**63) - 1, ["64 bits"]),
            (object(), ["builtins.object", "BSON's types"]),
            (1j, ["builtins.complex"]),
            ({1: "a"}, ["name of type int", "str"]),
            ({"a\0b": 1}, ["NUL"]),
            (Tagged("cosmos.thing", 1), ["cosmos.thing"]),
            (Code("f", {"x": {1}}), ["set"]),
            (DBRef("c", {1}), ["set"]),
            ("\ud800", ["Unicode"]),
            ({"\ud800": 1}, ["Unicode"]),
            (Regex("a\0b"), ["NUL"]),
        ],
    )
    def test_what_bson_has_not_is_refused(self, value, words):
        with refused("value", *words):
            to_bson(value)

    def test_a_value_nested_too_deeply_is_refused(self):
        value = []
        for _ in range(300):
            value = [value]
        with refused("200 levels"):
            to_bson(value)

    @pytest.mark.parametrize(
        ("value", "sent"),
        [
            (Decimal("1.50"), Decimal128("1.50")),
            ({"a": [Decimal(1)]}, {"a": [Decimal128("1")]}),
            (("a", 1), ["a", 1]),
            (bytearray(b"hi"), b"hi"),
            pytest.param(memoryview(b"hi"), b"hi", id="memoryview"),
            (Tagged("mongo.objectid", str(OID)), OID),
            ({"a": Tagged("mongo.timestamp", [1, 2])}, {"a": Timestamp(1, 2)}),
            (Code("f", {"x": Decimal(1)}), Code("f", {"x": Decimal128("1")})),
            (DBRef("c", Decimal(1), "d", x=2), DBRef("c", Decimal128("1"), "d", x=2)),
            (NOON.astimezone(timezone(timedelta(hours=5))), NOON),
        ],
        ids=repr,
    )
    def test_what_bson_has_in_another_class(self, value, sent):
        found = to_bson(value)
        assert found == sent
        assert type(found) is type(sent)
        encoded({"v": found})

    @pytest.mark.parametrize("base", [str, int, float, bytes])
    def test_a_subclass_is_what_it_is_made_of(self, base):
        made = type("Mine", (base,), {})(b"7" if base is bytes else "7")
        found = to_bson(made)
        assert type(found) is base
        assert found == made


class TestDamagedText:
    @pytest.mark.parametrize(
        ("tag", "inner"),
        [
            (
                "objectid",
                ["", "65f0", "65F0A1B2C3D4E5F60718293A", "g" * 24, 5, None, "65f0 1b2c3d4e5f60718293"],
            ),
            (
                "timestamp",
                [[], [1], [1, 2, 3], ["1", 2], [1.0, 2], [True, 2], [-1, 2], [1, 2**32], "1,2", None],
            ),
            ("regex", [[], ["a"], ["a", 2], ["a", "z"], ["a", "mi"], ["a", "ii"], [None, ""], "a"]),
            ("binary", [[], [3], ["3", ""], [3, 5], [-1, ""], [256, ""], [True, ""], [3, "a"], [3, "ä"]]),
            ("binary", [[3, "aG\nk="]]),
            ("code", [[], ["f"], ["f", 1], [5, None], ["f", []], ["f", {"$uuid": "x"}], None, {}]),
            ("dbref", [{}, [], None, {"$map": {"$ref": "c"}}, {"$map": {"$ref": 5, "$id": 1}}]),
            ("dbref", [{"$map": {"$ref": "c", "$id": 1, "$db": 5}}, {"$map": 1}]),
            ("datetime", ["1", None, 1.5, True, 2**63, {"$int": "9223372036854775808"}]),
            ("minkey", [0, True, "1", None, 1.0]),
            ("maxkey", [0, True, "1", None, 1.0]),
            ("decimal128", ["", "00", "g" * 32, "0" * 31 + "A", 5, None]),
        ],
    )
    def test_is_refused(self, tag, inner):
        for damaged in inner:
            with refused("text", "damaged"):
                decode_json(orjson.dumps({"a": {f"$mongo.{tag}": damaged}}))


class TestJsonText:
    @pytest.mark.parametrize("depth", [1, 100, 197, 198, 199, 200, 201, 230, 300])
    @pytest.mark.parametrize("leaf", [1, OID, None, {}, [OID], 1.5])
    def test_is_as_deep_as_encode_json(self, depth, leaf):
        for wrap in (lambda inner: {"a": inner}, lambda inner: [inner], lambda inner: {"$a": inner}):
            value = leaf
            for _ in range(depth):
                value = wrap(value)
            try:
                expected = encode_json({"v": value})
            except MulticloudDbError as error:
                with refused(error.message):
                    json_text({"v": value})
            else:
                assert json_text({"v": value}) == expected

    @pytest.mark.parametrize("value", [Regex("a", re.ASCII), Regex(b"a")])
    def test_a_regex_that_bson_has_not_is_refused_and_not_cut(self, value):
        with refused("value", "BSON cannot store"):
            json_text({"v": value})

    def test_a_naive_moment_is_in_utc_as_text_codec_decodes_it(self):
        moment = {"a": [datetime(2026, 1, 31, 12, 0, 0, 5000, tzinfo=UTC)]}
        for codec in (TEXT_CODEC, CODEC):
            assert json_text(bson.decode(bson.encode(moment), codec)) == encode_json(moment)


# -- Any document

_patterns = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)
_names = _patterns | st.sampled_from(
    ["$", "$ref", "$id", "$db", "$map", "$decimal", "$mongo.objectid", "_id"]
)
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
_dates = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59)).map(  # noqa: DTZ001
    lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000, tzinfo=UTC)
)
_int64 = st.integers(-(2**63), 2**63 - 1)
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    _int64,
    _int64.map(Int64),
    st.integers(-100, 100).map(Int64),
    st.floats(),
    _texts,
    st.binary(max_size=8),
    # PyMongo before 4.20 cannot encode the subtype 255.
    st.builds(Binary, st.binary(max_size=8), st.integers(0, 254).filter(lambda subtype: subtype != 4)),
    st.uuids(),
    _dates,
    _int64.map(DatetimeMS),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.builds(Regex, _patterns, st.integers(0, 63).map(lambda bits: bits << 1)),
    st.binary(min_size=16, max_size=16).map(Decimal128.from_bid),
    st.decimals(allow_nan=False, places=4, min_value=-(10**20), max_value=10**20).map(Decimal128),
    st.sampled_from([MinKey(), MaxKey()]),
    _texts.map(Code),
)
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(_names, inner, max_size=4),
        st.builds(Code, _texts, st.dictionaries(_names, inner, max_size=2)),
        st.builds(DBRef, _texts, inner, st.none() | _texts),
    ),
    max_leaves=12,
)
_documents = st.dictionaries(_names, _values, max_size=6).map(
    # PyMongo turns documents that look like a DBRef into a DBRef, so such a document must be a DBRef.
    lambda document: ({name: value for name, value in document.items() if name not in ("$ref", "$id", "$db")})
)


def plain(value):
    """Return a value as the library's JSON stores it, with one kind of integer and one NaN."""
    if type(value) is Int64:
        return int(value)
    if type(value) is float and value != value:
        return float("nan")
    if type(value) is list:
        return [plain(item) for item in value]
    if type(value) is dict:
        return {name: plain(item) for name, item in value.items()}
    if type(value) is Code and value.scope is not None:
        return Code(str(value), plain(dict(value.scope)))
    if type(value) is DBRef:
        fields = plain(dict(value.as_doc()))
        return DBRef(fields.pop("$ref"), fields.pop("$id"), fields.pop("$db", None), fields)
    return value


@fuzzed(_documents | st.just({"v": {"$x": Int64(5), "y": [{"$y": float("nan")}]}}))
def test_any_document_has_the_json_of_encode_json_and_comes_back_to_the_same_bson(document):
    try:
        found = bson.decode(encoded(document), CODEC)
    except InvalidBSON:
        return
    before = repr(found)
    assert json_text(found) == encode_json(portable(deepcopy(found)))
    assert repr(found) == before
    assert encoded(to_bson(decode_json(json_text(found)))) == encoded(plain(found))


def test_a_binary_that_is_no_uuid_does_not_spoil_its_document():
    other, uuid = Binary(b"x" * 36, 4), UUID(int=7)
    stored = {"a": other, "b": [uuid, {"c": other}], "d": DBRef("c", uuid), "e": Code("f", {"g": uuid})}
    documents = bson.encode(stored, codec_options=CODEC) + bson.encode({"a": uuid}, codec_options=CODEC)
    first, second = decode_all(documents)
    assert first == stored
    assert second == {"a": uuid}
    assert type(first["a"]) is Binary
    assert type(first["b"][0]) is UUID
    with pytest.raises(InvalidBSON):
        decode_all(documents[:-1])
