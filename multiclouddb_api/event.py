"""Defines the event that describes one change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import count, repeat
from operator import attrgetter
from types import NoneType
from typing import Any, Final

import attrs
from attrs import frozen

from multiclouddb_api.codec import plain_value
from multiclouddb_api.key import MulticloudDbKey
from multiclouddb_api.redaction import rfc3339, shorten
from multiclouddb_api.request import ResourceAddress
from multiclouddb_api.validators import Slotted, check_type, is_a, unknown_name

_NUMBERS: Final = count(1)
_DOCUMENT: Final = is_a(Mapping, NoneType)


class ChangeType(StrEnum):
    """The kind of change to a document.

    Portability:
        Services differ in what counts as one change, so treat creates and updates alike (upsert). Spanner
        reports only the net effect of a transaction on a row, and a replaced row as `CREATE`. Cosmos DB
        distinguishes the three kinds only in its all-versions-and-deletes mode. See warnings 1 and 18 in
        docs/configuration.md.
    """

    CREATE = "CREATE"
    """The document did not exist before."""
    UPDATE = "UPDATE"
    """The document existed, and was changed or replaced."""
    DELETE = "DELETE"
    """The document was deleted, also because its time-to-live had passed."""


@frozen
class ChangeEvent(Slotted):
    """One create, update or delete of one document.

    Portability:
        Order the changes of one key by `order_key` and never by `timestamp`, which is precise to a second on
        DynamoDB and Cosmos DB, and to a millisecond on MongoDB. On MongoDB, it may also be earlier than the
        `timestamp` of the event before. DynamoDB does not promise a time for each record: without one,
        `timestamp` is the last known time of the shard, or 1970-01-01 if there is none. Only DynamoDB,
        Spanner and Cosmos DB report `by_expiry`. `backfilled` is True only with `Snapshot()` and `lookup`,
        and on Cosmos DB if you opt into its backfill. See warnings 8, 16, 17 and 23 in docs/configuration.md.
    """

    event_id: str = attrs.field(validator=is_a(str))
    """The service's stable id for this change, unique within the collection. It stays the same on every
    redelivery, in every scope and after a split."""
    key: MulticloudDbKey = attrs.field(validator=is_a(MulticloudDbKey))
    """The document's key."""
    type: ChangeType = attrs.field(validator=is_a(ChangeType))
    """Whether the document was created, updated or deleted."""
    timestamp: datetime = attrs.field(validator=is_a(datetime))
    """The commit time that the service reports, as an aware datetime in UTC."""
    new_item_state: Mapping[str, Any] | None = attrs.field(repr=shorten, hash=False, validator=_DOCUMENT)
    """The full document after the change; None for a delete, with `OMIT`, or if the service does not have the
    document. A partial document is never returned."""
    old_item_state: Mapping[str, Any] | None = attrs.field(repr=shorten, hash=False, validator=_DOCUMENT)
    """The full document before the change, or None; see `OldItemStateMode`."""
    order_key: str = attrs.field(validator=is_a(str))
    """Text that orders the changes of one key, also those of different partitions: the later change has the
    greater text, compared by code points. The `order_key` of a looked-up row may be empty (`lookup`)."""
    by_expiry: bool | None = attrs.field(validator=is_a(bool, NoneType))
    """True for a delete by time-to-live, False for any other change, None if the service does not report
    which it was."""
    backfilled: bool = attrs.field(validator=is_a(bool))
    """True if this event was made from the current state of a document, and not from a change."""
    address: ResourceAddress = attrs.field(validator=is_a(ResourceAddress))
    """The address of the collection that contains the document."""
    partition_id: str = attrs.field(validator=is_a(str))
    """The id of the physical partition that contains the event; pass it to `PhysicalPartition`. For a row of
    a scan it is the id of a segment, and for a looked-up row it is empty."""
    native: Any = attrs.field(default=None, repr=False, eq=False, hash=False)
    """The vendor's own record, present only with `include_native`."""

    @classmethod
    def of(
        cls,
        key: Mapping[str, Any] | MulticloudDbKey,
        document: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> ChangeEvent:
        """Return an event for a test of your handler.

        Without a document it is a delete, else an update. Each call makes a later change than the call
        before, with an `event_id`, an `order_key` and a `timestamp` of its own.

        Args:
            key: The key, for example `{"id": "o-1"}`.
            document: The document after the change.
            **fields: Other fields of the event: `event_id="e-1"` twice is a change that comes again.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if a field has a wrong type.

        Examples:
            >>> handle(ChangeEvent.of({"id": "o-1"}, {"id": "o-1", "total": 5}))
        """
        check_type("key", key, Mapping, MulticloudDbKey)
        check_type("document", document, Mapping, NoneType)
        number = next(_NUMBERS)
        values = {
            "event_id": f"event-{number}",
            "type": ChangeType.DELETE if document is None else ChangeType.UPDATE,
            "timestamp": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number),
            "old_item_state": None,
            "order_key": f"{number:016}",
            "by_expiry": None,
            "backfilled": False,
            "address": ResourceAddress("main", "test"),
            "partition_id": "p0",
            **fields,
        }
        for name in values:
            if name not in _FIELDS:
                raise unknown_name("ChangeEvent.of: the field", name, _FIELDS)
        key = key if isinstance(key, MulticloudDbKey) else MulticloudDbKey(key)
        return cls(**{"key": key, "new_item_state": document, **values})

    def to_dict(self) -> dict[str, Any]:
        """Return the event as a dictionary of JSON's own types, ready for `json.dumps`.

        Its fields are `type`, `event_id`, `key` (an object), `timestamp` (RFC 3339, in UTC),
        `new_item_state`, `old_item_state`, `order_key`, `by_expiry`, `backfilled`, `address` (text) and
        `partition_id`. `multiclouddb tail --json` prints the same fields. A decimal becomes a number, and
        bytes become base64 text; use `event_to_json` to get back the exact values.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if a document contains a value that has no JSON form.
        """
        return {
            "type": self.type.value,
            "event_id": self.event_id,
            "key": plain_value(self.key.components),
            "timestamp": rfc3339(self.timestamp),
            "new_item_state": plain_value(self.new_item_state),
            "old_item_state": plain_value(self.old_item_state),
            "order_key": self.order_key,
            "by_expiry": self.by_expiry,
            "backfilled": self.backfilled,
            "address": str(self.address),
            "partition_id": self.partition_id,
        }


