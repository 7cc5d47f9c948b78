"""Maps changes of rows to events and to Arrow. The functions are pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attrs
import orjson
from attrs import define, frozen

from multiclouddb_api import ChangeType, MulticloudDbKey, ResourceAddress
from multiclouddb_api.key import trusted_keys
from multiclouddb_spanner.position import Place, cursor_of, fixed_text, moment_of, ordered
from multiclouddb_spanner.records import DataRecord, Mod, Shape
from multiclouddb_spanner.values import Converter, normal
from multiclouddb_spi import ColumnMapper, Columns, Cursor, RecordFault, reason_of
from multiclouddb_spi import View as CommonView
from multiclouddb_spi.cursor import Cut

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES: Final = {"INSERT": ChangeType.CREATE, "UPDATE": ChangeType.UPDATE, "DELETE": ChangeType.DELETE}
_WITH_ROW: Final = frozenset({"NEW_ROW", "NEW_ROW_AND_OLD_VALUES"})
_WITH_OLD: Final = frozenset({"OLD_AND_NEW_VALUES", "NEW_ROW_AND_OLD_VALUES"})


class RowChange(NamedTuple):
    """One change of a row. Each change becomes one event."""

    record: DataRecord
    nth: int


@frozen(eq=False)
class RowChanges(Sequence[RowChange]):
    """The changes of one batch."""

    begin: Place
    items: list[RowChange]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]


@frozen
class SpannerView(CommonView):
    """What all events of one partition share."""

    key_names: tuple[str, ...]  # empty if the feed reads several tables
    whole: bool = True  # False if the stream does not watch all columns

    def names_of(self, record: DataRecord) -> tuple[str, ...]:
        """Return the key columns of a record's table, in the order of the key."""
        return self.key_names or record.key_names or tuple(record.shape.key_names)


def has_new(record: DataRecord) -> bool:
    """Return True if a record contains the whole new rows, or is a delete, for which no new row exists."""
    return record.kind != "UPDATE" or record.capture in _WITH_ROW


def has_old(record: DataRecord) -> bool:
    """Return True if a record contains the whole old rows, or is an insert, for which no old row exists."""
    if record.kind == "UPDATE":
        return record.capture == "NEW_ROW_AND_OLD_VALUES"
    return record.kind == "INSERT" or record.capture in _WITH_OLD


def place_after(begin: Place, changes: Sequence[RowChange], count: int) -> Place:
    """Return the position after the first `count` changes."""
    at = changes[count - 1].record.at
    delivered = dict(begin.cut.delivered) if begin.cut.at == at else {}
    marks: dict[str, tuple[str, int]] = {}
    index = count - 1
    while index >= 0 and changes[index].record.at == at:
        record, last = changes[index]
        mark = (ordered(record.sequence), last + 1)
        marks[record.transaction] = max(mark, marks.get(record.transaction, mark))
        index = _first_of(changes, index) - 1
    return Place(Cut(at, {**delivered, **marks}))


def _first_of(changes: Sequence[RowChange], index: int) -> int:
    """Return the index of the first change that belongs to the same record as the given change."""
    record, nth = changes[index]
    return bisect_left(changes, True, max(0, index - nth), index, key=lambda each: each.record is record)


# -- Rows


def _loaded(texts: Any) -> dict[str, Any]:
    found = orjson.loads(texts) if type(texts) is str else dict(texts or {})
    if type(found) is not dict:
        raise TypeError("no row")
    return found


def _converted(row: dict[str, Any], converters: Mapping[str, Converter]) -> dict[str, Any]:
    for name, convert in converters.items():
        value = row.get(name)
        if value is not None:
            row[name] = convert(value)
    return row


@define
class _Parts:
    """The columns that need the parsed rows."""

    mods: list[tuple[DataRecord, Mod]] = attrs.field(factory=list)
    keys: list[dict[str, Any]] = attrs.field(factory=list)
    news: list[dict[str, Any] | None] = attrs.field(factory=list)
    olds: list[dict[str, Any] | None] = attrs.field(factory=list)


