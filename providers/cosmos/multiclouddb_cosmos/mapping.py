"""Maps the items of a change feed to events and to Arrow. The functions are pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import repeat
from operator import contains
from typing import TYPE_CHECKING, Any, Final

import orjson
from attrs import frozen

from multiclouddb_api import ChangeType, encode_json
from multiclouddb_api.key import MulticloudDbKey, trusted_keys
from multiclouddb_cosmos.position import cursor_of
from multiclouddb_cosmos.records import (
    KINDS,
    MARKED,
    MOST_SECONDS,
    REFUSED,
    CosmosView,
    Doubled,
    Halved,
    Item,
    Records,
    key_of,
    kind_of,
    name_of,
    order_keys,
    place_after,
    take_out_system,
    value_at,
)
from multiclouddb_spi import DAMAGED, ColumnMapper, Columns, Cursor, RecordFault, reason_of
from multiclouddb_spi.faults import key_digest
from multiclouddb_spi.scan.contract import LATEST_MARK

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES: Final = dict(
    zip(KINDS, (ChangeType.CREATE, ChangeType.UPDATE, ChangeType.DELETE, ChangeType.DELETE), strict=True)
)
_QUOTE: Final = '"'
"""Surrounds each `_etag` today, but their form is the service's own.

https://learn.microsoft.com/azure/cosmos-db/change-feed-modes#parse-the-response-object
"""
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


def _kinds(records: Records, view: CosmosView) -> list[str]:
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


def _states(documents: list[Any], kinds: Sequence[str], view: CosmosView) -> tuple[list[Any], list[Any]]:
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


def _expiries(records: Records) -> list[bool | None]:
    if records.told is not None:
        return [False] * len(records)
    flags = [item["metadata"].get("timeToLiveExpired") for item in records.items]
    # The vendor's page quotes the word: 'true'. Nothing is known of a flag that is neither true nor false.
    return [False if flag is None else flag if type(flag) is bool else None for flag in flags]


def _keys_of(records: Records, documents: Sequence[Any], view: CosmosView) -> list[dict[str, Any]]:
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


def _keys(keys: Sequence[Mapping[str, Any]], count: int, view: CosmosView) -> Iterable[Any]:
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
            f"{LATEST_MARK}{order}:{rid}:{etag.strip(_QUOTE)}"
            for order, (rid, etag, _) in zip(orders, records.told, strict=True)
        ]
    found = []
    for index, (lsn, kind, document) in enumerate(zip(records.lsns, kinds, documents, strict=True)):
        if kind != "delete":  # with the service's own ids for the document and its version
            found.append(f"{lsn}:{kind}:{document['_rid']}:{document['_etag'].strip(_QUOTE)}")
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


def _moments(times: Sequence[Any]) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    moment = pa.timestamp("us", tz="UTC")
    if set(map(type, times)) == {int} and min(times) >= 0 and max(times) <= MOST_SECONDS:
        return pc.cast(pa.array(times, pa.timestamp("s", tz="UTC")), moment)
    return pa.array(_times(times), moment)


def _text(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_STRICT_INTEGER)
    except TypeError:
        return encode_json(value)


def _texts(values: Sequence[Any]) -> pa.Array:
    """Return the texts that `encode_json` writes."""
    import pyarrow as pa

    try:
        # This refuses integers of more than 53 bits, because those of more than 63 are written in a different
        # form, and to search the texts for them takes longer than to write the texts.
        texts: list[Any] = list(map(orjson.dumps, values, repeat(None), repeat(orjson.OPT_STRICT_INTEGER)))
    except TypeError:
        texts = list(map(_text, values))
    # A name that begins with $ is written in a different form.
    if any(map(contains, texts, repeat(b"$"))):
        texts = [
            encode_json(value) if b'"$' in text else text for value, text in zip(values, texts, strict=True)
        ]
    if None in values:
        texts = [None if value is None else text for value, text in zip(values, texts, strict=True)]
    return pa.array(texts, pa.string())


@frozen
class CosmosMapper(ColumnMapper):
    """Maps the records of one range to events and to Arrow."""

    view: CosmosView  # what all events of the range share

    def cursor_after(self, records: Records, count: int) -> Cursor:
        """Return the position after the first `count` records."""
        return cursor_of(place_after(records, count))

    def columns(self, records: Records, start: int, stop: int, *, texts: bool) -> Columns:
        """Return the columns of records."""
        view, part = self.view, records.part(start, stop)
        if Halved in set(map(type, part.items)):
            raise ValueError("a text has no UTF-8")
        kinds = _kinds(part, view)
        documents = _documents(part, kinds)
        keys, orders = _keys_of(part, documents, view), _orders(part)
        states: tuple[Iterable[Any], Iterable[Any]] = repeat(None), repeat(None)
        if view.with_new:
            new, old = _states(documents, kinds, view)
            states = (_texts(new), _texts(old) if view.marker else repeat(None)) if texts else (new, old)
        found = Columns(
            _event_ids(part, documents, keys, orders, kinds),
            _texts(keys) if texts else _keys(keys, len(view.paths), view),
            map(_TYPES.__getitem__, kinds),
            _moments(_seconds(part)) if texts else _times(_seconds(part)),
            orders,
            *states,
            _expiries(part),
            natives=part.items if view.native else repeat(None),
        )
        _check_numbered(part)
        return found

    def fault(self, records: Records, index: int, error: Exception | None) -> RecordFault:
        """Describe an item that cannot be decoded."""
        item, view = records.items[index], self.view
        text = f"it cannot be decoded as an item of a change feed ({reason_of(error)})"
        if isinstance(item, Halved):
            text = (
                "a text in it is no UTF-8 or has half of a surrogate pair, which no form of an event can hold"
            )
        if view.usual is not None and kind_of(item, view) == REFUSED:
            kind = type(value_at(item, view.marker)).__name__
            path = "".join(f"/{name}" for name in view.marker)
            text = (
                f"the property {path} of the item {_named(item, view)} is {_JSON_NAMES.get(kind, kind)}, and "
                "not true or false; write the item with true or false, or without the property"
            )
        where = self.named(f"LSN {records.lsns[index]}", lambda: MulticloudDbKey(key_of(item, view)))
        return RecordFault(index, where, text, self.cursor_after(records, index + 1))


def _named(item: Item, view: CosmosView) -> str:
    try:
        return key_digest(orjson.dumps(key_of(item, view)).decode())
    except DAMAGED:
        return "whose key cannot be decoded"
