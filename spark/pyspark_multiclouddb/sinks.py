"""Sinks for `foreachBatch`: they keep a table equal to the collection.

A micro-batch can come twice: a query that is killed after the sink's commit and before Spark's own commit
delivers it again, with the same number and the same rows. Also, a key can change several times in one batch.
So there are two steps, and each is safe to repeat:

    def merge(frame, batch_id):
        merge_into_delta(frame, batch_id, "/data/orders", app_id="orders-1")

    stream.writeStream.foreachBatch(merge).option("checkpointLocation", "/data/checkpoint").start()
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from multiclouddb_api import invalid_request

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

__all__ = ["latest_by_key", "merge_into_delta"]

_OF_THE_EVENT: Final = frozenset(
    {
        "event_id",
        "type",
        "old_item_state",
        "by_expiry",
        "backfilled",
        "database",
        "collection",
        "partition_id",
        "sequence",
    }
)


def latest_by_key(events: pa.Table) -> pa.Table:
    """Keep the last change of each key.

    Args:
        events: With the columns `key` and `order_key`, and any others.

    Returns:
        The row with the highest `order_key` of each `key`, sorted by `key`. An event that came twice gives
        one row.
    """
    if not events.num_rows:
        return events
    order = pc.sort_indices(events, sort_keys=[("key", "ascending"), ("order_key", "descending")])
    ordered = events.take(order)
    keys = ordered["key"].combine_chunks()
    is_first = pa.array([True])
    if len(keys) > 1:
        changes = pc.not_equal(keys[1:], keys[:-1])
        is_first = pa.concat_arrays([is_first, changes])
    return ordered.filter(is_first)


def merge_into_delta(
    batch: DataFrame | pa.Table, batch_id: int, table_path: str | os.PathLike[str], app_id: str
) -> bool:
    """Merge a micro-batch into a Delta table: one row per document, none for a deleted one.

    A row is written when its `order_key` is higher than the table's, and a `DELETE` removes a row under the
    same condition. The table stores the batch's number in the same commit as the rows. A batch whose number
    it has already is left out: a replay changes nothing.

    When a row is deleted, its `order_key` is lost, so an *older* change of the same key would bring the row
    back. No older change comes after a delete: a stream delivers the changes of one key in order, across
    batches and through splits and merges, and a replay repeats whole batches. With two queries on one table
    this is not guaranteed.

    The first merge creates the table, with the columns `key`, `order_key`, `timestamp` and `new_item_state`.
    Additional columns of the batch are kept too, so you can parse documents before:
    `frame.withColumn("total", get_json_object("new_item_state", "$.total"))`.

    Args:
        batch: The DataFrame that `foreachBatch` passes, or its table. A DataFrame is collected once, to the
            driver; limit its size with `maxRecordsPerTrigger`.
        batch_id: The number that Spark passes.
        table_path: A folder, or a URL that `deltalake` supports. Only one process may write at a time.
        app_id: Identifies the query and its checkpoint. With a new checkpoint directory the numbers begin
            again, so use another `app_id`. Otherwise the first batches count as replays and are left out.

    Returns:
        True when the batch was merged; False when it was empty or the table had it already.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` when a column is missing.
        ImportError: `deltalake` is not installed: `pip install "multiclouddb-spark[delta]"`.
    """
    from deltalake import CommitProperties, DeltaTable, Transaction

    where = os.fspath(table_path)
    if DeltaTable.is_deltatable(where) and _is_known(DeltaTable(where), batch_id, app_id):
        return False
    events = latest_by_key(_checked(batch if isinstance(batch, pa.Table) else batch.toArrow()))
    if not events.num_rows:
        return False
    kept = [name for name in events.column_names if name not in _OF_THE_EVENT]
    table = _table(where, events.select(kept).schema)
    newer = "s.order_key > t.order_key"
    merger = table.merge(
        events.select([*kept, "type"]),
        "s.key = t.key",
        source_alias="s",
        target_alias="t",
        commit_properties=CommitProperties(app_transactions=[Transaction(app_id, batch_id)]),
    )
    columns = {name: f"s.{name}" for name in kept}
    merger.when_matched_delete(f"s.type = 'DELETE' AND {newer}").when_matched_update(
        columns, newer
    ).when_not_matched_insert(columns, "s.type <> 'DELETE'").execute()
    return True


def _is_known(table: DeltaTable, batch_id: int, app_id: str) -> bool:
    last = table.transaction_version(app_id)
    return last is not None and last >= batch_id


def _table(where: str, schema: pa.Schema) -> DeltaTable:
    from deltalake import DeltaTable

    if DeltaTable.is_deltatable(where):
        return DeltaTable(where)
    return DeltaTable.create(where, schema=schema, mode="ignore")


def _checked(events: pa.Table) -> pa.Table:
    """The events, with times in UTC: Spark labels them with the zone of the session."""
    for name in ("key", "order_key", "type"):
        if name not in events.column_names:
            raise invalid_request("batch", f"has no column {name}", "pass the rows of the data source")
    for index, field in enumerate(events.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz not in (None, "UTC"):
            utc: Any = events.column(index).cast(pa.timestamp("us", tz="UTC"))
            events = events.set_column(index, field.name, utc)
    return events
