"""Makes the digests of rows of both sides, which a comparison keeps in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from multiclouddb_api import ChangeEvent, encode_json
from multiclouddb_spi.batch import collector_paused
from multiclouddb_verify.comparison import BURIED, GONE, document_digests, text_digests
from multiclouddb_verify.own_columns import DeclaredColumns, OwnColumns
from multiclouddb_verify.runs import ORDER_BITS, Rows, rows_of
from multiclouddb_verify.texts import Integers, column_digests, digests_of

__all__ = ["ORDER_MASK", "order_digests", "own_values", "row_digests", "source_digests", "target_rows"]

ORDER_MASK: Final = (1 << ORDER_BITS) - 1
_SUSPECT: Final = np.int32(-(2**31))


def own_values(
    event: ChangeEvent | None,
    columns: OwnColumns | DeclaredColumns | None,
    held: Callable[[Any], Any] | None = None,
) -> Mapping[str, Any] | None:
    """Return what is compared of a row of the source; None if it has no document."""
    if event is None or (document := event.new_item_state) is None:
        return None
    if columns is not None:
        return columns.state(encode_json(event.key.components).decode(), document)
    return document if held is None else held(document)


def source_digests(
    events: Sequence[ChangeEvent | None],
    columns: OwnColumns | DeclaredColumns | None = None,
    held: Callable[[Any], Any] | None = None,
) -> Integers:
    """Return the digests of rows of the source."""
    return document_digests([own_values(event, columns, held) for event in events])


def row_digests(batch: pa.RecordBatch, columns: OwnColumns | DeclaredColumns | None = None) -> Integers:
    """Return the digests of rows of the table; `BURIED` for a tombstone with something of its document."""
    gone = batch.column("deleted").to_numpy(zero_copy_only=False).astype(bool)
    digests = np.full(batch.num_rows, GONE, dtype=np.int64)
    if gone.any():
        texts, keys = batch.column("state"), batch.column("key")
        if columns is None:
            digests[gone & texts.is_valid().to_numpy(zero_copy_only=False)] = BURIED
        elif isinstance(columns, DeclaredColumns):
            for at in np.flatnonzero(gone).tolist():
                if not columns.is_empty(texts[at].as_py(), keys[at].as_py()):
                    digests[at] = BURIED
    if not gone.all():
        with collector_paused():
            digests[~gone] = text_digests(batch.column("state").filter(pa.array(~gone)).to_pylist())
    return digests


def target_rows(batch: pa.RecordBatch, hashes: Integers, digests: Integers, ceiling: str) -> Rows:
    """Return rows of the table; the ones above the ceiling are marked."""
    orders = batch.column("order_key")
    marks = (column_digests(orders) & ORDER_MASK).astype(np.int32)
    marks[pc.greater(orders, ceiling).to_numpy(zero_copy_only=False)] |= _SUSPECT
    return rows_of(hashes, digests, marks)


def order_digests(order_keys: Sequence[str]) -> Integers:
    """Return the digests of some `order_key`, as `Rows` contain them."""
    return digests_of([order_key.encode() for order_key in order_keys]) & ORDER_MASK
