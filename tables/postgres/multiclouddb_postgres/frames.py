"""Merges a batch of Spark: the executors write it over a few connections, and the driver gets only counts."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyarrow as pa

from multiclouddb_postgres.long_keys import MOST_KEY_BYTES, SHOWN, key_too_long, told
from multiclouddb_postgres.server import DURABLE, LOG, Connection, connected, errors, repeated
from multiclouddb_postgres.table import PostgresTable
from multiclouddb_postgres.values import LAST_YEAR, far, naming, nul
from multiclouddb_tables.batch import MergeBatch, MissingState, Piece
from multiclouddb_tables.columns import Columns
from multiclouddb_tables.mark import TableMark
from multiclouddb_tables.merging import merge_batch
from multiclouddb_tables.rules import check_stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MOST_BYTES: Final = 32 << 20
"""The size of the part of a task that is copied and committed at once."""
_IS_LONG: Final = f"octet_length(key) > {MOST_KEY_BYTES}"
_LIMITS: Final = {
    "date": "DATE'{}-01-01'",
    "timestamp": "TIMESTAMP'{}-01-01 00:00:00Z'",
    "timestamp_ntz": "TIMESTAMP_NTZ'{}-01-01 00:00:00'",
}
"""The first moment of a year, as a literal of Spark, by the type of the column."""


@attrs.frozen
class FramePiece(Piece):
    """A batch that stays on the executors."""

    columns: Columns | None = None  # the declaration of the table's columns

    @property
    def schema(self) -> pa.Schema:
        """The columns that the table must have."""
        return _as_declared(self.rows.drop("type").limit(0).toArrow(), self.columns).schema


class FrameTable(PostgresTable):
    """A table that the executors write."""

    def __init__(
        self,
        connection: Connection,
        dsn: str,
        name: str,
        count: int,
        settings: Any,
        declared: Columns | None = None,
    ) -> None:
        super().__init__(connection, name, **settings)
        self._dsn, self._table_name, self._count, self._settings = dsn, name, count, settings
        self._declared = declared

    def redeclare(self, schema: pa.Schema, names: Sequence[str], mark: TableMark) -> None:
        """Give columns the types of another declaration, again after a deadlock."""
        change = super().redeclare
        repeated(self.connection, self.where, lambda _: change(schema, names, mark))

    def outdate(self, floor: str, numbers: Mapping[str, int]) -> None:
        """Give rows from the floor on the lowest `order_key`, again after a deadlock."""
        update = super().outdate
        repeated(self.connection, self.where, lambda _: update(floor, numbers))

    def bury(self, floor: str, numbers: Mapping[str, int]) -> None:
        """Make tombstones of rows below the floor, again after a deadlock."""
        update = super().bury
        repeated(self.connection, self.where, lambda _: update(floor, numbers))

    def merge(self, rows: DataFrame, notes: Mapping[str, str], *, is_last: bool = True) -> None:
        """Let the executors merge the rows; then store the notes."""
        del is_last
        from pyspark_multiclouddb.errors import told_by_executors

        skipped = 0
        if self._long_keys == "skip":
            rows, skipped = rows.where(f"NOT ({_IS_LONG})"), self._told_skipped(rows)
        place = self._dsn, self._table_name, self.where, self.known().oid
        write = partial(_write, *place, self._settings, rows.columns, self._declared)
        # Spark's `mapInArrow` takes a dot in a name for a field of a struct.
        plain = rows.repartition(self._count, "key").toDF(*(f"c{at}" for at in range(len(rows.columns))))
        with told_by_executors():
            plain.mapInArrow(write, "written long").toArrow()
        if skipped:
            self.marks.count_skipped(skipped)
        self.store({}, notes)

    def _told_skipped(self, rows: DataFrame) -> int:
        """Log which changes are left out, and return their number."""
        long = rows.where(_IS_LONG)
        count = long.count()
        if count:
            names = long.selectExpr("concat('sha256:', left(sha2(key, 256), 16)) AS name").limit(SHOWN)
            LOG.warning("%s", told(count, names.toArrow()["name"].to_pylist(), self.where))
        return count


def merge_frame(
    batch: DataFrame,
    dsn: str,
    name: str,
    place: str,
    missing_state: MissingState,
    count: int,
    settings: Mapping[str, Any],
    made: Callable[..., MergeBatch],
    declared: Columns | None,
) -> bool:
    """Merge a batch of Spark; each step is a transaction of its own, in the order of `merge_batch`."""
    from pyspark_multiclouddb.declared import declared_rows
    from pyspark_multiclouddb.pieces import check_arrow, kept_rows, needed

    check_arrow(batch)

    def pieces() -> Generator[Piece, None, None]:
        rows = needed(batch)
        check_stored(batch.drop("type").limit(0).toArrow().schema)
        with kept_rows(rows, missing_state) as (kept, total):
            if total.rows:
                changes = kept.select(*total.columns)
                with declared_rows(changes, declared, PostgresTable.unheld, once=False) as changes:
                    _check_values(changes, refuses_long=settings["long_keys"] == "refuse")
                    yield FramePiece(
                        changes,
                        True,
                        total.plan,
                        bool(total.lacking),
                        total.is_latest,
                        total.source,
                        declared,
                    )

    def schema() -> pa.Schema:
        from pyspark_multiclouddb.pieces import HELPERS

        empty: pa.Schema = needed(batch).drop("type", *HELPERS).limit(0).toArrow().schema
        return empty

    with errors(place), connected(dsn) as connection:
        target = FrameTable(connection, dsn, name, count, settings, declared)
        merged = merge_batch(target, "merge_into_postgres", made(pieces=pieces, empty_schema=schema))
        with connection.transaction():
            # What the driver has committed before is on the disk with this commit, which needs a number.
            connection.execute(f"SELECT txid_current() FROM ({DURABLE}) AS is_off")
    return merged


def _check_values(kept: DataFrame, *, refuses_long: bool) -> None:
    """Refuse what PostgreSQL cannot store before anything is written."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

    from pyspark_multiclouddb.pieces import column

    texts = [name for name, kind in kept.dtypes if kind == "string"]
    tests = [F.expr(_IS_LONG)]
    tests += [F.contains(column(name), F.char(F.lit(0))) for name in texts]
    times = {name: _LIMITS[kind] for name, kind in kept.dtypes if kind in _LIMITS}
    for name, literal in times.items():
        first, end = (F.expr(literal.format(year)) for year in ("0001", f"+{LAST_YEAR + 1}"))
        tests.append((column(name) < first) | (column(name) >= end))
    columns = [F.min(F.when(test, F.col("key"))).alias(f"c{number}") for number, test in enumerate(tests)]
    [found] = kept.select(*columns).toArrow().to_pylist()
    if found["c0"] is not None and refuses_long:
        raise key_too_long(found["c0"])
    for number, name in enumerate(texts, 1):
        if found[f"c{number}"] is not None:
            raise nul(name, found[f"c{number}"])
    for number, name in enumerate(times, 1 + len(texts)):
        if found[f"c{number}"] is not None:
            raise far(name, found[f"c{number}"])


