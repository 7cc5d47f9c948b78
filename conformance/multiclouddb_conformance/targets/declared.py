"""Tests declared columns: types and values at their edges, misfits, nulls, and changes of the declaration.

A sink that takes `columns=` imports these tests beside those of the package.
"""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import attrs
import pyarrow as pa
import pytest

from multiclouddb_api import (
    BackfillDone,
    Beginning,
    ChangeEvent,
    ChangeFeedPage,
    ChangeFeedRequest,
    ChangeType,
    ErrorReason,
    MulticloudDbClient,
    MulticloudDbKey,
    Snapshot,
    SnapshotStarted,
    decode_json,
    encode_json,
)
from multiclouddb_api.arrow import events_to_arrow
from multiclouddb_api.codec import canonical_json
from multiclouddb_conformance.simulated import collection_of
from multiclouddb_conformance.sink_harness import (
    ADDRESS,
    PLAN,
    Death,
    SinkHarness,
    Turn,
    bare,
    documents,
    events,
    expected,
    key_of,
    page,
    read,
    refused,
    rows,
)
from multiclouddb_conformance.targets.lives import LIVES, FeedOfOnePartition
from multiclouddb_spi import encode_partition_id
from multiclouddb_spi.faults import key_digest
from multiclouddb_tables import Columns, Expected, Fix, conversion
from multiclouddb_tables.column_values import as_stored, own_state
from multiclouddb_tables.columns import RESCUED
from multiclouddb_verify import DifferenceKind, Report, verify
from multiclouddb_verify.own_columns import DeclaredColumns

__all__ = ["TestDeclared", "TestDeclaredAgain", "TestDeclaredLives", "TestDeclaredVerified"]

_AT: Final = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
_LARGE: Final = Decimal("12345678901234567890123456789012345678")

