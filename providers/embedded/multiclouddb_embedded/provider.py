"""The provider `embedded`: feeds over the log of an `EmbeddedStore`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Final

from multiclouddb_api import (
    AtTime,
    Beginning,
    CapabilitySet,
    ClientConfig,
    LogicalPartition,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    invalid_request,
)
from multiclouddb_embedded.config import EmbeddedConfig, EmbeddedOptions
from multiclouddb_embedded.errors import PROVIDER_ID, classify, missing_file
from multiclouddb_embedded.mapping import View, describe, from_micros, position_of, to_micros
from multiclouddb_embedded.partitions import (
    Family,
    Scope,
    expired,
    find_head,
    outcome_of,
    read_family,
    read_head,
    standing,
    to_partition,
)
from multiclouddb_embedded.profile import PLAIN, Profile, check_spec, check_start
from multiclouddb_embedded.reader import EmbeddedReader, Source
from multiclouddb_embedded.store import EmbeddedStore
from multiclouddb_embedded.store.collection import MAIN, Collection, find_collection
from multiclouddb_embedded.store.connection import ConnectionPool, Monitor, snapshot
from multiclouddb_embedded.store.hashing import partition_hash, partition_identity
from multiclouddb_embedded.store.retention import seq_before
from multiclouddb_embedded.store.schema import check_store
from multiclouddb_spi import (
    Cursor,
    Deadline,
    Fault,
    Feed,
    FeedIdentity,
    FeedSpec,
    FeedStart,
    Head,
    Outcome,
    Partition,
    Position,
    Provider,
    ProviderPlugin,
    Seed,
    Tracked,
    missed_by_parents,
    unsupported,
)

__all__ = ["CAPABILITIES", "PLUGIN", "EmbeddedFeed", "EmbeddedPlugin", "EmbeddedProvider"]

_CONNECTIONS: Final = 16

CAPABILITIES: Final = PLAIN.capabilities
"""What an embedded store can do without a profile."""


class EmbeddedProvider(Provider):
    """One store, opened for reading; connections are made when they are needed.

    Args:
        path: The file.
        now: The store's clock.
        profile: What the store pretends to be.
    """

    provider_id: ClassVar[str] = PROVIDER_ID
    options_type: ClassVar[type[EmbeddedOptions]] = EmbeddedOptions

    def __init__(self, path: str, now: Callable[[], datetime], profile: Profile = PLAIN) -> None:
        self._path, self._now, self.profile = path, now, profile
        self._pool = ConnectionPool(path, _CONNECTIONS, check_store)
        self._monitor = Monitor(path, check_store)

    def capabilities(self) -> CapabilitySet:
        """Everything but wider scopes and commands, as far as the profile goes."""
        return self.profile.capabilities

    def open_feed(self, spec: FeedSpec, deadline: Deadline) -> EmbeddedFeed:
        """Find the collection and check that its log keeps what the spec asks for."""
        check_spec(self.profile, spec)
        if spec.address.collection is None:
            raise invalid_request("address.collection", "is None", "name the collection")
        database = spec.address.database or MAIN
        with self.reading(deadline) as connection:
            collection = find_collection(connection, database, spec.address.collection)
        _check_images(collection, spec)
        return EmbeddedFeed(self, spec, _scope(collection, spec, self.profile))

    def classify(self, error: Exception) -> Fault:
        """What an exception of SQLite or the file system means."""
        return classify(error, self._path)

    def close(self) -> None:
        """Interrupt what runs and close every connection."""
        self._pool.close()
        self._monitor.close()

    def now(self) -> int:
        """The store's clock, in microseconds since 1970."""
        return to_micros(self._now())

    @contextmanager
    def reading(self, deadline: Deadline) -> Iterator[sqlite3.Connection]:
        """A connection inside a read transaction.

        Raises:
            ProviderFault: `NOT_FOUND` when there is no file.
        """
        if not Path(self._path).exists():
            raise missing_file(self._path)
        with self._pool.borrow(deadline) as connection, snapshot(connection):
            yield connection

    def source(self, spec: FeedSpec, scope: Scope) -> Source:
        """What the readers of one feed share."""
        options = spec.options if isinstance(spec.options, EmbeddedOptions) else EmbeddedOptions()
        return Source(
            pool=self._pool,
            monitor=self._monitor,
            scope=scope,
            with_new=spec.new_item_state_mode is not NewItemStateMode.OMIT,
            with_old=spec.old_item_state_mode is not OldItemStateMode.OMIT,
            poll_seconds=options.poll_seconds,
            now=self.now,
        )


