"""Reads ranges of rows at a timestamp, if the database still keeps the data of this timestamp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from google.protobuf.struct_pb2 import Value

from multiclouddb_spanner_emulator.clock import SECOND, to_text
from multiclouddb_spanner_emulator.database import Database
from multiclouddb_spanner_emulator.errors import ServiceError, unimplemented
from multiclouddb_spanner_emulator.record import to_value
from multiclouddb_spanner_emulator.schema import Table
from multiclouddb_spanner_emulator.types import to_json
from multiclouddb_spanner_emulator.world import World

__all__ = ["VERSION_SECONDS", "moment_of", "rows_at"]

VERSION_SECONDS: Final = 3600
"""The time for which a database keeps old versions of rows. The value is the default of the service."""

Fields = list[tuple[str, dict[str, Any]]]


def moment_of(world: World, request: Any) -> int:
    """Return the timestamp at which a request reads the data.

    `PartitionRead` reads one part within a transaction. The id of the transaction contains the time.

    Raises:
        ServiceError: Raised if the database no longer keeps the data of this timestamp.
    """
    if request.transaction.id:
        return int(request.transaction.id)
    kind, now = request.transaction.WhichOneof("selector") or "single_use", world.clock.nanoseconds()
    options = getattr(request.transaction, kind).read_only
    if options.WhichOneof("timestamp_bound") != "read_timestamp":
        return world.clock.read()
    moment: int = options.read_timestamp.ToNanoseconds()
    if moment < now - VERSION_SECONDS * SECOND:
        raise ServiceError(
            "FAILED_PRECONDITION",
            f"Read-only transaction timestamp {to_text(moment, '+00:00')} has exceeded the maximum timestamp "
            "staleness",
        )
    return moment


def rows_at(database: Database, request: Any, moment: int) -> tuple[Fields, Iterator[list[Value]]]:
    """Return the columns and the rows of a read. The rows are in the order of the primary key.

    Args:
        database: The database.
        request: A `ReadRequest`.
        moment: The timestamp at which to read the data.
    """
    if request.index:
        raise unimplemented("reads of an index")
    table = database.table(request.table)
    columns = [table.column(name) for name in request.columns]
    rows = dict(table.rows)
    for commit, changes in reversed(database.history):
        if commit <= moment:
            break
        for key, change in changes.get(table.name, {}).items():
            if change.before is None:
                rows.pop(key, None)
            else:
                rows[key] = change.before
    single = {_order(table, _whole(table, each)) for each in request.key_set.keys}
    wanted = [
        key
        for key in rows
        if request.key_set.all_ or table.order(key) in single or _is_in(table, key, request.key_set.ranges)
    ]
    wanted.sort(key=table.order)
    if request.partition_token:
        number, count = map(int, request.partition_token.decode().split("/"))
        wanted = wanted[number * len(wanted) // count : (number + 1) * len(wanted) // count]
    found = ([to_value(rows[key].get(column.name)) for column in columns] for key in wanted)
    limited = (row for number, row in enumerate(found) if not request.limit or number < request.limit)
    return [(column.name, column.type.described()) for column in columns], limited


def _whole(table: Table, values: Any) -> Any:
    """Return a key, after a check that it has a value for each key column; only a bound may have fewer."""
    wanted, given = len(table.key), len(values.values)
    if wanted != given:
        raise ServiceError(
            "FAILED_PRECONDITION",
            f"Wrong number of key parts for {table.name}. Expected {wanted} key parts, "
            f"found {given} key parts.",
        )
    return values


def _is_in(table: Table, key: Sequence[Any], ranges: Sequence[Any]) -> bool:
    order = table.order(tuple(key))
    for each in ranges:
        start, end = each.WhichOneof("start_key_type"), each.WhichOneof("end_key_type")
        low, high = _order(table, getattr(each, start)), _order(table, getattr(each, end))
        begun = order[: len(low)] > low or (start == "start_closed" and order[: len(low)] == low)
        if begun and (order[: len(high)] < high or (end == "end_closed" and order[: len(high)] == high)):
            return True
    return False


def _order(table: Table, values: Any) -> tuple[Any, ...]:
    """Return a sort key for a bound, which is a key or the first parts of a key."""
    kinds = [value.WhichOneof("kind") for value in values.values]
    given = [
        None if kind == "null_value" else getattr(value, kind)
        for kind, value in zip(kinds, values.values, strict=True)
    ]
    types = [table.column(name).type for name in table.key[: len(given)]]
    return table.order(tuple(to_json(value, of, 0) for value, of in zip(given, types, strict=True)))
