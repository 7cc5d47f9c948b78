"""Tests the canonical JSON: exact round trips, one text for equal values, and a single kind of error."""

import math
from collections import ChainMap, OrderedDict
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import multiclouddb_api as api

offsets = st.integers(-86399, 86399).map(lambda seconds: timezone(timedelta(seconds=seconds)))
moments = st.datetimes(datetime(3, 1, 1), datetime(9997, 1, 1), timezones=offsets)  # noqa: DTZ001
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**40), 10**40),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.decimals(allow_nan=False),
    moments,
    st.uuids(),
)
hashable = leaves | st.sampled_from([math.nan, Decimal("NaN")])
sets = st.frozensets(
    hashable | st.tuples(hashable, st.tuples(hashable)) | st.frozensets(hashable, max_size=2), max_size=3
)
names = st.text() | st.text().map("${}".format)
values = st.recursive(
    hashable | sets,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=10,
)
EAST = timezone(timedelta(hours=5, minutes=30))


def same(one, other):
    """Return True if values, types and the order of keys are equal; NaN equals NaN."""
    if isinstance(one, datetime):
        return isinstance(other, datetime) and one == other and other.utcoffset() == timedelta(0)
    if type(one) is not type(other):
        return False
    match one:
        case float() | Decimal():
            return repr(one) == repr(other)
        case list() | tuple():
            return len(one) == len(other) and all(map(same, one, other))
        case dict():
            return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
        case frozenset():
            return api.canonical_json(one) == api.canonical_json(other) and len(one) == len(other)
    return one == other


EXACT = [
    2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**100, True, 1, 1.0, -0.0, 5e-324, 1.7976931348623157e308,
    math.inf, -math.inf, math.nan, Decimal("1.50"), Decimal("-0"), Decimal("1E+999999"), Decimal("Infinity"),
    Decimal("sNaN12"), b"", b"\x00\xff", "\u2028\U0001f600", UUID(int=7),
    datetime(2026, 1, 31, 12, 0, 0, 1, UTC), datetime(2026, 1, 31, 12, tzinfo=EAST),
    datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
    frozenset(), frozenset({"a", b"a", 1, None}), frozenset({(1, ("2",)), frozenset({1})}),
    {"$decimal": "1"}, {"$": 1, "a": 2}, {"$map": {"$map": {}}}, {"a": {"$b": [{"$c": None}]}},
    {"b": 1, "a": 2}, [], {},
]  # fmt: skip


class TestRoundTrip:
    @settings(max_examples=150)
    @given(values)
    def test_of_any_value_is_exact(self, value):
        assert same(value, api.decode_json(api.encode_json(value)))
        assert same(value, api.decode_json(api.encode_json(value).decode()))

    def test_of_each_special_value_is_exact(self):
        assert [value for value in EXACT if not same(value, api.decode_json(api.encode_json(value)))] == []

    def test_other_containers_come_back_as_the_plain_ones(self):
        for value, back in (
            ((1, 2), [1, 2]),
            ({1}, frozenset({1})),
            (bytearray(b"a"), b"a"),
            (ChainMap({"a": 1}), {"a": 1}),
            (OrderedDict(a=1), {"a": 1}),
        ):
            assert same(back, api.decode_json(api.encode_json(value)))

    def test_subclasses_come_back_as_what_they_are_made_of(self):
        class Name(str, Enum):  # noqa: UP042
            BOX = "box"

        class Size(IntEnum):
            BIG = 3

        class Weight(float):
            pass

        class Row(list):
            pass

        value = {Name.BOX: [Name.BOX, Size.BIG, Weight(1.5), Row([1])]}
        assert api.encode_json(value) == b'{"box":["box",3,1.5,[1]]}'

    def test_a_type_of_a_provider_that_is_not_loaded_is_kept(self):
        text = b'{"_id":{"$elsewhere.id":"65"}}'
        value = api.decode_json(text)
        assert value == {"_id": api.Tagged("elsewhere.id", "65")}
        assert api.encode_json(value) == text

    def test_a_registered_type_is_exact(self, monkeypatch):
        class Point(tuple):
            pass

        monkeypatch.setattr(api.codec, "_encoders", dict(api.codec._encoders))
        monkeypatch.setattr(api.codec, "_decoders", dict(api.codec._decoders))
        api.codec.register_type("test.point", Point, list, Point)
        text = api.encode_json({"at": Point((1, 2))})
        assert text == b'{"at":{"$test.point":[1,2]}}'
        assert type(api.decode_json(text)["at"]) is Point


