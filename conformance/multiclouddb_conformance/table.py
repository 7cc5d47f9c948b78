"""A table in memory that a sink keeps equal to a collection, for `verify`; its rows can be damaged."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import attrs
import pyarrow as pa

from multiclouddb_api import ChangeEvent, ChangeType, decode_json, encode_json
from multiclouddb_tables.contract import Fix, Own
from multiclouddb_tables.mark import Expected, FeedSource, FoundTable, TableMark
from multiclouddb_verify import DifferenceKind

__all__ = ["MemoryTable", "TableRow"]

_ROWS: Final = 7
_NAMES: Final = ("key", "order_key", "state", "deleted")
_TYPES: Final = (pa.string(), pa.string(), pa.string(), pa.bool_())


@attrs.define
class TableRow:
    """One row; a tombstone has no text."""

    key: str
    order_key: str
    text: str | None
    deleted: bool = False


def _nothing() -> None:
    pass


class MemoryTable:
    """A target of `verify`.

    Attributes:
        table: The rows; a damaged table may have several rows of one key.
        tick: Called between any two steps of a read or a repair.
        guards: False to repair without looking at what the table contains.
        written: The number of repaired rows.
    """

    name = "memory:table"

    def __init__(self, tick: Callable[[], None] = _nothing) -> None:
        self.table: list[TableRow] = []
        self.tick, self.guards, self.written = tick, True, 0
        self._mark: TableMark | None = None

    def merge(self, events: Sequence[ChangeEvent]) -> None:
        """Merge events as a sink does."""
        for event in events:
            source = FeedSource.of_row(event.partition_id, event.address)
            if self._mark is None and source is not None:
                self._mark = TableMark(source, _NAMES)
            gone = event.type is ChangeType.DELETE
            text = None if gone else encode_json(event.new_item_state).decode()
            row = TableRow(encode_json(event.key.components).decode(), event.order_key, text, gone)
            there = [at for at, each in enumerate(self.table) if each.key == row.key]
            if not there:
                self.table.append(row)
            for at in there:
                if row.order_key > self.table[at].order_key:
                    self.table[at] = attrs.evolve(row)

    def columns(self) -> Mapping[str, pa.DataType | None]:
        """Return no columns: a row has its document."""
        return {}

    def rows(self, keys: Sequence[str] | None = None, *, own: Own = False) -> Iterator[pa.RecordBatch]:
        """Return the rows as they are now."""
        del own
        self.tick()
        wanted = None if keys is None else set(keys)
        rows = [attrs.astuple(row) for row in self.table if wanted is None or row.key in wanted]
        for start in range(0, len(rows), _ROWS):
            self.tick()
            columns = zip(*rows[start : start + _ROWS], strict=True)
            arrays = [pa.array(column, kind) for column, kind in zip(columns, _TYPES, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=_NAMES)

    def position(self) -> None:
        """Return None: the table stores no position."""

    def found(self, since: FoundTable | None = None) -> FoundTable:
        """Return the feed of the merged events; the table is always the same one."""
        del since
        return FoundTable(self._mark)

    def complete(self, expected: Expected) -> None:
        """Remove the time from the mark."""
        self._mark = expected.completed(self._mark) or self._mark

    def fix(self, fixes: Sequence[Fix], expected: Expected) -> int:
        """Repair rows that are still as they were seen."""
        self.tick()
        expected.check(self.found(), self.name)
        before = self.written
        for fix in fixes:
            there = [row for row in self.table if row.key == fix.key]
            if self.guards and sorted(row.order_key for row in there) != sorted(fix.seen):
                continue
            if fix.removes:
                if fix.beside is None or [
                    row.order_key for row in self.table if row.key == fix.beside[0]
                ] == [fix.beside[1]]:
                    self.table = [row for row in self.table if row.key != fix.key]
                    self.written += 1
            elif there or fix.text is not None:
                self.table = [row for row in self.table if row.key != fix.key]
                self.table.append(TableRow(fix.key, fix.order_key, fix.text, fix.text is None))
                self.written += 1
        self.tick()
        return self.written - before

    def documents(self) -> dict[str, object]:
        """Return the documents by the texts of their keys."""
        live = [row for row in self.table if not row.deleted]
        found = {row.key: decode_json(row.text or "null") for row in live}
        assert len(found) == len(live), "a key has several rows"
        return found

    def plant(
        self, alive: Sequence[str], dead: Sequence[str], kinds: Sequence[DifferenceKind], dice: random.Random
    ) -> dict[str, DifferenceKind]:
        """Damage a row of each kind.

        Args:
            alive: Keys of documents that exist, at least as many as kinds.
            dead: Keys of documents that were deleted.
            kinds: The kinds of the damage.
            dice: Chooses the rows.

        Returns:
            The kinds by key.
        """
        rows = {row.key: row for row in self.table}
        free, gone = dice.sample(list(alive), len(alive)), list(dead)
        faults = {}
        for kind in kinds:
            row = rows[gone.pop() if kind is DifferenceKind.GHOST else free.pop()]
            match kind:
                case DifferenceKind.MISSING:
                    self.table.remove(row)
                case DifferenceKind.GHOST:
                    row.text, row.deleted = '{"v": 1}', False
                case DifferenceKind.STALE:
                    document = decode_json(row.text or "")
                    row.text = encode_json({**document, "n": str(document["n"])}).decode()
                case DifferenceKind.UNREADABLE:
                    row.text = "{not json"
                case DifferenceKind.DUPLICATE:
                    self.table.append(attrs.evolve(row))
                case DifferenceKind.TOMBSTONE:
                    row.text, row.deleted = None, True
                case DifferenceKind.BLOCKED:
                    row.order_key = "~"
                case DifferenceKind.FOREIGN:
                    # Another program has written it, with a space after the colon.
                    spelt = json.dumps(decode_json(row.key))
                    row = attrs.evolve(row, key=spelt, order_key=dice.choice(["", row.order_key]))
                    self.table.append(row)
            faults[row.key] = kind
        return faults
