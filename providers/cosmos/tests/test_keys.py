"""Tests the places of partition keys, the paths at which they lie, and the one form of a key."""

import math
import struct
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from azure.cosmos.partition_key import NonePartitionKeyValue

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    NotKnown,
    Now,
    Snapshot,
    encode_json,
)
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_cosmos.config import names_in
from multiclouddb_cosmos.hashing import UNDEFINED, effective_key
from multiclouddb_cosmos_emulator import hashing as emulator
from multiclouddb_cosmos_emulator.values import UNDEFINED as NOTHING
from multiclouddb_cosmos_emulator.values import path_names

from . import reference_hashes as reference
from .world import ADDRESS, seconds, soon

pytestmark = pytest.mark.usefixtures("hasty")
LATEST = CosmosOptions(mode="latest")
BACKFILL = CosmosOptions(backfill=True)


def drained(consumer):
    """Return the events up to the next idle page."""
    before = len(consumer.events)
    while not consumer.read().idle:
        pass
    return consumer.events[before:]


def short(value):
    return repr(value)[:40]


def key(value, version, *, hierarchical=False):
    """Compute the place of a value in the provider; the emulator must find the same one."""
    values = value if isinstance(value, list) else [value]
    ours = [UNDEFINED if each == reference.UNDEFINED else each for each in values]
    theirs = [NOTHING if each is UNDEFINED else each for each in ours]
    found = effective_key(ours, version, hierarchical=hierarchical)
    hashed = emulator.hash_v1 if version == 1 else emulator.hash_v2
    assert found == (emulator.hash_hierarchy if hierarchical else hashed)(theirs)
    return found


class TestHash:
    @pytest.mark.parametrize(("value", "expected"), reference.JAVA_1, ids=short)
    def test_version_1(self, value, expected):
        assert key(value, 1) == expected

    @pytest.mark.parametrize(("value", "number"), reference.DOT_NET_1, ids=short)
    def test_version_1_begins_with_the_number_that_the_value_is_hashed_to(self, value, number):
        (bits,) = struct.unpack("<Q", struct.pack("<d", float(number)))
        assert key(value, 1).startswith(f"05{(bits ^ 1 << 63) >> 56:02X}")
        assert key(value, 1).startswith(emulator.boundary_v1(number))

    @pytest.mark.parametrize(
        ("value", "expected"), [*reference.JAVA_2, *reference.RUST_2, *reference.DOT_NET_2], ids=short
    )
    def test_version_2(self, value, expected):
        assert key(value, 2) == expected
        assert key(value, 2, hierarchical=True) == expected

    def test_several_components(self):
        values, expected = reference.SEVERAL_2
        assert key(values, 2) == expected
        parts = [key(each, 2) for each in values]
        assert [key(values[:count], 2, hierarchical=True) for count in (1, 2, 3, 4)] == [
            "".join(parts[:count]) for count in (1, 2, 3, 4)
        ]

    @pytest.mark.parametrize("size", [99, 100, 101, 2_100])
    @pytest.mark.parametrize("letter", ["a", "é", "€"])
    def test_version_1_cuts_a_text_after_100_characters(self, letter, size):
        found = key(letter * size, 1)
        assert found == key(letter * min(size, 100), 1)
        assert (found == key(letter * 99, 1)) == (size == 99)
        assert len(found) <= 218

    def test_version_1_counts_utf_16_units(self):
        assert key("😀" * 60, 1) == key("😀" * 50, 1)
        with pytest.raises(ValueError, match="utf-16-le"):  # the vendor's SDKs disagree
            effective_key(["a" + "😀" * 60], 1, hierarchical=False)

    @pytest.mark.parametrize("value", [[], {}, b""])
    def test_what_cannot_be_a_component(self, value):
        with pytest.raises(TypeError):
            effective_key([value], 2, hierarchical=False)


PATHS = [
    # From the test of `PathParser` in Azure/azure-cosmos-js, without the wildcards of indexing policies.
    ('/"Key1"/"StringValue"', ("Key1", "StringValue")),
    ("/'Key1'/'StringValue'", ("Key1", "StringValue")),
    (r"""/'Ke\"\"y1'/'Strin\"gValue'""", (r"""Ke\"\"y1""", r"""Strin\"gValue""")),
    (r"""/'Ke\"\"y1'/"Strin'gValue\"""" + '"', (r"""Ke\"\"y1""", r"""Strin'gValue\"""")),
    # Others
    ("/pk", ("pk",)),
    ("/a/b/c", ("a", "b", "c")),
    ("/a/", ("a",)),
    ("/ a /b ", ("a", "b")),
    ('/a"b', ('a"b',)),
    ("/my-key", ("my-key",)),
    ("/'a/b'/c", ("a/b", "c")),
    ('/" a"', (" a",)),
    (r"/'a\'b'", (r"a\'b",)),
    ("/été/\"日本\"", ("été", "日本")),
]  # fmt: skip
NO_PATHS = [
    "",
    "/",
    "a",
    "//a",
    "/a//b",
    '/""',
    "/''/a",
    '/"a',
    "/'a\"",
    '/"a"b',
    r'/"a\"',
    "/*",
    "/[]",
    "/?",
]