class TestCanonicalForm:
    @given(
        st.dictionaries(st.text(), st.integers(), max_size=6),
        st.frozensets(hashable, max_size=6),
        st.randoms(),
    )
    def test_knows_no_order_of_keys_and_sets(self, value, members, random):
        names, items = list(value), list(members)
        random.shuffle(names)
        random.shuffle(items)
        assert api.canonical_json(value) == api.canonical_json({name: value[name] for name in names})
        assert api.canonical_json(members) == api.canonical_json(set(items))

    def test_knows_types(self):
        texts = {api.canonical_json(value) for value in (True, 1, 1.0, "1", Decimal(1), b"1", None)}
        assert len(texts) == 7

    def test_is_short_and_has_integers_of_more_than_64_bits_as_text(self):
        """JSON readers in other languages would round integers of more than 64 bits."""
        assert api.canonical_json({"b": 1, "a": [None, True]}) == b'{"a":[null,true],"b":1}'
        assert api.encode_json([2**63 - 1, -(2**63)]) == b"[9223372036854775807,-9223372036854775808]"
        assert api.encode_json(2**63) == b'{"$int":"9223372036854775808"}'
        assert api.encode_json(-(2**63) - 1) == b'{"$int":"-9223372036854775809"}'


ENDLESS = []
ENDLESS.append(ENDLESS)
DAMAGED = [
    "", "{", "nul", "NaN", b"\xff", "\ud800", None, '{"$decimal":"one"}', '{"$decimal":1}', '{"$bytes":"?"}',
    '{"$bytes":null}', '{"$date":"2026-01-31T12:00:00"}', '{"$date":"soon"}',
    '{"$date":"0001-01-01T00:00:00+23:00"}', '{"$date":5}', '{"$set":{"a":1}}', '{"$set":"abc"}',
    '{"$set":[{"a":1}]}', '{"$uuid":"1"}', '{"$uuid":[]}', '{"$int":"1.5"}', '{"$int":1e999}', '{"$int":1.5}',
    '{"$float":"much"}', '{"$map":[]}', '{"$map":"x"}', '[{"a":{"$int":{}}}]',
    "[" * 900 + '{"$int":"1"}' + "]" * 900, "[" * 100_000,
]  # fmt: skip


def nested(depth, wrap):
    value = {"b": 1, "a": 0.5}
    for _ in range(depth):
        value = wrap(value)
    return value


WRAPS = [lambda value: {"a": value}, lambda value: {"z": 1, "$x": value}, lambda value: [1, value]]


@pytest.mark.parametrize("wrap", WRAPS, ids=["plain", "dollar", "list"])
@pytest.mark.parametrize("depth", [98, 99, 100, 101, 126, 127, 128, 150, 178, 199])
def test_what_is_nested_up_to_200_levels_deep_has_a_text(depth, wrap):
    """Each name that begins with a dollar adds a level to the text, and orjson writes 254 of them."""
    value = nested(depth, wrap)
    for write in (api.encode_json, api.canonical_json):
        assert api.decode_json(write(value)) == value
    assert api.canonical_json(value).startswith(b'{"$map":{"$x":{"$map":' if "$x" in str(value) else b"")
    assert api.canonical_json(nested(depth, wrap)) == api.canonical_json(value)
    assert b'{"a":0.5,"b":1}' in api.canonical_json(value)


