"""Maps the items of a change feed to events and to Arrow. The functions are pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import attrs
import orjson

from multiclouddb_api import ChangeEvent, ChangeType, encode_json
from multiclouddb_api.event import trusted_events
from multiclouddb_api.key import trusted_keys
from multiclouddb_cosmos.position import cursor_of
from multiclouddb_cosmos.records import (
    DAMAGED_ERRORS,
    KINDS,
    MARKED,
    REFUSED,
    Item,
    Records,
    View,
    key_of,
    name_of,
    order_key,
    place_after,
    value_at,
)
from multiclouddb_spi import Cursor, Mapper, RecordFault
from multiclouddb_spi.scan.contract import LATEST_MARK

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES: Final = dict(
    zip(KINDS, (ChangeType.CREATE, ChangeType.UPDATE, ChangeType.DELETE, ChangeType.DELETE), strict=True)
)
_TYPE_TEXTS: Final = {name: kind.value for name, kind in _TYPES.items()}
_DELETES: Final = ("delete", MARKED)
_JSON_NAMES: Final = {
    "str": "text", "int": "a number", "float": "a number", "NoneType": "null", "dict": "an object",
    "list": "an array",
}  # fmt: skip
_SYSTEM: Final = frozenset({"_rid", "_self", "_etag", "_attachments", "_ts", "_lsn"})
"""The properties that the service adds to a document."""


def _events(records: Records, view: View) -> list[ChangeEvent]:
    items = records.items
    datas = [item["metadata"] for item in items]
    keys = _keys_of(items, view)
    types = [_TYPES[data["operationType"]] for data in datas]
    orders = _orders(records)
    columns: list[Iterable[Any]] = [
        _event_ids(records, datas, keys, orders, view),
        _keys(keys, len(view.paths), view),
        types,
        _times(datas),
        _states(items, datas) if view.with_new else repeat(None),
        _marked_states(items, datas) if view.with_new and view.marker else repeat(None),
        orders,
        [data.get("timeToLiveExpired") is True for data in datas],
        repeat(False),
        repeat(view.address),
        repeat(view.partition_id),
        items if view.native else repeat(None),
    ]
    return trusted_events(len(items), columns)


def _keys_of(items: Sequence[Item], view: View) -> list[dict[str, Any]]:
    if len(view.paths) == 1 and len(view.paths[0]) == 1 and view.names[0] != "id":
        (name,) = view.names
        try:
            currents = [item["current"] for item in items]
            values, ids = [each[name] for each in currents], [each["id"] for each in currents]
        except (LookupError, TypeError):  # a delete contains no document
            return [key_of(item, view) for item in items]
        # Values that are not text need more steps.
        if {*map(type, values), *map(type, ids)} == {str}:
            return [{name: value, "id": each} for value, each in zip(values, ids, strict=True)]
    return [key_of(item, view) for item in items]


def _keys(keys: Sequence[Mapping[str, Any]], count: int, view: View) -> Iterable[Any]:
    names = len({*view.names, "id"})
    if set(map(len, keys)) <= {names}:
        return trusted_keys(keys, count)
    # If the document lacks its partition key, the key is only the `id`.
    return [trusted_keys([key], max(1, count - names + len(key)))[0] for key in keys]


def _event_ids(
    records: Records,
    datas: Sequence[Mapping[str, Any]],
    keys: Sequence[Mapping[str, Any]],
    orders: Sequence[str],
    view: View,
) -> list[str]:
    if view.latest:  # a version of an item appears once, and never in the other feed
        currents = [item["current"] for item in records.items]
        return [
            f"{LATEST_MARK}{order}:{current['_rid']}:{current['_etag'][1:-1]}"
            for order, current in zip(orders, currents, strict=True)
        ]
    found = []
    for index, (item, data, key) in enumerate(zip(records.items, datas, keys, strict=True)):
        kind, lsn = data["operationType"], records.lsns[index]
        if kind != "delete":
            current = item["current"]  # with the service's own ids for the document and its version
            found.append(f"{lsn}:{kind}:{current['_rid']}:{current['_etag'][1:-1]}")
            continue
        # Two deletes of the same key in one transaction differ only in their place within the transaction.
        place = records.number(index)
        text = f"{lsn}:delete:{name_of(key)}:{data.get('previousImageLSN', '')}"
        found.append(f"{text}:{place}" if place else text)
    return found


def _times(datas: Sequence[Mapping[str, Any]]) -> list[datetime]:
    """Convert Unix seconds to datetime objects; items of the same second share one object."""
    previous, moment, moments = None, None, []
    for data in datas:
        seconds = data["crts"]
        if moment is None or seconds != previous:
            previous, moment = seconds, datetime.fromtimestamp(seconds, UTC)
        moments.append(moment)
    return moments


def _states(items: Sequence[Item], datas: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
    """Return the documents as the application wrote them, without the properties that the service added."""
    states: list[dict[str, Any] | None] = []
    for item, data in zip(items, datas, strict=True):
        if data["operationType"] in _DELETES:
            states.append(None)
            continue
        state: dict[str, Any] = item["current"].copy()
        try:
            del state["_rid"], state["_self"], state["_etag"], state["_attachments"], state["_ts"]
        except KeyError:
            for name in _SYSTEM:
                state.pop(name, None)
        state.pop("_lsn", None)
        states.append(state)
    return states


def _marked_states(items: Sequence[Item], datas: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
    """Return the last state of each item that is marked as deleted, and None for the others."""
    return [
        _states([item], [{"operationType": "replace"}])[0] if data["operationType"] == MARKED else None
        for item, data in zip(items, datas, strict=True)
    ]


def _orders(records: Records) -> list[str]:
    return records.orders if records.orders is not None else list(map(order_key, records.lsns))


def _arrow(records: Records, view: View) -> pa.RecordBatch:
    import pyarrow as pa

    from multiclouddb_api.arrow import EVENT_SCHEMA

    items = records.items
    datas = [item["metadata"] for item in items]
    keys = _keys_of(items, view)
    count, text, orders = len(items), pa.string(), _orders(records)
    columns = [
        pa.array(_event_ids(records, datas, keys, orders, view), text),
        pa.array([_TYPE_TEXTS[data["operationType"]] for data in datas], text),
        pa.array(_texts(keys), text),
        pa.array(_times(datas), pa.timestamp("us", tz="UTC")),
        pa.array(_texts(_states(items, datas)), text) if view.with_new else pa.nulls(count, text),
        pa.array(_texts(_marked_states(items, datas)), text)
        if view.with_new and view.marker
        else pa.nulls(count, text),
        pa.array(orders, text),
        pa.array([data.get("timeToLiveExpired") is True for data in datas], pa.bool_()),
        pa.repeat(pa.scalar(False), count),
        *(
            pa.repeat(pa.scalar(value, text), count)
            for value in (view.address.database, view.address.collection, view.partition_id)
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)


def _texts(values: Sequence[Mapping[str, Any] | None]) -> list[bytes | None]:
    """Return the texts that `encode_json` writes."""
    try:
        texts = list(map(orjson.dumps, values))
    except TypeError:  # an integer of more than 64 bits
        return [None if value is None else encode_json(value) for value in values]
    # A name that begins with $ is written in a different form.
    return [
        None if value is None else text if b'"$' not in text else encode_json(value)
        for value, text in zip(values, texts, strict=True)
    ]


# -- Faults


def _mapped(records: Records, start: int, stop: int, view: View, make: Callable[[Records, View], Any]) -> Any:
    part = records.part(start, stop)
    try:
        return make(part, view)
    except DAMAGED_ERRORS:
        pass
    for index in range(start, stop):
        try:
            make(records.part(index, index + 1), view)
        except DAMAGED_ERRORS as error:
            raise _fault(records, index, view, type(error).__name__) from None
    raise _fault(records, start, view, "it is not clear which item is damaged")


def _fault(records: Records, index: int, view: View, reason: str) -> RecordFault:
    item = records.items[index]
    text = f"it cannot be decoded as an item of a change feed ({reason})"
    if isinstance(item, dict) and item.get("metadata", {}).get("operationType") == REFUSED:
        kind = type(value_at(item["current"], view.marker)).__name__
        path = "".join(f"/{name}" for name in view.marker)
        text = (
            f"the property {path} of the item {_key_text(item, view)} is {_JSON_NAMES.get(kind, kind)}, and "
            "not true or false; write the item with true or false, or without the property"
        )
    return RecordFault(
        index,
        f"LSN {records.lsns[index]}",
        text,
        cursor_of(place_after(records, index + 1)),
    )


def _key_text(item: Item, view: View) -> str:
    try:
        return orjson.dumps(key_of(item, view)).decode()
    except DAMAGED_ERRORS:
        return "whose key cannot be decoded"


@attrs.frozen
class CosmosMapper(Mapper):
    """Maps the records of one range to events and to Arrow."""

    view: View  # the properties that are the same for all events of the range

    def cursor_after(self, records: Records, count: int) -> Cursor:
        """Return the position after the first `count` records."""
        return cursor_of(place_after(records, count))

    def events(self, records: Records, start: int, stop: int) -> list[ChangeEvent]:
        """Map records to events."""
        found: list[ChangeEvent] = _mapped(records, start, stop, self.view, _events)
        return found

    def arrow(self, records: Records, start: int, stop: int) -> pa.RecordBatch:
        """Map records to Arrow."""
        return _mapped(records, start, stop, self.view, _arrow)
