"""Tests that records become events and Arrow rows: names, order of keys, and whole or missing states."""

import itertools
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import attrs
import orjson
import pytest
from google.cloud.spanner_v1 import PartialResultSet
from google.protobuf.struct_pb2 import ListValue, Value
from hypothesis import given
from hypothesis import strategies as st

from multiclouddb_api import ChangeType, canonical_json
from multiclouddb_api.arrow import events_to_arrow
from multiclouddb_spanner.mapping import RowChange, RowChanges, SpannerMapper, place_after
from multiclouddb_spanner.position import Place, cursor_of
from multiclouddb_spanner.records import Mod, Shapes, parse_rows, values_of
from multiclouddb_spi import RecordFault
from multiclouddb_spi.cursor import Cut

from .fake import ORIGIN, VIEW, record

TYPES = {
    "id": "STRING", "n": "INT64", "f": "FLOAT64", "g": "FLOAT32", "d": "NUMERIC", "b": "BYTES", "j": "JSON",
    "t": "TIMESTAMP", "day": "DATE", "yes": "BOOL", "u": "UUID", "e": "ENUM", "p": "PROTO", "i": "INTERVAL",
}  # fmt: skip
ROW = {
    "n": str(2**63 - 1), "f": 0.1, "g": 2, "d": "1.50", "b": "AP8=", "j": '{"x":[1,{"$date":2}]}',
    "t": "2026-01-31T12:00:00.123456789Z", "day": "2026-01-31", "yes": True,
    "u": "12345678-1234-5678-1234-567812345678", "e": "7", "p": "CAE=", "i": "P1Y2M3D",
}  # fmt: skip
VALUES = {
    "n": 2**63 - 1, "f": 0.1, "g": 2.0, "d": Decimal("1.50"), "b": b"\x00\xff", "j": {"x": [1, {"$date": 2}]},
    "t": "2026-01-31T12:00:00.123456789Z", "day": "2026-01-31", "yes": True,
    "u": UUID("12345678-1234-5678-1234-567812345678"), "e": 7, "p": b"\x08\x01", "i": "P1Y2M3D",
}  # fmt: skip
OLD, NEW = {"n": "1"}, {"n": "2", "text": "x"}
COLUMNS = {"id": "STRING", "n": "INT64", "text": "STRING"}


def shape_of(types):
    kinds = {name: {"code": code} if isinstance(code, str) else code for name, code in types.items()}
    return Shapes().find(b"", lambda: [(name, kind, name == "id") for name, kind in kinds.items()])


def changed(
    new, *, types=TYPES, old=None, keys=None, kind="INSERT", capture="NEW_ROW_AND_OLD_VALUES", view=VIEW
):
    """Return the event and the Arrow row for one change."""
    made = record(5, "t", 0, 1, kind=kind, capture=capture, shape=shape_of(types))
    texts = [orjson.dumps(each).decode() for each in (keys or {"id": "a"}, new or {}, old or {})]
    changes = RowChanges(Place(Cut(0)), [RowChange(attrs.evolve(made, mods=[Mod(*texts)]), 0)])
    mapper = SpannerMapper(view)
    (event,) = mapper.events(changes, 0, 1)
    assert mapper.arrow(changes, 0, 1).to_pylist() == events_to_arrow([event]).to_pylist()
    return event


class TestValues:
    def test_each_type_has_its_own(self):
        event = changed(ROW)
        assert canonical_json(dict(event.new_item_state)) == canonical_json({"id": "a", **VALUES})

    def test_nulls_are_none(self):
        assert changed(dict.fromkeys(ROW)).new_item_state == {"id": "a", **dict.fromkeys(VALUES)}

    def test_what_no_number_says_is_told(self):
        for code, text in itertools.product(("FLOAT32", "FLOAT64"), ("NaN", "Infinity", "-Infinity")):
            event = changed({"f": text}, types={"id": "STRING", "f": code})
            assert str(event.new_item_state["f"]) == str(float(text))

    @pytest.mark.parametrize(
        ("code", "raw", "values"),
        [
            ("INT64", ["1", None, "NULL"], [1, None, None]),
            ("NUMERIC", ["0.1", None], [Decimal("0.1"), None]),
            ("FLOAT64", [1, "NaN", None], [1.0, float("nan"), None]),
            ("BYTES", ["AP8=", "NULL", None], [b"\x00\xff", b"5B\xcb", None]),
            ("JSON", ['[1,"NULL"]', "null"], [[1, "NULL"], None]),
            ("STRING", ["NULL", None], ["NULL", None]),
            ("BOOL", [True, None], [True, None]),
            ("TIMESTAMP", ["2026-01-31T12:00:00Z"], ["2026-01-31T12:00:00Z"]),
        ],
    )
    def test_arrays_are_lists(self, code, raw, values):
        types = {"id": "STRING", "a": {"code": "ARRAY", "array_element_type": {"code": code}}}
        event = changed({"a": raw}, types=types)
        assert canonical_json(event.new_item_state["a"]) == canonical_json(values)

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("18446744073709551615", 2**64 - 1),
            ("18446744073709551616", 2**64),
            ("1" + "0" * 309, 10**309),
            ("12345678901234567890.125", Decimal("12345678901234567890.125")),
            ("0.1", 0.1),
            ("1.8446744073709552e+19", 2.0**64),
            ("1e309", Decimal("1e309")),
        ],
    )
    def test_numbers_in_json_are_exact(self, text, value):
        raw = f'{{"$decimal":"1","n":[{text}]}}'
        found = changed({"j": raw}).new_item_state["j"]
        assert canonical_json(found) == canonical_json({"$decimal": "1", "n": [value]})
        assert type(found["n"][0]) is type(value)
        types = {"id": "STRING", "a": {"code": "ARRAY", "array_element_type": {"code": "JSON"}}}
        assert canonical_json(changed({"a": [text]}, types=types).new_item_state["a"]) == canonical_json(
            [value]
        )

    def test_a_record_in_the_form_of_postgresql_gives_the_same(self):
        made = record(5, "t", 0, 1, shape=shape_of(TYPES))
        mod = Mod({"id": "a"}, dict(ROW), {})
        changes = RowChanges(Place(Cut(0)), [RowChange(attrs.evolve(made, mods=[mod]), 0)])
        (event,) = SpannerMapper(VIEW).events(changes, 0, 1)
        assert event == SpannerMapper(VIEW).events(changes, 0, 1)[0]  # the mapping does not change its input
        assert canonical_json(dict(event.new_item_state)) == canonical_json({"id": "a", **VALUES})


