"""The provider `mongo`: feeds over MongoDB's change streams."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final
from weakref import WeakSet

import pymongo
from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from multiclouddb_api import (
    AtTime,
    Beginning,
    Capability,
    CapabilityNote,
    CapabilitySet,
    ClientConfig,
    EntireCluster,
    ErrorCategory,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    ResourceAddress,
    Support,
    invalid_request,
)
from multiclouddb_mongo.commands import Commands
from multiclouddb_mongo.config import MongoConfig
from multiclouddb_mongo.errors import PROVIDER_ID, classify, fault
from multiclouddb_mongo.mapping import View
from multiclouddb_mongo.options import MongoOptions
from multiclouddb_mongo.partitions import (
    PARTITION_ID,
    Entry,
    Found,
    Log,
    check_provisioned,
    clock,
    find,
    resolve,
)
from multiclouddb_mongo.position import (
    After,
    At,
    Place,
    compare,
    cursor_of,
    describe,
    place_of,
    seconds_at,
    start_of,
    ticks_at,
    token_text,
)
from multiclouddb_mongo.reader import MongoReader
from multiclouddb_mongo.stream import Closer, Source
from multiclouddb_spi import (
    Cursor,
    Deadline,
    Fault,
    Feed,
    FeedIdentity,
    FeedSpec,
    FeedStart,
    Outcome,
    Partition,
    PartitionState,
    Position,
    Provider,
    ProviderFault,
    ProviderPlugin,
    Seed,
)

__all__ = ["CAPABILITIES", "PLUGIN", "MongoFeed", "MongoPlugin", "MongoProvider"]

_NATIVE: Final = Support.NATIVE

CAPABILITIES: Final = CapabilitySet(
    {
        Capability.CHANGE_FEED: CapabilityNote(
            _NATIVE,
            "needs a replica set or a sharded cluster; the new document of an update is the one of the "
            "moment it is read, unless the collection keeps post-images (changeStreamPreAndPostImages)",
        ),
        Capability.CHANGE_FEED_BEGINNING: CapabilityNote(
            _NATIVE, "the oldest change that the operation log (oplog) still holds"
        ),
        Capability.CHANGE_FEED_POINT_IN_TIME: CapabilityNote(
            _NATIVE,
            "never late, and early by less than 1.1 seconds: the server counts its start in whole seconds",
        ),
        Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE: CapabilityNote(
            _NATIVE, "a filter in the server, which looks through its whole log for every feed"
        ),
        Capability.CHANGE_FEED_OLD_ITEM_STATE: CapabilityNote(
            _NATIVE, "for collections that keep pre-images (changeStreamPreAndPostImages)"
        ),
        Capability.CHANGE_FEED_DATABASE_SCOPE: CapabilityNote(_NATIVE, "needs the role read on the database"),
        Capability.CHANGE_FEED_CLUSTER_SCOPE: CapabilityNote(
            _NATIVE, "needs the role readAnyDatabase on the cluster"
        ),
        Capability.RUN_COMMAND: CapabilityNote(_NATIVE, "passed through unmodified and never retried"),
    }
)
"""What a replica set can do."""

_WIRE_OF_7_0: Final = 21
_WIRE_OF_6_0: Final = 17
_SPLITS_SINCE: Final = (6, 0, 9)
_AHEAD_SECONDS: Final = 60
# The clock that stamps a change and the one that orders it are read one after the other: where a second turns
# between them, a change is stamped later than its place says.
_STAMPED_LATER_SECONDS: Final = 0.1
_LOG_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 0.5


class MongoProvider(Provider):
    """One deployment.

    Args:
        client: PyMongo's client.
        database: The connection string's database, or None.
        ours: True when we made the client.
    """

    provider_id: ClassVar[str] = PROVIDER_ID
    options_type: ClassVar[type[MongoOptions]] = MongoOptions

    def __init__(self, client: MongoClient[Any], database: str | None, *, ours: bool) -> None:
        self._client, self._database, self._ours = client, database, ours
        self._commands = Commands(client)
        self._readers: WeakSet[MongoReader] = WeakSet()
        self._closer = Closer()
        self._features: tuple[bool, bool] | None = None

    def capabilities(self) -> CapabilitySet:
        """What a replica set can do."""
        return CAPABILITIES

    def open_feed(self, spec: FeedSpec, deadline: Deadline) -> MongoFeed:
        """Look for the collection and check that it keeps the images that are asked for.

        A collection that is not there is an error where a feed is started; behind a token its last changes,
        and that it was dropped, are read from the log.
        """
        _check_starts(spec)
        address = resolve(spec, self._database)
        found = find(self._client, spec, address)
        check_provisioned(spec, address, found)
        splits, sharded = self._server()
        source = Source(
            self._client, spec, address, self._closer, images=found.images, splits=splits, sharded=sharded
        )
        return MongoFeed(source, found, self._readers)

    def classify(self, error: Exception) -> Fault:
        """What an exception of PyMongo means."""
        return classify(error)

    def run_command(self, database: str, command: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """One command, once: see `Commands.run_command`."""
        return self._commands.run_command(database, command, options)

    def run_cursor_command(
        self, database: str, command: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Any:
        """One command whose reply is a cursor, once: see `Commands.run_cursor_command`."""
        return self._commands.run_cursor_command(database, command, options)

    def close(self) -> None:
        """Cancel every reader, close every cursor, and our client; a server that hangs is not waited for."""
        for reader in list(self._readers):
            reader.cancel()
        with pymongo.timeout(_CLOSE_SECONDS):
            self._commands.close()
            if self._ours:
                self._client.close()

    def _server(self) -> tuple[bool, bool]:
        """Whether it splits large events, and whether it is a `mongos`; asked once."""
        if self._features is None:
            hello = self._client.admin.command("hello")
            wire = hello.get("maxWireVersion", 0)
            splits = wire >= _WIRE_OF_7_0 or (wire == _WIRE_OF_6_0 and self._is_late_6_0())
            self._features = (splits, hello.get("msg") == "isdbgrid")
        return self._features

    def _is_late_6_0(self) -> bool:
        try:
            version = self._client.server_info()["versionArray"]
        except OperationFailure:
            return False  # the Stable API has no such command
        return bool(tuple(version[:3]) >= _SPLITS_SINCE)


class MongoFeed(Feed):
    """The change stream of a collection, a database or a cluster.

    Args:
        source: What is watched.
        found: What there was at the address when it was opened.
        readers: Where its readers are kept, for the provider to cancel.
    """

    def __init__(self, source: Source, found: Found, readers: WeakSet[MongoReader]) -> None:
        self.spec = source.spec
        self._source, self._found, self._readers = source, found, readers
        self._options = source.options
        self._bound = self._options.after_invalidate == "end" and not self._options.allow_missing
        self.identity = FeedIdentity(PROVIDER_ID, self.spec.address, found.uuid if self._bound else None)
        self._log = Log(source)
        self._oldest: tuple[float, Entry | None] = (-_LOG_SECONDS, None)
        self._lock = threading.Lock()

    def resumes(self, incarnation: str | None) -> bool:
        """Whether a token of this collection goes on here.

        Of one that is gone the log still has the last changes, and that it went: only another one under its
        name is refused.
        """
        return (
            incarnation is None or not self._bound or not self._found.there or incarnation == self._found.uuid
        )

    def clock(self, deadline: Deadline) -> datetime | None:
        """The time of the server that answers."""
        return clock(self._source.client)

    def start(self, position: FeedStart, partition_id: str | None, deadline: Deadline) -> list[Seed]:
        """Resolve a start; all are durable positions in the log."""
        if partition_id not in (None, PARTITION_ID):
            return []
        if not self._options.allow_missing:
            # A feed may have been open for long: of what was recreated since, the engine opens another.
            found = find(self._source.client, self.spec, self._source.address)
            if not found.there or found.uuid != self._found.uuid:
                raise _missing(self._source.address)
        return [Seed(PARTITION_ID, (), self._resolved(position))]

    def partitions(self, deadline: Deadline) -> list[Partition]:
        """The one that there is."""
        if not self._found.there and not self._options.allow_missing:
            raise _missing(self._source.address)
        return [Partition(PARTITION_ID, (), PartitionState.OPEN)]

    def open(self, partition_id: str, cursor: Cursor, until: Cursor | None = None) -> MongoReader:
        """A reader at a position."""
        spec = self.spec
        view = View(
            spec.address,
            self.public_id(partition_id),
            with_new=spec.new_item_state_mode is not NewItemStateMode.OMIT,
            with_old=spec.old_item_state_mode is not OldItemStateMode.OMIT,
            native=spec.include_native,
        )
        bound = place_of(until) if until is not None else None
        reader = MongoReader(
            self._source,
            view,
            place_of(cursor),
            bound,
            start_of(cursor),
            self._goes_on,
            self._headroom,
            self._check,
        )
        self._readers.add(reader)
        return reader

    def discover(self, awaiting: Mapping[str, Cursor], deadline: Deadline) -> dict[str, Outcome]:
        """Nothing: the one partition has no children."""
        return {}

    def join(self, child_id: str, cursors: Sequence[Cursor]) -> Cursor:
        """The first: there are no children."""
        return cursors[0]

    def compare(self, a: Cursor, b: Cursor) -> int | None:
        """By the text of their tokens, which sorts as the changes do."""
        return compare(place_of(a), place_of(b))

    def oldest(self, partition_ids: Sequence[str], deadline: Deadline) -> list[Seed]:
        """The beginning of the log."""
        return [Seed(PARTITION_ID, (), cursor_of(self._log.oldest()))]

    def describe(self, cursor: Cursor) -> Position:
        """Its cluster time and kind."""
        return describe(place_of(cursor))

    def _resolved(self, position: FeedStart) -> Cursor:
        native = self._options.start()
        if native is not None and not isinstance(position, Now):
            raise invalid_request(
                f"MongoOptions.{native}",
                f"is given beside {type(position).__name__}()",
                "a native start replaces Now(): pass that as start_position",
            )
        now = self._source.now()
        match position:
            case Now():
                return cursor_of(self._native_start(now) or now)
            case Beginning():
                return cursor_of(self._log.oldest(), ticks_at(now))
            case AtTime(utc):
                place = At(max(0, int(utc.timestamp() - _STAMPED_LATER_SECONDS)))
                if not self._source.reaches(place):
                    raise fault(
                        ErrorCategory.CHECKPOINT_EXPIRED,
                        f"AtTime({utc:%Y-%m-%dT%H:%M:%SZ}) is older than the operation log; start at "
                        "Beginning(), or at a later time",
                    )
                return cursor_of(place, ticks_at(now))

    def _native_start(self, now: After) -> Place | None:
        options = self._options
        if options.start_at_operation_time is not None:
            stamp = options.start_at_operation_time
            if stamp.time > (seconds_at(now) or stamp.time) + _AHEAD_SECONDS:
                raise invalid_request(
                    "MongoOptions.start_at_operation_time",
                    "is more than 60 s ahead of the cluster's time",
                    "pass a time that has been",
                )
            return At(stamp.time, stamp.inc)
        if options.start_after is not None:
            return After("i", token_text(options.start_after))
        if options.resume_after is not None:
            return After("r", token_text(options.resume_after))
        return None

    def _goes_on(self) -> bool:
        """Behind an invalidate: whether it is to be survived."""
        if self._options.after_invalidate != "follow":
            return False
        self._source.images = find(self._source.client, self.spec, self._source.address).images
        return True

    def _check(self) -> None:
        """Nothing comes from a collection that is not there, once the log has been read that far.

        Raises:
            ProviderFault: It is still not there, or another one is by now.
        """
        if self._found.there or not self._bound:
            return
        self._found = find(self._source.client, self.spec, self._source.address)
        if not self._found.there:
            raise _missing(self._source.address)
        raise fault(
            ErrorCategory.INVALID_REQUEST,
            "the collection of this token is gone, and another one has its name by now; start anew",
        )

    def _headroom(self, place: Place) -> float | None:
        """Seconds between the log's beginning, looked up twice a minute, and here; None while it grows."""
        seconds = seconds_at(place)
        if seconds is None:
            return None
        with self._lock:
            asked, oldest = self._oldest
            client = self._source.client
            there = client.topology_description.has_readable_server(client.read_preference)
            if there and time.monotonic() - asked >= _LOG_SECONDS:
                try:
                    oldest = self._log.first_entry()
                except PyMongoError:
                    oldest = None  # it costs a figure, not the page
                self._oldest = (time.monotonic(), oldest)
        if oldest is None or oldest.whole:
            return None
        return max(0.0, float(seconds - oldest.place.seconds))


