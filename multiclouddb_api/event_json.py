"""Writes events and pages as JSON, and reads them back.

`codec` encodes the documents and the values of keys. The components of a key are written as an array of
`[name, value]` pairs, because their order matters. `ChangeEvent.native` is not written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from types import NoneType
from typing import Any, Final

import attrs

from multiclouddb_api.codec import decode_json, encode_json
from multiclouddb_api.errors import MulticloudDbError, invalid_request
from multiclouddb_api.event import ChangeEvent, ChangeType
from multiclouddb_api.key import MulticloudDbKey
from multiclouddb_api.page import (
    BackfillDone,
    ChangeFeedPage,
    ChildPartition,
    Dropped,
    FeedEnded,
    Gap,
    Invalidated,
    Notice,
    OperationDiagnostics,
    PartitionFoundLate,
    RecordSkipped,
    Renamed,
    SnapshotStarted,
)
from multiclouddb_api.redaction import rfc3339
from multiclouddb_api.request import ResourceAddress
from multiclouddb_api.snapshot import SnapshotOrder, SnapshotProgress
from multiclouddb_api.validators import check_type, to_utc

_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_NOTICES: Final[dict[str, type[Notice]]] = {
    kind.__name__: kind
    for kind in (
        Dropped,
        Renamed,
        Invalidated,
        FeedEnded,
        Gap,
        RecordSkipped,
        PartitionFoundLate,
        SnapshotStarted,
        BackfillDone,
    )
}


def event_to_json(event: ChangeEvent) -> bytes:
    """Return one event as a JSON object in UTF-8, without its `native` field.

    Args:
        event: The event.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if a document contains a value that has no JSON form.
    """
    try:
        fields = _event_out(event)
    except (attrs.exceptions.NotAnAttrsClassError, AttributeError, KeyError):
        check_type("event", event, ChangeEvent)
        raise
    return encode_json(fields)


def event_from_json(text: bytes | str) -> ChangeEvent:
    """Return the event that `event_to_json` has written; its `native` field is None.

    Args:
        text: The JSON, as text or as UTF-8 bytes.

    Raises:
        MulticloudDbError: `INVALID_REQUEST`, with the field, if the text is damaged, lacks a field or has an
            unknown one.
    """
    return _event_in("event", decode_json(text))


def page_to_json(page: ChangeFeedPage) -> bytes:
    """Return one page as a JSON object in UTF-8; the `type` of a notice is its class name.

    Args:
        page: The page.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if a document contains a value that has no JSON form.
    """
    check_type("page", page, ChangeFeedPage)
    fields = _plain(page)
    fields["events"] = [_event_out(event) for event in page.events]
    fields["child_partitions"] = [_plain(child) for child in page.child_partitions]
    fields["notices"] = [{"type": type(notice).__name__, **_plain(notice)} for notice in page.notices]
    fields["diagnostics"] = _plain(page.diagnostics)
    if page.diagnostics.snapshot is not None:
        progress = page.diagnostics.snapshot
        fields["diagnostics"]["snapshot"] = {**_plain(progress), "order": progress.order.value}
    if page.diagnostics.watermark is not None:
        fields["diagnostics"]["watermark"] = _moment_out("watermark", page.diagnostics.watermark)
    if page.diagnostics.read_until is not None:
        fields["diagnostics"]["read_until"] = _moment_out("read_until", page.diagnostics.read_until)
    for field in ("partitions_read_until", "partitions_watermark"):
        moments = getattr(page.diagnostics, field)
        fields["diagnostics"][field] = {name: _moment_out(field, each) for name, each in moments.items()}
    return encode_json(fields)


def page_from_json(text: bytes | str) -> ChangeFeedPage:
    """Return the page that `page_to_json` has written.

    Args:
        text: The JSON, as text or as UTF-8 bytes.

    Raises:
        MulticloudDbError: `INVALID_REQUEST`, with the field, if the text is damaged, lacks a field or has an
            unknown one.
    """
    page = _Fields("page", decode_json(text), ChangeFeedPage)
    return ChangeFeedPage(
        events=page.each("events", _event_in),
        continuation_token=page.take("continuation_token", str),
        idle=page.take("idle", bool),
        partition_retired=page.take("partition_retired", bool),
        child_partitions=page.each("child_partitions", _child_in),
        notices=page.each("notices", _notice_in),
        diagnostics=_diagnostics_in(page.path("diagnostics"), page.take("diagnostics", dict)),
        resumed_from=page.take("resumed_from", str, NoneType),
        poll_after_seconds=page.take("poll_after_seconds", float, int),
    )


def _plain(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}


def _event_out(event: ChangeEvent) -> dict[str, Any]:
    fields = _plain(event)
    del fields["native"]
    fields["key"] = {
        "components": [[name, value] for name, value in event.key.components.items()],
        "partition_components": event.key.partition_components,
    }
    fields["type"] = event.type.value
    fields["timestamp"] = _moment_out("timestamp", event.timestamp)
    fields["address"] = _plain(event.address)
    return fields


def _moment_out(name: str, moment: datetime) -> str:
    return rfc3339(to_utc(name, moment))


class _Fields:
    """Reads one JSON object that must contain exactly the fields of a class."""

    def __init__(self, where: str, value: Any, kind: type, extra: str = "", without: str = "") -> None:
        if type(value) is not dict:
            raise _damaged(where, f"must be an object, not {_kind(value)}")
        names = {field.name for field in attrs.fields(kind)} - {without} | ({extra} if extra else set())
        for name in value:
            if name not in names:
                raise _damaged(f"{where}.{name}", "is not a known field")
        for name in sorted(names):
            if name not in value:
                raise _damaged(f"{where}.{name}", "is missing")
        self._where = where
        self._value = value

    def path(self, name: str) -> str:
        return f"{self._where}.{name}"

    def take(self, name: str, *kinds: type) -> Any:
        value = self._value[name]
        if type(value) not in kinds:
            wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            raise _damaged(self.path(name), f"must be {wanted}, not {_kind(value)}")
        return value

    def each(self, name: str, read: Callable[[str, Any], Any]) -> tuple[Any, ...]:
        items = self.take(name, list)
        return tuple(read(f"{self.path(name)}[{index}]", item) for index, item in enumerate(items))

    def moment(self, name: str) -> datetime:
        return _moment_in(self.path(name), self.take(name, str))

    def moment_or_none(self, name: str) -> datetime | None:
        return None if self.take(name, str, type(None)) is None else self.moment(name)


def _event_in(where: str, value: Any) -> ChangeEvent:
    event = _Fields(where, value, ChangeEvent, without="native")
    kinds = {kind.value: kind for kind in ChangeType}
    kind = event.take("type", str)
    if kind not in kinds:
        raise _damaged(event.path("type"), f"must be one of {', '.join(kinds)}, not {kind[:40]!r}")
    address = _Fields(event.path("address"), event.take("address", dict), ResourceAddress)
    return ChangeEvent(
        event_id=event.take("event_id", str),
        key=_key_in(event.path("key"), event.take("key", dict)),
        type=kinds[kind],
        timestamp=event.moment("timestamp"),
        new_item_state=event.take("new_item_state", dict, type(None)),
        old_item_state=event.take("old_item_state", dict, type(None)),
        order_key=event.take("order_key", str),
        by_expiry=event.take("by_expiry", bool, type(None)),
        backfilled=event.take("backfilled", bool),
        address=ResourceAddress(
            address.take("database", str, type(None)), address.take("collection", str, type(None))
        ),
        partition_id=event.take("partition_id", str),
    )


def _key_in(where: str, value: Any) -> MulticloudDbKey:
    key = _Fields(where, value, MulticloudDbKey)
    components: dict[str, Any] = {}
    for place, item in enumerate(key.take("components", list)):
        if not (type(item) is list and len(item) == 2 and type(item[0]) is str):
            raise _damaged(f"{where}.components[{place}]", "must be an array of a name and a value")
        if item[0] in components:
            raise _damaged(f"{where}.components[{place}]", f"names {item[0]!r} again")
        components[item[0]] = item[1]
    return MulticloudDbKey(components, key.take("partition_components", int))


def _child_in(where: str, value: Any) -> ChildPartition:
    child = _Fields(where, value, ChildPartition)
    return ChildPartition(
        partition_id=child.take("partition_id", str),
        parents=child.each("parents", _text_in),
        continuation_token=child.take("continuation_token", str),
    )


def _notice_in(where: str, value: Any) -> Notice:
    name = value.get("type") if type(value) is dict else None
    kind = _NOTICES.get(name) if type(name) is str else None
    if kind is None:
        raise _damaged(f"{where}.type", f"must be one of {', '.join(_NOTICES)}")
    fields = _Fields(where, value, kind, extra="type")
    kinds = {field.name: bool if field.type == "bool" else str for field in attrs.fields(kind)}
    return kind(**{name: fields.take(name, each) for name, each in kinds.items()})


def _diagnostics_in(where: str, value: Any) -> OperationDiagnostics:
    # Pages written by versions that did not support snapshots lack this field.
    measures = _Fields(where, {"snapshot": None, **value}, OperationDiagnostics)
    number = (float, int, type(None))
    errors = measures.take("partition_errors", dict)
    headrooms = measures.take("partitions_headroom_seconds", dict)

    def moments(field: str) -> dict[str, datetime]:
        path = measures.path(field)
        found = measures.take(field, dict).items()
        return {name: _moment_in(f"{path}[{name!r}]", text) for name, text in found}

    return OperationDiagnostics(
        watermark=measures.moment_or_none("watermark"),
        read_until=measures.moment_or_none("read_until"),
        read_until_estimated=measures.take("read_until_estimated", bool),
        partitions_read_until=moments("partitions_read_until"),
        partitions_watermark=moments("partitions_watermark"),
        partitions_headroom_seconds={
            name: _number_in(f"{measures.path('partitions_headroom_seconds')}[{name!r}]", seconds)
            for name, seconds in headrooms.items()
        },
        lag_seconds=measures.take("lag_seconds", *number),
        retention_headroom_seconds=measures.take("retention_headroom_seconds", *number),
        requests=measures.take("requests", int),
        native_charge=measures.take("native_charge", *number),
        retries=measures.take("retries", int),
        open_watches=measures.take("open_watches", int),
        found_late=measures.take("found_late", int),
        partition_errors={
            name: _text_in(f"{where}.partition_errors[{name!r}]", text) for name, text in errors.items()
        },
        elapsed_seconds=measures.take("elapsed_seconds", float, int),
        snapshot=_progress_in(measures.path("snapshot"), measures.take("snapshot", dict, type(None))),
    )


def _progress_in(where: str, value: Any) -> SnapshotProgress | None:
    if value is None:
        return None
    progress = _Fields(where, value, SnapshotProgress)
    orders = {order.value: order for order in SnapshotOrder}
    order = progress.take("order", str)
    if order not in orders:
        raise _damaged(progress.path("order"), f"must be one of {', '.join(orders)}")
    return SnapshotProgress(
        order=orders[order],
        segments_done=progress.take("segments_done", int),
        segments=progress.take("segments", int, type(None)),
        rows=progress.take("rows", int),
        records=progress.take("records", int, type(None)),
        units=progress.take("units", int, type(None)),
    )


def _moment_in(where: str, value: Any) -> datetime:
    text = _text_in(where, value)
    try:
        if _MOMENT.fullmatch(text):
            return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise _damaged(where, f"is not a valid time ({error})") from error
    raise _damaged(where, "is not RFC 3339 with a time zone")


def _text_in(where: str, value: Any) -> str:
    if type(value) is not str:
        raise _damaged(where, f"must be text, not {_kind(value)}")
    return value


def _number_in(where: str, value: Any) -> float:
    if type(value) not in (float, int):
        raise _damaged(where, f"must be a number, not {_kind(value)}")
    return float(value)


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _damaged(where: str, problem: str) -> MulticloudDbError:
    return invalid_request(where, problem, "pass what event_to_json or page_to_json returned")
