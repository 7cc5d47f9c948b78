"""Reads one change stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import attrs
import bson
from bson.errors import BSONError
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from multiclouddb_api import Dropped, ErrorCategory, Invalidated, Notice, Renamed
from multiclouddb_api.value import define
from multiclouddb_mongo.errors import EVENT_TOO_LARGE, IMAGE_MISSING, OVERTAKEN, code_of
from multiclouddb_mongo.mapping import CHANGES, MongoMapper, View
from multiclouddb_mongo.position import (
    After,
    At,
    Kind,
    Place,
    compare,
    cursor_of,
    describe,
    is_reached,
    seconds_at,
    ticks_at,
    time_text,
    token_text,
)
from multiclouddb_mongo.pymongo_internals import GivenUp, Stream, buffered, inner_cursor, take_buffered
from multiclouddb_mongo.raw_change import (
    Raw,
    RawChange,
    decoded,
    is_before,
    item_changes,
    namespace_of,
    place_of_change,
    text_before,
    untouched_changes,
)
from multiclouddb_mongo.source import LogEnd, Source
from multiclouddb_mongo.values import CODEC
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

# The server ends an answer at 16 MB. Any other short answer contains all available changes.
_FULL_BYTES: Final = 8 * 1024 * 1024


@define
class Taken:
    """The result of one fetch.

    Attributes:
        place: The position after the changes of this fetch.
        changes: Changes of documents.
        notices: Notices about collections and databases; they come after the last change.
        gone: The reason why the stream has ended, or None.
        reached: True if the bound of the read was reached.
        caught_up: True if the server had no more changes to send.
        at_end: True if the last answer was empty, which means that the server scanned the whole log.
        requests: The number of answers that were requested.
    """

    place: Place
    changes: list[Raw] = attrs.field(factory=list)
    notices: list[Notice] = attrs.field(factory=list)
    gone: str | None = None
    reached: bool = False
    caught_up: bool | None = None
    at_end: bool = False
    requests: int = 0

    def over(self) -> bool:
        """Return True if the fetch must not take another change."""
        return self.gone is not None or self.reached

    def note(self, notice: Notice) -> None:
        """Add a notice to the batch, and end the batch."""
        # If the server has sent changes after the notice, these changes belong to the next batch.
        self.notices.append(notice)
        self.caught_up = False

    def enough(self) -> bool:
        """Return True if the batch contains a change or a notice, or if the stream has ended."""
        return bool(self.changes or self.notices) or self.over()

    def keep_up(self) -> None:
        """After a failed request, set the position after the last change in `changes`."""
        if self.changes:
            self.place = place_of_change(self.changes[-1])

    def end(self, place: Place, reason: str) -> None:
        """Record that the watched resource is gone, and set the position after the end of the stream."""
        self.gone = reason
        self.place = After("i", place.data) if isinstance(place, After) else place


class Taker:
    """Takes changes from the streams of a reader, one stream after another."""

    def __init__(self, source: Source, until: Place | None) -> None:
        self._source, self._until = source, until
        self._bound = None if until is None else text_before(until)
        self._parts: dict[str, Any] = {}
        # Most changes are taken unchanged. The server and the caller decide which changes need a closer
        # check.
        self._takes = untouched_changes if source.splits or source.options.pipeline else item_changes

    def begin(self) -> None:
        """Begin a stream from which no part of a split change has been read yet."""
        self._parts = {}

    def take(self, stream: Stream, taken: Taken, room: int, batch_size: int) -> bool:
        """Take the remaining changes of an answer, or the next answer."""
        fresh = not buffered(stream)
        if fresh and not getattr(inner_cursor(stream), "alive", True):
            # The server's first answer has closed the stream. PyMongo would try to resume the stream, but a
            # stream cannot be resumed after an invalidate.
            self._end_with(stream, taken)
            return False
        taken.requests += fresh
        change = stream.try_next()
        if change is None:
            self._follow(stream, taken, None)
            return False
        left = size = buffered(stream)
        takes, bound = self._takes, self._bound
        while True:
            if takes([change.raw]) and (bound is None or is_before(change.raw, bound)):
                taken.changes.append(change.raw)
            elif not self.consider(change, taken):
                return True
            elif taken.notices:
                break
            if len(taken.changes) >= room and not self._parts:
                break
            if left is not None:
                if not left:
                    if fresh and size is not None and size + 1 < batch_size:
                        self._was_short(taken)
                    break
                # PyMongo hands out the last change, so that its resume token is the one of that change.
                most = min(left, room - len(taken.changes)) - 1
                if most > 0:
                    plain = take_buffered(stream, most, self._count_plain)
                    taken.changes += plain
                    left -= len(plain)
                left -= 1
            following = stream.try_next()
            if following is None:
                break
            change = following
        self._follow(stream, taken, place_of_change(change.raw).data)
        return True

    def _count_plain(self, changes: Sequence[Raw]) -> int:
        """Return how many of the first changes are taken as they are."""
        count = self._takes(changes)
        # A stream has its changes in the order of their tokens.
        if count and self._bound is not None and not is_before(changes[count - 1], self._bound):
            return 0
        return count

    def consider(self, change: RawChange, taken: Taken) -> bool:
        """Process one change of any kind. Return False if no further change may be read."""
        place = place_of_change(change.raw)
        if self._until is not None:
            order = compare(place, self._until)
            if order is not None and order > 0:
                taken.place, taken.reached = self._until, True
                return False
        if self._takes([change.raw]):
            taken.changes.append(change.raw)
        elif not self._look_into(change, place, taken):
            return False
        if not self._parts:
            taken.place = place
            taken.reached = isinstance(self._until, After) and self._until.data == place.data
        return not taken.reached

    def _was_short(self, taken: Taken) -> None:
        """Record that the answer contains fewer changes than requested."""
        # A short answer contains all available changes, unless the answer comes from a `mongos` or is larger
        # than `_FULL_BYTES`. A `mongos` may send only a part of the available changes.
        if not self._source.sharded and sum(map(len, taken.changes)) < _FULL_BYTES:
            taken.caught_up = True

    def _follow(self, stream: Stream, taken: Taken, last: str | None) -> None:
        """Move to the stream's own position, which advances even without a change."""
        token = stream.resume_token
        if self._parts:
            taken.keep_up()
            return
        if token is not None:
            data = token_text(token)
            kind: Kind = "e" if data == last else "h"
            if not (isinstance(taken.place, After) and taken.place.data == data):
                taken.place = After(kind, data)
        if not stream.alive:
            self._end_with(stream, taken)

    def _end_with(self, stream: Stream, taken: Taken) -> None:
        """Record that the server has closed the stream for a reason that the caller's pipeline hides."""
        token = stream.resume_token
        place = taken.place if token is None else After("i", token_text(token))
        taken.end(place, "the pipeline removed the event that says why the stream ended")

    def _look_into(self, change: RawChange, place: After, taken: Taken) -> bool:
        """Handle a change that needs a closer check, for example a drop or a split change."""
        try:
            fields = decoded(change.raw)
        except BSONError:
            # The mapper reports the damage.
            taken.changes.append(change.raw)
            return True
        kind = fields.get("operationType")
        if "splitEvent" in fields:
            self._join(fields, taken)
        elif kind in CHANGES:
            for name in ("documentKey", "ns"):
                if not isinstance(fields.get(name), dict):
                    raise _altered(name)
            taken.changes.append(change.raw)
        elif kind == "invalidate":
            taken.end(place, "the server invalidated the stream")
            return False
        elif kind == "drop":
            taken.note(Dropped(namespace_of(fields)))
        elif kind == "dropDatabase":
            taken.note(Dropped(namespace_of(fields).partition("/")[0]))
        elif kind == "rename":
            taken.note(Renamed(namespace_of(fields), namespace_of(fields, "to")))
        elif kind is None:
            raise _altered("operationType")
        return True

    def _join(self, part: dict[str, Any], taken: Taken) -> None:
        """Join the parts of a large change. The position does not move before the last part has arrived."""
        split = part.pop("splitEvent")
        self._parts.update(part)
        if split["fragment"] == split["of"]:
            whole, self._parts = self._parts, {}
            taken.changes.append(bson.encode(whole, codec_options=CODEC))


