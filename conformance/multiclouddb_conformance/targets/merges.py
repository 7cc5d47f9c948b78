"""Tests that changes in any order, and more than once, give the same table."""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import attrs
import pyarrow as pa
import pytest

from multiclouddb_api import (
    BackfillDone,
    ChangeEvent,
    ChangeFeedPage,
    ErrorCategory,
    ErrorReason,
    MulticloudDbError,
    MulticloudDbKey,
    SnapshotStarted,
    decode_json,
    encode_json,
)
from multiclouddb_conformance.refusals import check_refusal
from multiclouddb_conformance.sink_harness import (
    ADDRESS,
    NOW,
    PLAN,
    Change,
    SinkHarness,
    applied,
    bare,
    documents,
    drawn,
    events,
    expected,
    key_of,
    page,
    read,
    refused,
    rows,
    tombstones,
)
from multiclouddb_conformance.values import KEYS, VALUES
from multiclouddb_spi import encode_partition_id
from multiclouddb_tables.column_values import as_stored, own_state
from multiclouddb_tables.contract import Fix
from multiclouddb_tables.rules import TIME
from multiclouddb_verify.own_columns import OwnColumns

__all__ = ["TestMerged", "TestRepeated"]


class TestMerged:
    """Tests that changes in any order, and more than once, give the same table."""

    def test_replays_deletes_and_several_changes_of_a_key(self, sink: SinkHarness) -> None:
        dice, changes = random.Random(1), list[Change]()
        for number in range(3):
            batch = drawn(dice, number * 40, 40)
            changes += batch
            dice.shuffle(batch)
            for _ in range(2):
                assert sink.merge(rows(*batch), number, "app")
            assert (documents(sink), tombstones(sink)) == applied(changes)

    def test_any_order_of_batches(self, sink: SinkHarness) -> None:
        dice = random.Random(2)
        changes = drawn(dice, 0, 60)
        batches = [changes[at : at + 20] for at in range(0, 60, 20)]
        batches += dice.choices(batches, k=1)
        dice.shuffle(batches)
        for batch in batches:
            sink.merge(rows(*batch))
        assert (documents(sink), tombstones(sink)) == applied(changes)

    def test_an_older_change_does_not_win_over_a_tombstone(self, sink: SinkHarness) -> None:
        sink.merge(rows(("a", 3, None), ("b", 5, {"n": 5})))
        sink.merge(rows(("a", 2, {"n": 2}), ("b", 4, None), ("c", 1, None)))
        assert (documents(sink), tombstones(sink)) == ({"b": {"n": 5}}, {"a": "000003", "c": "000001"})
        sink.merge(rows(("a", 6, {"n": 6})))
        assert documents(sink) == {"a": {"n": 6}, "b": {"n": 5}}

    def test_another_change_of_the_same_order_does_not_win(self, sink: SinkHarness) -> None:
        """The tombstones of a snapshot have the order of its rows, of which one may come late."""
        sink.merge(rows(("a", 1, {"n": 1}), ("b", 1, None)))
        sink.merge(rows(("a", 1, {"n": 2}), ("b", 1, {"n": 2})))
        assert (documents(sink), tombstones(sink)) == ({"a": {"n": 1}}, {"b": "000001"})

    def test_no_batch_is_left_out_because_of_its_number(self, sink: SinkHarness) -> None:
        """A checkpoint that is restored from a copy, or copied, delivers other rows under old numbers."""
        for order, (number, app_id) in enumerate([(0, "first"), (1, "first"), (1, "first"), (0, "second")]):
            assert sink.merge(rows(("a", order, {"n": order}), (f"b{order}", order, {})), number, app_id)
        assert documents(sink) == {"a": {"n": 3}, **{f"b{order}": {} for order in range(4)}}

    def test_pages_and_tables_are_the_same(self, sink: SinkHarness) -> None:
        assert not sink.merge(page([]))
        assert sink.merge(page(events(("a", 1, {"n": 1}), ("b", 2, None))))
        assert not sink.merge(page([]))
        assert (documents(sink), tombstones(sink)) == ({"a": {"n": 1}}, {"b": "000002"})

    def test_new_columns(self, sink: SinkHarness) -> None:
        sink.merge(rows(("a", 1, {"n": 1})))
        wider = rows(("a", 2, {"n": 2})).append_column("total", pa.array([2.5]))
        assert "total" in refused(sink.merge, wider).message
        assert documents(sink) == {"a": {"n": 1}}
        assert sink.merge(wider, new_columns="add")
        sink.merge(rows(("b", 3, {"n": 3})))
        assert documents(sink) == {"a": {"n": 2}, "b": {"n": 3}}
        wrong = rows(("a", 4, {})).append_column("total", pa.array(["x"]))
        assert "column total" in refused(sink.merge, wrong).message

    def test_columns_of_every_type_come_back_and_a_delete_empties_them(self, sink: SinkHarness) -> None:
        """The columns that `.schema(…)` of Spark's source gives, with names that need quotes."""
        at, number = (
            datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
            Decimal("1234567890123456789.012345678901234567"),
        )
        values: dict[str, tuple[pa.DataType, Any]] = {
            "flag": (pa.bool_(), False), "tiny": (pa.int8(), -128), "n": (pa.int16(), 2**15 - 1),
            "int": (pa.int32(), -(2**31)), "big%s": (pa.int64(), 2**63 - 1), "real": (pa.float32(), 0.25),
            "total": (pa.float64(), 0.1), "price": (pa.decimal128(9, 2), Decimal("-1.50")),
            "exact": (pa.decimal128(38, 18), number), "select": (pa.string(), "a\"'`\n\\N"),
            "a.b": (pa.string(), ""), "day": (pa.date32(), at.date()), "at": (TIME, at),
            "local": (pa.timestamp("us"), at.replace(tzinfo=None)), "raw": (pa.binary(), b"\x00\xff"),
        }  # fmt: skip

        def typed(*changes: Change) -> pa.Table:
            batch, filled = rows(*changes), [document is not None for _, _, document in changes]
            for name, (kind, value) in values.items():
                batch = batch.append_column(
                    name, pa.array([value if each else None for each in filled], kind)
                )
            return batch

        def stored() -> dict[str, Any]:
            found = [row for each in sink.target.rows(own=True) for row in each.to_pylist()]
            return {json.loads(row["key"])["id"]: decode_json(row["state"]) for row in found}

        sink.merge(typed(("a", 1, {}), ("b", 1, {}), ("c", 1, {})))
        sink.merge(typed(("b", 2, None), ("c", 0, None)))
        found = stored()
        ours = own_state({name: value for name, (_, value) in values.items()})
        assert {name: found["a"][name] for name in ours} == ours
        assert found["c"] == found["a"]
        assert not found["b"].keys() & ours.keys()

    @pytest.mark.parametrize("value", [float("nan"), -0.0, float("-inf"), 5e-324])
    def test_a_float_comes_back_as_columns_says_or_is_refused(self, sink: SinkHarness, value: float) -> None:
        """Some databases store null for NaN, and have no negative zero."""
        batch = rows(("a", 1, {"n": 1})).append_column("total", pa.array([value]))
        said = None
        try:
            sink.merge(batch)
        except MulticloudDbError as error:
            said = error.category, error.reason, "column total" in error.message
        if said is not None:
            assert said == (ErrorCategory.INVALID_REQUEST, ErrorReason.MISFIT, True)
            return
        [row] = [row for each in sink.target.rows(own=("total",)) for row in each.to_pylist()]
        held = as_stored(value, sink.target.columns()["total"])
        assert row["state"] == encode_json(own_state({"total": held})).decode()

    def test_transform_is_compared_as_the_columns_hold_it_and_repairs_only_them(
        self, sink: SinkHarness
    ) -> None:
        """Others stay as they are, and so does the document; but a tombstone keeps nothing of the sink."""
        kinds = {
            "total": (pa.float64(), 3.0), "real": (pa.float32(), 0.1),
            "price": (pa.decimal128(9, 2), Decimal("1.50")), "whole": (pa.int64(), 2),
            "none": (pa.string(), None),
            "note": (pa.string(), "not filled"),
        }  # fmt: skip

        def columns(document: Any) -> dict[str, Any]:
            return {"total": document["n"], "real": 0.1, "price": 1.5, "whole": Decimal(2), "none": None}

        batch = rows(("a", 1, {"n": 3}), ("b", 1, {"n": 3}))
        for name, (kind, value) in kinds.items():
            batch = batch.append_column(name, pa.array([value] * 2, kind))
        sink.merge(batch)
        known = sink.target.columns()
        assert known.keys() == kinds.keys()
        own = OwnColumns.of(columns, sink.target.name, known, [{"n": 3}])

        def stored(names: Any = True) -> dict[str, Any]:
            found = [row for each in sink.target.rows(own=names) for row in each.to_pylist()]
            return {json.loads(row["key"])["id"]: decode_json(row["state"]) for row in found}

        wanted = encode_json(own_state(own({"n": 3})))
        assert {name: encode_json(each) for name, each in stored((*own.types,)).items()} == {
            "a": wanted,
            "b": wanted,
        }
        # What `verify` asks for while no declared column is filled.
        assert stored(("key",)) == {name: {"key": key_of(name)} for name in ("a", "b")}
        text = encode_json({"n": 4}).decode()
        fixes = [
            Fix(key_of("a"), ("000001",), "000001", text, own({"n": 4}), NOW),
            Fix(key_of("b"), ("000001",), "000001", None, own(None), NOW),
        ]
        assert sink.target.fix(fixes[:1], expected(sink)) == 1
        assert stored()["a"] | {"total": 4.0, "note": "not filled"} == stored()["a"]
        assert encode_json(stored((*own.types,))["a"]) == encode_json(own_state(own({"n": 4})))
        assert sink.target.fix(fixes[1:], expected(sink)) == 1
        assert read(sink)[key_of("b")]["deleted"]
        assert stored()["b"] == {}

    def test_a_column_that_a_batch_lacks_is_null_after_a_change_and_after_a_delete(
        self, sink: SinkHarness
    ) -> None:
        """A later batch may have fewer columns: no row may have an old value beside its new document."""

        def stored() -> dict[str, Any]:
            found = [row for each in sink.target.rows(own=("phone",)) for row in each.to_pylist()]
            return {json.loads(row["key"])["id"]: decode_json(row["state"]) for row in found}

        wider = rows(("a", 1, {}), ("b", 1, {}), ("c", 1, {}))
        sink.merge(wider.append_column("phone", pa.array(["555", "666", "777"])))
        sink.merge(rows(("a", 2, None), ("b", 2, {})))
        assert stored() == {"a": {}, "b": {}, "c": {"phone": "777"}}
        sink.merge(bare(("c", 3, {})), missing_state="keep")
        sink.merge(rows(("b", 4, None)))
        assert stored() == {"a": {}, "b": {}, "c": {"phone": "777"}}
        sink.merge(page([], SnapshotStarted("000010~", PLAN)))
        sink.merge(page([], BackfillDone(PLAN, "000010~")))
        assert stored() == {"a": {}, "b": {}, "c": {}}

    def test_a_tombstone_of_a_repair_keeps_no_column_that_transform_does_not_fill(
        self, sink: SinkHarness
    ) -> None:
        batch = rows(("a", 1, {}), ("b", 1, {}))
        for name in ("mail", "phone"):
            batch = batch.append_column(name, pa.array([f"{name} 1", f"{name} 2"]))
        sink.merge(batch)
        fixes = [
            Fix(key_of("a"), ("000001",), "000001", None, {"mail": None}, NOW),
            Fix(key_of("b"), ("000001",), "000001", "{}", {"mail": "new"}, NOW),
        ]
        assert sink.target.fix(fixes, expected(sink)) == 2
        found = [row for each in sink.target.rows(own=("mail", "phone")) for row in each.to_pylist()]
        assert {json.loads(row["key"])["id"]: decode_json(row["state"]) for row in found} == {
            "a": {},
            "b": {"mail": "new", "phone": "phone 2"},
        }

    def test_changes_without_documents(self, sink: SinkHarness) -> None:
        sink.merge(rows(("a", 1, {"n": 1})))
        lost = bare(("a", 2, {}), ("b", 3, {}))
        assert "missing_state" in refused(sink.merge, lost).message
        assert sink.merge(lost, missing_state="keep")
        found = read(sink)
        assert (found[key_of("a")]["order_key"], found[key_of("a")]["state"]) == ("000002", '{"n":1}')
        sink.merge(rows(("a", 1, {"n": 0}), ("b", 4, {"n": 4})))
        assert documents(sink)["b"] == {"n": 4}
        assert read(sink)[key_of("a")]["state"] == '{"n":1}'
        # The table has the column _stale_since now; a delete empties the row as in any other table.
        sink.merge(rows(("a", 5, None)), missing_state="keep")
        assert (tombstones(sink), read(sink)[key_of("a")]["state"]) == ({"a": "000005"}, None)

    def test_change_without_its_document_keeps_all_columns(self, sink: SinkHarness) -> None:
        def stored() -> dict[str, Any]:
            [row] = [row for each in sink.target.rows(own=True) for row in each.to_pylist()]
            return {"order_key": row["order_key"], **decode_json(row["state"])}

        sink.merge(rows(("a", 1, {"n": 1})).append_column("n", pa.array([1])))
        lost = bare(("a", 2, {})).append_column("n", pa.array([None], pa.int64()))
        sink.merge(lost, missing_state="keep")
        found = stored()
        assert (found["order_key"], found["n"]) == ("000002", own_state({"n": 1})["n"])

    def test_an_incomplete_row_is_refused(self, sink: SinkHarness) -> None:
        for column, value in (("key", None), ("order_key", None), ("type", None), ("type", "OTHER")):
            batch = rows(("a", 1, {}))
            at = batch.column_names.index(column)
            batch = batch.set_column(at, batch.schema.field(at), pa.array([value], pa.string()))
            assert "without key, order_key or type" in refused(sink.merge, batch).message

    def test_a_batch_without_a_column_of_the_change_is_refused(self, sink: SinkHarness) -> None:
        """Otherwise, rows of a snapshot would look like changes, and documents that it lacks would stay."""
        sink.merge(rows(("a", 1, {}), ("gone", 2, {})))
        scanned = rows(("a", 0, {"s": 1}), mark="snapshot:s:", backfilled=True, floor="000010~")
        for column in ("key", "order_key", "type", "event_id", "backfilled"):
            assert column in refused(sink.merge, scanned.drop_columns(column)).message
        assert documents(sink) == {"a": {}, "gone": {}}

    def test_a_table_that_must_exist(self, sink: SinkHarness) -> None:
        with pytest.raises(MulticloudDbError) as caught:
            sink.merge(rows(("a", 1, {})), create="never")
        check_refusal(caught.value, ErrorCategory.NOT_FOUND)

    def test_soft_deletes_of_latest_versions_are_tombstones_and_other_feeds_are_refused(
        self, sink: SinkHarness
    ) -> None:
        latest = events(("a", 1, {"n": 1}), ("b", 2, {"n": 2}), mark="latest:")
        sink.merge(page(latest))
        sink.merge(page(events(("a", 3, None), mark="latest:")))
        assert (documents(sink), tombstones(sink)) == ({"b": {"n": 2}}, {"a": "000003"})
        assert "only latest versions" in refused(sink.merge, page(events(("c", 4, {})))).message

    def test_a_zoo_of_documents_and_keys(self, sink: SinkHarness) -> None:
        """Each document comes back as it was, byte for byte."""
        zoo = {f"v-{name}": {"v": value} for name, value in VALUES.items()}
        found = events(*((name, 1, document) for name, document in zoo.items()))
        found += [
            attrs.evolve(each, key=MulticloudDbKey({"id": key}))
            for each, key in zip(events(*((name, 1, {}) for name in KEYS)), KEYS.values(), strict=True)
        ]
        deep: Any = 1
        for _ in range(90):
            deep = {"d": [deep]}
        found += events(("deep", 1, deep), ("empty", 1, {}), ("duplicate quotes", 1, {'"': "'\"\\"}))
        sink.merge(page(found))
        ours = {
            key_of(each.key.components["id"]): encode_json(each.new_item_state).decode() for each in found
        }
        assert {key: row["state"] for key, row in read(sink).items()} == ours


