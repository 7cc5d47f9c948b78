"""Reads the changes of a batch: which of its rows count, and which feed they come from.

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

from collections.abc import Generator, Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from multiclouddb_api import (
    ChangeEvent,
    ChangeFeedPage,
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    MulticloudDbError,
    ResourceAddress,
    encode_json,
    invalid_request,
)
from multiclouddb_api.arrow import events_to_arrow
from multiclouddb_spi.faults import key_digest
from multiclouddb_spi.scan.contract import LATEST_MARK
from multiclouddb_spi.segment import plan_id_of
from multiclouddb_tables.batch import Cut, MissingState, Piece
from multiclouddb_tables.mark import FeedSource
from multiclouddb_tables.rules import (
    CHANGE_TYPES,
    DOCUMENT,
    NEEDED,
    OF_THE_EVENT,
    PAGE_SCHEMA,
    PLACES,
    TIME,
    check_needed,
)

LACKS_STATE: Final = f"type <> 'DELETE' AND {DOCUMENT} IS NULL"
"""The rule as a condition in SQL."""
LACKING: Final = "LACKING"
"""The `type` that a table gets of a change without its document. It is judged before columns are cut, because
a table may have no column with the document."""


def lacks_state(rows: pa.Table) -> pa.ChunkedArray:
    """Return for each row whether it is a change without its document; at most one row for each key."""
    if DOCUMENT not in rows.column_names:
        return pa.chunked_array([pa.repeat(False, rows.num_rows)])
    return pc.and_(pc.not_equal(rows["type"].cast(pa.string()), "DELETE"), pc.is_null(rows[DOCUMENT]))


def missing_state_error(key: str, count: int) -> MulticloudDbError:
    """Make the error for a batch with `count` changes without their documents, one of them of `key`."""
    told = "1 change without its document" if count == 1 else f"{count} changes without their documents"
    return invalid_request(
        "batch",
        f"contains {told}, for example of the key {key_digest(key)}: "
        "images are switched off or have expired, the stream keeps only keys or old images, a document was "
        "deleted before it was looked up, or the feed was read with new_item_state_mode=OMIT",
        "switch full images on, and read with new_item_state_mode=REQUIRE (in Spark newItemState=require); "
        'or let MongoDB look documents up (full_document="updateLookup"); or keep the old documents with '
        f'missing_state="keep"; or leave the column {DOCUMENT} out if you need no documents',
        ErrorReason.NO_DOCUMENT,
    )


def incomplete_rows() -> MulticloudDbError:
    """Make the error for a batch with a missing value, or with a `type` that is no change type."""
    return invalid_request(
        "batch",
        "has rows without key, order_key or type, or whose type is not CREATE, UPDATE or DELETE",
        "pass the rows of the data source, and give other names to columns that you add",
    )


def table_of(batch: pa.Table | ChangeFeedPage) -> pa.Table:
    """Return the changes of a page as a table."""
    if isinstance(batch, pa.Table):
        return batch
    try:
        return pa.Table.from_batches([events_to_arrow(batch.events)])
    except MulticloudDbError:
        for number, event in enumerate(batch.events):
            try:
                events_to_arrow([event])
            except MulticloudDbError as error:
                raise _no_json(number, event, error) from error
        raise


def _no_json(number: int, event: ChangeEvent, error: MulticloudDbError) -> MulticloudDbError:
    """Make the error for an event with a value that JSON cannot hold, such as half a surrogate pair."""
    try:
        key = encode_json(event.key.components).decode()
    except MulticloudDbError:
        key = str(event.key.components)
    problem, _, _ = error.message.removeprefix("value: ").partition("; ")
    return MulticloudDbError(
        f"batch: event {number} of the page, at {event.order_key} in {event.partition_id} of the key "
        f"{key_digest(key)}, {problem}; nothing was merged; change or delete the document in the database, "
        f"and merge the page without page.events[{number}]",
        ErrorDetail(ErrorCategory.PROVIDER_ERROR, reason=ErrorReason.MISFIT),
    )


def piece_of(
    batch: pa.Table, missing_state: MissingState, cut: Cut | None = None
) -> Generator[Piece, None, None]:
    """Return the last change of each key in a table, as one piece; none if the table is empty.

    Args:
        batch: The changes.
        missing_state: What to do with a change without its document.
        cut: Makes the declared columns of the last changes; None without a declaration.
    """
    batch = usual_types(batch)
    names = batch.column_names
    kept = check_needed(names)
    known = pc.is_in(batch["type"].cast(pa.string()), pa.array(CHANGE_TYPES))
    if any(batch[name].null_count for name in NEEDED) or pc.any(pc.invert(known)).as_py():
        raise incomplete_rows()
    if not batch.num_rows:
        return
    rows = last_changes(batch.select(kept))
    lacking = rows.filter(lacks_state(rows))
    if lacking.num_rows and missing_state == "refuse":
        raise missing_state_error(pc.min(lacking["key"]).as_py(), lacking.num_rows)
    rows = judged(rows)
    if cut is not None:
        rows = cut(rows)
    where = pc.index(batch["backfilled"], True).as_py()
    plan = None if where < 0 else plan_id_of(batch["event_id"][where].as_py() or "") or None
    is_latest = bool(pc.any(pc.starts_with(batch["event_id"].cast(pa.string()), LATEST_MARK)).as_py())
    yield Piece(rows, True, plan, bool(lacking.num_rows), is_latest, source_in(batch))


def judged(rows: pa.Table) -> pa.Table:
    """Return the last changes with the type `LACKING` for those without their documents.

    Args:
        rows: The last changes of some keys.
    """
    lacking = lacks_state(rows)
    if not pc.any(lacking).as_py():
        return rows
    kinds = pc.if_else(lacking, LACKING, rows["type"].cast(pa.string()))
    return rows.set_column(rows.column_names.index("type"), "type", kinds)


def stored_schema(batch: pa.Table | ChangeFeedPage) -> pa.Schema:
    """Return the columns that a batch without rows gives the table."""
    if isinstance(batch, ChangeFeedPage):
        return PAGE_SCHEMA
    return usual_types(batch.select([name for name in batch.column_names if name not in OF_THE_EVENT])).schema


def source_in(batch: pa.Table) -> FeedSource | None:
    """Return the feed that the columns of the rows show; None if they do not show it."""
    if any(name not in batch.column_names for name in PLACES):
        return None
    # A batch has few partitions and many rows.
    columns = [_without_dictionary(batch[name]) for name in PLACES]
    places = pa.table(columns, names=PLACES).group_by(list(PLACES)).aggregate([])
    ids, *names = (places[name] for name in PLACES)
    texts = (each.to_pylist() for each in (ids.cast(pa.string()), *names))
    return source_of(zip(*texts, strict=True))


def _without_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    # The chunks of a column may have different dictionaries, which cannot be grouped.
    kind = column.type
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def source_of(places: Iterable[tuple[str | None, str | None, str | None]]) -> FeedSource | None:
    """Return the feed of rows; None if one of them does not show it.

    Args:
        places: The values of `PLACES` in the rows; of the id, the beginning up to the second colon is enough.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the rows come from several feeds.
    """
    sources = {FeedSource.of_row(where, ResourceAddress(*names)) for where, *names in places}
    if None in sources or not sources:
        return None
    collections = sorted({str(each.collection) for each in sources if each is not None and each.collection})
    if len(collections) > 1:
        raise invalid_request(
            "batch",
            f"has rows of several collections: {collections[0]} and {collections[1]}; a table goes by key "
            "alone, so a document of one would replace that of another",
            "fill a table of its own from each of them, with the rows of one value of the column collection",
        )
    if len(sources) > 1:
        first, second, *_ = sorted(f"{each} ({each.incarnation})" for each in sources if each is not None)
        raise invalid_request(
            "batch",
            f"has rows of several feeds: {first} and {second}",
            "merge each of them into its own table",
        )
    return sources.pop()


def nameless() -> MulticloudDbError:
    """Make the error for a batch that does not show which feed it comes from."""
    return invalid_request(
        "batch",
        f"does not say which feed its rows come from: it lacks a value of {', '.join(PLACES)}",
        'keep these columns of the data source, or pass source="provider:database/collection"; the sink '
        "stores the feed with the table, so that no other one is ever merged into it",
    )


def last_changes(events: pa.Table) -> pa.Table:
    """Return the row with the highest `order_key` of each key; rows keep their order."""
    if not events.num_rows:
        return events
    number = events["key"].combine_chunks().dictionary_encode().indices
    counts = pa.table({"number": number}).group_by("number").aggregate([("number", "count")])
    repeated = counts.filter(pc.field("number_count") > 1)["number"]
    is_repeated = pc.is_in(number, value_set=repeated)
    once, several = (pc.indices_nonzero(mask) for mask in (pc.invert(is_repeated), is_repeated))
    if not len(several):
        return events.take(once)
    order_keys = pc.fill_null(events["order_key"].take(several), "\U0010ffff")
    changes = pa.table({"number": number.take(several), "order_key": order_keys})
    order = pc.sort_indices(changes, sort_keys=[("number", "ascending"), ("order_key", "descending")])
    sorted_numbers = changes["number"].take(order).combine_chunks()
    is_last = pa.concat_arrays([pa.array([True]), pc.not_equal(sorted_numbers[1:], sorted_numbers[:-1])])
    rows = pa.concat_arrays([once, several.take(order.filter(is_last))])
    return events.take(rows.take(pc.sort_indices(rows)))


def usual_types(events: pa.Table) -> pa.Table:
    """Return the events with all times in UTC, and without texts and bytes in the form of views.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if pyarrow cannot choose rows of a column of this type.
    """
    none = pa.array([], pa.int64())
    for index, field in enumerate(events.schema):
        kind = _usual_type(field.type)
        if kind != field.type:
            usual: Any = events.column(index).cast(kind)
            events = events.set_column(index, field.name, usual)
        try:
            pa.nulls(0, kind).take(none)
        except pa.ArrowNotImplementedError as error:
            raise invalid_request(
                f"column {field.name}", f"is {kind}, of which pyarrow cannot choose rows", "cast it"
            ) from error
    return events


def _usual_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz not in (None, "UTC"):
        return TIME
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind
