"""`transform`: which columns are compared and written, and what a type can hold."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from hypothesis import given
from hypothesis import strategies as st

from multiclouddb_api import MulticloudDbError
from multiclouddb_tables.column_values import as_stored
from multiclouddb_verify import DifferenceKind

from .tables import Shop, key_of

AT = datetime(2026, 1, 2, tzinfo=UTC)
PAIR = pa.struct([("a", pa.int64()), ("b", pa.float32())])


def columns(document):
    return {"n": document["n"], "kind": type(document.get("v")).__name__}


@pytest.fixture
def shop(tmp_path):
    with Shop(tmp_path, 20, transform=columns) as shop:
        yield shop


@pytest.mark.parametrize(
    ("transform", "text"),
    [
        (lambda document: {**columns(document), "typo": 1}, "typo.*does not have"),
        (lambda document: {"N": 1}, "column N, which .* does not have"),
        (lambda document: {**columns(document), "order_key": "~"}, "order_key.*writes itself"),
        (lambda document: {"new_item_state": "{}"}, "new_item_state.*writes itself"),
        (lambda document: {}, "no columns"),
        (lambda document: None, "returns a NoneType"),
    ],
    ids=["unknown", "another case", "order_key", "document", "none", "nothing"],
)
def test_what_the_table_lacks_is_an_error_before_anything_is_compared(shop, transform, text):
    version = DeltaTable(shop.table).version()
    DeltaTable(shop.table).update(updates={"n": "-1"})
    with pytest.raises(MulticloudDbError, match=text):
        shop.verify(transform=transform, repair=True)
    assert DeltaTable(shop.table).version() == version + 1


def test_a_column_that_only_later_documents_have(shop):
    def later(document):
        return {"n": document["n"]} | ({"kind": "x"} if document["n"] == 15 else {})

    shop.verify(transform=lambda document: {"kind": None, **later(document)}, force=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multiclouddb_verify.source._SOME", 1)
        with pytest.raises(MulticloudDbError, match="for some documents only"):
            shop.verify(transform=later)


def test_a_column_of_another_job_is_neither_compared_nor_written(shop):
    DeltaTable(shop.table).alter.add_columns([Field("note", PrimitiveType("string"))])
    DeltaTable(shop.table).update(updates={"note": "key"})
    assert shop.verify(transform=columns).equal
    DeltaTable(shop.table).update(updates={"n": "-1"}, predicate=f"key = '{key_of(shop.names[3])}'")
    report = shop.verify(transform=columns, repair=True)
    assert (report.equal, [each.kind for each in report.repaired]) == (True, [DifferenceKind.STALE])
    found = DeltaTable(shop.table).to_pyarrow_table().to_pylist()
    assert all(row["note"] == row["key"] for row in found)


def test_in_an_empty_collection_a_column_of_another_job_is_not_written_either(shop):
    DeltaTable(shop.table).alter.add_columns([Field("note", PrimitiveType("string"))])
    DeltaTable(shop.table).update(updates={"note": "key"})
    for name in shop.names:
        shop.store.delete("orders", name)
    shop.follow()
    DeltaTable(shop.table).update(updates={"_deleted_at": "NULL", "n": "7"})
    report = shop.verify(transform=columns, repair=True)
    assert (report.equal, report.counts.repaired) == (True, 20)
    found = DeltaTable(shop.table).to_pyarrow_table().to_pylist()
    assert all((row["note"], row["n"]) == (row["key"], None) for row in found)


def test_a_ghost_alone_is_removed_with_what_transform_fills(shop):
    shop.store.delete("orders", shop.names[2])
    shop.follow()
    table = DeltaTable(shop.table)
    table.update(updates={"_deleted_at": "NULL", "n": "7"}, predicate=f"key = '{key_of(shop.names[2])}'")
    report = shop.verify(transform=columns, repair=True)
    assert (report.equal, [each.kind for each in report.repaired]) == (True, [DifferenceKind.GHOST])
    [row] = [
        each
        for each in DeltaTable(shop.table).to_pyarrow_table().to_pylist()
        if each["key"] == key_of(shop.names[2])
    ]
    assert row["n"] is None


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (pa.float64(), 3, 3.0),
        (pa.float64(), Decimal("0.1"), 0.1),
        (pa.float64(), 2**53 + 1, 2**53),
        (pa.float32(), 0.1, 0.1 + 2**-40),
        (pa.int64(), 2.0, 2),
        (pa.int64(), Decimal("2.00"), 2),
        (pa.decimal128(10, 2), Decimal("1.5"), Decimal("1.50")),
        (pa.decimal128(10, 2), 1.5, Decimal("1.500")),
        (pa.decimal128(10, 2), 2, Decimal("2.00")),
        (pa.decimal128(10, 2), 1.005, Decimal("1.01")),
        (pa.decimal128(38, 30), 0.1, Decimal("0.1")),
        (pa.decimal128(10, 2), Decimal("1.005"), Decimal("1.01")),
        (pa.timestamp("us", "UTC"), AT, AT.astimezone(timezone(timedelta(hours=2)))),
        (PAIR, {"a": 1}, {"a": 1.0, "b": None}),
        (pa.list_(PAIR), [{"a": 1}], ({"b": None, "a": 1},)),
        (pa.map_(pa.string(), pa.float64()), {"a": 1, "b": 2}, [("b", 2.0), ("a", 1.0)]),
        (pa.binary(), b"\0", bytearray(b"\0")),
    ],
)
def test_values_that_the_type_cannot_tell_apart_are_equal(kind, one, other):
    first, second = as_stored(one, kind), as_stored(other, kind)
    assert (first, repr(first)) == (second, repr(second))
    table = pa.scalar(first, kind).as_py()
    assert repr(as_stored(table, kind)) == repr(first)


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (pa.float64(), 3, 3.0000000000000004),
        (pa.float64(), 1, True),
        (pa.float64(), 1, "1"),
        (pa.float64(), 0.0, None),
        (pa.float64(), 0.0, -0.0),
        (pa.int64(), 2, 2.5),
        (pa.int64(), 1, True),
        (pa.int64(), 2**53, 2**53 + 1),
        (pa.decimal128(10, 2), Decimal("1.50"), Decimal("1.51")),
        (pa.decimal128(4, 2), 1234, Decimal("12.34")),
        (pa.string(), 1, "1"),
        (pa.string(), None, ""),
        (pa.date32(), date(2026, 1, 1), "2026-01-01"),
        (PAIR, {"a": 1}, {"a": 2}),
        (PAIR, None, {"a": None, "b": None}),
        (pa.list_(PAIR), [], None),
        (pa.map_(pa.string(), pa.int64()), {"a": 1}, {"a": 2}),
    ],
)
def test_values_that_the_type_can_tell_apart_are_not(kind, one, other):
    assert repr(as_stored(one, kind)) != repr(as_stored(other, kind))


@given(st.one_of(st.floats(allow_nan=False), st.integers(), st.decimals(allow_nan=False)))
def test_what_a_type_holds_comes_back(value):
    """What fits is what Arrow gives back; and what it gives back is not changed again."""
    for kind in (pa.float64(), pa.float32(), pa.int64(), pa.decimal128(38, 9)):
        held = as_stored(value, kind)
        try:
            back = pa.scalar(held, kind).as_py()
        except (pa.ArrowException, OverflowError, TypeError):
            continue
        assert repr(as_stored(back, kind)) == repr(back)
        if held is not value:
            assert repr(held) == repr(back)
