"""Reports the progress of a query, and prints it as a table.

From Spark 4.2 on, the field `sources[].latestOffset` of a query's progress contains a report, not an offset:

    {"events": 20, "foundLate": 0, "headroomSeconds": 86012.0, "idle": false, "lagSeconds": 1.2,
     "openWatches": 0, "partitions": 8, "poison": {"count": 0, "last": null},
     "readUntil": "2026-01-31T12:00:00Z", "readUntilEstimated": false,
     "skipped": {"count": 0, "last": null}, "snapshot": null, "v": 1, "waiting": 0}

`events` is the number of records in the planned step, or null if the number is not known before the records
are read. `readUntil`, `readUntilEstimated` and `lagSeconds` are `read_until`, `read_until_estimated` and
`lag_seconds` of `OperationDiagnostics`: all changes that are older than `readUntil` have been read when the
step ends. `headroomSeconds` is the time until the first position expires. With `failOnDataLoss=false`, a
query leaves out expired changes: `skipped.count` is the number of places at which this run skipped changes,
and `skipped.last` is the last of these places. With `onPoison=skip`, `poison` contains the number of changes
that could not be decoded, and the last of them. `foundLate` is the number of partitions that the service has
listed late, `openWatches` that of ended partitions which may have more children than are known, and `waiting`
that of partitions which are read after their parents or after the scan.

For a query that began with a snapshot, `snapshot` contains:

    {"floor": "…", "order": "ordered", "over": false, "plan": "9f…", "records": 100000, "segments": 100,
     "segmentsDone": 30}

`records` is the estimated number of rows of the whole scan, and `segmentsDone` includes the segments that
this step reads. After the scan, `snapshot` contains only `floor`, `over` and `plan`. During the scan,
`readUntil` is null, and `headroomSeconds` is the time for which the service still keeps the changes after the
snapshot.
"""

from __future__ import annotations

import json
import sys
import time
from ast import literal_eval
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TextIO

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from multiclouddb_api import invalid_request
from multiclouddb_api.redaction import rfc3339
from multiclouddb_spi import Step
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.token import ReadUntil, to_micros
from multiclouddb_spi.continuation.watermark import Standings
from multiclouddb_spi.segment import plan_id_of
from pyspark_multiclouddb.errors import check_has
from pyspark_multiclouddb.session import setting

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent
    from pyspark.sql.streaming.query import StreamingQuery

    from pyspark_multiclouddb.connection import Connection

_CLOCK_SECONDS: Final = 30.0
_KEPT: Final = "spark.sql.streaming.numRecentProgressUpdates"


