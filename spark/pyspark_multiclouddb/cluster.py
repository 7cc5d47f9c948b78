"""The sink for tables that Spark itself merges; no row of a batch passes through the driver.

No commit contains rows and marks together, so each step can be repeated after a kill:

| killed after | what the next run finds | what it does |
|---|---|---|
| the `UPDATE` that begins a snapshot | no mark | the same `UPDATE`: no row of the snapshot is merged yet |
| the mark of the beginning | the mark | merges |
| a `MERGE` | rows of this batch | the same `MERGE`, which changes nothing, because no `order_key` is higher |
| the `UPDATE` that ends a snapshot | the mark of the beginning | the same `UPDATE`, which finds no row |
| the mark of the end | the mark | nothing |
"""

from __future__ import annotations

import logging
import os
import random
import re
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError, invalid_request
from multiclouddb_api.validators import check_type, local_path
from multiclouddb_spi.faults import one_line, without_data
from multiclouddb_tables.delta_log import MARK
from multiclouddb_tables.delta_refusals import safe_cause
from multiclouddb_tables.mark import FeedSource, FoundTable, TableMark
from multiclouddb_tables.merging import merge_batch
from multiclouddb_tables.rules import (
    DELETED_AT,
    DOCUMENT,
    STALE_SINCE,
    MissingState,
    Numbered,
    Piece,
    batch_of,
    check_cases,
    check_options,
    lacking_columns,
)
from multiclouddb_tables.sql import in_backticks, quoted
from pyspark_multiclouddb.checkpoint import told
from pyspark_multiclouddb.errors import check_has
from pyspark_multiclouddb.pieces import HELPERS, kept_rows, needed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


_LOG: Final = logging.getLogger("multiclouddb.spark")
_TEXT: Final = ("key", "order_key")
_IDENTITY: Final = "multiclouddb.table"
"""The table property that no other table of the name has."""
_TRIES: Final = 10
_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 5.0
# How Delta, Iceberg and Java name the commit of another writer.
_CONFLICTS: Final = re.compile(
    r"\b(Concurrent\w*(Modification|Append|Delete\w*|Write|Transaction|Metadata)\w*Exception|MetadataChangedException"
    r"|ProtocolChangedException|CommitFailedException"
    r"|ValidationException: (Found (new )?conflicting|Cannot commit|Missing required files))\b"
)
# Delta's error classes of a row that the table refuses, and Spark's.
_REFUSED: Final = re.compile(
    r"\b(DELTA_VIOLATE_CONSTRAINT_WITH_VALUES|DELTA_NOT_NULL_CONSTRAINT_VIOLATED|NOT_NULL_ASSERT_VIOLATION"
    r"|CHECK_CONSTRAINT_VIOLATION|DELTA_CANNOT_MODIFY_APPEND_ONLY)\b"
)
_NAME: Final = re.compile(r"(?:[\w-]+|`(?:[^`]|``)+`)(?:\.(?:[\w-]+|`(?:[^`]|``)+`))*")