class TestKeys:
    def test_are_in_the_order_of_the_primary_key(self):
        view = attrs.evolve(VIEW, key_names=("zone", "id", "at"))
        types = {"at": "TIMESTAMP", "id": "INT64", "zone": "STRING", "n": "INT64"}
        keys = {"at": "2026-01-31T12:00:00Z", "id": "7", "zone": "x"}
        event = changed({"n": "1"}, types=types, keys=keys, view=view)
        assert list(event.key.components.items()) == [
            ("zone", "x"), ("id", 7), ("at", "2026-01-31T12:00:00Z"),
        ]  # fmt: skip
        assert event.key.partition_components == 1
        assert event.new_item_state == {**event.key.components, "n": 1}


class TestStates:
    @pytest.mark.parametrize(
        ("capture", "insert", "update", "delete"),
        [
            ("OLD_AND_NEW_VALUES", "new", "", "old"),
            ("NEW_VALUES", "new", "", ""),
            ("NEW_ROW", "new", "new", ""),
            ("NEW_ROW_AND_OLD_VALUES", "new", "new old", "old"),
        ],
    )
    def test_are_whole_or_not_there(self, capture, insert, update, delete):
        view = attrs.evolve(VIEW, with_old=True)
        for kind, told in {"INSERT": insert, "UPDATE": update, "DELETE": delete}.items():
            sent, before = {} if kind == "DELETE" else NEW, {} if kind == "INSERT" else OLD
            event = changed(sent, types=COLUMNS, old=before, kind=kind, capture=capture, view=view)
            rest = {"text": "x"} if kind == "UPDATE" else {}  # the values that did not change
            assert event.new_item_state == ({"id": "a", "n": 2, "text": "x"} if "new" in told else None)
            assert event.old_item_state == ({"id": "a", "n": 1, **rest} if "old" in told else None)

    @pytest.mark.parametrize("change", [{"with_new": False}, {"whole": False}])
    def test_are_not_there_where_nobody_asks_or_columns_are_left_out(self, change):
        view = attrs.evolve(VIEW, with_old=True, **change)
        event = changed(NEW, types=COLUMNS, old=OLD, kind="UPDATE", view=view)
        assert event.new_item_state is None
        assert (event.old_item_state is None) == ("whole" in change)


class TestNames:
    def test_say_commit_transaction_record_and_change(self):
        changes = RowChanges(Place(Cut(0)), [RowChange(record(5, "tx", 3, 2), nth) for nth in range(2)])
        first, second = SpannerMapper(VIEW).events(changes, 0, 2)
        assert (first.event_id, second.event_id) == (
            "2023-11-14T22:13:20.000005Z|tx|00000003|0", "2023-11-14T22:13:20.000005Z|tx|00000003|1",
        )  # fmt: skip
        assert first.order_key == "2023-11-14T22:13:20.000005Z|00000003|000000"
        assert first.order_key < second.order_key
        assert first.timestamp == datetime(2023, 11, 14, 22, 13, 20, 5, UTC)

    @given(st.lists(st.integers(0, 10**13), min_size=2))
    def test_of_two_commits_the_later_sorts_higher(self, moments):
        changes = [RowChange(record(at, "t", 0, 1), 0) for at in sorted(moments)]
        events = SpannerMapper(VIEW).events(RowChanges(Place(Cut(0)), changes), 0, len(changes))
        keys = [event.order_key for event in events]
        assert keys == sorted(keys)

    def test_kinds(self):
        kinds = ["INSERT", "UPDATE", "DELETE"]
        assert [changed({}, kind=kind).type for kind in kinds] == list(ChangeType)


NO_NUMBER = Mod('{"id":"a"}', '{"n":"x"}', "{}")