def _history() -> list[tuple[pa.Table | ChangeFeedPage, dict[str, Any], dict[str, Any]]]:
    """Return batches of every kind, the options of each, and the documents after it."""

    def scanned(name: str, *keys: str, floor: str) -> list[ChangeEvent]:
        changes = [(key, 0, {name: key}) for key in keys]
        return events(*changes, mark=f"snapshot:{name}:", backfilled=True, floor=floor)

    first, second = (
        encode_partition_id("provider", ADDRESS, "first", f"snapshot:{name}") for name in ("s", "t")
    )
    low, high = "000010~", "000020~"
    wider = rows(("a", 2, {"n": 2})).append_column("total", pa.array([2.5]))
    keep, add = {"missing_state": "keep"}, {"new_columns": "add"}
    s, t = ({name: key} for name, key in (("s", "a"), ("t", "c")))
    steps: list[tuple[pa.Table | ChangeFeedPage, dict[str, Any], dict[str, Any]]] = [
        (page(events(*((key, 1, {"n": 1}) for key in "abc"))), {}, {key: {"n": 1} for key in "abc"}),
        (wider, add, {"a": {"n": 2}}),
        (bare(("b", 3, {})), keep, {}),
        (page(events(("c", 4, None))), {}, {"c": None}),
        (page([], SnapshotStarted(low, first)), {}, {}),
        (page(scanned("s", "a", "d", floor=low)), {}, {"a": s, "d": {"s": "d"}}),
        (page(events(("d", 11, {"n": 11}), ("e", 12, {"n": 12}))), {}, {"d": {"n": 11}, "e": {"n": 12}}),
        (page(scanned("s", "b", floor=low), BackfillDone(first, low)), {}, {"b": {"s": "b"}}),
        (page(events(("b", 13, None), ("c", 14, {"n": 14}))), {}, {"b": None, "c": {"n": 14}}),
        (page([], SnapshotStarted(high, second)), {}, {}),
        (
            page(scanned("t", "c", "e", floor=high), BackfillDone(second, high)),
            {},
            {"a": None, "c": t, "d": None, "e": {"t": "e"}},
        ),
        (bare(("e", 21, {})), keep, {}),
        (page(events(("a", 22, {"n": 22}))), {}, {"a": {"n": 22}}),
    ]
    return steps


class TestRepeated:
    """Tests that merging a batch again changes nothing, however late: no batch is ever left out."""

    @pytest.mark.parametrize("repeated", range(len(_history())))
    def test_each_batch_after_each_later_one(self, sink: SinkHarness, repeated: int) -> None:
        steps, live = _history(), dict[str, Any]()
        for number, (batch, options, changed) in enumerate(steps):
            live = {key: state for key, state in {**live, **changed}.items() if state is not None}
            sink.merge(batch, **options)
            assert documents(sink) == live
            if number >= repeated:
                sink.merge(steps[repeated][0], **steps[repeated][1])
                assert documents(sink) == live
