"""Tests that events and pages survive JSON exactly, and that an error names the damaged field."""

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import multiclouddb_api as api

from .refusals import refused
from .test_codec import leaves, moments

EVENT = api.ChangeEvent(
    event_id="e-1",
    key=api.MulticloudDbKey({"customer": "c-1", "order": 7}),
    type=api.ChangeType.UPDATE,
    timestamp=datetime(2026, 1, 31, 12, 0, 0, 500_000, UTC),
    new_item_state={"total": Decimal("1.50"), "$ref": 1},
    old_item_state=None,
    order_key="0001",
    by_expiry=False,
    backfilled=False,
    address=api.ResourceAddress("shop", "orders"),
    partition_id="embedded:1.2:p0",
)
NOTICES = (
    api.Dropped("shop/orders"),
    api.Renamed("orders", "orders2"),
    api.Invalidated("gone"),
    api.FeedEnded("gone"),
    api.Gap("p", "5", "9"),
    api.RecordSkipped("p", "7"),
    api.PartitionFoundLate("p", "7"),
    api.SnapshotStarted("9~", "s"),
    api.BackfillDone("p"),
)
PAGE = api.ChangeFeedPage(
    events=(EVENT,),
    continuation_token="token",
    idle=False,
    partition_retired=True,
    child_partitions=(api.ChildPartition("c", ("a", "b"), "child token"),),
    notices=NOTICES,
    diagnostics=api.OperationDiagnostics(
        watermark=datetime(2026, 1, 31, tzinfo=UTC),
        read_until=datetime(2026, 1, 31, 1, tzinfo=UTC),
        read_until_estimated=True,
        partitions_read_until={"p": datetime(2026, 1, 31, 1, tzinfo=UTC)},
        partitions_watermark={"p": datetime(2026, 1, 31, tzinfo=UTC)},
        partitions_headroom_seconds={"p": 86400.0},
        lag_seconds=1.5,
        retention_headroom_seconds=86400,
        requests=3,
        native_charge=None,
        retries=1,
        partition_errors={"$odd": "slow"},
        elapsed_seconds=0.25,
        snapshot=api.SnapshotProgress(api.SnapshotOrder.ORDERED, 1, 4, 10, None),
    ),
)

