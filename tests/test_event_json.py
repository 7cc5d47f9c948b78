"""Tests that events and pages survive JSON exactly, and that an error names the damaged field."""

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiclouddb_api import (
    BackfillDone,
    ChangeEvent,
    ChangeFeedPage,
    ChangeType,
    ChildPartition,
    Dropped,
    ErrorCategory,
    FeedEnded,
    Gap,
    Invalidated,
    MulticloudDbError,
    MulticloudDbKey,
    OperationDiagnostics,
    PartitionFoundLate,
    RecordSkipped,
    Renamed,
    ResourceAddress,
    SnapshotOrder,
    SnapshotProgress,
    SnapshotStarted,
    event_from_json,
    event_to_json,
    page_from_json,
    page_to_json,
)

EVENT = ChangeEvent(
    event_id="e-1",
    key=MulticloudDbKey({"customer": "c-1", "order": 7}),
    type=ChangeType.UPDATE,
    timestamp=datetime(2026, 1, 31, 12, 0, 0, 500_000, UTC),
    new_item_state={"total": Decimal("1.50"), "$ref": 1},
    old_item_state=None,
    order_key="0001",
    by_expiry=False,
    backfilled=False,
    address=ResourceAddress("shop", "orders"),
    partition_id="embedded:1.2:p0",
)
NOTICES = (
    Dropped("shop/orders"),
    Renamed("orders", "orders2"),
    Invalidated("gone"),
    FeedEnded("gone"),
    Gap("p", "5", "9"),
    RecordSkipped("p", "7"),
    PartitionFoundLate("p", "7"),
    SnapshotStarted("9~", "s"),
    BackfillDone("p"),
)
PAGE = ChangeFeedPage(
    events=(EVENT,),
    continuation_token="token",
    idle=False,
    partition_retired=True,
    child_partitions=(ChildPartition("c", ("a", "b"), "child token"),),
    notices=NOTICES,
    diagnostics=OperationDiagnostics(
        watermark=datetime(2026, 1, 31, tzinfo=UTC),
        read_until=datetime(2026, 1, 31, 1, tzinfo=UTC),
        read_until_estimated=True,
        partitions_read_until={"p": datetime(2026, 1, 31, 1, tzinfo=UTC)},
        lag_seconds=1.5,
        retention_headroom_seconds=86400,
        requests=3,
        native_charge=None,
        retries=1,
        partition_errors={"$odd": "slow"},
        elapsed_seconds=0.25,
        snapshot=SnapshotProgress(SnapshotOrder.ORDERED, 1, 4, 10, None),
    ),
)

moments = st.datetimes(
    min_value=datetime(2, 1, 1),  # noqa: DTZ001
    max_value=datetime(9998, 1, 1),  # noqa: DTZ001
    timezones=st.just(UTC),
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.decimals(allow_nan=False),
    moments,
    st.uuids(),
)
documents = st.dictionaries(
    st.text(),
    st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_size=4,
)
keys = st.builds(
    lambda components: MulticloudDbKey(components, len(components)),
    st.dictionaries(st.text(min_size=1), leaves, min_size=1, max_size=3),
)
events = st.builds(
    ChangeEvent,
    event_id=st.text(),
    key=keys,
    type=st.sampled_from(ChangeType),
    timestamp=moments,
    new_item_state=st.none() | documents,
    old_item_state=st.none() | documents,
    order_key=st.text(),
    by_expiry=st.sampled_from([True, False, None]),
    backfilled=st.booleans(),
    address=st.builds(ResourceAddress, st.none() | st.just("db"), st.none() | st.just("c")),
    partition_id=st.text(),
)
numbers = st.none() | st.floats(allow_nan=False)
pages = st.builds(
    ChangeFeedPage,
    events=st.lists(events, max_size=2).map(tuple),
    continuation_token=st.text(),
    idle=st.booleans(),
    partition_retired=st.booleans(),
    child_partitions=st.lists(
        st.builds(ChildPartition, st.text(), st.lists(st.text()).map(tuple), st.text()), max_size=2
    ).map(tuple),
    notices=st.lists(st.sampled_from(NOTICES)).map(tuple),
    diagnostics=st.builds(
        OperationDiagnostics,
        watermark=st.none() | moments,
        read_until=st.none() | moments,
        read_until_estimated=st.booleans(),
        partitions_read_until=st.dictionaries(st.text(), moments),
        lag_seconds=numbers,
        retention_headroom_seconds=numbers,
        requests=st.integers(0, 10**30),
        native_charge=numbers,
        retries=st.integers(0),
        partition_errors=st.dictionaries(st.text(), st.text()),
        elapsed_seconds=st.floats(0),
    ),
)


