"""Represents a physical partition: a range of effective partition keys with its items, LSN and change log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from heapq import merge
from operator import attrgetter
from typing import Final

import attrs

from multiclouddb_cosmos_emulator.errors import CODES, ServiceError, gone
from multiclouddb_cosmos_emulator.hashing import boundary_v1
from multiclouddb_cosmos_emulator.keys import MAX_EPK, MIN_EPK, Key
from multiclouddb_cosmos_emulator.values import Json

__all__ = ["Change", "Item", "Partition", "even_boundaries", "middle", "place_of"]

_SPAN_V2: Final = 0x40 << 120
_SPAN_V1: Final = 1 << 32
_DIGITS: Final = 32
_lsn = attrgetter("lsn")


@attrs.define(eq=False, slots=True)
class Item:
    """One version of a document.

    Attributes:
        key: The document's partition key.
        item_id: The document's `id`.
        number: The number of the item in the container, which gives the order of a scan.
        document: The JSON object, including the system's properties.
        head: The document as JSON text without the last brace, so that the change feed can add properties.
        etag: The etag of the item, including quotes.
        ts: The `_ts` of the item.
        expires: The time at which the item's time to live ends; None if the item never expires.
        change: The change that wrote the item; None before the transaction is committed.
    """

    key: Key
    item_id: str
    number: int
    document: dict[str, Json]
    head: bytes
    etag: str
    ts: int
    expires: float | None
    change: Change | None = None

    @property
    def body(self) -> bytes:
        """Return the document as JSON."""
        return self.head + b"}"


@attrs.define(eq=False, slots=True)
class Change:
    """An entry in the change log.

    Attributes:
        lsn: The LSN of the change; all changes of a transaction have the same LSN.
        kind: `create`, `replace` or `delete`.
        key: The partition key of the changed item.
        item_id: The item's `id`.
        head: The JSON of the new version without the last brace; empty for a delete.
        seconds: The commit time of the change, `crts`.
        previous: The LSN of the item's previous version; None for a create.
        expired: True if the item was deleted because its time to live had passed.
        latest: True if this is the newest change of the item.
    """

    lsn: int
    kind: str
    key: Key
    item_id: str
    head: bytes
    seconds: int
    previous: int | None
    expired: bool
    latest: bool


@attrs.define(eq=False)
class Partition:
    """A range of partition keys.

    Attributes:
        range_id: Its id.
        low: The first effective partition key in the range.
        high: The end of the range; the range does not include this key.
        span: The start and the end of the range as numbers, for comparisons.
        parents: All ancestors.
        lsn: The LSN of the last transaction.
        trimmed: Changes with this LSN or a lower LSN have expired.
        merged: True if the partition or one of its ancestors was merged.
        completing: The number of requests that still get the answer "split in progress".
        items: The items of the partition, by number.
        changes: The change log, by LSN.
    """

    range_id: str
    low: str = MIN_EPK
    high: str = MAX_EPK
    span: tuple[int, int] = (0, _SPAN_V2)
    parents: tuple[str, ...] = ()
    lsn: int = 1
    trimmed: int = 0
    merged: bool = False
    completing: int = 0
    items: dict[int, Item] = attrs.Factory(dict)
    changes: list[Change] = attrs.Factory(list)

    def lsn_of_replica(self, lag: int) -> int:
        """Return the LSN of a replica that does not have the last `lag` transactions."""
        return max(1, self.lsn - lag)

    def covers(self, epk: str) -> bool:
        """Return True if this partition contains the key."""
        return self.low <= epk < self.high

    def log(self, change: Change) -> None:
        """Append a change to the log."""
        self.changes.append(change)

    def after(self, lsn: int) -> Iterator[Change]:
        """Return the part of the log after an LSN."""
        for place in range(bisect_right(self.changes, lsn, key=_lsn), len(self.changes)):
            yield self.changes[place]

    def latest_at(self, lsn: int) -> set[int]:
        """Return the identities of the changes that were the newest of their items at an LSN."""
        newest = {(change.key.name, change.item_id): change for change in self.changes if change.lsn <= lsn}
        return {id(change) for change in newest.values() if change.kind != "delete"}

    def lose(self, transactions: int) -> tuple[list[Change], dict[tuple[bytes, str], Change]]:
        """Remove the last transactions, and return their changes and the last change of each item left.

        The partition continues with the LSNs of the removed transactions.
        """
        left = self.lsn - transactions
        if left < max(1, self.trimmed):
            raise ValueError(f"partition {self.range_id!r} cannot go back by {transactions} transactions")
        place = bisect_right(self.changes, left, key=_lsn)
        lost, self.changes, self.lsn = self.changes[place:], self.changes[:place], left
        return lost, {(change.key.name, change.item_id): change for change in self.changes}

    def trim(self, before: float) -> None:
        """Expire the changes that are older than a given time.

        The latest version of each item stays readable.
        """
        trimmed = self.trimmed
        for change in self.after(trimmed):
            if change.seconds >= before:
                break
            trimmed = change.lsn
        self.trim_to(trimmed)

    def trim_to(self, lsn: int) -> None:
        """Expire the changes up to an LSN."""
        if lsn > self.trimmed:
            self.trimmed = lsn
            self.changes = [change for change in self.changes if change.latest or change.lsn > lsn]

    def check(self) -> None:
        """Refuse a request while a split is being completed."""
        if self.completing > 0:
            self.completing -= 1
            raise gone(1007, "The partition is completing a split; try again.")

    def refuse_merged(self) -> None:
        """Refuse to read all versions of a merged partition."""
        if self.merged:
            raise ServiceError(500, f"{CODES[500]}: Partition has more than two children")

    # -- Lineage

    def split(self, boundary: str, middle: int, ids: tuple[str, str]) -> tuple[Partition, Partition]:
        """Split the partition into two children. Both children continue the parent's LSNs."""
        parents = (*self.parents, self.range_id)
        low = Partition(ids[0], self.low, boundary, (self.span[0], middle), parents)
        high = Partition(ids[1], boundary, self.high, (middle, self.span[1]), parents)
        for child in (low, high):
            child.lsn, child.trimmed, child.merged = self.lsn, self.trimmed, self.merged
        for number, item in self.items.items():
            (low if item.key.epk < boundary else high).items[number] = item
        for change in self.changes:
            (low if change.key.epk < boundary else high).changes.append(change)
        return low, high

    def join(self, other: Partition, range_id: str) -> Partition:
        """Merge this partition with the next partition into a child."""
        parents = tuple(dict.fromkeys((*self.parents, *other.parents, self.range_id, other.range_id)))
        child = Partition(range_id, self.low, other.high, (self.span[0], other.span[1]), parents)
        child.lsn = max(self.lsn, other.lsn)
        child.trimmed = max(self.trimmed, other.trimmed)
        child.merged = True
        child.items = dict(sorted((self.items | other.items).items()))
        child.changes = list(merge(self.changes, other.changes, key=_lsn))
        return child


def _text(number: int, version: int) -> str:
    if version == 1:
        return boundary_v1(number)
    return f"{number:0{_DIGITS}X}"


def even_boundaries(parts: int, version: int) -> list[tuple[str, int]]:
    """Return the boundaries that divide all keys into equal parts, as texts and as numbers."""
    whole = _SPAN_V1 if version == 1 else _SPAN_V2
    numbers = [(whole - 1) // parts * part for part in range(1, parts)]
    return [(_text(number, version), number) for number in numbers]


def middle(partition: Partition, version: int) -> tuple[str, int]:
    """Return the boundary that divides a partition into two halves."""
    low, high = partition.span
    number = (low + high - 1) // 2
    return _text(number, version), number


def place_of(boundary: str, partition: Partition, version: int) -> int:
    """Return the number for a boundary that a test has chosen.

    For version 1, return the middle of the partition's range instead.
    """
    if version == 1:
        return (partition.span[0] + partition.span[1]) // 2
    return int(boundary[:_DIGITS].ljust(_DIGITS, "0"), 16)
