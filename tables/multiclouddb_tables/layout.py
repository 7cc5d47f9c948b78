"""Defines the columns of a sink's table: which are the sink's own, and how `verify` reads and repairs a row.

| column | content |
|---|---|
| `key` | the key as JSON text |
| `order_key` | of two changes of one key, the later has the higher one |
| `timestamp` | the time of the last change |
| `new_item_state` | the document as JSON text; null in a tombstone |
| `_deleted_at` | the time at which the delete was merged; null in the row of a document |
| `_stale_since` | see `rules`; only in tables that need it |

All other columns belong to the user.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from multiclouddb_api import (
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    MulticloudDbError,
    encode_json,
    invalid_request,
)
from multiclouddb_tables.column_values import ColumnType, as_compared, own_state
from multiclouddb_tables.rules import DELETED_AT, DOCUMENT, STALE_SINCE

if TYPE_CHECKING:
    from multiclouddb_tables.contract import Fix
    from multiclouddb_tables.mark import TableMark

__all__ = [
    "GROUP_BYTES", "HIDDEN", "NO_ORDER", "check_columns", "check_fixes", "check_table", "fixed_row",
    "grouped", "missing", "next_count", "own_names", "read_rows", "rows_at_once", "size_of", "state_of",
    "used",
]  # fmt: skip

NO_ORDER: Final = "~null"
"""Stands for an `order_key` that is null: no change is higher, so the row refuses all of them."""

HIDDEN: Final = ("key", "order_key", "timestamp", DELETED_AT, STALE_SINCE)
"""The columns that a sink needs; no document is parsed into them."""
_READ: Final = ("key", "order_key", DELETED_AT)
GROUP_BYTES: Final = 16 << 20
"""From how many bytes on rows are not read together with further ones."""
_Row = TypeVar("_Row", bound=Sequence[Any])


def check_table(where: str, names: Sequence[str], *, own: bool, argument: str = "table") -> None:
    """Refuse to read a table that no sink has written, or one without documents.

    Args:
        where: The name of the table, for the message.
        names: The names of its columns.
        own: True if the table's own columns are read instead of the documents.
        argument: The argument with which the user has named the table.
    """
    check_columns(where, names, _READ, argument=argument)
    if not own and DOCUMENT not in names:
        raise invalid_request(
            argument,
            f"{where} has no column {DOCUMENT}",
            "pass transform=, a function that makes the values of the table's columns from a document",
        )


def check_columns(
    where: str, names: Sequence[str], needed: Sequence[str], *, argument: str = "table"
) -> None:
    """Refuse a table without columns that every sink writes; see `check_table`."""
    for name in needed:
        if name not in names:
            raise invalid_request(
                argument,
                f"{where} has no column {name}, so no sink has written it",
                "give a table of a sink",
                ErrorReason.WRONG_RESOURCE,
            )


def check_fixes(
    where: str,
    names: Sequence[str],
    fixes: Sequence[Fix],
    mark: TableMark | None,
    *,
    argument: str = "table",
) -> None:
    """Refuse repairs that would leave columns of the sink as they are; see `check_table`."""
    ours = [*names] if mark is None else mark.columns
    declared = () if mark is None or mark.declared is None else mark.declared.names
    extra = [name for name in own_names(names) if name in ours and name not in declared]
    if extra and all(fix.columns is None for fix in fixes):
        raise invalid_request(
            argument,
            f"{where} has columns of its own: {', '.join(extra)}",
            "pass transform=, a function that returns their values for a document",
        )


def missing(
    where: str, way_out: str = "let a merge create it", *, argument: str = "table"
) -> MulticloudDbError:
    """Make the error for a table that does not exist."""
    return MulticloudDbError(
        f"{argument}: there is no table {where}; correct the name, or {way_out}",
        ErrorDetail(category=ErrorCategory.NOT_FOUND),
    )


def used(where: str, name: str, problem: str) -> MulticloudDbError:
    """Make the error for a declared column that cannot be made anew, because something depends on it.

    Args:
        where: The name of the table.
        name: The column.
        problem: What the database says.
    """
    return invalid_request(
        f"column {name}",
        f"cannot be made anew in {where} ({problem}); nothing was merged",
        "drop what uses the column, such as a view, an index or a generated column, and make it again after "
        "the refill; or pass the declaration that the table has",
    )


def own_names(names: Sequence[str]) -> list[str]:
    """Return the columns that the sink does not write itself."""
    return [name for name in names if name not in HIDDEN and name != DOCUMENT]


def state_of(values: Mapping[str, Any], types: Mapping[str, ColumnType]) -> str:
    """Return the values of a table's own columns as the text of one object, as `Target.rows` promises."""
    found = {name: as_compared(value, types.get(name)) for name, value in values.items() if name != DOCUMENT}
    text = encode_json(own_state(found)).decode()
    if DOCUMENT not in values:
        return text
    # The document stays the text that is stored. One that cannot be decoded makes the whole row unreadable.
    document = values[DOCUMENT]
    return f'{{"columns":{text},"document":{"null" if document is None else document}}}'


def read_rows(keys: Any, orders: Any, states: Any, deleted: Any) -> pa.RecordBatch:
    """Return rows with the columns that `Target.rows` promises.

    Args:
        keys: The keys.
        orders: The order keys, with `NO_ORDER` for null.
        states: The documents, or what `state_of` returns; null where there is none.
        deleted: True for each tombstone.
    """
    text = pa.string()
    columns = [
        each if isinstance(each, pa.Array) else pa.array(each, kind)
        for each, kind in ((keys, text), (orders, text), (states, text), (deleted, pa.bool_()))
    ]
    return pa.RecordBatch.from_arrays(columns, names=["key", "order_key", "state", "deleted"])


def grouped(rows: Iterable[_Row], most: int) -> Iterator[list[_Row]]:
    """Put rows into groups of at most so many rows, and of few bytes where their values are large.

    Args:
        rows: The rows.
        most: The number of rows.
    """
    found, size = list[_Row](), 0
    for row in rows:
        found.append(row)
        size += size_of(row)
        if len(found) == most or size >= GROUP_BYTES:
            yield found
            found, size = [], 0
    if found:
        yield found


def size_of(row: Sequence[Any]) -> int:
    """Return about how many bytes the values of a row have that may be large."""
    return sum(len(value) for value in row if isinstance(value, str | bytes))


def next_count(count: int, most: int, sizes: Iterable[int]) -> int:
    """Return how many rows to ask for next, because the size of a row shows only when it has come.

    Args:
        count: How many rows were asked for last.
        most: The number of rows that one request takes.
        sizes: The sizes of the rows that have come, in bytes.
    """
    return rows_at_once(min(2 * count, most), max(sizes, default=0))


def rows_at_once(most: int, size: int) -> int:
    """Return how many rows of a size in bytes to read at once, and at most."""
    return max(1, min(most, GROUP_BYTES // max(1, size)))


def fixed_row(fix: Fix, emptied: Iterable[str]) -> dict[str, Any]:
    """Return the values that a repair writes into a row; a table may lack some of the columns.

    Args:
        fix: The repair.
        emptied: The columns that a tombstone leaves empty, as `mark.emptied` returns them for the table.
    """
    return {
        **(dict.fromkeys(emptied) if fix.text is None else {}),
        DOCUMENT: fix.text,
        **(fix.columns or {}),
        "key": fix.key,
        "order_key": fix.order_key,
        "timestamp": fix.timestamp,
        DELETED_AT: fix.timestamp if fix.text is None else None,
        STALE_SINCE: None,
    }