_FIELDS: Final = tuple(field.name for field in attrs.fields(ChangeEvent))


class _Draft(Slotted):
    """An event under construction, whose attributes can be set; it has the same slots as an event."""

    __slots__ = ChangeEvent.__slots__


def trusted_events(count: int, columns: Iterable[Iterable[Any]]) -> list[ChangeEvent]:
    """Build events from columns: one column for each attribute, in the order of the attributes."""
    drafts: list[Any] = list(map(object.__new__, repeat(_Draft, count)))
    draft: Any
    for (  # the first target is assigned first, so the other targets are attributes of this draft
        draft, draft.event_id, draft.key, draft.type, draft.timestamp, draft.new_item_state,
        draft.old_item_state, draft.order_key, draft.by_expiry, draft.backfilled, draft.address,
        draft.partition_id, draft.native,
    ) in zip(drafts, *columns, strict=False):  # fmt: skip
        draft.__class__ = ChangeEvent
    if drafts and type(drafts[-1]) is _Draft:
        raise ValueError("a column is too short")
    return drafts


def with_partition_ids(events: Sequence[ChangeEvent], partition_ids: Iterable[str]) -> list[ChangeEvent]:
    """Copy events that this library has built, each with another partition id; nothing is checked again."""
    columns: dict[str, Iterable[Any]] = {name: map(attrgetter(name), events) for name in _FIELDS}
    columns["partition_id"] = partition_ids
    return trusted_events(len(events), columns.values())