class TestRoundTrip:
    @given(events)
    def test_of_any_event_is_exact(self, event):
        back = event_from_json(event_to_json(event))
        assert back == event
        assert list(back.key.components) == list(event.key.components)

    @given(pages)
    def test_of_any_page_is_exact(self, page):
        assert page_from_json(page_to_json(page)) == page

    def test_takes_text_as_well_as_bytes(self):
        assert event_from_json(event_to_json(EVENT).decode()) == EVENT
        assert page_from_json(page_to_json(PAGE).decode()) == PAGE

    def test_leaves_out_the_native_record(self):
        event = attrs.evolve(EVENT, native=object())
        assert event_from_json(event_to_json(event)).native is None
        assert "native" not in json.loads(event_to_json(event))

    def test_survives_a_program_that_sorts_object_keys(self):
        """The order of key components matters, and JSON objects have no order."""
        event = attrs.evolve(EVENT, key=MulticloudDbKey({"b": 1, "a": 2}))
        text = json.dumps(json.loads(event_to_json(event)), sort_keys=True)
        assert event_from_json(text).key.partition_key == {"b": 1}


class TestForm:
    def test_of_an_event(self):
        assert json.loads(event_to_json(EVENT)) == {
            "event_id": "e-1",
            "key": {"components": [["customer", "c-1"], ["order", 7]], "partition_components": 1},
            "type": "UPDATE",
            "timestamp": "2026-01-31T12:00:00.500000Z",
            "new_item_state": {"$map": {"total": {"$decimal": "1.50"}, "$ref": 1}},
            "old_item_state": None,
            "order_key": "0001",
            "by_expiry": False,
            "backfilled": False,
            "address": {"database": "shop", "collection": "orders"},
            "partition_id": "embedded:1.2:p0",
        }

    def test_of_notices_and_diagnostics(self):
        fields = json.loads(page_to_json(PAGE))
        assert fields["notices"][:2] == [
            {"type": "Dropped", "name": "shop/orders"},
            {"type": "Renamed", "name": "orders", "new_name": "orders2"},
        ]
        assert fields["diagnostics"]["watermark"] == "2026-01-31T00:00:00Z"
        assert fields["child_partitions"][0]["parents"] == ["a", "b"]

    def test_moments_of_another_offset_are_written_in_utc(self):
        east = timezone(timedelta(hours=5, minutes=30))
        event = attrs.evolve(EVENT, timestamp=EVENT.timestamp.astimezone(east))
        assert b'"2026-01-31T12:00:00.500000Z"' in event_to_json(event)

    def test_moments_of_another_offset_are_read_as_utc(self):
        text = event_to_json(EVENT).replace(b"T12:00:00.500000Z", b"T13:00:00.5+01:00")
        assert event_from_json(text) == EVENT


def refused(read, text):
    with pytest.raises(MulticloudDbError) as caught:
        read(text)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    return caught.value.message


def names(kind):
    return [field.name for field in attrs.fields(kind)]


def changed(write, value, path, new):
    """Return the JSON text with one field replaced; the path to the field consists of keys and indexes."""
    fields = json.loads(write(value))
    place = fields
    for step in path[:-1]:
        place = place[step]
    if new is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = new
    return json.dumps(fields)


