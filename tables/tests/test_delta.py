"""Tests what two sinks do to one Delta table at the same time."""

import json
import traceback
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from multiclouddb_api import BackfillDone, ErrorCategory, MulticloudDbError, SnapshotStarted, encode_json
from multiclouddb_conformance.refusals import refusal
from multiclouddb_conformance.sink_harness import (
    ADDRESS,
    NOW,
    PLAN,
    SOURCE,
    events,
    expected,
    key_of,
    page,
    refused,
    rows,
)
from multiclouddb_spi import encode_partition_id
from multiclouddb_spi.faults import key_digest
from multiclouddb_tables.columns import Columns
from multiclouddb_tables.contract import Fix
from multiclouddb_tables.delta import DeltaTarget
from multiclouddb_tables.delta_merge import near
from multiclouddb_tables.delta_upkeep import drop_tombstones
from multiclouddb_tables.mark import Expected, TableMark
from multiclouddb_tables.merging import merge_changes

OF_ANY_FORM = st.one_of(
    st.text(min_size=1).map(lambda text: encode_json({"id": text}).decode()),
    st.integers().map(lambda number: encode_json({"id": number}).decode()),
    st.tuples(st.text(), st.text()).map(lambda both: encode_json({"pk": both[0], "id": both[1]}).decode()),
    st.text(st.sampled_from("a\"\U0010ffff\ud7ff\ue000'{:,")).filter(bool),
)
NAMES = ["key", "order_key", "new_item_state", "type"]


def test_column_that_another_sink_adds_first_with_another_type(tmp_path):
    """`deltalake` would write the text 007 as the number 7."""
    path, batch = tmp_path / "table", rows(("a", 1, {})).select(NAMES)
    made = DeltaTarget(path)
    made.prepare(batch.drop_columns("type").schema, TableMark(SOURCE))
    sinks = [DeltaTarget(path, new_columns="add") for _ in range(2)]
    assert all(sink.exists for sink in sinks)
    numbers, texts = (batch.append_column("n", pa.array([value])) for value in (7, "007"))
    sinks[0].prepare(numbers.drop_columns("type").schema)
    with pytest.raises(MulticloudDbError, match=r"column n: is string in the batch and long"):
        sinks[1].prepare(texts.drop_columns("type").schema)
    sinks[0].merge(numbers, {}, is_last=True)
    [found] = [row for part in DeltaTarget(path).rows(own=["n"]) for row in part.to_pylist()]
    assert found["state"] == '{"n":7}'


def test_an_empty_text_by_which_a_table_is_partitioned_is_refused_with_its_key(tmp_path):
    """For Delta it is null, so the row would have another value, and no repair could change that."""
    path, names = tmp_path / "table", [*NAMES, "country"]
    batch = rows(("a", 1, {}), ("b", 1, {})).select(NAMES)
    fields = [*batch.drop_columns("type").schema, pa.field("country", pa.string())]
    DeltaTable.create(
        path, pa.schema([*fields, ("_deleted_at", pa.timestamp("us", "UTC"))]), partition_by="country"
    )
    target = DeltaTarget(path)
    target.set_feed_mark(TableMark(SOURCE, tuple(names)))
    error = refusal(
        ErrorCategory.INVALID_REQUEST,
        lambda: target.merge(batch.append_column("country", pa.array(["DE", ""])), {}, is_last=True),
        "column country: has an empty text",
        key_digest(key_of("b")),
    )
    assert "null" in error.message
    target.merge(batch.append_column("country", pa.array(["DE", None])), {}, is_last=True)
    fix = Fix(key_of("a"), ("000001",), "000002", "{}", {"country": ""}, NOW)
    found = Expected(SOURCE, DeltaTarget(path).found())
    refusal(ErrorCategory.INVALID_REQUEST, lambda: DeltaTarget(path).fix([fix], found), "column country")
    stored = DeltaTable(path).to_pyarrow_dataset().scanner(use_threads=False).to_table().sort_by("key")
    assert stored["country"].to_pylist() == ["DE", None]


