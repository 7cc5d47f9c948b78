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

import multiclouddb_api
from multiclouddb_api import (
    AtTime,
    BackfillDone,
    Beginning,
    Capability,
    CapabilityNote,
    CapabilitySet,
    ChangeEvent,
    ChangeFeedPage,
    ChangeFeedRequest,
    ChangeType,
    Checkpoint,
    ChildPartition,
    ClientConfig,
    Dropped,
    EntireCluster,
    EntireCollection,
    EntireDatabase,
    ErrorCategory,
    ErrorDetail,
    Fail,
    FeedEnded,
    FromContinuationToken,
    Gap,
    Invalidated,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    OperationDiagnostics,
    OperationOptions,
    PartitionFoundLate,
    PhysicalPartition,
    ProviderOptions,
    RecordSkipped,
    Renamed,
    Resnapshot,
    ResourceAddress,
    SkipToOldest,
    Snapshot,
    SnapshotOrder,
    SnapshotProgress,
    SnapshotStarted,
    Support,
    Tagged,
    TokenPartition,
    TokenReport,
)

SECRET = "hunter2" * 10
MOMENT = datetime(2026, 1, 31, 12, tzinfo=UTC)
ADDRESS = ResourceAddress("shop", "orders")
KEY = MulticloudDbKey({"customer": "c-1", "order": 7})
EVENT = ChangeEvent(
    event_id="e-1",
    key=KEY,
    type=ChangeType.CREATE,
    timestamp=MOMENT,
    new_item_state={"name": SECRET},
    old_item_state={"name": SECRET},
    order_key="1",
    by_expiry=None,
    backfilled=False,
    address=ADDRESS,
    partition_id="p",
    native={"name": SECRET},
)


@attrs.frozen
class SomeOptions(ProviderOptions):
    """Options as a provider would define them."""

    stream: object = attrs.field(default="", metadata={"positions": True})
    hint: int = 0


VALUES = [
    ADDRESS,
    KEY,
    Beginning(),
    Now(),
    AtTime(MOMENT),
    FromContinuationToken(SECRET),
    EntireCollection(),
    PhysicalPartition("p"),
    LogicalPartition(KEY),
    EntireDatabase(),
    EntireCluster(),
    Fail(),
    SkipToOldest(),
    ChangeFeedRequest(
        ADDRESS,
        AtTime(MOMENT),
        PhysicalPartition("p"),
        NewItemStateMode.REQUIRE,
        OldItemStateMode.INCLUDE_IF_AVAILABLE,
        7,
        SkipToOldest(),
        True,
        SomeOptions("s"),
    ),
    EVENT,
    ChangeFeedPage((EVENT,), SECRET, notices=(Gap("p", "1", "2"),)),
    ChildPartition("c", ("a", "b"), SECRET),
    Dropped("a"),
    Renamed("a", "b"),
    Invalidated("a"),
    FeedEnded("a"),
    Gap("a", "1", "2"),
    PartitionFoundLate("a", "1"),
    RecordSkipped("a", "1"),
    BackfillDone("a"),
    SnapshotStarted("1", "a"),
    Snapshot(SnapshotOrder.ORDERED, 4, 10.0),
    Resnapshot(Snapshot(segments=2)),
    SnapshotProgress(SnapshotOrder.ORDERED, 1, 4, 10, None),
    OperationDiagnostics(watermark=MOMENT, partition_errors={"p": "slow"}),
    OperationOptions(5, 1),
    ProviderOptions(),
    SomeOptions("s", 1),
    CapabilityNote(Support.NATIVE, "within a second"),
    CapabilitySet({Capability.CHANGE_FEED: CapabilityNote(Support.NATIVE)}),
    ClientConfig("embedded", {"url": "embedded:///x"}),
    Checkpoint(SECRET, "1"),
    ErrorDetail(ErrorCategory.THROTTLED, retryable=True),
    Tagged("mongo.objectid", "1"),
    TokenPartition("p", "active", "5", MOMENT),
    TokenReport(ADDRESS, "collection", MOMENT, None, (), None, True, None, "", False, 0.0, None),
]


def refused(make, *arguments, **named):
    with pytest.raises(MulticloudDbError) as caught:
        make(*arguments, **named)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert not caught.value.retryable
    return caught.value.message


