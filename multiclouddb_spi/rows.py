"""Makes the events of rows: of a scan, and of single rows that were looked up.

A row has no commit of its own to take an id, a time and an order key from, so it is stamped with those of its
scan. `RowMapper.columns` is the only place where that happens.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import blake2b
from itertools import repeat
from typing import Any, Final

import orjson
from attrs import frozen

from multiclouddb_api import ChangeType, MulticloudDbKey
from multiclouddb_spi.columns import Column, ColumnMapper, Columns, reason_of
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.faults import RecordFault
from multiclouddb_spi.segment import Scan, Segment

LOOKUP_PLAN: Final = "lookup"
"""The id of the scan in the event ids of rows that were looked up."""
_DIGEST_BYTES: Final = 16
_INT64: Final = 2**63


@frozen(eq=False)
class Rows:
    """What a provider found in some rows.

    Attributes:
        keys: The keys; for Arrow as JSON text (see `Columns`).
        documents: The documents; without it, all are None.
        canonical: The texts that `MulticloudDbKey.canonical` returns for the keys, if the provider has them
            or makes them faster (`canonical_texts`). Needed if the keys are JSON text.
        order_keys: The order keys, only if each row has its own (`ScanFloor.ROW`); None if all rows have the
            floor of the scan.
        natives: The service's own records; without it, all are None.
    """

    keys: Column
    documents: Column = repeat(None)  # noqa: RUF009 - it has no state
    canonical: Iterable[bytes] | None = None
    order_keys: Column | None = None
    natives: Column = repeat(None)  # noqa: RUF009


class RowMapper(ColumnMapper):
    """Maps the rows of a segment. A provider only adds what it found in them, and which key each has.

    Attributes:
        segment: The segment, at any position.
    """

    segment: Segment

    @abstractmethod
    def rows(self, records: Any, start: int, stop: int, *, texts: bool) -> Rows | None:
        """Return what the `records` from `start` to `stop` contain; about `texts` see `ColumnMapper.columns`.

        With `texts`, the answer may be None: the provider has no code for Arrow.
        """

    @abstractmethod
    def place_after(self, records: Any, count: int) -> str:
        """Return `Segment.after` for the position after the first `count` of `records` (at least one)."""

    def name_of(self, records: Any, index: int) -> str:
        """Name the record at `index` of `records`, which cannot be decoded, without its content."""
        return f"row {index} of the batch"

    def why(self, error: Exception | None) -> str:
        """Return why a record cannot be decoded, without its content; `error` as in `ColumnMapper.fault`."""
        return f"it cannot be decoded ({reason_of(error)})"

    def columns(self, records: Any, start: int, stop: int, *, texts: bool) -> Columns | None:
        """Stamp the rows: each is a `CREATE` with the scan's moment and, unless it has its own, its floor.

        See `rows` for `records`, `start`, `stop` and `texts`.
        """
        found = self.rows(records, start, stop, texts=texts)
        if found is None:
            return None
        scan, keys, canonical = self.segment.scan, found.keys, found.canonical
        if canonical is None:
            keys = list(keys)
            canonical = [key.canonical() for key in keys]
        return Columns(
            event_ids_of(scan, canonical, self.segment.collection),
            keys,
            repeat(ChangeType.CREATE),
            repeat(scan.moment),
            repeat(scan.floor) if found.order_keys is None else found.order_keys,
            found.documents,
            backfilled=repeat(True),
            natives=found.natives,
        )

    def cursor_after(self, records: Any, count: int) -> Cursor:
        """Return the position in the segment after the first `count` of `records`."""
        return self.segment.at(self.place_after(records, count)).cursor

    def fault(self, records: Any, index: int, error: Exception | None) -> RecordFault:
        """Describe the record at `index` of `records`; for `error` see `ColumnMapper.fault`."""
        where, after = self.name_of(records, index), self.cursor_after(records, index + 1)
        return RecordFault(index, where, self.why(error), after)


def looked_up(moment: datetime, shared: Cursor = None) -> Segment:
    """Return the segment with which a `RowMapper` maps rows that were looked up; they have no order key.

    Args:
        moment: The time of the look-up, by the service's clock.
        shared: See `Scan`.
    """
    return Scan("", moment, shared, LOOKUP_PLAN).segment("")


def event_ids_of(scan: Scan, canonical: Iterable[bytes], collection: str = "") -> list[str]:
    """Return the event ids of rows; an id is the same whenever this scan reads the row again.

    Args:
        scan: The scan.
        canonical: The texts of the rows' keys (`MulticloudDbKey.canonical`).
        collection: `Segment.collection`; rows of two collections of a database may have the same key.
    """
    # To copy a hash object takes less time than to make one.
    begin, ids = f"{scan.partition_id}:", []
    start = blake2b(collection.encode(), digest_size=_DIGEST_BYTES).copy
    for text in canonical:
        digest = start()
        digest.update(text)
        ids.append(begin + digest.hexdigest())
    return ids


def canonical_texts(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[bytes]:
    """Return the texts of many keys; faster than `MulticloudDbKey.canonical` for text and integers.

    Args:
        names: The names of the key's components, of which the first is the partition key.
        columns: The values of each component, one for each row.
    """
    if not all(map(_is_plain, columns)):
        rows = zip(*columns, strict=True)
        return [MulticloudDbKey(dict(zip(names, row, strict=True))).canonical() for row in rows]
    begin = b"[1,[["
    parts: list[Iterable[bytes]] = []
    for name, column in zip(names, columns, strict=True):
        parts += [repeat(b"%b%b," % (begin, orjson.dumps(name))), map(orjson.dumps, column)]
        begin = b"],["
    return list(map(b"".join, zip(*parts, repeat(b"]]]"), strict=False)))


def _is_plain(column: Sequence[Any]) -> bool:
    """Return True if each value has the same text in JSON as in `MulticloudDbKey.canonical`."""
    kinds = set(map(type, column))
    if kinds <= {str}:
        return True
    return kinds <= {str, int} and all(-_INT64 <= each < _INT64 for each in column if type(each) is int)