class MongoPlugin(ProviderPlugin):
    """What the entry point names."""

    provider_id: ClassVar[str] = PROVIDER_ID

    def capabilities(self) -> CapabilitySet:
        """What a replica set can do."""
        return CAPABILITIES

    def connect(self, config: ClientConfig, native_client: object | None) -> MongoProvider:
        """Make PyMongo's client; nothing is sent yet.

        Args:
            config: `connection` has a `url`, the connection string, and maybe `username`, `password` and
                `app_name`.
            native_client: A `pymongo.MongoClient`, used as it is.
        """
        if native_client is None:
            checked = MongoConfig.from_client(config)
            try:
                client = checked.client(config.max_concurrency)
            except PyMongoError as error:
                raise ProviderFault(classify(error)) from None
            return MongoProvider(client, checked.database, ours=True)
        if not isinstance(native_client, MongoClient):
            raise invalid_request(
                "native_client", f"is a {type(native_client).__name__}", "pass a pymongo.MongoClient"
            )
        database = MongoConfig.from_client(config).database if "url" in config.connection else None
        return MongoProvider(native_client, database, ours=False)


def _check_starts(spec: FeedSpec) -> None:
    if isinstance(spec.scope, EntireCluster) and spec.address != ResourceAddress():
        raise invalid_request("ChangeFeedRequest.address", "is not empty", "pass ResourceAddress()")


def _missing(address: ResourceAddress) -> ProviderFault:
    what = "database" if address.collection is None else "collection"
    name = address.database if address.collection is None else f"{address.database}.{address.collection}"
    return fault(
        ErrorCategory.NOT_FOUND,
        f"there is no {what} {name!r}; create it, check the name, or pass MongoOptions(allow_missing=True) "
        "to wait for it",
    )


PLUGIN: Final = MongoPlugin()
