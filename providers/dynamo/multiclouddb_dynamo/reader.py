"""Reads one shard."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import attrs
from botocore.exceptions import ClientError, ParamValidationError

from multiclouddb_api import ErrorCategory, NewItemStateMode, OldItemStateMode
from multiclouddb_dynamo.capabilities import DELAY_SECONDS, EMPTY_ANSWERS
from multiclouddb_dynamo.catalog import check_readable, elsewhere, replaced
from multiclouddb_dynamo.client import RECORD_BYTES, memory_of
from multiclouddb_dynamo.errors import (
    BROKEN,
    EXPIRED_ITERATOR,
    GONE,
    ITS_OPERATOR,
    MISSING,
    REJECTED,
    TRIMMED,
    code_of,
    expired_records,
)
from multiclouddb_dynamo.last_record import LastRecord, numbered_anew
from multiclouddb_dynamo.mapping import (
    DynamoMapper,
    DynamoView,
    Record,
    is_unnamed_delete,
    place_after,
    seconds_of,
    seq_of,
)
from multiclouddb_dynamo.position import (
    EARLY_SECONDS,
    MOST_LOOKS,
    RETENTION_SECONDS,
    After,
    Horizon,
    Latest,
    Place,
    Since,
    Trail,
    cursor_of,
    headroom,
    looks_at,
    seconds_at,
    without_iterator,
)
from multiclouddb_dynamo.source import (
    MOST_ITERATORS,
    START_SECONDS,
    EmptyAnswers,
    ReaderContext,
)
from multiclouddb_dynamo.starts import CLOCK_SECONDS, end_of
from multiclouddb_spi import (
    DAMAGED,
    Batch,
    Continue,
    Deadline,
    Outcome,
    ProviderFault,
    Reached,
    Reader,
    cancelled,
    unsupported,
)

_MOST_RECORDS: Final = 1000  # the service's maximum for Limit
# An answer without records may be followed by an answer with records. Therefore a new reader immediately
# makes more calls, and even more if earlier readers have found nothing. From the fourth reader on, only some
# readers make many calls, because most shards without records are in fact empty. The position stores the
# number of readers.
_FEW: Final = EMPTY_ANSWERS - 1
_LOOKS: Final = (_FEW, 63, 511, _FEW, _FEW, _FEW, 63, _FEW, _FEW, 511)
_AGAIN: Final = 3
# If there are many shards, a process reads at most this many answers in total, in addition to the first few
# answers of each shard.
_MOST_LOOKS_OF_ALL: Final = 16384
# A reader that has not reached its bound knows that more records follow, so it continues for longer.
_BOUND_LOOKS: Final = 1000
# In a shard that has ended, this many answers are read without pauses. After them, the shard is read like any
# other shard.
_CLOSED_LOOKS: Final = 1000
_GROWTH: Final = 1_000_000
_LEAST_NUMBER: Final = 10**21  # sequence numbers have 21 digits; in DynamoDB Local they have leading zeros
_MISSING_ATTEMPTS: Final = 5
_NEXT: Final = "NextShardIterator"
_STALE: Final = GONE | {EXPIRED_ITERATOR}
_FIRST_PAUSE: Final = 0.1
_MOST_PAUSE: Final = 1.0
# A call takes boto3 about a millisecond, so this many calls per second to idle shards use a quarter of a
# core.
_IDLE_CALLS_A_SECOND: Final = 250
_UNREAD: Final = "records in {} that were never read may have been trimmed"


class DynamoReader(Reader):
    """Reads one shard forward, with one GetRecords call per fetch."""

    def __init__(self, source: ReaderContext, view: DynamoView, place: Place, until: Place | None) -> None:
        self._source, self._view, self._place, self._until = source, view, place, until
        self._iterator: str | None = None
        self._last = LastRecord(source, view.shard_id)
        self._walks = self._fresh = self._closed = False
        self._is_whole = False  # whether a shard is read from its oldest record to a time
        self._unsure = 0  # how many answers in succession had no iterator, although no end is known
        self._refused = False  # whether the service has refused the iterator of its own last answer
        self._outcome: Outcome = Continue()
        self._requests, self._asked, self._empty = 0, 0.0, EmptyAnswers()
        self._lost_at = -math.inf
        self._found_nothing = looks_at(place)
        self._looks: int | None = _BOUND_LOOKS if until is not None else None
        self._record_bytes = RECORD_BYTES
        self._cancelled = threading.Event()
        source.readers.add(self)

    def fetch(self, max_records: int, max_bytes: int, wait: float, deadline: Deadline) -> Batch:
        """Fetch records. The service has no long poll, so the call never waits for new records."""
        if self._cancelled.is_set():
            raise cancelled()
        if self._until is not None and _reached(self._place, self._until):
            self._outcome = Reached()
        self._requests = 0
        if not isinstance(self._outcome, Continue):
            return self._batch([], self._place)
        if self._looks is None:
            self._looks = self._far(self._found_nothing)
        if isinstance(self._place, After) and self._iterator is not None and self._last.is_due():
            self._last.ahead, self._iterator = self._iterator, None
        limit = min(max_records, _MOST_RECORDS, max(1, max_bytes // self._record_bytes))
        if isinstance(self._place, After) and self._place.count:
            limit = _MOST_RECORDS  # all that have the number of the last one come in one answer
        answer = self._answer(limit, deadline)
        is_bare = answer is not None and not (answer.get("Records") or answer.get(_NEXT))
        if is_bare and limit < _MOST_RECORDS and self._iterator is not None:  # None if it was refused
            # Alternator answers a Limit that is smaller than a batch of its log so, at the end of a shard or
            # not (scylladb/scylladb#31582).
            answer = self._answer(_MOST_RECORDS, deadline)
        if answer is None:  # the shard was trimmed before its first read, so its children are read instead
            self._outcome = end_of(self._source.shards.children(self._view.shard_id), self._place)
            return self._batch([], self._place)
        asked, self._iterator, self._fresh = self._iterator, answer.get(_NEXT), False
        has_ended: bool | None = False
        if self._iterator is None or self._refused:  # one that is refused does not show an open shard either
            has_ended = self._has_ended(answer, deadline)
            is_left = self._iterator is None and isinstance(self._place, Latest) and not answer.get("Records")
            if is_left and not has_ended:
                self._iterator = asked  # only a scan of the whole shard would give another one
        self._unsure = self._unsure + 1 if has_ended is None else 0
        return self._taken(answer, deadline, is_over=has_ended is True)

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        """Keep the empty answers, and the iterator of an unread `Now`, for the next reader of this shard."""
        self._source.readers.discard(self)
        if self._iterator is not None and self._empty.count:
            self._source.empty.put(self._iterator, self._empty)
        if not isinstance(self._place, Latest) or self._place.iterator is not None or self._walks:
            return
        if self._iterator is not None and self._place.since is not None:
            self._source.kept.put(self._view.shard_id, self._place.since, self._iterator)

    # -- Calls

    def _has_ended(self, answer: Mapping[str, Any], deadline: Deadline) -> bool | None:
        """Return whether a shard has ended whose answer has no iterator; None if this is not known.

        Some servers leave the iterator out although the shard is open (localstack/localstack#12483). So the
        end has to be stated twice, by `GetRecords` and by `DescribeStream`. The Kinesis Client Library does
        the same: its `ShutdownTask` looks for children of the shard.
        """
        source, shard_id = self._source, self._view.shard_id
        if source.is_known_end(shard_id):
            return True
        # Records are delivered before the service is asked about the shard.
        records = answer.get("Records")
        is_new = records and not (isinstance(self._place, After) and self._last.is_all(records, self._place))
        return None if is_new else source.has_ended(shard_id, self._asked, deadline)

    def _answer(self, limit: int, deadline: Deadline) -> Mapping[str, Any] | None:
        """Request a page of records; None if the shard no longer exists and no unread record was lost."""
        attempts = 0
        while True:
            try:
                if self._iterator is None:
                    self._iterator = self._open()
                self._requests, self._asked = self._requests + 1, time.monotonic()
                # An answer that begins with a record that was read may have one more, and another one, which
                # shows whether the last one has a number of its own.
                most = min(limit + 2 * self._last.is_next, _MOST_RECORDS)
                answer = self._source.calls.records(self._iterator, most, native=self._view.native)
                self._refused = self._refused and self._fresh
                if self._fresh and self._is_old(self._place):  # this answer has set the service's clock
                    raise expired_records(_UNREAD.format(self._view.shard_id))
                return answer
            except (ClientError, ParamValidationError) as error:
                code, iterator, self._iterator = code_of(error), self._iterator, None
                # The answer of a proxy has its status in place of a code, and the time of another clock.
                if isinstance(error, ClientError) and not code.isdecimal():
                    self._source.calls.hear(error.response)
                hinted = not self._fresh and without_iterator(self._place) != self._place
                if code == TRIMMED and self._fresh and self._last.is_sought:
                    self._last.give_up()  # the records behind it may still exist
                elif code in REJECTED and self._fresh and self._asks_time():
                    self._is_whole = True
                elif (code in _STALE and not self._fresh) or (code in REJECTED and hinted):
                    # A position can be valid although its iterator is not. DynamoDB Local reports an iterator
                    # as trimmed if the iterator was made while the shard was empty.
                    self._place = without_iterator(self._place)
                    # A new iterator begins at the last record. If a service refuses iterators sooner than
                    # after 15 minutes, the answers are kept: otherwise there would never be enough.
                    lost_before, self._lost_at = self._lost_at, time.monotonic()
                    if self._lost_at - lost_before > DELAY_SECONDS:
                        self._empty = EmptyAnswers()
                elif code in REJECTED and not self._fresh:
                    # The service's own iterator, which is of a shard's end in LocalStack ("…|None"), says as
                    # little as none.
                    self._refused = True
                    return {"Records": []}
                elif code == MISSING and self._may_appear(attempts := attempts + 1, deadline):
                    pass
                elif (
                    code in GONE
                    and isinstance(self._place, Horizon | Since)
                    and not self._is_missed(self._place)
                ):
                    if code == MISSING:
                        check_readable(self._source.calls, self._source.spec.address)
                    return None
                elif code in GONE and isinstance(self._place, Latest) and self._place.seq is not None:
                    # The scanned records have been trimmed. The age of the remaining records shows which of
                    # them are wanted.
                    self._place = attrs.evolve(self._place, seq=None)
                else:
                    ours = self._translated(error, deadline)
                    if ours is None:
                        if iterator is not None and self._empty.count:  # it is used again later
                            self._source.empty.put(iterator, self._empty)
                        raise
                    raise ours from error

    def _asks_time(self) -> bool:
        """Return True if the next iterator is one at a time, and not at the oldest record.

        What the service answers about a shard that ended before the time is not documented, and its clock
        may differ from that of the last answer. If it refuses the time, the shard is read from its oldest
        record, and what is older than the time is left out here.
        """
        return isinstance(self._place, Since) and not self._is_whole

    def _may_appear(self, attempts: int, deadline: Deadline) -> bool:
        """Wait, and return True to try again, if the service lists a shard that it says is missing."""
        shard_id, source = self._view.shard_id, self._source
        if attempts == _MISSING_ATTEMPTS or source.shard(shard_id, deadline) is None:
            return False
        if attempts == 1 and replaced(source.calls, source.spec.address, source.arn) is not None:
            return False
        pause = _FIRST_PAUSE * (1 << (attempts - 1))
        if pause >= deadline.remaining():
            raise ProviderFault.of(
                ErrorCategory.TRANSIENT_FAILURE,
                f"the service lists {shard_id}, but also says that there is no such shard; try again",
                MISSING,
                retryable=True,
            )
        if self._cancelled.wait(pause):
            raise cancelled()
        return True

    def _open(self) -> str:
        shard_id, self._fresh = self._view.shard_id, False
        kind, seq = "TRIM_HORIZON", None
        trail = self._place.trail
        match self._place:
            case Latest(_, str() as iterator):
                self._empty = self._source.empty.take(iterator)
                return iterator
            case Latest(since, _, walked):
                kept = None
                if walked is None and trail is None and since is not None:
                    kept = self._source.kept.take(shard_id, since)
                if kept is not None:
                    return kept
                self._walks, self._looks, seq = True, max(_FEW, self._looks or 0), walked
                kind = kind if walked is None else "AFTER_SEQUENCE_NUMBER"
            case After(last):
                if trail is not None and self._last.ahead is None:
                    self._last.ahead = trail.iterator
                    self._empty = self._source.empty.take(trail.iterator)
                ahead, trail = self._last.ahead, None
                kind, seq = ("AT" if self._last.seek() else "AFTER") + "_SEQUENCE_NUMBER", last
                if ahead is not None and not self._last.is_sought:
                    self._last.ahead = None
                    return ahead
            case _:
                pass
        if trail is not None:
            self._empty = self._source.empty.take(trail.iterator)
            return trail.iterator
        if self._is_old(self._place):
            raise expired_records(_UNREAD.format(shard_id))
        self._requests, self._fresh = self._requests + 1, True
        if isinstance(self._place, Since) and self._asks_time():
            # A start may be a minute ahead of the service's clock, which refuses the future.
            now = self._source.seconds()
            time = self._place.time if now is None else min(self._place.time, now - CLOCK_SECONDS)
            return self._source.calls.iterator_at(self._source.arn, shard_id, max(0, time))
        return self._source.calls.iterator(self._source.arn, shard_id, kind, seq)

    def _is_old(self, place: Place) -> bool:
        """Return True if the oldest records since a position without a number may have been trimmed."""
        match place:
            case After():
                return False
            case Horizon(since):
                age = self._source.age_of(since)
                return age is not None and age > START_SECONDS
            case _:
                age = self._source.age_of(seconds_at(place))
                return age is not None and age > RETENTION_SECONDS

    def _is_missed(self, place: Horizon | Since) -> bool:
        """Return True if events were lost because the records after a position are missing."""
        if isinstance(place, Since):
            return self._source.age_of(place.time) is None or self._is_old(place)
        known = self._source.age_of(place.since) is not None
        return self._is_old(place) if known else not self._source.has_started()

    def _translated(
        self, error: ClientError | ParamValidationError, deadline: Deadline
    ) -> ProviderFault | None:
        shard_id, code = self._view.shard_id, code_of(error)
        if code in GONE:
            calls, address, arn = self._source.calls, self._source.spec.address, self._source.arn
            fault = replaced(calls, address, arn)
            if fault is None and code == MISSING:
                fault = elsewhere(calls, address, arn, deadline)
            return fault or expired_records(f"records after this position in {shard_id} were trimmed")
        if code in REJECTED | BROKEN and isinstance(self._place, After):
            # A number below the shard's first number is refused like an invalid number. DynamoDB Local fails
            # if a number is far above the shard's last number.
            shard, seq = self._source.shard(shard_id, deadline), int(self._place.seq)
            if shard is None or shard.first is None:
                return None
            if code in REJECTED and seq < int(shard.first):
                return expired_records(f"records after sequence {seq} in {shard_id} were trimmed")
            most = int(shard.last) if shard.last else _GROWTH * max(int(shard.first), _LEAST_NUMBER)
            # Whether the service refuses the number, or something else, as in a call for records.
            is_about_it = getattr(error, "operation_name", "GetShardIterator") == "GetShardIterator"
            if (code in REJECTED and is_about_it) or seq > most:
                return numbered_anew(str(seq), shard_id)
        return None

    # -- Processing an answer

    def _taken(self, answer: Mapping[str, Any], deadline: Deadline, *, is_over: bool) -> Batch:
        found, is_over = self._without_last(answer.get("Records") or [], deadline, is_over=is_over)
        nbytes = memory_of(answer, len(found))
        if found:
            self._record_bytes = max(1, nbytes // len(found))
        is_over = self._are_numbered(found) and is_over
        records, begin = self._without_early(found)
        count = len(records)
        if self._until is not None:
            assert isinstance(self._until, After | Since)  # every other bound is reached at once
            records = _up_to(records, begin, self._until)
        cut = len(records) < count
        whole = self._with_images(records, begin)
        if len(whole) < len(records):
            # The next answer begins with the record that lacks an image, and is refused.
            self._iterator, self._place = None, place_after(records, len(whole), begin)
            return self._batch(whole, begin, nbytes)
        if records:
            self._place = place_after(records, len(records), begin)
            self._last.passed()
        else:
            self._place = self._moved(begin)
        if cut or (self._until is not None and _reached(self._place, self._until)):
            self._outcome = Reached()
        elif is_over:
            self._outcome = end_of(self._source.shards.children(self._view.shard_id), self._place)
        assert self._looks is not None
        if not found and self._last.ahead is None:
            self._empty.add(self._asked)
        elif found:
            self._empty = EmptyAnswers()
            self._found_nothing = -1  # for the next reader, this is a new position
            self._looks = self._looks if self._until is not None else min(self._looks, _FEW)
        if self._empty.count > self._looks and not self._closed:
            self._closed = self._source.is_closed(self._view.shard_id, seconds_at(self._place), deadline)
        return self._batch(records, begin, nbytes)

    def _without_last(
        self, records: list[Record], deadline: Deadline, *, is_over: bool
    ) -> tuple[list[Record], bool]:
        """Return the records of an answer without those at the position, if the answer begins with them.

        Also return whether the shard has ended. If the record at the position is too old to be there, only
        the iterator that has come further shows that nothing else is gone.
        """
        place, last = self._place, self._last
        if not isinstance(place, After):
            return records, is_over
        found = last.without(records, place)
        if last.is_sought:
            self._requests += last.miss(place, deadline, is_over=is_over)
        is_over = is_over and (bool(found) or last.ahead is None or not last.is_aged(place))
        if found or is_over:
            last.ahead = None
        elif last.ahead is not None and not last.is_sought:
            self._iterator, last.ahead = last.ahead, None
        return found, is_over

    def _without_early(self, records: list[Record]) -> tuple[list[Record], Place]:
        """Return records and the position before the first of them."""
        begin = self._place
        if isinstance(begin, Since):
            early = _count_before(records, begin.time)
            return records[early:], begin
        if not isinstance(begin, Latest) or not self._walks:
            return records, begin
        count = 0
        for record in records:
            seconds = seconds_of(record)
            if seconds is None or begin.since is None or seconds + EARLY_SECONDS > begin.since:
                break
            count += 1
        if not count:
            return records, begin
        return records[count:], attrs.evolve(begin, seq=seq_of(records[count - 1]), trail=None)

    def _are_numbered(self, records: list[Record]) -> bool:
        """Refuse records after which no position can be stored, or that were read already.

        The records before the first without a number are delivered first; then False is returned.
        """
        for index, record in enumerate(records):
            try:
                number = int(seq_of(record))
            except DAMAGED:
                del records[index:]
                if index:
                    self._iterator = None
                    return False
                raise ProviderFault.of(
                    ErrorCategory.PROVIDER_ERROR,
                    f"the next record of {self._view.shard_id} has no valid sequence number, so no position "
                    f"after it can be stored; {ITS_OPERATOR}",
                ) from None
            if index == 0 and isinstance(self._place, After) and (number, math.inf) <= self._place.rank:
                raise ProviderFault.of(
                    ErrorCategory.PERMANENT_FAILURE,
                    f"GetRecords: an answer about {self._view.shard_id} repeats records from before its own "
                    f"iterator; {ITS_OPERATOR}",
                )
        return True

    def _with_images(self, records: list[Record], begin: Place) -> list[Record]:
        """Return the records before the first that lacks a required image; if there are none, refuse it."""
        spec = self._source.spec
        new = spec.new_item_state_mode is NewItemStateMode.REQUIRE
        old = spec.old_item_state_mode is OldItemStateMode.REQUIRE
        for index, record in enumerate(records if new or old else ()):
            kind, data = record.get("eventName"), record["dynamodb"]
            if new and kind != "REMOVE" and not data.get("NewImage"):
                lacking = "new"
            elif old and kind != "INSERT" and not data.get("OldImage"):
                lacking = "old"
            else:
                continue
            if index:
                return records[:index]
            self._iterator, self._place = None, begin
            raise unsupported(
                f"{lacking}_item_state_mode=REQUIRE: the record at sequence {seq_of(record)} has no "
                f"{lacking} item (its StreamViewType is {data.get('StreamViewType', 'not known')})",
                "read with INCLUDE_IF_AVAILABLE from the same token",
            )
        return records

    def _moved(self, begin: Place) -> Place:
        """Return the position after an answer without records."""
        if self._iterator is None or self._last.is_sought:
            return begin
        looks = self._found_nothing + 1
        if looks == MOST_LOOKS:
            looks = _AGAIN
        if isinstance(begin, Latest) and begin.iterator is not None:
            return attrs.evolve(begin, iterator=self._iterator, looks=looks)
        if len(self._source.readers) > MOST_ITERATORS or (isinstance(begin, Latest) and not self._walks):
            return attrs.evolve(begin, trail=None)
        return attrs.evolve(begin, trail=Trail(self._iterator, looks))

    def _far(self, readers: int) -> int:
        """Return the number of answers without records after which a shard is treated as empty."""
        looks = _LOOKS[readers]
        if isinstance(self._place, Latest) and not readers:
            age = self._source.age_of(self._place.since)
            if age is None or age <= DELAY_SECONDS:
                return 0  # an iterator that has just been made points to the end
        if looks > _FEW and not self._source.may_look_far(self._view.shard_id):
            return _FEW
        return min(looks, max(_FEW, _MOST_LOOKS_OF_ALL // len(self._source.readers)))

    def _batch(self, records: list[Record], begin: Place, nbytes: int = 0) -> Batch:
        looked = self._empty.count - (self._looks or 0)
        waits = isinstance(self._outcome, Continue) and not records
        is_open = self._unsure > 0 or self._last.is_sought  # whether all was read
        is_quiet = looked > 0 and self._empty.are_recent(self._longest_pause())
        seconds, now = seconds_at(self._place), self._source.calls.now()
        read_until = self._empty.read_until(now)
        if isinstance(self._place, Latest) and self._place.since is not None:
            least = datetime.fromtimestamp(self._place.since, UTC)
            read_until = max(least, read_until or least)
        return Batch(
            records,
            DynamoMapper(self._view_of(records), begin),
            cursor_of(begin),
            cursor_of(self._place),
            self._outcome,
            nbytes,
            # A shard that has ended gets no new records, so continue to its end without a pause.
            caught_up=False if waits and (self._closed or is_open or not is_quiet) else None,
            poll_after=self._pause(looked, is_quiet=is_quiet) if waits else 0.0,
            watermark=None if seconds is None else datetime.fromtimestamp(seconds, UTC),
            likely_read_until=read_until,
            headroom=None if now is None else headroom(self._place, now),
            requests=self._requests,
        )

    def _view_of(self, records: list[Record]) -> DynamoView:
        """Return the view of records; a delete that names nobody may be a replicated one."""
        view, source = self._view, self._source
        if view.replicated or not any(map(is_unnamed_delete, records)):
            return view
        self._requests += 1
        replicated = source.replication.may_exist(source.calls, str(source.spec.address.collection))
        return attrs.evolve(view, replicated=replicated)

    def _pause(self, looked: int, *, is_quiet: bool) -> float:
        """Return the pause after an answer without records."""
        if self._last.is_sought:
            return 0.0
        if self._unsure:
            looked = self._unsure
        elif not (looked > _CLOSED_LOOKS if self._closed else is_quiet):
            return 0.0
        return min(self._longest_pause(), _FIRST_PAUSE * (1 << min(looked - 1, 8)))

    def _longest_pause(self) -> float:
        """Return the maximum pause, which is longer if the feed has many readers."""
        return max(_MOST_PAUSE, len(self._source.readers) / _IDLE_CALLS_A_SECOND)


def _reached(place: Place, until: Place) -> bool:
    """Return True if the position is at or after the bound; one without a record is before every record."""
    if isinstance(until, Since):
        time = place.time if isinstance(place, After | Since) else None
        return time is not None and time >= until.time
    return not isinstance(until, After) or (isinstance(place, After) and place.rank >= until.rank)


def _count_before(records: list[Record], time: int) -> int:
    """Return how many records are older than a time, before the first that is not, or has no time."""
    for index, record in enumerate(records):
        seconds = seconds_of(record)
        if seconds is None or seconds >= time:
            return index
    return len(records)


def _up_to(records: list[Record], begin: Place, until: After | Since) -> list[Record]:
    """Return the records up to a bound."""
    if isinstance(until, Since):
        return records[: _count_before(records, until.time)]
    most, taken = int(until.seq), begin.count if isinstance(begin, After) and begin.seq == until.seq else 0
    for index, record in enumerate(records):
        number = int(seq_of(record))
        if number == most:
            taken += 1
        if number > most or (number == most and until.count and taken > until.count):
            return records[:index]
    return records
