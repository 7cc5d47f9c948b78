"""Maps the items of a change feed to events and to Arrow. The functions are pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import repeat
from operator import contains
from typing import TYPE_CHECKING, Any, Final

import orjson
from attrs import frozen

from multiclouddb_api import ChangeEvent, ChangeType, MulticloudDbError, encode_json
from multiclouddb_api.event import trusted_events
from multiclouddb_api.key import trusted_keys
from multiclouddb_cosmos.position import cursor_of
from multiclouddb_cosmos.records import (
    DAMAGED_ERRORS,
    KINDS,
    MARKED,
    MOST_SECONDS,
    REFUSED,
    Doubled,
    Item,
    Records,
    View,
    key_of,
    kind_of,
    name_of,
    order_keys,
    place_after,
    take_out_system,
    value_at,
)
from multiclouddb_spi import Cursor, Mapper, RecordFault
from multiclouddb_spi.faults import key_digest
from multiclouddb_spi.scan.contract import LATEST_MARK

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES: Final = dict(
    zip(KINDS, (ChangeType.CREATE, ChangeType.UPDATE, ChangeType.DELETE, ChangeType.DELETE), strict=True)
)
_TYPE_TEXTS: Final = {name: kind.value for name, kind in _TYPES.items()}
_JSON_NAMES: Final = {
    "str": "text", "int": "a number", "float": "a number", "NoneType": "null", "dict": "an object",
    "list": "an array",
}  # fmt: skip


class NoLsn(ValueError):  # noqa: N818 - its name stands in the message of the fault
    """Raised for an item without an LSN."""


def _check_numbered(records: Records) -> None:
    # The order key and the id of such an item would be guesses, and equal for several changes of one key.
    if records.inners is None and records.afters is None:
        return
    if not all(map(records.is_numbered, range(len(records)))):
        raise NoLsn


def _events(records: Records, view: View) -> list[ChangeEvent]:
    kinds = _kinds(records, view)
    documents = _documents(records, kinds)
    keys, orders = _keys_of(records, documents, view), _orders(records)
    columns: list[Iterable[Any]] = [
        _event_ids(records, documents, keys, orders, kinds),
        _keys(keys, len(view.paths), view),
        map(_TYPES.__getitem__, kinds),
        _times(_seconds(records)),
        *([repeat(None), repeat(None)] if not view.with_new else _states(documents, kinds, view)),
        orders,
        _expiries(records),
        repeat(False),
        repeat(view.address),
        repeat(view.partition_id),
        records.items if view.native else repeat(None),
    ]
    _check_numbered(records)
    return trusted_events(len(records), columns)


def _kinds(records: Records, view: View) -> list[str]:
    if view.usual is None:
        return [item["metadata"]["operationType"] for item in records.items]
    return [kind_of(item, view) for item in records.items] if view.marker else [view.usual] * len(records)


def _documents(records: Records, kinds: Sequence[str]) -> list[Any]:
    """Return the document of each item, and None for a delete that has none."""
    if records.told is not None:
        return records.items
    return [
        None if kind == "delete" else item["current"] for item, kind in zip(records.items, kinds, strict=True)
    ]


def _states(documents: list[Any], kinds: Sequence[str], view: View) -> tuple[list[Any], list[Any]]:
    """Return the new states and the last states, without the properties that the service added."""
    states = documents
    if view.usual is None or view.is_whole:
        states = [None if each is None else each.copy() for each in documents]
        take_out_system((each for each in states if each is not None), with_lsn=view.with_lsn)
    if Doubled in set(map(type, states)):
        states = [dict(each) if type(each) is Doubled else each for each in states]
    if not view.marker:
        return states, [None] * len(states)
    marked = [kind == MARKED for kind in kinds]
    return (
        [None if is_marked else state for state, is_marked in zip(states, marked, strict=True)],
        [state if is_marked else None for state, is_marked in zip(states, marked, strict=True)],
    )


def _seconds(records: Records) -> list[Any]:
    if records.told is not None:
        return [seconds for _, _, seconds in records.told]
    return [item["metadata"]["crts"] for item in records.items]


def _expiries(records: Records) -> list[bool]:
    if records.told is not None:
        return [False] * len(records)
    return [item["metadata"].get("timeToLiveExpired") is True for item in records.items]


def _keys_of(records: Records, documents: Sequence[Any], view: View) -> list[dict[str, Any]]:
    if len(view.paths) == 1 and len(view.paths[0]) == 1 and view.names[0] != "id":
        (name,) = view.names
        try:
            values, ids = [each[name] for each in documents], [each["id"] for each in documents]
        except (LookupError, TypeError):  # a delete contains no document
            return [key_of(item, view) for item in records.items]
        # Values that are not text need more steps.
        if {*map(type, values), *map(type, ids)} == {str}:
            return [{name: value, "id": each} for value, each in zip(values, ids, strict=True)]
    return [key_of(item, view) for item in records.items]


def _keys(keys: Sequence[Mapping[str, Any]], count: int, view: View) -> Iterable[Any]:
    names = len({*view.names, "id"})
    if set(map(len, keys)) <= {names}:
        return trusted_keys(keys, count)
    # If the document lacks its partition key, the key is only the `id`.
    return [trusted_keys([key], max(1, count - names + len(key)))[0] for key in keys]


def _event_ids(
    records: Records,
    documents: Sequence[Any],
    keys: Sequence[Mapping[str, Any]],
    orders: Sequence[str],
    kinds: Sequence[str],
) -> list[str]:
    if records.told is not None:  # a version of an item appears once, and never in the other feed
        return [
            f"{LATEST_MARK}{order}:{rid}:{etag[1:-1]}"
            for order, (rid, etag, _) in zip(orders, records.told, strict=True)
        ]
    found = []
    for index, (lsn, kind, document) in enumerate(zip(records.lsns, kinds, documents, strict=True)):
        if kind != "delete":  # with the service's own ids for the document and its version
            found.append(f"{lsn}:{kind}:{document['_rid']}:{document['_etag'][1:-1]}")
            continue
        # Two deletes of the same key in one transaction differ only in their place within the transaction.
        place, previous = records.number(index), records.items[index]["metadata"].get("previousImageLSN", "")
        text = f"{lsn}:delete:{name_of(keys[index])}:{previous}"
        found.append(f"{text}:{place}" if place else text)
    return found


def _times(times: Sequence[Any]) -> list[datetime]:
    """Convert Unix seconds to datetime objects; items of the same second share one object."""
    moments = {seconds: datetime.fromtimestamp(seconds, UTC) for seconds in set(times)}
    return [moments[seconds] for seconds in times]


def _orders(records: Records) -> list[str]:
    return order_keys(records.lsns) if records.orders is None else records.orders


def _arrow(records: Records, view: View) -> pa.RecordBatch:
    import pyarrow as pa

    from multiclouddb_api.arrow import EVENT_SCHEMA

    count, text, kinds, orders = len(records), pa.string(), _kinds(records, view), _orders(records)
    documents = _documents(records, kinds)
    keys, none = _keys_of(records, documents, view), pa.nulls(count, text)
    new, old = _states(documents, kinds, view) if view.with_new else ([], [])
    columns = [
        pa.array(_event_ids(records, documents, keys, orders, kinds), text),
        pa.array(map(_TYPE_TEXTS.__getitem__, kinds), text),
        _texts(keys),
        _moments(_seconds(records)),
        _texts(new) if view.with_new else none,
        _texts(old) if view.with_new and view.marker else none,
        pa.array(orders, text),
        pa.array(_expiries(records), pa.bool_()),
        pa.repeat(pa.scalar(False), count),
        *(
            pa.repeat(pa.scalar(value, text), count)
            for value in (view.address.database, view.address.collection, view.partition_id)
        ),
    ]
    _check_numbered(records)
    return pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)


def _moments(times: Sequence[Any]) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    moment = pa.timestamp("us", tz="UTC")
    if set(map(type, times)) == {int} and min(times) >= 0 and max(times) <= MOST_SECONDS:
        return pc.cast(pa.array(times, pa.timestamp("s", tz="UTC")), moment)
    return pa.array(_times(times), moment)


_LONG_INTEGER: Final = re.compile(rb"[0-9]{19}").search


def _texts(values: Sequence[Any]) -> pa.Array:
    """Return the texts that `encode_json` writes."""
    import pyarrow as pa

    try:
        texts: list[Any] = list(map(orjson.dumps, values))
    except TypeError:  # an integer of more than 64 bits
        texts = [None if value is None else encode_json(value) for value in values]
    else:
        # A name that begins with $ is written in a different form, and so is an integer that only an unsigned
        # one of 64 bits can hold.
        if any(map(contains, texts, repeat(b"$"))) or any(map(_LONG_INTEGER, texts)):
            texts = [
                encode_json(value) if b'"$' in text or _LONG_INTEGER(text) else text
                for value, text in zip(values, texts, strict=True)
            ]
        if None in values:
            texts = [None if value is None else text for value, text in zip(values, texts, strict=True)]
    return pa.array(texts, pa.string())


# -- Faults

# `encode_json` refuses a text with half a surrogate pair.
_UNMAPPED: Final = (*DAMAGED_ERRORS, MulticloudDbError)


def _mapped(
    records: Records, start: int, stop: int, mapper: CosmosMapper, make: Callable[[Records, View], Any]
) -> Any:
    part, view = records.part(start, stop), mapper.view
    try:
        return make(part, view)
    except _UNMAPPED:
        pass
    for index in range(start, stop):
        try:
            make(records.part(index, index + 1), view)
        except _UNMAPPED as error:
            raise _fault(records, index, mapper, type(error).__name__) from None
    raise _fault(records, start, mapper, "it is not clear which item is damaged")


def _fault(records: Records, index: int, mapper: CosmosMapper, reason: str) -> RecordFault:
    item, view = records.items[index], mapper.view
    text = f"it cannot be decoded as an item of a change feed ({reason})"
    if view.usual is not None and kind_of(item, view) == REFUSED:
        kind = type(value_at(item, view.marker)).__name__
        path = "".join(f"/{name}" for name in view.marker)
        text = (
            f"the property {path} of the item {_named(item, view)} is {_JSON_NAMES.get(kind, kind)}, and "
            "not true or false; write the item with true or false, or without the property"
        )
    return RecordFault(index, f"LSN {records.lsns[index]}", text, mapper.cursor_after(records, index + 1))


def _named(item: Item, view: View) -> str:
    try:
        return key_digest(orjson.dumps(key_of(item, view)).decode())
    except DAMAGED_ERRORS:
        return "whose key cannot be decoded"


@frozen
class CosmosMapper(Mapper):
    """Maps the records of one range to events and to Arrow."""

    view: View  # the properties that are the same for all events of the range

    def cursor_after(self, records: Records, count: int) -> Cursor:
        """Return the position after the first `count` records."""
        return cursor_of(place_after(records, count))

    def events(self, records: Records, start: int, stop: int) -> list[ChangeEvent]:
        """Map records to events."""
        found: list[ChangeEvent] = _mapped(records, start, stop, self, _events)
        return found

    def arrow(self, records: Records, start: int, stop: int) -> pa.RecordBatch:
        """Map records to Arrow."""
        return _mapped(records, start, stop, self, _arrow)
