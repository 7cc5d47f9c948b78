"""Reads one range forward. Each fetch reads one page from each partition in the range."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

import attrs
from attrs import define
from azure.cosmos.exceptions import CosmosHttpResponseError

from multiclouddb_cosmos.mapping import CosmosMapper
from multiclouddb_cosmos.position import LIVE, KeyRange, Place, cursor_of
from multiclouddb_cosmos.ranges import pieces_after
from multiclouddb_cosmos.records import Records, is_after, is_of, picked, place_after, records_of
from multiclouddb_cosmos.source import ReaderContext
from multiclouddb_cosmos.transport import MovedError
from multiclouddb_spi import Batch, Child, Continue, Deadline, Drained, Outcome, Reached, Reader, cancelled

_FIRST_PAUSE: Final = 0.1
_MOST_PAUSE: Final = 1.0
# A call through azure-cosmos takes about two milliseconds of CPU time. Therefore, if many ranges are idle,
# each of them is read less often.
_IDLE_CALLS_A_SECOND: Final = 100
_PAUSES_A_CALL: Final = 4
_NONE: Final = Records([], [])


@define(eq=False)
class _Strand:
    """The part of a range that lies in one partition."""

    span: KeyRange  # the part
    place: Place  # the position up to which this part was fetched
    records: Records = _NONE  # the records that were fetched but not yet returned
    done: bool = False  # true if this is a bounded read and the part was read up to the bound
    quiet: bool = False  # true if the service's last answer said that there were no more changes


class CosmosReader(Reader):
    """Reads one range forward."""

    def __init__(
        self,
        source: ReaderContext,
        name: Callable[[str], str],
        span: KeyRange,
        place: Place,
        until: Place | None,
    ) -> None:
        self._source, self._name, self._span, self._until = source, name, span, until
        self._shown = span
        self._mapper = CosmosMapper(source.view(name(span.partition_id)))
        self._place = place
        self._strands: list[_Strand] | None = None
        self._outcome: Outcome = Continue()
        self._empty = self._requests = self._nbytes = 0
        self._left = 0.0
        self._charge: float | None = None
        self._cancelled = threading.Event()
        source.readers.add(self)

    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        """Fetch records. The service has no long poll, so the call never waits for new records."""
        if self._cancelled.is_set():
            raise cancelled()
        self._requests, self._nbytes, self._charge = 0, 0, None
        self._left = deadline.remaining()
        begin = self._place
        if self._until is not None and begin.order >= self._until.order:
            self._outcome = Reached()
        if not isinstance(self._outcome, Continue):
            return self._batch(_NONE, begin)
        strands = self._opened()
        if strands is None:
            return self._batch(_NONE, begin)
        limit = self._source.limit(max_records, max_bytes)
        for strand in list(strands):
            if not strand.done and not len(strand.records) and self._fill(strands, strand, limit, deadline):
                return self._batch(_NONE, begin)
        return self._taken(strands, max_records, begin)

    def cancel(self) -> None:
        """Prevent further fetches. A call of the application's own client ends after 10 s at the latest."""
        self._cancelled.set()

    def close(self) -> None:
        """Do nothing, because the service holds no resources for a reader."""
        self._source.readers.discard(self)

    # -- Strands

    def _opened(self) -> list[_Strand] | None:
        """Return the parts to read, or None if a split has ended the range."""
        if self._strands is None:
            pieces = self._source.ranges().cut(self._span)
            if self._ends(pieces):
                return None
            self._strands = [_Strand(piece, self._place) for piece in pieces]
        return self._strands

    def _ends(self, pieces: list[KeyRange]) -> bool:
        if len(pieces) > 1 and self._until is None:
            parents, cursor = (self._span.partition_id,), cursor_of(self._place)
            self._outcome = Drained(tuple(Child(each.partition_id, parents, cursor) for each in pieces))
            return True
        return False

    def _fill(self, strands: list[_Strand], strand: _Strand, limit: int, deadline: Deadline) -> bool:
        """Request one page of one part of the range."""
        # If the part was split, it is divided.
        seen = self._source.ranges()
        self._requests += 1
        asked = self._source.calls.now()
        try:
            place = strand.place
            answer = self._source.read(strand.span, place.etag, limit, deadline, place.past)
        except (MovedError, CosmosHttpResponseError) as error:
            pieces = pieces_after(self._source, seen, strand.span, error)
            if self._ends(pieces):
                return True
            at = strands.index(strand)
            strands[at : at + 1] = [_Strand(piece, strand.place) for piece in pieces]
            return False
        self._source.check_kept(strand.span, strand.place.etag, strand.place.seconds, deadline)
        self._requests, self._nbytes = self._requests + answer.requests - 1, self._nbytes + answer.nbytes
        if answer.charge is not None:
            self._charge = (self._charge or 0.0) + answer.charge
        items = answer.items
        if self._source.wanted:
            items = [item for item in items if is_of(item, self._mapper.view, self._source.wanted)]
        exact = len(strands) > 1 or (self._until is not None and self._until.inner is not None)
        records = records_of(items, strand.place, self._mapper.view, placed=exact, reached=answer.etag)
        end = Place(answer.etag, strand.place.seconds, None, strand.place.past)
        if len(records):
            end = attrs.evolve(end, seconds=place_after(records, len(records)).seconds or end.seconds)
        if strand.place.inner is not None and end.lsn < strand.place.lsn:
            end = strand.place  # the service has not yet returned any change with this LSN
        if self._until is not None:
            records, cut = _before(records, self._until)
            strand.done = cut or end.order >= self._until.order
        # A page without items whose position has moved may be only a part of what the service searches.
        still = not answer.items and answer.etag == strand.place.etag
        strand.quiet = still or (answer.newest is not None and answer.etag >= answer.newest)
        if strand.quiet and self._until is None and end.past is not None and end.past != LIVE:
            seconds = self._source.seconds_before(asked)
            if seconds is None or seconds >= end.past:  # otherwise earlier changes than wanted can follow
                end = attrs.evolve(end, past=LIVE, seconds=seconds)
        strand.records, strand.place = records, end
        return False

    # -- Fetched records

    def _taken(self, strands: list[_Strand], most: int, begin: Place) -> Batch:
        """Return the records that can be delivered now, because no unread record comes before them."""
        if len(strands) == 1:
            (strand,) = strands
            records, strand.records = strand.records.part(0, most), strand.records.part(most)
            rest = strand.records
        else:
            records = _merged(strands, most)
            left = [strand.records for strand in strands if len(strand.records)]
            rest = min(left, key=lambda each: each.order(0), default=_NONE)
        if len(rest) and len(records):
            self._place = place_after(records, len(records))
            if rest.lsns[0] == self._place.lsn:
                self._place = attrs.evolve(self._place, inner=records.inner(len(records) - 1))
        elif not len(rest):
            self._place = self._end(strands, records)
        if self._until is not None and not len(rest) and all(strand.done for strand in strands):
            last = place_after(records, len(records)) if len(records) else self._place
            seconds = last.seconds if last.seconds is not None else self._until.seconds
            self._outcome, self._place = Reached(), attrs.evolve(self._until, seconds=seconds)
        self._empty = 0 if len(records) else self._empty + 1
        quiet = not len(rest) and all(strand.quiet or strand.done for strand in strands)
        return self._batch(records, begin, quiet=quiet)

    def _end(self, strands: list[_Strand], records: Records) -> Place:
        """Return the position up to which all parts were read."""
        reached = min(
            (strand.place for strand in strands if not strand.done), key=lambda each: each.order, default=None
        )
        last = place_after(records, len(records)) if len(records) else self._place
        if reached is None or reached.order < last.order:
            return last
        return attrs.evolve(reached, seconds=last.seconds if last.seconds is not None else reached.seconds)

    def _batch(self, records: Records, begin: Place, *, quiet: bool = False) -> Batch:
        shown = self._source.shown(self._span)
        if shown != self._shown:  # a partition key can move to another partition
            self._shown = shown
            self._mapper = CosmosMapper(self._source.view(self._name(shown.partition_id)))
        waits = isinstance(self._outcome, Continue) and quiet and not len(records)
        return Batch(
            records,
            self._mapper,
            cursor_of(begin),
            cursor_of(self._place),
            self._outcome,
            self._nbytes,
            caught_up=quiet,
            watermark=self._source.since(self._place.since),
            poll_after=self._pause() if waits else 0.0,
            charge=self._charge,
            requests=self._requests,
        )

    def _pause(self) -> float:
        # With many ranges, even the first pause is longer, because calls to idle ranges would delay the calls
        # to the other ranges. With longer pauses, no call could read all ranges before its time limit, and no
        # page would be marked as idle.
        shared = min(len(self._source.readers) / _IDLE_CALLS_A_SECOND, self._left / _PAUSES_A_CALL)
        return max(shared, min(_MOST_PAUSE, _FIRST_PAUSE * (1 << min(self._empty - 1, 8))))


def _before(records: Records, until: Place) -> tuple[Records, bool]:
    """Return the records up to a bound, and True if there are records after the bound."""
    count = bisect_left(range(len(records)), True, key=lambda index: is_after(*records.order(index), until))
    return (records, False) if count == len(records) else (records.part(0, count), True)


def _merged(strands: list[_Strand], most: int) -> Records:
    """Return the next records of all parts in LSN order, up to the LSN that every part has reached."""
    bound = min((strand.place.etag for strand in strands if not strand.done), default=None)
    ready = sorted(
        (strand.records.order(index), number, index)
        for number, strand in enumerate(strands)
        for index in range(len(strand.records))
        if bound is None or strand.records.lsns[index] <= bound
    )[:most]
    found = picked([strand.records for strand in strands], [each[1:] for each in ready])
    for number, strand in enumerate(strands):
        strand.records = strand.records.part(sum(each[1] == number for each in ready))
    return found
