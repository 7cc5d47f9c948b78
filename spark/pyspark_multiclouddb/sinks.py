"""What `foreachBatch` does with a micro-batch: keep a table equal to the collection.

A micro-batch can come twice: a query that is killed behind the sink's commit and in front of Spark's
own delivers it again, with the same number and the same rows. And a key can change several times in
one batch. Hence two steps, each of them safe to repeat:

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
        events: Has the columns `key` and `order_key`, and any others.

    Returns:
        The row with the highest `order_key` of each `key`, sorted by `key`. Of an event that came
        twice, one row.
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
    """Merge a micro-batch into a Delta table: one row a document, none for a deleted one.

    A row is written when its `order_key` is higher than the table's, and removed by a `DELETE` in the
    same way. Together with the rows, in one commit, the table learns the batch's number, and a batch
    that it knows already is left out: a replay changes nothing.

    A deleted row takes its `order_key` along, so that an *older* change of the same key would bring it
    back. None comes behind a delete: of one key a stream delivers in order, across batches and through
    splits and merges, and a replay repeats whole batches. The same does not hold for two queries on
    one table.

    The table is made at the first merge, with the columns `key`, `order_key`, `timestamp` and
    `new_item_state`. Columns that the batch has besides those of an event are kept too, so documents
    can be parsed before: `frame.withColumn("total", get_json_object("new_item_state", "$.total"))`.

    Args:
        batch: What `foreachBatch` is given, or its table. A DataFrame is collected once, to the
            driver; bound it with `maxRecordsPerTrigger`.
        batch_id: The number that Spark gives it.
        table_path: A folder, or a URL that `deltalake` knows. One process writes at a time.
        app_id: Names the query, and its checkpoint: with a new checkpoint directory the numbers begin
            anew, so it needs another `app_id`, or its first batches are taken for replays.

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
