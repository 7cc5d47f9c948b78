"""One table: its items, and the stream that it writes to."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

import orjson

from multiclouddb_dynamo_emulator.clock import Clock
from multiclouddb_dynamo_emulator.errors import invalid
from multiclouddb_dynamo_emulator.item import Item, KeySchema
from multiclouddb_dynamo_emulator.stream import Stream

__all__ = ["VIEWS", "Table"]

VIEWS: Final = ("KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES")


class Table:
    """A table; the lock of the store guards it.

    Attributes:
        arn: Its ARN.
        keys: Its primary key.
        stream: The latest stream, also when it is disabled; None if there never was one.
    """

    def __init__(self, arn: str, keys: KeySchema, clock: Clock) -> None:
        self.arn, self.keys = arn, keys
        self.stream: Stream | None = None
        self._items: dict[bytes, Item] = {}
        self._created = clock.seconds()
        self._table_id = str(uuid.uuid4())

    @property
    def live_stream(self) -> Stream | None:
        """The stream that takes records."""
        return self.stream if self.stream is not None and self.stream.disabled_at is None else None

    def put(self, item: Item) -> Item | None:
        """Put an item and return the old one; an unchanged item writes no record."""
        key = self.keys.key_of(item)
        place = orjson.dumps(key)
        old = self._items.get(place)
        if old != item:
            self._items[place] = item
            if self.live_stream is not None:
                self.live_stream.write(key, item, old)
        return old

    def delete(self, key: Item, expired: bool = False) -> Item | None:
        """Delete an item and return it; a missing item writes no record."""
        key = self.keys.exactly(key)
        old = self._items.pop(orjson.dumps(key), None)
        if old is not None and self.live_stream is not None:
            self.live_stream.write(key, None, old, expired)
        return old

    def disable_stream(self, specification: Mapping[str, Any]) -> None:
        """Apply a `StreamSpecification` that disables the stream."""
        if "StreamViewType" in specification:
            raise invalid("StreamViewType must not be specified when StreamEnabled is false")
        if self.live_stream is None:
            raise invalid("Table is already in the requested state: its stream is disabled")
        self.live_stream.disable()

    def wanted_view(self, specification: Mapping[str, Any]) -> str:
        """The view type of a `StreamSpecification` that enables a stream."""
        if self.live_stream is not None:
            raise invalid(f"Table already has an enabled stream: {self.live_stream.arn}")
        view = specification.get("StreamViewType")
        if view not in VIEWS:
            raise invalid(f"StreamViewType must be one of {', '.join(VIEWS)}")
        return str(view)

    def described(self) -> dict[str, Any]:
        """The table's description in `DescribeTable`."""
        described: dict[str, Any] = {
            "TableName": self.arn.rpartition("/")[2],
            "TableArn": self.arn,
            "TableId": self._table_id,
            "TableStatus": "ACTIVE",
            "CreationDateTime": self._created,
            "KeySchema": self.keys.described(),
            "AttributeDefinitions": self.keys.definitions(),
            "ItemCount": len(self._items),
            "BillingModeSummary": {"BillingMode": "PAY_PER_REQUEST"},
        }
        if self.stream is not None:
            described |= {"LatestStreamArn": self.stream.arn, "LatestStreamLabel": self.stream.label}
        if self.live_stream is not None:
            described["StreamSpecification"] = {
                "StreamEnabled": True,
                "StreamViewType": self.live_stream.view,
            }
        return described
