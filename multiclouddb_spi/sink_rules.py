"""Defines the rule of all sinks for a change without its document (extra `arrow`).

A CREATE or UPDATE may come without `new_item_state`, for example because the image of the change has expired.
The document exists, but its content is not known. A sink must not write such a change as an empty document.
Its user chooses one of two ways:

- `"refuse"`: nothing of the batch is written, and the error names one of the keys.
- `"keep"`: the row keeps its document, and its `order_key` becomes that of the change, so that no older
  change replaces the row. The column `STALE_SINCE` contains the time at which the change was merged. The next
  change with a document, and a delete, empty this column.

The rule applies to the last change of each key in a batch.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from multiclouddb_api import MulticloudDbError, invalid_request

MissingState: TypeAlias = Literal["refuse", "keep"]
"""What a sink does with a change without its document."""

DOCUMENT: Final = "new_item_state"
"""The column with the document. A batch without this column is not checked."""

STALE_SINCE: Final = "_stale_since"
"""The column with the time from which the document of a row is older than its last change; null otherwise."""

LACKS_STATE: Final = f"type <> 'DELETE' AND {DOCUMENT} IS NULL"
"""The rule as a condition in SQL."""


def lacks_state(rows: pa.Table) -> pa.ChunkedArray:
    """Return for each row whether it is a change without its document; at most one row for each key."""
    if DOCUMENT not in rows.column_names:
        return pa.chunked_array([pa.repeat(False, rows.num_rows)])
    return pc.and_(pc.not_equal(rows["type"].cast(pa.string()), "DELETE"), pc.is_null(rows[DOCUMENT]))


def missing_state_error(key: str, count: int) -> MulticloudDbError:
    """Make the error for a batch with `count` changes without their documents, one of them of `key`."""
    return invalid_request(
        "batch",
        f"contains {count} changes without their documents, for example of the key {key}: images are "
        "switched off or have expired, the stream keeps only keys or old images, a document was deleted "
        "before it was looked up, or the feed was read with new_item_state_mode=OMIT",
        "switch full images on, and read with new_item_state_mode=REQUIRE (in Spark newItemState=require); "
        'or let MongoDB look documents up (full_document="updateLookup"); or keep the old documents with '
        f'missing_state="keep"; or leave the column {DOCUMENT} out if you need no documents',
    )