class TestRefusal:
    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (object(), "builtins.object"),
            (1j, "builtins.complex"),
            ({1: 2}, "object key of type int"),
            (datetime(2026, 1, 31), "naive datetime 2026-01-31T00:00:00; add a time zone"),  # noqa: DTZ001
            (datetime(1, 1, 1, tzinfo=EAST), "cannot be written"),
            ("\ud800", "cannot be written"),
            ({"\ud800": 1}, "cannot be written"),
            (10**5000, "cannot be written"),
            (ENDLESS, "nested deeper than 200"),
        ],
        ids=["object", "complex", "key", "naive", "year 0", "text", "name", "huge", "endless"],
    )
    def test_of_what_has_no_json_form_says_what(self, value, message):
        for write in (api.encode_json, api.canonical_json):
            with pytest.raises(api.MulticloudDbError, match=message) as caught:
                write({"a": [value]})
            assert caught.value.category == api.ErrorCategory.INVALID_REQUEST

    def test_of_damaged_text(self):
        for text in DAMAGED:
            with pytest.raises(api.MulticloudDbError, match="encode_json") as caught:
                api.decode_json(text)
            assert caught.value.category == api.ErrorCategory.INVALID_REQUEST

    @settings(max_examples=150)
    @given(values, st.data())
    def test_or_a_value_of_any_text_and_any_changed_text(self, value, data):
        self.decode(data.draw(st.binary() | st.text()))
        text = bytearray(api.encode_json(value))
        for _ in range(data.draw(st.integers(1, 3))):
            text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
        self.decode(bytes(text))

    @settings(max_examples=150)
    @given(
        st.sampled_from(["decimal", "bytes", "date", "set", "uuid", "int", "float", "map", "other"]),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
        ),
    )
    def test_or_a_value_of_any_tagged_content(self, tag, content):
        self.decode(api.encode_json(api.Tagged(tag, content if content == content else None)))

    def decode(self, text):
        try:
            api.decode_json(text)
        except api.MulticloudDbError as error:
            assert error.category == api.ErrorCategory.INVALID_REQUEST  # noqa: PT017


digits = st.from_regex(r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?", fullmatch=True)


class TestTextsOfExactNumbers:
    """`parse_json` reads what a database wrote: int, or the float that is the number, or else Decimal."""

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("0", 0),
            ("-0", 0),
            ("-0.0", -0.0),
            ("9007199254740993", 2**53 + 1),
            ("9223372036854775808", 2**63),
            ("18446744073709551616", 2**64),
            ("123456789012345678901234567890", 123456789012345678901234567890),
            ("1" + "0" * 309, 10**309),
            ("9" * 4300, 10**4300 - 1),
            ("-" + "9" * 5000, Decimal("-" + "9" * 5000)),
            ("0.1", 0.1),
            ("1.10", 1.1),
            ("1e2", 100.0),
            ("1E20", 1e20),
            ("123456789.123456", 123456789.123456),
            ("3.141592653589793", 3.141592653589793),
            ("3.141592653589793238", Decimal("3.141592653589793238")),
            ("12345678901234567890.5", Decimal("12345678901234567890.5")),
            ("1.0000000000000000000000", 1.0),
            ("1e308", 1e308),
            ("1e309", Decimal("1e309")),
            ("-1.5E+400", Decimal("-1.5e400")),
            ("5e-324", 5e-324),
            ("4e-324", Decimal("4e-324")),
            ("1e-400", Decimal("1e-400")),
            ("0e-400", 0.0),
        ],
    )
    def test_a_number_is_what_its_text_says(self, text, value):
        for form in (text, text.encode()):
            assert same(api.codec.parse_json(form), value)
            assert same(api.codec.parse_json(b'{"a":[%b]}' % text.encode()), {"a": [value]})

    @given(st.lists(digits, min_size=1, max_size=3))
    def test_the_type_depends_on_the_number_only(self, texts):
        found = api.codec.parse_json(f"[{','.join(texts)}]")
        for text, number in zip(texts, found, strict=True):
            is_int = not set(text) & set(".eE")
            rounded = float(text)
            is_float = math.isfinite(rounded) and Decimal(repr(rounded)) == Decimal(text)
            assert type(number) is (int if is_int else float if is_float else Decimal)
            assert (Decimal(repr(number)) if type(number) is float else number) == Decimal(text)

    def test_texts_stay_texts_beside_long_numbers(self):
        text = '{"$date":"2026-01-31T12:00:00.123456789Z","a":"1e309 \\u00e9 \\ud83c\\udf0d","n":1e309}'
        found = {"$date": "2026-01-31T12:00:00.123456789Z", "a": "1e309 é 🌍", "n": Decimal("1e309")}
        assert api.codec.parse_json(text) == api.codec.parse_json(text.encode()) == found
        # The types have names in our own JSON.
        assert same(api.decode_json(api.encode_json(found)), found)

    @pytest.mark.parametrize("beside", ["1", "1e309"], ids=["short", "long"])
    @pytest.mark.parametrize(
        "text", ["NaN", "-Infinity", '"\\ud800"', '{"\\udc00":1}', "01", "1.", "[1,]", ""]
    )
    def test_what_is_not_json_is_refused(self, beside, text):
        for form in (f"[{beside},{text}]" if text else text, text and f"[{beside},[[{text}]]]".encode()):
            with pytest.raises(ValueError, match=r"\w"):
                api.codec.parse_json(form)
