"""Reads one change stream."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Final, NoReturn

from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from multiclouddb_api import ErrorCategory, ErrorReason, Invalidated
from multiclouddb_mongo.driver import FIXED_AWAIT_MS, Stream
from multiclouddb_mongo.errors import (
    EVENT_TOO_LARGE,
    HISTORY_LOST,
    IMAGE_MISSING,
    OVERTAKEN,
    TIME_LIMIT,
    TOKEN_NOT_FOUND,
    code_of,
    is_too_large,
    is_unknown_token,
    lacks_image,
)
from multiclouddb_mongo.mapping import MongoMapper, MongoView
from multiclouddb_mongo.members import AHEAD_SECONDS
from multiclouddb_mongo.position import (
    After,
    At,
    Place,
    cursor_of,
    describe,
    is_reached,
    seconds_at,
    ticks_at,
    time_text,
)
from multiclouddb_mongo.raw_change import decoded, namespace_of, place_of_change, wall_seconds
from multiclouddb_mongo.source import CLOSED, LogEnd, ReaderContext
from multiclouddb_mongo.taker import Taken, Taker
from multiclouddb_spi import (
    Batch,
    Continue,
    Deadline,
    Ended,
    Outcome,
    ProviderFault,
    Reached,
    Reader,
    RecordFault,
    cancelled,
)
from multiclouddb_spi.faults import START_AGAIN
from multiclouddb_spi.time_limits import SILENT_SECONDS

# Larger answers are slower, because they are no longer in the processor's cache when they are decoded.
_LEAST_BATCH: Final = 100
_MOST_BATCH: Final = 500
# The engine asks for less than this after a connection has broken within an answer.
_BRIEF_BYTES: Final = 1 << 20
_SHORT_AWAIT_MS: Final = 10
# Closing a stream also ends the answer that its server delays.
_LONG_AWAIT_MS: Final = 1000
_CAREFUL_SECONDS: Final = 0.5
_CAREFUL_LOOKS: Final = 20
# Wall clocks and cluster time are not the same. On servers with synchronised clocks, they differ by less than
# this.
_CLOCKS_SECONDS: Final = 1
# After this many consecutive answers without a change of a document, a fetch returns without changes.
_LOOKS: Final = 50
_RESUMES: Final = 3
# How long a read waits behind a `mongos` for shards without writes. They write an empty operation every 10 s.
_SHARDS_SECONDS: Final = 15.0
# How long a read waits for a member of a replica set that does not have the last writes.
_MEMBERS_SECONDS: Final = 2.0
_LAG_SECONDS: Final = 0.2  # a member that lags for longer is asked less often
_SPARE_SECONDS: Final = 0.5


class MongoReader(Reader):
    """Reads a stream forward and keeps the stream open between fetches."""

    def __init__(
        self,
        source: ReaderContext,
        view: MongoView,
        place: Place,
        until: Place | None,
        goes_on: Callable[[], bool],
        headroom: Callable[[Place], float | None],
        check: Callable[[], None],
        batch_size: int | None = None,
    ) -> None:
        self._source, self._view, self._place, self._until = source, view, place, until
        self._mapper = MongoMapper(view)
        self._goes_on, self._headroom, self._check = goes_on, headroom, check
        self._wanted_size = batch_size
        self._taker = Taker(source, until)
        self._stream: Stream | None = None
        self._batch_size = 0
        self._is_brief = False
        self._overtaken = False
        # True if the server does not check whether the next changes have the images that are required. It
        # also checks the change after which a stream resumes.
        self._lenient = False
        # True if the server does not resume after the position that it has sent without a change.
        self._by_time = False
        # True if the server had no time left for the stream's next answer.
        self._out_of_time = False
        # True unless the server's last answer came from the end of its log.
        self._searches = True
        # When the fetch began, and when it asked for its last answer.
        self._began_at = self._asked_at = 0.0
        self._least_await_ms = _SHORT_AWAIT_MS
        self._outcome: Outcome = Continue()
        self._begin, self._end = place, LogEnd(source)
        self._deadline = Deadline.after(0)
        self._cancelled = threading.Event()

    def longest_fetch(self) -> float:
        """Return for how long a fetch may take; its last answer has as much time, however long it waits."""
        # A server first searches its log, which may take minutes, and sends nothing meanwhile. If it is given
        # up, the next search may take twice as long.
        silence = self._source.patience if self._searches else SILENT_SECONDS
        return self._asked_at - self._began_at + _LONG_AWAIT_MS / 1000 + silence

    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        """Return the next changes: the rest of the server's last answer, or one more answer."""
        # PyMongo resumes a broken stream once; this reader does not retry. One answer has at most 16 MB,
        # whatever `max_bytes` is. If `max_bytes` is small, an answer may have fewer changes than usual.
        taken = Taken(self._place)
        self._stop_at_bound(taken)
        self._deadline, self._end = deadline, LogEnd(self._source)
        self._began_at = self._asked_at = time.monotonic()
        self._is_brief = max_bytes < _BRIEF_BYTES
        if isinstance(self._outcome, Continue):
            self._refuse_another()
            self._read(taken, max_records, min(wait, max(0.0, deadline.remaining())))
            if taken.gone is not None:
                self._over(taken, taken.gone)
            self._stop_at_bound(taken)
        return self._batch(taken)

    def cancel(self) -> None:
        """Close the stream that a running fetch is reading."""
        # The running request ends only when the server answers, or when PyMongo gives it up. PyMongo cannot
        # be interrupted while it looks for a server either; that ends after `serverSelectionTimeoutMS`.
        if self._searches and not self._cancelled.is_set():  # the server may have been searching its log
            self._source.be_patient()
        self.halt()
        stream = self._stream
        if stream is not None:
            self._source.close(stream)

    def halt(self) -> None:
        """Prevent further calls."""
        self._cancelled.set()

    def close(self) -> None:
        """Close the stream, and its cursor on the server."""
        with self._source.at_work():
            stream, self._stream = self._stream, None
            if stream is not None:
                self._source.close(stream)

    # -- The stream

    def _opened(self, taken: Taken, max_records: int) -> Stream:
        size = min(_MOST_BATCH, max(1 if self._is_brief else _LEAST_BATCH, max_records))
        used_up = self._stream is not None and self._taker.is_used_up
        if self._stream is not None and used_up and self._source.is_replaced(self._stream):
            # PyMongo would wait for this server, although another server may be the primary now.
            self.close()
        elif self._stream is not None and not self._searches and self._source.is_elsewhere(self._stream):
            self.close()  # it has caught up, so the member that the caller prefers can be read again
        elif used_up and self._batch_size < min(size, _LEAST_BATCH) and not self._wanted_size:
            self.close()  # the batch size of an open stream cannot be changed
        if self._stream is None:
            self._batch_size = self._wanted_size or size
            taken.requests += 1
            with self._source.opening():
                self._look()
                self._searches = True
                self._source.reach(self._deadline)
                self._stream = self._open(taken.place)
                self._taker.begin(self._source.required() if self._lenient else ())
                if self._cancelled.is_set():  # a stream cannot be closed while it is being opened
                    self.close()
            self._look()
        assert self._stream is not None
        return self._stream

    def _open(self, place: Place) -> Stream:
        ticks = ticks_at(place)
        if self._by_time and _is_mark(place) and ticks is not None:
            place = At.of(ticks)
        try:
            if not self._out_of_time:
                return self._source.open(place, self._batch_size, FIXED_AWAIT_MS, lenient=self._lenient)
        except OperationFailure as error:
            if error.code != TIME_LIMIT:
                raise
        # The server's `defaultMaxTimeMS` also ends the search for the first changes, each time at the same
        # place. Without a batch, the stream opens at once, and its later answers have no such limit; but a
        # stream whose opening has used up all the time is refused its next answer (found on MongoDB 6.0.5).
        return self._source.open(place, 0, FIXED_AWAIT_MS, lenient=self._lenient)

    def _look(self) -> None:
        if self._cancelled.is_set():
            raise cancelled()

    # -- Reading

    def _read(self, taken: Taken, max_records: int, wait: float) -> None:
        """Take changes until there are enough of them or the answer is used up."""
        began = time.monotonic()
        until = began + wait
        patience = _SHARDS_SECONDS if self._source.sharded else _MEMBERS_SECONDS
        end_until = began + min(patience, self._deadline.remaining() - _SPARE_SECONDS)
        looks = resumes = 0
        self._overtaken = False
        if not self._source.sharded:  # a `mongos` hears from shards without writes only while it waits
            self._least_await_ms = _SHORT_AWAIT_MS
        while not taken.enough():
            self._look()
            taken.at_end = False
            answer = self._answer(taken, max_records, self._await_ms(until))
            if answer is None or taken.over():
                continue
            looked, resumed = answer
            looks, resumes = looks + looked, resumes + 1 if resumed else 0
            if resumes > _RESUMES:
                raise ProviderFault.of(
                    ErrorCategory.TRANSIENT_FAILURE,
                    "the stream opens, but each time its next answer is lost; call again",
                    retryable=True,
                    vendor_retried=True,
                )
            if looked or resumed:
                if looks >= _LOOKS and not taken.enough():
                    taken.caught_up = False
                    return
                continue
            # A stream that another thread closed also returns nothing.
            self._look()
            is_known = self._taker.is_known
            if self._until is None or not is_known:
                # If PyMongo hides its answers, it may have resumed the stream without asking for changes.
                stream = self._stream if is_known else None
                taken.at_end = self._end.is_passed(taken.place, stream, self._begin, self._taker.log_end)
            else:  # the end of a bounded read is its bound
                taken.at_end = not self._source.sharded
            taken.caught_up = None if taken.at_end else False
            self._check()
            now, behind = time.monotonic(), self._until is None and not taken.at_end
            if now >= (max(until, end_until) if behind else until):
                if behind and not self._source.sharded:
                    self._source.majority.check(self._source.client)
                return
            if self._end.is_late and (self._source.sharded or now - began >= _LAG_SECONDS):
                self._leave_a_member_that_lags()
                self._least_await_ms = _LONG_AWAIT_MS

    def _leave_a_member_that_lags(self) -> None:
        """Close the stream once a call, so that the driver chooses a member anew."""
        # Otherwise a reader of secondaries would stay with one that has stopped replicating.
        if (
            self._least_await_ms == _SHORT_AWAIT_MS
            and not self._source.sharded
            and (self._end.is_former or self._source.election(self._stream) is None)
            and self._taker.is_used_up
        ):
            self.close()

    def _await_ms(self, until: float) -> int:
        """Return how long the server may delay its next answer if it has no change."""
        left = math.ceil(1000 * (until - time.monotonic()))
        wanted = max(self._least_await_ms, min(_LONG_AWAIT_MS, left))
        # Otherwise a call with little time would end without an answer.
        most = math.ceil(1000 * (self._deadline.remaining() - _SPARE_SECONDS))
        return max(_SHORT_AWAIT_MS, min(wanted, most))

    def _answer(self, taken: Taken, max_records: int, await_ms: int) -> tuple[bool, bool] | None:
        """Read the changes of one answer, or the changes left from an earlier answer."""
        stream: Stream | None = None
        try:
            stream = self._opened(taken, max_records)
            self._source.wait_next(stream, await_ms)
            self._asked_at = time.monotonic()
            with self._source.at_work():
                looked = self._taker.take(stream, taken, max_records, self._batch_size)
                if self._cancelled.is_set():  # PyMongo may have resumed a stream that was already closed
                    self.close()
            self._overtaken = self._out_of_time = False
            self._by_time = self._by_time and not taken.changes
            self._searches = looked
            self._source.calm()
            if self._taker.is_lacking or (self._lenient and taken.changes):
                self.close()
                self._lenient = False
            if self._taker.is_lacking and not taken.changes:
                self._refuse_without_image(taken.place)
            return looked, self._taker.resumed
        except PyMongoError as error:
            self.close()
            taken.keep_up()
            if taken.changes:
                return None
            if isinstance(error, OperationFailure):
                # PyMongo may also have resumed the stream on a member whose log is too short, and a server
                # may not find the token of a stream that it has opened (SERVER-128753).
                is_lost = error.code == OVERTAKEN or (
                    error.code in (HISTORY_LOST, TOKEN_NOT_FOUND) and stream is not None
                )
                if is_lost and not self._overtaken:
                    self._overtaken = True  # opening the stream again shows the reason, or there is no error
                    return None
                if is_unknown_token(error) and _is_mark(taken.place) and not self._by_time:
                    self._by_time = True  # no change is at such a position, so its time is as good
                    return None
                if lacks_image(error) and not self._lenient:
                    self._lenient = True
                    return None
                if error.code == TIME_LIMIT and stream is not None and not self._out_of_time:
                    self._out_of_time = True
                    return None
                if error.code != EVENT_TOO_LARGE:
                    raise
            else:
                # The server also closes the connection if its answer would be larger than 16 MB.
                if not (isinstance(error, AutoReconnect) and CLOSED in str(error)):
                    raise
                before, self._source.closed_at = self._source.closed_at, taken.place
                if before != taken.place:
                    raise
            self._take_carefully(taken, error, max_records)
        return None

    def _take_carefully(self, taken: Taken, error: PyMongoError, max_records: int) -> None:
        """Take changes one by one, because the server cannot send an answer that contains one of them."""
        self._taker.begin(self._source.required())
        try:
            with closing(self._source.open(taken.place, 1, _SHORT_AWAIT_MS, lenient=True)) as stream:
                self._one_by_one(stream, taken, max_records)
        except (OperationFailure, AutoReconnect) as found:
            if code_of(found) not in (EVENT_TOO_LARGE, None):
                raise
            if not taken.changes:
                self._refuse(taken.place, found)
            taken.keep_up()
            return
        if self._taker.is_lacking and not taken.changes:
            self._refuse_without_image(taken.place)
        if not taken.enough():
            raise error

    def _one_by_one(self, stream: Stream, taken: Taken, max_records: int) -> None:
        until, looks = time.monotonic() + _CAREFUL_SECONDS, 0
        while len(taken.changes) < max_records and time.monotonic() < until and looks <= _CAREFUL_LOOKS:
            taken.requests += 1
            change = stream.try_next()
            if change is None:
                looks += 1
            elif not self._taker.consider(change, taken) or taken.notices:
                return

    def _refuse_another(self) -> None:
        """If the feed would follow a collection that was renamed over the watched one, refuse to."""
        # The documents that it had before have no changes, so only a scan delivers them.
        place = self._place
        is_over = isinstance(place, After) and place.kind == "o" and not self._is_former(place)
        if is_over and self._source.options.after_invalidate == "follow":
            raise ProviderFault.of(
                ErrorCategory.CHECKPOINT_EXPIRED,
                f"{describe(place).text}, for example by $out; the documents that it already contained have "
                f"no changes, so the feed cannot go on without them; {START_AGAIN}",
                reason=ErrorReason.REPLACED,
            )

    def _is_former(self, place: Place) -> bool:
        """Return True if what happened at a position happened to an earlier collection of the same name."""
        start = self._view.start
        return start is not None and (ticks_at(place) or start) < start

    def _refuse_without_image(self, place: Place) -> NoReturn:
        raise ProviderFault.of(
            ErrorCategory.UNSUPPORTED_CAPABILITY,
            f"{describe(place).text}: the required image of the next change is missing: it has expired, "
            "or images were enabled after the change; continue from the same token with "
            "INCLUDE_IF_AVAILABLE",
            code=str(IMAGE_MISSING),
            reason=ErrorReason.NOT_PROVISIONED,
        ) from None

    def _refuse(self, place: Place, error: PyMongoError) -> NoReturn:
        """Raise the error for the change after `place`; the server cannot send that change."""
        where, after = self._unsent(place, error)
        reason = (
            "with its images, or because of its key, the change is larger than the 16 MB that the server can "
            "send; read it with old_item_state_mode=OMIT, or with new_item_state_mode=OMIT"
        )
        if code_of(error) == EVENT_TOO_LARGE and not is_too_large(error):
            reason = "the server finds its entry in the oplog, or its document, damaged"
        raise RecordFault(
            0,
            where,
            reason,
            cursor_of(after, self._view.start),
            str(EVENT_TOO_LARGE),
        ) from None  # the server's message quotes the change's key

    def _unsent(self, place: Place, error: PyMongoError) -> tuple[str, Place]:
        """Return what to call the change after `place`, which the server cannot send, and where it ends."""
        moment = self._source.oversized(place)
        if moment is None and code_of(error) is None:  # the network has failed twice
            raise error
        try:
            with closing(self._source.open(place, 1, _SHORT_AWAIT_MS, slim=True)) as stream:
                for _ in range(_CAREFUL_LOOKS):
                    change = stream.try_next()
                    if change is not None:
                        found = place_of_change(change.raw)
                        return f"{time_text(found)} in {namespace_of(decoded(change.raw))}", found
        except (OperationFailure, AutoReconnect):
            if moment is None:
                raise
            after = At.of((ticks_at(moment) or 0) + 1)
            return (
                f"{time_text(moment)} (and what else has this time: its transaction or its batch of inserts)",
                after,
            )
        raise error

    # -- Processing the changes

    def _stop_at_bound(self, taken: Taken) -> None:
        """Stop at the bound, even if the feed ends at the same position."""
        if self._until is not None and (
            taken.reached or is_reached(taken.place, self._until, at_end=taken.at_end)
        ):
            taken.place, self._outcome = self._until, Reached()

    def _over(self, taken: Taken, reason: str) -> None:
        """After an invalidate event, continue with the next resource of the same name, or end."""
        self._look()
        self.close()
        invalidated = Invalidated(reason)
        if self._is_former(taken.place) or self._goes_on():
            taken.note(invalidated)
        else:
            self._outcome = Ended(invalidated)

    def _seconds_after(self, taken: Taken) -> int | None:
        """Return a time that is not later than that of any change after the place, or None."""
        seconds, clock = seconds_at(taken.place), self._source.clock
        if seconds is None:
            return None
        # Changes have the time of the clocks, and cluster time may be ahead of them.
        if taken.changes:
            wall = wall_seconds(taken.changes[-1])
            return seconds if wall is None else min(seconds, wall)
        now = clock.now()
        if now is not None and taken.at_end:
            return min(seconds, int(now - (time.monotonic() - self._began_at)))
        return None if clock.is_behind(seconds) else seconds - AHEAD_SECONDS

    def _batch(self, taken: Taken) -> Batch:
        begin, self._place = self._place, taken.place
        start = self._view.start
        seconds = self._seconds_after(taken)
        sure = None if seconds is None else datetime.fromtimestamp(max(0, seconds - _CLOCKS_SECONDS), UTC)
        return Batch(
            taken.changes,
            self._mapper,
            cursor_of(begin, start),
            cursor_of(self._place, start),
            self._outcome,
            sum(map(len, taken.changes)),
            caught_up=taken.caught_up,
            watermark=sure,
            notices=tuple(taken.notices),
            headroom=self._headroom(self._place),
            requests=taken.requests,
        )


def _is_mark(place: Place) -> bool:
    """Return True if the server has sent a position without a change."""
    return isinstance(place, After) and place.kind == "h"
