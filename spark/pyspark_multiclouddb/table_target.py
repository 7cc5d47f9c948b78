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

import logging
import random
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
import pyarrow as pa
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkNotImplementedError,
    PySparkValueError,
    UnsupportedOperationException,
)
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType, TimestampType

from multiclouddb_api import ErrorCategory, ErrorDetail, ErrorReason, MulticloudDbError, invalid_request
from multiclouddb_api.validators import check_type
from multiclouddb_spi.faults import one_line, without_data
from multiclouddb_tables.changes import LACKING
from multiclouddb_tables.column_values import SINKS
from multiclouddb_tables.contract import Own, Table
from multiclouddb_tables.delta_log import CHARACTERS, MARK
from multiclouddb_tables.delta_refusals import safe_cause
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
from multiclouddb_tables.sql import in_backticks, quoted
from pyspark_multiclouddb.columns import (
    arrow_type,
    has_times,
    is_comparable,
    of_a_library,
    spark_type,
    type_text,
)
from pyspark_multiclouddb.functions import check_functions
from pyspark_multiclouddb.pieces import column
from pyspark_multiclouddb.session import is_on

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession
    from pyspark.sql.types import DataType, StructField

    from multiclouddb_tables.contract import Fix

__all__ = ["WAY_OUT", "TableTarget", "check_table", "drop_table_tombstones"]

_LOG: Final = logging.getLogger("multiclouddb.spark")
WAY_OUT: Final = "let a merge create it with create_using"
"""What to do if there is no table."""
_ROWS: Final = 8192
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_TEXT: Final = ("key", "order_key")
_IDENTITY: Final = "multiclouddb.table"
"""The table property that no other table of the name has."""
_TRIES: Final = 10
_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 5.0
# How Delta, Iceberg and Java name the commit of another writer; some texts of Delta have no name of a class.
_CONFLICTS: Final = re.compile(
    r"\b(DELTA_(CONCURRENT_\w+|METADATA_CHANGED|PROTOCOL_CHANGED)"
    r"|Concurrent\w*(Modification|Append|Delete\w*|Write|Transaction|Metadata)\w*Exception|MetadataChangedException"
    r"|ProtocolChangedException|CommitFailedException"
    r"|ValidationException: (Found (new )?conflicting|Cannot commit|Missing required files))\b"
)
# Delta's error classes of a row that the table refuses, and Spark's.
_REFUSED: Final = re.compile(
    r"\b(DELTA_VIOLATE_CONSTRAINT_WITH_VALUES|DELTA_NOT_NULL_CONSTRAINT_VIOLATED|NOT_NULL_ASSERT_VIOLATION"
    r"|CHECK_CONSTRAINT_VIOLATION|DELTA_CANNOT_MODIFY_APPEND_ONLY)\b"
)
# A text of JSON, with the colon after the name of a member; in a text, an escape, or what becomes one.
_TEXT_OF_JSON: Final = re.compile(r'"(?:[^"\\]|\\.)*"(:?)')
_LETTER: Final = re.compile(r"(\\u[0-9a-f]{4}|\\.)|[A-Za-z']")
_HIDDEN: Final = "(redacted)"
"""What Spark shows in place of a value that it hides ends with this."""
_KEEPS_EMPTY: Final = ("iceberg",)
"""The formats in which a text may be empty also where the table is partitioned by it. In Delta, Hudi, Paimon
and the files of Hive it becomes null."""
_POLICY: Final = "spark.sql.storeAssignmentPolicy"
_LEGACY: Final = "LEGACY store assignment policy"
"""How Spark names the policy when it refuses a statement."""
_PART: Final = re.compile(r"[\w-]+|`(?:[^`]|``)+`")
_NAME: Final = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))*")


