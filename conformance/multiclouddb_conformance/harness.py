"""The harness is the code (at most 60 lines) that lets every us8 test run on a provider.

    class MyHarness(Harness):
        capabilities = MY_CAPABILITIES
        plugin = MY_PLUGIN
        can_merge = False

        def config(self): return ClientConfig("mine", {"url": self.server.url})
        def create(self, name, kind, partitions): ...
        def write(self, address, writes): ...
        ...

    HARNESS = MyHarness
    from multiclouddb_conformance.us8 import *

A harness writes directly to the service, never through the code under test.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn, cast

import attrs

from multiclouddb_api import (
    Capability,
    CapabilitySet,
    ClientConfig,
    EntireCluster,
    EntireCollection,
    EntireDatabase,
    MulticloudDbClient,
    MulticloudDbKey,
    Observer,
    ProviderOptions,
    ResourceAddress,
)
from multiclouddb_conformance.faults import FaultScript, FaultyPlugin
from multiclouddb_conformance.open_client import open_client
from multiclouddb_conformance.through_asyncio import AsyncioClient
from multiclouddb_conformance.values import KEYS, VALUES
from multiclouddb_spi import ProviderPlugin

__all__ = ["ABILITIES", "CollectionKind", "Harness", "Spelled", "Write"]


class CollectionKind(Enum):
    """The kind of collection that a test needs."""

    PLAIN = "plain"
    """The feed contains new documents; it may contain old ones."""
    KEYS_ONLY = "keys only"
    """The feed contains only keys, without documents."""
    OLD_IMAGES = "old images"
    """The feed contains new and old documents."""


@attrs.frozen
class Write:
    """One native write.

    Attributes:
        key: The value of the only component of the key.
        document: The new document as a mapping from name to value, or None for a delete.
    """

    key: Any
    document: Mapping[str, Any] | None


@attrs.frozen
class Spelled:
    """A collection whose keys a writer can spell in several ways.

    Attributes:
        address: The address of the empty collection.
        values: The values of one component of the key. For the service, any two of them may be one key or
            two; the test learns which from the rows that the service stores.
        key: Returns the key with such a value, as an application would give it to a look-up.
        write: Writes the document `{"n": n}` under a value, or deletes it if `n` is None.
    """

    address: ResourceAddress
    values: Sequence[Any]
    key: Callable[[Any], MulticloudDbKey]
    write: Callable[[Any, int | None], None]


ABILITIES: Final[Mapping[str, str]] = {
    "several": "no collection with several partitions",
    "split": "no split",
    "merge": "no merge",
    "merged_children": "a merge makes no partition with two parents",
    "trim": "no trim",
    "expire": "no expiry of documents",
    "batch": "no transactions",
    "recreate": "no recreated collections",
    "poison": "no poison records",
    "keys_only": "no feed that contains only keys",
    "idle_moves": "an idle position does not move",
    "read_past_trim": "a position after the last trimmed change expires too",
    "fork": "no fork",
    "fork_in_calls": "a child may end if it is forked while other threads are in calls",
    "watermarks": "no watermarks",
    "other_options": "no options that change positions",
    "secrets": "no secrets in the configuration",
    "notices": "the service sends no notices in a feed that continues",
    "alone": "the scope contains more than one collection",
    "audit": "no audit of coverage",
    "late_children": "the reader cannot be made to name children late",
    "one_partition_fails": "reads of a single partition cannot be made to fail",
    "silence": "reads cannot be made to hang",
    "key_order": "changes of one key are not ordered across partitions",
    "still": "partitions split by themselves",
    "high_floor": "the floor of a snapshot is below older changes",
    "interleaved": "no interleaved scan",
    "clock_moves": "the service's clock stands still",
    "named_keys": "a key may have any components",
    "spellings": "each key has only one spelling",
}
"""Maps each ability that a harness may lack to the text that the summary shows if the ability is missing.