def _altered(name: str) -> Exception:
    return ProviderFault.of(
        ErrorCategory.INVALID_REQUEST,
        f"MongoOptions.pipeline removes or alters {name!r} of the changes; leave _id, operationType, ns and "
        "documentKey as they are",
    )


# Larger answers are slower, because they are no longer in the processor's cache when they are decoded.
_LEAST_BATCH: Final = 100
_MOST_BATCH: Final = 500
# The engine asks for less than this after a connection has broken within an answer.
_BRIEF_BYTES: Final = 1 << 20
_SHORT_AWAIT_MS: Final = 10
_LONG_AWAIT_MS: Final = 500
# After this many consecutive reads that do not wait, a stream with a long wait is replaced by a stream
# without a wait.
_HURRIED: Final = 3
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
_CLOSED: Final = "connection closed"  # PyMongo's words


class MongoReader(Reader):
    """Reads a stream forward and keeps the stream open between fetches."""

    def __init__(
        self,
        source: Source,
        view: View,
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
        self._batch_size = self._hurried = 0
        self._is_brief = False
        self._overtaken = False
        # True unless the server's last answer came from the end of its log.
        self._searches = True
        self._await_ms = _SHORT_AWAIT_MS
        self._outcome: Outcome = Continue()
        self._begin, self._end = place, LogEnd(source)
        self._deadline = Deadline.after(0)
        self._cancelled = threading.Event()

    def longest_fetch(self) -> float:
        """Return no limit for the library's own client, whose connections give up silent servers."""
        # A server first searches its log, which may take minutes, and sends nothing meanwhile. If it is given
        # up, the next search may take twice as long.
        return self._source.longest_fetch()

    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        """Return the next changes: the rest of the server's last answer, or one more answer."""
        # PyMongo resumes a broken stream once; this reader does not retry. One answer has at most 16 MB,
        # whatever `max_bytes` is. If `max_bytes` is small, an answer may have fewer changes than usual.
        taken = Taken(self._place)
        self._stop_at_bound(taken)
        self._deadline, self._end = deadline, LogEnd(self._source)
        self._is_brief = max_bytes < _BRIEF_BYTES
        if isinstance(self._outcome, Continue):
            self._hurry(wait)
            self._source.begin(_LONG_AWAIT_MS)
            self._read(taken, max_records, min(wait, max(0.0, deadline.remaining())))
            if taken.gone is not None:
                self._over(taken, taken.gone)
            self._stop_at_bound(taken)
        return self._batch(taken)

    def cancel(self) -> None:
        """Close the stream that a running fetch is reading."""
        # The wait for the server's answer ends within half a second. With a client of the application, this
        # needs an answer of the server.
        # PyMongo cannot be interrupted while it looks for a server. Such a fetch ends after
        # `serverSelectionTimeoutMS`.
        if not self._source.bounded:
            self._be_patient()
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
        used_up = self._stream is not None and not buffered(self._stream)
        if self._stream is not None and used_up and self._source.is_replaced(self._stream):
            # PyMongo would wait for this server, although another server may be the primary now.
            self.close()
        elif used_up and self._batch_size < min(size, _LEAST_BATCH) and not self._wanted_size:
            self.close()  # the batch size of an open stream cannot be changed
        if self._stream is None:
            self._batch_size = self._wanted_size or size
            taken.requests += 1
            with self._source.opening():
                self._look()
                self._searches = True
                self._source.reach(self._deadline)
                self._stream = self._source.open(taken.place, self._batch_size, self._await_ms)
                if self._cancelled.is_set():  # a stream cannot be closed while it is being opened
                    self.close()
            self._look()
            self._taker.begin()
        assert self._stream is not None
        return self._stream

    def _look(self) -> None:
        if self._cancelled.is_set():
            raise cancelled()

    def _hurry(self, wait: float) -> None:
        """If the caller does not want to wait, replace a stream that has a long waiting time."""
        # The waiting time of an open stream cannot be changed.
        self._hurried = 0 if wait > 0 else self._hurried + 1
        if self._await_ms == _LONG_AWAIT_MS and self._hurried >= _HURRIED and not self._source.sharded:
            self._exchange(_SHORT_AWAIT_MS)

    def _exchange(self, await_ms: int) -> None:
        if self._source.options.max_await_time_ms is None and not (
            self._stream is not None and buffered(self._stream)
        ):
            self._await_ms = await_ms
            self.close()

    # -- Reading

    def _read(self, taken: Taken, max_records: int, wait: float) -> None:
        """Take changes until there are enough of them or the answer is used up."""
        began = time.monotonic()
        until = began + wait
        patience = _SHARDS_SECONDS if self._source.sharded else _MEMBERS_SECONDS
        end_until = began + min(patience, self._deadline.remaining() - _SPARE_SECONDS)
        looks = resumes = 0
        self._overtaken = False
        while not taken.enough():
            self._look()
            taken.at_end = False
            answer = self._answer(taken, max_records)
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
            if self._until is None:
                taken.at_end = self._end.is_passed(taken.place, self._stream, self._begin)
            else:  # the end of a bounded read is its bound
                taken.at_end = not self._source.sharded
            taken.caught_up = None if taken.at_end else False
            self._check()
            now, behind = time.monotonic(), self._until is None and not taken.at_end
            if now >= (max(until, end_until) if behind else until):
                return
            late = self._end.is_late and (self._source.sharded or now - began >= _LAG_SECONDS)
            if self._await_ms == _SHORT_AWAIT_MS and (late or 1000 * wait >= _LONG_AWAIT_MS):
                self._exchange(_LONG_AWAIT_MS)

    def _answer(self, taken: Taken, max_records: int) -> tuple[bool, bool] | None:
        """Read the changes of one answer, or the changes left from an earlier answer."""
        try:
            stream = self._opened(taken, max_records)
            cursor = inner_cursor(stream)
            with self._source.at_work():
                looked = self._taker.take(stream, taken, max_records, self._batch_size)
                if self._cancelled.is_set():  # PyMongo may have resumed a stream that was already closed
                    self.close()
            self._overtaken = False
            self._searches = looked
            self._source.calm()
            return looked, inner_cursor(stream) is not cursor
        except OperationFailure as error:
            self.close()
            taken.keep_up()
            if taken.changes:
                return None
            if error.code == OVERTAKEN and not self._overtaken:
                self._overtaken = True  # opening the stream again shows the reason: error 286 or no error
            elif error.code in (EVENT_TOO_LARGE, IMAGE_MISSING):
                self._take_carefully(taken, error, max_records)
            else:
                raise
        except (PyMongoError, GivenUp) as error:
            if isinstance(error, GivenUp):
                self._be_patient()
            self.close()
            taken.keep_up()
            if taken.changes:
                return None
            # The server also closes the connection if its answer would be larger than 16 MB.
            if not (isinstance(error, AutoReconnect) and _CLOSED in str(error)):
                raise
            before, self._source.closed_at = self._source.closed_at, taken.place
            if before != taken.place:
                raise
            self._take_carefully(taken, error, max_records)
        return None

    def _be_patient(self) -> None:
        """If the server may have been searching its log, give the next search more time."""
        if self._searches and not self._cancelled.is_set():
            self._source.be_patient()

    def _take_carefully(self, taken: Taken, error: PyMongoError, max_records: int) -> None:
        """Take changes one by one, because the server cannot send an answer that contains one of them."""
        self._taker.begin()
        try:
            with closing(self._source.open(taken.place, 1, _SHORT_AWAIT_MS)) as stream:
                self._one_by_one(stream, taken, max_records)
        except (OperationFailure, AutoReconnect) as found:
            if code_of(found) not in (EVENT_TOO_LARGE, IMAGE_MISSING, None):
                raise
            if not taken.changes:
                self._refuse(taken.place, found)
            taken.keep_up()
            return
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

    def _refuse(self, place: Place, error: PyMongoError) -> NoReturn:
        """Raise the error for the change after `place`; the server cannot send that change."""
        if code_of(error) == IMAGE_MISSING:
            raise ProviderFault.of(
                ErrorCategory.UNSUPPORTED_CAPABILITY,
                f"{describe(place).text}: the required image of the next change is missing: it has expired, "
                "or images were enabled after the change; continue from the same token with "
                "INCLUDE_IF_AVAILABLE",
                code=str(IMAGE_MISSING),
            ) from None
        where, after = self._unsent(place, error)
        raise RecordFault(
            0,
            where,
            "with its images, or because of its key, the change is larger than the 16 MB that the server can "
            "send; read it with old_item_state_mode=OMIT, or with new_item_state_mode=OMIT",
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
            return f"{time_text(moment)} (and what follows it in the same transaction)", after
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
        start = self._view.start
        former = start is not None and (ticks_at(taken.place) or start) < start  # of the same name
        if former or self._goes_on():
            taken.note(invalidated)
        else:
            self._outcome = Ended(invalidated)

    def _batch(self, taken: Taken) -> Batch:
        begin, self._place = self._place, taken.place
        seconds, start = seconds_at(self._place), self._view.start
        return Batch(
            taken.changes,
            self._mapper,
            cursor_of(begin, start),
            cursor_of(self._place, start),
            self._outcome,
            sum(map(len, taken.changes)),
            caught_up=taken.caught_up,
            watermark=None
            if seconds is None
            else datetime.fromtimestamp(max(0, seconds - _CLOCKS_SECONDS), UTC),
            notices=tuple(taken.notices),
            headroom=self._headroom(self._place),
            requests=taken.requests,
        )
