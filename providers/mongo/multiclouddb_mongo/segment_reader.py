"""Reads one segment of a scan."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from typing import Final

from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure, PyMongoError

from multiclouddb_api import Notice
from multiclouddb_mongo.mapping import View
from multiclouddb_mongo.pymongo_internals import GivenUp, Rows, next_answer
from multiclouddb_mongo.raw_row import bytes_of
from multiclouddb_mongo.rows import RowMapper
from multiclouddb_mongo.scan_position import MAX_KEY, Range
from multiclouddb_mongo.scan_source import ScanSource
from multiclouddb_spi import Batch, Continue, Deadline, Ended, Outcome, Reader, Scanned, cancelled

__all__ = ["SegmentReader"]

_LEAST_BATCH: Final = 100
_MOST_BATCH: Final = 1000


class SegmentReader(Reader):
    """Reads the rows of a segment in the order of their `_id`, through one cursor that stays open.

    The server ends the cursor of a collection that is dropped or renamed. A new cursor finds the collection
    by name, so the UUID is checked for each new cursor, after its first answer.

    Args:
        source: The scanned collection.
        view: The properties that all events of the segment share.
        plan_id: The snapshot's id.
        start: The start position.
        look: A function that each fetch calls to compare the position of the stream with the log.
    """

    def __init__(
        self, source: ScanSource, view: View, plan_id: str, start: Range, look: Callable[[], None]
    ) -> None:
        self._source, self._view, self._plan_id, self._place, self._look = source, view, plan_id, start, look
        self._rows: list[bytes] = []
        self._cursor: Rows | None = None
        self._session: ClientSession | None = None
        # The segment is empty if the collection had no rows when the snapshot began, or if nothing sorts
        # after the last row.
        self._exhausted = not start.uuid or start.begin == f"({MAX_KEY}"
        self._outcome: Outcome = Continue()
        self._cancelled = threading.Event()
        self._requests = 0

    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        """Return the next rows: the rest of the server's last answer, or one more answer.

        `max_bytes` has no effect, but an answer has at most 16 MB. If the cursor is lost, a new cursor is
        opened after the last row, but only once per fetch.
        """
        start, self._requests = self._place, 0
        rows: list[bytes] = []
        if isinstance(self._outcome, Continue):
            if not self._rows and not self._exhausted:
                self._source.begin(0)
                self._answer(max_records)
                self._source.calm()
            rows = self._taken(max_records, max_bytes)
        self._look()
        mapper = RowMapper(self._view, self._plan_id, start)
        self._place = mapper.range_after(start, rows, len(rows))
        if isinstance(self._outcome, Continue) and self._exhausted and not self._rows:
            self._outcome = Scanned()
        return Batch(
            rows,
            mapper,
            start.cursor(),
            self._place.cursor(),
            self._outcome,
            sum(map(len, rows)),
            caught_up=not isinstance(self._outcome, Continue),
            requests=self._requests,
        )

    def longest_fetch(self) -> float:
        """See `MongoReader.longest_fetch`; the server may search for a row that fits the scope."""
        return self._source.longest_fetch()

    def cancel(self) -> None:
        """Close the cursor that a running fetch is reading.

        The server then immediately stops working on the query.
        """
        if not self._source.bounded:
            self._source.be_patient()
        self.halt()
        self._close_cursor()

    def halt(self) -> None:
        """Prevent further calls."""
        self._cancelled.set()

    def close(self) -> None:
        """Close the cursor, also on the server."""
        self._close_cursor()
        self._rows = []

    def _taken(self, max_records: int, max_bytes: int) -> list[bytes]:
        sizes = list(accumulate(map(len, self._rows[:max_records])))
        count = max(1, bisect_right(sizes, max_bytes))
        rows, self._rows = self._rows[:count], self._rows[count:]
        return rows

    def _answer(self, max_records: int) -> None:
        """Take one answer from the server. PyMongo retries a `find`, but not a `getMore`."""
        lost = self._cursor is not None
        while True:
            if self._cancelled.is_set():
                raise cancelled()
            try:
                self._next(max_records)
                return
            except GivenUp:
                self._close_cursor()
                if not self._cancelled.is_set():
                    self._source.be_patient()
                raise
            except PyMongoError as error:
                self._close_cursor()
                if self._ended_by(error):
                    return
                if not lost or self._cancelled.is_set() or not self._source.client.options.retry_reads:
                    raise
                lost = False

    def _next(self, max_records: int) -> None:
        fresh = self._cursor is None
        with self._source.at_work():
            if self._cursor is None:
                self._open(max_records)
            cursor = self._cursor
            assert cursor is not None
            self._requests += 1
            answer = next_answer(cursor)
        if fresh:
            self._requests += 1
            notice = self._source.gone(self._place)
            if notice is not None:
                self._end(notice)
                return
        # If the cursor was closed in the meantime, it is not known whether rows are left. `cancel` may also
        # close it during the following lines, so `alive` is read first.
        alive = cursor.alive
        if self._cancelled.is_set():
            self._close_cursor()
            raise cancelled()
        rows = bytes_of(answer)
        self._rows = RowMapper(self._view, self._plan_id, self._place).unread(self._place, rows)
        if not alive:
            self._exhausted = True
            self._close_cursor()

    def _open(self, max_records: int) -> None:
        size = min(_MOST_BATCH, max(_LEAST_BATCH, max_records))
        with self._source.opening():
            self._session = self._source.session(self._place)
            self._cursor = self._source.rows(self._place, self._session, size)

    def _ended_by(self, error: PyMongoError) -> bool:
        """Return True if the server refuses to continue because the collection no longer exists."""
        if not isinstance(error, OperationFailure) or not self._source.may_be_gone(error):
            return False
        notice = self._source.gone(self._place)
        if notice is None:
            return False
        self._end(notice)
        return True

    def _end(self, notice: Notice) -> None:
        self._close_cursor()
        self._rows, self._exhausted, self._outcome = [], True, Ended(notice)

    def _close_cursor(self) -> None:
        cursor, self._cursor = self._cursor, None
        session, self._session = self._session, None
        if cursor is not None:
            self._source.close(cursor)
        if session is not None:
            with suppress(Exception):
                session.end_session()