class TestPaths:
    @pytest.mark.parametrize(("path", "names"), PATHS)
    def test_the_names_in_a_path(self, path, names):
        assert names_in(path) == path_names(path) == names

    @pytest.mark.parametrize("path", NO_PATHS)
    def test_what_is_no_path(self, path):
        assert names_in(path) == ()

    @pytest.mark.parametrize(("path", "names"), [each for each in PATHS if each[0] != "/a/"])
    def test_items_have_the_key_at_this_path(self, make_world, path, names):
        world = make_world(2, key=path)
        for value in ("x", "y"):
            item = value
            for name in reversed(names):
                item = {name: item}
            world.container.upsert_item({"id": "same", **item})
        request = ChangeFeedRequest(ADDRESS, Beginning(), provider_options=LATEST)
        events = list(world.client().iterate_changes(request, until_idle=True))
        full = "/".join(names)
        assert sorted(event.key[full] for event in events) == ["x", "y"]
        scope = LogicalPartition(MulticloudDbKey({full: "x"}))
        request = ChangeFeedRequest(ADDRESS, Beginning(), scope=scope, provider_options=LATEST)
        (event,) = world.client().iterate_changes(request, until_idle=True)
        assert event.key[full] == "x"
        assert world.client().lookup(ADDRESS, [event.key])[event.key].key == event.key

    @pytest.mark.parametrize("mode", ["latest", "all_versions"])
    def test_a_path_that_is_not_understood_is_refused(self, make_world, monkeypatch, mode):
        world = make_world(1)
        stored = world.server._container("shop", "orders").properties
        monkeypatch.setitem(stored, "partitionKey", {"paths": ['/"pk'], "kind": "Hash", "version": 2})
        request = ChangeFeedRequest(ADDRESS, Now(), provider_options=CosmosOptions(mode=mode))
        with pytest.raises(MulticloudDbError, match='/"pk') as caught:
            world.client().read_changes(request)
        assert caught.value.category == ErrorCategory.UNSUPPORTED_CAPABILITY

    def test_paths_that_have_the_same_names_are_refused(self, make_world):
        world = make_world(1, key=["/a/b", "/'a/b'"])
        with pytest.raises(MulticloudDbError, match="a/b") as caught:
            world.client().read_changes(ChangeFeedRequest(ADDRESS, Now(), provider_options=LATEST))
        assert caught.value.category == ErrorCategory.UNSUPPORTED_CAPABILITY


NUMBERS = [
    # spellings of one double, and its form
    (["5", "5.0", "5e0", "0.5e1"], 5),
    (["0", "-0.0", "0.0", "-0"], 0),
    (["9007199254740992", "9007199254740993", "9.007199254740992e15"], 2.0**53),
    (["9007199254740991", "9007199254740991.0"], 2**53 - 1),
    (["-9007199254740993", "-9007199254740992.0"], -(2.0**53)),
    (["18446744073709551616", "1.8446744073709552e19", "18446744073709551617"], 2.0**64),
    (["1e300", "1.0e300"], 1e300),
    (["0.1", "1e-1", "0.1000000000000000055"], 0.1),
    (["1.7976931348623157e308"], 1.7976931348623157e308),
    (["5e-324"], 5e-324),
]
IMPOSSIBLE = [10**400, -(10**400), math.inf, math.nan, Decimal("1E+6000"), Decimal("NaN"), Decimal("sNaN")]
ALL = [(text, form) for texts, form in NUMBERS for text in texts]


