"""Represents a container with its partitions and items, and the effects of transactions on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any, Final

import attrs
import orjson

from multiclouddb_cosmos_emulator.clock import Clock
from multiclouddb_cosmos_emulator.errors import bad_request, gone
from multiclouddb_cosmos_emulator.ids import container_rid, new_etag
from multiclouddb_cosmos_emulator.keys import Key, KeyDefinition
from multiclouddb_cosmos_emulator.partition import (
    Change,
    Item,
    Partition,
    even_boundaries,
    middle,
    place_of,
)
from multiclouddb_cosmos_emulator.values import UNDEFINED

__all__ = ["Container", "Effect"]

_INDEXING: Final[dict[str, Any]] = {
    "indexingMode": "consistent",
    "automatic": True,
    "includedPaths": [{"path": "/*"}],
    "excludedPaths": [{"path": '/"_etag"/?'}],
}
_FOREVER: Final = -1


@attrs.frozen
class Effect:
    """The effect of a transaction on one item.

    Attributes:
        kind: `create`, `replace` or `delete`.
        old: The version of the item before the transaction; None for a create.
        new: The version of the item after the transaction; None for a delete.
        expired: True if the time to live had passed.
    """

    kind: str
    old: Item | None
    new: Item | None
    expired: bool = False


class Container:
    """A container with its partitions and items.

    Args:
        database_rid: The resource id of the database.
        properties: The document with which the container was created.
        partitions: The number of physical partitions at the start.
        clock: The server's clock.
    """

    def __init__(self, database_rid: str, properties: dict[str, Any], partitions: int, clock: Clock) -> None:
        self.clock = clock
        self.rid = container_rid(database_rid)
        self.link = f"dbs/{database_rid}/colls/{self.rid}/"
        self.definition = KeyDefinition.parsed(properties.get("partitionKey") or {})
        self.properties: dict[str, Any] = {}
        self.logical: dict[bytes, dict[str, Item]] = {}
        self.partitions: list[Partition] = []
        self.version = new_etag()
        self._documents = 0
        self._ranges = 0
        self._expiring: list[tuple[float, int, Item]] = []
        self.describe(properties)
        self._divide(partitions)

    def describe(self, properties: dict[str, Any]) -> None:
        """Replace the container's settings with the settings in a client's document."""
        _check(properties)
        self.properties = {
            **properties,
            "indexingPolicy": _indexing(properties.get("indexingPolicy")),
            "_rid": self.rid,
            "_ts": int(self.clock.seconds()),
            "_self": self.link,
            "_etag": new_etag(),
            "_docs": "docs/",
            "_sprocs": "sprocs/",
            "_triggers": "triggers/",
            "_udfs": "udfs/",
            "_conflicts": "conflicts/",
        }
        self._watch_expiry()

    # -- Reading

    def item(self, key: Key, item_id: str) -> Item | None:
        """Return the current version of an item."""
        return self.logical.get(key.name, {}).get(item_id)

    def partition(self, range_id: str) -> Partition:
        """Return a live partition.

        If no live partition has the given id, raise the service's 410 error.
        """
        for partition in self.partitions:
            if partition.range_id == range_id:
                partition.check()
                return partition
        raise gone(1002, f"The requested partition key range {range_id} is gone.")

    def partition_of(self, epk: str) -> Partition:
        """Return the partition that contains a key."""
        return next(partition for partition in self.partitions if partition.covers(epk))

    # -- Writing

    def next_number(self) -> int:
        """Return the number for the next document."""
        self._documents += 1
        return self._documents

    def expiry(self, ttl: Any, ts: int) -> float | None:
        """Return the time at which a document expires.

        Return None if the document never expires, or if the container has no time to live.
        """
        default = self.properties.get("defaultTtl")
        if ttl is not UNDEFINED and not _is_ttl(ttl):
            raise bad_request("The input ttl is invalid. Ttl value must be -1 or a positive integer.")
        effective = default if ttl is UNDEFINED else ttl
        if default is None or effective is None or effective == _FOREVER:
            return None
        return float(ts + effective)

    def apply(self, key: Key, effects: Sequence[Effect]) -> Partition:
        """Commit a transaction within one logical partition."""
        partition = self.partition_of(key.epk)
        if effects:
            partition.lsn += 1
        for effect in effects:
            self._apply(partition, key, effect)
        return partition

    def _apply(self, partition: Partition, key: Key, effect: Effect) -> None:
        old, new = effect.old, effect.new
        some = new if new is not None else old
        assert some is not None
        previous = None
        if old is not None and old.change is not None:
            previous, old.change.latest = old.change.lsn, False
        change = Change(
            partition.lsn,
            effect.kind,
            key,
            some.item_id,
            new.head if new is not None else b"",
            int(self.clock.seconds()),
            previous,
            effect.expired,
            new is not None,
        )
        partition.log(change)
        if new is None:
            del partition.items[some.number]
            self._forget(key, some.item_id)
            return
        new.change = change
        self._keep(partition, new)

    def _forget(self, key: Key, item_id: str) -> None:
        items = self.logical[key.name]
        del items[item_id]
        if not items:
            del self.logical[key.name]

    def lose(self, range_id: str, transactions: int) -> None:
        """Undo the last transactions of a partition, as if they had never happened."""
        _, partition = self._place(range_id)
        lost, left = partition.lose(transactions)
        for key, item_id in {(change.key, change.item_id) for change in lost}:
            item = self.item(key, item_id)
            if item is not None:
                del partition.items[item.number]
                self._forget(key, item_id)
            before = left.get((key.name, item_id))
            if before is not None and before.kind != "delete":
                self._restore(partition, before)

    def _restore(self, partition: Partition, change: Change) -> None:
        document = orjson.loads(change.head + b"}")
        expires = self.expiry(document.get("ttl", UNDEFINED), document["_ts"])
        number, change.latest = self.next_number(), True
        item = Item(
            change.key,
            change.item_id,
            number,
            document,
            change.head,
            document["_etag"],
            document["_ts"],
            expires,
            change,
        )
        self._keep(partition, item)

    def _keep(self, partition: Partition, item: Item) -> None:
        partition.items[item.number] = item
        self.logical.setdefault(item.key.name, {})[item.item_id] = item
        if item.expires is not None:
            heappush(self._expiring, (item.expires, item.number, item))

    # -- Time to live

    def expire(self) -> int:
        """Delete the items whose time to live has passed, and return their number."""
        now, count = self.clock.seconds(), 0
        while self._expiring and self._expiring[0][0] <= now:
            _, _, item = heappop(self._expiring)
            if self.item(item.key, item.item_id) is item:
                self.apply(item.key, [Effect("delete", item, None, expired=True)])
                count += 1
        return count

    def _watch_expiry(self) -> None:
        """Recompute the expiry of every item, because the container's time to live may have changed."""
        self._expiring = []
        for item in self.items():
            item.expires = self.expiry(item.document.get("ttl", UNDEFINED), item.ts)
            if item.expires is not None:
                self._expiring.append((item.expires, item.number, item))
        heapify(self._expiring)

    def items(self) -> Iterator[Item]:
        """Return all items."""
        for partition in self.partitions:
            yield from partition.items.values()

    # -- Lineage

    def _next_range(self) -> str:
        self._ranges += 1
        return str(self._ranges - 1)

    def _divide(self, parts: int) -> None:
        whole = Partition("")
        if self.definition.version == 1:
            whole.span = (0, 1 << 32)
        cuts = even_boundaries(parts, self.definition.version)
        edges = [(whole.low, whole.span[0]), *cuts, (whole.high, whole.span[1])]
        self.partitions = [
            Partition(self._next_range(), low, high, (start, end))
            for (low, start), (high, end) in pairwise(edges)
        ]

    def split(self, range_id: str, boundary: str | None = None, completing: int = 0) -> tuple[str, str]:
        """Replace a partition with two partitions. By default, each new partition gets half of the range."""
        place, parent = self._place(range_id)
        if boundary is None:
            boundary, number = middle(parent, self.definition.version)
        else:
            boundary = boundary.upper()
            number = place_of(boundary, parent, self.definition.version)
        if not parent.low < boundary < parent.high:
            raise ValueError(f"{boundary!r} does not lie between {parent.low!r} and {parent.high!r}")
        children = parent.split(boundary, number, (self._next_range(), self._next_range()))
        for child in children:
            child.completing = completing
        self.partitions[place : place + 1] = children
        self.version = new_etag()
        return children[0].range_id, children[1].range_id

    def merge(self, first: str, second: str) -> str:
        """Replace two adjacent partitions with one partition."""
        place, low = self._place(first)
        other, high = self._place(second)
        if abs(place - other) != 1:
            raise ValueError(f"{first!r} and {second!r} are not adjacent")
        if other < place:
            place, low, high = other, high, low
        child = low.join(high, self._next_range())
        self.partitions[place : place + 2] = [child]
        self.version = new_etag()
        return child.range_id

    def grow(self, parts: int) -> None:
        """Split the widest partitions until the container has the given number of partitions."""
        while len(self.partitions) < parts:
            widest = max(self.partitions, key=lambda each: each.span[1] - each.span[0])
            self.split(widest.range_id)

    def _place(self, range_id: str) -> tuple[int, Partition]:
        for place, partition in enumerate(self.partitions):
            if partition.range_id == range_id:
                return place, partition
        live = ", ".join(partition.range_id for partition in self.partitions)
        raise ValueError(f"there is no partition {range_id!r}; the live partitions are {live}")