def _check_images(collection: Collection, spec: FeedSpec) -> None:
    """Refuse to promise documents that the log does not keep."""
    name, images = collection.name, collection.images
    if spec.new_item_state_mode is NewItemStateMode.REQUIRE and images == "keys":
        raise unsupported(
            f"new_item_state_mode=REQUIRE: {name!r} was created with images='keys', its log has no documents",
            "create it with images='new', or leave the mode out",
        )
    if spec.old_item_state_mode is OldItemStateMode.REQUIRE and images != "new_and_old":
        raise unsupported(
            f"old_item_state_mode=REQUIRE: {name!r} was created with images={images!r}, "
            "its log has no old documents",
            "create it with images='new_and_old', or leave the mode out",
        )


def _scope(collection: Collection, spec: FeedSpec, profile: Profile) -> Scope:
    if not isinstance(spec.scope, LogicalPartition):
        return Scope(collection, whole=profile.whole)
    collection.check_key(spec.scope.key)
    identity = partition_identity(spec.scope.key)
    return Scope(collection, identity, partition_hash(identity), profile.whole)


class EmbeddedFeed(Feed):
    """The log of one collection.

    Args:
        provider: Lends connections.
        spec: What was asked for.
        scope: What it covers.
    """

    def __init__(self, provider: EmbeddedProvider, spec: FeedSpec, scope: Scope) -> None:
        self.spec = spec
        self.identity = FeedIdentity(PROVIDER_ID, spec.address, scope.collection.incarnation)
        self._provider, self._scope = provider, scope
        self._source = provider.source(spec, scope)

    def clock(self, deadline: Deadline) -> datetime:
        """The store's time: a commit made now would have it."""
        with self._provider.reading(deadline) as connection:
            return from_micros(max(self._provider.now(), read_head(connection)[1]))

    def start(self, position: FeedStart, partition_id: str | None, deadline: Deadline) -> list[Seed]:
        """Resolve a start; a partition that was split or merged can be started too."""
        profile = self._provider.profile
        check_start(profile, position, self.spec.options)
        with self._provider.reading(deadline) as connection:
            family = read_family(connection, self._scope)
            match position:
                case Beginning():
                    where = None
                case Now():
                    where = read_head(connection)
                case AtTime(utc):
                    where = _moment(connection, family, utc, profile.precision)
        if partition_id is not None:
            return family.one(partition_id, where)
        return family.beginning() if where is None else family.at(*where)

    def partitions(self, deadline: Deadline) -> list[Partition]:
        """Every partition that the collection ever had, parents before children."""
        with self._provider.reading(deadline) as connection:
            return [to_partition(row) for row in read_family(connection, self._scope).all()]

    def open(self, partition_id: str, cursor: Cursor, until: Cursor | None = None) -> EmbeddedReader:
        """A reader of one partition."""
        view = View(
            self.spec.address,
            self.public_id(partition_id),
            self._scope.collection.partition_components,
            self.spec.include_native,
        )
        bound = position_of(until) if until is not None else None
        return EmbeddedReader(self._source, partition_id, view, position_of(cursor), bound)

    def discover(self, awaiting: Mapping[str, Cursor], deadline: Deadline) -> dict[str, Outcome]:
        """The children of closed partitions; a reader has named them already."""
        found: dict[str, Outcome] = {}
        with self._provider.reading(deadline) as connection:
            for name, cursor in awaiting.items():
                position = position_of(cursor)
                row = standing(connection, self._scope, name, position).row
                if not row.is_open:
                    found[name] = outcome_of(connection, self._scope, row, position)
        return found

    def uncovered(
        self, tracked: Mapping[str, Tracked], since: datetime | None, deadline: Deadline
    ) -> list[Seed]:
        """By parents: the store knows every partition that ever was, and when it was made."""
        with self._provider.reading(deadline) as connection:
            family = read_family(connection, self._scope)
            listed = [to_partition(row) for row in family.all()]
            missed = missed_by_parents(tracked, listed, lambda _: True) or {}
            where = (0, 0) if since is None else _moment(connection, family, since, 1)
        return family.missed(missed, where)

    def join(self, child_id: str, cursors: Sequence[Cursor]) -> Cursor:
        """The furthest: all parents end where the child starts."""
        return max(cursors, key=position_of)

    def compare(self, a: Cursor, b: Cursor) -> int:
        """By sequence number."""
        left, right = position_of(a)[0], position_of(b)[0]
        return (left > right) - (left < right)

    def oldest(self, partition_ids: Sequence[str], deadline: Deadline) -> list[Seed]:
        """What is left of these partitions, or of what came from them."""
        with self._provider.reading(deadline) as connection:
            return read_family(connection, self._scope).oldest(partition_ids)

    def describe(self, cursor: Cursor) -> Position:
        """`sequence 4711`, and a time that nothing behind it is older than."""
        return describe(cursor)

    def heads(
        self, cursors: Mapping[str, Cursor], max_records: int | None, deadline: Deadline
    ) -> dict[str, Head]:
        """The present end of each partition, all of one moment; counts are exact and cost no scan.

        Raises:
            ProviderFault: `CHECKPOINT_EXPIRED` when one of the cursors has expired.
        """
        with self._provider.reading(deadline) as connection:
            return {
                name: find_head(connection, self._scope, name, position_of(cursor), max_records)
                for name, cursor in cursors.items()
            }


