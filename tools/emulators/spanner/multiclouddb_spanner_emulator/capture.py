"""Makes change stream records, which contain the net effect of a transaction on each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from multiclouddb_spanner_emulator.habits import Habits
from multiclouddb_spanner_emulator.partition import Partition
from multiclouddb_spanner_emulator.record import DataChange, Mod, dumped
from multiclouddb_spanner_emulator.schema import Column, Key, Row, Table
from multiclouddb_spanner_emulator.stream import ChangeStream

__all__ = ["Change", "captured"]


@attrs.define
class Change:
    """The effect of a transaction on one row.

    Attributes:
        before: The row before the transaction.
        after: The row after the transaction.
        touched: The columns that were written, without the key columns.
        replaced: True if the row was replaced or deleted within the transaction.
    """

    before: Row | None
    after: Row | None = None
    touched: set[str] = attrs.field(factory=set)
    replaced: bool = False

    def kind(self) -> str | None:
        """Return the type of the change, or None if nothing has changed."""
        if self.after is None:
            return None if self.before is None else "DELETE"
        return "INSERT" if self.replaced else "UPDATE"


@attrs.frozen
class _Told:
    """One changed row, which becomes part of a change record."""

    partition: Partition
    table: Table
    kind: str
    columns: tuple[Column, ...]
    mod: Mod


def captured(
    stream: ChangeStream,
    tables: Mapping[str, Table],
    changes: Mapping[str, Mapping[Key, Change]],
    habits: Habits,
    commit: int,
    transaction: str,
    tag: str,
    *,
    is_system: bool,
) -> None:
    """Write the records of a transaction to the partitions of a stream."""
    records: list[tuple[Partition, DataChange]] = []
    open_record: dict[str, _Told] = {}
    last: dict[str, DataChange] = {}
    for told in _told(stream, tables, changes):
        token = told.partition.token
        before = open_record.get(token)
        same = before is not None and (before.table, before.kind, before.columns) == (
            told.table, told.kind, told.columns,
        )  # fmt: skip
        if same and (habits.mods_per_record is None or len(last[token].mods) < habits.mods_per_record):
            last[token].mods.append(told.mod)
            continue
        key = tuple((told.table.column(name), True) for name in told.table.key)
        sequence = len(records) * habits.sequence_step
        columns = (*key, *((each, False) for each in told.columns))
        record = DataChange(
            commit, sequence, transaction, False, told.table.name,
            tuple(sorted(columns, key=lambda each: each[0].ordinal)),
            [told.mod], told.kind, stream.capture, tag=tag, is_system=is_system,
        )  # fmt: skip
        records.append((told.partition, record))
        open_record[token], last[token] = told, record
    for partition, record in records:
        record.is_last = last[partition.token] is record
        record.records, record.partitions = len(records), len(last)
        partition.log.append(record)


def _told(
    stream: ChangeStream, tables: Mapping[str, Table], changes: Mapping[str, Mapping[Key, Change]]
) -> Iterator[_Told]:
    """Return the rows that a stream reports, in the order in which it reports them."""
    for name in sorted(changes):
        table = tables[name]
        watched = stream.watch.columns(table)
        if watched is None:
            continue
        for key in sorted(changes[name], key=table.order):
            change = changes[name][key]
            kind = change.kind()
            if kind is None or stream.excludes(kind):
                continue
            touched = [each for each in watched if each.name in change.touched]
            if kind == "UPDATE" and not touched:
                continue
            keys = dumped(dict(zip(table.key, key, strict=True)))
            columns, mod = _image(stream.capture, kind, change, watched, touched, keys)
            yield _Told(stream.home(f"{name} {keys}"), table, kind, tuple(columns), mod)


def _image(
    capture: str, kind: str, change: Change, watched: list[Column], touched: list[Column], keys: str
) -> tuple[list[Column], Mod]:
    whole_row = capture in ("NEW_ROW", "NEW_ROW_AND_OLD_VALUES")
    columns = touched if kind == "UPDATE" and not whole_row else watched
    new = {} if kind == "DELETE" else _values(change.after, columns)
    old = {}
    if capture in ("OLD_AND_NEW_VALUES", "NEW_ROW_AND_OLD_VALUES") and kind != "INSERT":
        old = _values(change.before, touched if kind == "UPDATE" else watched)
    return columns, Mod(keys, dumped(new), dumped(old))


def _values(row: Row | None, columns: list[Column]) -> Row:
    return {} if row is None else {each.name: row.get(each.name) for each in columns}
