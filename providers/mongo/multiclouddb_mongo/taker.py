"""Takes the changes out of a stream's answers, and finds where a read has to end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs
import bson
from attrs import define
from bson.raw_bson import RawBSONDocument

from multiclouddb_api import Dropped, ErrorCategory, Notice, Renamed
from multiclouddb_mongo.driver import Stream
from multiclouddb_mongo.mapping import CHANGES
from multiclouddb_mongo.position import After, Kind, Place, compare, ticks_at, token_text
from multiclouddb_mongo.raw_change import (
    Answer,
    Raw,
    RawChange,
    has_null,
    is_before,
    is_of_another,
    item_changes,
    last_answer,
    namespace_of,
    place_of_change,
    text_before,
    untouched_changes,
)
from multiclouddb_mongo.source import ReaderContext
from multiclouddb_mongo.values import LENIENT_RAW
from multiclouddb_spi import ProviderFault

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
        replaced: True if the last notice says that another collection was renamed over the watched one.
        reached: True if the bound of the read was reached.
        caught_up: True if the server had no more changes to send.
        at_end: True if the last answer was empty, which means that the server scanned the whole log.
        requests: The number of answers that were requested.
    """

    place: Place
    changes: list[Raw] = attrs.field(factory=list)
    notices: list[Notice] = attrs.field(factory=list)
    gone: str | None = None
    replaced: bool = False
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

    def __init__(self, source: ReaderContext, until: Place | None) -> None:
        self._source, self._until = source, until
        self._bound = None if until is None else text_before(until)
        self._parts: list[RawBSONDocument] = []
        # How many changes the last answer had, and how many are left of it; None if PyMongo hides it.
        self._size = 0
        self._left: int | None = 0
        self._ended = self.resumed = self.is_lacking = False
        self.is_known = True
        self.log_end: int | None = None  # see `Answer.log_end`
        # In a lenient stream: the fields whose images each change has to have.
        self._required: tuple[str, ...] = ()
        # Most changes are taken unchanged. The server and the caller decide which changes need a closer
        # check.
        self._takes = untouched_changes if source.splits or source.options.pipeline else item_changes

    def begin(self, required: tuple[str, ...] = ()) -> None:
        """Begin with the first answer of a stream that this thread has just opened.

        Args:
            required: The fields whose images the server does not check, although each change has to have
                them. The first change without one ends the read, and `is_lacking` is then True.
        """
        self._parts, self._required = [], required
        self._ended = self.resumed = self.is_lacking = False
        self._told(last_answer())

    @property
    def is_used_up(self) -> bool:
        """Return True unless changes of the last answer are left."""
        return not self._left

    def take(self, stream: Stream, taken: Taken, room: int, batch_size: int) -> bool:
        """Take the remaining changes of an answer, or the next answer."""
        fresh = not self._left
        self.resumed = False
        if fresh and self._ended:
            # The server's first answer has closed the stream. PyMongo would try to resume the stream, but a
            # stream cannot be resumed after an invalidate.
            self._end_with(stream, taken)
            return False
        taken.requests += fresh
        was_short = False
        change = self._next(stream)
        if change is None:
            self._follow(stream, taken, None)
            return False
        bound = self._bound
        while True:
            if self._is_plain(change.raw) and (bound is None or is_before(change.raw, bound)):
                taken.changes.append(change.raw)
            elif not self.consider(change, taken):
                return True
            elif taken.notices:
                break
            if len(taken.changes) >= room and not self._parts:
                break
            if self._left == 0:
                was_short = fresh and self._size < batch_size
                break
            following = self._next(stream)
            if following is None:
                break
            change = following
        self._follow(stream, taken, place_of_change(change.raw).data)
        if was_short:
            self._was_short(taken)
        return True

    def _next(self, stream: Stream) -> RawChange | None:
        """Return the next change, and notice what the server has answered."""
        if self._left:
            self._left -= 1
            return stream.try_next()
        last_answer()  # another stream of this thread may have received one
        change = stream.try_next()
        self._told(last_answer(), 0 if change is None else 1)
        return change

    def _told(self, answer: Answer | None, taken: int = 0) -> None:
        self.is_known = answer is not None
        self.log_end = None if answer is None else answer.log_end
        if answer is None:
            self._left = None
            return
        self._size, self._left = answer.count, answer.count - taken
        self._ended, self.resumed = answer.over, self.resumed or answer.opened

    def consider(self, change: RawChange, taken: Taken) -> bool:
        """Process one change of any kind. Return False if no further change may be read."""
        place = place_of_change(change.raw)
        if self._until is not None:
            order = compare(place, self._until)
            if order is not None and order > 0:
                taken.place, taken.reached = self._until, True
                return False
        if self._is_plain(change.raw):
            taken.changes.append(change.raw)
        elif not self._look_into(change, place, taken):
            return False
        if not self._parts:
            taken.place = attrs.evolve(place, kind="o") if taken.replaced else place
            taken.reached = isinstance(self._until, After) and self._until.data == place.data
        return not taken.reached

    def _is_plain(self, change: Raw) -> bool:
        """Return True if a change can be taken without a closer look."""
        return bool(self._takes([change])) and not (self._required and has_null(change, self._required))

    def _was_short(self, taken: Taken) -> None:
        # A short answer contains all available changes, unless the answer comes from a `mongos`, is larger
        # than `_FULL_BYTES`, or ends before the end of the log. A `mongos` may send only a part of the
        # available changes, and so does a server that may search its log only for a set time.
        at, end = ticks_at(taken.place), self.log_end
        is_at_end = at is None or end is None or at >= end
        if is_at_end and not self._source.sharded and sum(map(len, taken.changes)) < _FULL_BYTES:
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
            if last is not None and not (isinstance(taken.place, After) and taken.place.data == last):
                taken.place = After("e", last)
            # Some servers send a position that is before the one after which they were asked to go on.
            place = After(kind, data)
            if compare(place, taken.place) in (None, 1):
                taken.place = place
        if not stream.alive:
            self._end_with(stream, taken)

    def _end_with(self, stream: Stream, taken: Taken) -> None:
        """Record that the server has closed the stream for a reason that the caller's pipeline hides."""
        token = stream.resume_token
        place = taken.place if token is None else After("i", token_text(token))
        taken.end(place, "the pipeline removed the event that says why the stream ended")

    def _look_into(self, change: RawChange, place: After, taken: Taken) -> bool:
        """Handle a change that needs a closer check, for example a drop or a split change."""
        # Only the change's own fields are decoded. If a document in it is damaged, the mapper reports it.
        fields = RawBSONDocument(bytes(change.raw), LENIENT_RAW)
        kind = fields.get("operationType")
        if "splitEvent" in fields:
            return self._join(fields, taken)
        if kind in CHANGES:
            for name in ("documentKey", "ns"):
                if not isinstance(fields.get(name), Mapping):
                    raise _altered(name)
            if self._lacks(fields, taken):
                return False
            taken.changes.append(change.raw)
        elif kind == "invalidate":
            taken.end(place, "the server invalidated the stream")
            return False
        elif kind in ("drop", "rename") and self._is_of_another(fields):
            taken.changes.append(change.raw)  # the mapper refuses it
        elif kind == "drop":
            taken.note(Dropped(namespace_of(fields)))
        elif kind == "dropDatabase":
            taken.note(Dropped(namespace_of(fields).partition("/")[0]))
        elif kind == "rename":
            new_name = namespace_of(fields, "to")
            taken.note(Renamed(namespace_of(fields), new_name))
            address = self._source.address
            taken.replaced = new_name == f"{address.database}/{address.collection}"
        elif kind is None:
            raise _altered("operationType")
        return True

    def _is_of_another(self, change: Mapping[str, Any]) -> bool:
        own = self._source.address.collection
        return own is not None and is_of_another(change, own)

    def _lacks(self, change: Mapping[str, Any], taken: Taken) -> bool:
        """Return True if a change lacks a required image, and set the position before it."""
        self.is_lacking = any(change.get(name, True) is None for name in self._required)
        if self.is_lacking:
            taken.keep_up()
        return self.is_lacking

    def _join(self, part: RawBSONDocument, taken: Taken) -> bool:
        """Join the parts of a large change; return False if no further change may be read."""
        # The position does not move before the last part has arrived.
        match part["splitEvent"]:
            case {"fragment": int() as number, "of": int() as count}:
                pass
            case _:
                raise _altered("splitEvent")
        if number == 1:
            self._parts = []
        self._parts.append(part)
        if number != count:
            return True
        parts, self._parts = self._parts, []
        whole = {"_id": part["_id"]}
        if len(parts) == count:  # else the mapper reports a change of which parts are missing
            for each in parts:
                whole.update(each)
            del whole["splitEvent"]
        if self._lacks(whole, taken):
            return False
        taken.changes.append(bson.encode(whole))
        return True


def _altered(name: str) -> Exception:
    return ProviderFault.of(
        ErrorCategory.INVALID_REQUEST,
        f"MongoOptions.pipeline removes or alters {name!r} of the changes; leave _id, operationType, ns and "
        "documentKey as they are",
    )
