"""Merges changes into tables of SQLite, and reads and repairs them for `verify`.

- *Each step is one transaction*, which begins with `BEGIN IMMEDIATE`: of two sinks, one waits. What it
  decides on, it has read itself.
- *A reader sees one version* and locks nobody out, because the database has to be in WAL mode. The sink sets
  it in a database that it makes, and refuses others without it.
- *Nothing is converted in silence.* `sqlite_types` says how values are held, and `sqlite_shape` which tables
  are refused. Names are in backticks, because SQLite takes a name in double quotes that it does not know for
  a text.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Literal

import attrs
import pyarrow as pa

from multiclouddb_api import (
    ChangeFeedPage,
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    MulticloudDbError,
    invalid_request,
)
from multiclouddb_api.validators import to_utc
from multiclouddb_spi.faults import key_digest
from multiclouddb_tables import layout, rules
from multiclouddb_tables.batch import Create, MissingState, check_beside
from multiclouddb_tables.changes import LACKING
from multiclouddb_tables.column_values import ColumnType
from multiclouddb_tables.columns import Columns
from multiclouddb_tables.contract import Fix, Own, Table, check_position, check_writer
from multiclouddb_tables.conversion import Unheld
from multiclouddb_tables.mark import (
    Expected,
    FoundTable,
    TableMark,
    declared_names,
    emptied,
    lacked,
    refilled,
)
from multiclouddb_tables.merging import FILLED, merge_changes
from multiclouddb_tables.rules import DELETED_AT, DOCUMENT, STALE_SINCE
from multiclouddb_tables.sql import in_backticks
from multiclouddb_tables.sqlite_file import SqliteFile
from multiclouddb_tables.sqlite_shape import MARKS, NOT_NULL, Shape, check_database, check_name
from multiclouddb_tables.sqlite_types import TIMESTAMP, as_read, as_written, column_type, time_text, type_for

__all__ = ["SqliteTable", "merge_into_sqlite"]

_FEED: Final = "feed"
_VERSION: Final = "version"
_POSITION: Final = "position"
_WRITER: Final = "writer"
_NUMBER: Final = "number:"
_NOTE: Final = "note:"
_NO_VALUE: Final = (ValueError, OverflowError, ArithmeticError)
"""What pyarrow raises for a value that Python does not have."""
_AT_ONCE: Final = 500
"""How many keys one statement looks for."""


def merge_into_sqlite(
    batch: pa.Table | ChangeFeedPage,
    batch_id: int | None,
    path: str | os.PathLike[str],
    table: str,
    app_id: str | None,
    *,
    create: Create = "first",
    new_columns: Literal["add", "refuse"] = "refuse",
    missing_state: MissingState = "refuse",
    source: str | None = None,
    columns: Columns | None = None,
    refill: bool = False,
) -> bool:
    """Merge a page, or an Arrow table of changes, into a table of SQLite, with one row for each document.

    Store the position after the call, for example in a checkpoint store: if the process is killed before
    that, the page comes again, and merging it again changes nothing.

    Args:
        batch: A page of `read_changes`, or a pyarrow table with the columns of the events and yours.
        batch_id: As in `merge_into_delta`.
        path: The file of the database, which is created if it does not exist.
        table: The name of the table.
        app_id: As in `merge_into_delta`.
        create: As in `merge_into_delta`.
        new_columns: As in `merge_into_delta`.
        missing_state: As in `merge_into_delta`.
        source: As in `merge_into_delta`.
        columns: As in `merge_into_delta`.
        refill: As in `merge_into_delta`.

    Returns:
        True if rows were merged.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` and `NOT_FOUND` as in `merge_into_delta`, and `INVALID_REQUEST`
            if SQLite would change rows of this table, or a value of the batch, in silence. `CONFLICT`,
            retryable, if another program has locked the database for a minute, or has replaced its file or
            table meanwhile.
    """
    rules.check_new_columns(new_columns)
    check_beside(columns, new_columns)
    return merge_changes(
        SqliteTable(path, table, new_columns=new_columns), "merge_into_sqlite", batch, batch_id, app_id,
        create=create, missing_state=missing_state, source=source, columns=columns, refill=refill,
    )  # fmt: skip


@attrs.frozen
class _Step:
    """A transaction that writes."""

    database: sqlite3.Connection
    shape: Shape
    found: FoundTable

    def put(self, values: Mapping[str, object]) -> None:
        self.database.executemany(
            f"INSERT OR REPLACE INTO {MARKS} (identity, name, value) VALUES (?, ?, ?)",
            [(self.shape.identity, name, value) for name, value in values.items()],
        )

    def write(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Write rows, each of which has to be written."""
        count = self.database.executemany(statement, rows).rowcount if rows else 0
        if count != len(rows):
            raise MulticloudDbError(
                f"table: SQLite has written {count} rows of {len(rows)}; nothing was merged",
                ErrorDetail(ErrorCategory.PERMANENT_FAILURE),
            )


class SqliteTable(Table):
    """A table of SQLite, as `verify` compares and repairs it, and as `merge_into_sqlite` writes it.

    The table need not exist. Each call opens the file and closes it again, so one thread after another may
    use the object.

    Args:
        path: The file of the database.
        table: The name of the table.
        new_columns: `"add"` to add columns that the table lacks, or `"refuse"`, the default, to refuse them.
        patience_seconds: How many seconds a call waits for another program that writes into the database; 60
            by default.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if SQLite would change rows of this table in silence, or if
            Python's SQLite is older than 3.37.
    """

    unheld: ClassVar[tuple[Unheld, ...]] = ("NaN",)

    def __init__(
        self,
        path: str | os.PathLike[str],
        table: str,
        *,
        new_columns: Literal["add", "refuse"] = "refuse",
        patience_seconds: float = 60.0,
    ) -> None:
        rules.check_new_columns(new_columns)
        check_name(table)
        self._file = SqliteFile.of(path, table, patience_seconds)
        self._table, self._new_columns = table, new_columns
        self.writer: str | None = None
        # Of the table that is there now it is decided that a batch may be merged.
        self._seen = self._there()

    @property
    def name(self) -> str:
        """The file and the table, as in `sqlite:shop.db#orders`."""
        return self._file.table

    # What is there

    @property
    def exists(self) -> bool:
        """True if the file exists and has the table."""
        return self._there() is not None

    def _there(self) -> FoundTable | None:
        if not self._file.exists:
            return None
        with self._file.reading() as database:
            shape = self._find(database)
            return None if shape is None else self._found(database, shape, None)

    def is_empty(self) -> bool:
        """Return True if the table has no row."""
        with self._file.reading() as database:
            shape = self._look(database)
            return database.execute(f"SELECT 1 FROM {shape.sql} LIMIT 1").fetchone() is None

    def columns(self) -> Mapping[str, ColumnType]:
        """Return the types of the columns of the user, without generated ones."""
        with self._file.reading() as database:
            kinds = self._look(database).kinds
        return {name: column_type(kinds[name]) for name in layout.own_names([*kinds])}

    def found(self, since: FoundTable | None = None) -> FoundTable:
        """Return the mark of the table, its id with the number of the file, and how often it was written.

        Args:
            since: See `Target.found`.
        """
        with self._file.reading() as database:
            return self._found(database, self._look(database), since)

    def _found(self, database: sqlite3.Connection, shape: Shape, since: FoundTable | None) -> FoundTable:
        text, version = (shape.stored(database, name) for name in (_FEED, _VERSION))
        mark = None if text is None else TableMark.from_json(str(text), self.name)
        number = version if isinstance(version, int) else None
        before = None if since is None else since.version
        went_back = before is not None and (number is None or number < before)
        # A copy of the file has the same id.
        identity = f"{shape.identity or ''}@{self._file.number}"
        return FoundTable(mark, identity, number, went_back)

    def _find(self, database: sqlite3.Connection) -> Shape | None:
        return Shape.find(database, self._table, self.name)

    def _look(self, database: sqlite3.Connection) -> Shape:
        shape = self._find(database)
        if shape is None:
            raise layout.missing(self.name)
        return shape

    @contextmanager
    def _step(
        self,
        expected: Expected | None = None,
        mark: TableMark | None = None,
        *,
        claims_from: tuple[str | None] | None = None,
    ) -> Iterator[_Step]:
        """Write into the table, if it is still the one that is meant.

        Args:
            expected: The table that `verify` has compared; None for a step of the sink.
            mark: The mark that this step stores.
            claims_from: What the step that claims the table expects in place of `writer`.
        """
        with self._file.writing() as database:
            shape = self._look(database)
            found = self._found(database, shape, self._seen if expected is None else expected.found)
            if expected is not None:
                expected.check(found, self.name)
            elif self._seen is not None:
                found.check_still(self._seen, self.name, None if mark is None else mark.source)
            if expected is None and self.writer is not None:
                [expects] = claims_from or (self.writer,)
                check_writer(shape.stored(database, _WRITER), expects, self.name)
            if expected is None:
                shape = shape.adopted(database)
            step = _Step(database, shape, found)
            yield step
            if expected is None or found.version is not None:
                step.put({_VERSION: (found.version or 0) + 1})
            after = self._found(database, shape, None)
        if expected is None:
            self._seen = after

    def kept_open(self) -> AbstractContextManager[None]:
        """Keep the file open between the steps of a merge that read."""
        return self._file.kept_open()

    # What is stored with the table

    def prepare(
        self, schema: pa.Schema, mark: TableMark | None = None, *, may_be_stale: bool = False
    ) -> None:
        """Make the database and the table, or add the columns that the table lacks.

        Args:
            schema: See `Table.prepare`.
            mark: See `Table.prepare`.
            may_be_stale: See `Table.prepare`.
        """
        rules.check_stored(schema)
        wanted = {field.name: type_for(field) for field in schema}
        for name in wanted:
            if "\0" in name:
                raise invalid_request("batch", f"has the column {name!r}, with a NUL", "rename it")
        rules.check_cases(wanted)
        wanted[DELETED_AT] = TIMESTAMP
        if may_be_stale:
            wanted[STALE_SINCE] = TIMESTAMP
        if not self.exists:
            self._make(wanted, mark)
        declared = declared_names(mark)
        with self._file.reading() as database:
            shape = self._look(database)
            if not self._lacking(shape, wanted, declared) and shape.identity is not None:
                return
        with self._step() as step:
            for name in self._lacking(step.shape, wanted, declared):
                kind = wanted[name]
                step.database.execute(f"ALTER TABLE {step.shape.sql} ADD COLUMN {in_backticks(name)} {kind}")

    def redeclare(self, schema: pa.Schema, names: Sequence[str], mark: TableMark) -> None:
        """Give columns the types of another declaration, in one transaction.

        Args:
            schema: See `Table.redeclare`.
            names: See `Table.redeclare`.
            mark: See `Table.redeclare`.
        """
        wanted = {field.name: type_for(field) for field in schema}
        with self._step() as step:
            found, shape = step.found.mark, step.shape
            if found != mark:
                raise refilled(self.name)
            rules.check_cases(wanted, shape.kinds)
            for name in names:
                column, there = in_backticks(name), shape.kinds.get(name)
                try:
                    if name in wanted and there not in (None, wanted[name]):
                        step.database.execute(f"ALTER TABLE {shape.sql} DROP COLUMN {column}")
                        there = None
                    if there is not None:
                        step.database.execute(f"UPDATE {shape.sql} SET {column} = NULL")
                    elif name in wanted:
                        step.database.execute(f"ALTER TABLE {shape.sql} ADD COLUMN {column} {wanted[name]}")
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                        raise
                    raise layout.used(self.name, name, str(error)) from error

    def count(self) -> int:
        """Return the number of rows."""
        with self._file.reading() as database:
            [count] = database.execute(f"SELECT count(*) FROM {self._look(database).sql}").fetchone()
        return int(count)

    def _lacking(self, shape: Shape, wanted: Mapping[str, str], declared: Sequence[str] = ()) -> list[str]:
        layout.check_table(self.name, [*shape.kinds], own=True)
        computed = {each.lower() for each in shape.generated}
        for name in wanted:
            if name.lower() in computed:
                raise invalid_request(
                    f"column {name}", f"is computed by {self.name}", "leave it out of the batch, or rename it"
                )
            if (other := shape.changed_by.get(name.lower())) is not None:
                raise invalid_request(
                    f"column {name}",
                    f"is in the batch, and a foreign key of {self.name} changes its values when a row of "
                    f"{other} changes",
                    "make the table again without ON UPDATE and ON DELETE, or leave the column out",
                )
        return rules.lacking_columns(self.name, wanted, shape.kinds, self._new_columns, declared)

    def _make(self, wanted: Mapping[str, str], mark: TableMark | None) -> None:
        """Make the table, unless another process is faster."""
        self._file.make()
        with self._file.writing() as database:
            if self._find(database) is None:
                check_database(database, self.name)
                columns = (
                    f"{in_backticks(name)} {kind}{' NOT NULL' if name in NOT_NULL else ''}"
                    for name, kind in wanted.items()
                )
                database.execute(f"CREATE TABLE {in_backticks(self._table)} ({', '.join(columns)})")
                shape = self._look(database).adopted(database)
                step = _Step(database, shape, self._found(database, shape, None))
                marked = {} if mark is None else {_FEED: mark.to_json()}
                step.put({_VERSION: 0, **marked, **({} if self.writer is None else {_WRITER: self.writer})})
            seen = self._found(database, self._look(database), None)
        self._seen = seen

    def number(self, name: str) -> int | None:
        """Return a number that `store` has stored.

        Args:
            name: See `Table.number`.
        """
        with self._file.reading() as database:
            value = self._look(database).stored(database, _NUMBER + name)
        return value if isinstance(value, int) else None

    def store(self, numbers: Mapping[str, int], notes: Mapping[str, str]) -> None:
        """Store numbers and texts.

        Args:
            numbers: See `Table.store`.
            notes: See `Table.store`.
        """
        with self._step() as step:
            step.put(_named(numbers, notes))

    def drop_tombstones(self, before: datetime) -> int:
        """Remove the rows of documents that were deleted before a time, and return their number.

        Args:
            before: The time at which the delete was merged.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the time has no zone.
        """
        before = to_utc("before", before)
        with self._step() as step:
            where = f"{DELETED_AT} < ?"
            dropped = step.database.execute(
                f"DELETE FROM {step.shape.sql} WHERE {where}", (time_text(before),)
            ).rowcount
            [(is_empty,)] = step.database.execute(f"SELECT NOT EXISTS (SELECT 1 FROM {step.shape.sql})")
            if is_empty:
                step.put({_NUMBER + FILLED: 0})
        return int(dropped)

    def feed_mark(self) -> TableMark | None:
        """Return the mark of the table that is there now; the next steps write into this table only."""
        self._seen = self.found()
        return self._seen.mark

    def set_feed_mark(self, mark: TableMark) -> None:
        """Replace the mark.

        Args:
            mark: See `Table.set_feed_mark`.
        """
        with self._step(mark=mark) as step:
            step.put({_FEED: mark.to_json()})

    def complete(self, expected: Expected) -> None:
        """Remove from the mark that the table is incomplete.

        Args:
            expected: See `Target.complete`.
        """
        with self._step(expected) as step:
            mark = expected.completed(step.found.mark)
            if mark is not None:
                step.put({_FEED: mark.to_json()})

    def position(self) -> str | None:
        """Return the position that is stored with the table; None if there is no table, or none with it."""
        return self._stored_text(_POSITION)

    def _stored_text(self, name: str) -> str | None:
        if not self._file.exists:
            return None
        with self._file.reading() as database:
            shape = self._find(database)
            value = None if shape is None else shape.stored(database, name)
        return value if isinstance(value, str) else None

    def store_position(self, token: str, before: str | None) -> None:
        """Store the position; see `SupportsPosition.store_position`.

        Args:
            token: The token of the page.
            before: The position that was stored before.
        """
        with self._step() as step:
            check_position(step.shape.stored(step.database, _POSITION), before, self.name)
            step.put({_POSITION: token})

    def claimed(self) -> str | None:
        """Return the value of the job that has claimed the table; see `SupportsPosition.claimed`."""
        return self._stored_text(_WRITER)

    def claim(self, before: str | None) -> None:
        """Store the value; see `SupportsPosition.claim`.

        Args:
            before: The value that was there when the job began.
        """
        with self._step(claims_from=(before,)) as step:
            step.put({_WRITER: self.writer})

    # Rows

    def merge(self, rows: pa.Table, notes: Mapping[str, str], *, is_last: bool) -> None:
        """Merge the last changes of some keys.

        Args:
            rows: See `Table.merge`.
            notes: See `Table.merge`.
            is_last: See `Table.merge`.
        """
        del is_last
        wanted = {field.name: type_for(field) for field in rows.schema if field.name != "type"}
        keys = rows["key"].to_pylist()
        values = {name: _values(name, kind, rows[name], keys) for name, kind in wanted.items()}
        kinds = rows["type"].to_pylist()
        deletes, lacking = ([each == name for each in kinds] for name in ("DELETE", LACKING))
        now = time_text(datetime.now(UTC))
        with self._step() as step:
            shape = step.shape
            if self._lacking(shape, wanted):
                raise MulticloudDbError(
                    f"table: {self.name} lost a column during the merge; try again",
                    ErrorDetail(ErrorCategory.CONFLICT, retryable=True, reason=ErrorReason.OTHER_WRITER),
                )
            there = _orders(step.database, shape, values["key"])
            may_be_stale = STALE_SINCE in shape.kinds
            gone = emptied(step.found.mark, shape.kinds, wanted)
            absent = lacked(step.found.mark, shape.kinds, wanted)
            inserted, replaced, outdated = list[list[Any]](), list[list[Any]](), list[list[Any]]()
            buried = list[list[Any]]()
            for at, (key, order_key) in enumerate(zip(values["key"], values["order_key"], strict=True)):
                before = there.get(key)
                if before is not None and not (isinstance(before, str) and before < order_key):
                    continue
                row = {name: column[at] for name, column in values.items()}
                row[DELETED_AT] = now if deletes[at] else None
                lacks = may_be_stale and lacking[at]
                if may_be_stale:
                    row[STALE_SINCE] = now if lacks else None
                if before is None:
                    # A column that the batch lacks is null, and has not its default.
                    inserted.append([row.get(name) for name in shape.kinds])
                elif lacks:
                    outdated.append([order_key, now, key])
                else:
                    (buried if deletes[at] else replaced).append([*row.values(), key])
            step.write(shape.insert(), inserted)
            names = [*wanted, DELETED_AT, *([STALE_SINCE] if may_be_stale else [])]
            sets = [f"{in_backticks(name)} = ?" for name in names]
            for others, written in ((absent, replaced), (gone, buried)):
                nulls = (f"{in_backticks(name)} = NULL" for name in others)
                step.write(shape.update([*sets, *nulls]), written)
            stale = (f"{DELETED_AT} = NULL", f"{STALE_SINCE} = coalesce({STALE_SINCE}, ?)")
            step.write(shape.update(("order_key = ?", *stale)), outdated)
            step.put(_named({}, notes))

    def outdate(self, floor: str, numbers: Mapping[str, int]) -> None:
        """Give rows from the floor on the `order_key` `""`.

        Args:
            floor: See `Table.outdate`.
            numbers: See `Table.outdate`.
        """
        with self._step() as step:
            statement = step.shape.update(["order_key = ''"], "order_key >= ?")
            step.database.execute(statement, (floor,))
            step.put(_named(numbers, {}))

    def bury(self, floor: str, numbers: Mapping[str, int]) -> None:
        """Make tombstones of rows below the floor.

        Args:
            floor: See `Table.bury`.
            numbers: See `Table.bury`.
        """
        with self._step() as step:
            others = (f"{in_backticks(name)} = NULL" for name in emptied(step.found.mark, step.shape.kinds))
            settings = ["order_key = ?", f"{DELETED_AT} = coalesce({DELETED_AT}, ?)", *others]
            if STALE_SINCE in step.shape.kinds:
                settings.append(f"{STALE_SINCE} = NULL")
            step.database.execute(
                step.shape.update(settings, "order_key < ?"), (floor, time_text(datetime.now(UTC)), floor)
            )
            step.put(_named(numbers, {}))

    def rows(self, keys: Sequence[str] | None = None, *, own: Own = False) -> Iterator[pa.RecordBatch]:
        """Read one version of the table.

        Args:
            keys: See `Target.rows`.
            own: See `Target.rows`.
        """
        with self._file.reading() as database:
            shape = self._look(database)
            layout.check_table(self.name, [*shape.kinds], own=bool(own))
            names = layout.own_names([*shape.kinds]) if isinstance(own, bool) else sorted(own)
            types = {name: column_type(shape.kinds[name]) for name in names} if own else {}
            read = ("key", "order_key", *([*types] if own else [DOCUMENT]))
            columns = ", ".join(f"r.{in_backticks(name)}" for name in read)
            statement = f"SELECT r.{DELETED_AT} IS NOT NULL, {columns} FROM {shape.sql} AS r"
            for found in _fetched(database, statement, keys):
                if any(not isinstance(row[1], str) for row in found):
                    raise invalid_request(
                        "table",
                        f"{self.name} has a row whose key is no text in UTF-8, which no sink has written",
                        "delete this row",
                    )
                yield layout.read_rows(
                    [row[1] for row in found],
                    [_order(row[2]) for row in found],
                    [
                        layout.state_of(
                            {
                                name: as_read(shape.kinds[name], value)
                                for name, value in zip(types, row[3:], strict=True)
                            },
                            types,
                        )
                        if own
                        else _document(row[3])
                        for row in found
                    ],
                    [bool(row[0]) for row in found],
                )

    def fix(self, fixes: Sequence[Fix], expected: Expected) -> int:
        """Repair rows that are still as they were seen.

        Args:
            fixes: See `Target.fix`.
            expected: See `Target.fix`.
        """
        with self._step(expected) as step:
            database, shape = step.database, step.shape
            layout.check_fixes(self.name, [*shape.kinds], fixes, step.found.mark)

            def orders(key: str) -> list[str]:
                found = database.execute(
                    f"SELECT order_key FROM {shape.sql} WHERE key = ? COLLATE BINARY", (key,)
                )
                return sorted(_order(each) for (each,) in found)

            before = {fix.beside[0]: orders(fix.beside[0]) for fix in fixes if fix.beside is not None}
            written = 0
            for fix in fixes:
                if orders(fix.key) != sorted(fix.seen) or (not fix.seen and fix.text is None):
                    continue
                if fix.beside is not None and before[fix.beside[0]] != [fix.beside[1]]:
                    continue
                self._fix(step, fix)
                written += 1
            return written

    def _fix(self, step: _Step, fix: Fix) -> None:
        database, shape = step.database, step.shape
        of_the_key = f"FROM {shape.sql} WHERE key = ? COLLATE BINARY"
        if fix.removes:
            database.execute(f"DELETE {of_the_key}", (fix.key,))
            return
        values = {
            name: as_written(name, shape.kinds[name], [value], [fix.key])[0]
            for name, value in layout.fixed_row(fix, emptied(step.found.mark, shape.kinds)).items()
            if name in shape.kinds
        }
        if len(fix.seen) == 1:
            statement = shape.update(f"{in_backticks(name)} = ?" for name in values)
            step.write(statement, [[*values.values(), fix.key]])
            return
        names = ", ".join(f"{in_backticks(name)}" for name in shape.kinds)
        found = database.execute(f"SELECT {names} {of_the_key} LIMIT 1", (fix.key,)).fetchone()
        others = dict(zip(shape.kinds, found, strict=True)) if found else {}
        database.execute(f"DELETE {of_the_key}", (fix.key,))
        step.write(shape.insert(), [[{**others, **values}.get(name) for name in shape.kinds]])


