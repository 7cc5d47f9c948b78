"""Damages rows of the table, one for each kind of difference that `multiclouddb verify` knows."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from demo.places import Places
from multiclouddb_verify import Kind
from multiclouddb_verify.delta import committed, quoted
from pyspark_multiclouddb import live_rows

__all__ = ["plant"]


def plant(places: Places) -> dict[str, Kind]:
    """Damage rows of flights that do not change any more; return the kinds by key."""
    # The first rows of the snapshot have its floor, and their flights are past.
    rows = live_rows(places.table).read_all().sort_by([("order_key", "ascending"), ("key", "ascending")])
    keys: list[str] = rows["key"].slice(0, len(Kind)).to_pylist()
    faults = dict(zip(keys, Kind, strict=True))
    for key, kind in list(faults.items()):
        if kind is Kind.GHOST:
            del faults[key]
            key = '{"origin":"JFK","date":"1913-01-01","carrier":"XX","flight":1}'
            faults[key] = kind
        _damage(places, key, kind)
    return faults


def _damage(places: Places, key: str, kind: Kind) -> None:
    table = DeltaTable(places.table)
    this = f"key = {quoted(key)}"

    def change(**values: str) -> Callable[[], object]:
        return lambda: table.update(predicate=this, updates=values)

    match kind:
        case Kind.MISSING:
            committed(table, lambda: table.delete(this))
        case Kind.STALE:
            committed(table, change(new_item_state="""'{"dest":"???"}'"""))
        case Kind.UNREADABLE:
            committed(table, change(new_item_state="'{not json'"))
        case Kind.TOMBSTONE:
            committed(table, change(new_item_state="NULL", _deleted_at="to_timestamp_micros(1)"))
        case Kind.BLOCKED:
            committed(table, change(order_key="'~'"))
        case Kind.DUPLICATE | Kind.GHOST:
            # A copy of any row has all columns.
            copied = table.to_pyarrow_dataset().scanner(use_threads=False).head(1).to_pylist()[0]
            copied |= {"key": key, "new_item_state": "{}", "_deleted_at": None}
            row = pa.Table.from_pylist([copied], schema=table.to_pyarrow_dataset().schema)
            committed(table, lambda: write_deltalake(table, row, mode="append"))
