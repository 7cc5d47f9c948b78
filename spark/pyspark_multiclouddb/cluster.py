"""The sink for tables that Spark itself merges; no row of a batch passes through the driver."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Literal

import attrs

from multiclouddb_api import invalid_request
from multiclouddb_api.validators import check_type, local_path
from multiclouddb_tables.batch import MissingState, Piece, batch_of, check_options
from multiclouddb_tables.columns import Columns
from multiclouddb_tables.layout import missing
from multiclouddb_tables.merging import merge_batch
from pyspark_multiclouddb.checkpoint import told
from pyspark_multiclouddb.declared import declared_rows, empty_schema
from pyspark_multiclouddb.errors import check_has
from pyspark_multiclouddb.named_table import check_table
from pyspark_multiclouddb.pieces import HELPERS, kept_rows, needed
from pyspark_multiclouddb.table_target import WAY_OUT, TableTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
    columns: Columns | None = None,
    refill: bool = False,
) -> bool:
    """Merge a batch into a table with Spark's own `MERGE INTO`, in `foreachBatch`.

    The rules are those of `merge_into_delta`: one row per document, a tombstone for a deleted one, and the
    higher `order_key` wins, so that a repeated batch changes nothing. The differences: the table may be of
    any kind for which Spark runs `MERGE INTO` and `UPDATE`, such as Iceberg or Delta, in the catalog that
    your platform configures; and no row passes through the driver, so a batch may be large.

    Spark reads the source once, because the executors keep the last change of each key until the merge has
    ended. If one of them is lost meanwhile, the batch fails, and Spark repeats it.

    Args:
        batch: The DataFrame that `foreachBatch` passes.
        batch_id: The batch number that Spark passes.
        table: The name of the table in Spark, such as `lake.shop.orders`, or ``delta.`/data/orders` ``.
        checkpoint: The `checkpointLocation` of the query, as in `merge_into_delta`; a stream that begins with
            a snapshot needs it.
        create_using: The format of the table that the first merge creates, such as `iceberg`; None, the
            default, if the table must exist.
        new_columns: What to do about a column that the table does not have: `"add"` adds it; `"refuse"`, the
            default, refuses the batch.
        missing_state: What to do if the last change of a key has no document, as in `merge_into_delta`.
        source: The feed of the rows, as in `merge_into_delta`.
        columns: The declaration of the table's columns, as in `merge_into_delta`; the executors make the
            values. A column that gets another type is dropped and added again, so the format has to allow
            `ALTER TABLE … DROP COLUMN`, as Iceberg does, and Delta with the table property
            `delta.columnMapping.mode` = `name`.
        refill: As in `merge_into_delta`.

    Returns:
        True if the batch was merged; False if it was empty.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` and `NOT_FOUND` for the reasons of `merge_into_delta`, without
            any row written. `CONFLICT` if other writers prevented ten attempts.
    """
    check_has("batch", batch, "sparkSession", "a DataFrame")
    check_type("batch_id", batch_id, int)
    check_table(table)
    check_type("create_using", create_using, str, type(None))
    check_options(
        batch_id=None, app_id=None, create="first", new_columns=new_columns, missing_state=missing_state,
        source=source, columns=columns, refill=refill,
    )  # fmt: skip
    if create_using is not None and not re.fullmatch(r"[\w.]+", create_using):
        raise invalid_request("create_using", f"is {create_using!r}", "give a format, such as iceberg")
    if checkpoint is not None:
        local_path("checkpoint", checkpoint)
    said = told(batch, batch_id, None, checkpoint)
    target = TableTarget(batch.sparkSession, table, create_using=create_using, new_columns=new_columns)
    if create_using is None and not target.exists:
        raise missing(table, WAY_OUT)
    work = batch_of(
        batch, batch_id, None, said,
        pieces=lambda: _pieces(batch, missing_state, columns),
        empty_schema=lambda: (
            needed(batch).drop("type", *HELPERS).schema if columns is None else empty_schema(batch.columns)
        ),
        is_told=checkpoint is not None, create=None, source=source, columns=columns, refill=refill,
    )  # fmt: skip
    merged = merge_batch(target, "merge_into_table", work)
    if said.notes and target.exists:
        target.store({}, said.notes)
    return merged


@attrs.frozen
class TablePiece(Piece):
    """A batch that stays on the executors."""

    @property
    def schema(self) -> Any:
        """The columns that the table must have, as Spark names their types."""
        return self.rows.drop("type").schema


def _pieces(
    batch: DataFrame, missing_state: MissingState, columns: Columns | None
) -> Generator[Piece, None, None]:
    with kept_rows(needed(batch), missing_state, once=True) as (kept, total):
        if total.rows:
            changes = kept.select(*total.columns)
            with declared_rows(changes, columns, TableTarget.unheld, once=True) as rows:
                yield TablePiece(rows, True, total.plan, bool(total.lacking), total.is_latest, total.source)
