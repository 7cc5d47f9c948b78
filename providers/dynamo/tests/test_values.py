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

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["", "$", "$map", "$decimal", '"$', "null", "\x00", "},\n{", "N"]
)


@st.composite
def numbers(draw):
    """Generate texts of numbers that DynamoDB accepts (up to 38 digits, up to 1e125), with their values."""
    digits = draw(st.integers(-(10**38) + 1, 10**38 - 1))
    exponent = draw(st.sampled_from([0, 0, -1, -7, -37, -92]) | st.integers(-92, 87))
    exact = Decimal((digits < 0, Decimal(abs(digits)).as_tuple().digits, exponent))
    # boto3's deserializer accepts 38 digits, including zeros at the end.
    plainly = exact.adjusted() < 38 and draw(st.booleans())
    written = format(exact, "f") if plainly else str(exact)
    return written, int(exact) if exact == exact.to_integral_value() else exact


def tagged(tag, value, wire=None, parsed=None):
    """Return one value in three forms: in Python, on the wire, and as boto3 parses it."""
    wire = value if wire is None else wire
    return value, {tag: wire}, {tag: wire if parsed is None else parsed}


def in_base64(data):
    return base64.b64encode(data).decode()


scalars = st.one_of(
    texts.map(lambda text: tagged("S", text)),
    numbers().map(lambda number: tagged("N", number[1], number[0])),
    st.binary(max_size=12).map(lambda data: tagged("B", data, in_base64(data), data)),
    st.booleans().map(lambda truth: tagged("BOOL", truth)),
    st.just((None, {"NULL": True}, {"NULL": True})),
    st.lists(texts, min_size=1, max_size=3, unique=True).map(
        lambda some: tagged("SS", frozenset(some), some)
    ),
    st.lists(numbers(), min_size=1, max_size=3, unique_by=lambda number: number[1]).map(
        lambda some: tagged("NS", frozenset(value for _, value in some), [text for text, _ in some])
    ),
    st.lists(st.binary(max_size=8), min_size=1, max_size=3, unique=True).map(
        lambda some: tagged("BS", frozenset(some), [in_base64(data) for data in some], some)
    ),
)


def listed(parts):
    return (
        [value for value, _, _ in parts],
        {"L": [wire for _, wire, _ in parts]},
        {"L": [parsed for _, _, parsed in parts]},
    )


def mapped(parts):
    return tuple({name: part[index] for name, part in parts.items()} for index in range(3))


def nested(parts):
    value, wire, parsed = mapped(parts)
    return value, {"M": wire}, {"M": parsed}


values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3).map(listed) | st.dictionaries(texts, inner, max_size=3).map(nested)
    ),
    max_leaves=8,
)
documents = st.dictionaries(texts, values, max_size=4).map(mapped)


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


class TestDecode:
    @patiently
    @given(values)
    def test_both_forms_give_the_value(self, made):
        value, wire, parsed = made
        assert same(decode(wire), value)
        assert same(decode(parsed), value)

    @patiently
    @given(documents)
    def test_a_document_keeps_the_order_of_its_names(self, made):
        value, wire, parsed = made
        for form in (wire, parsed):
            assert same(decode_map(form), value)
            assert list(decode_map(form)) == list(value)

    @patiently
    @given(values)
    def test_it_is_what_boto3_s_deserializer_gives(self, made):
        _, _, parsed = made
        assert same(decode(parsed), plain(TypeDeserializer().deserialize(parsed)))

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("0", 0),
            ("-0", 0),
            ("-0.0", 0),
            ("1.50", Decimal("1.50")),
            ("2.0", 2),
            ("1E+2", 100),
            ("1e-2", Decimal("0.01")),
            ("9" * 38, 10**38 - 1),
            ("-" + "9" * 38, 1 - 10**38),
            ("0." + "1" * 38, Decimal("0." + "1" * 38)),
            ("1234567890.1234567890123456789012345678", Decimal("1234567890.1234567890123456789012345678")),
            ("9.9999999999999999999999999999999999999E+125", 99999999999999999999999999999999999999 * 10**88),
            ("1" + "0" * 125, 10**125),
            ("-1E-130", Decimal("-1E-130")),
            (str(2**63), 2**63),
        ],
    )
    def test_a_number_keeps_its_digits(self, text, value):
        found = decode({"N": text})
        assert same(found, value)
        assert str(found) == str(value)


class TestJson:
    @patiently
    @given(documents)
    def test_it_is_the_json_of_the_python_values(self, made):
        value, wire, parsed = made
        expected = orjson.loads(encode_json(value))
        for form in (wire, parsed):
            found = orjson.dumps(json_map(form))
            assert orjson.loads(found) == expected
            assert found == encode_json(decode_map(form))  # the names are in the same order
            assert same(decode_json(found), value)


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

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["S", "N", "B", "BOOL", "NULL", "L", "M", "SS", "NS", "BS"]), inner)
    ),
    max_leaves=10,
)


class TestDamage:
    @pytest.mark.parametrize("value", MALFORMED, ids=lambda value: repr(value)[:40])
    def test_no_value_is_guessed(self, value):
        for read in (decode_map, json_map):
            with pytest.raises(DAMAGE):
                read({"a": value})
        with pytest.raises(DAMAGE):
            decode(value)

    @patiently
    @given(json_values)
    def test_anything_is_a_value_or_damage(self, value):
        try:
            found = decode_map({"a": value})
        except DAMAGE:
            with pytest.raises(DAMAGE):
                json_map({"a": value})
        else:
            assert orjson.dumps(json_map({"a": value})) == encode_json(found)
