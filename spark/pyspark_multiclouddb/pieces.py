"""Collects the last change of each key in a DataFrame, piece by piece.

The size of a piece is limited. Spark finds the last changes and keeps them on the executors, so the
source is read only once for all pieces. If Spark loses an executor, it reads only this executor's
part of the source again.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType
from pyspark.storagelevel import StorageLevel

from multiclouddb_api import ErrorCategory, ErrorDetail, ErrorReason, MulticloudDbError, invalid_request
from multiclouddb_spi.scan.contract import LATEST_MARK
from multiclouddb_tables.batch import MissingState, Piece
from multiclouddb_tables.changes import LACKING, LACKS_STATE, incomplete_rows, missing_state_error, source_of
from multiclouddb_tables.mark import FeedSource
from multiclouddb_tables.rules import CHANGE_TYPES, DOCUMENT, PLACES, check_cases, check_needed
from multiclouddb_tables.sql import in_backticks
from pyspark_multiclouddb.functions import check_functions
from pyspark_multiclouddb.session import setting
from pyspark_multiclouddb.source_columns import has_void, only_in_spark

if TYPE_CHECKING:
    import pyarrow as pa

_BUCKETS: Final = 4096
"""The number of parts into which keys are distributed; a piece consists of one or more parts."""
_TASKS: Final = 32
"""The number of tasks. Spark's default of 200 tasks is too high for a small batch."""
_BUCKET: Final = "_multiclouddb_bucket"
_SIZE: Final = "_multiclouddb_size"
_LOG: Final = logging.getLogger("multiclouddb.spark")

PLAN: Final = "_multiclouddb_plan"
"""The column of a frame that says whence a row comes.

The value is the id of the snapshot, or `LATEST_MARK` for a feed of latest versions; otherwise null.
"""
SOURCE: Final = "_multiclouddb_source"
"""The column of a frame with the feed of a row, as JSON; of several changes of a key, the lowest text."""
_LAST: Final = "_multiclouddb_last_source"
"""The column of a frame with the highest text instead: another feed must not hide behind an equal key."""
HELPERS: Final = (PLAN, SOURCE, _LAST)
"""The columns that `needed` adds to those of the table."""
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}


def latest_rows(frame: DataFrame) -> DataFrame:
    """Return the row with the highest `order_key` for each `key`. Spark computes the result."""
    for name in ("key", "order_key"):
        if "collate" in (kind := frame.schema[name].dataType.simpleString()):
            raise invalid_request(
                f"column {name}",
                f"is {kind}, with which different texts may be equal, and have another order",
                f"pass collate({name}, 'UTF8_BINARY'); a table or its schema may have a default collation",
            )
    of_key = {SOURCE: F.min, _LAST: F.max} if SOURCE in frame.columns else {}
    row = F.struct(*(column(name) for name in frame.columns if name not in of_key))
    order = F.coalesce("order_key", F.lit("\U0010ffff"))
    found = [choose(name).alias(name) for name, choose in of_key.items()]
    return frame.groupBy("key").agg(F.max_by(row, order).alias("row"), *found).select("row.*", *of_key)


def needed(batch: DataFrame) -> DataFrame:
    """Return the columns of a frame that a table needs, with `type` and the snapshot or kind of each row."""
    check_functions(batch.sparkSession)
    columns = [*map(column, check_needed(batch.columns))]
    check_cases(batch.columns)
    _check_typed(batch)
    plan = (
        "CASE WHEN backfilled AND event_id LIKE 'snapshot:%' THEN split(event_id, ':')[1] "
        f"WHEN event_id LIKE '{LATEST_MARK}%' THEN '{LATEST_MARK}' END"
    )
    source = "''"
    if all(name in batch.columns for name in PLACES):
        source = "to_json(named_struct('p', substring_index(partition_id, ':', 2), "
        source += "'d', database, 'c', collection))"
    of_row = F.expr(plan).alias(PLAN), F.expr(source).alias(SOURCE), F.expr(source).alias(_LAST)
    return batch.select(*columns, *of_row)


def _check_typed(batch: DataFrame) -> None:
    """Refuse a column without a type: in a column that a table gets for it, no batch could store a value."""
    for field in batch.schema:
        if has_void(field.dataType):
            raise invalid_request(
                f"column {field.name}",
                f"is {field.dataType.simpleString()}, so it is not known of which type its values will be",
                "cast it, or leave it out",
            )


