"""Tests what the table of a sink contains after replays, old changes, snapshots, kills and repairs.

To test a kind of table, import these tests and define the fixture `sink`, a `SinkHarness` of an empty place
(see `sink_harness.py`):

    from multiclouddb_conformance.targets import *

    @pytest.fixture
    def sink(tmp_path):
        return MySink(tmp_path)
"""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import attrs
import pyarrow as pa
import pytest

from multiclouddb_api import (
    BackfillDone,
    Beginning,
    ChangeEvent,
    ChangeFeedPage,
    ChangeFeedRequest,
    Dropped,
    ErrorCategory,
    Gap,
    Invalidated,
    MulticloudDbError,
    MulticloudDbKey,
    Notice,
    Renamed,
    ResourceAddress,
    SnapshotStarted,
    decode_json,
    encode_json,
)
from multiclouddb_api.arrow import events_to_arrow
from multiclouddb_conformance.simulated import collection_of
from multiclouddb_conformance.sink_harness import (
    ADDRESS,
    NOW,
    SOURCE,
    Change,
    Death,
    SinkHarness,
    Turn,
    applied,
    bare,
    documents,
    drawn,
    events,
    expected,
    key_of,
    page,
    read,
    rows,
    token_of,
    tombstones,
)
from multiclouddb_conformance.values import KEYS, VALUES
from multiclouddb_spi import encode_partition_id
from multiclouddb_spi.partition import incarnation_digest
from multiclouddb_tables.column_values import as_stored, own_state
from multiclouddb_tables.contract import Fix, SupportsRecord
from multiclouddb_tables.mark import FeedSource
from multiclouddb_tables.merging import SinkTable
from multiclouddb_tables.rules import TIME
from multiclouddb_verify import DifferenceKind, verify
from multiclouddb_verify.own_columns import OwnColumns

__all__ = [
    "TestFixed",
    "TestJudged",
    "TestLives",
    "TestMarked",
    "TestMerged",
    "TestNoticed",
    "TestNoticesOfPages",
    "TestRead",
    "TestRepeated",
    "TestReplaced",
    "TestSnapshot",
    "TestVanished",
]

_PLAN: Final = encode_partition_id("provider", ADDRESS, "first", "snapshot:s")
_OTHERS: Final = (
    FeedSource("provider", ResourceAddress("main", "customers"), "first"),
    FeedSource("provider", ResourceAddress("test", "orders"), "first"),
    FeedSource("vendor", ADDRESS, "first"),
)
_LIVES: Final = [
    pytest.param(0, 3, id="short"),
    *(pytest.param(seed, 10, marks=pytest.mark.soak, id=str(seed)) for seed in range(60)),
]


def _from(source: FeedSource, batch: pa.Table, address: ResourceAddress | None = None) -> pa.Table:
    """Return a batch as if it came from another feed."""
    address = address or source.address
    where = encode_partition_id(source.provider, source.address, source.incarnation, "p0")
    values = {"partition_id": where, "database": address.database, "collection": address.collection}
    for name, value in values.items():
        at = batch.column_names.index(name)
        batch = batch.set_column(at, name, pa.array([value] * batch.num_rows, pa.string()))
    return batch


def _without(batch: pa.Table, name: str) -> pa.Table:
    """Return a batch whose column has no value."""
    at = batch.column_names.index(name)
    return batch.set_column(at, batch.schema.field(at), pa.nulls(batch.num_rows, pa.string()))


