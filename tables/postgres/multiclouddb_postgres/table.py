"""Defines the table that the sink writes: how it is made, merged and marked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from multiclouddb_api import ErrorCategory, ErrorDetail, ErrorReason, MulticloudDbError, invalid_request
from multiclouddb_api.validators import check_type
from multiclouddb_postgres.catalog import INSTANT, TEXT, Column, TableFacts, look, wrong
from multiclouddb_postgres.column_types import column_type, read_every_value
from multiclouddb_postgres.long_keys import (
    LONG_KEY,
    SKIPPED,
    LongKeys,
    are_long,
    digest_of,
    hashed,
    is_long,
    is_row_of,
    key_column,
    key_too_long,
    may_meet,
    names_of,
    one_hash,
    stored,
    told,
)
from multiclouddb_postgres.marks import Marks
from multiclouddb_postgres.server import DATA, LOG, Connection, where
from multiclouddb_postgres.values import (
    BATCH,
    MOST_NAME_BYTES,
    Documents,
    Refused,
    check_values,
    copied,
    declared,
    type_of,
)
from multiclouddb_tables.changes import LACKING
from multiclouddb_tables.contract import Table
from multiclouddb_tables.layout import (
    NO_ORDER,
    check_fixes,
    check_table,
    fixed_row,
    missing,
    next_count,
    own_names,
    read_rows,
    size_of,
    state_of,
    used,
)
from multiclouddb_tables.mark import Expected, FoundTable, TableMark, declared_names, emptied, refilled
from multiclouddb_tables.rules import DELETED_AT, DOCUMENT, STALE_SINCE, check_cases, check_stored, other_type

if TYPE_CHECKING:
    from multiclouddb_tables.column_values import ColumnType
    from multiclouddb_tables.contract import Fix, Own
    from multiclouddb_tables.conversion import Unheld

_WRITTEN: Final = "multiclouddb_written"
_USED: Final = (
    psycopg.errors.FeatureNotSupported,
    psycopg.errors.InvalidTableDefinition,
    psycopg.errors.UndefinedFunction,
)
"""What the server raises for a column that a view, a generated column, a constraint or an index uses."""
_ROWS: Final = 8192
_FIRST_ROWS: Final = 64


class PostgresTable(Table):
    """A table on an open connection; the docstrings of its base class say what its methods do.

    Each method is one transaction, or a part of the caller's. Statements with names of the user have their
    values inside: psycopg would take a % in a name for a placeholder.

    With `holds`, nobody can alter, rename or drop the table between its check and the end of the caller's
    transaction, or give it a trigger or a rule.
    """

    unheld: ClassVar[tuple[Unheld, ...]] = ("NUL",)

    def __init__(
        self,
        connection: Connection,
        name: str,
        *,
        create: bool,
        new_columns: Literal["add", "refuse"],
        documents: Documents,
        long_keys: LongKeys = "refuse",
        holds: bool = False,
    ) -> None:
        self.connection, self._name, self._holds = connection, name, holds
        self._long_keys = long_keys
        self._new_columns, self._documents = new_columns, documents
        self._table = identifier(name)
        self._where = where(connection, name)
        self.marks = Marks(self)
        """What the sink keeps about the table beside its rows."""
        self._found = self._look()
        if self._found is None and not create:
            raise missing(self._where)

    @property
    def name(self) -> str:
        """Server, database and name of the table."""
        return self._where

    @property
    def exists(self) -> bool:
        """True if the table exists."""
        return self._found is not None

    @property
    def hashes(self) -> bool:
        """True if the table keeps the hashes of keys that are too long for an index."""
        return LONG_KEY in self.known().columns

    def _look(self) -> TableFacts | None:
        return look(self.connection, self._table, holds=self._holds)

    def known(self) -> TableFacts:
        """Return what the catalog has about the table, which must be one of the sink."""
        if self._found is None:
            raise missing(self._where)
        self._found.check(self._where)
        return self._found

    def prepare(
        self, schema: pa.Schema, mark: TableMark | None = None, *, may_be_stale: bool = False
    ) -> None:
        """Make the table, or check it and add the columns that it lacks."""
        check_stored(schema)
        check_cases(schema.names)
        if LONG_KEY in schema.names:
            raise invalid_request(
                "batch", f"has a column {LONG_KEY}", "the sink writes this column; rename yours"
            )
        wanted = self._types(schema)
        with self.connection.transaction():
            if self._found is None:
                # Of two that create the table at the same time, the second waits for the first.
                self.connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (self._name,))
                columns: list[sql.Composable] = [declared(name, kind) for name, kind in wanted.items()]
                columns += [declared(DELETED_AT, INSTANT)]
                columns += [declared(LONG_KEY, "text")] if self._long_keys == "hash" else []
                columns += [sql.SQL("PRIMARY KEY (key)")]
                is_ours = self._create(columns)
                self._found = self._look()
                if is_ours:
                    self.marks.forget_dropped()
                if mark is not None and self.feed_mark() is None:
                    self.set_feed_mark(mark)
            known = self.known().columns
            if self._long_keys == "skip" and self.hashes:
                raise invalid_request(
                    "long_keys",
                    f'is "skip", but {self._where} has the hashes of long keys, whose rows would get old',
                    'pass long_keys="hash", or fill another table',
                )
            self._check_types(wanted, declared_names(mark))
            check_cases(wanted, known)
            new = {name: kind for name, kind in wanted.items() if name not in known}
            if new and self._new_columns == "refuse":
                raise invalid_request(
                    "batch",
                    f"has columns that {self._where} does not have: {', '.join(new)}",
                    "leave them out, or set new_columns='add'",
                    ErrorReason.WRONG_COLUMNS,
                )
            if may_be_stale and STALE_SINCE not in known:
                new[STALE_SINCE] = INSTANT
            if self._long_keys == "hash" and LONG_KEY not in known:
                new[LONG_KEY] = "text"
            for name, kind in new.items():
                add = sql.SQL("ALTER TABLE {} ADD COLUMN IF NOT EXISTS {}")
                self.connection.execute(add.format(self._table, declared(name, kind)))
            if new:
                self._found = self._look()
            if self._long_keys == "hash" and (lacking := self.number(SKIPPED)):
                LOG.warning(
                    'long_keys="hash": %s still lacks the rows of %s changes that were left out before; a '
                    "snapshot, or verify with repair, brings them",
                    self._where, f"{lacking:,}",
                )  # fmt: skip
                self.store({SKIPPED: 0}, {})

    def _create(self, columns: Sequence[sql.Composable]) -> bool:
        """Create the table; return False if another process has done so."""
        statement = sql.SQL("CREATE TABLE {} ({})").format(self._table, sql.SQL(", ").join(columns))
        try:
            with self.connection.transaction():
                self.connection.execute(statement)
        except psycopg.errors.DuplicateTable:
            return False
        return True

    def redeclare(self, schema: pa.Schema, names: Sequence[str], mark: TableMark) -> None:
        """Give columns the types of another declaration, in one transaction."""
        wanted = self._types(schema)
        with self.connection.transaction():
            self._lock()
            if self.marks.read_feed() != mark:
                raise refilled(self._where)
            known = self.known().columns
            check_cases(wanted, known)
            for name in names:
                column, there = sql.Identifier(name), known.get(name)
                if there is None and name in wanted:
                    statement = sql.SQL("ALTER TABLE {} ADD COLUMN {}").format(
                        self._table, declared(name, wanted[name])
                    )
                elif there is None or there.is_generated:
                    continue
                elif name in wanted and not there.fits(wanted[name]):
                    # The server would convert the values, so they are removed first.
                    statement = sql.SQL("ALTER TABLE {} ALTER COLUMN {} TYPE {} USING NULL").format(
                        self._table, column, sql.SQL(wanted[name])
                    )
                else:
                    statement = sql.SQL("UPDATE {0} SET {1} = NULL WHERE {1} IS NOT NULL").format(
                        self._table, column
                    )
                try:
                    self.connection.execute(statement)
                except _USED as error:
                    problem = (error.diag.message_primary or type(error).__name__).rstrip(".")
                    raise used(self._where, name, problem) from error
            self._found = self._look()

    def count(self) -> int:
        """Return the number of rows."""
        [(count,)] = self.connection.execute(
            sql.SQL("SELECT count(*) FROM {}").format(self._table)
        ).fetchall()
        return int(count)

    def _types(self, schema: pa.Schema) -> dict[str, str]:
        """Return the type that each column of a batch needs in the table."""
        return {field.name: type_of(field, self._documents) for field in schema if field.name != "type"}

    def _check_types(self, wanted: Mapping[str, str], of_mark: Sequence[str] = ()) -> None:
        """Refuse a column of a batch that the table has with another type, or makes itself."""
        known = self.known().columns
        for name, kind in wanted.items():
            if name in known and known[name].is_generated:
                raise invalid_request(
                    f"column {name}",
                    f"is in the batch, but {self._where} makes its values itself (GENERATED ALWAYS)",
                    "leave the column out, or give it another name",
                )
            if name in known and (foreign := known[name].changed_by) is not None:
                raise invalid_request(
                    f"column {name}",
                    f"is in the batch, and the foreign key {foreign} of {self._where} changes its values "
                    "when a row of another table changes",
                    "make it ON UPDATE NO ACTION and ON DELETE NO ACTION, or leave the column out",
                )
            if name in known and not known[name].fits(kind):
                there = known[name].type
                if name == DOCUMENT and there in ("json", "jsonb"):
                    problem = f"is {kind} in the batch and {there} in {self._where}"
                    way_out = f'pass documents="{there}", or give it another name'
                    raise invalid_request(f"column {name}", problem, way_out, ErrorReason.WRONG_COLUMNS)
                raise other_type(self._where, name, (kind, there), of_mark)

    def number(self, name: str) -> int | None:
        """Return a number that was stored for the table."""
        return self.marks.number(name)

    def feed_mark(self) -> TableMark | None:
        """Return the mark of the table; one that was dropped and made again has none."""
        return self.marks.feed()

    def set_feed_mark(self, mark: TableMark) -> None:
        """Store the mark of the table, unless another sink has stored that of its own feed meanwhile."""
        self.marks.set_feed(mark)

    def names(self, prefix: str) -> list[str]:
        """Return the names of the marks that begin with a text, without it."""
        return self.marks.names(prefix)

    def store(self, numbers: Mapping[str, int], notes: Mapping[str, str]) -> None:
        """Store numbers and texts for the table."""
        self.marks.store(numbers, notes)

    def is_empty(self) -> bool:
        """Return True if the table has no row."""
        query = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(self._table)
        [(found,)] = self.connection.execute(query).fetchall()
        return not found

    def outdate(self, floor: str, numbers: Mapping[str, int]) -> None:
        """Give rows from the floor on the lowest `order_key`."""
        with self.connection.transaction():
            self._lock()
            update = sql.SQL("UPDATE {} SET order_key = '' WHERE order_key >= {}").format(self._table, floor)
            self.connection.execute(update)
            self._check_none_left(sql.SQL("{} AS s WHERE order_key >= {}").format(self._table, floor))
            self.store(numbers, {})

    def bury(self, floor: str, numbers: Mapping[str, int]) -> None:
        """Make tombstones of rows below the floor."""
        gone = self._emptied()
        if STALE_SINCE in self.known().columns:
            gone.append(STALE_SINCE)
        with self.connection.transaction():
            self._lock()
            sets = [sql.SQL("{} = NULL").format(sql.Identifier(name)) for name in gone]
            update = sql.SQL(
                "UPDATE {table} SET {sets} order_key = {floor}, "
                "_deleted_at = coalesce(_deleted_at, now()) WHERE order_key < {floor}"
            ).format(
                table=self._table,
                sets=sql.SQL("").join(each + sql.SQL(", ") for each in sets),
                floor=floor,
            )
            self.connection.execute(update)
            self._check_none_left(sql.SQL("{} AS s WHERE order_key < {}").format(self._table, floor))
            self.store(numbers, {})

    def _emptied(self, written: Iterable[str] = ()) -> list[str]:
        """Return the columns that a tombstone leaves empty, beside those that are written anyway."""
        names = [
            column.name
            for column in self.known().columns.values()
            if not (column.not_null or column.is_generated) and column.name != LONG_KEY
        ]
        return emptied(self.marks.read_feed(), names, written)

    def _check_none_left(self, rows: sql.Composed) -> None:
        """Refuse a trigger or a rule that has prevented a row from being written."""
        if not self.known().may_drop_rows:
            return
        left = self.connection.execute(sql.SQL("SELECT s.key FROM {} LIMIT 1").format(rows)).fetchone()
        if left is not None:
            raise wrong(
                self._where,
                "has a BEFORE trigger or a rule that keeps a row from being written, for example that of the "
                f"key {digest_of(left[0])}",
                "drop it, or let the trigger return NEW with key and order_key as they are",
            )

    def _lock(self) -> None:
        """Let no other transaction write the table until this one ends, and look at it again."""
        # A row must not escape an update, and a trigger may be new.
        [(level,)] = self.connection.execute("SHOW transaction_isolation").fetchall()
        if level != "read committed":
            # The update would not see what another transaction has committed while this one waited.
            raise invalid_request(
                "dsn", f"is in a transaction of level {level}, and a snapshot begins or ends",
                "begin the transaction with READ COMMITTED",
            )  # fmt: skip
        self.connection.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(self._table))
        before, self._found = self.known().oid, self._look()
        self.check_still(before)

    def check_still(self, oid: int) -> None:
        """Refuse another table than the one of which it was decided that the batch may be merged."""
        self.found().check_still(FoundTable(None, str(oid)), self._where)

    def found(self, since: FoundTable | None = None) -> FoundTable:
        """Return the object id and the mark of the table, which does not go back on its own."""
        del since
        return FoundTable(self.feed_mark(), str(self.known().oid))

    def merge(self, rows: pa.Table, notes: Mapping[str, str], *, is_last: bool = True) -> None:
        """Merge the last changes of some keys."""
        del is_last
        rows, skipped = self._fitting(rows)
        # Somebody may have dropped a column since `prepare`, or another sink may have added one of another
        # type, into which the server would convert what is copied.
        wanted, known = self._types(rows.schema), self.known().columns
        if lost := [name for name in wanted if name not in known]:
            raise MulticloudDbError(
                f"table: {self._where} lost the column {lost[0]} during the merge; try again",
                ErrorDetail(ErrorCategory.CONFLICT, retryable=True, reason=ErrorReason.OTHER_WRITER),
            )
        self._check_types(wanted)
        check_values(rows, known)
        with self.connection.transaction():
            if rows.num_rows:
                self.upsert(rows)
            if skipped.num_rows:
                self.marks.count_skipped(skipped.num_rows)
                LOG.warning("%s", told(skipped.num_rows, names_of(skipped), self._where))
            self.store({}, notes)

    def _fitting(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return rows whose keys fit into the index, and those that are left out."""
        none = rows.slice(0, 0)
        if self._long_keys == "hash":
            return hashed(rows), none
        are_too_long = are_long(rows)
        if not pc.any(are_too_long).as_py():
            return rows, none
        if self._long_keys == "skip":
            return rows.filter(pc.invert(are_too_long)), rows.filter(are_too_long)
        raise key_too_long(rows["key"][pc.index(are_too_long, True).as_py()].as_py(), hashes=self.hashes)

    def upsert(self, rows: pa.Table) -> None:
        """Copy rows to the server, and take over those that are newer, in a transaction of the caller."""
        known = self.known().columns
        names = [name for name in rows.column_names if name != "type"]
        staged = [declared(name, known[name].type, required=False) for name in names]
        staged.append(declared("type", "text"))
        self.connection.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DROP").format(
                sql.Identifier("pg_temp", BATCH), sql.SQL(", ").join(staged)
            )
        )
        try:
            copied(self.connection, rows)
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] not in DATA:
                raise
            # The server names the line of the file, but in the language of its settings.
            raise Refused(rows, staged, error) from None
        if self.known().may_rewrite_rows:
            self._upsert_compared(names, known)
        else:
            self.connection.execute(self._upsert(names, known))
        if LONG_KEY in names and may_meet(rows):
            self._check_hashes()
        older = "{} AS s LEFT JOIN {} AS t ON t.key = s.key WHERE t.key IS NULL OR t.order_key < s.order_key"
        self._check_none_left(sql.SQL(older).format(sql.Identifier("pg_temp", BATCH), self._table))
        self.connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier("pg_temp", BATCH)))

    def _check_hashes(self) -> None:
        """Refuse a batch with a key whose hash is that of another key in the table."""
        # The upsert leaves such a row as it is, also if another transaction has just made it.
        batch = sql.Identifier("pg_temp", BATCH)
        met = self.connection.execute(
            sql.SQL(
                "SELECT s.key FROM {} AS s JOIN {} AS t ON t.key = s.key "
                "WHERE t.{long} IS DISTINCT FROM s.{long} LIMIT 1"
            ).format(batch, self._table, long=sql.Identifier(LONG_KEY))
        ).fetchone()
        if met is not None:
            raise one_hash(met[0])

    def _upsert_compared(self, names: Sequence[str], known: Mapping[str, Column]) -> None:
        """Take over the newer rows, and refuse a trigger that has changed or deleted one of them."""
        written, batch = (sql.Identifier("pg_temp", name) for name in (_WRITTEN, BATCH))
        self.connection.execute(
            sql.SQL('CREATE TEMPORARY TABLE {} (key text COLLATE "C") ON COMMIT DROP').format(written)
        )
        statement = sql.SQL("WITH w AS ({} RETURNING t.key) INSERT INTO {} SELECT key FROM w")
        try:
            self.connection.execute(statement.format(self._upsert(names, known), written))
        except psycopg.errors.FeatureNotSupported:
            # A transaction of another level does not see a rule that is new.
            raise wrong(self._where, "has a rule that keeps a row from being written", "drop it") from None
        # A type such as json has no equality, but the same value has the same text. A row whose document is
        # not known keeps the values that it had.
        same = [
            sql.SQL("t.{0}::text IS NOT DISTINCT FROM s.{0}::text").format(sql.Identifier(name))
            for name in names
            if name not in TEXT
        ]
        kept: sql.Composable = sql.SQL("FALSE")
        if STALE_SINCE in known:
            kept = sql.SQL("s.type = {}").format(LACKING)
        query = sql.SQL(
            "SELECT s.key FROM {} AS w JOIN {} AS s ON s.key = w.key LEFT JOIN {} AS t ON t.key = w.key "
            "WHERE t.key IS NULL OR t.order_key > s.order_key OR (t.order_key = s.order_key AND NOT ("
            "(t._deleted_at IS NOT NULL) = (s.type = 'DELETE') AND ({} OR ({})))) LIMIT 1"
        ).format(written, batch, self._table, kept, sql.SQL(" AND ").join(same) if same else sql.SQL("TRUE"))
        changed = self.connection.execute(query).fetchone()
        if changed is not None:
            raise wrong(
                self._where,
                "has a trigger that changes or deletes rows which the sink has written, for example that of "
                f"the key {digest_of(changed[0])}",
                "drop it, or let it write other tables and other columns only",
            )
        self.connection.execute(sql.SQL("DROP TABLE {}").format(written))

    def _same_key(self) -> sql.Composed:
        """Return what makes two rows those of one key: their texts.

        Without a collation and an operator class, a row would also meet another one in an index of the user
        that takes two texts for one, such as one of a collation that ignores case. Such an index refuses the
        second row now.
        """
        collation = sql.Identifier("pg_catalog", str(self.known().columns["key"].collation))
        return sql.SQL("(key COLLATE {} pg_catalog.text_ops)").format(collation)

    def _upsert(self, names: Sequence[str], known: Mapping[str, Column]) -> sql.Composed:
        values: dict[str, sql.Composable] = {
            name: sql.SQL("s.{}").format(sql.Identifier(name)) for name in names
        }
        values[DELETED_AT] = sql.SQL("CASE WHEN s.type = 'DELETE' THEN now() END")
        sets: dict[str, sql.Composable] = {
            name: sql.SQL("excluded.{}").format(sql.Identifier(name)) for name in (*names, DELETED_AT)
        }
        if STALE_SINCE in known:
            values[STALE_SINCE] = sql.SQL("CASE WHEN s.type = {} THEN now() END").format(LACKING)
            for name in set(names) - set(TEXT):
                kept = "CASE WHEN excluded._stale_since IS NULL THEN excluded.{0} ELSE t.{0} END"
                sets[name] = sql.SQL(kept).format(sql.Identifier(name))
            sets[STALE_SINCE] = sql.SQL(
                "CASE WHEN excluded._stale_since IS NOT NULL "
                "THEN coalesce(t._stale_since, excluded._stale_since) END"
            )
        # Without a mark, nobody knows whether a column that the batch lacks is one of the sink's.
        gone = "CASE WHEN excluded._deleted_at IS NULL THEN t.{0} END"
        if self.marks.read_feed() is not None:
            gone = "NULL"
            if STALE_SINCE in known:
                gone = "CASE WHEN excluded._stale_since IS NOT NULL THEN t.{0} END"
        for name in self._emptied(names):
            sets[name] = sql.SQL(gone).format(sql.Identifier(name))
        del sets["key"]
        same: sql.Composable = sql.SQL("")
        if LONG_KEY in names:
            del sets[LONG_KEY]
            same = sql.SQL(" AND t.{0} IS NOT DISTINCT FROM excluded.{0}").format(sql.Identifier(LONG_KEY))
        # The join leaves out what is not newer, which costs half of a conflict. The condition is repeated,
        # because another transaction may commit in between. All writers lock rows in the order of their keys.
        return sql.SQL(
            "INSERT INTO {table} AS t ({columns}) SELECT {values} FROM {batch} AS s "
            "LEFT JOIN {table} AS o ON o.key = s.key WHERE o.key IS NULL OR s.order_key > o.order_key "
            "ORDER BY s.key ON CONFLICT {same_key} DO UPDATE SET {sets} "
            "WHERE excluded.order_key > t.order_key{same}"
        ).format(
            table=self._table,
            batch=sql.Identifier("pg_temp", BATCH),
            same_key=self._same_key(),
            columns=sql.SQL(", ").join(map(sql.Identifier, values)),
            values=sql.SQL(", ").join(values.values()),
            same=same,
            sets=sql.SQL(", ").join(
                sql.SQL("{} = {}").format(sql.Identifier(name), value) for name, value in sets.items()
            ),
        )

    # What `verify` reads and repairs

    def hold_for_reading(self) -> None:
        """Wait for whoever writes the table anew, and let nobody begin that before the transaction ends.

        To a version that was looked at before the end of such a command, the table is empty, without an
        error: ALTER TABLE with a new type, and from PostgreSQL 19 on REPACK (CONCURRENTLY). So the cursor
        that reads the rows needs a version of its own (READ COMMITTED), which it takes after this wait.
        """
        self.connection.execute(sql.SQL("SELECT FROM {} LIMIT 0").format(self._table))

    def rows(self, keys: Sequence[str] | None = None, *, own: Own = False) -> Iterator[pa.RecordBatch]:
        """Read the table in the transaction of the caller; see `Target.rows`.

        Args:
            keys: The keys to read; None for all rows.
            own: The table's own columns to read instead of `new_item_state`.
        """
        known = self.known().columns
        check_table(self._where, [*known], own=bool(own))
        names = [DOCUMENT]
        if own:
            names = self._own_names() if isinstance(own, bool) else sorted(own)
        if keys is not None and not keys:
            return
        key = key_column() if self.hashes else sql.SQL("key")
        columns = [
            sql.SQL("{}::text" if known[name].held in ("json", "jsonb", "enum") else "{}").format(
                key if name == "key" else sql.Identifier(name)
            )
            for name in names
        ]
        only: sql.Composable = sql.SQL("")
        if keys is not None:
            only = sql.SQL(" WHERE ") + is_row_of(keys, hashes=self.hashes)
        query = sql.SQL(
            "SELECT {key}, coalesce(order_key, {none}), _deleted_at IS NOT NULL, {columns} FROM {table}{only}"
        ).format(
            key=key,
            none=sql.Literal(NO_ORDER),
            columns=sql.SQL(", ").join(columns) if columns else sql.SQL("NULL"),
            table=self._table,
            only=only,
        )
        types = {name: column_type(known[name].held) for name in names} if own else {}
        with self.connection.cursor("multiclouddb_rows") as cursor:
            read_every_value(cursor)
            cursor.execute(query)
            count = _FIRST_ROWS
            while found := cursor.fetchmany(count):
                count = next_count(count, _ROWS, map(size_of, found))
                keys_of, orders, deleted, *rest = zip(*found, strict=True)
                states: Any = rest[0]
                if own:
                    # psycopg returns a number of type real with fewer digits than the column has.
                    states = [state_of(dict(zip(types, row[3:], strict=False)), types) for row in found]
                yield read_rows(keys_of, orders, states, deleted)

    def _own_names(self) -> list[str]:
        """Return the columns that the sink does not write itself."""
        names = [each.name for each in self.known().columns.values() if not each.is_generated]
        return [name for name in own_names(names) if name != LONG_KEY]

    def columns(self) -> Mapping[str, ColumnType]:
        """Return the columns that a document may be parsed into; see `Target.columns`."""
        known = self.known().columns
        return {name: column_type(known[name].held) for name in self._own_names()}

    def complete(self, expected: Expected) -> None:
        """Store the mark without its time; see `Target.complete`."""
        expected.check(self.found(), self._where)
        if (mark := expected.completed(self.feed_mark())) is not None:
            self.set_feed_mark(mark)

    def fix(self, fixes: Sequence[Fix], expected: Expected) -> int:
        """Write rows in the transaction of the caller, which `holds` the table; see `Target.fix`."""
        expected.check(self.found(), self._where)
        known = self.known().columns
        check_table(self._where, [*known], own=any(fix.columns is not None for fix in fixes))
        check_fixes(self._where, self._own_names(), fixes, self.marks.read_feed())
        hashes, gone = self.hashes, self._emptied()
        written, removals = 0, [fix for fix in fixes if fix.removes]
        beside = {each.beside[0]: each.beside[1] for each in removals if each.beside is not None}
        locked = dict[str, str | None]()
        # Like all writers, this one locks rows in the order of their keys.
        writes = [(fix.key, fix) for fix in fixes if not fix.removes]
        locks = dict.fromkeys((*(fix.key for fix in removals), *beside))
        kept: Callable[[str], str] = stored if hashes else str
        for key, fix in sorted([*writes, *locks.items()], key=lambda each: kept(each[0]).encode()):
            if fix is None:
                found = self.connection.execute(
                    sql.SQL("SELECT coalesce(order_key, {}) FROM {} WHERE {} FOR UPDATE").format(
                        NO_ORDER, self._table, is_row_of([key], hashes=hashes)
                    )
                ).fetchone()
                locked[key] = None if found is None else found[0]
                continue
            row = fixed_row(fix, gone) | {"key": kept(fix.key)}
            row[LONG_KEY] = fix.key if is_long(fix.key) else None
            names = [name for name in known if name in row]
            values = [sql.Literal(row[name]) for name in names]
            if fix.seen:
                statement = sql.SQL("UPDATE {} SET {} WHERE {} AND coalesce(order_key, {}) = {}").format(
                    self._table,
                    sql.SQL(", ").join(
                        sql.SQL("{} = {}").format(sql.Identifier(name), value)
                        for name, value in zip(names, values, strict=True)
                    ),
                    is_row_of([fix.key], hashes=hashes),
                    NO_ORDER,
                    fix.seen[0],
                )
            elif fix.text is not None:
                if is_long(fix.key) and not hashes:
                    raise key_too_long(fix.key)
                statement = sql.SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT {} DO NOTHING").format(
                    self._table,
                    sql.SQL(", ").join(map(sql.Identifier, names)),
                    sql.SQL(", ").join(values),
                    self._same_key(),
                )
            else:
                continue
            written += self.connection.execute(statement).rowcount
        for fix in removals:
            is_there = fix.beside is None or locked[fix.beside[0]] == fix.beside[1]
            if is_there and locked[fix.key] in fix.seen:
                statement = sql.SQL("DELETE FROM {} WHERE {}").format(
                    self._table, is_row_of([fix.key], hashes=hashes)
                )
                written += self.connection.execute(statement).rowcount
        return written


def identifier(name: object) -> sql.Identifier:
    """Return the name of a table, with or without a schema, as SQL. It is taken as it is written."""
    check_type("table", name, str)
    parts = str(name).split(".")
    if len(parts) > 2 or not all(0 < len(part.encode()) <= MOST_NAME_BYTES for part in parts):
        raise invalid_request(
            "table", f"{str(name)[:200]!r} is not the name of a table", 'pass "table" or "schema.table"'
        )
    if "\0" in str(name):
        raise invalid_request("table", "contains a NUL", 'pass "table" or "schema.table"')
    return sql.Identifier(*parts)
