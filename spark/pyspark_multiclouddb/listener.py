"""Provides a listener that prints the progress of queries as a table."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

from pyspark.sql.streaming.listener import StreamingQueryListener

from pyspark_multiclouddb.errors import check_has

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

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
    """Prints one line for each micro-batch.

    If changes were skipped or could not be decoded, an additional line shows the last place. If an audit
    found partitions late, another one shows how many.

    Before Spark 4.2, a source cannot report its progress, so `events` and the columns after it stay empty.

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
                self._write(f"  partitions that an audit found late: {report['foundLate']}")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Print nothing, because an idle query has no micro-batch.

        Args:
            event: The event; Spark passes it.
        """

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