def check_table(table: object) -> None:
    """Refuse a text that is not the name of a table in Spark."""
    check_type("table", table, str)
    if not _NAME.fullmatch(str(table)):
        raise invalid_request(
            "table", f"{str(table)[:200]!r} is not the name of a table", "give for example lake.shop.orders"
        )


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
        target._commit(f"DELETE FROM {table} WHERE {old}")
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
        self._spark, self._table = spark, table
        self._create_using, self._new_columns = create_using, new_columns
        self._keeps: bool | None = None
        self._seen: FoundTable | None = None
        self._schema: StructType | None = None
        self._stored: dict[str, str] | None = None
        self._partitions: frozenset[str] | None = None
        self._is_looked_at = False

    @property
    def name(self) -> str:
        """The name of the table."""
        return f"table:{self._table}"

    def _now(self, *, own: bool) -> TableTarget:
        now = TableTarget(self._spark, self._table)
        check_table_columns(self._table, now._known().names, own=own)
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
            return state_of({name: _with_times(values[name], kind) for name, kind in read.items()}, kinds)

        found = frame.select(
            "key",
            F.expr(f"coalesce(order_key, '{NO_ORDER}')"),
            F.col(DELETED_AT).isNotNull(),
            *(_with_micros(column(name), kind).alias(name) for name, kind in read.items()),
        ).toLocalIterator()
        for rows in grouped(found, _ROWS):
            states = [state(row) if own else row[3] for row in rows]
            keys_of, orders, deleted = ([row[at] for row in rows] for at in range(3))
            yield read_rows(keys_of, orders, states, deleted)

    def _frame(self, keys: Sequence[str] | None) -> DataFrame:
        frame = self._spark.table(self._table)
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
        return self._now(own=True)._found()

    def complete(self, expected: Expected) -> None:
        """Set the table's property; see `Target.complete`.

        Args:
            expected: The table, as it was before the comparison.
        """
        now = self._now(own=True)
        expected.check(now._found(), self.name)
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
        check_fixes(self._table, schema.names, fixes, mark)
        if not fixes:
            return 0
        given = {name for fix in fixes for name in fix.columns or ()}
        for name in now._not_empty(each for each in schema if each.name in given):
            for fix in fixes:
                value = (fix.columns or {}).get(name)
                if isinstance(value, str | bytes) and not value:
                    raise empty_partition(self._table, name, fix.key)
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
            f"(SELECT s.* FROM {view} s LEFT JOIN {self._table} b ON b.key = s._beside "
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
                f"SELECT count(DISTINCT s.key) FROM {holds} s LEFT JOIN {self._table} t ON t.key = s._match "
                f"WHERE (t.key IS NULL AND {is_new}) OR {is_seen}"
            ).collect()
            now._commit(
                f"MERGE INTO {self._table} AS t USING {holds} AS s ON t.key = s._match "
                f"WHEN MATCHED AND s._drop AND {is_seen} THEN DELETE "
                f"WHEN MATCHED AND {is_seen} THEN UPDATE SET {sets} "
                f"WHEN NOT MATCHED AND (s._match IS NULL OR {is_new}) "
                f"THEN INSERT ({', '.join(names)}) VALUES ({values})",
                lambda: expected.check(now._found(anew=True), self.name),
            )
        finally:
            self._spark.catalog.dropTempView(view)
        return int(count)

    # What a sink does: it makes one object for each batch, which looks at the table once.

    @property
    def where(self) -> str:
        """The name of the table."""
        return self._table

    @property
    def exists(self) -> bool:
        """True if the table exists."""
        if not self._is_looked_at:
            self._is_looked_at, self._schema = True, self._look()
        return self._schema is not None

    def _look(self) -> StructType | None:
        try:
            if self.keeps_marks:
                # Spark reads the rows of a cached table from its memory, whatever others have written since,
                # and a catalog may keep a table as it was when the session used it first, as Iceberg's does.
                self._spark.sql(f"REFRESH TABLE {self._table}")
                self._stored = None
                if len(_PART.findall(self._table)) == 1 and (
                    self._spark.catalog.getTable(self._table).isTemporary
                ):
                    raise invalid_request(
                        "table",
                        f"{self._table} is a temporary view of this session, before a table of this name",
                        "give the table with its schema, such as shop.orders, or drop the view",
                    )
            return self._spark.table(self._table).schema
        except AnalysisException as error:
            if "NOT_FOUND" not in str(error) and "doesn't exist" not in str(error):
                raise
            return None
        except (PySparkValueError, PySparkNotImplementedError) as error:
            raise MulticloudDbError(
                f"table: {self._table} has a column of a type that PySpark does not have "
                f"({one_line(str(error))}); give it another type, such as TIMESTAMP or STRING",
                ErrorDetail(
                    ErrorCategory.UNSUPPORTED_CAPABILITY,
                    native_class=f"{type(error).__module__}.{type(error).__name__}",
                    reason=ErrorReason.NOT_OFFERED,
                ),
            ) from error

    def _known(self) -> StructType:
        if not self.exists:
            raise missing(self._table, WAY_OUT)
        assert self._schema is not None
        check_columns(self._table, self._schema.names, _TEXT)
        for name in _TEXT:
            self._check_collation(self._schema[name])
        return self._schema

    def _check_collation(self, field: StructField) -> None:
        """Refuse a column whose texts Spark does not compare by their bytes."""
        if "collate" in (kind := type_text(field.dataType)):
            raise invalid_request(
                f"column {field.name}",
                f"is {kind} in {self._table}, with which different texts may be equal; a schema or a table "
                "may have a default collation",
                "make the table with the type STRING COLLATE UTF8_BINARY for this column",
            )

    def _commit(self, statement: str, check: Callable[[], object] | None = None) -> None:
        """Run a statement, and run it again if the commit of another writer prevents it.

        Args:
            statement: The statement.
            check: Called before each run; raises if the table is not the one that is meant.
        """
        wait = _FIRST_WAIT
        for left in reversed(range(_TRIES)):
            try:
                if check is not None:
                    check()
                self._spark.sql(statement)
                return
            except MulticloudDbError:
                raise
            except Exception as error:
                if found := _REFUSED.search(str(error)):
                    # Spark prints the whole row.
                    raise _refused_row(self._table, found[0], error) from safe_cause(error)
                if _LEGACY in str(error):
                    raise invalid_request(
                        _POLICY,
                        "is LEGACY, with which Spark refuses columns in another order than the table has",
                        "set it to ANSI",
                    ) from error
                if not _CONFLICTS.search(str(error)):
                    raise
                if not left:
                    raise MulticloudDbError(
                        f"table: other writers changed {self._table} during each of {_TRIES} attempts; let "
                        "them commit less often, and try again",
                        ErrorDetail(
                            ErrorCategory.CONFLICT,
                            retryable=True,
                            reason=ErrorReason.OTHER_WRITER,
                            native_text=without_data(str(error))[:1000],
                        ),
                    ) from error
            time.sleep(random.uniform(0, wait))
            wait = min(2 * wait, _LONGEST_WAIT)

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
        wanted = _types(schema)
        for name in _TEXT:
            if wanted[name] != "string":
                raise invalid_request(
                    f"column {name}", f"is {wanted[name]}", "pass the column of the data source"
                )
        check_cases(wanted)
        self._check_names(wanted)
        self._check_made(schema)
        wanted[DELETED_AT] = type_text(TimestampType())
        if not self.exists:
            statement = (
                f"CREATE TABLE IF NOT EXISTS {self._table} ({_declared(wanted)}) USING {self._create_using}"
            )
            if mark is not None and self.keeps_marks:
                statement += f" TBLPROPERTIES ({_pairs(_marked(mark, uuid.uuid4().hex))})"
            self._commit(statement)
            self._schema, self._stored = self._look(), None
        for field in self._known():
            kind = type_text(field.dataType)
            if field.name in _TEXT and kind != "string":
                raise invalid_request(
                    f"column {field.name}",
                    f"is {kind} in {self._table}",
                    "make the table with STRING there, or let a merge make it",
                )
            if field.name in wanted and (cuts := field.metadata.get(CHARACTERS)) is not None:
                raise invalid_request(
                    f"column {field.name}",
                    f"is {cuts} in {self._table}, which cuts spaces off a text or adds some in silence",
                    "change its type to STRING, or leave the column out",
                )
            if field.name in wanted:
                self._check_collation(field)
        known = {field.name: type_text(field.dataType) for field in self._known()}
        lacking = lacking_columns(self._table, wanted, known, self._new_columns, declared_names(mark))
        new = {name: wanted[name] for name in lacking}
        if may_be_stale and STALE_SINCE not in known:
            new[STALE_SINCE] = type_text(TimestampType())
        if new:
            self._commit(f"ALTER TABLE {self._table} ADD COLUMNS ({_declared(new)})")
            self._schema = self._look()

    def _check_made(self, schema: Any) -> None:
        """Refuse a column that the sink would have to make, and whose type no statement can name."""
        for field in schema if isinstance(schema, StructType) else ():
            kind = of_a_library(field.dataType)
            if kind is not None and not (self.exists and field.name in self._known().names):
                raise invalid_request(
                    f"column {field.name}",
                    f"is {kind.simpleString()}, the type of a library, so no statement can make the column",
                    "make it an array of numbers, such as vector_to_array of a vector, or leave it out",
                )

    def _check_names(self, names: Iterable[str]) -> None:
        """Refuse a column whose name Spark would replace, in part, by a setting or a variable."""
        for name in names:
            if "${" in name and is_on(self._spark, "spark.sql.variable.substitute", default=True):
                raise invalid_request(
                    f"column {name}",
                    "has ${ in its name, for which Spark puts the value of a setting into each statement",
                    "rename it, or set spark.sql.variable.substitute to false",
                )

    def redeclare(self, schema: pa.Schema, names: Sequence[str], mark: TableMark) -> None:
        """Give columns the types of another declaration, in several commits that can be repeated.

        Args:
            schema: See `Table.redeclare`.
            names: See `Table.redeclare`.
            mark: See `Table.redeclare`.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the format of the table cannot drop a column.
        """
        wanted, known = _types(schema), {each.name: type_text(each.dataType) for each in self._known()}
        check_cases(wanted, known)
        self._check_names(wanted)
        if self._found(anew=True).mark != mark and self.keeps_marks:
            raise refilled(self._table)
        others = [name for name in names if name in wanted and known.get(name, wanted[name]) != wanted[name]]
        if others:
            try:
                dropped = ", ".join(map(in_backticks, others))
                self._commit(f"ALTER TABLE {self._table} DROP COLUMNS ({dropped})", self._check_still)
            except (AnalysisException, UnsupportedOperationException) as error:
                # The first statement, so the table is as it was.
                raise invalid_request(
                    f"column {others[0]}",
                    f"cannot get another type in {self._table}, whose format does not drop a column "
                    f"({str(error).partition(chr(10))[0][:200]})",
                    "on Delta, set the table property 'delta.columnMapping.mode' to 'name'; or fill a new "
                    "table with the new declaration, from a snapshot",
                ) from error
        new = {
            name: wanted[name] for name in names if name in wanted and (name not in known or name in others)
        }
        if new:
            self._commit(f"ALTER TABLE {self._table} ADD COLUMNS ({_declared(new)})", self._check_still)
        if there := [name for name in names if name in known and name not in others]:
            sets = ", ".join(f"{in_backticks(name)} = {_null_of(name)}" for name in there)
            self._commit(f"UPDATE {self._table} SET {sets}", self._check_still)
        self._schema = self._look()

    def count(self) -> int:
        """Return the number of rows."""
        return int(self._spark.table(self._table).count())

    def number(self, name: str) -> int | None:
        """Return a number from the table's properties.

        Args:
            name: See `Table.number`.
        """
        text = self._property(_property(name))
        return None if text is None else int(text)

    def _property(self, name: str) -> str | None:
        return self._properties().get(name) if self.keeps_marks else None

    def _properties(self, *, anew: bool = False) -> dict[str, str]:
        """Return the properties as this object saw them first or has set them; with `anew`, those of now."""
        if anew or self._stored is None:
            rows = self._spark.sql(f"SHOW TBLPROPERTIES {self._table}").collect()
            self._stored = {row[0]: row[1] for row in rows}
        return self._stored

    @property
    def keeps_marks(self) -> bool:
        """False on Sail, which does not know the statement, and refuses what would set a property."""
        if self._keeps is None:
            try:
                self._properties()
                self._keeps = True
            except AnalysisException:
                self._keeps = True  # the table does not exist yet
            except IllegalArgumentException as error:
                if "found TBLPROPERTIES" not in str(error):
                    raise
                self._keeps = False
                _LOG.warning(
                    "%s: the catalog stores no table properties, so nothing keeps a batch of another "
                    "collection from being merged into the table",
                    self._table,
                )
        return self._keeps

    def feed_mark(self) -> TableMark | None:
        """Return the mark among the properties of the table; from now on, no merge accepts another one."""
        self._seen = self._found()
        return self._seen.mark

    def _found(self, *, anew: bool = False) -> FoundTable:
        """Return the mark of the table, and its id; see `_properties`.

        Not every kind of table has an id that a statement can read, so the sink stores one with its mark.
        """
        properties = self._properties(anew=anew) if self.keeps_marks else {}
        text = properties.get(MARK)
        if text is not None and text.endswith(_HIDDEN):
            raise invalid_request(
                "table",
                f"{self._table} has a mark that Spark hides, so nobody knows which feed fills it",
                "set spark.redaction.regex and spark.sql.redaction.options.regex so that they do not match "
                f"the value of the property {MARK}",
            )
        mark = None if text is None else TableMark.from_json(text, self._table)
        return FoundTable(mark, properties.get(_IDENTITY))

    def set_feed_mark(self, mark: TableMark) -> None:
        """Set the property; who may not alter the table is told which statement somebody else has to run.

        Args:
            mark: See `Table.set_feed_mark`.
        """
        if not self.keeps_marks:
            return
        try:
            self._alter(_marked(mark, self._found().identity or uuid.uuid4().hex), mark.source)
            self.feed_mark()
        except MulticloudDbError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise MulticloudDbError(
                f"table: the mark of {self._table}, which says whose changes it contains, cannot be stored "
                f"({reason}); let somebody who may alter the table run: {self._altering(mark)}",
                ErrorDetail(ErrorCategory.AUTHORIZATION_FAILED, native_text=str(error)[:1000]),
            ) from error

    def _altering(self, mark: TableMark) -> str:
        return f"ALTER TABLE {self._table} SET TBLPROPERTIES ({_pairs({MARK: _written(mark)})})"

    def _alter(self, properties: Mapping[str, str], source: FeedSource | None = None) -> None:
        self._commit(
            f"ALTER TABLE {self._table} SET TBLPROPERTIES ({_pairs(properties)})",
            partial(self._check_still, source),
        )
        self._stored = None

    def store(self, numbers: Mapping[str, int], notes: Mapping[str, str]) -> None:
        """Set properties of the table.

        Args:
            numbers: See `Table.store`.
            notes: See `Table.store`.
        """
        values = {_property(name): str(value) for name, value in [*numbers.items(), *notes.items()]}
        if values:
            self._alter(values)

    def is_empty(self) -> bool:
        """Return True if the table has no row."""
        return self._spark.sql(f"SELECT 1 FROM {self._table} LIMIT 1").isEmpty()

    def outdate(self, floor: str, numbers: Mapping[str, int]) -> None:
        """Give rows from the floor on the lowest `order_key`; the numbers follow in a commit of their own.

        Args:
            floor: See `Table.outdate`.
            numbers: See `Table.outdate`.
        """
        del numbers
        self._commit(f"UPDATE {self._table} SET order_key = '' WHERE order_key >= {_literal(floor)}")

    def bury(self, floor: str, numbers: Mapping[str, int]) -> None:
        """Make tombstones of rows below the floor; the numbers follow in a commit of their own.

        Args:
            floor: See `Table.bury`.
            numbers: See `Table.bury`.
        """
        del numbers
        gone = [*self._emptied(), *({STALE_SINCE} & {*self._known().names})]
        sets = [f"{in_backticks(name)} = {_null_of(name)}" for name in gone]
        sets += [
            f"order_key = {_literal(floor)}",
            f"{DELETED_AT} = coalesce({DELETED_AT}, now())",
        ]
        self._commit(f"UPDATE {self._table} SET {', '.join(sets)} WHERE order_key < {_literal(floor)}")

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
            self._partitions = _partitions(
                self._spark.sql(f"DESCRIBE TABLE EXTENDED {self._table}").collect()
            )
        found = self._partitions or ()
        return [name for name in names if name in found or in_backticks(name) in found]

    def _check_still(self, source: FeedSource | None = None) -> None:
        """Refuse another table than the one that was looked at, as near to the statement as possible."""
        if self._seen is not None:
            self._found(anew=True).check_still(self._seen, self._table, source)

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
                raise empty_partition(self._table, name, found[0][0])
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
            self._commit(
                f"MERGE INTO {self._table} AS t USING {view} AS s ON t.key = s.key {when} "
                f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) "
                f"VALUES ({', '.join(f's.{name}' for name in names)})",
                self._check_still,
            )
        finally:
            self._spark.catalog.dropTempView(view)


