"""Merges changes into tables of SQLite, and reads and repairs them for `verify`.

The marks of a sink, and its numbers and notes, are rows of `multiclouddb_marks` in the same file. They have to go with
the table, but SQLite drops nothing with a table except its indexes and triggers, and gives the number of a
dropped table to the next one. So a unique index on `key` bears the id of the table in its name, and the rows
of `multiclouddb_marks` are those of this id. The index is also what forbids a second row of a key.

- *Each step is one transaction*, which begins with `BEGIN IMMEDIATE`: of two sinks, one waits. Its connection lives
  as long as the step. What a transaction decides on, it has read itself.
- *The file* may be replaced while it is open, and what is then written goes into a file without a name. So the
  number of the file is compared before and after each commit.
- *A reader sees one version* and locks nobody out, because the database has to be in WAL mode. The sink sets it in
  a database that it makes, and refuses others without it. `synchronous=FULL`, because otherwise a loss of power
  can take back in WAL mode what was committed.
- *Nothing is converted in silence.* `sqlite_types` says how. Names are in backticks, because SQLite takes a name
  in double quotes that it does not know for a text.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import pyarrow as pa

from multiclouddb_api import ChangeFeedPage, ErrorCategory, ErrorDetail, MulticloudDbError, invalid_request
from multiclouddb_api.validators import check_type
from multiclouddb_tables import layout, rules
from multiclouddb_tables.column_values import ColumnType
from multiclouddb_tables.contract import Fix, Own, Table
from multiclouddb_tables.mark import Expected, FoundTable, TableMark
from multiclouddb_tables.merging import merge_changes
from multiclouddb_tables.rules import DELETED_AT, DOCUMENT, STALE_SINCE, Create, MissingState
from multiclouddb_tables.sql import in_backticks
from multiclouddb_tables.sqlite_types import (
    TEXT,
    TIMESTAMP,
    as_read,
    as_written,
    column_type,
    kind_of,
    time_text,
    type_for,
)

__all__ = ["SqliteTable", "merge_into_sqlite"]

_MARKS: Final = "multiclouddb_marks"
_INDEX: Final = "multiclouddb_"
"""Begins the name of the index; the table's id follows."""
_FEED: Final = "feed"
_VERSION: Final = "version"
_NUMBER: Final = "number:"
_NOTE: Final = "note:"
_OLDEST: Final = (3, 37, 0)
"""The version of SQLite that brought `PRAGMA table_list`."""
_AT_ONCE: Final = 500
"""How many keys one statement looks for."""
_NOT_NULL: Final = ("key", "order_key")
_RETRYABLE: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


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
) -> bool:
    """Merge a page, or an Arrow table of changes, into a table of SQLite, with one row for each document.

    Store the position, for example in a checkpoint store, after the call: a page that is merged again changes
    nothing.

    Args:
        batch: A page of `read_changes`, or a pyarrow table with the columns of the events and more of your own.
        batch_id: As in `merge_into_delta`.
        path: The file of the database. It is made if it does not exist.
        table: The name of the table.
        app_id: As in `merge_into_delta`.
        create: As in `merge_into_delta`.
        new_columns: As in `merge_into_delta`.
        missing_state: As in `merge_into_delta`.
        source: As in `merge_into_delta`.

    Returns:
        True if rows were merged.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` and `NOT_FOUND` as in `merge_into_delta`, and `INVALID_REQUEST` if the
            table, or a value, is one in which SQLite would change rows in silence. `CONFLICT`, retryable, if
            another program has locked the database for a minute, or has replaced its file or table meanwhile.
    """
    rules.check_new_columns(new_columns)
    return merge_changes(
        SqliteTable(path, table, new_columns=new_columns), "merge_into_sqlite", batch, batch_id, app_id,
        create=create, missing_state=missing_state, source=source,
    )  # fmt: skip


@attrs.frozen
class _Shape:
    """What the schema says about a table."""

    name: str
    kinds: Mapping[str, str]  # without generated columns
    generated: Collection[str]
    identity: str | None  # the id in the name of the index; None before the first merge

    @property
    def sql(self) -> str:
        return in_backticks(self.name)

    def insert(self) -> str:
        """Return the statement that inserts a row with a value for each column."""
        names = ", ".join(map(in_backticks, self.kinds))
        return f"INSERT OR ABORT INTO {self.sql} ({names}) VALUES ({', '.join('?' * len(self.kinds))})"

    def update(self, settings: Iterable[str]) -> str:
        """Return the statement that updates the row of a key."""
        return f"UPDATE OR ABORT {self.sql} SET {', '.join(settings)} WHERE key = ? COLLATE BINARY"


