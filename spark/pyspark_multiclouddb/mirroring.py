"""Reads the changes for a mirror as a query of Structured Streaming.

The mirror keeps its position with the table, so each run begins a query at that position, with a checkpoint
of its own that is removed when the run ends. Nothing else is needed to go on, and so a run on Spark and one
without it may follow each other in any order.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from multiclouddb_api import (
    BackfillDone,
    Beginning,
    ChangeFeedPage,
    ChangeFeedRequest,
    ClientConfig,
    EntireCollection,
    ErrorCategory,
    ErrorDetail,
    FeedEnded,
    FromContinuationToken,
    MulticloudDbError,
    NewItemStateMode,
    Notice,
    Resnapshot,
    ResourceAddress,
    Snapshot,
    SnapshotStarted,
    invalid_request,
)
from multiclouddb_spi.continuation.lineage import INSPECTED, Lineage
from multiclouddb_spi.continuation.state import FeedOver, end_to_json
from multiclouddb_spi.continuation.token import Envelope, decode_token, encode_token, scope_text
from multiclouddb_tables.batch import MergedSnapshot
from pyspark_multiclouddb.checkpoint import Checkpoint
from pyspark_multiclouddb.errors import detail_from_query, told_by_executors
from pyspark_multiclouddb.options import CONNECTION, STARTING_TOKEN
from pyspark_multiclouddb.pieces import last_changes_in_pieces
from pyspark_multiclouddb.session import is_on, local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkReading"]

_PIECE_BYTES: Final = 64 << 20
_LOOK_SECONDS: Final = 1
_NAMED: Final = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
"""The setting of Spark 4.2 and newer with which every source of a query must have a name."""
_Took: TypeAlias = Callable[[ChangeFeedPage, Callable[[], Iterator[pa.Table]]], None]


class SparkReading:
    """One query, which another thread may stop.

    Args:
        spark: The Spark session; True for one on this machine.
        config: How Spark's processes connect to the database.
        request: What to read; its scope is the whole collection.
        follows: False to end the query when it has read what was there when it began.
    """

    def __init__(
        self, spark: Any, config: ClientConfig, request: ChangeFeedRequest, *, follows: bool
    ) -> None:
        self._spark: SparkSession = local_session("multiclouddb mirror") if spark is True else spark
        self._config, self._request, self._follows = config, request, follows
        try:
            _ = self._spark.sparkContext
        except Exception as error:  # the error depends on the version of Connect
            raise invalid_request(
                "spark",
                f"is {type(spark).__name__}, which does not run in this process, or is no Spark session",
                "run this in the driver, for example with spark-submit, and pass "
                "SparkSession.builder.getOrCreate()",
            ) from error
        self._options = _options(config, request)
        start = request.start_position
        self._last: str | None = None
        if isinstance(start, FromContinuationToken) and not decode_token(start.token).fresh:
            self._last = start.token
        # The query ends after `stop`, and after the failure of a batch.
        self._stopped, self._over, self._busy = Event(), Event(), Lock()
        self._failure: Exception | None = None
        self._folder = ""

    def stop(self) -> None:
        """End the query; any thread or signal handler may call this."""
        self._stopped.set()
        self._over.set()

    def run(self, took: _Took) -> None:
        """Read until the end, or until `stop`.

        Args:
            took: Called in another thread, for one micro-batch after the other, with a page without events
                and a function that returns the last change of each key in Arrow tables. When it returns, the
                token of the page may be stored.

        Raises:
            MulticloudDbError: What `took` has raised, or why the changes cannot be read.
        """
        from pyspark.errors import StreamingQueryException

        # A query that Spark no longer waits for (`stopTimeout`) may still write into its checkpoint.
        made = tempfile.TemporaryDirectory(prefix="multiclouddb-mirror-", ignore_cleanup_errors=True)
        with made as self._folder:
            reader = self._spark.readStream.format("multiclouddb").options(**self._options)
            if is_on(self._spark, _NAMED, default=False):
                reader = reader.name("multiclouddb")
            writer = reader.load().writeStream.foreachBatch(
                lambda frame, number: self._merge(took, frame, number)
            )
            # Spark takes an escape in a URL for the characters of a name.
            url = "file:///" + Path(self._folder).as_posix().lstrip("/")
            writer = writer.option("checkpointLocation", url)
            query = (writer if self._follows else writer.trigger(availableNow=True)).start()
            try:
                while not self._over.is_set() and not query.awaitTermination(_LOOK_SECONDS):
                    pass
            except StreamingQueryException as error:
                raise _failed(error) from error
            finally:
                self._over.set()
                try:
                    query.stop()
                except Exception as error:
                    if "TimeoutException" not in str(error):  # spark.sql.streaming.stopTimeout is over
                        raise
                finally:
                    with self._busy:  # a batch that Spark has given up may still be merged
                        pass
        if self._failure is not None:
            raise self._failure

    def _merge(self, took: _Took, frame: DataFrame, number: int) -> None:
        with self._busy:
            if self._over.is_set():
                return
            try:
                with told_by_executors():
                    page = self._page(number)
                    took(page, lambda: last_changes_in_pieces(frame, _PIECE_BYTES))
                self._last = None if decode_token(page.continuation_token).fresh else page.continuation_token
            except Exception as error:  # noqa: BLE001 - raised by `run`; py4j would print it too
                # Spark's own error, of a batch that was stopped, says nothing.
                if isinstance(error, MulticloudDbError) or not self._stopped.is_set():
                    self._failure = error
                self._over.set()

    def _page(self, number: int) -> ChangeFeedPage:
        """Return what the offsets of a batch say: its notices, and the position after it."""
        told = Checkpoint(self._folder)
        told.check_rows(number)
        offset, notices = told.end(number), _notices(told.scan(number))
        lineage = Lineage.from_json(offset["c"], INSPECTED)
        if lineage.plan is not None:
            lineage.change_plan(announced=True)  # by the notice on this page, or on an earlier one
        state = lineage.to_json()
        if not len(lineage):
            over = FeedOver("every partition has ended")
            state, notices = end_to_json(over), (*notices, FeedEnded(over.reason))
        provider, database, collection = offset["feed"]
        token = encode_token(
            Envelope(
                provider, ResourceAddress(database, collection), offset["inc"],
                scope_text(EntireCollection()), "", state, fresh=bool(offset.get("fresh")),
            )
        )  # fmt: skip
        return ChangeFeedPage((), token, notices=notices, resumed_from=self._last)


def _notices(scan: MergedSnapshot | None) -> tuple[Notice, ...]:
    """Return the notices of pages that say the same of a snapshot."""
    notices: list[Notice] = []
    if scan is not None and scan.is_first:
        notices.append(SnapshotStarted(scan.floor, scan.plan))
    if scan is not None and scan.is_over and not scan.was_over:
        notices.append(BackfillDone(scan.plan, scan.floor))
    return tuple(notices)


def _options(config: ClientConfig, request: ChangeFeedRequest) -> dict[str, str]:
    """Return the options of the source."""
    if request.provider_options is not None and request.provider_options.position_digest():
        raise invalid_request("spark", "does not know provider_options", "leave them out, or run without it")
    found = {"provider": config.provider, "collection": request.address.collection or ""}
    for name, value in config.connection.items():
        text = str(value)
        found[f"{CONNECTION}{name}"] = text.lower() if isinstance(value, bool) else text
    if request.address.database is not None:
        found["database"] = request.address.database
    if request.new_item_state_mode is not NewItemStateMode.INCLUDE_IF_AVAILABLE:
        found["newItemState"] = str(request.new_item_state_mode.value)
    if isinstance(request.on_expired, Resnapshot):
        found["failOnDataLoss"] = "resnapshot"
    match request.start_position:
        case FromContinuationToken(token):
            found[STARTING_TOKEN] = token
        case Beginning():
            found["startingPosition"] = "beginning"
        case Snapshot(order, segments) as start:
            if start.max_scan_rate is not None:
                way_out = "leave it out, or run without Spark"
                raise invalid_request("max_scan_rate", "is given, but Spark's tasks do not keep it", way_out)
            found |= {"startingPosition": "snapshot", "snapshotOrder": order.value}
            if segments is not None:
                found["snapshotSegments"] = str(segments)
        case other:
            raise invalid_request("start", f"is {type(other).__name__}", "begin with a snapshot")
    return found


def _failed(error: Exception) -> MulticloudDbError:
    """Return the error of a query that no batch has raised."""
    found = detail_from_query(error)
    if found is not None:
        return MulticloudDbError(*found)
    first = str(error).strip().partition("\n")[0]
    return MulticloudDbError(
        f"spark: the query has failed ({first[:300]}); its log has the reason; then start the mirror again, "
        "which goes on from the position of the table",
        ErrorDetail(ErrorCategory.PERMANENT_FAILURE),
    )
