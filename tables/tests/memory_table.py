"""A kind of table in memory: the shortest one that keeps the contract."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal

import attrs
import pyarrow as pa

from multiclouddb_tables import (
    Columns,
    ColumnType,
    Create,
    Expected,
    Fix,
    FoundTable,
    MissingState,
    Own,
    Table,
    TableMark,
    layout,
    merge_changes,
    rules,
)
from multiclouddb_tables.batch import check_beside
from multiclouddb_tables.changes import LACKING
from multiclouddb_tables.mark import declared_names, emptied, lacked, refilled


@attrs.define
class Stored:
    """One version of a table."""

    identity: str
    columns: dict[str, pa.DataType]
    rows: list[dict[str, Any]] = attrs.field(factory=list)
    mark: TableMark | None = None
    numbers: dict[str, int] = attrs.field(factory=dict)
    notes: dict[str, str] = attrs.field(factory=dict)

    def copy(self) -> "Stored":
        rows = [dict(row) for row in self.rows]
        return Stored(
            self.identity, dict(self.columns), rows, self.mark, dict(self.numbers), dict(self.notes)
        )


class Database:
    """Tables by name; `die` is called before and after each commit."""

    def __init__(self, die: Callable[[], None] = lambda: None) -> None:
        self.tables, self.die = dict[str, Stored](), die


def merge_into_memory(
    batch: Any, batch_id: int | None, database: Database, name: str, app_id: str | None, *,
    create: Create = "first", new_columns: Literal["add", "refuse"] = "refuse",
    missing_state: MissingState = "refuse", source: str | None = None, columns: Columns | None = None,
    refill: bool = False,
) -> bool:  # fmt: skip
    """Merge a page, or an Arrow table of changes."""
    check_beside(columns, new_columns)
    table = MemoryTable(database, name, new_columns=new_columns)
    return merge_changes(
        table, "merge_into_memory", batch, batch_id, app_id, create=create, missing_state=missing_state,
        source=source, columns=columns, refill=refill,
    )  # fmt: skip


class MemoryTable(Table):
    """A table of `Database`, which has its versions one after the other."""

    def __init__(
        self, database: Database, name: str, *, new_columns: Literal["add", "refuse"] = "refuse"
    ) -> None:
        self._database, self._name, self._new_columns = database, name, new_columns
        # Of the table that is there now it is decided that a batch may be merged.
        self._seen = self.found() if self.exists else None

    @property
    def name(self) -> str:
        return f"memory:{self._name}"

    # What is there

    @property
    def exists(self) -> bool:
        return self._name in self._database.tables

    def _now(self) -> Stored:
        if not self.exists:
            raise layout.missing(self.name)
        return self._database.tables[self._name]

    def is_empty(self) -> bool:
        return not self._now().rows

    def columns(self) -> Mapping[str, ColumnType]:
        kinds = self._now().columns
        return {name: kinds[name] for name in layout.own_names([*kinds])}

    def found(self, since: FoundTable | None = None) -> FoundTable:
        del since
        return FoundTable(self._now().mark, self._now().identity)

    # Commits

    @contextmanager
    def _commit(self, expected: Expected | None = None) -> Iterator[Stored]:
        """Change a copy; it becomes the table only if the table is still the one that is meant."""
        if expected is not None:
            expected.check(self.found(), self.name)
        elif self._seen is not None:
            self.found().check_still(self._seen, self.name)
        changed = self._now().copy()
        yield changed
        self._database.die()
        self._database.tables[self._name] = changed
        self._database.die()

    def prepare(
        self, schema: pa.Schema, mark: TableMark | None = None, *, may_be_stale: bool = False
    ) -> None:
        rules.check_stored(schema)
        wanted = {field.name: field.type for field in schema}
        rules.check_cases(wanted)
        if not self.exists:
            self._database.die()
            columns = {**wanted, rules.DELETED_AT: rules.TIME}
            self._database.tables[self._name] = Stored(uuid.uuid4().hex, columns, mark=mark)
            self._seen = self.found()
        known = self._now().columns
        layout.check_table(self.name, [*known], own=True)
        new = rules.lacking_columns(self.name, wanted, known, self._new_columns, declared_names(mark))
        if may_be_stale and rules.STALE_SINCE not in known:
            new.append(rules.STALE_SINCE)
        if new:
            with self._commit() as changed:
                changed.columns |= {name: wanted.get(name, rules.TIME) for name in new}
                changed.rows = [dict.fromkeys(changed.columns) | row for row in changed.rows]

    def redeclare(self, schema: pa.Schema, names: Sequence[str], mark: TableMark) -> None:
        wanted = {field.name: field.type for field in schema}
        rules.check_cases(wanted, self._now().columns)
        with self._commit() as changed:
            if changed.mark != mark:
                raise refilled(self.name)
            changed.columns |= {name: wanted[name] for name in names if name in wanted}
            gone = dict.fromkeys(name for name in names if name in changed.columns)
            changed.rows = [row | gone for row in changed.rows]

    def number(self, name: str) -> int | None:
        return self._now().numbers.get(name)

    def store(self, numbers: Mapping[str, int], notes: Mapping[str, str]) -> None:
        with self._commit() as changed:
            changed.numbers |= numbers
            changed.notes |= notes

    def feed_mark(self) -> TableMark | None:
        self._seen = self.found()
        return self._seen.mark

    def set_feed_mark(self, mark: TableMark) -> None:
        if self._seen is not None:
            self.found().check_still(self._seen, self.name, mark.source)
            self._seen = None
        with self._commit() as changed:
            changed.mark = mark
        self._seen = self.found()

    def complete(self, expected: Expected) -> None:
        with self._commit(expected) as changed:
            changed.mark = expected.completed(changed.mark) or changed.mark

    # Rows

    def merge(self, rows: pa.Table, notes: Mapping[str, str], *, is_last: bool) -> None:
        del is_last
        now = datetime.now(UTC)
        with self._commit() as changed:
            may_be_stale = rules.STALE_SINCE in changed.columns
            by_key = {row["key"]: row for row in changed.rows}
            for row in rows.to_pylist():
                kind, there = row.pop("type"), by_key.get(row["key"])
                if there is not None and row["order_key"] <= there["order_key"]:
                    continue
                row[rules.DELETED_AT] = now if kind == "DELETE" else None
                lacks = kind == LACKING
                if may_be_stale:
                    row[rules.STALE_SINCE] = now if lacks else None
                if there is None:
                    changed.rows.append(dict.fromkeys(changed.columns) | row)
                elif lacks and may_be_stale:
                    there |= {name: row[name] for name in ("order_key", rules.DELETED_AT)}
                    there[rules.STALE_SINCE] = there[rules.STALE_SINCE] or now
                elif kind == "DELETE":
                    there |= dict.fromkeys(emptied(changed.mark, changed.columns)) | row
                else:
                    there |= dict.fromkeys(lacked(changed.mark, changed.columns, row)) | row
            changed.notes |= notes

    def outdate(self, floor: str, numbers: Mapping[str, int]) -> None:
        with self._commit() as changed:
            for row in changed.rows:
                if row["order_key"] >= floor:
                    row["order_key"] = ""
            changed.numbers |= numbers

    def bury(self, floor: str, numbers: Mapping[str, int]) -> None:
        now = datetime.now(UTC)
        with self._commit() as changed:
            for row in changed.rows:
                if row["order_key"] < floor:
                    gone = dict.fromkeys(emptied(changed.mark, changed.columns))
                    row |= gone | {"order_key": floor, rules.DELETED_AT: row[rules.DELETED_AT] or now}
                    if rules.STALE_SINCE in row:
                        row[rules.STALE_SINCE] = None
            changed.numbers |= numbers

    def rows(self, keys: Sequence[str] | None = None, *, own: Own = False) -> Iterator[pa.RecordBatch]:
        table = self._now()
        layout.check_table(self.name, [*table.columns], own=bool(own))
        names = layout.own_names([*table.columns]) if isinstance(own, bool) else sorted(own)
        wanted = None if keys is None else set(keys)
        found = [row for row in table.rows if wanted is None or row["key"] in wanted]
        for at in range(0, len(found), 1000):
            part = found[at : at + 1000]
            yield layout.read_rows(
                [row["key"] for row in part],
                [layout.NO_ORDER if row["order_key"] is None else row["order_key"] for row in part],
                [
                    layout.state_of({name: row[name] for name in names}, table.columns)
                    if own
                    else row[rules.DOCUMENT]
                    for row in part
                ],
                [row[rules.DELETED_AT] is not None for row in part],
            )

    def fix(self, fixes: Sequence[Fix], expected: Expected) -> int:
        layout.check_fixes(self.name, [*self._now().columns], fixes, self._now().mark)
        written = 0
        with self._commit(expected) as changed:

            def orders(key: str) -> list[str]:
                return sorted(
                    row["order_key"] or layout.NO_ORDER for row in changed.rows if row["key"] == key
                )

            before = {fix.beside[0]: orders(fix.beside[0]) for fix in fixes if fix.beside is not None}
            for fix in fixes:
                if orders(fix.key) != sorted(fix.seen):
                    continue
                if fix.beside is not None and before[fix.beside[0]] != [fix.beside[1]]:
                    continue
                if not fix.seen and fix.text is None:
                    continue
                others = dict.fromkeys(changed.columns)
                for row in changed.rows:
                    if row["key"] == fix.key:
                        others = row
                changed.rows = [row for row in changed.rows if row["key"] != fix.key]
                if not fix.removes:
                    values = layout.fixed_row(fix, emptied(changed.mark, changed.columns)).items()
                    changed.rows.append(
                        others | {name: value for name, value in values if name in changed.columns}
                    )
                written += 1
        return written