def test_what_delta_does_not_keep_of_a_partition_is_refused_in_each_form(tmp_path):
    deleted = ("_deleted_at", pa.timestamp("us", "UTC"))
    for kind, values, problem in (
        (pa.string(), pa.array(["", None]).dictionary_encode(), "has an empty text"),
        (pa.binary(), pa.array([b"x", None], pa.binary()), "is binary, and"),
        (pa.binary(), pa.array([None, None], pa.binary()), None),
    ):
        path = tmp_path / f"{kind} {problem}"
        batch = rows(("a", 1, {}), ("b", 1, {})).select(NAMES)
        fields = [*batch.drop_columns("type").schema, ("part", kind), deleted]
        DeltaTable.create(path, pa.schema(fields), partition_by="part")
        target = DeltaTarget(path)
        target.set_feed_mark(TableMark(SOURCE, (*NAMES, "part")))
        merge = partial(target.merge, batch.append_column("part", values), {}, is_last=True)
        if problem is None:
            merge()
            assert DeltaTable(path).count() == 2
        else:
            refusal(ErrorCategory.INVALID_REQUEST, merge, f"column part: {problem}")


@pytest.mark.parametrize(
    ("kind", "fits", "long"),
    [
        (pa.string(), "short", "secret" * 50),
        (pa.string(), "ü" * 30, "ü" * 100),
        (pa.float64(), 1.5, 1e300),
    ],
    ids=["text", "letters", "double"],
)
def test_a_value_too_long_for_the_name_of_a_folder_is_refused_with_its_key(tmp_path, kind, fits, long):
    path, deleted = tmp_path / "table", pa.field("_deleted_at", pa.timestamp("us", "UTC"))
    batch = rows(("a", 1, {}), ("b", 1, {})).select(NAMES)
    fields = [*batch.drop_columns("type").schema, pa.field("part", kind), deleted]
    DeltaTable.create(path, pa.schema(fields), partition_by="part")
    target = DeltaTarget(path)
    target.set_feed_mark(TableMark(SOURCE, (*NAMES, "part")))
    target.merge(batch.append_column("part", pa.array([fits, None], kind)), {}, is_last=True)
    assert DeltaTable(path).to_pyarrow_dataset().to_table()["part"].to_pylist().count(fits) == 1
    fix = Fix(key_of("b"), ("000001",), "000002", "{}", {"part": long}, NOW)
    found = Expected(SOURCE, DeltaTarget(path).found())
    later = rows(("a", 2, {}), ("b", 2, {})).select(NAMES).append_column("part", pa.array([fits, long], kind))
    for write in (
        lambda: target.merge(later, {}, is_last=True),
        lambda: DeltaTarget(path).fix([fix], found),
    ):
        error = refusal(
            ErrorCategory.INVALID_REQUEST, write, "column part: has a value", key_digest(key_of("b"))
        )
        shown = "".join(traceback.format_exception(error)) + repr(error.detail)
        assert not any(text in shown for text in ("secretsecret", "%C3%BC%C3%BC", "100000000000"))


def test_no_error_of_deltalake_shows_the_value_of_a_partition(tmp_path, monkeypatch):
    path, deleted = tmp_path / "table", pa.field("_deleted_at", pa.timestamp("us", "UTC"))
    batch = rows(("a", 1, {})).select(NAMES).append_column("part", pa.array(["secret"]))
    DeltaTable.create(path, pa.schema([*batch.drop_columns("type").schema, deleted]), partition_by="part")
    target = DeltaTarget(path)
    target.set_feed_mark(TableMark(SOURCE, (*NAMES, "part")))

    def fail(merger):
        raise OSError(28, f"Unable to write {path}/part=secret/part-00000-x.parquet: No space left on device")

    monkeypatch.setattr("deltalake.table.TableMerger.execute", fail)
    error = refusal(
        ErrorCategory.PERMANENT_FAILURE, lambda: target.merge(batch, {}, is_last=True), "No space left"
    )
    assert "secret" not in "".join(traceback.format_exception(error)) + repr(error.detail)


@given(keys=st.lists(OF_ANY_FORM, min_size=1))
def test_the_condition_of_a_merge_holds_for_each_key_and_contains_none(keys):
    condition = near(pa.chunked_array([keys]))
    bounds = {}
    for part in condition.split(" AND t.key ")[1:]:
        operator, _, text = part.partition(" ")
        bounds[operator] = text[1:-1].replace("''", "'")
    for key in keys:
        assert bounds.get(">=", "") <= key
        assert "<" not in bounds or key < bounds["<"]
        assert not (key.endswith("}") and any(key in bound for bound in bounds.values()))


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ('{"id":"a.forgotten@example.org"}', '{"id":"a.fo'),
        ('{"id":"a.b@c"}', '{"id":"a.'),
        ('{"id":1234}', '{"id":12'),
        ('{"_id":{"$oid":"64b7c2f0a1b2c3d4e5f60718"}}', '{"_id":{"$oid":"64b7'),
        ('{"customer":"42","order":"2026-01-01-0001"}', '{"customer":"4'),
        ('{"id":"a"}', '{"id":"'),
    ],
)
def test_the_condition_of_a_merge_shows_little_of_a_key(key, shown):
    assert near(pa.chunked_array([[key]])).startswith(f" AND t.key >= '{shown}' AND t.key < '{shown[:-1]}")