def _refused_row(table: str, code: str, error: Exception) -> MulticloudDbError:
    """Make the error for what the table itself refuses, without the row."""
    said = without_data(str(error).partition("\nJVM stacktrace:")[0])
    return MulticloudDbError(
        f"table: {table} refuses a row ({one_line(said)}); the row of a deleted document has null in all "
        "columns of your own; change the documents, or the constraint or property of the table",
        ErrorDetail(
            ErrorCategory.INVALID_REQUEST,
            native_class=f"{type(error).__module__}.{type(error).__name__}",
            native_code=code,
            native_text=said[:1000],
            reason=ErrorReason.MISFIT,
        ),
    )


def _partitions(described: Sequence[Row]) -> frozenset[str]:
    """Return the columns by which a table is partitioned, if its format stores null for an empty text.

    Args:
        described: What `DESCRIBE TABLE EXTENDED` says: in parts, each after a row with its title. Spark has
            another part for a table that is also partitioned by something else than columns.
    """
    found, part = set[str](), ""
    for name, kind, *_ in described:
        if name.startswith("# "):
            part = part if name == "# col_name" else name
        elif part == "# Partition Information":
            found.add(name)
        elif part == "# Partitioning":
            found.add(kind)
        elif name == "Provider" and part and kind.lower() in _KEEPS_EMPTY:
            return frozenset()
    return frozenset(found)


