"""Represents one stream: its shards, their lineage, and how they are listed."""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import count, pairwise
from typing import Any, Final

import orjson

from multiclouddb_dynamo_emulator.clock import Clock
from multiclouddb_dynamo_emulator.habits import Habits, Order, Remains
from multiclouddb_dynamo_emulator.item import HASH_SPACE, Item, KeySchema, item_size
from multiclouddb_dynamo_emulator.shard import Numbers, Shard

__all__ = ["Stream"]

_SHARDS: Final = count(1)
# Multiplication with an odd factor is one-to-one modulo a power of two. Therefore all ids differ, and their
# order is arbitrary.
_SCRAMBLE: Final = 2654435761
_NEW_VIEWS: Final = {"NEW_IMAGE", "NEW_AND_OLD_IMAGES"}
_OLD_VIEWS: Final = {"OLD_IMAGE", "NEW_AND_OLD_IMAGES"}


class Stream:
    """A stream, which the lock of the store protects.

    Attributes:
        arn: The ARN. Two streams of the same table have different ARNs.
        label: The last part of the ARN.
        table_name: The table's name.
        view: `KEYS_ONLY`, `NEW_IMAGE`, `OLD_IMAGE` or `NEW_AND_OLD_IMAGES`.
        keys: The table's key.
        created: The time of creation, in seconds since 1970.
        disabled_at: The time at which the stream was disabled, in seconds since 1970; None while the stream
            is enabled.
        shards: Maps each id to its shard, parents first. The map does not contain expired shards
            that `DescribeStream` no longer lists.
    """

    def __init__(
        self, table_arn: str, label: str, view: str, keys: KeySchema, habits: Habits, clock: Clock
    ) -> None:
        self.arn, self.label = f"{table_arn}/stream/{label}", label
        self.table_name = table_arn.rpartition("/")[2]
        self.view, self.keys = view, keys
        self.created = clock.seconds()
        self.disabled_at: float | None = None
        self.shards: dict[str, Shard] = {}
        self.numbers = Numbers()
        self._habits, self._clock = habits, clock
        self._region = self.arn.split(":")[3]
        self._hidden: dict[str, int] = {}  # maps a shard to the number of calls for which it is still hidden
        self._hidden_until: dict[str, float] = {}
        self._open: list[Shard] = []  # the open shards, ordered by their ranges of hashes
        self._lows: list[int] = []
        self._listing: tuple[Order, list[Shard], Mapping[str, int]] | None = None
        initial = habits.initial_shards
        bounds = [HASH_SPACE * number // initial for number in range(initial + 1)]
        opened = [self._add(None, low, high) for low, high in pairwise(bounds)]
        self._open.extend(opened)
        self._lows.extend(bounds[:-1])
        self.numbers.leap()

    # -- Lineage

    @property
    def open_shards(self) -> Sequence[Shard]:
        """Return the shards that accept records, ordered by their ranges of hashes."""
        return self._open

    def split(self, shard: Shard) -> tuple[Shard, Shard]:
        """Close a shard and divide its range between two children."""
        middle = (shard.low + shard.high) // 2
        first, second = self._replace(shard, [(shard.low, middle), (middle, shard.high)])
        return first, second

    def roll_over(self, shard: Shard) -> Shard:
        """Close a shard and continue with one child."""
        (child,) = self._replace(shard, [(shard.low, shard.high)])
        return child

    def next_generation(self) -> None:
        """Set the last number just below the next power of ten, if longer numbers are possible."""
        self.numbers.leap()

    def disable(self) -> None:
        """Close all shards permanently."""
        self.disabled_at = self._clock.seconds()
        for shard in self._open:
            shard.close(self.numbers, self.disabled_at)
        self._open.clear()
        self._lows.clear()

    def _replace(self, shard: Shard, parts: Sequence[tuple[int, int]]) -> list[Shard]:
        if shard.end is not None:
            raise ValueError(f"{shard.shard_id} is closed")
        shard.close(self.numbers, self._clock.seconds())
        children = [self._add(shard.shard_id, low, high) for low, high in parts]
        for child in children:
            self.hide(child, self._habits.late_children)
        place = bisect_right(self._lows, shard.low) - 1
        self._open[place : place + 1] = children
        self._lows[place : place + 1] = [child.low for child in children]
        return children

    def _add(self, parent: str | None, low: int, high: int) -> Shard:
        number = next(_SHARDS) * _SCRAMBLE % (1 << 32)
        shard_id = f"shardId-{int(self._clock.seconds() * 1000):020d}-{number:08x}"
        shard = Shard(shard_id, parent, low, high, self.numbers.next())
        self.shards[shard_id] = shard
        self._listing = None
        return shard

    # -- Listing

    def listing(self) -> tuple[list[Shard], Mapping[str, int]]:
        """Return the shards in the order in which they are listed, and the index of each."""
        order, now = self._habits.order, self._clock.seconds()
        for shard_id in [name for name, until in self._hidden_until.items() if until <= now]:
            del self._hidden_until[shard_id]
            self._listing = None
        if self._listing is None or self._listing[0] is not order:
            hidden = self._hidden.keys() | self._hidden_until.keys()
            listed = [shard for shard in self.shards.values() if shard.shard_id not in hidden]
            match order:
                case Order.PARENTS_FIRST:
                    pass
                case Order.CHILDREN_FIRST:
                    listed.reverse()
                case Order.SHUFFLED:
                    listed.sort(key=lambda shard: shard.shard_id[-8:])
            places = {shard.shard_id: place for place, shard in enumerate(listed)}
            self._listing = order, listed, places
        return self._listing[1:]

    def hide(self, shard: Shard, calls: int, seconds: float = 0.0) -> None:
        """Hide a shard in the next `calls` calls of `DescribeStream`.

        Also hide the shard until `seconds` of the server's time have passed.
        """
        self._hidden.pop(shard.shard_id, None)
        self._hidden_until.pop(shard.shard_id, None)
        if calls:
            self._hidden[shard.shard_id] = calls
        if seconds:
            self._hidden_until[shard.shard_id] = self._clock.seconds() + seconds
        self._listing = None

    def called(self) -> None:
        """Count a call of `DescribeStream`, because a shard can be hidden for a number of calls."""
        for shard_id, calls in list(self._hidden.items()):
            if calls > 1:
                self._hidden[shard_id] = calls - 1
            else:
                del self._hidden[shard_id]
                self._listing = None

    # -- Retention

    def trim(self, cutoff: float, remains: Remains) -> None:
        """Delete the records that were written at or before the given time.

        Also delete the shards that were closed at or before this time.
        """
        for shard in list(self.shards.values()):
            shard.trim_before(cutoff)
            if shard.closed_at is not None and shard.closed_at <= cutoff:
                self.drop(shard, remains)

    def drop(self, shard: Shard, remains: Remains) -> None:
        """Delete a closed shard."""
        if shard.end is None:
            raise ValueError(f"{shard.shard_id} is open; close it by a split or a rollover first")
        shard.trim_all()
        shard.remains = remains
        if remains is Remains.UNLISTED:
            self.hide(shard, 0)
            del self.shards[shard.shard_id]

    # -- Records

    def shard_of(self, key: Item) -> Shard:
        """Return the open shard that receives the records of a key."""
        return self._open[bisect_right(self._lows, self.keys.hash_of(key)) - 1]

    def write(
        self,
        key: Item,
        new: Item | None,
        old: Item | None,
        expired: bool = False,
        change: Callable[[dict[str, Any]], None] | None = None,
        shard: Shard | None = None,
    ) -> int:
        """Write a record.

        Args:
            key: The item's key.
            new: The item; None for a delete.
            old: The old item; None for a new item.
            expired: True if the item was deleted because its time to live had passed.
            change: A function that changes the record before it is stored.
            shard: The shard that receives the record; None means the open shard for the key.

        Returns:
            Its sequence number.
        """
        number, now = self.numbers.next(), self._clock.seconds()
        record = self._record(key, new, old, number, now)
        if expired:
            names = ("principalId", "type") if self._habits.lower_case_identity else ("PrincipalId", "Type")
            record["userIdentity"] = dict(zip(names, ("dynamodb.amazonaws.com", "Service"), strict=True))
        if change is not None:
            # A deep copy is not enough, because the images contain the same keys.
            record = orjson.loads(orjson.dumps(record))
            change(record)
        home = self.shard_of(key) if shard is None else shard
        home.append(number, orjson.dumps(record), now)
        return number

    def _record(
        self, key: Item, new: Item | None, old: Item | None, number: int, now: float
    ) -> dict[str, Any]:
        rounding = self._habits.timestamp_seconds
        change: dict[str, Any] = {
            "ApproximateCreationDateTime": int(now) // rounding * rounding,
            "Keys": key,
            "SequenceNumber": str(number),
            "StreamViewType": self.view,
        }
        if new is not None and self.view in _NEW_VIEWS:
            change["NewImage"] = new
        if old is not None and self.view in _OLD_VIEWS:
            change["OldImage"] = old
        images = (change["Keys"], change.get("NewImage", {}), change.get("OldImage", {}))
        change["SizeBytes"] = sum(map(item_size, images))
        identity = blake2b(f"{self.arn}/{number}".encode(), digest_size=16).digest()
        return {
            "eventID": str(uuid.UUID(bytes=identity)),
            "eventName": "REMOVE" if new is None else "INSERT" if old is None else "MODIFY",
            "eventVersion": "1.1",
            "eventSource": "aws:dynamodb",
            "awsRegion": self._region,
            "dynamodb": change,
        }
