"""Defines a table that Spark itself merges, in whatever format.

No commit contains rows and numbers together, so each step can be repeated after a kill:

| killed after | what the next run finds | what it does |
|---|---|---|
| the `UPDATE` that begins a snapshot | no number | the same `UPDATE`: no row of the snapshot is merged yet |
| the number of the beginning | the number | merges |
| a `MERGE` | rows of this batch | the same `MERGE`, which changes nothing, because no `order_key` is higher |
| the `UPDATE` that ends a snapshot | the number of the beginning | the same `UPDATE`, which finds no row |
| the number of the end | the number | nothing |
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
import pyarrow as pa
from pyspark.errors import AnalysisException, UnsupportedOperationException
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType, TimestampType

from multiclouddb_api import invalid_request
from multiclouddb_api.validators import check_type
from multiclouddb_tables.changes import LACKING
from multiclouddb_tables.column_values import SINKS
from multiclouddb_tables.contract import Own, Table
from multiclouddb_tables.layout import (
    NO_ORDER,
    check_columns,
    check_fixes,
    fixed_row,
    grouped,
    missing,
    own_names,
    read_rows,
    state_of,
)
from multiclouddb_tables.layout import check_table as check_table_columns
from multiclouddb_tables.mark import (
    Expected,
    FeedSource,
    FoundTable,
    TableMark,
    declared_names,
    emptied,
    refilled,
)
from multiclouddb_tables.merging import FILLED
from multiclouddb_tables.rules import (
    DELETED_AT,
    DOCUMENT,
    STALE_SINCE,
    check_cases,
    check_new_columns,
    empty_partition,
    lacking_columns,
)
from multiclouddb_tables.sql import in_backticks
from pyspark_multiclouddb.functions import check_functions
from pyspark_multiclouddb.named_table import NamedTable, check_table, literal
from pyspark_multiclouddb.pieces import column
from pyspark_multiclouddb.source_columns import arrow_type, is_comparable, type_text
from pyspark_multiclouddb.table_columns import (
    TEXT,
    check_collation,
    check_made,
    check_names,
    check_types,
    declared,
    null_of,
    partitions,
    types_of,
)
from pyspark_multiclouddb.table_properties import TableProperties, marking
from pyspark_multiclouddb.table_times import with_micros, with_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructField

    from multiclouddb_tables.contract import Fix

__all__ = ["WAY_OUT", "TableTarget", "drop_table_tombstones"]

WAY_OUT: Final = "let a merge create it with create_using"
"""What to do if there is no table."""
_ROWS: Final = 8192


def drop_table_tombstones(spark: SparkSession, table: str, older_than: timedelta) -> int:
    """Delete old tombstones of a table of Spark, and return their number."""
    check_functions(spark)
    target = TableTarget(spark, table)
    if DELETED_AT not in target._known().names:
        return 0
    try:
        before = datetime.now(UTC) - older_than
    except OverflowError:
        return 0  # no tombstone is from before the year 1
    old = f"{DELETED_AT} < timestamp_micros({int(before.timestamp() * 1_000_000)})"
    [(count,)] = spark.sql(f"SELECT count(*) FROM {table} WHERE {old}").collect()
    if count:
        target._table.commit(f"DELETE FROM {table} WHERE {old}")
        if target.number(FILLED) and target.is_empty():
            target.store({FILLED: 0}, {})
    return int(count)


class TableTarget(Table):
    """A table that `merge_into_table` writes.

    For `verify`, its rows pass through the driver, a few thousand at a time.

    Args:
        spark: The session that knows the table.
        table: The name of the table in Spark, such as `lake.shop.orders`.
        create_using: For a sink: the format of a table that the sink creates.
        new_columns: For a sink: whether columns that the table does not have are added.

    Raises:
        MulticloudDbError: At the first read, `NOT_FOUND` if there is no table, and `INVALID_REQUEST` if it
            does not have the columns of the sink.
    """

    def __init__(
        self,
        spark: SparkSession,
        table: str,
        *,
        create_using: str | None = None,
        new_columns: Literal["add", "refuse"] = "refuse",
    ) -> None:
        check_table(table)
        check_type("create_using", create_using, str, type(None))
        check_new_columns(new_columns)
        self._spark, self._table = spark, NamedTable(spark, table)
        self._properties = TableProperties(self._table)
        self._create_using, self._new_columns = create_using, new_columns
        self._seen: FoundTable | None = None
        self._schema: StructType | None = None
        self._partitions: frozenset[str] | None = None
        self._is_looked_at = False

    @property
    def name(self) -> str:
        """The name of the table."""
        return f"table:{self.where}"

    def _now(self, *, own: bool) -> TableTarget:
        now = TableTarget(self._spark, self.where)
        check_table_columns(self.where, now._known().names, own=own)
        return now

    def rows(self, keys: Sequence[str] | None = None, *, own: Own = False) -> Iterator[pa.RecordBatch]:
        """Read one version of the table; see `Target.rows`.

        Args:
            keys: The keys to read; None for all rows.
            own: The table's own columns to read instead of `new_item_state`.
        """
        check_functions(self._spark)
        schema = self._now(own=bool(own))._known()
        if keys is not None and not keys:
            return
        frame = self._frame(keys)
        names = [DOCUMENT]
        if own:
            names = own_names(schema.names) if own is True else sorted(own)
        kinds = self.columns() if own else {}
        read = {name: schema[name].dataType for name in names}

        def state(row: Row) -> str:
            values = row.asDict(recursive=True)
            return state_of({name: with_times(values[name], kind) for name, kind in read.items()}, kinds)

        found = frame.select(
            "key",
            F.expr(f"coalesce(order_key, '{NO_ORDER}')"),
            F.col(DELETED_AT).isNotNull(),
            *(with_micros(column(name), kind).alias(name) for name, kind in read.items()),
        ).toLocalIterator()
        for rows in grouped(found, _ROWS):
            states = [state(row) if own else row[3] for row in rows]
            keys_of, orders, deleted = ([row[at] for row in rows] for at in range(3))
            yield read_rows(keys_of, orders, states, deleted)

    def _frame(self, keys: Sequence[str] | None) -> DataFrame:
        frame = self._table.frame
        if keys is None:
            return frame
        wanted = self._spark.createDataFrame([(key,) for key in keys], "key string")
        return frame.join(wanted, "key", "left_semi")

    def _orders(self, keys: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        if keys:
            rows = self._frame(keys).selectExpr("key", f"coalesce(order_key, '{NO_ORDER}')")
            for key, order in rows.collect():
                found.setdefault(key, []).append(order)
        return {key: sorted(orders) for key, orders in found.items()}

    def columns(self) -> Mapping[str, pa.DataType | None]:
        """Return the columns that a document may be parsed into; see `Target.columns`."""
        schema = self._now(own=True)._known()
        return {
            field.name: arrow_type(field.dataType) if is_comparable(field.dataType) else None
            for field in schema
            if field.name not in SINKS
        }

    def found(self, since: FoundTable | None = None) -> FoundTable:
        """Return the mark of the sink, and the id that the sink has given the table; see `Target.found`.

        Args:
            since: What was found before. Nothing in the properties says that a table went back.
        """
        del since
        return self._now(own=True)._properties.found()

    def complete(self, expected: Expected) -> None:
        """Set the table's property; see `Target.complete`.

        Args:
            expected: The table, as it was before the comparison.
        """
        now = self._now(own=True)
        expected.check(now._properties.found(), self.name)
        if (mark := expected.completed(now.feed_mark())) is not None:
            now.set_feed_mark(mark)

    def fix(self, fixes: Sequence[Fix], expected: Expected) -> int:
        """Write rows in one `MERGE`, each only if its key still has the row that was seen.

        No statement of Spark can both look at a table's properties and write its rows, so the table is looked
        at directly before each `MERGE`. If it is replaced in this moment, the new table gets only rows whose
        `order_key` it has as well. A table that went back to an earlier version is not noticed.

        Args:
            fixes: At most one for each key.
            expected: The table that was compared.

        Raises:
            MulticloudDbError: `CONFLICT` if other writers prevented ten attempts; `INVALID_REQUEST` if the
                table has columns of its own and no `transform` was given, or if it is not the expected one.
        """
        check_functions(self._spark)
        now = self._now(own=any(fix.columns is not None for fix in fixes))
        schema, mark = now._known(), now.feed_mark()
        check_fixes(self.where, schema.names, fixes, mark)
        if not fixes:
            return 0
        given = {name for fix in fixes for name in fix.columns or ()}
        for name in now._not_empty(each for each in schema if each.name in given):
            for fix in fixes:
                value = (fix.columns or {}).get(name)
                if isinstance(value, str | bytes) and not value:
                    raise empty_partition(self.where, name, fix.key)
        schema = type(schema)([each for each in schema if each.name in SINKS or each.name in given])
        there = self._orders([fix.key for fix in fixes if len(fix.seen) > 1 or fix.removes])
        rows = []
        for fix in fixes:
            own_values = {
                # Spark makes a map of a dictionary only.
                name: dict(value)
                if value is not None and isinstance(schema[name].dataType, MapType)
                else value
                for name, value in (fix.columns or {}).items()
            }
            row = fixed_row(attrs.evolve(fix, columns=own_values), ())
            cells, is_several = [row.get(name) for name in schema.names], len(fix.seen) > 1
            if (is_several or fix.removes) and sorted(fix.seen) != there.get(fix.key):
                continue
            beside = fix.beside or (None, None)
            rows.append((*cells, fix.key, list(fix.seen), is_several or fix.removes, *beside))
            if is_several and not fix.removes:
                # A key with several rows gets one of them back in the same commit.
                rows.append((*cells, None, [], False, None, None))
        fields = type(schema)([*schema.fields]).add("_match", "string")
        fields = fields.add("_seen", ArrayType(StringType())).add("_drop", "boolean")
        source = self._spark.createDataFrame(rows, fields.add("_beside", "string").add("_order", "string"))
        view = f"multiclouddb_fixes_{uuid.uuid4().hex}"
        source.createOrReplaceTempView(view)
        # What has to be in the table beside a row that is removed is looked for in the same statement.
        holds = (
            f"(SELECT s.* FROM {view} s LEFT JOIN {self.where} b ON b.key = s._beside "
            "WHERE s._beside IS NULL OR b.key IS NOT NULL "
            f"AND coalesce(b.order_key, '{NO_ORDER}') = s._order)"
        )
        names = [in_backticks(name) for name in schema.names]
        sets = ", ".join([*(f"t.{name} = s.{name}" for name in names), *now._gone(schema.names)])
        values = ", ".join(f"s.{name}" for name in names)
        is_seen = f"array_contains(s._seen, coalesce(t.order_key, '{NO_ORDER}'))"
        is_new = f"s._match IS NOT NULL AND cardinality(s._seen) = 0 AND s.{DELETED_AT} IS NULL"
        try:
            [(count,)] = self._spark.sql(
                f"SELECT count(DISTINCT s.key) FROM {holds} s LEFT JOIN {self.where} t ON t.key = s._match "
                f"WHERE (t.key IS NULL AND {is_new}) OR {is_seen}"
            ).collect()
            now._table.commit(
                f"MERGE INTO {self.where} AS t USING {holds} AS s ON t.key = s._match "
                f"WHEN MATCHED AND s._drop AND {is_seen} THEN DELETE "
                f"WHEN MATCHED AND {is_seen} THEN UPDATE SET {sets} "
                f"WHEN NOT MATCHED AND (s._match IS NULL OR {is_new}) "
                f"THEN INSERT ({', '.join(names)}) VALUES ({values})",
                lambda: expected.check(now._properties.found(anew=True), self.name),
            )
        finally:
            self._spark.catalog.dropTempView(view)
        return int(count)

    # What a sink does: it makes one object for each batch, which looks at the table once.

    @property
    def where(self) -> str:
        """The name of the table."""
        return self._table.name

    @property
    def exists(self) -> bool:
        """True if the table exists."""
        if not self._is_looked_at:
            self._is_looked_at, self._schema = True, self._look()
        return self._schema is not None

    def _look(self) -> StructType | None:
        """Return the columns that the table has now, and forget its properties; None if there is no table."""
        refresh = self._properties.are_kept
        self._properties.forget()
        return self._table.look(refresh=refresh)

    def _known(self) -> StructType:
        if not self.exists:
            raise missing(self.where, WAY_OUT)
        assert self._schema is not None
        check_columns(self.where, self._schema.names, TEXT)
        for name in TEXT:
            check_collation(self.where, self._schema[name])
        return self._schema

    def prepare(self, schema: Any, mark: TableMark | None = None, *, may_be_stale: bool = False) -> None:
        """Make the table, or check it and add the columns that it lacks.

        Args:
            schema: See `Table.prepare`.
            mark: See `Table.prepare`.
            may_be_stale: See `Table.prepare`.
        """
        for name in (DELETED_AT, STALE_SINCE):
            if name in schema.names:
                problem = f"has a column {name}"
                raise invalid_request("batch", problem, "the sink writes this column; rename yours")
        wanted = types_of(schema)
        for name in TEXT:
            if wanted[name] != "string":
                raise invalid_request(
                    f"column {name}", f"is {wanted[name]}", "pass the column of the data source"
                )
        check_cases(wanted)
        check_names(self._spark, wanted)
        check_made(schema, self._known().names if self.exists else ())
        wanted[DELETED_AT] = type_text(TimestampType())
        if not self.exists:
            statement = (
                f"CREATE TABLE IF NOT EXISTS {self.where} ({declared(wanted)}) USING {self._create_using}"
            )
            if mark is not None and self.keeps_marks:
                statement += f" {marking(mark)}"
            self._table.commit(statement)
            self._schema = self._look()
        check_types(self.where, self._known(), wanted)
        known = types_of(self._known())
        lacking = lacking_columns(self.where, wanted, known, self._new_columns, declared_names(mark))
        new = {name: wanted[name] for name in lacking}
        if may_be_stale and STALE_SINCE not in known:
            new[STALE_SINCE] = type_text(TimestampType())
        if new:
            self._table.commit(f"ALTER TABLE {self.where} ADD COLUMNS ({declared(new)})")
            self._schema = self._look()

    def redeclare(self, schema: pa.Schema, names: Sequence[str], mark: TableMark) -> None:
        """Give columns the types of another declaration, in several commits that can be repeated.

        Args:
            schema: See `Table.redeclare`.
            names: See `Table.redeclare`.
            mark: See `Table.redeclare`.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the format of the table cannot drop a column.
        """
        wanted, known = types_of(schema), types_of(self._known())
        check_cases(wanted, known)
        check_names(self._spark, wanted)
        if self._properties.found(anew=True).mark != mark and self.keeps_marks:
            raise refilled(self.where)
        others = [name for name in names if name in wanted and known.get(name, wanted[name]) != wanted[name]]
        if others:
            try:
                dropped = ", ".join(map(in_backticks, others))
                self._table.commit(f"ALTER TABLE {self.where} DROP COLUMNS ({dropped})", self._check_still)
            except (AnalysisException, UnsupportedOperationException) as error:
                # The first statement, so the table is as it was.
                raise invalid_request(
                    f"column {others[0]}",
                    f"cannot get another type in {self.where}, whose format does not drop a column "
                    f"({str(error).partition(chr(10))[0][:200]})",
                    "on Delta, set the table property 'delta.columnMapping.mode' to 'name'; or fill a new "
                    "table with the new declaration, from a snapshot",
                ) from error
        new = {
            name: wanted[name] for name in names if name in wanted and (name not in known or name in others)
        }
        if new:
            self._table.commit(f"ALTER TABLE {self.where} ADD COLUMNS ({declared(new)})", self._check_still)
        if there := [name for name in names if name in known and name not in others]:
            sets = ", ".join(f"{in_backticks(name)} = {null_of(name)}" for name in there)
            self._table.commit(f"UPDATE {self.where} SET {sets}", self._check_still)
        self._schema = self._look()

    def count(self) -> int:
        """Return the number of rows."""
        return int(self._table.frame.count())

    def number(self, name: str) -> int | None:
        """Return a number from the table's properties.

        Args:
            name: See `Table.number`.
        """
        text = self._properties.text(name)
        return None if text is None else int(text)

    @property
    def keeps_marks(self) -> bool:
        """False on Sail, whose catalog stores no table properties."""
        return self._properties.are_kept

    def feed_mark(self) -> TableMark | None:
        """Return the mark among the properties of the table; from now on, no merge accepts another one."""
        self._seen = self._properties.found()
        return self._seen.mark

    def set_feed_mark(self, mark: TableMark) -> None:
        """Set the property; who may not alter the table is told which statement somebody else has to run.

        Args:
            mark: See `Table.set_feed_mark`.
        """
        if self.keeps_marks:
            self._seen = self._properties.store_mark(mark, partial(self._check_still, mark.source))

    def store(self, numbers: Mapping[str, int], notes: Mapping[str, str]) -> None:
        """Set properties of the table.

        Args:
            numbers: See `Table.store`.
            notes: See `Table.store`.
        """
        texts = {name: str(value) for name, value in [*numbers.items(), *notes.items()]}
        if texts:
            self._properties.store(texts, self._check_still)

    def is_empty(self) -> bool:
        """Return True if the table has no row."""
        return self._spark.sql(f"SELECT 1 FROM {self.where} LIMIT 1").isEmpty()

    def outdate(self, floor: str, numbers: Mapping[str, int]) -> None:
        """Give rows from the floor on the lowest `order_key`; the numbers follow in a commit of their own.

        Args:
            floor: See `Table.outdate`.
            numbers: See `Table.outdate`.
        """
        del numbers
        self._table.commit(f"UPDATE {self.where} SET order_key = '' WHERE order_key >= {literal(floor)}")

    def bury(self, floor: str, numbers: Mapping[str, int]) -> None:
        """Make tombstones of rows below the floor; the numbers follow in a commit of their own.

        Args:
            floor: See `Table.bury`.
            numbers: See `Table.bury`.
        """
        del numbers
        gone = [*self._emptied(), *({STALE_SINCE} & {*self._known().names})]
        sets = [f"{in_backticks(name)} = {null_of(name)}" for name in gone]
        sets += [
            f"order_key = {literal(floor)}",
            f"{DELETED_AT} = coalesce({DELETED_AT}, now())",
        ]
        self._table.commit(f"UPDATE {self.where} SET {', '.join(sets)} WHERE order_key < {literal(floor)}")

    def _emptied(self, written: Iterable[str] = ()) -> list[str]:
        """Return the columns that a tombstone leaves empty, beside those that are written anyway."""
        names = [field.name for field in self._known() if field.nullable]
        return emptied(None if self._seen is None else self._seen.mark, names, written)

    def _lacked(self, written: Iterable[str]) -> list[str]:
        """Return what a merge writes into the sink's columns that the batch lacks: null."""
        if self._seen is None or self._seen.mark is None:
            return self._gone(written)
        return [
            f"t.{in_backticks(name)} = CASE WHEN false THEN t.{in_backticks(name)} END"
            for name in self._emptied(written)
        ]

    def _gone(self, written: Iterable[str]) -> list[str]:
        """Return what a repair writes into columns that it lacks: nothing, but null in a tombstone."""
        names = map(in_backticks, self._emptied(written))
        return [f"t.{name} = CASE WHEN s.{DELETED_AT} IS NULL THEN t.{name} END" for name in names]

    def _not_empty(self, fields: Iterable[StructField]) -> list[str]:
        """Return which of some columns may have no empty text, because it would become null in silence."""
        names = [field.name for field in fields if isinstance(field.dataType, StringType | BinaryType)]
        names = [name for name in names if name not in SINKS]
        if names and self._partitions is None:
            described = self._spark.sql(f"DESCRIBE TABLE EXTENDED {self.where}").collect()
            self._partitions = partitions(described)
        found = self._partitions or ()
        return [name for name in names if name in found or in_backticks(name) in found]

    def _check_still(self, source: FeedSource | None = None) -> None:
        """Refuse another table than the one that was looked at, as near to the statement as possible."""
        if self._seen is not None:
            self._properties.found(anew=True).check_still(self._seen, self.where, source)

    def merge(self, rows: DataFrame, notes: Mapping[str, str], *, is_last: bool) -> None:
        """Merge the last changes of some keys.

        Args:
            rows: See `Table.merge`.
            notes: See `Table.merge`.
            is_last: See `Table.merge`.
        """
        del notes, is_last
        for name in self._not_empty(field for field in rows.schema if field.name != "type"):
            is_empty = F.length(column(name)) == 0
            if found := rows.where(is_empty).select("key").head(1):
                raise empty_partition(self.where, name, found[0][0])
        known = self._known().names
        deleted = F.expr("CASE WHEN type = 'DELETE' THEN now() END")
        source = rows.withColumn(DELETED_AT, deleted)
        if may_be_stale := STALE_SINCE in known:
            source = source.withColumn(STALE_SINCE, F.expr(f"CASE WHEN type = '{LACKING}' THEN now() END"))
        source = source.drop("type")
        names = [in_backticks(name) for name in source.columns]
        sets = ", ".join([*(f"t.{name} = s.{name}" for name in names), *self._lacked(source.columns)])
        newer = "s.order_key > t.order_key"
        when = f"WHEN MATCHED AND {newer} THEN UPDATE SET {sets}"
        if may_be_stale:
            moved = f"t.order_key = s.order_key, t.{DELETED_AT} = s.{DELETED_AT}, "
            moved += f"t.{STALE_SINCE} = coalesce(t.{STALE_SINCE}, s.{STALE_SINCE})"
            when = f"WHEN MATCHED AND {newer} AND s.{STALE_SINCE} IS NULL THEN UPDATE SET {sets} "
            when += f"WHEN MATCHED AND {newer} THEN UPDATE SET {moved}"
        view = f"multiclouddb_batch_{uuid.uuid4().hex}"
        source.createOrReplaceTempView(view)
        try:
            self._table.commit(
                f"MERGE INTO {self.where} AS t USING {view} AS s ON t.key = s.key {when} "
                f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) "
                f"VALUES ({', '.join(f's.{name}' for name in names)})",
                self._check_still,
            )
        finally:
            self._spark.catalog.dropTempView(view)
