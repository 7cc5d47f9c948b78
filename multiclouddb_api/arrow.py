"""Converts events to Arrow with one fixed schema for every provider (extra `arrow`).

Columns whose types may differ between databases contain text: `key` and the item states are JSON that
`multiclouddb_api.encode_json` has written, so decoding returns the exact value.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def _json(value: Any) -> str | None:
    return None if value is None else encode_json(value).decode("utf-8")


def events_to_arrow(events: Sequence[ChangeEvent]) -> pa.RecordBatch:
    """Build an Arrow batch from events, for a provider that has no columnar code."""
    columns: list[list[Any]] = [
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
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, EVENT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)