def _order(value: Any) -> str:
    """Return an order key; bytes are higher than each text, so they refuse all changes, as null does."""
    return value if isinstance(value, str) else layout.NO_ORDER


def _document(value: Any) -> str | None:
    """Return a document; bytes become a text that is no JSON, because no sink has written them."""
    return value if value is None or isinstance(value, str) else f"bytes {bytes(value).hex()}"


def _named(numbers: Mapping[str, int], notes: Mapping[str, str]) -> dict[str, object]:
    return {
        **{_NUMBER + name: value for name, value in numbers.items()},
        **{_NOTE + name: value for name, value in notes.items()},
    }


def _values(name: str, kind: str, column: pa.ChunkedArray, keys: Sequence[str]) -> list[Any]:
    """Return what is written for each value of a column of a batch; the keys are those of its rows."""
    try:
        values = column.to_pylist()
    except _NO_VALUE as error:
        key = next(key for value, key in zip(column, keys, strict=True) if not _is_value(value))
        raise invalid_request(
            f"column {name}",
            f"has a value that Python does not have, such as a time after the year 9999, in the row of the "
            f"key {key_digest(key)}",
            "replace it, or write it as a text",
        ) from error
    return as_written(name, kind, values, keys)


def _is_value(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except _NO_VALUE:
        return False
    return True


def _fetched(database: sqlite3.Connection, statement: str, keys: Sequence[str] | None) -> Iterator[list[Any]]:
    """Yield rows of a version, of all keys or of some."""
    parts: Iterable[tuple[str, Sequence[str]]] = [(statement, ())]
    if keys is not None:
        once = [*dict.fromkeys(keys)]
        chunks = (once[at : at + _AT_ONCE] for at in range(0, len(once), _AT_ONCE))
        parts = (
            (f"{statement} WHERE r.key COLLATE BINARY IN ({', '.join('?' * len(each))})", each)
            for each in chunks
        )
    for text, arguments in parts:
        cursor = database.execute(text, arguments)
        yield from layout.grouped(cursor, 1000)


def _orders(database: sqlite3.Connection, shape: Shape, keys: Sequence[str]) -> dict[str, Any]:
    """Return the order key of each of some keys that has a row."""
    statement = f"SELECT r.key, r.order_key FROM {shape.sql} AS r"
    return {key: order for found in _fetched(database, statement, keys) for key, order in found}