def test_no_commit_of_a_merge_or_of_a_repair_says_a_key(tmp_path):
    path = tmp_path / "table"
    target = DeltaTarget(path)
    sink = type("Sink", (), {"target": target})()
    for order in (1, 2):
        made = DeltaTarget(path)
        batch = rows(*((f"{name}.forgotten@example.org", order, {}) for name in "ab")).select(NAMES)
        made.prepare(batch.drop_columns("type").schema, TableMark(SOURCE))
        made.merge(batch, {}, is_last=True)
    fix = Fix(key_of("a.forgotten@example.org"), ("000002",), "000002", '{"n":1}', None, NOW)
    assert target.fix([fix], expected(sink)) == 1
    said = json.dumps(DeltaTable(path).history())
    assert said.count("MERGE") == 3
    assert "forgotten" not in said


def test_a_declared_column_that_a_constraint_uses_keeps_its_type_and_its_declaration(tmp_path):
    path, before = tmp_path / "table", Columns({"total": "int64"})

    def merge(batch, **options):
        return merge_changes(DeltaTarget(path), "a sink", batch, **options)

    merge(page(events(("a", 1, {"total": 1}))), columns=before)
    DeltaTable(path).alter.add_constraint({"positive": "total > 0"})
    begin = page([], SnapshotStarted("000100", PLAN))
    assert "positive" in refused(merge, begin, columns=Columns({"total": "string"}), refill=True).message
    merge(page(events(("a", 2, {"total": 2}))), columns=before)
    [found] = [row for part in DeltaTarget(path).rows(own=["total"]) for row in part.to_pylist()]
    assert found["state"] == '{"total":2}'


def test_a_restored_table_has_the_columns_and_the_declaration_of_that_version(tmp_path):
    path = tmp_path / "table"
    before, after = Columns({"total": "int64"}), Columns({"total": "string", "more": "json"})
    low, document = "000100", {"total": 1, "more": [2]}

    def merge(batch, **options):
        return merge_changes(DeltaTarget(path), "a sink", batch, **options)

    def refill(name, floor):
        plan = encode_partition_id("provider", ADDRESS, "first", f"snapshot:{name}")
        scanned = events(("a", 0, document), mark=f"snapshot:{name}:", backfilled=True, floor=floor)
        begin = page([], SnapshotStarted(floor, plan))
        merge(begin, columns=after, refill=True)
        begun = DeltaTable(path).version()
        merge(page(scanned, BackfillDone(plan, floor)), columns=after, refill=True)
        return begun

    def stored():
        names = [*DeltaTarget(path).columns()]
        [row] = [row for part in DeltaTarget(path).rows(own=names) for row in part.to_pylist()]
        return row["state"]

    merge(page(events(("a", 1, document))), columns=before)
    first = DeltaTable(path).version()
    middle = refill("one", low)
    assert stored() == '{"more":"[2]","total":"1"}'
    # In the middle of the refill: the mark says what is not filled, until another snapshot has ended.
    DeltaTable(path).restore(middle)
    mark = DeltaTarget(path).found().mark
    assert (mark.declared, mark.unfilled) == (after, ("total", "more"))
    assert stored() == "{}"
    refill("two", "000200")
    assert (stored(), DeltaTarget(path).found().mark.unfilled) == ('{"more":"[2]","total":"1"}', ())
    # Before the refill: the old declaration holds, and the new one is another one again.
    DeltaTable(path).restore(first)
    assert (stored(), DeltaTarget(path).found().mark.declared) == ('{"total":1}', before)
    later = page(events(("a", 300, document)))
    assert "refill=True" in refused(merge, later, columns=after).message
    merge(later, columns=before)
    refill("three", "000400")
    assert (stored(), DeltaTarget(path).found().mark.unfilled) == ('{"more":"[2]","total":"1"}', ())


def test_a_time_without_a_zone_removes_no_tombstone(tmp_path):
    """Nobody says whether it is a time of UTC or of this machine."""
    late = datetime(9999, 1, 1, tzinfo=UTC)
    path = str(tmp_path / "table")
    merge_changes(DeltaTarget(path), "a sink", rows(("a", 1, None)))
    drop = partial(drop_tombstones, path, late.replace(tzinfo=None))
    refusal(ErrorCategory.INVALID_REQUEST, drop, "before: is a naive datetime")
    assert drop_tombstones(path, late) == 1