class TestRefusal:
    @pytest.mark.parametrize(
        "name", [field.name for field in attrs.fields(ChangeEvent) if field.name != "native"]
    )
    def test_of_a_missing_or_wrong_field_of_an_event_names_it(self, name):
        assert f"event.{name}: is missing" in refused(
            event_from_json, changed(event_to_json, EVENT, [name], ...)
        )
        assert f"event.{name}" in refused(event_from_json, changed(event_to_json, EVENT, [name], 5))
        assert f"event.{name}" in refused(event_from_json, changed(event_to_json, EVENT, [name], [1]))

    @pytest.mark.parametrize("name", names(ChangeFeedPage))
    def test_of_a_missing_or_wrong_field_of_a_page_names_it(self, name):
        assert f"page.{name}: is missing" in refused(page_from_json, changed(page_to_json, PAGE, [name], ...))
        assert f"page.{name}" in refused(page_from_json, changed(page_to_json, PAGE, [name], 5))

    @pytest.mark.parametrize("name", names(OperationDiagnostics))
    def test_of_a_missing_or_wrong_measure_names_it(self, name):
        path = ["diagnostics", name]
        if name != "snapshot":  # pages from versions without snapshots do not contain this field
            assert f"page.diagnostics.{name}: is missing" in refused(
                page_from_json, changed(page_to_json, PAGE, path, ...)
            )
        assert f"page.diagnostics.{name}" in refused(
            page_from_json, changed(page_to_json, PAGE, path, [True])
        )

    @pytest.mark.parametrize(
        ("path", "value", "message"),
        [
            (["native"], {}, "event.native: is not a known field"),
            (["extra"], 1, "event.extra: is not a known field"),
            (["type"], "UPSERT", "event.type: must be one of CREATE, UPDATE, DELETE"),
            (["timestamp"], "2026-01-31T12:00:00", "event.timestamp: is not RFC 3339"),
            (["timestamp"], "2026-13-31T12:00:00Z", "event.timestamp: is not a valid time"),
            (["timestamp"], "0001-01-01T00:00:00+23:59", "event.timestamp: is not a valid time"),
            (["timestamp"], "yesterday", "event.timestamp: is not RFC 3339"),
            (["by_expiry"], "no", "event.by_expiry: must be bool or null, not str"),
            (
                ["new_item_state"],
                {"$decimal": "1"},
                "event.new_item_state: must be dict or null",
            ),
            (["address", "table"], "x", "event.address.table: is not a known field"),
            (["address", "database"], ..., "event.address.database: is missing"),
            (["address", "database"], "", "ResourceAddress.database: is empty"),
            (["key", "components"], [], "MulticloudDbKey.components: is empty"),
            (["key", "components", 1], ["order"], "event.key.components[1]: must be an array"),
            (["key", "components", 1], ["customer", 1], "event.key.components[1]: names 'customer' again"),
            (["key", "partition_components"], True, "event.key.partition_components: must be int, not bool"),
            (["key", "partition_components"], 3, "MulticloudDbKey.partition_components: is 3"),
        ],
    )
    def test_of_a_damaged_event_names_the_field(self, path, value, message):
        assert message in refused(event_from_json, changed(event_to_json, EVENT, path, value))

    @pytest.mark.parametrize(
        ("path", "value", "message"),
        [
            (["events", 0, "order_key"], 1, "page.events[0].order_key: must be str, not int"),
            (
                ["child_partitions", 0, "parents", 1],
                None,
                "page.child_partitions[0].parents[1]: must be",
            ),
            (["notices", 0, "type"], "Moved", "page.notices[0].type: must be one of Dropped, Renamed"),
            (["notices", 0, "type"], ..., "page.notices[0].type: must be one of"),
            (["notices", 0], "Dropped", "page.notices[0].type: must be one of"),
            (["notices", 0, "name"], None, "page.notices[0].name: must be str, not null"),
            (["notices", 0, "reason"], "x", "page.notices[0].reason: is not a known field"),
            (["diagnostics", "watermark"], "now", "page.diagnostics.watermark: is not RFC 3339"),
            (
                ["diagnostics", "partition_errors"],
                {"p": 1},
                "page.diagnostics.partition_errors['p']: must",
            ),
        ],
    )
    def test_of_a_damaged_page_names_the_field(self, path, value, message):
        assert message in refused(page_from_json, changed(page_to_json, PAGE, path, value))

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", "5", b"\xff", '{"$decimal": "1"}'])
    def test_of_anything_else(self, text):
        refused(event_from_json, text)
        refused(page_from_json, text)

    @given(st.binary(max_size=40) | st.text(max_size=40))
    def test_of_random_text(self, text):
        refused(event_from_json, text)
        refused(page_from_json, text)

    @given(st.data())
    def test_or_a_page_of_any_changed_text(self, data):
        text = bytearray(page_to_json(PAGE))
        for _ in range(data.draw(st.integers(1, 3))):
            text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
        try:
            page_from_json(bytes(text))
        except MulticloudDbError as error:
            assert error.category == ErrorCategory.INVALID_REQUEST  # noqa: PT017

    def test_of_a_naive_moment_on_the_way_out(self):
        naive = attrs.evolve(EVENT, timestamp=EVENT.timestamp.replace(tzinfo=None))
        assert "timestamp: is a naive datetime" in refused(event_to_json, naive)

    def test_of_a_document_without_a_json_form(self):
        event = attrs.evolve(EVENT, new_item_state={"at": UUID(int=1), "what": object()})
        assert "builtins.object" in refused(event_to_json, event)