def check_arrow(batch: DataFrame) -> None:
    """Refuse a column of a type that only Spark has, before a sink in Python gets its values.

    Of such a value Python gets the bytes in which Spark stores it, or an error that names no column.
    """
    for field in batch.schema:
        if (found := only_in_spark(field.dataType)) is not None:
            raise invalid_request(
                f"column {field.name}",
                f"is {found.simpleString()}, a type that only Spark has",
                "make it a text (to_json of a VARIANT), bytes or numbers, or leave it out; merge_into_table "
                "keeps every type that the table has",
            )


@contextmanager
def kept_rows(
    frame: DataFrame, missing_state: MissingState, *, once: bool = False
) -> Iterator[tuple[DataFrame, SimpleNamespace]]:
    """Find the last change of each key, keep these rows on the executors, and check them.

    With `once`, rows that are lost with an executor are an error; otherwise, Spark reads them again.
    """
    columns = [column(name) for name in frame.columns if name not in HELPERS]
    bucket = F.pmod(F.xxhash64("key"), F.lit(_BUCKETS)).cast("int")
    size = sum((_bytes_of(column(field.name), field.dataType) for field in frame.schema), F.lit(0))
    found = latest_rows(frame).select(*columns, *HELPERS, bucket.alias(_BUCKET), size.alias(_SIZE))
    with kept_frame(found, once=once) as kept:
        total = _total(kept)
        if total.incomplete:
            raise incomplete_rows()
        if total.lacking and missing_state == "refuse":
            raise missing_state_error(str(total.example), total.lacking)
        total.is_latest = total.plan == LATEST_MARK
        if total.is_latest:
            total.plan = None
        total.columns, total.source = columns, _source(total.first, total.last)
        yield _judged(kept) if total.lacking else kept, total


@contextmanager
def kept_frame(frame: DataFrame, *, once: bool) -> Iterator[DataFrame]:
    """Keep the rows of a frame on the executors.

    Args:
        frame: The frame.
        once: See `kept_rows`.
    """
    is_kept, kept = True, frame
    if once:
        try:
            kept = frame.localCheckpoint(eager=True)
        except AnalysisException as error:
            raise MulticloudDbError(
                f"this platform refuses localCheckpoint ({_first_line(error)}), and without it the rows that "
                "were checked may not be those that are written; run the query on compute that allows it, or "
                "write a Delta table with merge_into_delta",
                ErrorDetail(ErrorCategory.UNSUPPORTED_CAPABILITY, reason=ErrorReason.NOT_OFFERED),
            ) from error
    else:
        try:
            kept = frame.coalesce(_TASKS).persist(StorageLevel.MEMORY_AND_DISK)
        except AnalysisException as error:  # Spark then reads the same rows again for each piece
            is_kept = False
            text = "this platform refuses persist, so the batch is read again for each piece: %s"
            _LOG.warning(text, _first_line(error))
    try:
        yield kept
    finally:
        if once:
            _free(kept)
        elif is_kept:
            kept.unpersist()


def _judged(kept: DataFrame) -> DataFrame:
    """Return the last changes with the type `LACKING` for those without their documents."""
    return kept.withColumn("type", F.when(F.expr(LACKS_STATE), LACKING).otherwise(F.col("type")))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


def _free(kept: DataFrame) -> None:
    """Free the blocks of a local checkpoint, which Spark otherwise does when the JVM collects garbage."""
    # Over Connect, the server does it when the client forgets the frame.
    plan = getattr(kept, "_jdf", None)
    if plan is not None:
        plan.queryExecution().logical().rdd().unpersist(False)


def collected_in_pieces(
    frame: DataFrame,
    max_bytes: int,
    missing_state: MissingState = "refuse",
    check: Callable[[DataFrame], None] | None = None,
) -> Generator[Piece, None, None]:
    """Collect the last change of each key.

    Args:
        frame: The changes, from `needed`.
        max_bytes: See `merge_into_delta`.
        missing_state: See `merge_into_delta`.
        check: Called with the rows of all pieces before the first piece, if there are several; it may refuse
            them.
    """
    with kept_rows(frame, missing_state) as (kept, total):
        cuts = _cuts(kept, total, _bound(frame, max_bytes))
        if check is not None and len(cuts) > 1:
            check(kept.select(*total.columns))
        for number, (first, last) in enumerate(cuts, 1):
            rows = kept.where(F.col(_BUCKET).between(first, last)).select(*total.columns).toArrow()
            yield Piece(
                rows, number == len(cuts), total.plan, bool(total.lacking), total.is_latest, total.source
            )