def _write(
    dsn: str,
    name: str,
    place: str,
    oid: int,
    settings: Mapping[str, Any],
    columns: list[str],
    declared: Columns | None,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Merge the rows of a task, and return their number."""
    from pyspark_multiclouddb.errors import source_errors

    written = 0
    with source_errors():
        for rows in _parts(batch.rename_columns(columns) for batch in batches):
            rows = _as_declared(rows, declared)
            naming(dsn, place, partial(_merge, dsn, name, place, oid, settings, rows))
            written += rows.num_rows
    yield pa.RecordBatch.from_pydict({"written": [written]})


def _merge(
    dsn: str, name: str, place: str, oid: int, settings: Mapping[str, Any], rows: pa.Table
) -> bool:  # fmt: skip
    def merge(connection: Connection) -> bool:
        target = PostgresTable(connection, name, holds=True, **settings)
        target.check_still(oid)
        target.merge(rows, {})
        return True

    return repeated(dsn, place, merge)


def _as_declared(rows: pa.Table, declared: Columns | None) -> pa.Table:
    """Return rows of Spark whose columns say which texts are JSON, which Spark has no word for."""
    fields = {} if declared is None else {field.name: field for field in declared.fields()}
    return rows.cast(pa.schema([fields.get(field.name, field) for field in rows.schema]))


def _parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _MOST_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held and any(batch.num_rows for batch in held):
        yield pa.Table.from_batches(held)