def refused(call: Callable[..., object], *arguments: Any, **options: Any) -> MulticloudDbError:
    """Return the error of a call that must be refused."""
    with pytest.raises(MulticloudDbError) as caught:
        call(*arguments, **options)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    return caught.value


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
            said = error.category, "column total" in error.message
        if said is not None:
            assert said == (ErrorCategory.INVALID_REQUEST, True)
            return
        [row] = [row for each in sink.target.rows(own=("total",)) for row in each.to_pylist()]
        held = as_stored(value, sink.target.columns()["total"])
        assert row["state"] == encode_json(own_state({"total": held})).decode()

    def test_transform_is_compared_as_the_columns_hold_it_and_repairs_only_them(
        self, sink: SinkHarness
    ) -> None:
        """The columns of others stay as they are, and so does the document, which is not compared."""
        kinds = {
            "total": (pa.float64(), 3.0), "real": (pa.float32(), 0.1),
            "price": (pa.decimal128(9, 2), Decimal("1.50")), "whole": (pa.int64(), 2),
            "none": (pa.string(), None),
            "note": (pa.string(), "of another job"),
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
        text = encode_json({"n": 4}).decode()
        fixes = [
            Fix(key_of("a"), ("000001",), "000001", text, own({"n": 4}), NOW),
            Fix(key_of("b"), ("000001",), "000001", None, own(None), NOW),
        ]
        assert sink.target.fix(fixes[:1], expected(sink)) == 1
        assert stored()["a"] | {"total": 4.0, "note": "of another job"} == stored()["a"]
        assert encode_json(stored((*own.types,))["a"]) == encode_json(own_state(own({"n": 4})))
        assert sink.target.fix(fixes[1:], expected(sink)) == 1
        assert read(sink)[key_of("b")]["deleted"]
        assert stored()["b"] == {"note": "of another job"}

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
        assert caught.value.category == ErrorCategory.NOT_FOUND

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


class TestSnapshot:
    """Tests that a snapshot repairs the table, documents that were deleted unseen included."""

    def test_replaces_older_rows_and_buries_what_it_does_not_contain(self, sink: SinkHarness) -> None:
        sink.merge(page(events(("a", 20, {"n": 20}), ("gone", 21, {}), ("b", 2, {"n": 2}), ("old", 3, None))))
        floor = "000010~"
        sink.merge(page([], SnapshotStarted(floor, _PLAN)))
        sink.merge(page(events(("a", 0, {"s": 1}), mark="snapshot:s:", backfilled=True, floor=floor)))
        sink.merge(page(events(("c", 11, {"n": 11}))))
        sink.merge(
            page(
                events(
                    ("b", 0, {"s": 2}), ("c", 0, {"s": 3}), mark="snapshot:s:", backfilled=True, floor=floor
                ),
                BackfillDone(_PLAN, floor),
            )
        )
        assert documents(sink) == {"a": {"s": 1}, "b": {"s": 2}, "c": {"n": 11}}
        # A change from before the snapshot comes late.
        sink.merge(page(events(("gone", 9, {"n": 9}), ("old", 9, {"n": 9}), ("a", 9, {"n": 9}))))
        assert tombstones(sink).keys() == {"gone", "old"}
        assert {row["state"] for row in read(sink).values() if row["deleted"]} == {None}
        again = page([], SnapshotStarted(floor, _PLAN))
        sink.merge(again)
        assert documents(sink) == {"a": {"s": 1}, "b": {"s": 2}, "c": {"n": 11}}

    def test_rows_without_its_beginning_are_refused_if_the_table_has_rows(self, sink: SinkHarness) -> None:
        sink.merge(page(events(("a", 1, {}))))
        scanned = events(("b", 0, {}), mark="snapshot:s:", backfilled=True, floor="000010~")
        assert "SnapshotStarted" in refused(sink.merge, page(scanned)).message
        assert documents(sink) == {"a": {}}

    @pytest.mark.parametrize("is_last", [False, True])
    def test_does_not_go_on_in_another_table(self, sink: SinkHarness, is_last: bool) -> None:
        """Its first rows went with the table that was dropped."""
        floor = "000010~"
        first, second = (
            events((key, 0, {}), mark="snapshot:s:", backfilled=True, floor=floor) for key in "ab"
        )
        sink.merge(page([], SnapshotStarted(floor, _PLAN)))
        sink.merge(page(first))
        sink.drop()
        rest = page([], BackfillDone(_PLAN, floor)) if is_last else page(second)
        for _ in range(2):
            with pytest.raises(MulticloudDbError, match="dropped") as caught:
                sink.merge(rest)
            assert caught.value.category in (ErrorCategory.INVALID_REQUEST, ErrorCategory.NOT_FOUND)
        plan = "provider:resource:snapshot:again"
        sink.merge(page([], SnapshotStarted(floor, plan)))
        sink.merge(page([], BackfillDone(plan, floor)))
        assert documents(sink) == {}

    def test_later_ones_with_the_same_floor_replace_the_rows_of_earlier_ones(self, sink: SinkHarness) -> None:
        """The floor of some services lies below every change. The sink dies before and after each step.

        A death after a step leaves what a death before the next one leaves.
        """
        floor = "000000~"
        for number in range(7):
            plan, document = f"provider:resource:snapshot:s{number}", {"scan": number}
            left = ["a", "bc"[number % 2]]
            mark = f"snapshot:s{number}:"
            scanned = events(*((key, 0, document) for key in left), mark=mark, backfilled=True, floor=floor)
            sink.dies(Turn(number - 1) if number else None, 0.5)
            for each in (page([], SnapshotStarted(floor, plan)), page(scanned, BackfillDone(plan, floor))):
                try:
                    sink.merge(each)
                except Death:
                    sink.merge(each)
            sink.dies(None)
            assert documents(sink) == dict.fromkeys(left, document)

    def test_of_an_empty_collection_makes_tombstones_of_all(self, sink: SinkHarness) -> None:
        sink.merge(page(events(("a", 5, {}), ("b", 6, {}))))
        sink.merge(page([], SnapshotStarted("000010~", _PLAN), BackfillDone(_PLAN, "000010~")))
        assert documents(sink) == {}
        assert tombstones(sink).keys() == {"a", "b"}


class TestMarked:
    """Tests that a table belongs to one feed, and that nothing of another one is merged into it."""

    def test_the_mark_names_the_feed_and_the_columns_of_the_sink(self, sink: SinkHarness) -> None:
        sink.merge(rows(("a", 1, {"n": 1})))
        mark = sink.target.found().mark
        assert mark is not None
        assert (mark.source, mark.incomplete_since) == (SOURCE, None)
        ours = {"key", "order_key", "timestamp", "new_item_state", "_deleted_at"}
        assert set(mark.columns) == ours
        sink.merge(rows(("b", 1, {"n": 1})).append_column("total", pa.array([1.5])), new_columns="add")
        mark = sink.target.found().mark
        assert mark is not None
        assert set(mark.columns) == {*ours, "total"}
        sink.merge(bare(("c", 1, {})), missing_state="keep")
        mark = sink.target.found().mark
        assert mark is not None
        assert set(mark.columns) == {*ours, "total", "_stale_since"}

    @pytest.mark.parametrize("other", _OTHERS)
    def test_a_batch_of_another_feed_is_refused(self, sink: SinkHarness, other: FeedSource) -> None:
        sink.merge(rows(("a", 1, {"n": 1})))
        message = refused(sink.merge, _from(other, rows(("a", 2, {"n": 2})))).message
        assert str(other) in message
        assert "orders" in message
        assert documents(sink) == {"a": {"n": 1}}
        mark = sink.target.found().mark
        assert mark is not None
        assert mark.source == SOURCE
        sink.merge(rows(("a", 3, {"n": 3})))
        assert documents(sink) == {"a": {"n": 3}}

    def test_a_batch_with_rows_of_two_feeds_is_refused(self, sink: SinkHarness) -> None:
        both = pa.concat_tables([rows(("a", 1, {})), _from(_OTHERS[0], rows(("b", 1, {})))])
        assert "several feeds" in refused(sink.merge, both).message

    def test_a_batch_that_names_no_feed_needs_source(self, sink: SinkHarness) -> None:
        batch = rows(("a", 1, {"n": 1}))
        for name in ("partition_id", "database", "collection"):
            less = batch.drop_columns([name]) if name != "database" else _without(batch, "partition_id")
            assert "source=" in refused(sink.merge, less).message
        assert sink.merge(batch.drop_columns(["partition_id"]), source="provider:main/orders")
        mark = sink.target.found().mark
        assert mark is not None
        assert mark.source == FeedSource("provider", ADDRESS)
        less = rows(("a", 2, {})).drop_columns(["database"])
        assert "customers" in refused(sink.merge, less, source="provider:main/customers").message
        assert "customers" in refused(sink.merge, batch, source="provider:main/customers").message
        assert "names no feed" in refused(sink.merge, less, source="orders").message
        sink.merge(rows(("a", 3, {"n": 3})))
        assert documents(sink) == {"a": {"n": 3}}

    def test_a_feed_of_a_database_fills_its_table_from_every_collection(self, sink: SinkHarness) -> None:
        shop = FeedSource("provider", ResourceAddress("main", None))
        first, second = (
            _from(shop, rows((name, 1, {"n": 1})), ResourceAddress("main", name)) for name in ("a", "b")
        )
        sink.merge(pa.concat_tables([first, second]))
        sink.merge(first)
        mark = sink.target.found().mark
        assert mark is not None
        assert mark.source == shop
        refused(sink.merge, rows(("a", 2, {})))
        assert documents(sink) == {"a": {"n": 1}, "b": {"n": 1}}

    def test_a_snapshot_of_a_collection_that_was_made_again_takes_the_table_over(
        self, sink: SinkHarness
    ) -> None:
        sink.merge(page(events(("a", 5, {"n": 1}), ("b", 6, {"n": 1}))))
        token = token_of(FeedSource("provider", ADDRESS), "second")
        later = page(events(("a", 1, {"n": 2}), incarnation="second"), token=token)
        assert "created again" in refused(sink.merge, later).message
        plan = encode_partition_id("provider", ADDRESS, "second", "snapshot:t")
        scanned = events(
            ("c", 0, {"n": 3}), mark="snapshot:t:", backfilled=True, floor="000002~", incarnation="second"
        )
        sink.merge(page([], SnapshotStarted("000002~", plan), token=token))
        sink.merge(page(scanned, BackfillDone(plan, "000002~"), token=token))
        mark = sink.target.found().mark
        assert mark is not None
        assert mark.incarnation not in (None, SOURCE.incarnation)
        assert documents(sink) == {"c": {"n": 3}}
        assert "created again" in refused(sink.merge, rows(("a", 9, {}))).message

    def test_a_table_that_was_dropped_has_no_mark(self, sink: SinkHarness) -> None:
        sink.merge(rows(("a", 1, {})))
        sink.drop()
        with pytest.raises(MulticloudDbError) as caught:
            sink.target.found()
        assert caught.value.category == ErrorCategory.NOT_FOUND


class TestReplaced:
    """Tests that the step that writes looks at what is there, and not an earlier step."""

    def _made_again(self, sink: SinkHarness) -> None:
        """Drop the table, and fill another one of its name from the same feed."""
        sink.drop()
        sink.merge(page([], SnapshotStarted("000000~", _PLAN)))
        scanned = events(("a", 0, {"n": 9}), mark="snapshot:s:", backfilled=True, floor="000001")
        sink.merge(page(scanned, BackfillDone(_PLAN, "000000~")))

    def test_what_was_compared_before_is_not_written_into_another_table_of_the_feed(
        self, sink: SinkHarness
    ) -> None:
        sink.merge(rows(("a", 1, {"n": 1}), ("b", 1, {"n": 1})))
        before = expected(sink)
        assert sink.target.found(before.found).is_same(before.found)
        self._made_again(sink)
        fixes = [
            Fix(key_of("a"), ("000001",), "000001", '{"n":1}', None, NOW),
            Fix(key_of("b"), (), "000001", '{"n":1}', None, NOW),
        ]
        assert "another table" in refused(sink.target.fix, fixes, before).message
        assert "another table" in refused(sink.target.complete, before).message
        if isinstance(sink.target, SupportsRecord):
            assert "another table" in refused(sink.target.record, {"a": "b"}, before).message
        assert documents(sink) == {"a": {"n": 9}}

    def test_the_table_of_another_feed_is_not_written(self, sink: SinkHarness) -> None:
        sink.merge(rows(("a", 1, {"n": 1})))
        before = attrs.evolve(expected(sink), source=_OTHERS[0])
        fixes = [Fix(key_of("a"), ("000001",), "000001", '{"n":2}', None, NOW)]
        assert "is the table of" in refused(sink.target.fix, fixes, before).message
        assert documents(sink) == {"a": {"n": 1}}

    def test_of_two_feeds_that_make_the_table_at_the_same_time_one_fills_it(
        self, sink: SinkHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The other one is merged after this one has found no table."""
        marked, theirs = SinkTable._marked, [_from(_OTHERS[0], rows(("b", 1, {"n": 2})))]

        def after_another(table: SinkTable, stored: Any, *arguments: Any) -> Any:
            found = marked(table, stored, *arguments)
            if theirs:
                sink.merge(theirs.pop())
            return found

        monkeypatch.setattr(SinkTable, "_marked", after_another)
        with pytest.raises(MulticloudDbError):
            sink.merge(rows(("a", 1, {"n": 1})))
        assert not theirs
        assert documents(sink) == {"b": {"n": 2}}
        mark = sink.target.found().mark
        assert mark is not None
        assert mark.source.address == _OTHERS[0].address

    def test_a_mark_learns_the_incarnation_from_the_first_batch_that_names_it(
        self, sink: SinkHarness
    ) -> None:
        less = rows(("a", 1, {"n": 1})).drop_columns(["partition_id"])
        sink.merge(less, source="provider:main/orders")
        sink.merge(rows(("b", 2, {"n": 2})))
        mark = sink.target.found().mark
        assert mark is not None
        assert mark.source == SOURCE
        again = _from(attrs.evolve(SOURCE, incarnation=incarnation_digest("second")), rows(("a", 3, {})))
        assert "created again" in refused(sink.merge, again).message
        sink.merge(less, source="provider:main/orders")
        assert sink.target.found().mark == mark


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


class TestNoticesOfPages:
    """Tests notices that change which rows exist."""

    @pytest.mark.parametrize(
        "notice",
        [Dropped("main/orders"), Renamed("main/orders", "main/old"), Invalidated("it was dropped")],
        ids=lambda notice: type(notice).__name__,
    )
    def test_a_page_after_which_other_rows_exist_is_refused(self, sink: SinkHarness, notice: Notice) -> None:
        sink.merge(page(events(("a", 1, {"n": 1}))))
        message = refused(sink.merge, page(events(("b", 2, {})), notice)).message
        assert "Snapshot()" in message
        assert documents(sink) == {"a": {"n": 1}}


class TestNoticed:
    """Tests what a gap leaves in the mark of the table."""

    def test_a_gap_marks_the_table_until_a_whole_snapshot_has_ended(self, sink: SinkHarness) -> None:
        def since() -> str | None:
            mark = sink.target.found().mark
            assert mark is not None
            return mark.incomplete_since

        sink.merge(page(events(("a", 1, {"n": 1}))))
        assert since() is None
        lost = Gap(_PLAN, "5", "9")
        sink.merge(page(events(("b", 9, {})), lost))
        first = since()
        assert first is not None
        sink.merge(page(events(("c", 10, {}))))
        assert since() == first
        sink.merge(page([], Gap(_PLAN, "11", "a new snapshot"), SnapshotStarted("000020~", _PLAN)))
        scanned = events(("c", 0, {}), mark="snapshot:s:", backfilled=True, floor="000020~")
        sink.merge(page(scanned, BackfillDone(_PLAN, "000020~")))
        assert since() is None
        assert documents(sink) == {"c": {}}

    @pytest.mark.parametrize("is_first", [True, False])
    def test_a_gap_during_a_snapshot_stays(self, sink: SinkHarness, is_first: bool) -> None:
        def since() -> str | None:
            mark = sink.target.found().mark
            assert mark is not None
            return mark.incomplete_since

        sink.merge(page(events(("a", 1, {"n": 1}))))
        if not is_first:
            sink.merge(page([], Gap(_PLAN, "5", "9")))
        sink.merge(page([], SnapshotStarted("000020~", _PLAN)))
        scanned = events(("c", 0, {}), mark="snapshot:s:", backfilled=True, floor="000020~")
        sink.merge(page(scanned))
        # What is lost may be a change of the row that has been read.
        sink.merge(page([], Gap("p", "21", "25")))
        last = since()
        assert last is not None
        sink.merge(page([], BackfillDone(_PLAN, "000020~")))
        assert since() == last

    def test_a_second_gap_is_told_from_the_first(self, sink: SinkHarness) -> None:
        sink.merge(page(events(("a", 1, {}))))
        sink.merge(page([], Gap("p", "1", "2")))
        before = expected(sink)
        first = before.found.mark
        sink.merge(page([], Gap("p", "5", "9")))
        assert first is not None
        assert first.incomplete_since is not None
        # A comparison that began before the second gap proves nothing about what that gap has lost.
        sink.target.complete(before)
        found = sink.target.found().mark
        assert found is not None
        assert found.incomplete_since not in (None, first.incomplete_since)
        sink.target.complete(expected(sink))
        assert sink.target.found().mark == attrs.evolve(found, incomplete_since=None)

    def test_a_gap_before_the_first_event_marks_the_table_too(self, sink: SinkHarness) -> None:
        sink.merge(page([], Gap(_PLAN, "5", "9")))
        mark = sink.target.found().mark
        assert mark is not None
        assert mark.incomplete_since is not None


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


class TestVanished:
    """Tests that a table which lost what a query has delivered before is not filled with the rest."""

    def test_a_table_that_was_dropped_is_not_made_again(self, sink: SinkHarness) -> None:
        sink.merge(page(events(("a", 1, {}))))
        sink.drop()
        for later in (page(events(("b", 2, {}))), page([], SnapshotStarted("000010~", _PLAN, whole=False))):
            with pytest.raises(MulticloudDbError) as caught:
                sink.merge(attrs.evolve(later, resumed_from="token"))
            assert caught.value.category == ErrorCategory.NOT_FOUND
            assert "delivered rows before" in caught.value.message

    def test_pages_without_events_come_before_the_first_one(self, sink: SinkHarness) -> None:
        assert not sink.merge(page([]))
        assert not sink.merge(page([]))
        assert sink.merge(page(events(("a", 1, {"n": 1}))))
        assert documents(sink) == {"a": {"n": 1}}

    def test_a_snapshot_of_everything_may_begin_without_the_table(self, sink: SinkHarness) -> None:
        """A feed whose position has expired goes on with one."""
        sink.merge(page(events(("a", 1, {}))))
        sink.drop()
        sink.merge(page([], SnapshotStarted("000010~", _PLAN)))
        scanned = events(("b", 0, {}), mark="snapshot:s:", backfilled=True, floor="000010~")
        sink.merge(page(scanned, BackfillDone(_PLAN, "000010~")))
        assert documents(sink) == {"b": {}}


class TestRead:
    """Tests what `verify` reads."""

    def test_some_keys(self, sink: SinkHarness) -> None:
        sink.merge(page(events(("a", 1, {}), ("b", 2, None), ("c", 3, {}))))
        assert read(sink, [key_of("a"), key_of("b"), key_of("none")]).keys() == {key_of("a"), key_of("b")}
        assert read(sink, []) == {}
        assert sink.target.position() is None

    def test_many_rows_in_one_version(self, sink: SinkHarness) -> None:
        sink.merge(page(events(*((f"k{n}", 1, {"n": 1}) for n in range(9_000)))))
        batches = iter(sink.target.rows())
        first = next(batches)
        sink.merge(page(events(*((f"k{n}", 2, {"n": 2}) for n in range(9_000)))))
        assert {row["order_key"] for each in [first, *batches] for row in each.to_pylist()} == {"000001"}

    def test_a_table_that_does_not_exist(self, sink: SinkHarness) -> None:
        with pytest.raises(MulticloudDbError) as caught:
            list(sink.target.rows())
        assert caught.value.category == ErrorCategory.NOT_FOUND


class TestFixed:
    """Tests that a repair never overwrites what it has not seen."""

    def test_compares_and_sets(self, sink: SinkHarness) -> None:
        sink.merge(page(events(*((name, 1, {"n": 1}) for name in ("seen", "moved", "gone")))))
        sink.merge(page(events(("moved", 2, {"n": 2}), ("dead", 2, None))))

        def fix(name: str, seen: str | None, text: str | None) -> Fix:
            return Fix(key_of(name), () if seen is None else (seen,), "000001~", text, None, NOW)

        one = "000001"
        fixes = [fix("seen", one, '{"n":"fixed"}'), fix("moved", one, "{}"), fix("gone", one, None)]
        fixes += [fix("new", None, '{"n":"new"}'), fix("never", None, None), fix("dead", None, "{}")]
        assert sink.target.fix(fixes, expected(sink)) == 3
        assert documents(sink) == {"seen": {"n": "fixed"}, "moved": {"n": 2}, "new": {"n": "new"}}
        assert tombstones(sink) == {"gone": "000001~", "dead": "000002"}
        assert sink.target.fix(fixes, expected(sink)) == 0
        sink.merge(page(events(("seen", 3, {"n": 3}), ("gone", 1, {"n": 1}))))
        assert documents(sink)["seen"] == {"n": 3}
        assert sink.target.fix([], expected(sink)) == 0

    def test_columns_of_its_own_need_values_before_the_first_repair(self, sink: SinkHarness) -> None:
        sink.merge(rows(("a", 1, {"n": 1})).append_column("total", pa.array([1.5])))
        fix = Fix(key_of("a"), ("000001",), "000001~", '{"n":2}', None, NOW)
        for fixes in ([], [fix]):
            assert "total" in refused(sink.target.fix, fixes, expected(sink)).message
        assert documents(sink) == {"a": {"n": 1}}
        assert sink.target.fix([attrs.evolve(fix, columns={"total": 2.5})], expected(sink)) == 1

    def test_a_row_is_removed_only_beside_the_one_that_was_seen(self, sink: SinkHarness) -> None:
        sink.merge(page(events(("a", 1, {}), ("b", 2, {}), ("c", 3, {}))))
        sink.merge(page(events(*((f"other {name}", 9, {}) for name in ("a", "b", "c", "d", "e")))))

        def removal(name: str, beside: str | None, seen: str = "000009") -> Fix:
            place = None if beside is None else (key_of(name), beside)
            key = key_of(f"other {name}")
            return Fix(key, (seen,), "", None, None, NOW, removes=True, beside=place)

        moved = [removal("b", "000001"), removal("c", "000003", seen="000008"), removal("e", "000001")]
        assert sink.target.fix([removal("a", "000001"), removal("d", None), *moved], expected(sink)) == 2
        assert documents(sink).keys() == {"a", "b", "c", "other b", "other c", "other e"}
        assert sink.target.fix([removal("b", "000002"), removal("c", "000003")], expected(sink)) == 2
        assert documents(sink).keys() == {"a", "b", "c", "other e"}
        assert sink.target.fix([removal("b", "000002")], expected(sink)) == 0
        assert tombstones(sink) == {}


_WRONG: Final[Mapping[str, Callable[[Any], Any]]] = {
    "right": lambda document: document,
    "rounds a float": lambda document: {**document, "number": round(document["number"], 6)},
    "narrows a float": lambda document: {
        **document, "number": float(pa.scalar(document["number"], pa.float32()).as_py()),
    },
    "cuts a text": lambda document: {**document, "text": document["text"][:255]},
    "writes null": lambda document: {**document, "large": None},
    "leaves out": lambda document: {name: document[name] for name in ("number", "text")},
}  # fmt: skip
"""What a wrong writer makes of a document."""


class TestJudged:
    """Tests that `verify` compares what is stored with the source, and not with what a writer makes of it."""

    @pytest.mark.parametrize("own", [False, True], ids=["documents", "columns"])
    def test_a_wrong_conversion_is_found(
        self, sink: SinkHarness, own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        document = {"number": 0.1 + 0.2, "text": "é" * 300, "large": 2**70}
        kinds = {"number": pa.float64(), "text": pa.string(), "large": pa.decimal128(38, 0)}
        # The clock of the simulation is exact.
        monkeypatch.setattr("multiclouddb_verify.source._CLOCK_ERROR", 0.0)
        with collection_of(ADDRESS, dict.fromkeys(_WRONG, document)) as client:
            found = client.read_changes(ChangeFeedRequest(ADDRESS, Beginning()))
            batch = pa.Table.from_batches([events_to_arrow(found.events)])
            written = [_WRONG[each.key["id"]](dict(each.new_item_state or {})) for each in found.events]
            if own:
                for name, kind in kinds.items():
                    batch = batch.append_column(name, pa.array([each.get(name) for each in written], kind))
            else:
                texts = pa.array([encode_json(each).decode() for each in written])
                batch = batch.set_column(batch.column_names.index("new_item_state"), "new_item_state", texts)
            sink.merge(batch)
            report = verify(
                client, ADDRESS, sink.target,
                position=found.continuation_token, state=tmp_path / "verify", patience_seconds=30.0,
                transform=(lambda given: dict(given)) if own else None,
            )  # fmt: skip
        assert {each.key: each.kind for each in report.differences} == {
            key_of(name): DifferenceKind.STALE for name in _WRONG if name != "right"
        }
        assert report.counts.equal == 1


class FeedOfOnePartition:
    """A collection whose changes expire, and its feed with one partition."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.order, self.plans = dice, 0, 0
        self.live: dict[str, Any] = {}
        self.pages: list[ChangeFeedPage] = []

    def write(self, count: int) -> None:
        """Change documents; a page has several changes of a key."""
        changes = drawn(self.dice, self.order + 1, count)
        self.order += count
        self.live, gone = {**self.live, **applied(changes)[0]}, applied(changes)[1]
        for key in gone:
            self.live.pop(key, None)
        cuts = sorted({0, count, *(self.dice.randrange(count) for _ in range(2))})
        self.pages += [page(events(*changes[first:last])) for first, last in pairwise(cuts)]

    def lose(self) -> None:
        """Expire what was not read, and begin a snapshot, whose rows come mixed with later changes."""
        self.plans += 1
        name, floor = f"snapshot:s{self.plans}", f"{self.order:06d}~"
        plan = encode_partition_id("provider", ADDRESS, "first", name)
        scanned = events(
            *((key, 0, document) for key, document in self.live.items()),
            mark=f"{name}:", backfilled=True, floor=floor,
        )  # fmt: skip
        self.dice.shuffle(scanned)
        half = len(scanned) // 2
        self.pages = []
        self.write(4)
        later, self.pages = self.pages, []
        self.pages = [
            page([], SnapshotStarted(floor, plan)),
            page(scanned[:half]),
            *later,
            page(scanned[half:], BackfillDone(plan, floor)),
        ]


class TestLives:
    """Random lives, with kills between any two steps of a commit, against an oracle."""

    @pytest.mark.parametrize(("seed", "rounds"), _LIVES)
    def test_life(self, sink: SinkHarness, seed: int, rounds: int) -> None:
        dice = random.Random(seed)
        source, delivered = FeedOfOnePartition(dice), list[ChangeFeedPage]()
        for number in range(rounds):
            # Also the shortest life has an outage and a death in it.
            if dice.random() < 0.2 or number == 1:
                source.lose()
                # An older query may not go on beside a snapshot.
                delivered = []
            source.write(dice.randrange(5, 25))
            if dice.random() < 0.4 or number == 1:
                sink.dies(dice, dice.choice([0.02, 0.1, 0.3]))
            while source.pages:
                repeated = dice.choice(delivered) if delivered and dice.random() < 0.2 else source.pages[0]
                try:
                    sink.merge(repeated)
                except Death:
                    sink.dies(None)
                    continue
                if repeated is source.pages[0]:
                    delivered.append(source.pages.pop(0))
            sink.dies(None)
            assert documents(sink) == source.live
        assert all(row["order_key"] for row in read(sink).values())
