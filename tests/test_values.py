"""Tests the frozen values: validated, comparable, picklable, and without secrets in their repr."""

import inspect
import math
import pickle
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import multiclouddb_api as api

from .refusals import refused
from .test_codec import leaves

SECRET = "hunter2" * 10
MOMENT = datetime(2026, 1, 31, 12, tzinfo=UTC)
ADDRESS = api.ResourceAddress("shop", "orders")
KEY = api.MulticloudDbKey({"customer": "c-1", "order": 7})
DOCUMENT = {"name": SECRET}
EVENT = api.ChangeEvent(
    "e-1", KEY, api.ChangeType.CREATE, MOMENT, DOCUMENT, DOCUMENT, "1", None, False, ADDRESS, "p", DOCUMENT
)


@attrs.frozen
class SomeOptions(api.ProviderOptions):
    """Options as a provider would define them."""

    stream: object = attrs.field(default="", metadata={"positions": True})
    hint: int = 0


VALUES = [
    ADDRESS, KEY, api.Beginning(), api.Now(), api.AtTime(MOMENT), api.FromContinuationToken(SECRET),
    api.EntireCollection(), api.PhysicalPartition("p"), api.LogicalPartition(KEY), api.EntireDatabase(),
    api.EntireCluster(), api.Fail(), api.SkipToOldest(),
    api.ChangeFeedRequest(
        ADDRESS, api.AtTime(MOMENT), api.PhysicalPartition("p"), api.NewItemStateMode.REQUIRE,
        api.OldItemStateMode.INCLUDE_IF_AVAILABLE, 7, 1000, api.SkipToOldest(), True, SomeOptions("s"),
    ),
    EVENT, api.ChangeFeedPage((EVENT,), SECRET, notices=(api.Gap("p", "1", "2"),)),
    api.ChildPartition("c", ("a", "b"), SECRET), api.Dropped("a"), api.Renamed("a", "b"),
    api.Invalidated("a"), api.FeedEnded("a"), api.Gap("a", "1", "2"), api.PartitionFoundLate("a", "1"),
    api.RecordSkipped("a", "1"), api.BackfillDone("a"), api.SnapshotStarted("1", "a"),
    api.Snapshot(api.SnapshotOrder.ORDERED, 4, 10.0),
    api.Resnapshot(api.Snapshot(segments=2)), api.ScanFacts(api.ScanFloor.LOW, 10, "one unit", True),
    api.SnapshotProgress(api.SnapshotOrder.ORDERED, 1, 4, 10, None),
    api.OperationDiagnostics(watermark=MOMENT, partition_errors={"p": "slow"}), api.OperationOptions(5, 1),
    api.ProviderOptions(), SomeOptions("s", 1), api.CapabilityNote(api.Support.NATIVE, "within a second"),
    api.CapabilitySet({api.Capability.CHANGE_FEED: api.CapabilityNote(api.Support.NATIVE)}),
    api.ClientConfig("embedded", {"url": "embedded:///x"}), api.Checkpoint(SECRET, "1"),
    api.ErrorDetail(api.ErrorCategory.THROTTLED, retryable=True), api.Tagged("mongo.objectid", "1"),
    api.TokenPartition("p", "active", "5", MOMENT), api.NotKnown("nobody could be asked"),
    api.TokenReport(ADDRESS, "collection", MOMENT, None, (), None, True, None, "", False, 0.0, None),
]  # fmt: skip


class TestEveryValue:
    def test_is_in_this_file(self):
        public = {getattr(api, name) for name in api.__all__}
        frozen = {kind for kind in public if inspect.isclass(kind) and attrs.has(kind)}
        assert frozen - {api.ChangeFeedIterator} == {type(value) for value in VALUES} - {SomeOptions}

    @pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
    def test_is_frozen_comparable_and_picklable_and_shows_no_secret(self, value):
        for copy in (pickle.loads(pickle.dumps(value)), attrs.evolve(value)):
            assert (copy, hash(copy)) == (value, hash(value))
        assert [other for other in [*VALUES, object()] if other == value] == [value]
        for field in attrs.fields(type(value)):
            with pytest.raises(AttributeError):
                setattr(value, field.name, None)
        assert SECRET not in repr(value)


