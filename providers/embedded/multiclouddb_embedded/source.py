"""Holds the objects that the readers of one feed share: the store, the scope and the options."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from multiclouddb_api import LogicalPartition
from multiclouddb_embedded.config import EmbeddedOptions
from multiclouddb_embedded.errors import missing_file
from multiclouddb_embedded.profile import Profile
from multiclouddb_embedded.store.collection import Collection, partition_hash, partition_identity
from multiclouddb_embedded.store.connection import ConnectionPool, Monitor, snapshot
from multiclouddb_spi import Deadline, FeedSpec


@frozen(eq=False, repr=False)
class OpenStore:
    """One store, opened for reading."""

    path: str  # the file
    pool: ConnectionPool  # provides connections
    monitor: Monitor  # reports commits
    now: Callable[[], int]  # a function that returns the store's time, in microseconds since 1970
    profile: Profile  # the profile, which names the service that the store imitates

    @contextmanager
    def reading(self, deadline: Deadline) -> Iterator[sqlite3.Connection]:
        """Provide a connection that is inside a read transaction."""
        if not Path(self.path).exists():
            raise missing_file(self.path)
        with self.pool.borrow(deadline.at) as connection, snapshot(connection):
            yield connection

    def interrupted(self) -> None:
        """Use no connection and no lock again, because Ctrl-C may have left them in any state."""
        self.pool.interrupted()
        self.monitor.interrupted()

    def close(self) -> None:
        """Interrupt running statements and close every connection."""
        self.pool.close()
        self.monitor.close()


@frozen
class Scope:
    """The part of a collection that a feed covers."""

    collection: Collection  # the collection
    key: bytes | None = None  # the only partition key to read, in canonical form, or None for all keys
    hash: int | None = None  # the hash of this partition key
    whole: bool = False  # true to show the whole collection as one partition


def scope_of(collection: Collection, spec: FeedSpec, profile: Profile) -> Scope:
    """Return the scope of a feed."""
    if not isinstance(spec.scope, LogicalPartition):
        return Scope(collection, whole=profile.whole)
    collection.check_key(spec.scope.key)
    identity = partition_identity(spec.scope.key)
    return Scope(collection, identity, partition_hash(identity), profile.whole)


@frozen(eq=False, repr=False)
class ReaderContext:
    """The objects that the readers of one feed share."""

    store: OpenStore  # the store
    spec: FeedSpec  # the specification of the feed
    scope: Scope  # the part of the collection that the feed covers

    @property
    def options(self) -> EmbeddedOptions:
        return self.spec.options if isinstance(self.spec.options, EmbeddedOptions) else EmbeddedOptions()