def _indexing(given: Any) -> dict[str, Any]:
    """Return an indexing policy as the service completes it.

    No policy has an index of the etags. The kinds of indexes, which the service once had, are left out.
    """
    policy = {**_INDEXING, **(given if isinstance(given, dict) else {})}
    if policy["indexingMode"].lower() == "none":
        return policy
    excluded = [path for path in policy["excludedPaths"] if path not in _INDEXING["excludedPaths"]]
    included = [{"path": each.get("path")} for each in policy["includedPaths"]]
    return {
        **policy,
        "includedPaths": included,
        "excludedPaths": [*excluded, *_INDEXING["excludedPaths"]],
    }


def _check(properties: dict[str, Any]) -> None:
    """Refuse settings that the emulator cannot apply."""
    default = properties.get("defaultTtl")
    if default is not None and not _is_ttl(default):
        raise bad_request("The input ttl is invalid. Ttl value must be -1 or a positive integer.")
    feed = properties.get("changeFeedPolicy") or {}
    if not isinstance(feed, dict) or not isinstance(feed.get("retentionDuration", 0), int):
        raise bad_request("The change feed policy needs a retentionDuration in minutes.")
    unique = properties.get("uniqueKeyPolicy") or {}
    keys = unique.get("uniqueKeys", []) if isinstance(unique, dict) else None
    if not isinstance(keys, list) or not all(
        isinstance(key, dict) and _are_paths(key.get("paths")) for key in keys
    ):
        raise bad_request("The unique key policy needs uniqueKeys, each with paths.")


def _are_paths(paths: Any) -> bool:
    return isinstance(paths, list) and all(isinstance(path, str) and path.startswith("/") for path in paths)


def _is_ttl(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and (value == _FOREVER or value > 0)