NAIVE = datetime(2026, 1, 31)  # noqa: DTZ001
EARLY = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))
REFUSED = [
    (api.ResourceAddress, "database", [" "], "is empty; give its name, or None"),
    (api.ResourceAddress, "collection", [""], "is empty; give its name, or None"),
    (api.AtTime, "utc", [NAIVE], "is a naive datetime (2026-01-31T00:00:00); add a time zone"),
    (api.AtTime, "utc", ["2026-01-31", MOMENT.date()], "must be a datetime"),
    (api.AtTime, "utc", [EARLY], ""),
    (api.FromContinuationToken, "token", ["", "  ", None, b"token", 5], ""),
    (api.PhysicalPartition, "partition_id", [""], "client.list_physical_partitions(address)"),
    (api.PhysicalPartition, "partition_id", [None, 5], "must be str"),
    (api.LogicalPartition, "key", [{"customer": 1}, "c-1"], "must be MulticloudDbKey"),
    (api.OperationOptions, "timeout_seconds", [0, -1, math.nan, "5", True], "must be"),
    (api.OperationOptions, "wait_seconds", [-0.1, math.nan, "5", False], "must be"),
]


@pytest.mark.parametrize(("make", "field", "values", "problem"), REFUSED)
def test_a_wrong_value_is_refused_by_name(make, field, values, problem):
    for value in values:
        message = refused(make, **{field: value})
        assert message.startswith(f"{make.__name__}.{field}: ")
        assert problem in message


@given(st.integers(-1439, 1439))
def test_a_time_of_any_offset_is_kept_as_utc(minutes):
    kept = api.AtTime(MOMENT.astimezone(timezone(timedelta(minutes=minutes))))
    assert kept == api.AtTime(MOMENT)
    assert kept.utc.tzinfo is UTC


def test_an_address_reads_as_a_path():
    paths = {
        ADDRESS: "shop/orders",
        api.ResourceAddress(None, "t"): "t",
        api.ResourceAddress(database="d"): "d",
    }
    assert {address: str(address) for address in paths} == paths


class TestRequest:
    def test_a_negative_page_size_is_refused_by_name(self):
        problem = "must be 0 or more, got -1; use 0 for the provider's own page size"
        message = refused(api.ChangeFeedRequest, ADDRESS, api.Beginning(), max_page_size=-1)
        assert f"ChangeFeedRequest.max_page_size: {problem}" in message

    def test_the_defaults_are_the_design(self):
        modes = (api.NewItemStateMode.INCLUDE_IF_AVAILABLE, api.OldItemStateMode.OMIT)
        settings = (ADDRESS, api.Now(), api.EntireCollection(), *modes, 0, 0, api.Fail(), False, None)
        assert api.ChangeFeedRequest(ADDRESS, api.Now()) == api.ChangeFeedRequest(*settings)


class TestOptions:
    def test_the_defaults_are_the_design(self):
        assert api.OperationOptions() == api.OperationOptions(30, 0)

    def test_a_digest_tells_options_apart_that_change_positions(self):
        assert SomeOptions("a").position_digest() != SomeOptions("b").position_digest()
        assert SomeOptions("a", 1).position_digest() == SomeOptions("a", 2).position_digest()
        one, other = SomeOptions({"a": 1, "b": 2}), SomeOptions({"b": 2, "a": 1})
        assert one.position_digest() != other.position_digest()
        assert SomeOptions(hint=5).position_digest() == api.ProviderOptions().position_digest() == ""

    def test_nothing_is_opted_into_unasked(self):
        assert not any(api.ProviderOptions().opts_into(capability) for capability in api.Capability)


class TestCapabilities:
    def test_what_is_not_named_is_unsupported(self):
        capabilities = api.CapabilitySet({})
        assert not any(capabilities.is_supported(capability) for capability in capabilities)
        assert capabilities[api.Capability.RUN_COMMAND].support is api.Support.UNSUPPORTED

    def test_emulated_counts_as_supported(self):
        note = api.CapabilityNote(api.Support.EMULATED, "opt in")
        assert api.CapabilitySet({api.Capability.RUN_COMMAND: note}).is_supported(api.Capability.RUN_COMMAND)

        assert list(api.CapabilitySet({})) == list(api.Capability)


documents = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)


