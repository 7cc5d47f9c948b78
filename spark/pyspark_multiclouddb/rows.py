"""Converts events to rows: events of ranges in Spark's tasks, and events of pages in the driver."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs
import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from multiclouddb_api import (
    ChangeFeedPage,
    ErrorCategory,
    ErrorDetail,
    Fail,
    MulticloudDbError,
    Notice,
    SkipToOldest,
    invalid_request,
)
from multiclouddb_api.arrow import events_to_arrow
from multiclouddb_api.validators import check_type, type_name
from multiclouddb_spi import Batch, Range, RecordFault, collector_paused, read_range
from multiclouddb_spi.segment import plan_id_of
from multiclouddb_tables.batch import other_rows
from multiclouddb_tables.rules import DOCUMENT
from pyspark_multiclouddb.checkpoint import Pinned
from pyspark_multiclouddb.connection import Connection, connection_for
from pyspark_multiclouddb.errors import check_has, gone, poisoned, source_errors
from pyspark_multiclouddb.options import Settings
from pyspark_multiclouddb.payload import Payloads, decoded
from pyspark_multiclouddb.source_columns import ROW_SCHEMA, SPARK_SCHEMA, with_documents

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_LOG: Final = logging.getLogger("multiclouddb.spark")


@attrs.frozen
class Work:
    """The work of one task; the value of an `InputPartition`."""

    incarnation: str | None
    ranges: tuple[Range, ...]
    skip_poison: bool = False
    is_told: bool = False  # the offset at the end of the batch has the notices
    may_skip: bool = False  # an offset or, for a batch, the log says that changes have expired
    # What the driver has read of some ranges, by their places; it contains documents.
    read: Mapping[int, bytes] = attrs.field(factory=dict, repr=False)


def work_of(
    settings: Settings,
    incarnation: str | None,
    ranges: Sequence[Range],
    *,
    skip_poison: bool,
    is_told: bool = False,
    may_skip: bool = False,
    payloads: Payloads | None = None,
) -> list[InputPartition]:
    """Assign ranges to tasks. The maximum number of tasks does not depend on the cores of the machine.

    Args:
        settings: The settings of the read.
        incarnation: The incarnation of the resource.
        ranges: What to read.
        skip_poison: True to leave out changes that cannot be decoded.
        is_told: The offset at the end of the batch has the notices.
        may_skip: True if an offset or, for a batch, the log says that changes have expired. Else, with
            `failOnDataLoss=false`, a task that meets an expired position fails, because nobody would be told.
        payloads: What planning has read.
    """
    tasks = min(len(ranges), settings.max_tasks)
    parts = [tuple(ranges[first::tasks]) for first in range(tasks)]
    read = payloads or Payloads()
    return [
        InputPartition(Work(incarnation, part, skip_poison, is_told, may_skip, read.of_task(part)))
        for part in parts
    ]


def read_work(settings: Settings, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Return the rows of one task."""
    work: Work | None = partition.value
    if work is None:
        return
    with source_errors():
        connection: Connection | None = None
        for place, part in enumerate(work.ranges):
            done = 0
            if (rows := work.read.get(place)) is not None:
                parts = decoded(rows)
            else:
                if connection is None:
                    connection = connection_for(settings)
                    Pinned(work.incarnation, []).check_incarnation(connection.opened)
                parts = _events(
                    connection, part, skip_poison=work.skip_poison, on_poison=_warn, is_told=work.is_told,
                    may_skip=work.may_skip,
                )  # fmt: skip
            while True:
                with collector_paused():
                    events = next(parts, None)
                if events is None:
                    break
                rows = _with_sequence(events, np.arange(done, done + events.num_rows))
                yield rows if settings.columns is None else settings.columns.rows(rows)
                done += events.num_rows


def find_poison(connection: Connection, ranges: Sequence[Range]) -> list[tuple[str, str]]:
    """Read ranges, and return the partition and the position of each change that cannot be decoded."""

    def search(part: Range) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []

        def note(where: str, fault: RecordFault) -> None:
            found.append((where, fault.position))

        for _ in _events(connection, part, skip_poison=True, on_poison=note, is_told=True, may_skip=True):
            pass
        return found

    parts = [part for part in ranges if plan_id_of(part.partition_id) is None]
    return [each for found in connection.each(search, parts) for each in found]


