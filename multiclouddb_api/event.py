"""One change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum
from itertools import repeat
from types import NoneType
from typing import Any, Final

import attrs

from multiclouddb_api.address import ResourceAddress
from multiclouddb_api.key import MulticloudDbKey
from multiclouddb_api.redaction import shorten
from multiclouddb_api.slots import Slotted
from multiclouddb_api.validators import is_a

__all__ = ["ChangeEvent", "ChangeType"]

_DOCUMENT: Final = is_a(Mapping, NoneType)


class ChangeType(Enum):
    """The kind of a change of a document.

    Portability:
        Services differ in what they report as one change: Spanner reports the net effect of a transaction on
        a row, and reports a replaced row as `CREATE`. Cosmos DB distinguishes create, update and delete only
        in its all-versions-and-deletes mode. Consumers that upsert do not depend on these differences.
        See warnings 1 and 18 in docs/configuration.md.
    """

    CREATE = "CREATE"
    """The document did not exist before."""
    UPDATE = "UPDATE"
    """The document existed, and was changed or replaced."""
    DELETE = "DELETE"
    """The document was removed by a delete or by its time-to-live."""


@attrs.frozen
class ChangeEvent(Slotted):
    """One create, update or delete of one document.

    Events are not validated, because one event is built for every change. The fields of an event still always
    have the right types.

    Portability:
        `timestamp` has whole seconds on DynamoDB and Cosmos DB, milliseconds on MongoDB, and may go back
        there. Order the changes of one key by `order_key`. Only DynamoDB, Spanner and Cosmos DB report
        `by_expiry`. `backfilled` is True only with `Snapshot()`, and on Cosmos DB with its opt-in. See
        warnings 8, 16, 17 and 23 in docs/configuration.md.
    """

    event_id: str = attrs.field(validator=is_a(str))
    """The service's stable id for this change. It is unique in the collection, and stays the same on
    every redelivery, in every scope and after a split."""
    key: MulticloudDbKey = attrs.field(validator=is_a(MulticloudDbKey))
    """The document's key."""
    type: ChangeType = attrs.field(validator=is_a(ChangeType))
    """Whether the document was created, updated or deleted."""
    timestamp: datetime = attrs.field(validator=is_a(datetime))
    """The commit time that the service reports, as an aware datetime in UTC."""
    new_item_state: Mapping[str, Any] | None = attrs.field(repr=shorten, hash=False, validator=_DOCUMENT)
    """The full document after the change; None on a delete, with `OMIT`, or if the service does not have
    the document. A partial document is never returned."""
    old_item_state: Mapping[str, Any] | None = attrs.field(repr=shorten, hash=False, validator=_DOCUMENT)
    """The full document before the change, or None; see `OldItemStateMode`."""
    order_key: str = attrs.field(validator=is_a(str))
    """Text that orders the changes of one key: the later of two changes has the greater text, even if the
    changes come from different partitions."""
    by_expiry: bool | None = attrs.field(validator=is_a(bool, NoneType))
    """True for a delete by time-to-live, False for any other change, None if the service does not say."""
    backfilled: bool = attrs.field(validator=is_a(bool))
    """True if a backfill made this event from the current state of a document."""
    address: ResourceAddress = attrs.field(validator=is_a(ResourceAddress))
    """The address of the collection that contains the document."""
    partition_id: str = attrs.field(validator=is_a(str))
    """The id of the physical partition that the event came from; pass it to `PhysicalPartition`."""
    native: Any = attrs.field(default=None, repr=False, eq=False, hash=False)
    """The vendor's own record, present only with `include_native`."""


class _Draft(Slotted):
    """An event whose attributes are being set; it has the same slots as an event."""

    __slots__ = tuple(field.name for field in attrs.fields(ChangeEvent))


def trusted_events(count: int, columns: Iterable[Iterable[Any]]) -> list[ChangeEvent]:
    """Build events from columns, one column for each attribute in order.

    Each column has at least `count` values. Use this only in `mapping` modules, because calling the class for
    each event takes four times as long.

    Raises:
        ValueError: Raised if the number of columns is wrong, or a column is too short.
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
