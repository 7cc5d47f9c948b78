"""Refuses values that deltalake would write, and that do not come back or must not be there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from multiclouddb_api import ErrorReason, invalid_request
from multiclouddb_spi.faults import key_digest
from multiclouddb_tables.delta_log import CHARACTERS
from multiclouddb_tables.rules import empty_partition
from multiclouddb_tables.sql import in_backticks

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["check_values"]

_LENGTH: Final = re.compile(r"(?:var)?char\((\d+)\)")


def check_values(table: DeltaTable, where: str, rows: pa.Table) -> None:
    """Refuse values that a table would not give back.

    Args:
        table: The table.
        where: Its path or URL.
        rows: The rows to write, with their keys.
    """
    _check_partitions(table, where, rows)
    _check_lengths(table, where, rows)


def _check_lengths(table: DeltaTable, where: str, rows: pa.Table) -> None:
    """Refuse a text that is longer than its column allows.

    In the schema of Delta, a column of type CHAR or VARCHAR is a text, and only Spark reads its length,
    which is metadata. It would refuse to write such a row again, for example in OPTIMIZE or UPDATE.
    """
    for field in table.schema().fields:
        kind = field.metadata.get(CHARACTERS)
        if kind is None or field.name not in rows.column_names:
            continue
        if (found := _LENGTH.fullmatch(kind)) is None:
            raise invalid_request(
                f"column {field.name}",
                f"is {kind} in {where}, and deltalake does not check lengths",
                "change its type to one with STRING, or leave the column out",
            )
        is_long = pc.greater(pc.utf8_length(rows[field.name].cast(pa.string())), int(found[1]))
        if pc.any(is_long).as_py():
            key = rows["key"][pc.index(is_long, True).as_py()].as_py()
            raise invalid_request(
                f"column {field.name}",
                f"has a text that does not fit into {kind} in the row of the key {key_digest(key)}",
                f"run ALTER TABLE … ALTER COLUMN {in_backticks(field.name)} TYPE STRING in Spark",
                ErrorReason.MISFIT,
            )


def _check_partitions(table: DeltaTable, where: str, rows: pa.Table) -> None:
    """Refuse what Delta does not keep of a column by which the table is partitioned.

    An empty text becomes null, and of other bytes only escapes are left.
    """
    for name in {*table.metadata().partition_columns} & {*rows.column_names}:
        column = rows[name]
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            is_empty = pc.equal(column, pa.scalar("", kind))
            if pc.any(is_empty).as_py():
                key = rows["key"][pc.index(is_empty, True).as_py()].as_py()
                raise empty_partition(where, name, key)
        is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        if is_binary and column.null_count < len(column):
            raise invalid_request(
                f"column {name}",
                f"is {kind}, and {where} is partitioned by it, so other bytes would be read than "
                "were written",
                "partition the table by another column",
            )