def _time_of(micros: int | None) -> Any:
    """Return a time from its microseconds since 1970; the number if it is outside the years of Python."""
    try:
        return None if micros is None else _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return micros


def _with_micros(value: Column, kind: DataType) -> Column:
    """Return a value with the microseconds since 1970 in place of each time.

    Spark returns a time in the local zone, which does not have every time near the year 1 or 9999, and over
    Spark Connect it does not say which one it means if the zone has an hour twice.
    """
    if not has_times(kind):
        return value
    match kind:
        case StructType():
            parts = [_with_micros(value.getField(of.name), of.dataType).alias(of.name) for of in kind]
            return F.when(value.isNotNull(), F.struct(*parts))
        case ArrayType():
            return F.transform(value, lambda each: _with_micros(each, kind.elementType))
        case MapType():
            names = _with_micros(F.map_keys(value), ArrayType(kind.keyType))
            return F.map_from_arrays(names, _with_micros(F.map_values(value), ArrayType(kind.valueType)))
        case _:
            return F.unix_micros(value)


def _with_times(value: Any, kind: DataType) -> Any:
    """Return a value that `_with_micros` has read, with its times."""
    match kind:
        case _ if value is None:
            return None
        case TimestampType():
            return _time_of(value)
        case StructType():
            return {field.name: _with_times(value[field.name], field.dataType) for field in kind}
        case ArrayType():
            return [_with_times(each, kind.elementType) for each in value]
        case MapType():
            of, pairs = kind.valueType, value.items()
            return {_with_times(name, kind.keyType): _with_times(each, of) for name, each in pairs}
        case _:
            return value