class Reports:
    """Makes the reports of one run of a query."""

    def __init__(self) -> None:
        self._clock: tuple[datetime | None, float] | None = None
        self._standings = Standings()
        self._until: ReadUntil | None = None
        self._skipped: list[str] = []
        self._poison: list[str] = []
        self._found_late = 0

    def leave_out(self, poison: Sequence[tuple[str, str]]) -> None:
        """Count changes that this run leaves out because they cannot be decoded."""
        self._poison += [f"{where} at {position}" for where, position in poison]

    def report(
        self,
        connection: Connection,
        lineage: Lineage,
        step: Step | None,
        *,
        idle: bool,
        snapshot: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the progress report of a planned step."""
        if step is not None:
            self._skipped += step.skipped
            self._found_late += len(step.found_late)
        # The number of rows that a scan reads is not known before they are read.
        is_scan = step is not None and step.before.plan is not None and bool(step.ranges())
        events = 0 if step is None else None if is_scan else step.records
        active = lineage.active()
        feed, now = connection.feed, self._now(connection)
        answers = {} if step is None else step.answers
        progress = self._standings.measure(feed, lineage, answers, now, floor=self._until)
        until = progress.read_until
        if until is not None:
            self._until = ReadUntil(to_micros(until), progress.estimated)
        lag = None if until is None or now is None else max(0.0, (now - until).total_seconds())
        # The positions of the stream are kept, including those of partitions that wait for the scan.
        kept = [entry.cursor for entry in active if not lineage.is_segment(entry.partition_id)]
        if lineage.plan is not None:
            kept += [cursor for entry in lineage.waiting() for cursor in entry.said]
        rooms = [] if now is None else [feed.headroom(cursor, now) for cursor in kept]
        return {
            "events": events,
            "foundLate": self._found_late,
            "headroomSeconds": min((room for room in rooms if room is not None), default=None),
            "idle": idle,
            "lagSeconds": lag,
            "openWatches": sum(bool(end.children) for end in lineage.ends()),
            "partitions": sum(not lineage.is_segment(entry.partition_id) for entry in active),
            "poison": _told(self._poison),
            "readUntil": None if until is None else rfc3339(until),
            "readUntilEstimated": progress.estimated,
            "skipped": _told(self._skipped),
            "snapshot": None if snapshot is None else _scan(snapshot, lineage),
            "v": 1,
            "waiting": len(lineage.waiting()),
        }

    def _now(self, connection: Connection) -> datetime | None:
        """Return the service's time, extrapolated between two requests."""
        here = time.monotonic()
        if self._clock is None or here - self._clock[1] > _CLOCK_SECONDS:
            self._clock = connection.opened.call("clock", connection.feed.clock), here
        told, when = self._clock
        return None if told is None else told + timedelta(seconds=here - when)


def snapshot_state(
    known: Mapping[str, Any] | None,
    before: Lineage,
    after: Lineage,
    *,
    whole: bool = False,
    continued: bool = False,
) -> Mapping[str, Any] | None:
    """Return the state of the snapshot, as it is stored in the offset after a step."""
    plan = before.plan
    if plan is None:
        return known
    state = {"plan": plan_id_of(plan.partition_id), "floor": plan.floor, "over": after.plan is None}
    kinds = {"whole": whole, "continued": continued}
    return state | {name: True for name, is_so in kinds.items() if is_so or (known or {}).get(name)}


def _told(places: Sequence[str]) -> dict[str, Any]:
    return {"count": len(places), "last": places[-1] if places else None}


def _scan(snapshot: Mapping[str, Any], lineage: Lineage) -> dict[str, Any]:
    """Return the state of a snapshot, and the progress of its scan while the scan is running."""
    state = {name: snapshot[name] for name in ("floor", "over", "plan")}
    if lineage.plan is None:
        return state
    scan = lineage.plan.progress()
    numbers = {"records": scan.records, "segments": scan.segments, "segmentsDone": scan.segments_done}
    return {"order": scan.order.value, **state, **numbers}


def caught_up(query: StreamingQuery) -> bool:
    """Return True if a query with `trigger(availableNow=True)` has read everything.

    Some runs have only one micro-batch: with Spark 4.0 and 4.1; with `trigger(once=True)`; and if another
    source of the query, such as `rate`, does not support the trigger. Start the query again until this is
    True. Any other run reads everything, so this is True after it.

    Args:
        query: The query, after `awaitTermination()`.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if Spark is set to keep no progress, because the answer is there.

    Examples:
        >>> while True:
        ...     query = writer.trigger(availableNow=True).start()
        ...     query.awaitTermination()
        ...     if caught_up(query):
        ...         break
    """
    check_has("query", query, "lastProgress", "a streaming query")
    session = SparkSession.getActiveSession()
    if query.lastProgress is None and session is not None and _keeps_none(session):
        raise invalid_request(
            "query",
            f"keeps no progress, because {_KEPT} is less than 2",
            "set it to 2 or more, and start the query again",
        )
    sources = [] if query.lastProgress is None else query.lastProgress["sources"]
    ends = [_parsed(each["endOffset"]) for each in sources if each["startOffset"] != each["endOffset"]]
    return not any(isinstance(end, dict) and end.get("more") is True for end in ends)


def _keeps_none(session: SparkSession) -> bool:
    """Return whether a query keeps no progress; Spark keeps one less than it is set to."""
    try:
        return int(setting(session, _KEPT, "100") or "") < 2
    except ValueError:
        return False


def _parsed(offset: Any) -> Any:
    """Return the value of an offset's text, or None if the text is not an offset of this source."""
    for parse in (json.loads, literal_eval):
        with suppress(SyntaxError, TypeError, ValueError):
            return parse(offset)
    return None


_COLUMNS: Final = (
    ("query", 16),
    ("batch", 7),
    ("rows", 9),
    ("events", 9),
    ("lag s", 9),
    ("headroom s", 11),
    ("partitions", 10),
    ("skipped", 8),
    ("read until", 20),
)
_LINES_PER_HEAD: Final = 20


class ProgressTable(StreamingQueryListener):
    """Prints one line for each micro-batch, as a listener of a session.

    Another line follows if changes were skipped or could not be decoded, with the place of the last one, or
    if an audit has found partitions late. Before Spark 4.2, a source cannot report its progress, so `events`
    and the columns after it stay empty.

    Args:
        file: The file to print to; standard error by default.

    Examples:
        >>> spark.streams.addListener(ProgressTable())
    """

    def __init__(self, file: TextIO | None = None) -> None:
        if file is not None:
            check_has("file", file, "write", "an open text file")
        self._file = file
        self._lines = 0

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Print nothing, because there is nothing to show yet.

        Args:
            event: The event; Spark passes it.
        """

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Print a line for each source of this library.

        Args:
            event: The event; Spark passes it.
        """
        progress = event.progress
        for source in progress.sources:
            report = _report(source.latestOffset)
            skipped = report.get("skipped") or {}
            self._print(
                progress.name or str(progress.id)[:8],
                progress.batchId,
                source.numInputRows,
                *(report.get(name) for name in ("events", "lagSeconds", "headroomSeconds", "partitions")),
                skipped.get("count"),
                report.get("readUntil"),
            )
            if skipped.get("count"):
                self._write(f"  skipped, last: {skipped.get('last')}")
            poison = report.get("poison") or {}
            if poison.get("count"):
                self._write(f"  left out, cannot be decoded: {poison['count']}, last: {poison.get('last')}")
            if report.get("foundLate"):
                self._write(f"  partitions that were found late: {report['foundLate']}")

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Print how a query ended.

        Args:
            event: The event; Spark passes it.
        """
        self._write(f"query {str(event.id)[:8]} {'failed' if event.exception else 'ended'}")

    def _print(self, *values: Any) -> None:
        if self._lines % _LINES_PER_HEAD == 0:
            self._write("  ".join(name.rjust(width) for name, width in _COLUMNS))
        self._lines += 1
        texts = [
            "" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)
            for value in values
        ]
        columns = zip(texts, _COLUMNS, strict=True)
        self._write("  ".join(text[:20].rjust(width) for text, (_, width) in columns))

    def _write(self, line: str) -> None:
        print(line, file=self._file or sys.stderr, flush=True)


def _report(text: str | None) -> dict[str, Any]:
    """Return the progress report of this source, or an empty report for the offset of another source."""
    try:
        value = json.loads(text or "null")
    except ValueError:
        return {}
    return value if isinstance(value, dict) and "openWatches" in value else {}
