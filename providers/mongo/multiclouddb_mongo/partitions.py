"""The one partition of a change stream: what it is of, whether that is provisioned, and where it starts."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from uuid import UUID

import attrs
import pymongo.errors
from bson.timestamp import Timestamp
from pymongo import MongoClient

from multiclouddb_api import (
    EntireCluster,
    EntireDatabase,
    ErrorCategory,
    NewItemStateMode,
    OldItemStateMode,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_mongo.errors import TIME_LIMIT, fault
from multiclouddb_mongo.options import MongoOptions
from multiclouddb_mongo.position import At, ticks_at
from multiclouddb_mongo.stream import Source
from multiclouddb_mongo.values import CODEC
from multiclouddb_spi import FeedSpec, unsupported

__all__ = ["PARTITION_ID", "Entry", "Found", "Log", "check_provisioned", "clock", "find", "resolve"]

PARTITION_ID: Final = "0"
"""A deployment has one change stream, in one order."""

_TRIES: Final = 5
_LOOK_MS: Final = 1000
_INITIATING: Final = "initiating set"
_IMAGES: Final = (
    "enable it: db.runCommand({{collMod: {name!r}, changeStreamPreAndPostImages: {{enabled: true}}}}), or "
    "read with INCLUDE_IF_AVAILABLE"
)


@attrs.frozen
class Found:
    """What there is at an address.

    Attributes:
        there: False when it does not exist.
        uuid: The collection's own id, in hexadecimal; None for a wider scope.
        images: True when the collection keeps pre- and post-images.
        kind: What it is: `collection`, `view`, `timeseries`.
    """

    there: bool
    uuid: str | None = None
    images: bool = False
    kind: str = "collection"


def resolve(spec: FeedSpec, default_database: str | None) -> ResourceAddress:
    """The address with the connection string's database where the request names none.

    Raises:
        MulticloudDbError: `INVALID_REQUEST`: there is neither.
    """
    address = spec.address
    if isinstance(spec.scope, EntireCluster) or address.database is not None:
        return address
    if default_database is None:
        raise invalid_request(
            "ChangeFeedRequest.address",
            "names no database, and the connection string has none",
            "write ResourceAddress(database, collection), or mongodb://HOST/DATABASE",
        )
    return ResourceAddress(default_database, address.collection)


def find(client: MongoClient[Any], spec: FeedSpec, address: ResourceAddress) -> Found:
    """Look for a collection or database; the role `read` is enough.

    Raises:
        PyMongoError: What the server refuses, or the network.
    """
    if isinstance(spec.scope, EntireCluster):
        return Found(there=True)
    assert address.database is not None
    database = client.get_database(address.database, codec_options=CODEC)
    if isinstance(spec.scope, EntireDatabase):
        return Found(there=bool(database.list_collection_names()))
    listed = list(database.list_collections(filter={"name": address.collection}))
    if not listed:
        return Found(there=False)
    (entry,) = listed
    images = entry.get("options", {}).get("changeStreamPreAndPostImages", {}).get("enabled") is True
    uuid = entry.get("info", {}).get("uuid")
    return Found(True, None if uuid is None else _hexadecimal(uuid), images, entry.get("type", "collection"))


def _hexadecimal(uuid: UUID | bytes) -> str:
    """PyMongo decodes this one as the client's own codec says."""
    return uuid.hex if isinstance(uuid, UUID) else bytes(uuid).hex()


def check_provisioned(spec: FeedSpec, address: ResourceAddress, found: Found) -> None:
    """Refuse what this collection cannot give.

    Raises:
        ProviderFault: It is no collection, or keeps no images where they are required.
    """
    if not found.there or isinstance(spec.scope, EntireDatabase | EntireCluster):
        return
    name = address.collection
    if found.kind != "collection":
        raise fault(
            ErrorCategory.INVALID_REQUEST,
            f"{name!r} is a {found.kind}, which has no change stream; name the collection behind it",
        )
    options = spec.options
    assert isinstance(options, MongoOptions)
    if found.images:
        return
    if spec.new_item_state_mode is NewItemStateMode.REQUIRE and options.full_document is None:
        raise unsupported(
            f"new_item_state_mode=REQUIRE needs post-images, which collection {name!r} does not keep",
            _IMAGES.format(name=name),
        )
    if spec.old_item_state_mode is OldItemStateMode.REQUIRE and options.full_document_before_change is None:
        raise unsupported(
            f"old_item_state_mode=REQUIRE needs pre-images, which collection {name!r} does not keep",
            _IMAGES.format(name=name),
        )


@attrs.frozen
class Entry:
    """The first entry of the log.

    Attributes:
        place: Its cluster time.
        whole: True when it is the first that there ever was: nothing has been cut off yet.
    """

    place: At
    whole: bool


class Log:
    """The operation log, as far as a feed has to know: where it begins.

    Args:
        source: What is watched.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._readable = True

    def oldest(self) -> At:
        """The oldest cluster time from which everything is still there.

        With read access to `local` it is that of the log's first entry. Without, it is searched for, to the
        operation: sixty-odd questions of 50 ms at most.

        Raises:
            PyMongoError: What the server refuses, or the network.
            ProviderFault: The log is cut off faster than it can be looked at.
        """
        for _ in range(_TRIES):
            entry = self.first_entry()
            place = self._searched() if entry is None else entry.place
            if self._source.reaches(place):
                return place
        raise fault(
            ErrorCategory.TRANSIENT_FAILURE,
            "the operation log is cut off faster than its beginning can be read; try again, and give it more "
            "room",
            retryable=True,
        )

    def first_entry(self) -> Entry | None:
        """The log's first entry; None where we may not look: no access to `local`, or `mongos`.

        Raises:
            PyMongoError: The network fails.
        """
        if not self._readable:
            return None
        log = self._source.client.get_database("local", codec_options=CODEC)["oplog.rs"]
        try:
            entry = log.find_one({}, {"ts": 1, "o.msg": 1}, sort=[("$natural", 1)], max_time_ms=_LOOK_MS)
        except pymongo.errors.OperationFailure as error:
            self._readable = error.code == TIME_LIMIT
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


def clock(client: MongoClient[Any]) -> datetime:
    """The time of the server that answers."""
    answer = client.admin.command("hello", codec_options=CODEC)
    moment: datetime = answer["localTime"]
    return moment
