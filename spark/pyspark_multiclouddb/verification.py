"""Compares a table with its collection on Spark's executors, for tables that are too large for one process.

1. Read K first, as `verify` does. The driver follows the stream while the executors read.
2. A task reads a segment of the scan, or some files of one version of the table. It returns the keys with the
   digests of their rows, and one row without key that says what was read.
3. Compare both sides by a full outer join on the key.
4. The driver reads the stream up to now, so each change between K and the values that were compared is known.
   Keys that have changed are joined by the hash, with the digests of their versions.
5. Only keys that differ, and keys that have changed, come to the driver, which judges them in the rounds of
   `verify`. In a round the executors read the table, and return the rows of these keys alone.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import islice
from types import NoneType
from typing import Any, Final, TypeVar, Unpack

import attrs
import numpy as np
import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from multiclouddb_api import (
    ChangeFeedPage,
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    FromContinuationToken,
    MulticloudDbClient,
    MulticloudDbError,
    PhysicalPartition,
    ProviderOptions,
    ResourceAddress,
    ScanFloor,
    Snapshot,
    connect,
    invalid_request,
)
from multiclouddb_api.validators import check_type
from multiclouddb_tables.contract import Fix, Own, Part, SupportsParts, SupportsRecord
from multiclouddb_tables.mark import Expected, FoundTable
from multiclouddb_verify import Report
from multiclouddb_verify.comparison import GONE
from multiclouddb_verify.digests import ORDER_MASK, order_digests, row_digests, source_digests, target_rows
from multiclouddb_verify.own_columns import DeclaredColumns, OwnColumns
from multiclouddb_verify.runs import Rows, rows_of
from multiclouddb_verify.source import Source, key_texts, read_past, skipped_on
from multiclouddb_verify.texts import column_digests
from multiclouddb_verify.verification import (
    ComparisonSettings,
    Verification,
    VerifySettings,
    checked,
)
from pyspark_multiclouddb.errors import check_has, detail_from_query, source_errors
from pyspark_multiclouddb.functions import check_functions

T = TypeVar("T")

_PAGE: Final = 10_000
_AT_ONCE: Final = 10_000
_BEHIND: Final = 100
_FOLLOW_SECONDS: Final = 1.0
_DIGESTS: Final = (
    "key string, is_ours boolean, hash bigint, digest bigint, mark int, parts int, read bigint, "
    "charge double, skipped string"
)
_ROWS: Final = "key string, order_key string, state string, deleted boolean"
_CHANGES: Final = "hash bigint, digest bigint, mark int"


def verify_with_spark(
    spark: SparkSession,
    client: MulticloudDbClient,
    address: ResourceAddress | str,
    target: SupportsParts,
    *,
    segments: int | None = None,
    **settings: Unpack[ComparisonSettings],
) -> Report:
    """Compare a table with its collection as `multiclouddb_verify.verify` does, on Spark's executors.

    The promises and the report are those of `verify`, but the driver's memory does not grow with the rows:
    the executors read the segments of the scan and the files of the table, and compare them. The driver
    follows the stream, judges the keys that differ or have changed, and repairs.

    There are two differences. A comparison that was killed cannot be resumed, because what the executors have
    read is gone with the session; so there are no `resume` and no `transform_name`. And whether the table is
    that of another collection (`adopt`) is decided by all keys, after both sides have been read.

    Args:
        spark: The session. The executors need this package, deltalake, and the provider of the client.
        client: The client of the source. Each task connects with its configuration; an object that was given
            as `native_client` is not used there.
        address: The collection, or its text.
        target: The table, for example `DeltaTarget(path)`, in a place that the executors can read.
        segments: The number of segments of the scan, each of which is read by one task; by default the
            database decides.
        **settings: See `ComparisonSettings`. `max_scan_rate` is that of all tasks together; the executors
            call `transform`; the folder `state` has only the changes, and the keys that are judged.

    Returns:
        The report, with the differences that are left.

    Raises:
        MulticloudDbError: As `verify`. An error of a task that comes neither from the database nor from the
            table is raised as Spark raises it.
    """
    check_has("spark", spark, "createDataFrame", "a SparkSession")
    check_type("segments", segments, int, NoneType)
    for name in VerifySettings.__annotations__.keys() - ComparisonSettings.__annotations__:
        if name in settings:
            if name in ("keys", "partition_key"):
                raise invalid_request(
                    name, "is given, but verify_with_spark reads the whole table", "call verify instead"
                )
            raise invalid_request(
                name,
                "is given, but verify_with_spark cannot be resumed: what the executors read is gone with "
                "their session",
                "leave it out",
            )
    source = checked(client, address, target, SupportsParts, settings)
    check_functions(spark)
    return _OnExecutors(spark, segments, source, target, **settings).run()


class _OnExecutors(Verification):
    """A comparison whose digests are computed and compared by Spark."""

    _reader = "executors"

    def __init__(
        self,
        spark: SparkSession,
        segments: int | None,
        source: Source,
        target: SupportsParts,
        **settings: Any,
    ) -> None:
        gone = "what the executors had read is gone with their session"
        super().__init__(source, _Table(spark, target), advice=gone, **settings)
        self._spark, self._segments, self._parts = spark, segments, target.parts

    def _compare_sides(self) -> None:
        state = self._sides.state
        self._sides.tell("scan")
        joined = list[DataFrame]()

        def read() -> None:
            while joined:
                joined.pop().unpersist()
            try:
                joined.append(self._joined().persist(StorageLevel.DISK_ONLY))
            except AnalysisException as error:
                raise MulticloudDbError(
                    "this platform refuses persist, and without it the rows may be read again later than the "
                    "changes that they are compared with; run it on compute that allows persist, or use "
                    "verify, which needs no Spark",
                    ErrorDetail(ErrorCategory.UNSUPPORTED_CAPABILITY, reason=ErrorReason.NOT_OFFERED),
                ) from error
            self._while_following(joined[0].count)

        try:
            self._sides.retried(read)
            window = self._sides.next_position()
            self._sides.follower(state.fact("follow") or "").catch_up()
            self._sides.tell("compare")
            self._compare_digests(joined[0], window)
        finally:
            for each in joined:
                each.unpersist()

    def _while_following(self, action: Callable[[], object]) -> None:
        """Run a job, and follow the stream meanwhile, so that its position does not expire."""
        tag = f"multiclouddb-verify-{uuid.uuid4().hex}"

        def run() -> None:
            self._spark.addTag(tag)
            action()

        follower = self._sides.follower(self._sides.state.fact("follow") or "")
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(run)
            try:
                while not job.done():
                    if len(follower.read().events) < _BEHIND:
                        wait([job], _FOLLOW_SECONDS)
            except BaseException:  # whatever ends the wait: Spark would go on with the job
                self._spark.interruptTag(tag)
                raise
        _checked(job.result)

    def _joined(self) -> DataFrame:
        """Return a row for each key of one of the sides; rows without key say what was read."""
        source = self._sides.source
        start = Snapshot(segments=self._segments, max_scan_rate=source.max_scan_rate, changes=False)
        request = ChangeFeedRequest(source.address, start, provider_options=source.provider_options)
        planned = [(each[0], each[1]) for each in source.client.plan_partitions(request).segments]
        sample, columns = self._sides.chosen.sample or 1, self._sides.columns
        has_own = self._sides.facts.floor == ScanFloor.ROW
        scan = _Scan(source.client.config, source.address, source.provider_options, columns, sample, has_own)
        files = _Files(self._sides.first_ceiling(), sample, columns)
        ours = _tasks(self._spark, planned, scan, _DIGESTS)
        theirs = _tasks(self._spark, self._parts(own=self._sides.own), files, _DIGESTS)

        def of(side: Column, name: str) -> Column:
            return f.when(side, f.col(name))

        is_ours, is_theirs = f.col("is_ours"), ~f.col("is_ours")
        return (
            ours.unionByName(theirs)
            .groupBy("key", "skipped")
            .agg(
                f.max("hash").alias("hash"),
                # A row that the scan has delivered twice with the same value counts once.
                f.min(of(is_ours, "digest")).alias("least"),
                f.max(of(is_ours, "digest")).alias("digest"),
                f.min(of(is_ours, "mark")).alias("least_own"),
                f.max(of(is_ours, "mark")).alias("own"),
                f.count(of(is_theirs, "hash")).alias("copies"),
                f.max(of(is_theirs, "digest")).alias("found"),
                f.max(of(is_theirs, "mark")).alias("mark"),
                f.max("parts").alias("parts"),
                f.sum(of(is_ours, "read")).alias("rows"),
                f.sum(of(is_theirs, "read")).alias("target_rows"),
                f.sum("charge").alias("charge"),
            )
        )

    def _compare_digests(self, joined: DataFrame, window: str) -> None:
        """Compare the digests as `Rounds` does, and store the keys that have to be judged one by one."""
        state = self._sides.state
        is_single = (f.col("copies") <= 1) & f.col("least").eqNullSafe(f.col("digest"))
        is_single &= f.col("least_own").eqNullSafe(f.col("own"))
        mark = f.col("mark").bitwiseAND(f.lit(ORDER_MASK))
        is_suspect = f.coalesce(f.col("mark") < 0, f.lit(False))
        if self._sides.facts.floor == ScanFloor.ROW:
            is_suspect |= f.coalesce(f.col("own") != mark, f.lit(False))
        wanted, found = (f.coalesce(f.col(name), f.lit(GONE)) for name in ("digest", "found"))
        is_same = is_single & (wanted == found) & ~is_suspect
        has_version = f.array_contains("versions", f.struct(found.alias("digest"), mark.alias("mark")))
        compared = joined.where("key IS NOT NULL").join(self._changes(), "hash", "left")
        compared = compared.select(
            "key", "digest", "found",
            f.col("versions").isNotNull().alias("moved"),
            is_same.alias("same"),
            f.coalesce((f.col("copies") == 1) & has_version, f.lit(False)).alias("settled"),
        )  # fmt: skip
        still = ~f.col("moved") & f.col("digest").isNotNull()
        is_ghost = ~f.col("moved") & f.col("digest").isNull() & (f.col("found") != GONE)
        told = _checked(joined.where("key IS NULL").collect)
        [sums] = _checked(
            compared.agg(
                f.count(f.when(still, 1)).alias("still"),
                f.count(f.when(still & f.col("same"), 1)).alias("equal"),
                f.count(f.when(is_ghost, 1)).alias("ghosts"),
            ).collect
        )
        self._sides.check_foreign(sums.still - sums.equal + sums.ghosts, sums.still + sums.ghosts)
        with state.transaction():
            state.clear_pending()
            state.put("window", window)
            # A key that has changed is judged, also if neither side has it.
            state.add_changed(self._sides.chosen.sample or 1)
        rest = compared.where("moved OR NOT same").toLocalIterator()
        equal = sums.equal
        while chunk := _checked(lambda: list(islice(rest, _AT_ONCE))):
            equal += self._keep(chunk)
        with state.transaction():
            state.put("rows", sum(read.rows or 0 for read in told))
            state.put("target_rows", sum(read.target_rows or 0 for read in told))
            for read in told:
                if read.parts is not None:
                    state.put("parts", read.parts)
                if read.charge is not None:
                    state.put("charge", float(state.fact("charge") or 0) + read.charge)
                if read.skipped is not None:
                    state.leave_out(map(tuple, json.loads(read.skipped)))
            state.put("equal", equal)
        self._sides.tell("compare", rows=state.number("rows"), target_rows=state.number("target_rows"))

    def _keep(self, chunk: Sequence[Row]) -> int:
        """Store keys to judge, and remove those whose row has one of their versions; return their number."""
        state = self._sides.state
        settled = [row for row in chunk if row.moved and row.settled]
        waiting = [row for row in chunk if not (row.moved and row.settled)]

        def pending(*, moved: bool) -> Iterator[tuple[str, int]]:
            for row in waiting:
                if row.moved is moved:
                    yield row.key, GONE if row.digest is None else row.digest

        with state.transaction():
            state.settle(row.key for row in settled)
            state.add_pending(pending(moved=True))
            # A key that has not changed was judged here for the first time.
            state.add_pending(pending(moved=False), suspected_at=self._sides.clock())
        return sum(row.found != GONE for row in settled)

    def _changes(self) -> DataFrame:
        """Return the digests of the versions of each key that has changed, by the hash of the key."""
        batches = list[pa.RecordBatch]()
        for chunk in self._sides.state.changes(_AT_ONCE):
            hashes, orders, digests = zip(*chunk, strict=True)
            marks = pa.array(order_digests(orders), pa.int32())
            columns = [pa.array(hashes, pa.int64()), pa.array(digests, pa.int64()), marks]
            batches.append(pa.RecordBatch.from_arrays(columns, names=["hash", "digest", "mark"]))
        if batches:
            versions = self._spark.createDataFrame(pa.Table.from_batches(batches))
        else:
            versions = self._spark.createDataFrame([], _CHANGES)
        version = f.struct("digest", "mark")
        return versions.groupBy("hash").agg(f.collect_set(version).alias("versions"))


class _Table:
    """A target whose rows the executors read."""

    def __init__(self, spark: SparkSession, target: SupportsParts) -> None:
        self._spark, self._target = spark, target

    @property
    def name(self) -> str:
        return self._target.name

    def rows(self, keys: Sequence[str] | None = None, *, own: Own = False) -> Iterator[pa.RecordBatch]:
        if not keys:
            yield from self._target.rows(keys, own=own)
            return
        frame = _tasks(self._spark, self._target.parts(own=own), _Chosen(tuple(keys)), _ROWS)
        yield from _checked(frame.toArrow).to_batches()

    def columns(self) -> Mapping[str, pa.DataType | None]:
        return self._target.columns()

    def position(self) -> str | None:
        return self._target.position()

    def found(self, since: FoundTable | None = None) -> FoundTable:
        return self._target.found(since)

    def complete(self, expected: Expected) -> None:
        self._target.complete(expected)

    def fix(self, fixes: Sequence[Fix], expected: Expected) -> int:
        return self._target.fix(fixes, expected)

    def record(self, facts: dict[str, str], expected: Expected) -> None:
        if isinstance(self._target, SupportsRecord):
            self._target.record(facts, expected)


# -- What the executors run


@attrs.frozen
class _Scan:
    """Reads a segment of the scan."""

    config: ClientConfig
    address: ResourceAddress
    options: ProviderOptions | None
    columns: OwnColumns | DeclaredColumns | None
    sample: int
    has_own: bool

    def __call__(self, segment: tuple[str, str]) -> Iterator[pa.RecordBatch]:
        name, token = segment
        scope = PhysicalPartition(name)
        with connect(self.config) as client:
            while True:
                start = FromContinuationToken(token)
                request = ChangeFeedRequest(
                    self.address, start, scope, max_page_size=_PAGE, provider_options=self.options
                )
                page = read_past(client, request)
                yield self._digested(page)
                if page.partition_retired:
                    return
                token = page.continuation_token

    def _digested(self, page: ChangeFeedPage) -> pa.RecordBatch:
        texts = key_texts(page.events)
        digests = source_digests(page.events, self.columns)
        orders = order_digests([event.order_key for event in page.events]) if self.has_own else 0
        parts = page.events[0].key.partition_components if page.events else None
        charge = page.diagnostics.native_charge
        keys = pa.array([text.decode() for text in texts.texts()], pa.string())
        rows = rows_of(texts.digests(), digests, orders)
        skipped = json.dumps(found) if (found := skipped_on(page)) else None
        return _batch(keys, rows, self.sample, is_ours=True, parts=parts, charge=charge, skipped=skipped)


@attrs.frozen
class _Files:
    """Reads a part of the table."""

    ceiling: str
    sample: int
    columns: OwnColumns | DeclaredColumns | None

    def __call__(self, part: Part) -> Iterator[pa.RecordBatch]:
        for batch in part.rows():
            hashes = column_digests(batch.column("key"))
            rows = target_rows(batch, hashes, row_digests(batch, self.columns), self.ceiling)
            yield _batch(batch.column("key"), rows, self.sample, is_ours=False)


@attrs.frozen
class _Chosen:
    """Reads the rows of some keys from a part of the table."""

    keys: tuple[str, ...]

    def __call__(self, part: Part) -> Iterator[pa.RecordBatch]:
        yield from part.rows(self.keys)


def _batch(
    keys: pa.Array,
    rows: Rows,
    sample: int,
    *,
    is_ours: bool,
    parts: int | None = None,
    charge: float | None = None,
    skipped: str | None = None,
) -> pa.RecordBatch:
    """Return digests as `_DIGESTS` has them, and after them a row without key that says what was read."""
    read, chosen = len(rows), np.flatnonzero(rows["hash"] % sample == 0)
    rows, keys = rows[chosen], keys.take(pa.array(chosen))
    count = len(rows)
    if not is_ours:
        read = count

    def column(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.concat_arrays([pa.array(values, kind), pa.nulls(1, kind)])

    def told(value: float | str | None, kind: pa.DataType) -> pa.Array:
        return pa.concat_arrays([pa.nulls(count, kind), pa.array([value], kind)])

    return pa.RecordBatch.from_pydict(
        {
            "key": pa.concat_arrays([keys, pa.nulls(1, pa.string())]),
            "is_ours": pa.array([is_ours] * (count + 1), pa.bool_()),
            "hash": column(rows["hash"], pa.int64()),
            "digest": column(rows["digest"], pa.int64()),
            "mark": column(rows["order"], pa.int32()),
            "parts": told(parts, pa.int32()),
            "read": told(read, pa.int64()),
            "charge": told(charge, pa.float64()),
            "skipped": told(skipped, pa.string()),
        }
    )


def _tasks(
    spark: SparkSession, work: Sequence[T], read: Callable[[T], Iterator[pa.RecordBatch]], schema: str
) -> DataFrame:
    """Return what tasks read, each one piece of work."""
    if not work:
        return spark.createDataFrame([], schema)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with source_errors():
            for batch in batches:
                for number in batch["id"].to_pylist():
                    yield from read(work[number])

    return spark.range(0, len(work), 1, len(work)).mapInArrow(task, schema)


def _checked(action: Callable[[], T]) -> T:
    """Run a job; what a task has raised as `MulticloudDbError` is raised again as one."""
    try:
        return action()
    except PySparkException as error:
        if (found := detail_from_query(error)) is None:
            raise
        raise MulticloudDbError(*found) from error