def _property(name: str) -> str:
    return name if name.startswith("multiclouddb") else f"multiclouddb.{name}"


def _types(schema: Any) -> dict[str, str]:
    """Return the type of each column of a schema of Spark or of Arrow, as SQL."""
    if isinstance(schema, pa.Schema):
        return {field.name: type_text(spark_type(field.type)) for field in schema}
    return {field.name: type_text(field.dataType) for field in schema}


def _declared(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{in_backticks(name)} {kind}" for name, kind in columns.items())


def _null_of(name: str) -> str:
    """Return null with the type of a column, because with the policy STRICT null has no type to assign."""
    return f"CASE WHEN false THEN {in_backticks(name)} END"


def _marked(mark: TableMark, identity: str) -> dict[str, str]:
    return {MARK: _written(mark), _IDENTITY: identity}


def _written(mark: TableMark) -> str:
    """Return a mark as JSON in which the letters of all texts are escapes.

    Spark shows no value of a property that contains a word such as `url` or `token`, which its settings
    `spark.redaction.regex` and `spark.sql.redaction.options.regex` name, and a platform may hide more words,
    such as `user`. The mark contains the names of the collection and of columns.
    """

    def escaped(found: re.Match[str]) -> str:
        if found[1]:
            return found[0]
        return _LETTER.sub(lambda each: each[1] or f"\\u{ord(each[0]):04x}", found[0])

    return _TEXT_OF_JSON.sub(escaped, mark.to_json())


def _pairs(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{_literal(name)} = {_literal(value)}" for name, value in properties.items())


def _literal(text: str) -> str:
    """Return a text for SQL of Spark, in which a backslash begins an escape.

    With `spark.sql.legacy.consecutiveStringLiterals.enabled`, two quotes are none, so a quote is an escape.
    """
    return quoted(text.replace("\\", "\\\\").replace("'", "\\u0027"))
