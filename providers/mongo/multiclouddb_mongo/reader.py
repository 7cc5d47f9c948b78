"""Reads one change stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs
import bson
from bson.errors import BSONError
from pymongo.errors import OperationFailure, PyMongoError

from multiclouddb_api import ChangeEvent, Dropped, ErrorCategory, Invalidated, Notice, Renamed
from multiclouddb_mongo.change import RawChange, decoded, is_item_change, is_untouched_change, place_of_change
from multiclouddb_mongo.errors import EVENT_TOO_LARGE, IMAGE_MISSING, OVERTAKEN, fault
from multiclouddb_mongo.mapping import CHANGES, Raw, View, to_arrow, to_events
from multiclouddb_mongo.position import (
    After,
    Kind,
    Place,
    compare,
    cursor_of,
    describe,
    is_reached,
    seconds_at,
    ticks_at,
    token_text,
)
from multiclouddb_mongo.stream import Source, Stream, buffered, close_quietly, inner_cursor
from multiclouddb_mongo.values import CODEC
from multiclouddb_spi import (
    Batch,
    Continue,
    Cursor,
    Deadline,
    Ended,
    Outcome,
    Reached,
    Reader,
    RecordFault,
    unsupported,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MongoBatch", "MongoReader"]

_LEAST_BATCH: Final = 100
_MOST_BATCH: Final = 5000
_SHORT_AWAIT_MS: Final = 10
_LONG_AWAIT_MS: Final = 500
# Reads that do not wait, one after the other, before a stream that waits is exchanged for one that does not.
_HURRIED: Final = 3
_CAREFUL_SECONDS: Final = 0.5
_CAREFUL_LOOKS: Final = 20
# The server ends an answer at 16 MB: one that is shorter for another reason has shown all there was.
_FULL_BYTES: Final = 8 * 1024 * 1024
# Wall clocks and cluster time are not one: servers with synchronised clocks differ by less.
_CLOCKS_SECONDS: Final = 1
# Answers without a change of a document, one after the other, before a fetch comes back without.
_LOOKS: Final = 50


class MongoBatch(Batch):
    """Changes of one stream.

    Args:
        changes: The change documents, as they came.
        view: What their events share.
        begin: The position in front of them.
        end: The position behind them, and behind what else was looked at.
        start: The cluster time of the feed's start, in ticks, or None.
    """

    def __init__(
        self, changes: Sequence[Raw], view: View, begin: Place, end: Place, start: int | None = None
    ) -> None:
        self._changes, self._view, self._begin, self._end = changes, view, begin, end
        self._start = start
        self.nbytes = sum(map(len, changes))

    def __len__(self) -> int:
        return len(self._changes)

    def cursor_after(self, count: int) -> Cursor:
        """The position behind the first `count` changes."""
        if count == len(self._changes):
            return cursor_of(self._end, self._start)
        place = place_of_change(self._changes[count - 1]) if count else self._begin
        return cursor_of(place, self._start)

    def events(self, start: int, stop: int) -> list[ChangeEvent]:
        """Map changes to events."""
        return to_events(self._changes, start, stop, self._view)

    def arrow(self, start: int, stop: int) -> pa.RecordBatch:
        """Map changes to Arrow."""
        return to_arrow(self._changes, start, stop, self._view)


@attrs.define
class _Taken:
    """What one fetch has found.

    Attributes:
        changes: Of documents.
        notices: Of collections and databases.
        gone: Why the stream is over, once it is.
        last: The text of the last resume token that was looked at.
        caught_up: True when the server had no more to send.
        at_end: True when the last answer was empty: the log has been looked through.
    """

    changes: list[Raw] = attrs.field(factory=list)
    notices: list[Notice] = attrs.field(factory=list)
    gone: str | None = None
    last: str | None = None
    caught_up: bool | None = None
    at_end: bool = False


class MongoReader(Reader):
    """Reads a stream forward and keeps it open between fetches.

    Args:
        source: What is watched.
        view: What its events share.
        place: Where to read from.
        until: Stop behind this, or None.
        start: The cluster time of the feed's start, in ticks, where it may lie ahead, or None: what ended
            before it was something else of the same name.
        goes_on: Asked behind an invalidate: whether reading goes on with what has the name next.
        headroom: Seconds until a position falls out of the log, or None.
        check: Called when there is nothing: raises where nothing will ever come, because there is no such
            collection.
    """

    # The server looks through its log for changes that match, and does not answer before it has come to the
    # end: a fetch that is given up at a deadline would begin anew with the next call, and never end.
    outlasts = True

    def __init__(
        self,
        source: Source,
        view: View,
        place: Place,
        until: Place | None,
        start: int | None,
        goes_on: Callable[[], bool],
        headroom: Callable[[Place], float | None],
        check: Callable[[], None],
    ) -> None:
        self._check = check
        self._source, self._view, self._place, self._until = source, view, place, until
        self._start = start
        self._goes_on, self._headroom = goes_on, headroom
        self._stream: Stream | None = None
        self._batch_size = 0
        self._await_ms = _SHORT_AWAIT_MS
        self._hurried = self._requests = 0
        self._outcome: Outcome = Continue()
        self._taken = _Taken()
        self._parts: dict[str, Any] = {}
        self._cancelled = threading.Event()
        # Most changes are taken as they are; which ones need a closer look, the server and the caller decide.
        self._takes = is_untouched_change if source.splits or source.options.pipeline else is_item_change

    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> MongoBatch:
        """The next changes: what is left of the server's last answer, or one more answer.

        PyMongo resumes a broken stream once; nothing here tries again. The deadline does not end it: see
        `outlasts`. One answer has 16 MB at most, whatever `max_bytes` says.
        """
        begin, self._requests, self._taken = self._place, 0, _Taken()
        self._stop_at_bound()
        if isinstance(self._outcome, Continue):
            self._hurry(wait)
            self._read(max_records, min(wait, max(0.0, deadline.remaining())))
            if self._taken.gone is not None and isinstance(self._outcome, Continue):
                self._over(self._taken.gone)
            self._stop_at_bound()
        return self._batch(begin)

    def cancel(self) -> None:
        """Close the stream under the fetch: an answer that the server holds back ends within half a second.

        While PyMongo opens a stream or looks for a server, it is not interrupted: that lasts until the server
        answers, or until `serverSelectionTimeoutMS`.
        """
        self._cancelled.set()
        stream = self._stream
        if stream is not None:
            with suppress(Exception):
                close_quietly(stream)

    def close(self) -> None:
        """Close the stream, and with it its cursor on the server."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(Exception):
                close_quietly(stream)

    def _stop_at_bound(self) -> None:
        """Also where the feed ends there."""
        if self._until is not None and is_reached(self._place, self._until, at_end=self._taken.at_end):
            self._outcome = Reached()

    # -- The stream

    def _opened(self, max_records: int) -> Stream:
        if self._stream is None:
            self._batch_size = self._source.options.batch_size or min(
                _MOST_BATCH, max(_LEAST_BATCH, max_records)
            )
            self._requests += 1
            self._stream = self._source.open(self._place, self._batch_size, self._await_ms)
            self._look()  # while it was opened nobody could close it
        return self._stream

    def _look(self) -> None:
        if self._cancelled.is_set():
            raise fault(ErrorCategory.TRANSIENT_FAILURE, "the read was cancelled; try again", retryable=True)

    def _hurry(self, wait: float) -> None:
        """Exchange a stream that waits for long under a caller who does not; it is said when it is opened."""
        self._hurried = 0 if wait > 0 else self._hurried + 1
        if self._await_ms == _LONG_AWAIT_MS and self._hurried >= _HURRIED:
            self._exchange(_SHORT_AWAIT_MS)

    def _exchange(self, await_ms: int) -> None:
        if self._source.options.max_await_time_ms is None and not (
            self._stream is not None and buffered(self._stream)
        ):
            self._await_ms = await_ms
            self.close()

    # -- Taking changes

    def _read(self, max_records: int, wait: float) -> None:
        """Take changes until there are enough or the answer is used up; without any, wait for the next."""
        until = time.monotonic() + wait
        looks, overtaken = 0, False
        taken = self._taken
        while not taken.changes and taken.gone is None and isinstance(self._outcome, Continue):
            self._look()
            try:
                stream = self._opened(max_records)
                cursor = inner_cursor(stream)
                looked = self._take(stream, max_records)
            except OperationFailure as error:
                self.close()
                self._keep_up()
                if error.code == OVERTAKEN and not overtaken:
                    overtaken = True  # opening it again says what that means: 286, or nothing
                elif error.code in (EVENT_TOO_LARGE, IMAGE_MISSING) and not taken.changes:
                    self._take_carefully(error, max_records)
                elif not taken.changes:
                    raise
                continue
            except PyMongoError:
                if self._stream is not None and not self._stream.alive:
                    self.close()
                self._keep_up()
                if not taken.changes:
                    raise
                continue
            looks += looked
            if looked or inner_cursor(stream) is not cursor:
                if looks >= _LOOKS and not taken.changes:
                    taken.caught_up = False
                    return
                continue
            taken.at_end = True
            self._check()
            if time.monotonic() >= until:
                return
            if self._await_ms == _SHORT_AWAIT_MS:
                self._exchange(_LONG_AWAIT_MS)

    def _take(self, stream: Stream, room: int) -> bool:
        """Take what is left of an answer, or the next one; False when it was empty."""
        fresh = not buffered(stream)
        self._requests += fresh
        change = stream.try_next()
        looked = change is not None
        if change is not None:
            left = buffered(stream)
            size = None if left is None else left + 1
            add, takes, plain = self._taken.changes.append, self._takes, self._until is None
            while True:
                if plain and takes(change.raw):
                    add(change.raw)
                elif not self._consider(change):
                    return True
                if len(self._taken.changes) >= room and not self._parts:
                    break
                if left is not None:
                    if not left:
                        self._short(fresh, size)
                        break
                    left -= 1
                following = stream.try_next()
                if following is None:
                    break
                change = following
            self._taken.last = place_of_change(change.raw).data
        self._moved(stream)
        return looked

    def _short(self, fresh: bool, size: int | None) -> None:
        """An answer that is used up and had fewer changes than asked for was all that there is."""
        if fresh and size is not None and size < self._batch_size and not self._source.sharded:
            self._taken.caught_up = sum(map(len, self._taken.changes)) < _FULL_BYTES or None

    def _moved(self, stream: Stream) -> None:
        """Follow the stream's own position: it moves without a change, too."""
        token = stream.resume_token
        if self._parts:
            return
        if token is not None:
            data = token_text(token)
            kind: Kind = "e" if data == self._taken.last else "h"
            if not (isinstance(self._place, After) and self._place.data == data):
                self._place = After(kind, data)
        if not stream.alive:
            self._look()
            self._gone("the pipeline hides how it ended")

    def _keep_up(self) -> None:
        """Behind what was taken, when the answer behind it has failed."""
        if self._taken.changes:
            self._place = place_of_change(self._taken.changes[-1])

    def _gone(self, reason: str) -> None:
        """What was watched is no more; the position is behind that, whatever was said of it."""
        self._taken.gone = reason
        if isinstance(self._place, After):
            self._place = After("i", self._place.data)

    def _consider(self, change: RawChange) -> bool:
        """Take one change with all that may be about it; False when reading ends with it."""
        place = place_of_change(change.raw)
        if self._until is not None:
            order = compare(place, self._until)
            if order is not None and order > 0:
                self._place, self._outcome = self._until, Reached()
                return False
        self._taken.last = place.data
        if self._takes(change.raw):
            self._taken.changes.append(change.raw)
        elif not self._look_into(change, place):
            return False
        if self._until == place or (isinstance(self._until, After) and self._until.data == place.data):
            self._place, self._outcome = place, Reached()
            return False
        return True

    def _look_into(self, change: RawChange, place: After) -> bool:
        """What is no plain change of a document: False for the end of the stream.

        Raises:
            ProviderFault: The caller's pipeline has taken away what nobody can do without.
        """
        try:
            fields = decoded(change.raw)
        except BSONError:
            self._taken.changes.append(change.raw)  # mapping it will say where the damage is
            return True
        kind, notices = fields.get("operationType"), self._taken.notices
        if "splitEvent" in fields:
            self._join(fields)
        elif kind in CHANGES:
            for name in ("documentKey", "ns"):
                if name not in fields:
                    raise _altered(name)
            self._taken.changes.append(change.raw)
        elif kind == "invalidate":
            self._place = place
            self._gone("the server invalidated the stream")
            return False
        elif kind == "drop":
            notices.append(Dropped(_name(fields)))
        elif kind == "dropDatabase":
            notices.append(Dropped(str(fields.get("ns", {}).get("db"))))
        elif kind == "rename":
            notices.append(Renamed(_name(fields), _name(fields, "to")))
        elif kind is None:
            raise _altered("operationType")
        return True

    def _join(self, part: dict[str, Any]) -> None:
        """Put a large change together again; the position moves behind its last part only."""
        split = part.pop("splitEvent")
        self._parts.update(part)
        if split["fragment"] == split["of"]:
            whole, self._parts = self._parts, {}
            self._taken.changes.append(bson.encode(whole, codec_options=CODEC))

    # -- Trouble with single changes

    def _take_carefully(self, error: OperationFailure, max_records: int) -> None:
        """The server cannot send an answer because of one change in it: take them one by one up to that one.

        Raises:
            RecordFault: It is the next one, and too large.
            ProviderFault: It is the next one, and lacks its image.
        """
        until = time.monotonic() + _CAREFUL_SECONDS
        looks = 0
        with closing(self._source.open(self._place, 1, _SHORT_AWAIT_MS)) as stream:
            while len(self._taken.changes) < max_records and time.monotonic() < until:
                self._requests += 1
                try:
                    change = stream.try_next()
                except OperationFailure as found:
                    if found.code not in (EVENT_TOO_LARGE, IMAGE_MISSING):
                        raise
                    if not self._taken.changes:
                        self._refuse(found)
                    return
                if change is None:
                    looks += 1
                    if looks > _CAREFUL_LOOKS or not stream.alive:
                        break
                    continue
                if not self._consider(change):
                    return
                if not self._parts:
                    self._place = place_of_change(change.raw)
        if not self._taken.changes and not self._taken.notices:
            raise error

    def _refuse(self, error: OperationFailure) -> NoReturn:
        """The next change is the one that the server cannot send."""
        if error.code == IMAGE_MISSING:
            raise unsupported(
                f"{describe(self._place).text}: the image that is required of the next change is not there, "
                "because it expired or images were enabled later",
                "go on from the same token with INCLUDE_IF_AVAILABLE",
            ) from error
        with closing(self._source.open(self._place, 1, _SHORT_AWAIT_MS, slim=True)) as stream:
            for _ in range(_CAREFUL_LOOKS):
                change = stream.try_next()
                if change is not None:
                    break
            else:
                raise error
        place = place_of_change(change.raw)
        raise RecordFault(
            0,
            f"{describe(place).text} in {_name(decoded(change.raw))}",
            "with its images it is larger than the 16 MB that the server can send; read it with "
            "old_item_state_mode=OMIT, or with new_item_state_mode=OMIT",
            cursor_of(place, self._start),
        ) from error

    # -- What was found

    def _over(self, reason: str) -> None:
        """Behind an invalidate: go on with what has the name next, or end."""
        self.close()
        invalidated = Invalidated(reason)
        former = self._start is not None and (ticks_at(self._place) or self._start) < self._start
        if former or self._goes_on():
            self._taken.notices.append(invalidated)
            self._taken.caught_up = False
        else:
            self._outcome = Ended(invalidated)

    def _batch(self, begin: Place) -> MongoBatch:
        taken = self._taken
        batch = MongoBatch(taken.changes, self._view, begin, self._place, self._start)
        batch.outcome, batch.requests, batch.caught_up = self._outcome, self._requests, taken.caught_up
        batch.notices = tuple(taken.notices)
        seconds = seconds_at(self._place)
        if seconds is not None:
            batch.watermark = datetime.fromtimestamp(max(0, seconds - _CLOCKS_SECONDS), UTC)
        batch.headroom = self._headroom(self._place)
        return batch


def _name(change: Mapping[str, Any], field: str = "ns") -> str:
    namespace = change.get(field, {})
    return f"{namespace.get('db')}/{namespace.get('coll')}"


def _altered(name: str) -> Exception:
    return fault(
        ErrorCategory.INVALID_REQUEST,
        f"MongoOptions.pipeline removes {name!r} from the changes; leave _id, operationType, ns and "
        "documentKey in them",
    )
