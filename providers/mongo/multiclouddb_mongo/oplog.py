"""Finds where the operation log begins."""

from __future__ import annotations

from typing import Final

from attrs import frozen
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from multiclouddb_api import ErrorCategory
from multiclouddb_mongo.driver import whose_log
from multiclouddb_mongo.errors import classify
from multiclouddb_mongo.position import At, ticks_at
from multiclouddb_mongo.source import ReaderContext
from multiclouddb_mongo.values import LENIENT_RAW
from multiclouddb_spi import ProviderFault

OPLOG: Final = "oplog.rs"
_TRIES: Final = 5
_LOOK_MS: Final = 1000
# A replica set writes this entry before its first election, so it has no term. In an entry that is not a
# note, `o.msg` is a field of a user's document.
_IS_FIRST_OF_ALL: Final = {
    "$and": [
        {"$eq": ["$op", "n"]},
        {"$eq": ["$o.msg", "initiating set"]},
        {"$lt": [{"$ifNull": ["$t", -1]}, 0]},
    ]
}


@frozen
class LogBeginning:
    """The first entry of the log; `whole` is True if nothing has been removed from the log yet."""

    place: At
    whole: bool


class Log:
    """Finds out where the operation log begins."""

    def __init__(self, source: ReaderContext) -> None:
        self._source = source
        self._readable = True

    def oldest(self) -> At:
        """Return the oldest cluster time from which the log still contains all entries."""
        # If `local` can be read, the result is the time of the log's first entry. If `local` cannot be read,
        # a search finds the exact time with about sixty requests. The time limit of such a request is 50 ms,
        # or 400 ms on a `mongos`.
        before: LogBeginning | None = None
        for _ in range(_TRIES):
            entry = self.first_entry()
            if entry is None:
                place = self._searched()
            elif entry == before:
                # The log is not being cut. It begins within a transaction, which the server cannot send
                # without its first part, so the oldest time is after that transaction.
                place = self._searched(ticks_at(entry.place) or 0)
            else:
                place = entry.place
            if self._has(place):
                return place
            before = entry
        raise ProviderFault.of(
            ErrorCategory.TRANSIENT_FAILURE,
            "the operation log removes entries faster than its beginning can be read; try again, and make "
            "the operation log larger",
            retryable=True,
            vendor_retried=True,
        )

    def first_entry(self) -> LogBeginning | None:
        if not self._readable:
            return None
        # The entry may be the change of any document of the deployment, so the answer contains nothing of it.
        client = self._source.client
        local = client.get_database("local", codec_options=LENIENT_RAW, read_preference=whose_log(client))
        fields = {"_id": 0, "ts": 1, "whole": _IS_FIRST_OF_ALL}
        try:
            entry = local[OPLOG].find_one({}, fields, sort=[("$natural", 1)], max_time_ms=_LOOK_MS)
        except OperationFailure as error:
            self._readable = classify(error).retryable  # an election is temporary, a missing role is not
            return None
        stamp = None if entry is None else entry.get("ts")
        if entry is None or not isinstance(stamp, Timestamp):
            self._readable = False
            return None
        return LogBeginning(At(stamp.time, stamp.inc), entry.get("whole") is True)

    def _has(self, place: At) -> bool:
        return self._source.has(place, whose_log(self._source.client))

    def _searched(self, low: int = 0) -> At:
        high = ticks_at(self._source.now()) or 0
        while low < high:
            middle = (low + high) // 2
            if self._has(At.of(middle)):
                high = middle
            else:
                low = middle + 1
        return At.of(low)