def _events(
    connection: Connection,
    part: Range,
    *,
    skip_poison: bool,
    on_poison: Callable[[str, RecordFault], None],
    is_told: bool,
    may_skip: bool,
) -> Iterator[pa.RecordBatch]:
    """Return the events of a range; `on_poison` is called with each change that is left out.

    A DataFrame carries no notices. If other rows exist after one of them, and no offset says so, then the
    read fails, because nobody would know.
    """
    where = connection.feed.public_id(part.partition_id)
    is_row = plan_id_of(part.partition_id) is not None

    def skip(fault: RecordFault) -> None:
        if is_row or not skip_poison:
            raise poisoned(where, fault, is_row=is_row) from fault
        on_poison(where, fault)

    def refuse(notice: Notice) -> None:
        if not is_told and (what := other_rows(notice)) is not None:
            raise gone(where, what)

    wanted, sizes = connection.settings.on_expired, connection.sizes
    on_expired = wanted if may_skip else Fail()
    batches = read_range(connection.provider, connection.feed, part, on_expired, skip, refuse, sizes)
    if isinstance(wanted, SkipToOldest) and not may_skip:
        batches = _untold(batches, where)
    for batch in batches:
        first = 0
        while first < len(batch):
            stop, poison = len(batch), None
            while stop > first:
                try:
                    arrow = batch.arrow(first, stop)
                    events = events_to_arrow(batch.events(first, stop)) if arrow is None else arrow
                except RecordFault as fault:
                    stop, poison = max(first, min(fault.index, stop - 1)), fault
                else:
                    yield events
                    break
            if poison is not None:
                skip(poison)
                stop += 1
            first = stop


def _untold(batches: Iterator[Batch], where: str) -> Iterator[Batch]:
    """Yield batches; if changes have expired, name the way out, because the offset says nothing of it."""
    try:
        yield from batches
    except MulticloudDbError as error:
        if error.category != ErrorCategory.CHECKPOINT_EXPIRED:
            raise
        raise MulticloudDbError(
            f"{where}: changes have expired since this batch was planned; restart the query, which then "
            "skips them and says so (failOnDataLoss=false)",
            ErrorDetail(ErrorCategory.TRANSIENT_FAILURE, retryable=True),
        ) from error


def _warn(where: str, fault: RecordFault) -> None:
    _LOG.warning("%s: %s; the change is left out (onPoison=skip)", where, fault)


def _with_sequence(events: pa.RecordBatch, sequence: Sequence[int] | np.ndarray) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*events.columns, pa.array(sequence, pa.int64())], schema=ROW_SCHEMA)


def pages_to_dataframe(
    spark: SparkSession, pages: Iterable[ChangeFeedPage], schema: StructType | str | None = None
) -> DataFrame:
    """Return the events of some pages as a DataFrame with the columns of the data source.

    All events have to fit into the memory of the driver; for more, use a stream.

    Args:
        spark: The session.
        pages: Pages of `client.read_changes`, or of an iterator that ends, such as
            `iterate_changes(…, until_idle=True).pages()`.
        schema: The schema of the documents, as `StructType` or DDL, which makes `new_item_state` a struct;
            a value gets its type as in a column of documents of the data source. Without one it is JSON text,
            in which a value without a JSON type is an object, such as `{"$decimal": "1.50"}`.

    Returns:
        One row for each event; a page without events has no rows. `sequence` counts the rows of each
        partition.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if a value of a document does not fit its type in `schema`, or if
            documents cannot have this schema.

    Examples:
        >>> with connect(url) as client:
        ...     pages = [client.read_changes(request)]
        >>> pages_to_dataframe(spark, pages, "status STRING, total DOUBLE").show()
    """
    check_has("spark", spark, "createDataFrame", "a SparkSession")
    if not isinstance(pages, Iterable):
        raise invalid_request(
            "pages", f"must be pages, not {type_name(pages)}", "pass [client.read_changes(…)]"
        )
    if schema is not None and not isinstance(schema, str):
        check_has("schema", schema, "fieldNames", "a StructType or its DDL")
    seen: Counter[str] = Counter()
    batches = []
    for page in pages:
        check_type("pages", page, ChangeFeedPage)
        sequence = []
        for event in page.events:
            sequence.append(seen[event.partition_id])
            seen[event.partition_id] += 1
        if page.events:
            batches.append(_with_sequence(events_to_arrow(page.events), sequence))
    rows, kinds = pa.Table.from_batches(batches, schema=ROW_SCHEMA), SPARK_SCHEMA
    if schema is not None:
        kind = _fields(spark, schema)
        rows = with_documents(rows, kind)
        kinds = type(kind)(
            [each if each.name != DOCUMENT else type(each)(DOCUMENT, kind) for each in SPARK_SCHEMA]
        )
    return spark.createDataFrame(rows, schema=kinds)


def _fields(spark: SparkSession, schema: StructType | str) -> StructType:
    """Return the fields of a schema; refuse a type, of which Spark makes a structure with a field `value`."""
    from pyspark.errors import ParseException

    kind = spark.createDataFrame([], schema).schema
    if isinstance(schema, str) and kind.fieldNames() == ["value"]:
        with suppress(ParseException):  # the text has the name itself
            if spark.createDataFrame([], f"value {schema}").schema == kind:
                raise invalid_request(
                    "schema",
                    f"is {kind['value'].dataType.simpleString()}, which has no names of fields",
                    "name the fields of the documents, for example status STRING, total DOUBLE",
                )
    return kind
