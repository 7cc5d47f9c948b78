"""What the members of a replica set say of themselves: their clock, and what a majority of them has."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from multiclouddb_api import ErrorCategory, ResourceAddress
from multiclouddb_mongo.driver import milliseconds_of, retried
from multiclouddb_mongo.errors import TIME_LIMIT, classify
from multiclouddb_mongo.position import At, ticks_at
from multiclouddb_mongo.values import CODEC
from multiclouddb_spi import Deadline, ProviderFault

# How long an answer holds that a majority has every write.
_MAJORITY_SECONDS: Final = 10.0
# How long a write may wait for a majority before this is an outage.
_STALLED_SECONDS: Final = 10.0
_BEHIND_SECONDS: Final = 5.0
AHEAD_SECONDS: Final = 10
"""On servers with synchronised clocks, cluster time is ahead of their wall clocks by less than this."""


class ServerClock:
    """The wall clock of the servers.

    Cluster time is a logical clock. If a member's clock was once ahead, the cluster time stays ahead on all
    members, until their clocks have caught up. Then it is not the time of the changes.
    """

    def __init__(self) -> None:
        self._told: tuple[float, float] | None = None

    def told(self, hello: Mapping[str, Any]) -> None:
        """Record the time that a server has told."""
        moment = hello.get("localTime")
        if isinstance(moment, datetime):
            self._told = moment.replace(tzinfo=UTC).timestamp(), time.monotonic()

    def now(self) -> float | None:
        """Return the time in seconds since 1970, or None if no server has told it."""
        return None if self._told is None else self._told[0] + time.monotonic() - self._told[1]

    def is_behind(self, seconds: float) -> bool:
        """Return True if a cluster time is so late that it is not the time of a change."""
        now = self.now()
        return now is not None and seconds > now + AHEAD_SECONDS


class Majority:
    """Remembers whether a majority of the members has what the primary has acknowledged.

    A change stream has only what a majority has. If too few members that hold data can take a write, the
    primary still acknowledges writes with `w: 1`, and an empty answer does not show that there are none.
    """

    def __init__(self) -> None:
        self._fresh_until = -math.inf
        self._waiting: tuple[int, float] | None = None  # a write that only the primary has, and since when

    def is_fresh(self) -> bool:
        """Return True if a majority had every write a few seconds ago."""
        return time.monotonic() < self._fresh_until

    def has_all(self) -> None:
        """Record that a majority has every write that the primary has."""
        self._fresh_until, self._waiting = time.monotonic() + _MAJORITY_SECONDS, None

    def told(self, hello: Mapping[str, Any]) -> bool:
        """Record what a primary says; return True if a majority has all its writes."""
        # A server of another vendor may not say it; its answers are then the only word.
        last, common = (ticks_in(hello, name) for name in ("opTime", "majorityOpTime"))
        if last is None or common is None or common >= last:
            self.has_all()
            return True
        self._fresh_until = -math.inf
        if self._waiting is None or common >= self._waiting[0]:
            self._waiting = last, time.monotonic()
        return False

    def check(self, client: MongoClient[Any]) -> None:
        """Raise a fault that names the members if a write has waited too long for a majority."""
        if self._waiting is None or time.monotonic() - self._waiting[1] < _STALLED_SECONDS:
            return
        raise ProviderFault.of(
            ErrorCategory.TRANSIENT_FAILURE,
            "the primary acknowledges writes, but a majority of the members has not taken them for "
            f"{_STALLED_SECONDS:.0f} s, so a change stream does not have them; {_those_behind(client)}; "
            "bring these members back, or replace them",
            retryable=True,
            vendor_retried=True,
        )


def proven(
    client: MongoClient[Any], address: ResourceAddress, deadline: Deadline, majority: Majority
) -> int | None:
    """Return a time before which the primary had each acknowledged write; None if no server proves it."""
    # A primary that is cut off takes itself for the primary for some seconds, while another one already
    # acknowledges writes. Before a linearizable read is answered, a majority has confirmed the primary. This
    # one finds nothing, so it costs no more than that.
    if not any(server.is_writable for server in client.topology_description.server_descriptions().values()):
        return None
    command: dict[str, Any] = {
        "find": address.collection,
        "filter": {"_id": ObjectId()},  # no document has a new one, and one value is no scan
        "hint": {"_id": 1},  # without it, a server with notablescan refuses to read a clustered collection
        "singleBatch": True,
        "readConcern": {"level": "linearizable"},
        "comment": "multiclouddb lookup",
    }
    database = client[address.database or "admin"]

    def confirmed() -> Mapping[str, Any]:
        return database.command({**command, "maxTimeMS": milliseconds_of(deadline)}, codec_options=CODEC)

    try:
        answer = retried(client, confirmed)
    except OperationFailure as error:
        if error.code == TIME_LIMIT:
            majority.check(client)
            raise ProviderFault.of(
                ErrorCategory.TRANSIENT_FAILURE,
                "the primary could not prove in time that it still is the primary, and that a majority of "
                "the members has every acknowledged write; try again with a longer timeout; if this goes on: "
                f"{_those_behind(client)}",
                retryable=True,
                vendor_retried=True,
            ) from error
        if classify(error).retryable:
            raise
        return None  # such as a server that does not have this read concern
    stamp = answer.get("operationTime")
    return ticks_at(At(stamp.time, stamp.inc)) if isinstance(stamp, Timestamp) else None


def ticks_in(hello: Mapping[str, Any], name: str) -> int | None:
    """Return a time of the last write that a server tells, such as `majorityOpTime`, or None."""
    stamp = hello.get("lastWrite", {}).get(name, {}).get("ts")
    return ticks_at(At(stamp.time, stamp.inc)) if isinstance(stamp, Timestamp) else None


def _those_behind(client: MongoClient[Any]) -> str:
    """Return which members the client cannot reach, and which lag behind."""
    found = client.topology_description.server_descriptions().values()
    newest = max((each.last_write_date or 0.0 for each in found), default=0.0)
    behind = []
    for each in found:
        host = f"{each.address[0]}:{each.address[1]}"
        if not each.is_server_type_known:
            behind.append(f"{host} cannot be reached from here")
        elif each.server_type_name == "RSOther":
            behind.append(f"{host} is neither primary nor secondary")
        elif each.last_write_date is not None and newest - each.last_write_date > _BEHIND_SECONDS:
            behind.append(f"{host} is {newest - each.last_write_date:.0f} s behind")
    return ", ".join(sorted(behind)) or "replSetGetStatus names the members that are down or behind"
