"""Makes the declared columns of a DataFrame on the executors, by the rules of `multiclouddb_tables`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType

from multiclouddb_tables.columns import Columns, check_batch
from multiclouddb_tables.conversion import Unheld, cut_with_misfits, kind_of_json, refused
from multiclouddb_tables.rules import DOCUMENT, PAGE_SCHEMA
from pyspark_multiclouddb.errors import source_errors, told_by_executors
from pyspark_multiclouddb.pieces import kept_frame
from pyspark_multiclouddb.source_columns import spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MISFITS: Final = "_multiclouddb_misfits"
_NOTED: Final = pa.list_(pa.struct([("at", pa.int32()), ("kind", pa.string())]))


@contextmanager
def declared_rows(
    kept: DataFrame, columns: Columns | None, unheld: Sequence[Unheld], *, once: bool
) -> Iterator[DataFrame]:
    """Make the declared columns of the last changes, and keep these rows on the executors.

    Args:
        kept: The last changes, which `kept_rows` has checked, with the columns to store and `type`.
        columns: The declaration; None to leave the rows as they are.
        unheld: What the table does not have.
        once: See `kept_rows`.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if a value does not fit, and misfits are refused.
    """
    if columns is None:
        yield kept
        return
    check_batch([name for name in kept.columns if name != "type"])
    fields = [field for field in kept.schema if field.name != DOCUMENT or columns.document]
    fields += [StructField(field.name, spark_type(field.type)) for field in columns.fields()]
    noted = StructType([StructField("at", IntegerType()), StructField("kind", StringType())])
    fields.append(StructField(_MISFITS, ArrayType(noted)))
    # Spark's `mapInArrow` takes a dot in a name for a field of a struct.
    plain = StructType([StructField(f"c{at}", each.dataType) for at, each in enumerate(fields)])
    make = partial(_made, kept.columns, columns, unheld)
    made = kept.toDF(*(f"c{at}" for at in range(len(kept.columns)))).mapInArrow(make, plain)
    with ExitStack() as stack:
        with told_by_executors():
            kept_made = kept_frame(made.toDF(*(each.name for each in fields)), once=once)
            rows = stack.enter_context(kept_made)
            _check(rows, columns)
        yield rows.drop(_MISFITS)


def _made(
    names: Sequence[str], columns: Columns, unheld: Sequence[Unheld], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with source_errors():
        for batch in batches:
            rows, misfits = cut_with_misfits(
                pa.Table.from_batches([batch.rename_columns(list(names))]), columns, unheld
            )
            noted: list[list[dict[str, object]]] = [[] for _ in range(rows.num_rows)]
            for each in misfits if columns.misfits == "refuse" else ():
                at = columns.columns.index(each.column)
                noted[each.row].append({"at": at, "kind": kind_of_json(each.value)})
            arrays = [*rows.columns, pa.chunked_array([pa.array(noted, _NOTED)])]
            plain = pa.table(arrays, names=[f"c{at}" for at in range(len(arrays))])
            yield from plain.combine_chunks().to_batches()


def _check(rows: DataFrame, columns: Columns) -> None:
    """Refuse what has no columns, and values that do not fit, before anything is written."""
    each = rows.select("key", F.explode(_MISFITS).alias("misfit"))
    found = (
        each.groupBy("misfit.at")
        .agg(F.count(F.lit(1)).alias("count"), F.min(F.struct("key", "misfit.kind")).alias("example"))
        .orderBy("at")
        .collect()
    )
    if found:
        [first, *others] = [columns.columns[row["at"]] for row in found]
        count, (key, kind) = found[0]["count"], found[0]["example"]
        raise refused(first, count, kind, key, [each.name for each in others])


def empty_schema(names: Sequence[str]) -> pa.Schema:
    """Return the columns that a batch without rows gives a table with declared columns.

    Args:
        names: The columns of the batch.
    """
    return pa.schema([field for field in PAGE_SCHEMA if field.name in names])
