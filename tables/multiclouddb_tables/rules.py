"""Defines the rules of the columns of a table, for all sinks: which are the sink's own, and what they need.

A sink merges by `key` and `order_key`, and leaves a tombstone for a delete. `batch.py` says what is known of
a batch, `changes.py` which of its rows count, and `merging.py` merges it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeVar

import pyarrow as pa

from multiclouddb_api import (
    ChangeType,
    ErrorReason,
    MulticloudDbError,
    invalid_request,
)
from multiclouddb_api.arrow import EVENT_SCHEMA
from multiclouddb_api.validators import type_name
from multiclouddb_spi.faults import key_digest

DELETED_AT: Final = "_deleted_at"
"""The column that contains the time at which the sink merged a delete; null in the row of a document."""

TIME: Final = pa.timestamp("us", tz="UTC")
"""The type of all times."""

CHANGE_TYPES: Final = tuple(kind.value for kind in ChangeType)
"""The values of the column `type`."""

NEEDED: Final = ("key", "order_key", "type")
"""The columns that a batch must have, with a value in each row."""

_ORIGIN: Final = ("event_id", "backfilled")
"""The columns that say whether a row comes from a snapshot, or from a feed of latest versions."""

_Kind = TypeVar("_Kind")
"""A type of a column, in the form of a kind of table."""

DOCUMENT: Final = "new_item_state"
"""The column with the document. A batch without this column is not checked."""

STALE_SINCE: Final = "_stale_since"
"""The column with the time from which the document of a row is older than its last change; null otherwise."""


_TOLD: Final = ("event_id", "type", "old_item_state", "by_expiry", "backfilled")
OF_THE_EVENT: Final = frozenset((*_TOLD, "database", "collection", "partition_id", "sequence"))
"""The columns of a batch that describe the change, and are not stored."""
PLACES: Final = ("partition_id", "database", "collection")
"""The columns that say which feed a row comes from."""
PAGE_SCHEMA: Final = pa.schema([field for field in EVENT_SCHEMA if field.name not in OF_THE_EVENT])
"""The columns that a table gets from a page."""


def check_new_columns(value: object) -> None:
    """Refuse a value of the option `new_columns` that it does not have."""
    if value not in ("add", "refuse"):
        raise unknown_option("new_columns", value, "add")


def unknown_option(name: str, value: object, first: str) -> MulticloudDbError:
    """Make the error for an option with a value that it does not have; `first` is one that it has."""
    return invalid_request(name, f"is {value!r}, a {type_name(value)}", f'pass "{first}" or "refuse"')


def check_needed(names: Sequence[str]) -> list[str]:
    """Refuse a batch without the columns of a change; return the columns to merge, and `type`."""
    for name in (*NEEDED, *_ORIGIN):
        if name not in names:
            problem = f"has no column {name}"
            if name in _ORIGIN:
                problem += ", without which the sink cannot tell rows of a snapshot from changes"
            way_out = "pass the rows of the data source; with .schema(…), name the columns of a change too"
            raise invalid_request("batch", problem, way_out)
    return [*(name for name in names if name not in OF_THE_EVENT), "type"]


def check_stored(schema: pa.Schema) -> None:
    """Refuse columns that the sink writes itself, and keys that are no text."""
    for name in (DELETED_AT, STALE_SINCE):
        if name in schema.names:
            raise invalid_request(
                "batch", f"has a column {name}", "the sink writes this column; rename yours"
            )
    for name in ("key", "order_key"):
        if not (pa.types.is_string(kind := schema.field(name).type) or pa.types.is_large_string(kind)):
            raise invalid_request(f"column {name}", f"is {kind}", "pass the column of the data source")


def check_cases(wanted: Iterable[str], known: Iterable[str] = ()) -> None:
    """Refuse a column whose name differs from another one only in upper and lower case."""
    spelled = {name.lower(): name for name in known}
    for name in wanted:
        other = spelled.setdefault(name.lower(), name)
        if other != name:
            raise invalid_request(
                f"column {name}",
                f"differs from the column {other} only in upper and lower case",
                "rename one of the two",
            )


def other_type(
    where: str, name: str, kinds: tuple[object, object], declared: Collection[str]
) -> MulticloudDbError:
    """Return the error of a column whose type the table does not have.

    Args:
        where: The name of the table.
        name: The name of the column.
        kinds: Its types in the batch and in the table.
        declared: The columns of the declaration.
    """
    mine, there = kinds
    if name in declared:
        problem = f"is declared so that it needs the type {mine}, and it is {there} in {where}"
        way_out = (
            "give it the declared type again there; or declare another type, which a refill fills; or "
            "declare the field under another name, with its path"
        )
    else:
        problem = f"is {mine} in the batch and {there} in {where}"
        way_out = "cast it, or give it another name"
    return invalid_request(f"column {name}", problem, way_out)


def lacking_columns(
    where: str,
    wanted: Mapping[str, _Kind],
    known: Mapping[str, _Kind],
    what_to_do: Literal["add", "refuse"],
    declared: Collection[str] = (),
) -> list[str]:
    """Return the names of the columns that a table lacks, from the types of both by name.

    Args:
        where: The name of the table.
        wanted: The columns of the batch.
        known: Those of the table.
        what_to_do: What to do about those that it lacks.
        declared: The columns of the declaration.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if a column has another type in the table, or is new and refused.
    """
    for name, kind in wanted.items():
        if known.get(name, kind) != kind:
            raise other_type(where, name, (kind, known[name]), declared)
    check_cases(wanted, known)
    new = [name for name in wanted if name not in known]
    refused = ", ".join(name for name in new if name not in (DELETED_AT, STALE_SINCE))
    if refused and what_to_do == "refuse":
        problem = f"has columns that {where} does not have: {refused}"
        way_out = "leave them out, or set new_columns='add'"
        raise invalid_request("batch", problem, way_out, ErrorReason.WRONG_COLUMNS)
    return new


def empty_partition(where: str, name: str, key: str) -> MulticloudDbError:
    """Make the error for an empty text by which a table is partitioned, where its format stores null for it.

    Args:
        where: The table.
        name: The column.
        key: The key of the row.
    """
    return invalid_request(
        f"column {name}",
        f"has an empty text in the row of the key {key_digest(key)}, but {where} is partitioned by it, and "
        "its format would store null",
        "write another value, or partition the table by another column",
        ErrorReason.MISFIT,
    )