def _moment(connection: sqlite3.Connection, family: Family, utc: datetime, precision: int) -> tuple[int, int]:
    """The position in front of the first change at or after a moment, rounded down."""
    ts = max(0, to_micros(utc))
    if seq_before(connection, ts) < family.trimmed:
        raise expired(f"changes since {utc.isoformat()} were trimmed")
    ts -= ts % precision
    return max(seq_before(connection, ts), family.created, family.trimmed), ts


class EmbeddedPlugin(ProviderPlugin):
    """What the entry point names.

    Args:
        profile: What a store pretends to be where the connection names no profile.
    """

    provider_id: ClassVar[str] = PROVIDER_ID

    def __init__(self, profile: Profile = PLAIN) -> None:
        self._profile = profile

    def capabilities(self) -> CapabilitySet:
        """Everything but wider scopes and commands, as far as the profile goes."""
        return self._profile.capabilities

    def connect(self, config: ClientConfig, native_client: object | None) -> EmbeddedProvider:
        """Check the configuration; the store has to be there, it is never made here.

        Args:
            config: `connection` has a `url` or a `path`; neither is needed with a store. It may have a
                `profile`, `embedded:///path/store.db?profile=dynamo` in a URL.
            native_client: An open `EmbeddedStore`, whose clock is used; never closed.
        """
        if native_client is not None:
            return _provider_of(config, native_client, self._profile)
        checked = EmbeddedConfig.from_client(config, profile=self._profile)
        if not Path(checked.path).exists():
            raise missing_file(checked.path)
        return EmbeddedProvider(checked.path, lambda: datetime.now(UTC), checked.profile)


def _provider_of(config: ClientConfig, native_client: object, profile: Profile) -> EmbeddedProvider:
    if not isinstance(native_client, EmbeddedStore):
        raise invalid_request(
            "native_client", f"is a {type(native_client).__name__}", "pass an EmbeddedStore, or none"
        )
    if native_client.closed:
        raise invalid_request("native_client", "is closed", "pass an open EmbeddedStore")
    checked = EmbeddedConfig.from_client(config, path=native_client.path, profile=profile)
    if checked.path != native_client.path:
        raise invalid_request(
            "native_client", f"has the file {native_client.path}, the connection another", "name it once"
        )
    return EmbeddedProvider(native_client.path, native_client.now, checked.profile)


PLUGIN: Final = EmbeddedPlugin()