def _parts(
    changes: Iterable[RowChange], view: SpannerView, converters_of: Callable[[Shape], Mapping[str, Converter]]
) -> _Parts:
    found = _Parts()
    for record, index in changes:
        mod, shape, kind = record.mods[index], record.shape, record.kind
        if shape.problem is not None:
            raise ValueError(shape.problem)
        converters = converters_of(shape)
        keys = _converted(_loaded(mod.keys), converters)
        key = stored = {name: keys[name] for name in view.names_of(record)}
        if shape.keys:
            key = {name: normal(value, shape.keys.get(name)) for name, value in stored.items()}
        new = old = None
        if view.with_new and view.whole and shape.whole and kind != "DELETE" and has_new(record):
            new = {**stored, **_converted(_loaded(mod.new), converters)}
        if view.with_old and view.whole and shape.whole and kind != "INSERT" and has_old(record):
            # If a column has not changed, only the new row contains its value.
            rest = {} if kind == "DELETE" else _converted(_loaded(mod.new), converters)
            old = {**stored, **rest, **_converted(_loaded(mod.old), converters)}
        found.mods.append((record, mod))
        found.keys.append(key)
        found.news.append(new)
        found.olds.append(old)
    return found


def _names(changes: Sequence[RowChange]) -> tuple[list[str], list[str]]:
    ids, orders = [], []
    previous: DataRecord | None = None
    head = order = ""
    for record, index in changes:
        if record is not previous:
            previous, commit = record, fixed_text(record.commit)
            head = f"{commit}|{record.transaction}|{record.sequence}|"
            order = f"{commit}|{ordered(record.sequence)}|"
        ids.append(f"{head}{index}")
        orders.append(f"{order}{index:06}")
    return ids, orders


def _moments(changes: Iterable[RowChange]) -> list[datetime]:
    """Return the times of changes; all changes of one record get the same datetime object."""
    previous: int | None = None
    moments: list[datetime] = []
    for record, _ in changes:
        if record.at != previous:
            previous, moment = record.at, moment_of(record.at)
        moments.append(moment)
    return moments


def _native(record: DataRecord, mod: Mod) -> dict[str, Any]:
    """Return the service's record, containing only this change."""
    parts = zip(("keys", "new_values", "old_values"), mod, strict=True)
    return {**record.native(), "mods": [{name: _loaded(part) for name, part in parts}]}


def _instants(changes: Iterable[RowChange]) -> pa.Array:
    import pyarrow as pa

    return pa.array([record.at for record, _ in changes], pa.int64()).cast(pa.timestamp("us", tz="UTC"))


def _texts(rows: Iterable[dict[str, Any] | None]) -> pa.Array:
    import pyarrow as pa

    # Arrow at once, so that the texts of the columns do not exist together.
    return pa.array([None if row is None else orjson.dumps(row) for row in rows], pa.string())


@frozen
class SpannerMapper(ColumnMapper):
    """Maps the changes of one partition to events and to Arrow."""

    view: SpannerView

    def cursor_after(self, records: RowChanges, count: int) -> Cursor:
        return cursor_of(place_after(records.begin, records.items, count))

    def columns(self, records: RowChanges, start: int, stop: int, *, texts: bool) -> Columns:
        changes = records.items[start:stop]
        ids, orders = _names(changes)
        parts = _parts(changes, self.view, attrgetter("json" if texts else "python"))
        addresses: Any = None
        if self.view.address.collection is None:
            database, tables = self.view.address.database, [record.table for record, _ in changes]
            found = {table: ResourceAddress(database, table) for table in set(tables)}
            addresses = (repeat(database), tables) if texts else map(found.__getitem__, tables)
        return Columns(
            ids,
            _texts(parts.keys) if texts else trusted_keys(parts.keys),
            [_TYPES[record.kind] for record, _ in changes],
            _instants(changes) if texts else _moments(changes),
            orders,
            _texts(parts.news) if texts else parts.news,
            _texts(parts.olds) if texts else parts.olds,
            [record.by_expiry for record, _ in changes],
            addresses=addresses,
            natives=[_native(record, mod) for record, mod in parts.mods]
            if self.view.native and not texts
            else repeat(None),
        )

    def fault(self, records: RowChanges, index: int, error: Exception | None) -> RecordFault:
        record = records.items[index].record
        problem = record.shape.problem or f"it cannot be decoded as a change of a row ({reason_of(error)})"
        where = self.named(
            f"{record.commit}, transaction {record.transaction}, record {record.sequence}",
            lambda: self._key(records.items[index]),
        )
        after = place_after(records.begin, records.items, index + 1)
        return RecordFault(index, where, problem, cursor_of(after))

    def _key(self, change: RowChange) -> MulticloudDbKey:
        record, nth = change
        found = _converted(_loaded(record.mods[nth].keys), record.shape.python)
        forms = record.shape.keys
        names = self.view.names_of(record)
        return MulticloudDbKey({name: normal(found[name], forms.get(name)) for name in names})
