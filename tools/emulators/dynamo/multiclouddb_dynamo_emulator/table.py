"""Represents one table: its items, and the stream that receives its changes."""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import orjson

from multiclouddb_dynamo_emulator.clock import Clock
from multiclouddb_dynamo_emulator.errors import invalid
from multiclouddb_dynamo_emulator.item import Item, KeySchema, item_size
from multiclouddb_dynamo_emulator.stream import Stream

__all__ = ["VIEWS", "Table"]

VIEWS: Final = ("KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES")


class Table:
    """A table, which the store's lock protects.

    Attributes:
        arn: Its ARN.
        keys: The table's primary key.
        tags: The tags with which the table was created.
        stream: The latest stream, even if it is disabled; None if the table has never had a stream.
    """

    def __init__(self, arn: str, keys: KeySchema, clock: Clock) -> None:
        self.arn, self.keys = arn, keys
        self.tags: list[dict[str, str]] = []
        self.stream: Stream | None = None
        self._items: dict[bytes, Item] = {}
        self._sizes: dict[bytes, int] = {}
        self._places: list[tuple[int, bytes]] = []
        self._unsettled: tuple[bytes, Item | None] | None = None
        self._created = clock.seconds()
        self._table_id = str(uuid.uuid4())

    @property
    def live_stream(self) -> Stream | None:
        """Return the stream that accepts records."""
        return self.stream if self.stream is not None and self.stream.disabled_at is None else None

    def put(self, item: Item) -> Item | None:
        """Put an item and return the old item. If the item is unchanged, no record is written."""
        key = self.keys.key_of(item)
        place = orjson.dumps(key)
        old = self._items.get(place)
        if old != item:
            self._items[place] = item
            self._sizes[place] = item_size(item)
            self._unsettled = place, old
            if old is None:
                insort(self._places, (self.keys.hash_of(key), place))
            if self.live_stream is not None:
                self.live_stream.write(key, item, old)
        return old

    def delete(self, key: Item, expired: bool = False) -> Item | None:
        """Delete an item and return it. If the item does not exist, no record is written."""
        key = self.keys.exactly(key)
        place = orjson.dumps(key)
        old = self._items.pop(place, None)
        if old is not None:
            self._unsettled = place, old
            del self._sizes[place]
            del self._places[bisect_left(self._places, (self.keys.hash_of(key), place))]
        if old is not None and self.live_stream is not None:
            self.live_stream.write(key, None, old, expired)
        return old

    def spoil(self, key: Item, name: str, value: Any) -> None:
        """Change an attribute of an item to a value that no client can decode.

        This change writes no record.
        """
        place = orjson.dumps(self.keys.exactly(key))
        self._items[place] = self._items[place] | {name: value}

    def place_of(self, key: Item) -> tuple[int, bytes]:
        """Return the position of a key in the order in which a scan returns items."""
        key = self.keys.exactly(key)
        return self.keys.hash_of(key), orjson.dumps(key)

    def get(self, key: Item, consistent: bool) -> Item | None:
        """Return the item with a key; if the read is not consistent, its state before the last write."""
        place = orjson.dumps(self.keys.exactly(key))
        if not consistent and self._unsettled is not None and self._unsettled[0] == place:
            return self._unsettled[1]
        return self._items.get(place)

    def scan(
        self, low: int, high: int, after: tuple[int, bytes] | None, consistent: bool
    ) -> Iterator[tuple[Item, Item]]:
        """Return the keys and items in a range of hashes, in order.

        Args:
            low: The first hash.
            high: The end of the range; the range does not include this hash.
            after: The page begins after this position; None to begin at the lowest hash.
            consistent: True for the current state of the table; False for the state before the last
                write.
        """
        index = bisect_left(self._places, (low, b"")) if after is None else bisect_right(self._places, after)
        hidden, old = self._unsettled if self._unsettled is not None and not consistent else (None, None)
        for value, place in islice(self._places, index, None):
            if value >= high:
                return
            item = old if place == hidden else self._items[place]
            if item is not None:
                yield orjson.loads(place), item

    def disable_stream(self, specification: Mapping[str, Any]) -> None:
        """Apply a `StreamSpecification` that disables the stream."""
        if "StreamViewType" in specification:
            raise invalid("StreamViewType must not be specified when StreamEnabled is false")
        if self.live_stream is None:
            raise invalid("Table is already in the requested state: its stream is disabled")
        self.live_stream.disable()

    def wanted_view(self, specification: Mapping[str, Any]) -> str:
        """Return the view type of a `StreamSpecification` that enables a stream."""
        if self.live_stream is not None:
            raise invalid(f"Table already has an enabled stream: {self.live_stream.arn}")
        view = specification.get("StreamViewType")
        if view not in VIEWS:
            raise invalid(f"StreamViewType must be one of {', '.join(VIEWS)}")
        return str(view)

    def described(self) -> dict[str, Any]:
        """Return the description that `DescribeTable` returns for the table."""
        described: dict[str, Any] = {
            "TableName": self.arn.rpartition("/")[2],
            "TableArn": self.arn,
            "TableId": self._table_id,
            "TableStatus": "ACTIVE",
            "CreationDateTime": self._created,
            "KeySchema": self.keys.described(),
            "AttributeDefinitions": self.keys.definitions(),
            "ProvisionedThroughput": {
                "NumberOfDecreasesToday": 0,
                "ReadCapacityUnits": 0,
                "WriteCapacityUnits": 0,
            },
            "TableSizeBytes": sum(self._sizes.values()),
            "ItemCount": len(self._items),
            "BillingModeSummary": {
                "BillingMode": "PAY_PER_REQUEST",
                "LastUpdateToPayPerRequestDateTime": self._created,
            },
        }
        if self.stream is not None:
            described |= {"LatestStreamArn": self.stream.arn, "LatestStreamLabel": self.stream.label}
        if self.live_stream is not None:
            described["StreamSpecification"] = {
                "StreamEnabled": True,
                "StreamViewType": self.live_stream.view,
            }
        return described