`can_NAME = False` declares that the ability is missing.
"""


class Harness(ABC):
    """One provider and its service, for one test; every test gets a new harness.

    Attributes:
        capabilities: The capabilities that the provider must report; the suite checks the report.
        lacks: Capabilities that the provider reports, but that this server refuses, like an older one.
        plugin: The plugin that connects to the service; it need not be installed.
        scope: The scope for tests that do not ask for one. If it is wider than a collection, set
            `can_alone = False`, and let no other test write to it while a test reads it.
        partitions: The number of partitions of a new collection.
        precision_seconds: By how many seconds `AtTime` may start too early, as in the capability's note.
        tells_time: Whether the service tells its time; without it, nobody knows how late a reader is.
        patience_seconds: After how many seconds, at most, a write appears in the feed.
        idle_pages: The number of consecutive idle pages after which a test stops reading; more than 1 if the
            service shows writes late.
        rounding: The unit to which the service rounds down event times.
        expiry_updates: The number of changes that `expire` makes before the delete.
        value_types: The values from `multiclouddb_conformance.values` that documents preserve exactly.
        key_types: The values that may be used as keys.
        spellings: Values for `spelled`, for a service whose `create` and `write` take any value as a key.
        secrets: The texts in `config()` that must never be shown.
        through_asyncio: True to make every call through the client of asyncio, which refuses a child process.
        folder: An empty folder for the current test.
    """

    capabilities: ClassVar[CapabilitySet]
    lacks: ClassVar[frozenset[Capability]] = frozenset()
    plugin: ProviderPlugin
    scope: ClassVar[EntireCollection | EntireDatabase | EntireCluster] = EntireCollection()
    partitions: ClassVar[int] = 2
    through_asyncio: bool = False
    precision_seconds: ClassVar[float] = 0.0
    patience_seconds: ClassVar[float] = 30.0
    idle_pages: ClassVar[int] = 1
    rounding: ClassVar[timedelta] = timedelta()
    expiry_updates: ClassVar[int] = 0
    value_types: ClassVar[frozenset[str]] = frozenset(VALUES)
    key_types: ClassVar[frozenset[str]] = frozenset(KEYS)
    spellings: ClassVar[Sequence[Any]] = ()
    secrets: tuple[str, ...] = ()

    tells_time: ClassVar[bool] = True
    can_several: ClassVar[bool] = True
    can_split: ClassVar[bool] = True
    can_merge: ClassVar[bool] = True
    can_merged_children: ClassVar[bool] = True
    can_trim: ClassVar[bool] = True
    can_expire: ClassVar[bool] = True
    can_batch: ClassVar[bool] = True
    can_recreate: ClassVar[bool] = True
    can_poison: ClassVar[bool] = True
    can_keys_only: ClassVar[bool] = True
    can_idle_moves: ClassVar[bool] = True
    can_read_past_trim: ClassVar[bool] = True
    can_fork: ClassVar[bool] = True
    can_fork_in_calls: ClassVar[bool] = True
    can_watermarks: ClassVar[bool] = True
    can_other_options: ClassVar[bool] = True
    can_secrets: ClassVar[bool] = True
    can_notices: ClassVar[bool] = True
    can_alone: ClassVar[bool] = True
    can_audit: ClassVar[bool] = True
    can_late_children: ClassVar[bool] = True
    can_one_partition_fails: ClassVar[bool] = True
    can_silence: ClassVar[bool] = True
    can_key_order: ClassVar[bool] = True
    can_still: ClassVar[bool] = True
    can_high_floor: ClassVar[bool] = True
    can_interleaved: ClassVar[bool] = True
    can_clock_moves: ClassVar[bool] = True
    can_named_keys: ClassVar[bool] = True
    can_spellings: ClassVar[bool] = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self) -> None:  # noqa: B027 - most need nothing
        """Start the service, or find a running one; called before any other method."""

    def close(self) -> None:  # noqa: B027 - most need nothing
        """Remove everything that the harness has created."""

    # -- Methods that a harness must define

    @abstractmethod
    def config(self) -> ClientConfig:
        """Return the configuration with which a client reaches the service."""

    @abstractmethod
    def create(self, name: str, kind: CollectionKind, partitions: int) -> ResourceAddress:
        """Create an empty collection whose keys have one component.

        Args:
            name: The name of the collection.
            kind: The kind of collection, which determines the documents in its feed.
            partitions: The number of partitions, if it can be chosen.
        """

    @abstractmethod
    def write(self, address: ResourceAddress, writes: Sequence[Write]) -> None:
        """Write documents in the given order, in one transaction if the service has transactions."""

    # -- Methods that a harness may declare as missing

    def split(self, address: ResourceAddress, partition_id: str) -> None:
        """Split the partition with this public id, and return when new writes go to the children."""
        self._lacks("split")

    def merge(self, address: ResourceAddress, a: str, b: str) -> None:
        """Merge two partitions that were created by the same split."""
        self._lacks("merge")

    def trim(self, address: ResourceAddress) -> None:
        """Remove all changes made so far, as the service does at the end of the retention period."""
        self._lacks("trim")

    def expire(self, address: ResourceAddress, key: Any) -> None:
        """Make the service delete a document whose time to live has passed."""
        self._lacks("expire")

    def poison(self, address: ResourceAddress, key: Any) -> None:
        """Write a record that cannot be decoded by any client."""
        self._lacks("poison")

    def recreate(self, address: ResourceAddress) -> None:
        """Drop the collection and create another one with the same name."""
        self._lacks("recreate")

    def announce(self, address: ResourceAddress) -> None:
        """Cause one notice without an event, after which the feed continues."""
        self._lacks("announce", "notices")

    def spelled(self, name: str) -> Spelled:
        """Create an empty collection for keys in several spellings, such as `1` and `1.0`."""
        if not self.spellings:
            self._lacks("spelled", "spellings")
        address = self.create(name, CollectionKind.PLAIN, self.partitions)

        def write(value: Any, n: int | None) -> None:
            self.write(address, [Write(value, None if n is None else {"n": n})])

        return Spelled(address, self.spellings, self.key, write)

    def other_options(self) -> ProviderOptions:
        """Return options that change the meaning of a token's positions."""
        self._lacks("other_options")

    # -- Methods that a harness may override

    def key(self, value: Any) -> MulticloudDbKey:
        """Return a key in the form that the feed uses."""
        return MulticloudDbKey({"id": value})

    def document(self, key: Any, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a document in the form that the feed uses; some services add the key to the document."""
        del key
        return fields

    def now(self) -> datetime:
        """Return the time on the service's clock."""
        return datetime.now(UTC)

    def missing(self) -> ResourceAddress:
        """Return the address of a collection that does not exist."""
        there = self.create("there", CollectionKind.PLAIN, 1)
        return attrs.evolve(there, collection="missing")

    def opt_in(self, capability: Capability) -> ProviderOptions | None:
        """Return the options that opt in to an `EMULATED` capability."""
        del capability
        return None

    def command(self) -> tuple[str, Mapping[str, Any]]:
        """Return a database and a harmless command, for `RUN_COMMAND`."""
        raise NotImplementedError("write command() for a provider with RUN_COMMAND")

    def open_readers(self) -> int | None:
        """Return the number of open native readers (cursors, streams, iterators); None if it is unknown."""
        return None

    def connect(
        self, observer: Observer | None = None, *, max_concurrency: int | None = None
    ) -> MulticloudDbClient:
        """Return a new client."""
        config = self.config()
        if max_concurrency is not None:
            config = attrs.evolve(config, max_concurrency=max_concurrency)
        return self._opened(lambda: open_client(self.plugin, config, observer))

    def troubled(self, script: FaultScript, act: Callable[[], None]) -> MulticloudDbClient:
        """Return a new client with a fault, which is in the reader unless a scripted server produces it.

        Args:
            script: The fault script.
            act: A function that splits, merges or trims the collection directly in the service, for scripts
                in which this happens in the middle of a page.
        """
        return self._opened(lambda: open_client(FaultyPlugin(self.plugin, script, act), self.config()))

    def _opened(self, make: Callable[[], MulticloudDbClient]) -> MulticloudDbClient:
        return cast("MulticloudDbClient", AsyncioClient(make)) if self.through_asyncio else make()

    def connect_until(self, end: Callable[[], None]) -> MulticloudDbClient:
        """Return a new client; when it is closed, `end` is called, for example to end a fault."""
        client = self.connect()
        close = client.close

        def closed() -> None:
            end()
            close()

        client.close = closed  # type: ignore[method-assign]
        return client

    def _lacks(self, method: str, ability: str | None = None) -> NoReturn:
        raise NotImplementedError(
            f"implement {type(self).__name__}.{method}, or set can_{ability or method} = False"
        )