class TestEveryValue:
    def test_is_in_this_file(self):
        public = {getattr(multiclouddb_api, name) for name in multiclouddb_api.__all__}
        frozen = {kind for kind in public if inspect.isclass(kind) and attrs.has(kind)}
        assert frozen - {multiclouddb_api.ChangeFeedIterator} == {type(value) for value in VALUES} - {
            SomeOptions
        }

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
REFUSED = {
    "an address": [
        (ResourceAddress, {"database": 5}, "ResourceAddress.database: must be str or None, not int"),
        (ResourceAddress, {"collection": 5}, "ResourceAddress.collection: must be str or None, not int"),
        (ResourceAddress, {"database": " "}, "ResourceAddress.database: is empty; give its name, or None"),
        (ResourceAddress, {"collection": ""}, "ResourceAddress.collection: is empty; give its name, or None"),
    ],
    "a position": [
        (AtTime, {"utc": NAIVE}, "AtTime.utc: is a naive datetime (2026-01-31T00:00:00); add a time zone"),
        *(
            (AtTime, {"utc": value}, "AtTime.utc: must be a datetime")
            for value in ("2026-01-31", 5, None, MOMENT.date())
        ),
        (AtTime, {"utc": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))}, "AtTime.utc"),
        *(
            (FromContinuationToken, {"token": value}, "FromContinuationToken.token: ")
            for value in ("", "  ", None, b"token", 5)
        ),
    ],
    "a scope": [
        *(
            (PhysicalPartition, {"partition_id": value}, "PhysicalPartition.partition_id: ")
            for value in ("", None, 5)
        ),
        (PhysicalPartition, {"partition_id": ""}, "client.list_physical_partitions(address)"),
        *(
            (LogicalPartition, {"key": value}, "LogicalPartition.key: must be MulticloudDbKey")
            for value in ({"customer": 1}, "c-1", None)
        ),
    ],
    "options": [
        *(
            (OperationOptions, {"timeout_seconds": value}, "OperationOptions.timeout_seconds: must be")
            for value in (0, -1, math.nan, "5", None, True)
        ),
        *(
            (OperationOptions, {"wait_seconds": value}, "OperationOptions.wait_seconds: must be")
            for value in (-0.1, math.nan, "5", None, False)
        ),
    ],
}


@pytest.mark.parametrize("cases", REFUSED.values(), ids=REFUSED)
def test_a_wrong_value_is_refused_by_name(cases):
    for make, fields, message in cases:
        assert message in refused(make, **fields)


@given(st.integers(-1439, 1439))
def test_a_time_of_any_offset_is_kept_as_utc(minutes):
    kept = AtTime(MOMENT.astimezone(timezone(timedelta(minutes=minutes))))
    assert kept == AtTime(MOMENT)
    assert kept.utc.tzinfo is UTC


def test_an_address_reads_as_a_path():
    paths = {ADDRESS: "shop/orders", ResourceAddress(None, "t"): "t", ResourceAddress(database="d"): "d"}
    assert {address: str(address) for address in paths} == paths