def last_changes_in_pieces(frame: DataFrame, max_bytes: int) -> Generator[pa.Table, None, None]:
    """Collect the last change of each key, with all columns of the changes.

    Args:
        frame: The changes.
        max_bytes: See `merge_into_delta`.
    """
    check_functions(frame.sparkSession)
    bucket = F.pmod(F.xxhash64("key"), F.lit(_BUCKETS)).cast("int")
    size = sum((_bytes_of(column(field.name), field.dataType) for field in frame.schema), F.lit(0))
    found = latest_rows(frame).select("*", bucket.alias(_BUCKET), size.alias(_SIZE))
    with kept_frame(found, once=False) as kept:
        row = kept.agg(F.count(F.lit(1)).alias("rows"), F.sum(_SIZE).alias("size")).toArrow().to_pylist()[0]
        for first, last in _cuts(kept, SimpleNamespace(**row), _bound(frame, max_bytes)):
            yield kept.where(F.col(_BUCKET).between(first, last)).drop(_BUCKET, _SIZE).toArrow()


def column(name: str) -> Column:
    """Return the column with exactly this name; dots in the name do not select nested fields.

    In the text of an expression, with `spark.sql.parser.quotedRegexColumnNames`, a name in backticks is a
    pattern for the names of several columns.

    Args:
        name: The name.
    """
    return F.col(in_backticks(name))


def _total(kept: DataFrame) -> SimpleNamespace:
    known = F.coalesce(F.col("type").isin(*CHANGE_TYPES), F.lit(False))
    incomplete = F.col("key").isNull() | F.col("order_key").isNull() | ~known
    lacks = F.expr(LACKS_STATE) if DOCUMENT in kept.columns else F.lit(False)
    found = kept.agg(
        F.count(F.lit(1)).alias("rows"),
        F.coalesce(F.sum(_SIZE), F.lit(0)).alias("size"),
        F.coalesce(F.sum(incomplete.cast("long")), F.lit(0)).alias("incomplete"),
        F.coalesce(F.sum(lacks.cast("long")), F.lit(0)).alias("lacking"),
        F.min(F.when(lacks, F.col("key"))).alias("example"),
        F.max(PLAN).alias("plan"),
        # The id comes first in the text, so all rows have the same one if the first and the last have.
        F.min(SOURCE).alias("first"),
        F.max(_LAST).alias("last"),
    )
    [row] = found.toArrow().to_pylist()
    return SimpleNamespace(**row)


def _source(*texts: str | None) -> FeedSource | None:
    """Return the feed that the first and the last row name."""
    found = [json.loads(text) for text in texts if text]
    if len(found) < len(texts):
        return None
    return source_of((each.get("p"), each.get("d"), each.get("c")) for each in found)


def _cuts(kept: DataFrame, total: SimpleNamespace, bound: int) -> list[tuple[int, int]]:
    """Return the numbers of the first and the last bucket of each piece."""
    if not total.rows:
        return []
    if total.size <= bound:
        return [(0, _BUCKETS - 1)]
    sizes = kept.groupBy(_BUCKET).agg(F.sum(_SIZE).alias(_SIZE)).toArrow().to_pylist()
    cuts: list[tuple[int, int]] = []
    filled = 0
    for number, size in sorted((row[_BUCKET], row[_SIZE]) for row in sizes):
        if cuts and filled + size <= bound:
            cuts[-1] = cuts[-1][0], number
            filled += size
        else:
            cuts.append((number, number))
            filled = size
    return cuts


def _bytes_of(value: Column, kind: DataType) -> Column:
    """Estimate the size of a value in Arrow."""
    if isinstance(kind, StructType):
        fields = ((value.getField(field.name), field.dataType) for field in kind)
        return sum((_bytes_of(part, of) for part, of in fields), F.lit(1))
    if isinstance(kind, StringType | BinaryType):
        length = F.octet_length(value)
    elif isinstance(kind, ArrayType | MapType) or kind.typeName() == "variant":
        # In JSON, a number and the comma after it take at least two characters; in Arrow, eight bytes. A
        # field without a value also takes eight bytes in Arrow.
        json = F.to_json(F.struct(value.alias("v")), {"ignoreNullFields": "false"})
        length = F.octet_length(json) * 4
    else:
        return F.lit(16)
    return F.coalesce(length.cast("long"), F.lit(0)) + F.lit(8)


def _bound(frame: DataFrame, max_bytes: int) -> int:
    """Return `max_bytes`, or half of Spark's limit on collected results if this half is smaller."""
    limit = setting(frame.sparkSession, "spark.driver.maxResultSize", "1g") or "1g"
    found = re.fullmatch(r"(\d+)([kmgtp]?)b?", limit.strip().lower())
    allowed = int(found[1]) * _UNITS[found[2]] if found else 0
    return min(max_bytes, allowed // 2) if allowed else max_bytes
