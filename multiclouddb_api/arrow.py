"""Converts events to Arrow with one fixed schema for every provider (extra `arrow`).

Columns whose types may differ between databases contain text: `key` and the item states are JSON that
`multiclouddb_api.encode_json` has written, so decoding returns the exact value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final

import pyarrow as pa

from multiclouddb_api.codec import encode_json
from multiclouddb_api.event import ChangeEvent

EVENT_SCHEMA: Final = pa.schema(
    [
        pa.field("event_id", pa.string()),
        pa.field("type", pa.string()),
        pa.field("key", pa.string()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("new_item_state", pa.string()),
        pa.field("old_item_state", pa.string()),
        pa.field("order_key", pa.string()),
        pa.field("by_expiry", pa.bool_()),
        pa.field("backfilled", pa.bool_()),
        pa.field("database", pa.string()),
        pa.field("collection", pa.string()),
        pa.field("partition_id", pa.string()),
    ]
)
"""The columns of every batch, in this order; all columns are nullable."""

_TYPES: Final = tuple(field.type for field in EVENT_SCHEMA)


def batch_of(count: int, columns: Iterable[Iterable[Any] | pa.Array]) -> pa.RecordBatch:
    """Build a batch of `EVENT_SCHEMA` from columns: one column for each field, in the order of the fields.

    A column is an Arrow array of the field's type, one value for each row, or `itertools.repeat` for one
    value that all rows share.
    """
    arrays = [_array(count, column, kind) for column, kind in zip(columns, _TYPES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


def _array(count: int, column: Iterable[Any] | pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    if not isinstance(column, repeat):
        return pa.array(column, kind)
    value = next(column)
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)


def _json(value: Any) -> str | None:
    return None if value is None else encode_json(value).decode("utf-8")


def events_to_arrow(events: Sequence[ChangeEvent]) -> pa.RecordBatch:
    """Build an Arrow batch from events, for a provider that has no columnar code."""
    columns = [
        [event.event_id for event in events],
        [event.type.value for event in events],
        [_json(event.key.components) for event in events],
        [event.timestamp for event in events],
        [_json(event.new_item_state) for event in events],
        [_json(event.old_item_state) for event in events],
        [event.order_key for event in events],
        [event.by_expiry for event in events],
        [event.backfilled for event in events],
        [event.address.database for event in events],
        [event.address.collection for event in events],
        [event.partition_id for event in events],
    ]
    return batch_of(len(events), columns)