class TestPoison:
    def damaged(self, **changes):
        poison = attrs.evolve(record(6, "u", 1, 1), **changes)
        made = [RowChange(each, 0) for each in (record(5, "t", 0, 1), poison, record(7, "v", 0, 1))]
        return RowChanges(Place(Cut(ORIGIN)), made)

    @pytest.mark.parametrize(
        "changes",
        [
            {"mods": [Mod("no JSON", "{}", "{}")]},
            {"mods": [Mod('{"other":1}', "{}", "{}")]},
            {"mods": [Mod("[]", "{}", "{}")]},
            {"mods": [Mod('{"id":"a"}', '{"n":5}', "{}")], "shape": shape_of({"id": "STRING", "n": "INT64"})},
            *(
                {"mods": [NO_NUMBER], "shape": shape_of({"id": "STRING", "n": each})}
                for each in ("NUMERIC", "FLOAT64", "UUID", "JSON")
            ),
            {"kind": "OTHER"},
            {"shape": shape_of({"id": "STRING", "n": "NEW_TYPE"})},
        ],
    )
    @pytest.mark.parametrize("form", ["events", "arrow"])
    def test_is_named_and_can_be_skipped(self, changes, form):
        damaged, mapper = self.damaged(**changes), SpannerMapper(VIEW)
        with pytest.raises(RecordFault) as caught:
            getattr(mapper, form)(damaged, 0, 3)
        assert caught.value.index == 1
        assert caught.value.skip_cursor == cursor_of(place_after(Place(Cut(ORIGIN)), damaged.items, 2))
        assert "transaction u" in caught.value.position
        assert "shape" not in changes or "mods" in changes or "NEW_TYPE" in str(caught.value)
        assert len(mapper.events(damaged, 0, 1)) == len(mapper.events(damaged, 2, 3)) == 1


SENT = [["id", '{"code":"STRING"}', True, "1"], ["n", '{"code":"INT64"}', False, "2"]]
MODS = [['{"id":"a"}', '{"n":"1"}', "{}"]]
FIELDS = [
    "2026-01-31T12:00:00.5Z", "00000000", "tx", True, "items", SENT, MODS, "INSERT", "NEW_ROW", "1", "1",
    "", False,
]  # fmt: skip


def to_value(value):
    """Convert a value in the form of JSON to protobuf, as an answer contains it."""
    if isinstance(value, list):
        return Value(list_value=ListValue(values=map(to_value, value)))
    return Value(bool_value=value) if isinstance(value, bool) else Value(string_value=value)


@pytest.mark.parametrize("more", [[], ["new"], ["new", [["x"]]]], ids=len)
def test_a_record_with_fields_that_a_newer_service_adds_is_read(more):
    row = to_value([[[[*FIELDS, *more]], [], []]])
    (item,) = [*parse_rows([[row]], "items", Shapes())]
    assert (item.commit, item.transaction, item.kind, len(item.mods)) == (FIELDS[0], "tx", "INSERT", 1)
    assert item.native()["commit_timestamp"] == FIELDS[0]


@pytest.mark.parametrize("count", [9, 11, 12])
def test_fields_that_came_later_may_be_missing(count):
    (item,) = [*parse_rows([[to_value([[[FIELDS[:count]], [], []]])]], "items", Shapes())]
    assert (item.commit, item.by_expiry, len(item.mods)) == (FIELDS[0], False, 1)
    assert item.native()["mod_type"] == "INSERT"


def test_fields_that_came_later_may_be_missing_in_postgresql():
    data = {
        "commit_timestamp": FIELDS[0], "record_sequence": "00000000", "server_transaction_id": "tx",
        "table_name": "items", "column_types": [{"name": "id", "type": {"code": "STRING"}}],
        "mods": [{"keys": {"id": "a"}}], "mod_type": "DELETE", "value_capture_type": "NEW_ROW",
    }  # fmt: skip
    children = {"start_timestamp": FIELDS[0], "record_sequence": "0", "child_partitions": [{"token": "t"}]}
    records = [{"data_change_record": data}, {"child_partitions_record": children}]
    rows = [[Value(string_value=orjson.dumps(each).decode())] for each in records]
    item, ending = [*parse_rows(rows, "items", Shapes())]
    assert (item.kind, item.by_expiry, ending.parents) == ("DELETE", False, {"t": ()})
    changes = RowChanges(Place(Cut(0)), [RowChange(item, 0)])
    (event,) = SpannerMapper(attrs.evolve(VIEW, with_old=True)).events(changes, 0, 1)
    assert (event.key["id"], event.new_item_state, event.old_item_state) == ("a", None, None)


def test_a_message_without_values_between_the_parts_of_a_value_changes_nothing():
    messages = [PartialResultSet(chunked_value=True), PartialResultSet(), PartialResultSet()]
    for message, texts in zip(messages, (["one "], [], ["text", "another"]), strict=True):
        PartialResultSet.pb(message).values.extend(Value(string_value=text) for text in texts)
    found = [value.string_value for values in values_of(messages, 1) for value in values]
    assert found == ["one text", "another"]
