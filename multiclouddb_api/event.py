"""One change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum
from itertools import repeat
from typing import Any

import attrs

from multiclouddb_api.address import ResourceAddress
from multiclouddb_api.key import MulticloudDbKey
from multiclouddb_api.redaction import shorten
from multiclouddb_api.slots import Slotted

__all__ = ["ChangeEvent", "ChangeType"]


class ChangeType(Enum):
    """The kind of a change of a document.

    Portability:
        Services differ in what they call one change: Spanner sends a transaction's net effect on a row and
        reports a replaced row as `CREATE`. Cosmos DB distinguishes the three only in its
        all-versions-and-deletes mode. Consumers that upsert are not affected. Warnings 1 and 18 in
        docs/configuration.md.
    """

    CREATE = "CREATE"
    """It did not exist before."""
    UPDATE = "UPDATE"
    """It existed, and was changed or replaced."""
    DELETE = "DELETE"
    """It was removed, by a delete or by its time-to-live."""


@attrs.frozen
class ChangeEvent(Slotted):
    """One create, update or delete of one document.

    Events have no validators, because one event is built for every change. Their fields nevertheless always
    have the right types.

    Attributes:
        event_id: The service's stable identity of this change: the same on every redelivery,
            through every scope and after a split, and unique in the collection.
        key: The document's key.
        type: Created, updated or deleted.
        timestamp: The commit time that the service reports; aware, UTC.
        new_item_state: The full document after the change; None on a delete, with `OMIT`, or
            where the service does not have it. Never a partial document.
        old_item_state: The full document before the change, or None; see `OldItemStateMode`.
        order_key: Text that orders the changes of one key: the later of two changes sorts higher, also across
            partitions.
        by_expiry: True for a delete by time-to-live, False for any other change, None if the service does not
            say.
        backfilled: True if a backfill made the event from the present state of a document.
        address: The collection of the document.
        partition_id: The physical partition that the event came from; it can be passed to
            `PhysicalPartition`.
        native: The vendor's own record, only with `include_native`.

    Portability:
        `timestamp` has whole seconds on DynamoDB and Cosmos DB, milliseconds on MongoDB, and may go back
        there: order changes of a key by `order_key`. Only DynamoDB, Spanner and Cosmos DB report `by_expiry`.
        `backfilled` is True only with `Snapshot()` and with Cosmos DB's opt-in. Warnings 8, 16, 17 and 23 in
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


class _Draft(Slotted):
    """An event while its attributes are set; it has the slots of an event."""

    __slots__ = tuple(field.name for field in attrs.fields(ChangeEvent))


def trusted_events(count: int, columns: Iterable[Iterable[Any]]) -> list[ChangeEvent]:
    """Events from columns, one for each attribute in order; each column has at least `count` values.

    Only for `mapping` modules: a call of the class for each event takes four times as long.

    Raises:
        ValueError: The number of columns is wrong, or a column is too short.
    """
    drafts: list[Any] = list(map(object.__new__, repeat(_Draft, count)))
    draft: Any
    for (  # the first target is set first, so the others are attributes of this draft
        draft, draft.event_id, draft.key, draft.type, draft.timestamp, draft.new_item_state,
        draft.old_item_state, draft.order_key, draft.by_expiry, draft.backfilled, draft.address,
        draft.partition_id, draft.native,
    ) in zip(drafts, *columns, strict=False):  # fmt: skip
        draft.__class__ = ChangeEvent
    if drafts and type(drafts[-1]) is _Draft:
        raise ValueError("a column is too short")
    return drafts