class TestKey:
    @pytest.mark.parametrize(
        ("components", "count", "problem"),
        [
            ({}, 1, "components: is empty; name at least one component"),
            ({5: 1}, 1, "components: has the name 5 of type int; names are text"),
            ({"": 1}, 1, "components: has the name ''; names are text"),
            ({"a": 1}, 2, "partition_components: is 2 for 1 components; give the number"),
            ({"a": 1}, 0, "partition_components: is 0 for 1 components"),
            ({"a": 1}, -1, "partition_components: is -1 for 1 components"),
        ],
        ids=str,
    )
    def test_a_wrong_one_is_refused(self, components, count, problem):
        assert f"MulticloudDbKey.{problem}" in refused(api.MulticloudDbKey, components, count)

    def test_has_a_partition_key_and_a_sort_key(self):
        key = api.MulticloudDbKey({"a": 1, "b": 2, "c": 3}, 2)
        assert (key.partition_key, key.sort_key) == ({"a": 1, "b": 2}, {"c": 3})
        assert api.MulticloudDbKey({"a": 1}).sort_key == {}

    def test_takes_a_copy(self):
        components = {"a": 1}
        key = api.MulticloudDbKey(components)
        components["a"] = 2
        assert key.components == {"a": 1}

    @pytest.mark.parametrize(
        "others",
        [
            [True, 1, 1.0, "1", Decimal("1.5"), b"1", None],
            [0, False, 0.0, "", b"", None],
            [{"a": 1}, {"a": 1.0}, {"a": True}, [1], [True], [[1]]],
            [Decimal("1.00000000000000000000000000001"), Decimal(1), 1],
            [2**63, float(2**63), str(2**63)],
            [{"$decimal": "1"}, Decimal(1)],
        ],
        ids=str,
    )
    def test_equality_knows_types(self, others):
        keys = [api.MulticloudDbKey({"id": value}) for value in others]
        assert len(set(keys)) == len(keys)
        for place, key in enumerate(keys):
            assert [other == key for other in keys] == [place == other for other in range(len(keys))]

    @given(documents, documents)
    def test_is_equal_only_to_what_has_the_same_types(self, one, other):
        def typed(value):
            match value:
                case Decimal():
                    return ("decimal", value if value.is_finite() else str(value))
                case float():
                    return ("float", str(value))
                case datetime():
                    return ("date", value)
                case list():
                    return ("list", tuple(map(typed, value)))
                case dict():
                    return ("dict", frozenset((name, typed(item)) for name, item in value.items()))
            return (type(value).__name__, value)

        one_key, other_key = api.MulticloudDbKey({"id": one}), api.MulticloudDbKey({"id": other})
        if typed(one) != typed(other):
            assert one_key != other_key
        assert one_key == api.MulticloudDbKey({"id": one})
        assert hash(one_key) == hash(api.MulticloudDbKey({"id": one}))

    @given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(0, 50))
    def test_a_number_is_the_same_however_many_zeros_it_is_written_with(self, value, zeros):
        sign, digits, exponent = value.as_tuple()
        longer = Decimal((sign, (*digits, *[0] * zeros), exponent - zeros))
        assert api.MulticloudDbKey({"id": value}) == api.MulticloudDbKey({"id": longer})

    @given(st.integers(10**27, 10**38), st.integers(1, 9))
    def test_long_numbers_are_told_apart_to_the_last_digit(self, value, more):
        one, other = Decimal(value), Decimal(value + more)
        assert api.MulticloudDbKey({"id": one}) != api.MulticloudDbKey({"id": other})

    def test_the_names_and_their_order_count(self):
        keys = {
            api.MulticloudDbKey({"a": 1, "b": 1}),
            api.MulticloudDbKey({"b": 1, "a": 1}),
            api.MulticloudDbKey({"a": 1, "b": 1}, 2),
            api.MulticloudDbKey({"a": 1, "c": 1}),
        }
        assert len(keys) == 4

    def test_the_order_of_names_inside_a_component_counts(self):
        """MongoDB stores `{a: 1, b: 2}` and `{b: 2, a: 1}` as the `_id`s of two documents."""
        one, other = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
        assert api.MulticloudDbKey({"_id": one}) != api.MulticloudDbKey({"_id": other})
        assert api.MulticloudDbKey({"_id": [one]}) != api.MulticloudDbKey({"_id": [other]})
        assert api.MulticloudDbKey({"_id": one}) == api.MulticloudDbKey({"_id": dict(one)})


def test_every_field_that_is_a_token_is_shortened():
    """A token may hold the key of a document."""
    names = ("token", "continuation_token", "skip_token", "resumed_from")
    public = [getattr(api, name) for name in api.__all__]
    kinds = [each for each in public if isinstance(each, type) and attrs.has(each)]
    fields = [(kind, field) for kind in kinds for field in attrs.fields(kind) if field.name in names]
    assert len(fields) >= 6
    assert [(kind, field.name) for kind, field in fields if "x" * 60 in field.repr("x" * 60)] == []