documents = st.dictionaries(
    st.text(),
    st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_size=4,
)
keys = st.builds(
    lambda components: api.MulticloudDbKey(components, len(components)),
    st.dictionaries(st.text(min_size=1), leaves, min_size=1, max_size=3),
)
events = st.builds(
    api.ChangeEvent,
    event_id=st.text(),
    key=keys,
    type=st.sampled_from(api.ChangeType),
    timestamp=moments,
    new_item_state=st.none() | documents,
    old_item_state=st.none() | documents,
    order_key=st.text(),
    by_expiry=st.sampled_from([True, False, None]),
    backfilled=st.booleans(),
    address=st.builds(api.ResourceAddress, st.none() | st.just("db"), st.none() | st.just("c")),
    partition_id=st.text(),
)
numbers = st.none() | st.floats(allow_nan=False)
pages = st.builds(
    api.ChangeFeedPage,
    events=st.lists(events, max_size=2).map(tuple),
    continuation_token=st.text(),
    idle=st.booleans(),
    partition_retired=st.booleans(),
    child_partitions=st.lists(
        st.builds(api.ChildPartition, st.text(), st.lists(st.text()).map(tuple), st.text()), max_size=2
    ).map(tuple),
    notices=st.lists(st.sampled_from(NOTICES)).map(tuple),
    diagnostics=st.builds(
        api.OperationDiagnostics,
        watermark=st.none() | moments,
        read_until=st.none() | moments,
        read_until_estimated=st.booleans(),
        partitions_read_until=st.dictionaries(st.text(), moments),
        partitions_watermark=st.dictionaries(st.text(), moments),
        partitions_headroom_seconds=st.dictionaries(st.text(), st.floats(allow_nan=False)),
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
        back = api.event_from_json(api.event_to_json(event))
        assert back == event
        assert list(back.key.components) == list(event.key.components)

    @given(pages)
    def test_of_any_page_is_exact(self, page):
        assert api.page_from_json(api.page_to_json(page)) == page

    def test_takes_text_and_leaves_out_the_native_record(self):
        event = attrs.evolve(EVENT, native=object())
        assert api.event_from_json(api.event_to_json(event).decode()).native is None
        assert "native" not in json.loads(api.event_to_json(event))
        assert api.page_from_json(api.page_to_json(PAGE).decode()) == PAGE

    def test_survives_a_program_that_sorts_object_keys(self):
        """The order of key components matters, and JSON objects have no order."""
        event = attrs.evolve(EVENT, key=api.MulticloudDbKey({"b": 1, "a": 2}))
        text = json.dumps(json.loads(api.event_to_json(event)), sort_keys=True)
        assert api.event_from_json(text).key.partition_key == {"b": 1}


class TestForm:
    def test_of_an_event(self):
        assert json.loads(api.event_to_json(EVENT)) == {
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
        fields = json.loads(api.page_to_json(PAGE))
        assert fields["notices"][:2] == [
            {"type": "Dropped", "name": "shop/orders"},
            {"type": "Renamed", "name": "orders", "new_name": "orders2"},
        ]
        assert fields["diagnostics"]["watermark"] == "2026-01-31T00:00:00Z"
        assert fields["child_partitions"][0]["parents"] == ["a", "b"]

    def test_moments_of_another_offset_are_utc(self):
        east = timezone(timedelta(hours=5, minutes=30))
        event = attrs.evolve(EVENT, timestamp=EVENT.timestamp.astimezone(east))
        assert b'"2026-01-31T12:00:00.500000Z"' in api.event_to_json(event)
        text = api.event_to_json(EVENT).replace(b"T12:00:00.500000Z", b"T13:00:00.5+01:00")
        assert api.event_from_json(text) == EVENT


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
        ("read", "write", "value", "path", "kind"),
        [
            (api.event_from_json, api.event_to_json, EVENT, [], api.ChangeEvent),
            (api.page_from_json, api.page_to_json, PAGE, [], api.ChangeFeedPage),
            (api.page_from_json, api.page_to_json, PAGE, ["diagnostics"], api.OperationDiagnostics),
        ],
        ids=["event", "page", "diagnostics"],
    )
    def test_of_a_missing_or_wrong_field_names_it(self, read, write, value, path, kind):
        for name in attrs.fields_dict(kind).keys() - {"native"}:
            place = ".".join(["event" if kind is api.ChangeEvent else "page", *path, name])
            if name != "snapshot":  # pages from versions without snapshots do not contain this field
                assert f"{place}: is missing" in refused(read, changed(write, value, [*path, name], ...))
            wrong = [5, [1]] if kind is api.ChangeEvent else [[True]]
            for each in wrong:
                assert place in refused(read, changed(write, value, [*path, name], each))

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
            (["new_item_state"], {"$decimal": "1"}, "event.new_item_state: must be dict or null"),
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
        assert message in refused(api.event_from_json, changed(api.event_to_json, EVENT, path, value))

    @pytest.mark.parametrize(
        ("path", "value", "message"),
        [
            (["events", 0, "order_key"], 1, "page.events[0].order_key: must be str, not int"),
            (["child_partitions", 0, "parents", 1], None, "page.child_partitions[0].parents[1]: must be"),
            (["notices", 0, "type"], "Moved", "page.notices[0].type: must be one of Dropped, Renamed"),
            (["notices", 0, "type"], ..., "page.notices[0].type: must be one of"),
            (["notices", 0], "Dropped", "page.notices[0].type: must be one of"),
            (["notices", 0, "name"], None, "page.notices[0].name: must be str, not null"),
            (["notices", 0, "reason"], "x", "page.notices[0].reason: is not a known field"),
            (["diagnostics", "watermark"], "now", "page.diagnostics.watermark: is not RFC 3339"),
            (["diagnostics", "partition_errors"], {"p": 1}, "page.diagnostics.partition_errors['p']: must"),
        ],
    )
    def test_of_a_damaged_page_names_the_field(self, path, value, message):
        assert message in refused(api.page_from_json, changed(api.page_to_json, PAGE, path, value))

    @given(st.binary(max_size=40) | st.text(max_size=40))
    @example("")
    @example("{")
    @example("[]")
    @example("null")
    @example(b"\xff")
    @example('{"$decimal": "1"}')
    def test_of_anything_else(self, text):
        refused(api.event_from_json, text)
        refused(api.page_from_json, text)

    @given(st.data())
    def test_or_a_page_of_any_changed_text(self, data):
        text = bytearray(api.page_to_json(PAGE))
        for _ in range(data.draw(st.integers(1, 3))):
            text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
        try:
            api.page_from_json(bytes(text))
        except api.MulticloudDbError as error:
            assert error.category == api.ErrorCategory.INVALID_REQUEST  # noqa: PT017

    def test_of_what_has_no_json_form(self):
        naive = attrs.evolve(EVENT, timestamp=EVENT.timestamp.replace(tzinfo=None))
        assert "timestamp: is a naive datetime" in refused(api.event_to_json, naive)
        unknown = attrs.evolve(EVENT, new_item_state={"at": UUID(int=1), "what": object()})
        assert "builtins.object" in refused(api.event_to_json, unknown)
