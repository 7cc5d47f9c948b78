"""Says which columns a table of Spark may have, and names them with their types in a statement."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from multiclouddb_api import invalid_request
from multiclouddb_tables.delta_log import CHARACTERS
from multiclouddb_tables.sql import in_backticks
from pyspark_multiclouddb.session import is_on
from pyspark_multiclouddb.source_columns import of_a_library, spark_type, type_text

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.types import StructField

__all__ = [
    "TEXT",
    "check_collation",
    "check_made",
    "check_names",
    "check_types",
    "declared",
    "null_of",
    "partitions",
    "types_of",
]

TEXT: Final = ("key", "order_key")
"""The columns whose texts are compared."""
_KEEPS_EMPTY: Final = ("iceberg",)
"""The formats in which a text may be empty also where the table is partitioned by it. In Delta, Hudi, Paimon
and the files of Hive it becomes null."""


def types_of(schema: Any) -> dict[str, str]:
    """Return the type of each column of a schema of Spark or of Arrow, as SQL."""
    if isinstance(schema, pa.Schema):
        return {field.name: type_text(spark_type(field.type)) for field in schema}
    return {field.name: type_text(field.dataType) for field in schema}


def declared(columns: Mapping[str, str]) -> str:
    """Return columns and their types, as a statement declares them."""
    return ", ".join(f"{in_backticks(name)} {kind}" for name, kind in columns.items())


def null_of(name: str) -> str:
    """Return null with the type of a column, because with the policy STRICT null has no type to assign."""
    return f"CASE WHEN false THEN {in_backticks(name)} END"


def check_names(spark: SparkSession, names: Iterable[str]) -> None:
    """Refuse a column whose name Spark would replace, in part, by a setting or a variable."""
    for name in names:
        if "${" in name and is_on(spark, "spark.sql.variable.substitute", default=True):
            raise invalid_request(
                f"column {name}",
                "has ${ in its name, for which Spark puts the value of a setting into each statement",
                "rename it, or set spark.sql.variable.substitute to false",
            )


def check_made(schema: Any, there: Collection[str]) -> None:
    """Refuse a column that the sink would have to make, and whose type no statement can name.

    Args:
        schema: The columns of a batch.
        there: The columns of the table; none if there is no table.
    """
    for field in schema if isinstance(schema, StructType) else ():
        kind = of_a_library(field.dataType)
        if kind is not None and field.name not in there:
            raise invalid_request(
                f"column {field.name}",
                f"is {kind.simpleString()}, the type of a library, so no statement can make the column",
                "make it an array of numbers, such as vector_to_array of a vector, or leave it out",
            )


def check_collation(table: str, field: StructField) -> None:
    """Refuse a column whose texts Spark does not compare by their bytes."""
    if "collate" in (kind := type_text(field.dataType)):
        raise invalid_request(
            f"column {field.name}",
            f"is {kind} in {table}, with which different texts may be equal; a schema or a table "
            "may have a default collation",
            "make the table with the type STRING COLLATE UTF8_BINARY for this column",
        )


def check_types(table: str, schema: StructType, written: Collection[str]) -> None:
    """Refuse a table that would not keep a text as it is written.

    Args:
        table: The name of the table.
        schema: Its columns.
        written: The columns that are written.
    """
    for field in schema:
        kind = type_text(field.dataType)
        if field.name in TEXT and kind != "string":
            raise invalid_request(
                f"column {field.name}",
                f"is {kind} in {table}",
                "make the table with STRING there, or let a merge make it",
            )
        if field.name in written and (cuts := field.metadata.get(CHARACTERS)) is not None:
            raise invalid_request(
                f"column {field.name}",
                f"is {cuts} in {table}, which cuts spaces off a text or adds some in silence",
                "change its type to STRING, or leave the column out",
            )
        if field.name in written:
            check_collation(table, field)


def partitions(described: Sequence[Row]) -> frozenset[str]:
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
