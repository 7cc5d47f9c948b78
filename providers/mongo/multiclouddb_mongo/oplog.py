"""Finds the beginning of the operation log, which is the oldest position that can still be read."""

from __future__ import annotations

from typing import Final

import attrs
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from multiclouddb_api import ErrorCategory
from multiclouddb_mongo.errors import classify
from multiclouddb_mongo.position import At, ticks_at
from multiclouddb_mongo.source import Source
from multiclouddb_mongo.values import CODEC
from multiclouddb_spi import ProviderFault

__all__ = ["Entry", "Log"]

_TRIES: Final = 5
_LOOK_MS: Final = 1000
_INITIATING: Final = "initiating set"


@attrs.frozen
class Entry:
    """The first entry of the log.

    Attributes:
        place: The cluster time of the entry.
        whole: True if this is the first entry that ever existed, so that nothing has been removed yet.
    """

    place: At
    whole: bool


class Log:
    """Finds out where the operation log begins.

    Args:
        source: The watched resource.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._readable = True

    def oldest(self) -> At:
        """Return the oldest cluster time from which the log still contains all entries.

        If `local` can be read, the result is the time of the log's first entry. If `local` cannot
        be read, a search finds the exact time with about sixty requests. The time limit of such a
        request is 50 ms, or 400 ms on a `mongos`.

        Raises:
            PyMongoError: Raised if the server refuses the request, or for a network error.
            ProviderFault: Raised if entries are removed faster than the search proceeds.
        """
        for _ in range(_TRIES):
            entry = self.first_entry()
            place = self._searched() if entry is None else entry.place
            if self._source.reaches(place):
                return place
        raise ProviderFault.of(
            ErrorCategory.TRANSIENT_FAILURE,
            "the operation log removes entries faster than its beginning can be read; try again, and make "
            "the operation log larger",
            retryable=True,
            vendor_retried=True,
        )

    def first_entry(self) -> Entry | None:
        """Return the log's first entry.

        Return None if the entry cannot be read, for example because the user may not read `local`,
        or because the server is a `mongos`.

        Raises:
            PyMongoError: Raised if the network fails.
        """
        if not self._readable:
            return None
        log = self._source.client.get_database("local", codec_options=CODEC)["oplog.rs"]
        try:
            entry = log.find_one({}, {"ts": 1, "o.msg": 1}, sort=[("$natural", 1)], max_time_ms=_LOOK_MS)
        except OperationFailure as error:
            self._readable = classify(error).retryable  # an election is temporary, a missing role is not
            return None
        stamp = None if entry is None else entry.get("ts")
        if entry is None or not isinstance(stamp, Timestamp):
            self._readable = False
            return None
        return Entry(At(stamp.time, stamp.inc), entry.get("o", {}).get("msg") == _INITIATING)

    def _searched(self) -> At:
        low, high = 0, ticks_at(self._source.now()) or 0
        while low < high:
            middle = (low + high) // 2
            if self._source.reaches(At.of(middle)):
                high = middle
            else:
                low = middle + 1
        return At.of(low)
