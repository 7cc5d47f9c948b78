"""Reads and repairs a table that Spark itself merges, for `verify`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from itertools import islice
from typing import TYPE_CHECKING, Final

import attrs
import pyarrow as pa
from pyspark.sql.types import ArrayType, MapType, StringType, TimestampType

from multiclouddb_api import encode_json, invalid_request
from multiclouddb_tables.column_values import SINKS, as_stored, own_state
from multiclouddb_tables.contract import Own
from multiclouddb_tables.mark import Expected, FoundTable
from multiclouddb_tables.rules import DELETED_AT, DOCUMENT, STALE_SINCE
from multiclouddb_tables.sql import in_backticks
from pyspark_multiclouddb.cluster import TableStorage, check_table
from pyspark_multiclouddb.columns import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from multiclouddb_tables.contract import Fix

_ROWS: Final = 8192
_NO_ORDER: Final = "~null"
"""Stands for an `order_key` that is null: no change is higher, so the row refuses all of them."""
_OURS: Final = ("key", "order_key", "timestamp", DELETED_AT, STALE_SINCE)


class TableTarget:
    """A table that `merge_into_table` writes, for `verify`.

    Its rows pass through the driver, a few thousand at a time.

    Args:
        spark: The session that knows the table.
        table: The name of the table in Spark, such as `lake.shop.orders`.

    Raises:
        MulticloudDbError: Raised by the first read: `NOT_FOUND` if there is no table; `INVALID_REQUEST` if it
            has not the columns of the sink.
    """

    def __init__(self, spark: SparkSession, table: str) -> None:
        check_table(table)
        self._spark, self._table = spark, table

    @property
    def name(self) -> str:
        """The name of the table."""
        return f"table:{self._table}"

    def _opened(self, *, own: bool) -> tuple[TableStorage, list[str]]:
        storage = TableStorage(self._spark, self._table, None, "refuse")
        names = storage.schema().names
        if DELETED_AT not in names:
            raise invalid_request(
                "table", f"{self._table} has no column {DELETED_AT}", "give a table of the sink"
            )
        if not own and DOCUMENT not in names:
            raise invalid_request(
                "table",
                f"{self._table} has no column {DOCUMENT}",
                "pass transform=, a function that makes the values of the table's columns from a document",
            )
        return storage, [name for name in names if name not in _OURS]

    def rows(self, keys: Sequence[str] | None = None, *, own: Own = False) -> Iterator[pa.RecordBatch]:
        """Read one version of the table; see `Target.rows`.

        Args:
            keys: The keys to read; None for all rows.
            own: The table's own columns to read instead of `new_item_state`.
        """
        storage, extra = self._opened(own=bool(own))
        if keys is not None and not keys:
            return
        frame = self._frame(keys)
        names = [DOCUMENT]
        if own:
            names = extra if own is True else sorted(own)
        kinds = self.columns() if own else {}
        instants = {field.name for field in storage.schema() if field.dataType == TimestampType()}

        def state(row: Row) -> str:
            # Spark returns a time in the local zone, without saying so.
            values = row.asDict(recursive=True)
            own_values = {
                name: values[name].astimezone(UTC)
                if name in instants and values[name]
                else as_stored(values[name], kinds.get(name))
                for name in names
            }
            return encode_json(own_state(own_values)).decode()

        found = frame.selectExpr(
            "key",
            f"coalesce(order_key, '{_NO_ORDER}')",
            f"{DELETED_AT} IS NOT NULL",
            *map(in_backticks, names),
        ).toLocalIterator()
        while rows := list(islice(found, _ROWS)):
            states = [state(row) if own else row[3] for row in rows]
            keys_of, orders, deleted = ([row[at] for row in rows] for at in range(3))
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(keys_of, pa.string()),
                    pa.array(orders, pa.string()),
                    pa.array(states, pa.string()),
                    pa.array(deleted, pa.bool_()),
                ],
                names=["key", "order_key", "state", "deleted"],
            )

    def _frame(self, keys: Sequence[str] | None) -> DataFrame:
        frame = self._spark.table(self._table)
        if keys is None:
            return frame
        wanted = self._spark.createDataFrame([(key,) for key in keys], "key string")
        return frame.join(wanted, "key", "left_semi")

    def _orders(self, keys: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        if keys:
            rows = self._frame(keys).selectExpr("key", f"coalesce(order_key, '{_NO_ORDER}')")
            for key, order in rows.collect():
                found.setdefault(key, []).append(order)
        return {key: sorted(orders) for key, orders in found.items()}

    def columns(self) -> Mapping[str, pa.DataType | None]:
        """Return the columns that a document may be parsed into; see `Target.columns`."""
        storage, extra = self._opened(own=True)
        return {name: arrow_type(storage.schema()[name].dataType) for name in extra if name not in SINKS}

    def position(self) -> None:
        """Return None: Spark stores the position in its checkpoint."""

    def found(self, since: FoundTable | None = None) -> FoundTable:
        """Return the mark of the sink, and the id that the sink has given the table; see `Target.found`.

        Args:
            since: What was found before. Nothing in the properties says that a table went back.
        """
        del since
        storage, _ = self._opened(own=True)
        return storage.found()

    def complete(self, expected: Expected) -> None:
        """Set the table's property; see `Target.complete`.

        Args:
            expected: The table, as it was before the comparison.
        """
        storage, _ = self._opened(own=True)
        expected.check(storage.found(), self.name)
        mark, before = storage.feed_mark(), expected.found.mark
        if mark is not None and before is not None and mark.incomplete_since == before.incomplete_since:
            storage.set_feed_mark(attrs.evolve(mark, incomplete_since=None))

    def fix(self, fixes: Sequence[Fix], expected: Expected) -> int:
        """Write rows in one `MERGE`, each only if its key still has the row that was seen.

        No statement of Spark can look at the properties of a table and write its rows. So the table is looked
        at directly before each `MERGE`, and a table that is replaced while the statement begins to run gets
        rows whose `order_key` it has as well. A table that went back to an earlier version is not noticed.

        Args:
            fixes: At most one for each key.
            expected: The table that was compared.

        Raises:
            MulticloudDbError: `CONFLICT` if other writers prevented ten attempts; `INVALID_REQUEST` if the
                table has columns of its own and no `transform` was given, or if it is not the expected one.
        """
        own = any(fix.columns is not None for fix in fixes)
        storage, extra = self._opened(own=own)
        if not own and (others := [name for name in extra if name != DOCUMENT]):
            raise invalid_request(
                "table",
                f"{self._table} has columns of its own: {', '.join(others)}",
                "pass transform=, a function that returns their values for a document",
            )
        if not fixes:
            return 0
        schema = storage.schema()
        given = {name for fix in fixes for name in fix.columns or ()}
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
            row = {**own_values, "key": fix.key, "order_key": fix.order_key, DOCUMENT: fix.text}
            row |= {"timestamp": fix.timestamp, DELETED_AT: fix.timestamp if fix.text is None else None}
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
            f"AND coalesce(b.order_key, '{_NO_ORDER}') = s._order)"
        )
        names = [in_backticks(name) for name in schema.names]
        sets = ", ".join(f"t.{name} = s.{name}" for name in names)
        values = ", ".join(f"s.{name}" for name in names)
        is_seen = f"array_contains(s._seen, coalesce(t.order_key, '{_NO_ORDER}'))"
        is_new = f"s._match IS NOT NULL AND cardinality(s._seen) = 0 AND s.{DELETED_AT} IS NULL"
        try:
            [(count,)] = self._spark.sql(
                f"SELECT count(DISTINCT s.key) FROM {holds} s LEFT JOIN {self._table} t ON t.key = s._match "
                f"WHERE (t.key IS NULL AND {is_new}) OR {is_seen}"
            ).collect()
            storage.commit(
                f"MERGE INTO {self._table} AS t USING {holds} AS s ON t.key = s._match "
                f"WHEN MATCHED AND s._drop AND {is_seen} THEN DELETE "
                f"WHEN MATCHED AND {is_seen} THEN UPDATE SET {sets} "
                f"WHEN NOT MATCHED AND (s._match IS NULL OR {is_new}) "
                f"THEN INSERT ({', '.join(names)}) VALUES ({values})",
                lambda: expected.check(storage.found(), self.name),
            )
        finally:
            self._spark.catalog.dropTempView(view)
        return int(count)
