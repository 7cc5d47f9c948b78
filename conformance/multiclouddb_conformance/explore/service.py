"""Defines what the explorer needs of a service behind the SPI, and of a consumer that reads it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Sequence
from typing import Any, ClassVar

import attrs

from multiclouddb_api import Beginning, ChangeEvent, ResourceAddress
from multiclouddb_conformance.explore.world import Bounds, ListingKind, Scope, World
from multiclouddb_spi import Cursor, Feed, FeedStart, Provider

__all__ = ["At", "Got", "Node", "Service", "moment_of"]


class Service(ABC):
    """A service that does what the model says, and that can go back to an earlier state.

    Attributes:
        keeps_clients: True if `restore` to a later state leaves `server` in place, with its clients.
        server: What clients are connected to.
    """

    kind: ClassVar[ListingKind]
    address: ResourceAddress
    position: ClassVar[FeedStart] = Beginning()
    rolls: ClassVar[bool] = True
    chains: ClassVar[bool] = True
    roots: ClassVar[int] = 2
    trims_open: ClassVar[bool] = True
    copies: ClassVar[bool] = False
    empty_answers: ClassVar[int] = 0
    keeps_clients: ClassVar[bool] = False
    server: object = None

    @abstractmethod
    def begin(self, partitions: int) -> list[str]:
        """Create the collection with open partitions; return their names."""

    @abstractmethod
    def save(self) -> Any:
        """Return the state."""

    @abstractmethod
    def restore(self, saved: Any) -> None:
        """Go to an earlier or later state; this may be done more than once."""

    @abstractmethod
    def provider(self) -> Provider:
        """Connect a new client."""

    @abstractmethod
    def reshape(self, parents: Sequence[str], children: int) -> Sequence[str]:
        """End open partitions; return the names of the new ones."""

    @abstractmethod
    def holder(self, key: str) -> str:
        """Return the name of the open partition that holds a key."""

    @abstractmethod
    def put(self, keys: Sequence[str], moment: int) -> None:
        """Write one item for each key; all that was written before is older."""

    @abstractmethod
    def forget(self, moment: int) -> None:
        """Remove what was written at this moment or earlier, and the partitions that ended by then."""

    def hide(self, name: str, *, hidden: bool) -> None:
        """Keep a partition out of listings, or list it."""
        raise NotImplementedError

    def can_merge(self, names: Sequence[str]) -> bool:
        """Return whether these open partitions can be merged."""
        del names
        return self.kind is not ListingKind.LATE

    def place(self, feed: Feed, cursor: Cursor) -> Hashable:
        """Return what decides of a position; two positions with the same are read alike."""
        return repr(feed.without_hints(cursor))

    def close(self) -> None:  # noqa: B027 - most services hold nothing
        """Stop the server."""


@attrs.frozen
class Got:
    """What a consumer was told in one step, in this order."""

    gap: Collection[str] = ()
    left: Collection[str] = ()
    again: bool = False
    events: Sequence[tuple[int, int]] = ()
    together: Collection[int] = ()
    over: bool = False
    idle: bool = False
    read: int | None = None


@attrs.define(eq=False)
class Node:
    """One state of the service."""

    world: World
    names: tuple[str, ...]
    saved: Any
    number: int = 0
    after: dict[str, Node] = attrs.field(factory=dict)


@attrs.frozen
class At:
    """What a reader sees."""

    service: Service
    node: Node
    token: str
    bounds: Bounds

    @property
    def root(self) -> str | None:
        """The only partition whose descendants are read, or None."""
        return self.node.names[0] if self.bounds.scope is Scope.DESCENDANTS else None

    def index(self, name: str) -> int:
        """Return the number of a partition in the model."""
        return self.node.names.index(name)


def moment_of(event: ChangeEvent) -> tuple[int, int]:
    """Return the partition of an event in the model, and its moment."""
    moment, i, _ = str(event.key.components["id"]).split("-")
    return int(i), int(moment)
