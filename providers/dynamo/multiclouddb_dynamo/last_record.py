"""Makes sure that a shard still has the record after which a reader continues."""

from __future__ import annotations

import math
import time
from itertools import takewhile
from typing import Final

from botocore.exceptions import ClientError

from multiclouddb_api import ErrorCategory
from multiclouddb_dynamo.capabilities import EMPTY_ANSWERS
from multiclouddb_dynamo.errors import GONE, code_of, expired_records
from multiclouddb_dynamo.mapping import Record, id_of, is_numbered, seconds_of, seq_of
from multiclouddb_dynamo.position import RETENTION_SECONDS, After
from multiclouddb_dynamo.source import ReaderContext
from multiclouddb_spi import DAMAGED, Deadline, ProviderFault
from multiclouddb_spi.faults import START_ANEW

_SURE_SECONDS: Final = 300.0
_MOST_ANSWERS: Final = 32
_ENOUGH_EMPTY: Final = 8
_MOST_RECORDS: Final = 1000


class LastRecord:
    """The record at a reader's position, with which the first answer to the reader begins.

    DynamoDB never uses a sequence number again. Servers that keep a stream in memory, or are restored from a
    copy, begin at smaller numbers under the same ARN (floci-io/floci#2077), and they leave out, without a
    word, what was written up to the number of a position. So a reader asks for the records at its position
    and not after it. This costs no call, except if a token has an iterator, which has come further: then the
    record is asked for with two calls more, as it is every five minutes in which a shard gives no records.

    Attributes:
        is_next: True if the next records of the reader's iterator may begin with the one at the position.
        is_sought: True from when they have to, until it is known whether the shard has it.
        ahead: An iterator that has come further, with which the reader continues.
    """

    def __init__(self, source: ReaderContext, shard_id: str) -> None:
        self._source, self._shard_id = source, shard_id
        self.is_next = self.is_sought = False
        self.ahead: str | None = None
        self._empty, self._sure_until = 0, -math.inf
        self._is_trimmed, self._calls = False, 0

    def is_due(self) -> bool:
        """Return True if the record has not been seen for long."""
        return not self.is_sought and time.monotonic() > self._sure_until

    def seek(self) -> bool:
        """Return True if the reader's next iterator shall begin at the record, and not after it."""
        self.is_next = self.is_sought = not self._is_trimmed
        self._empty = 0
        return self.is_next

    def give_up(self) -> None:
        """Let the reader continue after the record, because the service says that it is trimmed."""
        self._is_trimmed = True
        self._settle()

    def passed(self) -> None:
        """Note that the reader has received a record behind it, which is the last one from now on."""
        self.is_next = self._is_trimmed = False
        self._settle()

    def _settle(self) -> None:
        self.is_sought = False
        self._sure_until = time.monotonic() + _SURE_SECONDS

    def is_all(self, records: list[Record], place: After) -> bool:
        """Return True if an answer has nothing but what was read."""
        return self.is_next and not place.count and all(is_numbered(each, place.seq) for each in records)

    def without(self, records: list[Record], place: After) -> list[Record]:
        """Return the records of an answer behind a position; refuse a position whose record is another one.

        If `place` lies between records of one number, what cannot be told apart is repeated, not left out.
        """
        if not records or not self.is_next:
            return records
        is_sought, self.is_next = self.is_sought, self.ahead is not None
        self._settle()
        same = list(takewhile(lambda record: is_numbered(record, place.seq), records))
        if place.count:
            ids = [id_of(record) for record in same[: place.count]]
            if len(ids) == place.count and ids[-1] == place.event_id:
                return records[place.count :]
            return records[ids.index(place.event_id) + 1 :] if place.event_id in ids else records
        if not is_sought:
            return records[len(same) :]
        if not same:
            number = _number_of(records[0])
            if number is not None and number > int(place.seq):
                if self.ahead is not None and self.is_aged(place):
                    return records  # this reader goes on, and it is the age of its record that shows
                raise expired_records(
                    f"the record at sequence {place.seq} in {self._shard_id}, after which this position is, "
                    "is missing, and perhaps others with it"
                )
            if number is not None:
                raise numbered_anew(place.seq, self._shard_id)
        elif place.time not in (None, *map(_time_of, same)) and None not in map(_time_of, same):
            raise numbered_anew(place.seq, self._shard_id)
        return records[len(same) :]

    def miss(self, place: After, deadline: Deadline, *, is_over: bool) -> int:
        """Note an answer without records, and return how many calls were made because of it.

        Such an answer proves nothing. After many of them, the shard is read from its oldest record.

        Raises:
            ProviderFault: The server uses numbers again; or nothing but the position's record is known to be
                gone, with all others of more than a day ago, among which may be some that nobody has read.
        """
        self._empty += 1
        if (self._empty < EMPTY_ANSWERS and not is_over) or deadline.passed():
            return 0
        self._calls = 0
        if self._is_behind_all(place, deadline):
            raise numbered_anew(place.seq, self._shard_id)
        if self.ahead is None and self.is_aged(place):
            raise expired_records(
                f"the record at sequence {place.seq} in {self._shard_id}, after which this position is, is "
                "gone, and perhaps others with it"
            )
        self._settle()
        return self._calls

    def is_aged(self, place: After) -> bool:
        """Return True if the service no longer keeps a record of this time."""
        age = self._source.age_of(place.time)
        return age is not None and age > RETENTION_SECONDS

    def _is_behind_all(self, place: After, deadline: Deadline) -> bool:
        """Return True if the shard has records, and all have smaller numbers than the position."""
        calls, empty, smaller = self._source.calls, 0, False
        self._calls = 1
        try:
            iterator: str | None = calls.iterator(self._source.arn, self._shard_id, "TRIM_HORIZON")
            for _ in range(_MOST_ANSWERS):
                if iterator is None or empty == _ENOUGH_EMPTY:
                    return smaller
                if deadline.passed():
                    return False
                self._calls += 1
                answer = calls.records(iterator, _MOST_RECORDS, native=False)
                numbers = [_number_of(record) for record in answer.get("Records") or ()]
                if any(number is None or number >= int(place.seq) for number in numbers):
                    return False
                smaller, empty = smaller or bool(numbers), 0 if numbers else empty + 1
                iterator = answer.get("NextShardIterator")
        except ClientError as error:
            if code_of(error) not in GONE:
                raise
        return False


def numbered_anew(seq: str, shard_id: str) -> ProviderFault:
    """Return the fault for a position whose record is not in the shard, or is another one there."""
    return ProviderFault.of(
        ErrorCategory.INVALID_REQUEST,
        f"sequence {seq} is not that of a record which was read from {shard_id}: pass a token as it was "
        "returned; or the server uses numbers again, as one that was restored or keeps its stream in memory "
        f"does, and leaves out changes made since: then {START_ANEW}",
    )


def _number_of(record: Record) -> int | None:
    try:
        return int(seq_of(record))
    except DAMAGED:
        return None


def _time_of(record: Record) -> int | None:
    seconds = seconds_of(record)
    return None if seconds is None else int(seconds)