def merge_into_table(
    batch: DataFrame,
    batch_id: int,
    table: str,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    create_using: str | None = None,
    new_columns: Literal["add", "refuse"] = "refuse",
    missing_state: MissingState = "refuse",
    source: str | None = None,
) -> bool:
    """Merge a batch into a table with Spark's own `MERGE INTO`, in `foreachBatch`.

    The rules are those of `merge_into_delta`: one row per document, a tombstone for a deleted one, and the
    higher `order_key` wins, so that a repeated batch changes nothing. No row of the batch passes through the
    driver. The table may be of any kind for which Spark runs `MERGE INTO` and `UPDATE`, such as Iceberg or
    Delta, with the catalog that your platform configures.

    Spark reads the source once: it finds the last change of each key, keeps these rows on the executors, and
    frees them after the merge. If an executor is lost meanwhile, the batch fails, and Spark repeats it.

    Args:
        batch: The DataFrame that `foreachBatch` passes.
        batch_id: The batch number that Spark passes.
        table: The name of the table in Spark, such as `lake.shop.orders`, or ``delta.`/data/orders` ``.
        checkpoint: The `checkpointLocation` of the query, as in `merge_into_delta`; a stream that begins with
            a snapshot needs it.
        create_using: The format of the table that the first merge creates, such as `iceberg`; None if the
            table must exist.
        new_columns: What to do if the batch contains a column that the table does not have: `"add"` adds the
            column, `"refuse"` refuses the batch.
        missing_state: What to do if the last change of a key has no document, as in `merge_into_delta`.
        source: The feed of the rows, as in `merge_into_delta`.

    Returns:
        True if the batch was merged; False if it was empty.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` and `NOT_FOUND` for the reasons of `merge_into_delta`; then no
            row was written. `CONFLICT` if other writers prevented ten attempts.
    """
    check_has("batch", batch, "sparkSession", "a DataFrame")
    check_type("batch_id", batch_id, int)
    check_table(table)
    check_type("create_using", create_using, str, type(None))
    check_options(
        batch_id=None, app_id=None, create="first", new_columns=new_columns, missing_state=missing_state,
        source=source,
    )  # fmt: skip
    if create_using is not None and not re.fullmatch(r"[\w.]+", create_using):
        raise invalid_request("create_using", f"is {create_using!r}", "give a format, such as iceberg")
    if checkpoint is not None:
        local_path("checkpoint", checkpoint)
    said = told(batch, batch_id, None, checkpoint)
    storage = TableStorage(batch.sparkSession, table, create_using, new_columns)
    work = batch_of(
        batch, batch_id, None, said,
        pieces=lambda: _pieces(batch, missing_state),
        empty_schema=lambda: needed(batch).drop("type", *HELPERS).schema,
        is_told=checkpoint is not None, create=None, source=source,
    )  # fmt: skip
    merged = merge_batch(storage, "merge_into_table", work)
    if said.notes and storage.exists:
        storage.store({}, said.notes)
    return merged


def check_table(table: object) -> None:
    """Refuse a text that is not the name of a table in Spark."""
    check_type("table", table, str)
    if not _NAME.fullmatch(str(table)):
        raise invalid_request(
            "table", f"{str(table)[:200]!r} is not the name of a table", "give for example lake.shop.orders"
        )


def drop_table_tombstones(spark: SparkSession, table: str, older_than: timedelta) -> int:
    """Delete old tombstones of a table of Spark, and return their number."""
    storage = TableStorage(spark, table, None, "refuse")
    if DELETED_AT not in storage.schema().names:
        return 0
    try:
        before = datetime.now(UTC) - older_than
    except OverflowError:
        return 0  # no tombstone is from before the year 1
    old = f"{DELETED_AT} < timestamp_micros({int(before.timestamp() * 1_000_000)})"
    [(count,)] = spark.sql(f"SELECT count(*) FROM {table} WHERE {old}").collect()
    if count:
        storage.commit(f"DELETE FROM {table} WHERE {old}")
    return int(count)


@attrs.frozen
class TablePiece(Piece):
    """A batch that stays on the executors."""

    @property
    def schema(self) -> Any:
        """The columns that the table must have, as Spark names their types."""
        return self.rows.drop("type").schema