class TestRequest:
    @pytest.mark.parametrize(
        ("field", "value", "problem"),
        [
            ("address", 7, "must be ResourceAddress, not int"),
            ("new_item_state_mode", "require", "must be NewItemStateMode, not str"),
            ("new_item_state_mode", OldItemStateMode.OMIT, "must be NewItemStateMode"),
            ("old_item_state_mode", None, "must be OldItemStateMode, not NoneType"),
            ("max_page_size", -1, "must be 0 or more, got -1; use 0 for the provider's own page size"),
            ("max_page_size", 10.0, "must be int, not float"),
            ("max_page_size", True, "must be int, not bool"),
            ("include_native", 1, "must be bool, not int"),
            ("provider_options", {"stream": "s"}, "must be ProviderOptions or None, not dict"),
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_a_wrong_field_is_refused_by_name(self, field, value, problem):
        fields = {"address": ADDRESS, "start_position": Beginning(), field: value}
        assert f"ChangeFeedRequest.{field}: {problem}" in refused(ChangeFeedRequest, **fields)

    def test_the_defaults_are_the_design(self):
        assert ChangeFeedRequest(ADDRESS, Now()) == ChangeFeedRequest(
            ADDRESS,
            Now(),
            EntireCollection(),
            NewItemStateMode.INCLUDE_IF_AVAILABLE,
            OldItemStateMode.OMIT,
            0,
            Fail(),
            False,
            None,
        )


class TestOptions:
    def test_the_defaults_are_the_design(self):
        assert OperationOptions() == OperationOptions(30, 0)

    def test_a_digest_tells_options_apart_that_change_positions(self):
        assert SomeOptions("a").position_digest() != SomeOptions("b").position_digest()
        assert SomeOptions("a", 1).position_digest() == SomeOptions("a", 2).position_digest()
        one, other = SomeOptions({"a": 1, "b": 2}), SomeOptions({"b": 2, "a": 1})
        assert one.position_digest() != other.position_digest()
        assert SomeOptions(hint=5).position_digest() == ProviderOptions().position_digest() == ""

    def test_nothing_is_opted_into_unasked(self):
        assert not any(ProviderOptions().opts_into(capability) for capability in Capability)


class TestCapabilities:
    def test_what_is_not_named_is_unsupported(self):
        capabilities = CapabilitySet({})
        assert not any(capabilities.is_supported(capability) for capability in capabilities)
        assert capabilities[Capability.RUN_COMMAND].support is Support.UNSUPPORTED

    def test_emulated_counts_as_supported(self):
        note = CapabilityNote(Support.EMULATED, "opt in")
        assert CapabilitySet({Capability.RUN_COMMAND: note}).is_supported(Capability.RUN_COMMAND)

        assert list(CapabilitySet({})) == list(Capability)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.decimals(allow_nan=False),
    st.datetimes(datetime(2000, 1, 1), datetime(2001, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)


class TestKey:
    @pytest.mark.parametrize(
        ("components", "count", "problem"),
        [
            ({}, 1, "components: is empty; name at least one component"),
            ([("a", 1)], 1, "components: must be a mapping, not list"),
            (None, 1, "components: must be a mapping, not NoneType"),
            ({5: 1}, 1, "components: has the name 5 of type int; names are text"),
            ({"": 1}, 1, "components: has the name ''; names are text"),
            ({"a": 1}, 2, "partition_components: is 2 for 1 components; give the number"),
            ({"a": 1}, 0, "partition_components: is 0 for 1 components"),
            ({"a": 1}, -1, "partition_components: is -1 for 1 components"),
            ({"a": 1}, True, "partition_components: must be int, not bool"),
            ({"a": 1}, "1", "partition_components: must be int, not str"),
        ],
        ids=str,
    )
    def test_a_wrong_one_is_refused(self, components, count, problem):
        assert f"MulticloudDbKey.{problem}" in refused(MulticloudDbKey, components, count)

    def test_has_a_partition_key_and_a_sort_key(self):
        key = MulticloudDbKey({"a": 1, "b": 2, "c": 3}, 2)
        assert (key.partition_key, key.sort_key) == ({"a": 1, "b": 2}, {"c": 3})
        assert MulticloudDbKey({"a": 1}).sort_key == {}

    def test_takes_a_copy(self):
        components = {"a": 1}
        key = MulticloudDbKey(components)
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
        keys = [MulticloudDbKey({"id": value}) for value in others]
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

        one_key, other_key = MulticloudDbKey({"id": one}), MulticloudDbKey({"id": other})
        if typed(one) != typed(other):
            assert one_key != other_key
        assert one_key == MulticloudDbKey({"id": one})
        assert hash(one_key) == hash(MulticloudDbKey({"id": one}))

    @given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(0, 50))
    def test_a_number_is_the_same_however_many_zeros_it_is_written_with(self, value, zeros):
        sign, digits, exponent = value.as_tuple()
        longer = Decimal((sign, (*digits, *[0] * zeros), exponent - zeros))
        assert MulticloudDbKey({"id": value}) == MulticloudDbKey({"id": longer})

    @given(st.integers(10**27, 10**38), st.integers(1, 9))
    def test_long_numbers_are_told_apart_to_the_last_digit(self, value, more):
        one, other = Decimal(value), Decimal(value + more)
        assert MulticloudDbKey({"id": one}) != MulticloudDbKey({"id": other})

    def test_the_names_and_their_order_count(self):
        keys = {
            MulticloudDbKey({"a": 1, "b": 1}),
            MulticloudDbKey({"b": 1, "a": 1}),
            MulticloudDbKey({"a": 1, "b": 1}, 2),
            MulticloudDbKey({"a": 1, "c": 1}),
        }
        assert len(keys) == 4

    def test_the_order_of_names_inside_a_component_counts(self):
        """MongoDB stores `{a: 1, b: 2}` and `{b: 2, a: 1}` as the `_id`s of two documents."""
        one, other = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
        assert MulticloudDbKey({"_id": one}) != MulticloudDbKey({"_id": other})
        assert MulticloudDbKey({"_id": [one]}) != MulticloudDbKey({"_id": [other]})
        assert MulticloudDbKey({"_id": one}) == MulticloudDbKey({"_id": dict(one)})
