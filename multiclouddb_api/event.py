"""One change."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum
from itertools import repeat
from typing import Any, Final

import attrs

from multiclouddb_api.address import ResourceAddress
from multiclouddb_api.key import MulticloudDbKey
from multiclouddb_api.text import shorten

__all__ = ["ChangeEvent", "ChangeType"]


class ChangeType(Enum):
    """What happened to the document.

    Portability:
        Services differ in what they call one change: Spanner sends a transaction's net effect on a row and
        calls a replaced row `CREATE`. Cosmos DB tells the three apart only in its all-versions-and-deletes
        mode. Consumers that upsert need not care. Warnings 1 and 18 in docs/configuration.md.
    """

    CREATE = "CREATE"
    """It was not there before."""
    UPDATE = "UPDATE"
    """It was there, and was changed or replaced."""
    DELETE = "DELETE"
    """It is gone, by a delete or by its time-to-live."""


@attrs.frozen
class ChangeEvent:
    """One create, update or delete of one document.

    Events have no validators, because we build one for every change; their types hold all the same.

    Attributes:
        event_id: The service's stable identity of this change: the same on every redelivery,
            through every scope and after a split, and unique in the collection.
        key: The document's key.
        type: Created, updated or deleted.
        timestamp: When the service says that it was committed; aware, UTC.
        new_item_state: The full document after the change; None on a delete, with `OMIT`, or
            where the service does not have it. Never a part of it.
        old_item_state: The full document before the change, or None; see `OldItemStateMode`.
        order_key: Text: of two changes of one key the later one sorts higher, across partitions.
        by_expiry: True for a delete by time-to-live, False for any other, None where the service
            does not tell.
        backfilled: True when the change was made up from the present state of a document.
        address: Where the document is.
        partition_id: The physical partition it came through; fit for `PhysicalPartition`.
        native: The vendor's own record, with `include_native` only.

    Portability:
        `timestamp` has whole seconds on DynamoDB and Cosmos DB, milliseconds on MongoDB, and may step
        back there: order changes of a key by `order_key`. `by_expiry` is told by DynamoDB, Spanner and Cosmos
        DB. `backfilled` is True only behind Cosmos DB's opt-in. Warnings 8, 16 and 17 in
        docs/configuration.md.
    """

    event_id: str
    key: MulticloudDbKey
    type: ChangeType
    timestamp: datetime
    new_item_state: Mapping[str, Any] | None = attrs.field(repr=shorten, hash=False)
    old_item_state: Mapping[str, Any] | None = attrs.field(repr=shorten, hash=False)
    order_key: str
    by_expiry: bool | None
    backfilled: bool
    address: ResourceAddress
    partition_id: str
    native: Any = attrs.field(default=None, repr=False, eq=False, hash=False)


_SETTERS: Final = [ChangeEvent.__dict__[field.name].__set__ for field in attrs.fields(ChangeEvent)]


def trusted_events(count: int, columns: Iterable[Iterable[Any]]) -> list[ChangeEvent]:
    """Events from one column for each attribute, in their order; each has `count` values at least.

    For `mapping` modules only: by column it takes a third less time than a call for each event.
    """
    events = list(map(object.__new__, repeat(ChangeEvent, count)))
    for put, column in zip(_SETTERS, columns, strict=True):
        deque(map(put, events, column), maxlen=0)
    return events
