"""Merges rows into a Delta table, in one statement.

The conditions of a statement stand in the log of the table, so they hold no whole key.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from multiclouddb_tables.contract import Fix
from multiclouddb_tables.delta_log import feed_mark, said, schema_of, written
from multiclouddb_tables.delta_refusals import too_long
from multiclouddb_tables.delta_values import check_values
from multiclouddb_tables.layout import NO_ORDER, fixed_row
from multiclouddb_tables.mark import TableMark, emptied
from multiclouddb_tables.rules import DELETED_AT, STALE_SINCE
from multiclouddb_tables.sql import in_backticks, quoted

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from deltalake.table import TableMerger

__all__ = ["emptied_in", "emptying", "merge_changes", "merge_fixes", "near"]

_OPENED: Final = re.compile(r'(?:\{"(?:[^"\\]|\\.)*": ?)*"?')
"""What comes before the first value in the text of a key, such as `{"_id":{"$oid":"`."""
_SHOWN: Final = 4
"""How many characters of a key's first value a condition of a merge may show."""


def merge_changes(
    table: DeltaTable, source: pa.Table, lacked: dict[str, str], properties: CommitProperties
) -> None:
    """Merge changes: each replaces the row of its key that has a lower `order_key`.

    Args:
        table: The table.
        source: The rows, with `_deleted_at`, and with `_stale_since` if the table has it.
        lacked: What is written into columns that the rows lack, as SQL.
        properties: The properties of the commit.
    """
    columns = {name: f"s.{name}" for name in map(in_backticks, source.column_names)}
    is_newer, has_state = "s.order_key > t.order_key", f"s.{STALE_SINCE} IS NULL"
    may_be_stale = STALE_SINCE in source.column_names
    merger = table.merge(
        source,
        f"s.key = t.key{near(source['key'])}",
        source_alias="s",
        target_alias="t",
        commit_properties=properties,
        writer_properties=written(source.column_names),
        # Otherwise, deltalake writes the lowest and the highest key of the rows into the log.
        streamed_exec=True,
    ).when_matched_update(columns | lacked, f"{is_newer} AND {has_state}" if may_be_stale else is_newer)
    if may_be_stale:
        moved = {name: f"s.{name}" for name in ("order_key", DELETED_AT)}
        moved[STALE_SINCE] = f"coalesce(t.{STALE_SINCE}, s.{STALE_SINCE})"
        merger = merger.when_matched_update(moved, f"{is_newer} AND NOT {has_state}")
    _executed(merger.when_not_matched_insert(columns), table, source)


def merge_fixes(table: DeltaTable, where: str, names: Sequence[str], fixes: Sequence[Fix]) -> int:
    """Merge what a repair writes, and return the number of the rows.

    Args:
        table: The table.
        where: Its path or URL.
        names: The columns that are written.
        fixes: At least one, and at most one for each key.
    """
    rows = list[dict[str, Any]]()
    for fix in fixes:
        row, is_several = fixed_row(fix, ()), len(fix.seen) > 1
        seen = fix.seen[0] if len(fix.seen) == 1 else None
        rows.append(row | {"_match": fix.key, "_seen": seen, "_drop": is_several or fix.removes})
        if is_several and not fix.removes:
            rows.append(row | {"_match": None, "_seen": None, "_drop": False})
    schema = schema_of(table)
    fields = [field for field in schema if field.name in names]
    source = pa.Table.from_pylist(
        rows,
        pa.schema([*fields, ("_match", pa.string()), ("_seen", pa.string()), ("_drop", pa.bool_())]),
    )
    check_values(table, where, source)
    columns = {in_backticks(name): f"s.{in_backticks(name)}" for name in names}
    lacked = emptying(emptied_in(table, feed_mark(table, where), names))
    merger = (
        table.merge(
            source, f"s._match = t.key{near(source['key'])}", source_alias="s", target_alias="t",
            writer_properties=written(names), streamed_exec=True, commit_properties=said({}),
        )
        .when_matched_update(
            columns | lacked, f"coalesce(t.order_key, {quoted(NO_ORDER)}) = s._seen AND NOT s._drop"
        )
        .when_matched_delete("s._drop")
        .when_not_matched_insert(
            columns, f"s._seen IS NULL AND NOT s._drop AND (s.{DELETED_AT} IS NULL OR s._match IS NULL)"
        )
    )  # fmt: skip
    merged = _executed(merger, table, source)
    removed = sum(fix.removes for fix in fixes)
    return removed + int(merged["num_target_rows_updated"]) + int(merged["num_target_rows_inserted"])


def _executed(merger: TableMerger, table: DeltaTable, rows: pa.Table) -> dict[str, Any]:
    try:
        return merger.execute()
    except Exception as error:
        if (refused := too_long(table, rows, error)) is not None:
            raise refused from None  # the path has the value
        raise


def emptied_in(table: DeltaTable, mark: TableMark | None, written: Sequence[str] = ()) -> list[str]:
    """Return the columns that a tombstone leaves empty, beside those that are written anyway."""
    kept = {*written, *table.metadata().partition_columns}
    return emptied(mark, [field.name for field in table.schema().fields if field.nullable], kept)


def emptying(names: Sequence[str]) -> dict[str, str]:
    """Return what a merge writes into columns that it lacks: nothing, but null in a tombstone."""
    return {
        name: f"CASE WHEN s.{DELETED_AT} IS NOT NULL THEN NULL ELSE t.{name} END"
        for name in map(in_backticks, names)
    }


def near(keys: pa.ChunkedArray) -> str:
    """Return a condition, to add to that of a merge, that skips the files in which no key can be.

    Conditions stand in the log, so this one holds the beginnings of two keys at most, and never a whole key.
    """
    found = pc.min_max(keys.cast(pa.string()))
    first, last = (_beginning(found[name].as_py() or "") for name in ("min", "max"))
    while last and last[-1] == chr(sys.maxunicode):
        last = last[:-1]
    condition = f" AND t.key >= {quoted(first)}" if first else ""
    if last:
        following = ord(last[-1]) + 1
        is_surrogate = 0xD800 <= following < 0xE000
        condition += f" AND t.key < {quoted(last[:-1] + chr(0xE000 if is_surrogate else following))}"
    return condition


def _beginning(key: str) -> str:
    """Return the beginning of the text of a key, with few characters of its first value and at most half."""
    begin = _OPENED.match(key)
    start = 0 if begin is None else begin.end()
    value = key[start:].partition(',"')[0].rstrip('"}')
    return key[: start + min(_SHOWN, len(value) // 2)]