class TestNumbers:
    """The service keeps a number in a partition key as a double: Azure/azure-cosmos-dotnet-v3 issue 3116."""

    @pytest.mark.parametrize("version", [1, 2])
    def test_every_spelling_is_one_key(self, make_world, put_text, version):
        world = make_world(3, version=version)
        consumers = {
            form: world.consumer(scope=LogicalPartition(MulticloudDbKey({"pk": form}))) for _, form in NUMBERS
        }
        every = world.consumer()
        for number, (text, _) in enumerate(ALL):
            put_text(world, f'{{"id": "i{number}", "pk": {text}}}')
        keys = [MulticloudDbKey({"pk": form, "id": f"i{number}"}, 1) for number, (_, form) in enumerate(ALL)]

        def same(found):
            assert {event.key["id"]: event.key for event in found} == {key["id"]: key for key in keys}

        same(drained(every))
        client = world.client()
        for start, options in ((Beginning(), LATEST), (Snapshot(), None)):
            request = ChangeFeedRequest(ADDRESS, start, provider_options=options)
            same(client.iterate_changes(request, until_idle=True))
        _, feed = world.feed(options=LATEST)
        texts = set()
        for seed in feed.start(Beginning(), None, soon()):
            batch = feed.open(seed.partition_id, seed.cursor).fetch(1000, 10**7, 0.0, soon())
            texts.update(batch.arrow(0, len(batch)).column("key").to_pylist())
        assert texts == {encode_json(dict(each.components)).decode() for each in keys}
        for form, consumer in consumers.items():
            assert [event.key["pk"] for event in drained(consumer)] == [
                each for _, each in ALL if each == form and type(each) is type(form)
            ]
        assert {each: row.key for each, row in client.lookup(ADDRESS, keys).items()} == {
            each: each for each in keys
        }

    @pytest.mark.parametrize("asked", [5, 5.0, Decimal(5), Decimal("5.00")], ids=repr)
    def test_a_look_up_answers_under_the_key_that_was_asked(self, world, put_text, asked):
        put_text(world, '{"id": "a", "pk": 5}')
        key = MulticloudDbKey({"pk": asked, "id": "a"}, 1)
        (found,) = world.client().lookup(ADDRESS, [key]).items()
        assert found[0] is key or found[0] == key
        assert found[1].key == MulticloudDbKey({"pk": 5, "id": "a"}, 1)

    def test_spellings_of_one_key_are_asked_together(self, world, put_text):
        put_text(world, '{"id": "a", "pk": 0}')
        keys = [MulticloudDbKey({"pk": asked, "id": "a"}, 1) for asked in (0, 0.0, -0.0, Decimal(0))]
        rows = world.client().lookup(ADDRESS, keys)
        assert [rows[key].key for key in keys] == [keys[0]] * 4

    def test_two_items_at_zero_are_not_told_apart(self, world, put_text):
        for text in ("0", "-0.0"):
            put_text(world, f'{{"id": "a", "pk": {text}}}')
        key = MulticloudDbKey({"pk": 0, "id": "a"}, 1)
        assert isinstance(world.client().lookup(ADDRESS, [key])[key], NotKnown)

    def test_a_delete_has_the_key_of_the_item(self, make_world, put_text):
        world = make_world(2)
        every = world.consumer()
        for number, (text, _) in enumerate(ALL):
            put_text(world, f'{{"id": "i{number}", "pk": {text}}}')
        created = [event.key for event in drained(every)]
        for number, (text, _) in enumerate(ALL):
            put_text(world, f'{{"id": "i{number}", "pk": {text}}}', delete=True)
        assert sorted(map(str, created)) == sorted(str(event.key) for event in drained(every))

    def test_a_key_whose_place_is_not_certain_is_refused(self, make_world):
        world = make_world(1, version=1)
        scope = LogicalPartition(MulticloudDbKey({"pk": "a" + "😀" * 60}))
        with pytest.raises(MulticloudDbError, match="PhysicalPartition") as caught:
            world.client().read_changes(ChangeFeedRequest(ADDRESS, Now(), scope=scope), seconds(30))
        assert caught.value.category == ErrorCategory.UNSUPPORTED_CAPABILITY

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            *((each, "a number that Cosmos DB cannot store") for each in IMPOSSIBLE),
            (b"x", "of type bytes"),
            ([1], "of type list"),
            ({}, "of type dict"),
            (datetime(2026, 1, 1, tzinfo=UTC), "of type datetime"),
        ],
        ids=lambda each: repr(each)[:20],
    )
    def test_a_component_that_no_item_can_have_is_refused(self, world, value, words):
        """azure-cosmos asks for the partition key 120 if it is given b"x", and for 1 if it is given [1]."""
        world.container.upsert_item({"id": "a", "pk": 120})
        scope = LogicalPartition(MulticloudDbKey({"pk": value}))
        request = ChangeFeedRequest(ADDRESS, Beginning(), scope=scope, provider_options=LATEST)
        for ask, field in (
            (lambda: world.client().lookup(ADDRESS, [MulticloudDbKey({"pk": value, "id": "a"}, 1)]), "keys"),
            (lambda: world.client().read_changes(request, seconds(30)), "LogicalPartition.key"),
        ):
            with pytest.raises(MulticloudDbError, match=words) as caught:
                ask()
            assert caught.value.category == ErrorCategory.INVALID_REQUEST
            assert str(caught.value).startswith(f"[INVALID_REQUEST] {field}: ")
            assert "'pk'" in str(caught.value)

    @pytest.mark.parametrize("version", [1, 2])
    @pytest.mark.parametrize(
        "value", [None, True, False, "", "x" * 2_000, "é" * 200, "a b", 3, -7.25], ids=short
    )
    def test_every_other_value(self, make_world, version, value):
        world = make_world(4, version=version)
        consumer = world.consumer(scope=LogicalPartition(MulticloudDbKey({"pk": value})))
        other = "other" if value is None else None
        for number, each in enumerate((value, other, value)):
            world.container.upsert_item({"id": f"i{number}", "pk": each})
        world.container.upsert_item({"id": "without"})
        assert [event.key["id"] for event in drained(consumer)] == ["i0", "i2"]
        assert world.container.read_item("without", NonePartitionKeyValue)["id"] == "without"