class TableStorage:
    """The table that Spark writes; the docstrings of `Storage` say what its methods do."""

    def __init__(
        self, spark: SparkSession, table: str, create_using: str | None, new_columns: Literal["add", "refuse"]
    ) -> None:
        self._spark, self._table = spark, table
        self._create_using, self._new_columns = create_using, new_columns
        self._keeps: bool | None = None
        self._seen: FoundTable | None = None
        self._schema = self._look()
        if self._schema is None and create_using is None:
            raise MulticloudDbError(
                f"table: there is no table {table}; correct the name, or let a merge create it with "
                "create_using",
                ErrorDetail(category=ErrorCategory.NOT_FOUND),
            )

    @property
    def where(self) -> str:
        """The name of the table."""
        return self._table

    @property
    def exists(self) -> bool:
        """True if the table exists."""
        return self._schema is not None

    def _look(self) -> StructType | None:
        try:
            return self._spark.table(self._table).schema
        except AnalysisException as error:
            if "NOT_FOUND" not in str(error) and "doesn't exist" not in str(error):
                raise
            return None

    def schema(self) -> StructType:
        """Return the columns of the table."""
        assert self._schema is not None, "there is no table yet"
        for name in _TEXT:
            if name not in self._schema.names:
                problem = f"{self._table} has no column {name}"
                raise invalid_request("table", problem, "give a table that this sink created")
        return self._schema

    def commit(self, statement: str, check: Callable[[], object] | None = None) -> None:
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
                if not _CONFLICTS.search(str(error)):
                    raise
                if not left:
                    raise MulticloudDbError(
                        f"table: other writers changed {self._table} during each of {_TRIES} attempts; let "
                        "them commit less often, and try again",
                        ErrorDetail(
                            ErrorCategory.CONFLICT,
                            retryable=True,
                            native_text=without_data(str(error))[:1000],
                        ),
                    ) from error
            time.sleep(random.uniform(0, wait))
            wait = min(2 * wait, _LONGEST_WAIT)

    def prepare(self, schema: Any, mark: TableMark | None = None, *, may_be_stale: bool = False) -> None:
        """Make the table, or check it and add the columns that it lacks."""
        for name in (DELETED_AT, STALE_SINCE):
            if name in schema.names:
                problem = f"has a column {name}"
                raise invalid_request("batch", problem, "the sink writes this column; rename yours")
        wanted = {field.name: field.dataType.simpleString() for field in schema}
        for name in _TEXT:
            if wanted[name] != "string":
                raise invalid_request(
                    f"column {name}", f"is {wanted[name]}", "pass the column of the data source"
                )
        check_cases(wanted)
        wanted[DELETED_AT] = "timestamp"
        if self._schema is None:
            statement = (
                f"CREATE TABLE IF NOT EXISTS {self._table} ({_declared(wanted)}) USING {self._create_using}"
            )
            if mark is not None and self.keeps_marks:
                statement += f" TBLPROPERTIES ({_pairs(_marked(mark, uuid.uuid4().hex))})"
            self._spark.sql(statement)
            self._schema = self._look()
        known = {field.name: field.dataType.simpleString() for field in self.schema()}
        new = {name: wanted[name] for name in lacking_columns(self._table, wanted, known, self._new_columns)}
        if may_be_stale and STALE_SINCE not in known:
            new[STALE_SINCE] = "timestamp"
        if new:
            self.commit(f"ALTER TABLE {self._table} ADD COLUMNS ({_declared(new)})")
            self._schema = self._look()

    def mark(self, name: str) -> int | None:
        """Return a number from the table's properties."""
        text = self._property(_property(name))
        return None if text is None else int(text)

    def _property(self, name: str) -> str | None:
        return self._properties().get(name) if self.keeps_marks else None

    def _properties(self) -> dict[str, str]:
        rows = self._spark.sql(f"SHOW TBLPROPERTIES {self._table}").collect()
        return {row[0]: row[1] for row in rows}

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
        self._seen = self.found()
        return self._seen.mark

    def found(self) -> FoundTable:
        """Return the mark of the table, and its id.

        Not every kind of table has an id that a statement can read, so the sink stores one with its mark.
        """
        properties = self._properties() if self.keeps_marks else {}
        text = properties.get(MARK)
        mark = None if text is None else TableMark.from_json(text, self._table)
        return FoundTable(mark, properties.get(_IDENTITY))

    def set_feed_mark(self, mark: TableMark) -> None:
        """Set the property; who may not alter the table is told which statement somebody else has to run."""
        if not self.keeps_marks:
            return
        try:
            self._alter(_marked(mark, self.found().identity or uuid.uuid4().hex), mark.source)
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
        pair = f"{_literal(MARK)} = {_literal(mark.to_json())}"
        return f"ALTER TABLE {self._table} SET TBLPROPERTIES ({pair})"

    def _alter(self, properties: Mapping[str, str], source: FeedSource | None = None) -> None:
        self.commit(
            f"ALTER TABLE {self._table} SET TBLPROPERTIES ({_pairs(properties)})",
            partial(self._check_still, source),
        )

    def store(self, marks: Mapping[str, int], notes: Mapping[str, str]) -> None:
        """Set properties of the table."""
        values = {_property(name): str(value) for name, value in [*marks.items(), *notes.items()]}
        if values:
            self._alter(values)

    def is_empty(self) -> bool:
        """Return True if the table has no row."""
        return self._spark.sql(f"SELECT 1 FROM {self._table} LIMIT 1").isEmpty()

    def outdate(self, floor: str, marks: Mapping[str, int]) -> None:
        """Give rows from the floor on the lowest `order_key`; the marks follow in a commit of their own."""
        del marks
        self.commit(f"UPDATE {self._table} SET order_key = '' WHERE order_key >= {_literal(floor)}")

    def bury(self, floor: str, marks: Mapping[str, int]) -> None:
        """Make tombstones of rows below the floor; the marks follow in a commit of their own."""
        del marks
        kept = {*_TEXT, DELETED_AT}
        gone = [field.name for field in self.schema() if field.nullable and field.name not in kept]
        sets = [f"{in_backticks(name)} = NULL" for name in gone]
        sets += [
            f"order_key = {_literal(floor)}",
            f"{DELETED_AT} = coalesce({DELETED_AT}, current_timestamp())",
        ]
        self.commit(f"UPDATE {self._table} SET {', '.join(sets)} WHERE order_key < {_literal(floor)}")

    def gone_back(self, query: str | None, done: Numbered | None) -> bool:
        """Return False: no statement of Spark says which version of a table follows which."""
        del query, done
        return False

    def _check_still(self, source: FeedSource | None = None) -> None:
        """Refuse another table than the one that was looked at, as near to the statement as possible."""
        if self._seen is not None:
            self.found().check_still(self._seen, self._table, source)

    def merge(self, rows: DataFrame, notes: Mapping[str, str], *, is_last: bool) -> None:
        """Merge the last changes of some keys."""
        del notes, is_last
        known = self.schema().names
        deleted = F.expr("CASE WHEN type = 'DELETE' THEN current_timestamp() END")
        source = rows.withColumn(DELETED_AT, deleted)
        if may_be_stale := STALE_SINCE in known:
            lacks = f"CASE WHEN type <> 'DELETE' AND {DOCUMENT} IS NULL THEN current_timestamp() END"
            has_document = DOCUMENT in rows.columns
            source = source.withColumn(
                STALE_SINCE, F.expr(lacks if has_document else "CAST(NULL AS TIMESTAMP_LTZ)")
            )
        source = source.drop("type")
        names = [in_backticks(name) for name in source.columns]
        sets = ", ".join(f"t.{name} = s.{name}" for name in names)
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
            self.commit(
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
        ),
    )


def _property(name: str) -> str:
    return name if name.startswith("multiclouddb") else f"multiclouddb.{name}"


def _declared(columns: Mapping[str, str]) -> str:
    # With spark.sql.timestampType, TIMESTAMP may be the type without a zone.
    kinds = {name: "timestamp_ltz" if kind == "timestamp" else kind for name, kind in columns.items()}
    return ", ".join(f"{in_backticks(name)} {kind}" for name, kind in kinds.items())


def _marked(mark: TableMark, identity: str) -> dict[str, str]:
    """Return the properties of a table with a mark."""
    return {MARK: mark.to_json(), _IDENTITY: identity}


def _pairs(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{_literal(name)} = {_literal(value)}" for name, value in properties.items())


def _literal(text: str) -> str:
    """Return a text for SQL of Spark, in which a backslash begins an escape."""
    return quoted(text.replace("\\", "\\\\"))


def _pieces(batch: DataFrame, missing_state: MissingState) -> Generator[Piece, None, None]:
    with kept_rows(needed(batch), missing_state, once=True) as (kept, total):
        if total.rows:
            rows = kept.select(*total.columns)
            yield TablePiece(rows, True, total.plan, bool(total.lacking), total.is_latest, total.source)