FITS: Final[Sequence[tuple[str, Any, Any]]] = [
    ("boolean", True, True),
    ("boolean", False, False),
    ("int8", -128, -128),
    ("int8", 127.0, 127),
    ("int16", 32767, 32767),
    ("int32", Decimal("-2147483648"), -(2**31)),
    ("int64", 2**63 - 1, 2**63 - 1),
    ("int64", -(2**63), -(2**63)),
    ("int64", Decimal("1E+3"), 1000),
    ("float", 0.1, 0.10000000149011612),
    ("float", 16777217, 16777216.0),
    ("double", 0.1, 0.1),
    ("double", 2**53 + 1, float(2**53)),
    ("double", Decimal("0.1000000000000000000000001"), 0.1),
    ("double", float("inf"), float("inf")),
    ("double", -5e-324, -5e-324),
    ("decimal(12,2)", Decimal("-1.5"), Decimal("-1.50")),
    ("decimal(12,2)", 0.1, Decimal("0.10")),
    ("decimal(12,2)", 9999999999, Decimal("9999999999.00")),
    ("decimal(38,0)", _LARGE, _LARGE),
    ("decimal(38,0)", 10**37, Decimal(10**37)),
    ("decimal(38,38)", Decimal("1E-38"), Decimal("1E-38")),
    ("decimal(1,0)", Decimal("-0"), Decimal("0")),
    ("string", "", ""),
    ("string", "Grüße, 世界 🌍\n\\N\"'\u2028", "Grüße, 世界 🌍\n\\N\"'\u2028"),
    ("string", "x" * 70_000, "x" * 70_000),
    ("string", 7, "7"),
    ("string", True, "true"),
    ("string", Decimal("1.50"), "1.50"),
    ("string", UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ("string", {"b": 1, "a": [Decimal("2.0")]}, '{"a":[{"$decimal":"2.0"}],"b":1}'),
    ("binary", b"", b""),
    ("binary", b"\x00\xff raw", b"\x00\xff raw"),
    ("date", "0001-01-01", date(1, 1, 1)),
    ("date", "9999-12-31", date(9999, 12, 31)),
    ("date", datetime(2026, 1, 31, tzinfo=UTC), date(2026, 1, 31)),
    ("timestamp", _AT, _AT),
    ("timestamp", "2026-01-31T14:00:00.123456000+02:00", _AT),
    ("timestamp", "9999-12-31T23:59:59.999999Z", datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
    ("timestamp", "0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
    ("timestamp_ntz", "2026-03-29T02:30:00", datetime(2026, 3, 29, 2, 30)),  # noqa: DTZ001 - what is tested
    ("json", {"b": 1, "a": {"c": [True, 1.0, "x"]}}, '{"a":{"c":[true,1.0,"x"]},"b":1}'),
    ("json", "text", '"text"'),
    ("json", Decimal("1.50"), '{"$decimal":"1.50"}'),
]
"""A type, a value of a document, and what the column holds of it."""

MISFITS: Final[Sequence[tuple[str, Any]]] = [
    ("boolean", 1),
    ("boolean", "true"),
    ("int8", 128),
    ("int16", -32769),
    ("int32", 2**31),
    ("int64", 2**63),
    ("int64", 1.5),
    ("int64", "1"),
    ("int64", True),
    ("int64", Decimal("1E+999999999")),
    ("float", 1e39),
    ("double", "1.5"),
    ("double", Decimal("1E+400")),
    ("double", [1.5]),
    ("decimal(12,2)", Decimal("1.005")),
    ("decimal(12,2)", 10**10),
    ("decimal(12,2)", float("nan")),
    ("decimal(12,2)", "1.50"),
    ("decimal(38,0)", 10**38),
    ("binary", "not base64!"),
    ("date", "2026-02-29"),
    ("date", "10000-01-01"),
    ("date", "20260131"),
    ("date", _AT),
    ("date", 20260131),
    ("timestamp", "2026-01-31T12:00:00.123456789Z"),
    ("timestamp", "2026-01-31T12:00:00"),
    ("timestamp", "2026-01-31"),
    ("timestamp", "0001-01-01T00:00:00+01:00"),
    ("timestamp", 1769860800),
    ("timestamp_ntz", "2026-01-31T12:00:00Z"),
    ("timestamp_ntz", "2026-01-31T12:00:00.1234567"),
]
"""A type, and a value of a document that it cannot hold."""

_LOW: Final = "000100~"


def _plan(name: str) -> str:
    return encode_partition_id("provider", ADDRESS, "first", f"snapshot:{name}")


def _scanned(*keys: tuple[str, Any]) -> list[ChangeEvent]:
    changes = [(key, 0, document) for key, document in keys]
    return events(*changes, mark="snapshot:s:", backfilled=True, floor=_LOW)


def _stored(sink: SinkHarness, names: Sequence[str], *, deleted: bool = False) -> dict[str, Any]:
    """Return the columns of the documents, or of the tombstones, by the names of their keys."""
    found = [row for each in sink.target.rows(own=tuple(names)) for row in each.to_pylist()]
    return {
        json.loads(row["key"])["id"]: decode_json(row["state"]) for row in found if row["deleted"] is deleted
    }


class TestDeclared:
    """Tests what declared columns hold."""

    def test_every_type_holds_its_values_at_their_edges(self, sink: SinkHarness) -> None:
        columns = Columns(
            {f"c{at}": {"path": ["v", f"f.{at}"], "type": kind} for at, (kind, _, _) in enumerate(FITS)}
        )
        document = {"v": {f"f.{at}": value for at, (_, value, _) in enumerate(FITS)}}
        sink.merge(
            page(events(("a", 1, document), ("b", 1, {}), ("c", 1, {"v": "no object"}))), columns=columns
        )
        found, kinds = _stored(sink, columns.names), sink.target.columns()
        for at, (kind, value, held) in enumerate(FITS):
            wanted = own_state({"v": as_stored(held, kinds[f"c{at}"])})["v"]
            assert encode_json([found["a"][f"c{at}"]]) == encode_json([wanted]), (kind, value)
        assert (found["b"], found["c"]) == ({}, {})
        assert documents(sink)["a"] == document
        DeclaredColumns.of(columns, sink.target.name, kinds, sink.target)  # no type is one that rounds

    @pytest.mark.parametrize("number", range(len(MISFITS)))
    def test_a_misfit_is_refused_or_rescued(self, sink: SinkHarness, number: int) -> None:
        kind, value = MISFITS[number]
        columns = Columns({"c": {"path": ["a.b", "v"], "type": kind}, "n": "int64"})
        changes = events(("good", 1, {"n": 1}), ("bad", 1, {"a.b": {"v": value}, "n": 2}))
        message = refused(sink.merge, page(changes), columns=columns, reason=ErrorReason.MISFIT).message
        assert "column c" in message
        assert kind in message
        assert "1 of the documents" in message
        assert key_digest(key_of("bad")) in message
        rescued = Columns(columns.columns, misfits="rescue")
        sink.merge(page(changes), columns=rescued)
        found = _stored(sink, rescued.names)
        assert found["good"] == {"n": 1}
        told = found["bad"].pop(RESCUED)
        assert found["bad"] == {"n": 2}
        assert canonical_json(decode_json(told)) == canonical_json(
            {"c": {"path": ["a.b", "v"], "value": value}}
        )
        sink.merge(page(events(("bad", 2, {"n": 3}))), columns=rescued)
        assert _stored(sink, rescued.names)["bad"] == {"n": 3}

    def test_what_a_kind_of_table_does_not_have_is_a_misfit_and_nothing_else(self, sink: SinkHarness) -> None:
        columns = Columns({"number": "double", "text": "string"}, misfits="rescue")
        sink.merge(page(events(("a", 1, {"number": float("nan"), "text": "a\0b"}))), columns=columns)
        found = _stored(sink, columns.names)["a"]
        told = decode_json(found.get(RESCUED, "{}"))
        for name, value in (("number", float("nan")), ("text", "a\0b")):
            held = told[name]["value"] if name in told else found[name]
            assert encode_json([held]) == encode_json([value])
            assert (name in told) is not (name in found)

    def test_a_tombstone_keeps_its_key_and_nothing_else(self, sink: SinkHarness) -> None:
        columns = Columns(
            {"name": {"key": "id", "type": "string"}, "n": "int8", "tags": "json"}, misfits="rescue"
        )
        batch = events(*((key, 1, {"n": 1 if key == "a" else 1000, "tags": [1]}) for key in "abcd"))
        sink.merge(page(batch), columns=columns)
        assert _stored(sink, columns.names)["a"] == {"name": "a", "n": 1, "tags": "[1]"}
        sink.merge(page(events(("a", 2, None))), columns=columns)
        values = {**conversion.values(None, key_of("b"), columns), "new_item_state": None}
        assert values[RESCUED] is None
        fix = Fix(key_of("b"), ("000001",), "000002", None, values, datetime(2026, 1, 2, tzinfo=UTC))
        assert sink.target.fix([fix], expected(sink)) == 1
        sink.merge(page([], SnapshotStarted(_LOW, PLAN)), columns=columns)
        sink.merge(page(_scanned(("d", {})), BackfillDone(PLAN, _LOW)), columns=columns)
        assert _stored(sink, columns.names) == {"d": {"name": "d"}}
        assert _stored(sink, columns.names, deleted=True) == {key: {"name": key} for key in "abc"}
        gone = [decode_json(row["state"]) for row in _all(sink) if row["deleted"]]
        assert all(each["document"] is None for each in gone)

    def test_the_document_is_judged_before_it_is_left_out(self, sink: SinkHarness) -> None:
        columns = Columns({"n": "int64"}, document=False)
        sink.merge(page(events(("a", 1, {"n": 1}), ("b", 1, {"n": 1}))), columns=columns)
        lost = bare(("a", 2, {}))
        assert "missing_state" in refused(sink.merge, lost, columns=columns).message
        sink.merge(lost, columns=columns, missing_state="keep")
        assert _stored(sink, ["n"]) == {"a": {"n": 1}, "b": {"n": 1}}
        sink.merge(page(events(("a", 3, {"n": 3}), ("b", 2, None))), columns=columns)
        assert (_stored(sink, ["n"]), _stored(sink, ["n"], deleted=True)) == ({"a": {"n": 3}}, {"b": {}})
        assert "new_item_state" not in expected(sink).found.mark.columns  # type: ignore[union-attr]

    def test_a_batch_of_declared_columns_has_none_of_its_own(self, sink: SinkHarness) -> None:
        batch = rows(("a", 1, {"n": 1}))
        wider = batch.append_column("note", batch["key"])
        assert "note" in refused(sink.merge, wider, columns=Columns({"n": "int64"})).message
        missing = Columns({"n": {"key": "tenant", "type": "string"}})
        assert "tenant" in refused(sink.merge, batch, columns=missing).message
        message = refused(sink.merge, batch, columns=Columns({"n": "int64"}), new_columns="add").message
        assert "new_columns" in message

    def test_a_batch_without_documents_empties_no_column(self, sink: SinkHarness) -> None:
        columns = Columns({"n": "int64"})
        sink.merge(page(events(("a", 1, {"n": 1}))), columns=columns)
        batch = rows(("a", 2, {"n": 2})).drop_columns(["new_item_state"])
        assert "new_item_state" in refused(sink.merge, batch, columns=columns).message
        assert _stored(sink, ["n"]) == {"a": {"n": 1}}


_BEFORE: Final = {"n": "int64", "city": {"path": ["a", "city"], "type": "string"}, "tags": "json"}
CHANGES: Final[Mapping[str, tuple[Columns | None, Columns]]] = {
    "the first declaration": (None, Columns(_BEFORE)),
    "a column more": (Columns(_BEFORE), Columns({**_BEFORE, "more": "double"})),
    "a column less": (Columns(_BEFORE), Columns({"n": "int64", "tags": "json"})),
    "another type": (Columns(_BEFORE), Columns({**_BEFORE, "n": "decimal(30,3)", "tags": "string"})),
    "a text for a number": (Columns({**_BEFORE, "n": "double"}), Columns({**_BEFORE, "n": "string"})),
    "another place": (
        Columns(_BEFORE), Columns({**_BEFORE, "city": {"path": ["b", "city"], "type": "string"}}),
    ),
    "no document": (Columns(_BEFORE), Columns(_BEFORE, document=False)),
    "the document again": (Columns(_BEFORE, document=False), Columns(_BEFORE)),
    "misfits are rescued, and a column more": (
        Columns(_BEFORE), Columns({**_BEFORE, "more": "double"}, misfits="rescue"),
    ),
    "misfits are refused": (Columns(_BEFORE, misfits="rescue"), Columns(_BEFORE)),
    "no columns": (Columns(_BEFORE), Columns({})),
}  # fmt: skip
_DOCUMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "a": {"n": 10**16, "a": {"city": "A"}, "b": {"city": "B"}, "tags": [1], "more": 1.5},
    "b": {"n": 2, "a": {"city": "C"}, "tags": {"t": 1}},
    "c": {"n": 3},
}


def _all(sink: SinkHarness) -> list[dict[str, Any]]:
    return [row for each in sink.target.rows(own=("new_item_state",)) for row in each.to_pylist()]


class TestDeclaredAgain:
    """Tests that a table takes another declaration only as a whole, and only if its user agrees."""

    def _fill(self, sink: SinkHarness, columns: Columns | None) -> None:
        changes = [(key, 1, document) for key, document in _DOCUMENTS.items()]
        sink.merge(page(events(*changes, ("gone", 1, {"n": 1, "tags": ["x"]}))), columns=columns)

    def _refill(self, sink: SinkHarness, columns: Columns, **options: Any) -> None:
        for each in (
            page([], SnapshotStarted(_LOW, PLAN)),
            page(_scanned(*_DOCUMENTS.items())),
            page([], BackfillDone(PLAN, _LOW)),
        ):
            sink.merge(each, columns=columns, **options)

    def _check(self, sink: SinkHarness, columns: Columns) -> None:
        found, kinds = _stored(sink, columns.names), sink.target.columns()
        for key, document in _DOCUMENTS.items() if columns.names else ():
            values = conversion.values(document, key_of(key), columns)
            held = {name: as_stored(value, kinds[name]) for name, value in values.items()}
            assert canonical_json(found[key]) == canonical_json(own_state(held))
        mark = expected(sink).found.mark
        assert mark is not None
        assert (mark.declared, mark.unfilled, mark.changing) == (columns, (), ())
        others = [name for name in kinds if name not in columns.names and kinds[name] is not None]
        for deleted in (False, True) if others else ():
            rows_of = _stored(sink, others, deleted=deleted)
            assert not any(rows_of.values()), "a column that is not declared any more has values"
        if columns.document:
            assert documents(sink) == _DOCUMENTS
        elif "new_item_state" in mark.columns:
            assert all(
                decode_json(row["state"])["document"] is None for row in _all(sink) if not row["deleted"]
            )

    @pytest.mark.parametrize("change", CHANGES)
    def test_another_declaration_fills_the_columns(self, sink: SinkHarness, change: str) -> None:
        before, after = CHANGES[change]
        self._fill(sink, before)
        update = page(events(("a", 2, _DOCUMENTS["a"])))
        seen = expected(sink).found.mark
        message = refused(sink.merge, update, columns=after, reason=ErrorReason.OTHER_COLUMNS).message
        assert "4 rows" in message
        assert "refill=True" in message
        assert refused(sink.merge, page([]), columns=after).message == message, "a page without changes"
        assert "Snapshot()" in refused(sink.merge, update, columns=after, refill=True).message
        assert expected(sink).found.mark == seen
        self._refill(sink, after, refill=True)
        self._check(sink, after)
        sink.merge(update, columns=after)
        self._check(sink, after)
        if change == "no columns":
            sink.merge(page(events(("b", 400, {"n": 7}))))  # as if there had never been a declaration
            assert documents(sink)["b"] == {"n": 7}
        if before is not None and before.to_fill(after):
            assert "refill=True" in refused(sink.merge, update, columns=before).message

    @pytest.mark.parametrize("passed", range(24))
    def test_killed_at_each_step_of_a_refill(self, sink: SinkHarness, passed: int) -> None:
        before = Columns(_BEFORE, misfits="rescue")
        after = Columns({"n": "string", "city": _BEFORE["city"], "more": "double"}, document=False)
        self._fill(sink, before)
        sink.dies(Turn(passed), 0.5)
        is_over = False
        # The error holds what the killed process held, so the next one begins after it.
        with suppress(Death):
            self._refill(sink, after, refill=True)
            is_over = True
        sink.dies(None)
        if not is_over:
            mark = expected(sink).found.mark
            assert mark is not None
            assert mark.declared in (before, after)
            self._refill(sink, after, refill=True)
        self._check(sink, after)

    def test_a_snapshot_that_began_before_a_refill_does_not_end_it(self, sink: SinkHarness) -> None:
        """Its rows were merged with the old columns, or nobody knows with which."""
        before, after = Columns({"n": "int64"}), Columns({"n": "string"})
        self._fill(sink, before)
        sink.merge(page([], SnapshotStarted("000050~", _plan("old"))), columns=before)
        sink.merge(page([], SnapshotStarted(_LOW, PLAN)), columns=after, refill=True)
        sink.merge(page([], BackfillDone(_plan("old"), "000050~")), columns=after)
        mark = expected(sink).found.mark
        assert mark is not None
        assert mark.unfilled == ("n",)

    def test_a_declaration_that_the_table_refuses_leaves_the_old_one(self, sink: SinkHarness) -> None:
        before = Columns({"n": "int64"})
        self._fill(sink, before)
        seen = expected(sink).found.mark
        other = Columns({"N": {"path": ["n"], "type": "int64"}})
        begin = page([], SnapshotStarted(_LOW, PLAN))
        assert "upper and lower case" in refused(sink.merge, begin, columns=other, refill=True).message
        assert expected(sink).found.mark == seen
        sink.merge(page(events(("a", 2, {"n": 7}))), columns=before)
        assert _stored(sink, ["n"])["a"] == {"n": 7}

    def test_columns_of_others_are_left_alone(self, sink: SinkHarness) -> None:
        """A column that is no longer declared is nobody's; what others write into it then stays."""
        before, after = Columns(_BEFORE), Columns({"n": "int64", "tags": "json"})
        self._fill(sink, before)
        self._refill(sink, after, refill=True)
        orders = {key: row["order_key"] for key, row in read(sink).items()}
        fixes = [
            Fix(
                key_of(key), (orders[key_of(key)],), orders[key_of(key)], encode_json(document).decode(),
                {**conversion.values(document, key_of(key), after), "city": "theirs"}, _AT,
            )
            for key, document in _DOCUMENTS.items()
        ]  # fmt: skip
        assert sink.target.fix(fixes, expected(sink)) == 3
        sink.merge(page(events(("a", 200, {"n": 5}), ("b", 201, None))), columns=after)
        second = _plan("t")
        sink.merge(page([], SnapshotStarted("000300~", second)), columns=after)
        scanned = events(("a", 0, {"n": 6}), mark="snapshot:t:", backfilled=True, floor="000300~")
        sink.merge(page(scanned, BackfillDone(second, "000300~")), columns=after)
        assert _stored(sink, ["n", "city"]) == {"a": {"n": 6, "city": "theirs"}}
        gone = _stored(sink, ["n", "tags", "city"], deleted=True)
        assert gone == {"b": {"city": "theirs"}, "c": {"city": "theirs"}, "gone": {}}
        row = read(sink)[key_of("c")]
        values = conversion.values(None, key_of("c"), after)
        fix = Fix(key_of("c"), (row["order_key"],), row["order_key"], None, values, _AT)
        assert sink.target.fix([fix], expected(sink)) == 1
        assert _stored(sink, ["city"], deleted=True)["c"] == {"city": "theirs"}

    def test_values_are_rescued_from_now_on_without_a_refill(self, sink: SinkHarness) -> None:
        """No row has a value that did not fit, so none has to be read again."""
        before = Columns({"n": "int8"})
        sink.merge(page(events(("a", 1, {"n": 1}))), columns=before)
        after = Columns({"n": "int8"}, misfits="rescue")
        sink.merge(page(events(("b", 1, {"n": 1000}))), columns=after)
        found = _stored(sink, after.names)
        assert found["a"] == {"n": 1}
        assert decode_json(found["b"][RESCUED]) == {"n": {"path": ["n"], "value": 1000}}

    def test_a_table_with_declared_columns_takes_no_batch_without(self, sink: SinkHarness) -> None:
        sink.merge(page(events(("a", 1, {"n": 1}))), columns=Columns({"n": "int64"}))
        for batch in (page(events(("a", 2, {"n": 2}))), rows(("a", 2, {"n": 2}))):
            message = refused(sink.merge, batch).message
            assert "has declared columns: n" in message
        assert _stored(sink, ["n"]) == {"a": {"n": 1}}

    def test_an_empty_table_takes_each_declaration(self, sink: SinkHarness) -> None:
        first, second = Columns({"n": "int64", "old": "date"}), Columns({"n": "string", "new": "double"})
        sink.merge(page([], SnapshotStarted("000000~", _plan("old"))), columns=first)
        sink.merge(page(events(("a", 1, {"n": 1, "new": 2.5}))), columns=second)
        assert _stored(sink, second.names) == {"a": {"n": "1", "new": 2.5}}


_VERIFIED: Final = Columns(
    {
        "name": {"key": "id", "type": "string"},
        "total": "decimal(12,2)",
        "n": "int64",
        "number": "double",
        "city": {"path": ["a", "city"], "type": "string"},
        "at": "timestamp",
        "tags": "json",
    },
    misfits="rescue",
)
_ROW: Final[Mapping[str, Any]] = {
    "total": Decimal("1.25"), "n": 2**53 + 1, "number": 0.1 + 0.2, "a": {"city": "Köln"}, "at": _AT,
    "tags": {"b": [Decimal("1.5")], "a": None},
}  # fmt: skip
_MISFIT: Final[Mapping[str, Any]] = {**_ROW, "n": "a text"}
_DAMAGES: Final[Mapping[str, Mapping[str, Any]]] = {
    "another component of the key": {"name": "other"},
    "rounds a decimal": {"total": Decimal("1.30")},
    "rounds an integer as a float does": {"n": 2**53},
    "rounds a float": {"number": 0.3},
    "cuts a text": {"city": "Köl"},
    "writes null": {"city": None},
    "cuts a time": {"at": _AT.replace(microsecond=0)},
    "drops a part of JSON": {"tags": '{"b":[{"$decimal":"1.5"}]}'},
    "rounds a decimal in JSON": {"tags": '{"a":null,"b":[1.5]}'},
    "rescues what fits": {"_rescued": '{"n":{"path":["n"],"value":1}}'},
    "the document of another": {"new_item_state": "{}"},
}
"""What a wrong sink may have written into a row."""


class TestDeclaredVerified:
    """Tests that `verify` compares every declared column, names the others, and repairs all of them."""

    @pytest.fixture(autouse=True)
    def _exact_clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("multiclouddb_verify.source._CLOCK_ERROR", 0.0)

    def _verify(self, sink: SinkHarness, client: MulticloudDbClient, token: str, **settings: Any) -> Report:
        return verify(client, ADDRESS, sink.target, position=token, patience_seconds=30.0, **settings)

    def test_a_value_that_does_not_fit_is_not_repaired_into_the_table(
        self, sink: SinkHarness, tmp_path: Path
    ) -> None:
        """Where misfits are refused, no sink writes such a row, so no repair may round the value."""
        columns = Columns({"c": "decimal(6,2)", "n": "int32"})
        source: dict[str, dict[str, Any]] = {
            "good": {"c": Decimal("1.50"), "n": 1},
            "rounded": {"c": Decimal("1.005")},
            "large": {"n": 3_000_000_000},
        }
        with collection_of(ADDRESS, source) as client:
            found = client.read_changes(ChangeFeedRequest(ADDRESS, Beginning()))
            good = tuple(each for each in found.events if each.key["id"] == "good")
            sink.merge(attrs.evolve(found, events=good), columns=columns)
            token = found.continuation_token
            report = self._verify(sink, client, token, state=tmp_path / "1", repair=True)
        notes = {each.key: each.note for each in report.differences}
        assert notes.keys() == {key_of("rounded"), key_of("large")}
        assert all(note is not None and "does not fit" in note for note in notes.values())
        assert not report.equal
        assert documents(sink).keys() == {"good"}

    def test_each_damage_is_found_and_repaired(self, sink: SinkHarness, tmp_path: Path) -> None:
        names = [*_DAMAGES, "right", "null in place of a misfit", "right misfit"]
        source = {name: _MISFIT if "misfit" in name else _ROW for name in names}
        with collection_of(ADDRESS, source) as client:
            found = client.read_changes(ChangeFeedRequest(ADDRESS, Beginning()))
            sink.merge(found, columns=_VERIFIED)
            gone = key_of("gone")
            left = attrs.evolve(found.events[0], key=MulticloudDbKey({"id": "left"}), event_id="left")
            dead = attrs.evolve(
                left, key=MulticloudDbKey({"id": "gone"}), event_id="gone",
                type=ChangeType.DELETE, new_item_state=None,
            )  # fmt: skip
            other = attrs.evolve(dead, key=MulticloudDbKey({"id": "other"}), event_id="other")
            sink.merge(attrs.evolve(found, events=(dead, other, left)), columns=_VERIFIED)
            fixes = []
            orders = {key: row["order_key"] for key, row in read(sink).items()}
            for name, damage in {**_DAMAGES, "null in place of a misfit": {RESCUED: None}}.items():
                key, document = key_of(name), source[name]
                values = {**conversion.values(document, key, _VERIFIED), **damage}
                text = encode_json(document).decode()
                fixes.append(Fix(key, (orders[key],), orders[key], text, values, _AT))
            kept = conversion.values(None, gone, _VERIFIED) | {"city": "kept"}
            fixes.append(Fix(gone, (orders[gone],), orders[gone], None, kept, _AT))
            turned = key_of("other")
            fixes.append(Fix(turned, (orders[turned],), orders[turned], None, {"name": "turned"}, _AT))
            there = sink.target.found()
            assert there.mark is not None
            assert sink.target.fix(fixes, Expected(there.mark.source, there)) == len(fixes)
            wrong = {
                *map(key_of, _DAMAGES),
                key_of("null in place of a misfit"),
                gone,
                turned,
                key_of("left"),
            }
            report = self._verify(sink, client, found.continuation_token, state=tmp_path / "1")
            kinds = {each.key: each.kind for each in report.differences}
            assert kinds.keys() == wrong
            ghosts = {gone, turned, key_of("left")}
            assert {key for key, kind in kinds.items() if kind is DifferenceKind.GHOST} == ghosts
            assert {kind for key, kind in kinds.items() if key not in ghosts} == {DifferenceKind.STALE}
            assert (report.counts.equal, report.not_compared) == (2, ())
            token = found.continuation_token
            repaired = self._verify(sink, client, token, state=tmp_path / "2", repair=True)
            assert (repaired.equal, repaired.counts.repaired) == (True, len(wrong))
        stored = _stored(sink, _VERIFIED.names)
        assert stored["right"] == stored["cuts a text"] | {"name": "right"}
        tombs = _stored(sink, _VERIFIED.names, deleted=True)
        assert tombs == {key: {"name": key} for key in ("gone", "other", "left")}

    def test_a_right_row_that_is_marked_as_deleted_is_found_and_repaired(
        self, sink: SinkHarness, tmp_path: Path
    ) -> None:
        """Its values are those of the document, but nobody who reads the live rows sees them."""
        columns = Columns({"n": "int64", "name": {"key": "id", "type": "string"}}, document=False)
        source = {"hidden": {"n": 1}, "right": {"n": 2}}
        with collection_of(ADDRESS, source) as client:
            found = client.read_changes(ChangeFeedRequest(ADDRESS, Beginning()))
            sink.merge(found, columns=columns)
            key, token = key_of("hidden"), found.continuation_token
            seen = [row for each in sink.target.rows([key], own=columns.names) for row in each.to_pylist()]
            order = seen[0]["order_key"]
            values = conversion.values(source["hidden"], key, columns)
            there = sink.target.found()
            assert there.mark is not None
            hides = Fix(key, (order,), order, None, values, _AT)
            assert sink.target.fix([hides], Expected(there.mark.source, there)) == 1
            assert _stored(sink, columns.names).keys() == {"right"}
            report = self._verify(sink, client, token, state=tmp_path / "1")
            assert {each.key: each.kind for each in report.differences} == {key: DifferenceKind.TOMBSTONE}
            repaired = self._verify(sink, client, token, state=tmp_path / "2", repair=True)
            assert (repaired.equal, repaired.counts.repaired) == (True, 1)
        assert _stored(sink, columns.names) == {
            "hidden": {"n": 1, "name": "hidden"},
            "right": {"n": 2, "name": "right"},
        }

    def test_columns_in_no_declaration_are_named(self, sink: SinkHarness, tmp_path: Path) -> None:
        with collection_of(ADDRESS, {"a": _ROW}) as client:
            found = client.read_changes(ChangeFeedRequest(ADDRESS, Beginning()))
            batch = pa.Table.from_batches([events_to_arrow(found.events)])
            sink.merge(batch.append_column("note", pa.array(["one"])))
            report = self._verify(sink, client, found.continuation_token, state=tmp_path / "1")
            assert (report.equal, report.not_compared) == (True, ("note",))
            assert report.to_dict()["not_compared"] == ["note"]
            transform = {"transform": lambda _: {"note": "one"}, "state": tmp_path / "2"}
            report = self._verify(sink, client, found.continuation_token, **transform)
            assert (report.equal, report.not_compared) == (True, ("new_item_state",))

    def test_transform_is_refused_beside_a_declaration_and_a_refill_is_told(
        self, sink: SinkHarness, tmp_path: Path
    ) -> None:
        with collection_of(ADDRESS, {"a": _ROW}) as client:
            found = client.read_changes(ChangeFeedRequest(ADDRESS, Beginning()))
            sink.merge(found, columns=_VERIFIED)
            message = refused(
                self._verify, sink, client, found.continuation_token,
                transform=lambda _: {"n": 1}, state=tmp_path / "1",
            ).message  # fmt: skip
            assert "transform" in message
            again = Columns({"n": "string"})
            begun = client.read_changes(ChangeFeedRequest(ADDRESS, Snapshot()))
            sink.merge(attrs.evolve(begun, events=()), columns=again, refill=True)
            report = self._verify(sink, client, found.continuation_token, state=tmp_path / "2")
            assert not report.equal
            assert "n" in report.unfilled


_KEY: Final = {"name": {"key": "id", "type": "string"}}
_DECLARATIONS: Final = [
    Columns({}),
    Columns({"n": "int64", **_KEY}),
    Columns({"n": "string", **_KEY}, document=False),
    Columns({"n": "int8", "again": {"path": ["n"], "type": "decimal(9,2)"}}, misfits="rescue"),
    Columns({"n": "json", "none": "timestamp"}),
]


class TestDeclaredLives:
    """Tests random lives of a table whose declaration changes, with kills, against an oracle."""

    @pytest.mark.parametrize(("seed", "rounds"), LIVES)
    def test_life(self, sink: SinkHarness, seed: int, rounds: int) -> None:
        dice = random.Random(seed)
        source, columns = FeedOfOnePartition(dice), dice.choice(_DECLARATIONS)
        delivered = list[ChangeFeedPage]()
        for number in range(rounds):
            if dice.random() < 0.4 or number == 1:
                # An older query, or one with another declaration, may not go on beside the snapshot.
                source.lose()
                columns, delivered = dice.choice(_DECLARATIONS), []
            source.write(dice.randrange(5, 25))
            if dice.random() < 0.4 or number == 1:
                sink.dies(dice, dice.choice([0.02, 0.1, 0.3]))
            while source.pages:
                repeated = dice.choice(delivered) if delivered and dice.random() < 0.2 else source.pages[0]
                try:
                    sink.merge(repeated, columns=columns, refill=True)
                except Death:
                    sink.dies(None)
                    continue
                if repeated is source.pages[0]:
                    delivered.append(source.pages.pop(0))
            sink.dies(None)
            self._check(sink, columns, source.live)

    def _check(self, sink: SinkHarness, columns: Columns, live: Mapping[str, Any]) -> None:
        kinds, mark = sink.target.columns(), expected(sink).found.mark
        assert mark is not None
        assert (mark.declared, mark.unfilled, mark.changing) == (columns, (), ())
        wanted = {}
        for key, document in live.items():
            values = conversion.values(document, key_of(key), columns)
            wanted[key] = own_state({name: as_stored(value, kinds[name]) for name, value in values.items()})
        # What is no longer declared is empty.
        found = _stored(sink, [*kinds]) if kinds else {key: {} for key in wanted}
        assert canonical_json(found) == canonical_json(wanted)
        gone = _stored(sink, [*kinds], deleted=True) if kinds else {}
        assert not [key for key, values in gone.items() if values.keys() - columns.key_names]
        if columns.document:
            assert documents(sink) == live