@attrs.frozen
class _Step:
    """A transaction that writes."""

    database: sqlite3.Connection
    shape: _Shape
    found: FoundTable

    def put(self, values: Mapping[str, object]) -> None:
        """Store values with the table."""
        self.database.executemany(
            f"INSERT OR REPLACE INTO {_MARKS} (identity, name, value) VALUES (?, ?, ?)",
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

    It does not have to exist. Each call opens the file and closes it again, so the object may be used by one
    thread after another.

    Args:
        path: The file of the database.
        table: The name of the table.
        new_columns: "add" to add columns that the table lacks, and "refuse" to refuse them.
        patience_seconds: How long a call waits if another program writes into the database.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the table is one in which SQLite would change rows in silence, or
            if the installed SQLite is older than 3.37.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        table: str,
        *,
        new_columns: Literal["add", "refuse"] = "refuse",
        patience_seconds: float = 60.0,
    ) -> None:
        check_type("path", path, str, os.PathLike)
        check_type("table", table, str)
        check_type("patience_seconds", patience_seconds, int, float)
        rules.check_new_columns(new_columns)
        text = os.fspath(path)
        if not text or text == ":memory:" or "\0" in text:
            raise invalid_request("path", f"is {text!r}, which is no file", "give the path of the database")
        if not table or "\0" in table or table.lower() == _MARKS or table.lower().startswith("sqlite_"):
            raise invalid_request("table", f"is {table!r}, which cannot be a table of yours", "rename it")
        if sqlite3.sqlite_version_info < _OLDEST:
            raise invalid_request(
                "path", f"needs SQLite 3.37, and Python has {sqlite3.sqlite_version}", "install a newer Python"
            )
        self._given, self._path, self._table = text, Path(text).absolute(), table
        self._new_columns, self._patience = new_columns, patience_seconds
        # Of the table that is there now it is decided that a batch may be merged.
        self._seen = self.found() if self.exists else None

    @property
    def name(self) -> str:
        """The file and the table, as in `sqlite:shop.db#orders`."""
        return f"sqlite:{self._given}#{self._table}"

    # What is there

    @property
    def exists(self) -> bool:
        """True if the file exists and has the table."""
        if not self._path.exists():
            return False
        with self._reading() as database:
            return self._find(database) is not None

    def is_empty(self) -> bool:
        """Return True if the table has no row."""
        with self._reading() as database:
            shape = self._look(database)
            return database.execute(f"SELECT 1 FROM {shape.sql} LIMIT 1").fetchone() is None

    def columns(self) -> Mapping[str, ColumnType]:
        """Return the types of the columns of the user, without generated ones."""
        with self._reading() as database:
            kinds = self._look(database).kinds
        return {name: column_type(kinds[name]) for name in layout.own_names([*kinds]) if name != DOCUMENT}

    def found(self, since: FoundTable | None = None) -> FoundTable:
        """Return the mark of the table, its id with the number of the file, and how often it was written.

        Args:
            since: See `Target.found`.
        """
        with self._reading() as database:
            return self._found(database, self._look(database), since)

    def _found(
        self, database: sqlite3.Connection, shape: _Shape, since: FoundTable | None
    ) -> FoundTable:
        text, version = (_stored(database, shape, name) for name in (_FEED, _VERSION))
        mark = None if text is None else TableMark.from_json(str(text), self.name)
        number = version if isinstance(version, int) else None
        before = None if since is None else since.version
        went_back = before is not None and (number is None or number < before)
        # A copy of the file has the same id.
        identity = f"{shape.identity or ''}@{_number_of(self._path)}"
        return FoundTable(mark, identity, number, went_back)

    def _find(self, database: sqlite3.Connection) -> _Shape | None:
        """Return the shape of the table, or None if it does not exist; refuse one that damages rows."""
        listed = database.execute(
            "SELECT name, type FROM pragma_table_list WHERE schema = 'main' AND name = ? COLLATE NOCASE",
            (self._table,),
        ).fetchone()
        if listed is None:
            return None
        name, kind = listed
        if kind != "table":
            raise self._refused(f"is a {kind}", "give the name of a table")
        [encoding], [journal] = (
            database.execute(f"PRAGMA {each}").fetchone() for each in ("encoding", "journal_mode")
        )
        if encoding != "UTF-8":
            raise self._refused(
                f"is in a database with the encoding {encoding}, in which texts have another order",
                "use a database that was made with PRAGMA encoding = 'UTF-8'",
            )
        if journal != "wal":
            raise self._not_in_wal(journal)
        triggers = [
            each
            for (each,) in database.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE", (name,)
            )
        ]
        if triggers:
            raise self._refused(
                f"has the trigger {triggers[0]}, which may change or leave out rows",
                "drop it, or write from the trigger's place with a feed of its own",
            )
        kinds, generated = dict[str, str](), list[str]()
        for column, declared, not_null, hidden in database.execute(
            'SELECT name, type, "notnull", hidden FROM pragma_table_xinfo(?)', (name,)
        ):
            if hidden:
                generated.append(column)
                continue
            kinds[column] = kind_of(declared)
            if bool(not_null) != (column in _NOT_NULL):
                problem, way_out = "must be NOT NULL", "make the table again with NOT NULL"
                if not_null:
                    problem, way_out = "is NOT NULL, but a tombstone has no value in it", "allow null in it"
                raise self._refused(f"has the column {column}, which {problem}", way_out)
            if column in (*_NOT_NULL, DOCUMENT) and kinds[column] != TEXT:
                # A column of numbers would make 1 of the text 0001.
                raise self._refused(
                    f"has the column {column} of the type {declared or 'BLOB'}", "make the table with TEXT"
                )
        hit = [column for column in (*layout.HIDDEN, DOCUMENT) if column in generated]
        if hit:
            raise self._refused(f"computes the column {hit[0]}", "make it a column with values of its own")
        identity = None
        for index, unique, partial in database.execute(
            'SELECT name, "unique", partial FROM pragma_index_list(?) ORDER BY name', (name,)
        ):
            if index.startswith(_INDEX) and unique and not partial:
                identity = index.removeprefix(_INDEX)
        return _Shape(name, kinds, generated, identity)

    def _look(self, database: sqlite3.Connection) -> _Shape:
        shape = self._find(database)
        if shape is None:
            raise layout.missing(self.name)
        return shape

    def _refused(self, problem: str, way_out: str) -> MulticloudDbError:
        return invalid_request("table", f"{self.name} {problem}", way_out)

    def _not_in_wal(self, journal: str) -> MulticloudDbError:
        return self._refused(
            f"is in a database in journal mode {journal}, in which readers lock the sink out",
            "run PRAGMA journal_mode = WAL once; it stays, but not on a network file system",
        )

    # Transactions

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file, which has to exist; what is open at the end is rolled back."""
        try:
            number = _number_of(self._path)
            with closing(
                sqlite3.connect(
                    self._path.as_uri() + "?mode=rw",
                    uri=True,
                    timeout=self._patience,
                    isolation_level=None,
                    check_same_thread=False,
                )
            ) as database:
                database.text_factory = _text
                for each in ("synchronous = FULL", "fullfsync = ON", "foreign_keys = OFF", "recursive_triggers = ON"):
                    database.execute(f"PRAGMA {each}")
                database.execute("SELECT 1 FROM sqlite_schema").fetchone()
                # SQLite has opened the file with the first statement that reads it.
                self._check_number(number)
                yield database
        except (sqlite3.Error, FileNotFoundError) as error:
            raise self._told(error) from error

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Read one version."""
        with self._opened() as database:
            database.execute("BEGIN")
            yield database

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Make one commit, into the file that has the name before it and after it."""
        with self._opened() as database:
            number = _number_of(self._path)
            database.execute("BEGIN IMMEDIATE")
            yield database
            self._check_number(number)
            database.execute("COMMIT")
            self._check_number(number)

    @contextmanager
    def _step(
        self, expected: Expected | None = None, mark: TableMark | None = None
    ) -> Iterator[_Step]:
        """Write into the table, if it is still the one that is meant.

        Args:
            expected: The table that `verify` has compared; None for a step of the sink.
            mark: The mark that this step stores.
        """
        with self._writing() as database:
            shape = self._look(database)
            found = self._found(database, shape, self._seen if expected is None else expected.found)
            if expected is not None:
                expected.check(found, self.name)
            elif self._seen is not None:
                found.check_still(self._seen, self.name, None if mark is None else mark.source)
            if expected is None:
                shape = self._adopted(database, shape)
            step = _Step(database, shape, found)
            yield step
            if shape.identity is not None:
                step.put({_VERSION: (found.version or 0) + 1})
            after = self._found(database, shape, None)
        if expected is None:
            self._seen = after

    def _adopted(self, database: sqlite3.Connection, shape: _Shape) -> _Shape:
        """Give the table its id, unless it has one."""
        database.execute(
            f"CREATE TABLE IF NOT EXISTS {_MARKS} (identity TEXT NOT NULL, name TEXT NOT NULL, value ANY, "
            "PRIMARY KEY (identity, name)) STRICT, WITHOUT ROWID"
        )
        if shape.identity is not None:
            return shape
        layout.check_columns(self.name, [*shape.kinds], _NOT_NULL)
        identity = uuid.uuid4().hex
        index = _INDEX + identity
        try:
            database.execute(f"CREATE UNIQUE INDEX {index} ON {shape.sql} (key)")
        except sqlite3.IntegrityError as error:
            raise self._refused("has several rows of one key", "leave one row of each key") from error
        collations = {each for (each,) in database.execute(
            "SELECT coll FROM pragma_index_xinfo(?) WHERE key", (index,)
        )}
        if collations != {"BINARY"}:
            raise self._refused(
                f"has a key with the collation {', '.join(sorted(collations))}, for which two keys may be the same",
                "make the table again without a collation",
            )
        # The marks of tables that were dropped.
        database.execute(
            f"DELETE FROM {_MARKS} WHERE ? || identity NOT IN (SELECT name FROM sqlite_schema WHERE type = 'index')",
            (_INDEX,),
        )
        return attrs.evolve(shape, identity=identity)

    def _check_number(self, number: int) -> None:
        try:
            is_same = _number_of(self._path) == number
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise MulticloudDbError(
                f"path: the file of {self.name} was replaced or removed meanwhile; try again",
                ErrorDetail(ErrorCategory.CONFLICT, retryable=True),
            )

    def _told(self, error: Exception) -> MulticloudDbError:
        """Return the error of the contract for one of SQLite."""
        if isinstance(error, FileNotFoundError):
            return layout.missing(self.name)
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest is a detail
        if code in _RETRYABLE:
            problem = f"is locked by another program for more than {self._patience:g} s; try again"
            return MulticloudDbError(
                f"path: {self.name} {problem}", ErrorDetail(ErrorCategory.CONFLICT, retryable=True)
            )
        if code == sqlite3.SQLITE_CONSTRAINT:
            return self._refused(
                f"has a constraint that does not allow the rows: {error}", "drop the constraint; the source decides"
            )
        if code == sqlite3.SQLITE_NOTADB:
            return invalid_request("path", f"{self._given} is no database of SQLite", "correct the path")
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            return invalid_request(
                "path", f"{self._given} cannot be opened or written: {error}", "let this process write the folder"
            )
        return MulticloudDbError(
            f"path: SQLite reports of {self.name}: {error}", ErrorDetail(ErrorCategory.PERMANENT_FAILURE)
        )

    # What is stored with the table

    def prepare(
        self, schema: pa.Schema, mark: TableMark | None = None, *, may_be_stale: bool = False
    ) -> None:
        """Make the database and the table, or add the columns that the table lacks.

        Args:
            schema: See `Storage.prepare`.
            mark: See `Storage.prepare`.
            may_be_stale: See `Storage.prepare`.
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
        with self._reading() as database:
            shape = self._look(database)
            if not self._lacking(shape, wanted) and shape.identity is not None:
                return
        with self._step() as step:
            for name in self._lacking(step.shape, wanted):
                kind = wanted[name]
                step.database.execute(f"ALTER TABLE {step.shape.sql} ADD COLUMN {in_backticks(name)} {kind}")

    def _lacking(self, shape: _Shape, wanted: Mapping[str, str]) -> list[str]:
        layout.check_table(self.name, [*shape.kinds], own=True)
        computed = {each.lower() for each in shape.generated}
        for name in wanted:
            if name.lower() in computed:
                raise invalid_request(
                    f"column {name}", f"is computed by {self.name}", "leave it out of the batch, or rename it"
                )
        return rules.lacking_columns(self.name, wanted, shape.kinds, self._new_columns)

    def _make(self, wanted: Mapping[str, str], mark: TableMark | None) -> None:
        """Make the table, unless another process is faster."""
        try:
            self._path.touch()
        except OSError as error:
            way_out = "give a file in a folder that exists, and that this process may write"
            raise invalid_request("path", f"{self._given} cannot be made: {error.strerror}", way_out) from error
        with self._opened() as database:
            if database.execute("SELECT 1 FROM sqlite_schema").fetchone() is None:
                database.execute("PRAGMA journal_mode = WAL")
        with self._writing() as database:
            if self._find(database) is None:
                [journal] = database.execute("PRAGMA journal_mode").fetchone()
                if journal != "wal":
                    raise self._not_in_wal(journal)
                columns = (
                    f"{in_backticks(name)} {kind}{' NOT NULL' if name in _NOT_NULL else ''}"
                    for name, kind in wanted.items()
                )
                database.execute(f"CREATE TABLE {in_backticks(self._table)} ({', '.join(columns)})")
                shape = self._adopted(database, self._look(database))
                step = _Step(database, shape, self._found(database, shape, None))
                step.put({_VERSION: 0} if mark is None else {_VERSION: 0, _FEED: mark.to_json()})
            seen = self._found(database, self._look(database), None)
        self._seen = seen

    def mark(self, name: str) -> int | None:
        """Return a number that `store` has stored.

        Args:
            name: See `Storage.mark`.
        """
        with self._reading() as database:
            value = _stored(database, self._look(database), _NUMBER + name)
        return value if isinstance(value, int) else None

    def store(self, marks: Mapping[str, int], notes: Mapping[str, str]) -> None:
        """Store numbers and texts.

        Args:
            marks: See `Storage.store`.
            notes: See `Storage.store`.
        """
        with self._step() as step:
            step.put(_named(marks, notes))

    def feed_mark(self) -> TableMark | None:
        """Return the mark of the table that is there now; the next steps write into this table only."""
        self._seen = self.found()
        return self._seen.mark

    def set_feed_mark(self, mark: TableMark) -> None:
        """Replace the mark.

        Args:
            mark: See `Storage.set_feed_mark`.
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

    # Rows

    def merge(self, rows: pa.Table, notes: Mapping[str, str], *, is_last: bool) -> None:
        """Merge the last changes of some keys.

        Args:
            rows: See `Storage.merge`.
            notes: See `Storage.merge`.
            is_last: See `Storage.merge`.
        """
        del is_last
        wanted = {field.name: type_for(field) for field in rows.schema if field.name != "type"}
        values = {name: _values(name, kind, rows[name]) for name, kind in wanted.items()}
        deletes = [each == "DELETE" for each in rows["type"].to_pylist()]
        now = time_text(datetime.now(UTC))
        with self._step() as step:
            shape = step.shape
            if self._lacking(shape, wanted):
                raise self._refused("lost a column during the merge", "try again")
            there = _orders(step.database, shape, values["key"])
            may_be_stale = STALE_SINCE in shape.kinds
            inserted, replaced, outdated = list[list[Any]](), list[list[Any]](), list[list[Any]]()
            for at, (key, order_key) in enumerate(zip(values["key"], values["order_key"], strict=True)):
                before = there.get(key)
                if before is not None and not (isinstance(before, str) and before < order_key):
                    continue
                row = {name: column[at] for name, column in values.items()}
                row[DELETED_AT] = now if deletes[at] else None
                lacks = may_be_stale and not deletes[at] and row.get(DOCUMENT, "") is None
                if may_be_stale:
                    row[STALE_SINCE] = now if lacks else None
                if before is None:
                    # A column that the batch lacks is null, and has not its default.
                    inserted.append([row.get(name) for name in shape.kinds])
                elif lacks:
                    outdated.append([order_key, now, key])
                else:
                    replaced.append([*row.values(), key])
            step.write(shape.insert(), inserted)
            names = [*wanted, DELETED_AT, *([STALE_SINCE] if may_be_stale else [])]
            step.write(shape.update(f"{in_backticks(name)} = ?" for name in names), replaced)
            stale = (f"{DELETED_AT} = NULL", f"{STALE_SINCE} = coalesce({STALE_SINCE}, ?)")
            step.write(shape.update(("order_key = ?", *stale)), outdated)
            step.put(_named({}, notes))

    def outdate(self, floor: str, marks: Mapping[str, int]) -> None:
        """Give rows from the floor on the `order_key` `""`.

        Args:
            floor: See `Storage.outdate`.
            marks: See `Storage.outdate`.
        """
        with self._step() as step:
            step.database.execute(
                f"UPDATE OR ABORT {step.shape.sql} SET order_key = '' WHERE order_key >= ? COLLATE BINARY",
                (floor,),
            )
            step.put(_named(marks, {}))

    def bury(self, floor: str, marks: Mapping[str, int]) -> None:
        """Make tombstones of rows below the floor.

        Args:
            floor: See `Storage.bury`.
            marks: See `Storage.bury`.
        """
        with self._step() as step:
            others = (
                f"{in_backticks(name)} = NULL"
                for name in step.shape.kinds
                if name not in (*_NOT_NULL, DELETED_AT)
            )
            settings = ("order_key = ?", f"{DELETED_AT} = coalesce({DELETED_AT}, ?)", *others)
            step.database.execute(
                f"UPDATE OR ABORT {step.shape.sql} SET {', '.join(settings)} "
                "WHERE order_key < ? COLLATE BINARY",
                (floor, time_text(datetime.now(UTC)), floor),
            )
            step.put(_named(marks, {}))

    def rows(self, keys: Sequence[str] | None = None, *, own: Own = False) -> Iterator[pa.RecordBatch]:
        """Read one version of the table.

        Args:
            keys: See `Target.rows`.
            own: See `Target.rows`.
        """
        with self._reading() as database:
            shape = self._look(database)
            layout.check_table(self.name, [*shape.kinds], own=bool(own))
            names = layout.own_names([*shape.kinds]) if isinstance(own, bool) else sorted(own)
            types = {name: column_type(shape.kinds[name]) for name in names} if own else {}
            read = ("key", "order_key", *([*types] if own else [DOCUMENT]))
            columns = ", ".join(f"r.{in_backticks(name)}" for name in read)
            statement = f"SELECT r.{DELETED_AT} IS NOT NULL, {columns} FROM {shape.sql} AS r"
            for found in _fetched(database, statement, keys):
                if any(not isinstance(row[1], str) for row in found):
                    raise self._refused(
                        "has a row whose key is no text in UTF-8, which no sink has written", "delete this row"
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
            layout.check_fixes(self.name, [*shape.kinds], fixes)

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
            name: as_written(name, shape.kinds[name], value)
            for name, value in layout.fixed_row(fix).items()
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


def _number_of(path: Path) -> int:
    """Return the number of the file that has the name now."""
    return path.stat().st_ino


def _text(raw: bytes) -> str | bytes:
    """Return a stored text; the bytes if it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _order(value: Any) -> str:
    """Return an order key; bytes are higher than each text, so they refuse all changes, as null does."""
    return value if isinstance(value, str) else layout.NO_ORDER


