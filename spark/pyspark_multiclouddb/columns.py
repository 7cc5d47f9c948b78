"""Checks whether a Delta table can store the columns of a batch, and quotes their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from multiclouddb_api import MulticloudDbError, invalid_request

if TYPE_CHECKING:
    from deltalake import Field

__all__ = ["check_cases", "check_kinds", "in_backticks", "stored_fields"]

_CAST: Final = "cast it, or leave it out"


def stored_fields(schema: pa.Schema) -> dict[str, Field]:
    """Return the columns in the form in which a Delta table declares them.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if a Delta table cannot store a column.
    """
    from deltalake import Schema

    fields = {}
    for each in schema:
        try:
            [fields[each.name]] = Schema.from_arrow(pa.schema([each])).fields
        except Exception as error:  # deltalake raises no narrower class
            raise _cannot_be_stored(each) from error
        # deltalake creates such a table, but cannot read it.
        if "timestamp_nanos" in _json(fields[each.name].type):
            raise _cannot_be_stored(each)
    return fields


def check_cases(wanted: Iterable[str], known: Iterable[str] = ()) -> None:
    """Refuse a column whose name differs from another one only in upper and lower case.

    Args:
        wanted: The names of the columns of the batch.
        known: The names of the columns of the table.

    Raises:
        MulticloudDbError: `INVALID_REQUEST`, because Delta and Spark do not distinguish names that
            differ only in upper and lower case.
    """
    spelled = {name.lower(): name for name in known}
    for name in wanted:
        other = spelled.setdefault(name.lower(), name)
        if other != name:
            raise invalid_request(
                f"column {name}",
                f"differs from the column {other} only in upper and lower case",
                "rename one of the two",
            )


def check_kinds(wanted: Mapping[str, Field], known: Mapping[str, Field], where: str) -> None:
    """Refuse a column that has another type in the table.

    Args:
        wanted: The columns of the batch.
        known: The columns of the table.
        where: The folder or URL of the table, for the message.

    Raises:
        MulticloudDbError: `INVALID_REQUEST`; the message names the column and both types.
    """
    for name, field in wanted.items():
        if name in known and _kind(known[name].type) != _kind(field.type):
            raise invalid_request(
                f"column {name}",
                f"is {_name(field.type)} in the batch and {_name(known[name].type)} in {where}",
                "cast it, or give it another name",
            )


def in_backticks(name: str) -> str:
    """Return the name of a column for a SQL expression."""
    return "`" + name.replace("`", "``") + "`"


def _cannot_be_stored(field: pa.Field) -> MulticloudDbError:
    return invalid_request(
        f"column {field.name}", f"is {field.type}, which a Delta table cannot store", _CAST
    )


def _kind(of: object) -> str:
    """Return the name of a Delta type. The name does not say whether the type is nullable."""
    return re.sub(r'"(nullable|containsNull|valueContainsNull)":(true|false)', "", _json(of))


def _name(of: object) -> str:
    return _json(of).strip('"')


def _json(of: object) -> str:
    return str(of.to_json())  # type: ignore[attr-defined]
