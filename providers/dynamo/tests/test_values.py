"""Tests that attribute values keep every digit in both formats, and that their JSON is correct."""

import base64
from decimal import Decimal

import orjson
import pytest
from boto3.dynamodb.types import Binary, TypeDeserializer
from hypothesis import given
from hypothesis import strategies as st

from multiclouddb_api import canonical_json, decode_json, encode_json
from multiclouddb_dynamo.values import decode, decode_map, json_map

from .world import patiently

# The exceptions that the mapper treats as damage.
DAMAGE = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError)
NUMBERS = {
    "0": 0, "-0.0": 0, "1.50": Decimal("1.50"), "2.0": 2, "1E+2": 100, "1e-2": Decimal("0.01"),
    "-" + "9" * 38: 1 - 10**38, "0." + "1" * 38: Decimal("0." + "1" * 38), str(2**63): 2**63,
    "9.9999999999999999999999999999999999999E+125": 99999999999999999999999999999999999999 * 10**88,
    "-1E-130": Decimal("-1E-130"), "1" + "0" * 37: 10**37,
}  # fmt: skip
TEXTS = ["", "a", "é\U0001f600", "$", "$map", "$decimal", '"$', "null", "\x00", "},\n{", "N"]
BYTES = [b"", b"hi", bytes(range(256))]


def tagged(tag, value, wire=None, parsed=None):
    """Return one value in three forms: in Python, on the wire, and as boto3 parses it."""
    wire = value if wire is None else wire
    return value, {tag: wire}, {tag: wire if parsed is None else parsed}


def in_base64(data):
    return base64.b64encode(data).decode()


SCALARS = [
    *(tagged("S", text) for text in TEXTS),
    *(tagged("N", value, text) for text, value in NUMBERS.items()),
    *(tagged("B", data, in_base64(data), data) for data in BYTES),
    tagged("BOOL", True), tagged("BOOL", False), (None, {"NULL": True}, {"NULL": True}),
    tagged("SS", frozenset(TEXTS), TEXTS),
    tagged("NS", frozenset(NUMBERS.values()), list(NUMBERS)),
    tagged("BS", frozenset(BYTES), list(map(in_base64, BYTES)), BYTES),
]  # fmt: skip
values = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: (
        st.lists(inner, max_size=3).map(
            lambda parts: nested("L", [list(form) for form in zip(*parts, strict=True)] or [[]] * 3)
        )
        | st.dictionaries(st.sampled_from(TEXTS), inner, max_size=3).map(
            lambda parts: nested("M", mapped(parts))
        )
    ),
    max_leaves=8,
)
documents = st.dictionaries(st.sampled_from(TEXTS), values, max_size=4).map(lambda parts: mapped(parts))


def mapped(parts):
    return tuple({name: part[index] for name, part in parts.items()} for index in range(3))


def nested(tag, forms):
    value, wire, parsed = forms
    return value, {tag: wire}, {tag: parsed}


def plain(value):
    """Return the result of boto3's deserializer, adjusted to the project's three differences."""
    match value:
        case Binary():
            return bytes(value)
        case Decimal():
            return int(value) if value == value.to_integral_value() else value
        case set():
            return frozenset(plain(each) for each in value)
        case list():
            return [plain(each) for each in value]
        case dict():
            return {name: plain(each) for name, each in value.items()}
        case _:
            return value


def same(a, b):
    """Return True if both values are equal and have the same types at every level."""
    return type(a) is type(b) and a == b and canonical_json(a) == canonical_json(b)


def check(made):
    """Check that both forms of a document give its values and their JSON."""
    value, wire, parsed = made
    expected = orjson.loads(encode_json(value))
    for form in (wire, parsed):
        assert same(decode_map(form), value)
        assert list(decode_map(form)) == list(value)
        found = orjson.dumps(json_map(form))
        assert orjson.loads(found) == expected
        assert found == encode_json(decode_map(form))  # the names are in the same order
        assert same(decode_json(found), value)
    assert same(decode({"M": parsed}), plain(TypeDeserializer().deserialize({"M": parsed})))


@pytest.mark.parametrize("made", SCALARS, ids=range(len(SCALARS)))
def test_each_kind_of_value(made):
    check(mapped({"a": made}))


@patiently
@given(documents)
def test_documents(made):
    check(made)


@pytest.mark.parametrize("text", NUMBERS)
def test_a_number_keeps_its_digits(text):
    assert str(decode({"N": text})) == str(NUMBERS[text])


# These are not attribute values, or DynamoDB cannot store them. Guessing a value would hide the damage.
MALFORMED = [
    None, 7, "S", [], {}, {"S": "a", "N": "1"}, {"X": "a"}, {"s": "a"}, {None: "a"},
    {"S": None}, {"S": 7}, {"S": b"a"}, {"S": ["a"]},
    {"N": None}, {"N": ""}, {"N": "x"}, {"N": "NaN"}, {"N": "sNaN"}, {"N": "Infinity"}, {"N": "-Infinity"},
    {"N": "1 2"}, {"N": ["1"]}, {"N": {}}, {"N": 1.5}, {"N": True}, {"N": 7}, {"N": b"7"},
    {"N": "1E+99999"}, {"N": "1E-99999"}, {"N": "9" * 5000}, {"N": "0." + "9" * 5000},
    {"B": None}, {"B": 7}, {"B": "%"}, {"B": "a"}, {"B": "é"}, {"B": ["aGk="]},
    {"BOOL": None}, {"BOOL": "true"}, {"BOOL": 1},
    {"L": None}, {"L": 7}, {"L": "ab"}, {"L": ["a"]}, {"L": [None]}, {"L": [{}]}, {"L": {"a": {"S": "a"}}},
    {"M": None}, {"M": []}, {"M": "ab"}, {"M": {"a": "b"}}, {"M": {"a": None}}, {"M": {"a": {}}},
    {"SS": None}, {"SS": 7}, {"SS": "ab"}, {"SS": [7]}, {"SS": [["a"]]}, {"SS": {"a": "b"}},
    {"NS": None}, {"NS": "12"}, {"NS": ["x"]}, {"NS": [1.5]}, {"NS": [["1"]]},
    {"BS": None}, {"BS": "aGk="}, {"BS": ["%"]}, {"BS": [["aGk="]]},
]  # fmt: skip


def test_no_value_is_guessed():
    for value in MALFORMED:
        for read in (lambda value: decode_map({"a": value}), lambda value: json_map({"a": value}), decode):
            with pytest.raises(DAMAGE):
                pytest.fail(f"{value!r} became {read(value)!r}")