def _document(value: Any) -> str | None:
    """Return a document; bytes become a text that is no JSON, because no sink has written them."""
    return value if value is None or isinstance(value, str) else f"bytes {bytes(value).hex()}"


def _named(marks: Mapping[str, int], notes: Mapping[str, str]) -> dict[str, object]:
    return {
        **{_NUMBER + name: value for name, value in marks.items()},
        **{_NOTE + name: value for name, value in notes.items()},
    }


def _stored(database: sqlite3.Connection, shape: _Shape, name: str) -> object:
    """Return what is stored with a table, or None."""
    if shape.identity is None or not database.execute(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (_MARKS,)
    ).fetchone():
        return None
    found = database.execute(
        f"SELECT value FROM {_MARKS} WHERE identity = ? AND name = ?", (shape.identity, name)
    ).fetchone()
    return None if found is None else found[0]


def _values(name: str, kind: str, column: pa.ChunkedArray) -> list[Any]:
    """Return what is written for each value of a column of a batch."""
    try:
        values = column.to_pylist()
    except (ValueError, OverflowError, ArithmeticError) as error:
        raise invalid_request(
            f"column {name}", "has a value that Python does not have, such as a time after the year 9999",
            "replace it, or write it as a text",
        ) from error  # fmt: skip
    return [as_written(name, kind, value) for value in values]


def _fetched(
    database: sqlite3.Connection, statement: str, keys: Sequence[str] | None
) -> Iterator[list[Any]]:
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
        while found := cursor.fetchmany(1000):
            yield found


def _orders(database: sqlite3.Connection, shape: _Shape, keys: Sequence[str]) -> dict[str, Any]:
    """Return the order key of each of some keys that has a row."""
    statement = f"SELECT r.key, r.order_key FROM {shape.sql} AS r"
    return {key: order for found in _fetched(database, statement, keys) for key, order in found}
