"""Handles column types: their form in DDL, their values as JSON in change records, and their sort order."""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

import attrs

from multiclouddb_spanner_emulator.clock import from_text, to_text
from multiclouddb_spanner_emulator.errors import ServiceError, unimplemented

__all__ = ["COMMIT_TIMESTAMP", "ColumnType", "Json", "column_type", "json_value", "sort_key", "to_json"]

Json: TypeAlias = Any
"""A value in the form that the protocol uses: None, bool, float, text or a list."""

COMMIT_TIMESTAMP: Final = "spanner.commit_timestamp()"
_GOOGLE: Final = {
    "BOOL", "INT64", "FLOAT32", "FLOAT64", "NUMERIC", "STRING", "BYTES", "DATE", "TIMESTAMP", "JSON", "UUID",
}  # fmt: skip
_POSTGRES: Final = {
    "boolean": "BOOL", "bool": "BOOL", "bigint": "INT64", "int8": "INT64", "int": "INT64", "integer": "INT64",
    "double precision": "FLOAT64", "float8": "FLOAT64", "real": "FLOAT32", "float4": "FLOAT32",
    "numeric": "PG_NUMERIC", "decimal": "PG_NUMERIC", "varchar": "STRING", "character varying": "STRING",
    "text": "STRING", "bytea": "BYTES", "date": "DATE", "jsonb": "PG_JSONB", "uuid": "UUID",
    "timestamptz": "TIMESTAMP", "timestamp with time zone": "TIMESTAMP",
    "spanner.commit_timestamp": "TIMESTAMP",
}  # fmt: skip
_SPECIAL: Final = ("NaN", "Infinity", "-Infinity")


@attrs.frozen
class ColumnType:
    """The type of a column.

    Attributes:
        code: For example `INT64`.
        annotation: The type annotation, for example `PG_NUMERIC`, or "".
        element: The type of the array's elements, or None.
    """

    code: str
    annotation: str = ""
    element: ColumnType | None = None

    def described(self) -> dict[str, Any]:
        """Return the type in the form that change records and result metadata use."""
        found: dict[str, Any] = {"code": self.code}
        if self.element is not None:
            found["array_element_type"] = self.element.described()
        if self.annotation:
            found["type_annotation"] = self.annotation
        return found


def column_type(text: str, *, postgres: bool) -> ColumnType:
    """Return the type for a type name in DDL."""
    bare = re.sub(r"\s*\([^)]*\)", "", text).strip()
    if postgres:
        if bare.endswith("[]"):
            return ColumnType("ARRAY", element=column_type(bare[:-2], postgres=True))
        code = _POSTGRES.get(bare.lower())
        if code is None:
            raise unimplemented(f"the type {text}")
        return ColumnType(code.replace("PG_JSONB", "JSON").removeprefix("PG_"), code if "PG_" in code else "")
    array = re.fullmatch(r"ARRAY\s*<(.*)>", bare, re.IGNORECASE)
    if array is not None:
        return ColumnType("ARRAY", element=column_type(array[1], postgres=False))
    if bare.upper() not in _GOOGLE:
        raise unimplemented(f"the type {text}")
    return ColumnType(bare.upper())


def to_json(value: Json, of: ColumnType, commit: int) -> Json:
    """Convert a value of a mutation to the form that tables store and change records contain.

    Raises:
        ServiceError: Raised if the value does not have this type.
    """
    if value is None:
        return None
    if of.code == "ARRAY":
        if not isinstance(value, list) or of.element is None:
            raise _not(value, of)
        return [to_json(each, of.element, commit) for each in value]
    if value == COMMIT_TIMESTAMP and of.code == "TIMESTAMP":
        return to_text(commit)
    try:
        return _scalar(value, of)
    except (ValueError, InvalidOperation, TypeError, binascii.Error):
        raise _not(value, of) from None


def _scalar(value: Json, of: ColumnType) -> Json:
    match of.code, value:
        case "BOOL", bool():
            return value
        case "INT64", str():
            return str(int(value))
        case "FLOAT32" | "FLOAT64", str() if value in _SPECIAL:
            return value
        case "FLOAT32", float():
            return struct.unpack("f", struct.pack("f", value))[0]
        case "FLOAT64", float():
            return value
        case "NUMERIC", str() if value == "NaN" and of.annotation:
            return value
        case "NUMERIC", str():
            text = format(Decimal(value), "f")
            return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"
        case "BYTES", str():
            return base64.b64encode(base64.b64decode(value, validate=True)).decode()
        case "TIMESTAMP", str():
            return to_text(from_text(value))
        case "JSON", str() if _has_half_a_pair(value):
            # GoogleSQL's parser and PostgreSQL's jsonb refuse half of a surrogate pair.
            raise ValueError(value)
        case "JSON", str():
            # JSONB stores a number as it is written, and GoogleSQL's JSON rounds it to 64 bits.
            if of.annotation:
                return json_value(json.loads(value, parse_float=Decimal), spaced=True)
            return json_value(json.loads(value, parse_int=_rounded))
        case "DATE", str():
            return date(*map(int, value.split("-"))).isoformat()
        case "STRING" | "UUID", str():
            return value
        case _:
            raise ValueError(value)


def _has_half_a_pair(text: str) -> bool:
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _rounded(text: str) -> int | float:
    return int(text) if -(2**63) <= int(text) < 2**64 else float(text)


def json_value(value: Any, *, spaced: bool = False) -> str:
    """Return a JSON text with sorted names, as the service does."""
    comma, colon = (", ", ": ") if spaced else (",", ":")
    if isinstance(value, dict):
        pairs = [
            f"{json_value(name)}{colon}{json_value(value[name], spaced=spaced)}" for name in sorted(value)
        ]
        return f"{{{comma.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{comma.join(json_value(each, spaced=spaced) for each in value)}]"
    if isinstance(value, Decimal):
        return format(value, "f")
    return json.dumps(value, ensure_ascii=False)


def _not(value: Json, of: ColumnType) -> ServiceError:
    return ServiceError("FAILED_PRECONDITION", f"Could not parse {value} as {of.code}.")


def sort_key(value: Json, of: ColumnType) -> tuple[Any, ...]:
    """Return a key that sorts values of this type in the same order as the service, with NULL first."""
    if value is None:
        return (0,)
    match of.code:
        case "INT64":
            return (1, int(value))
        case "FLOAT32" | "FLOAT64":
            return (1, float("-inf") if value == "NaN" else float(value), value != "NaN")
        case "NUMERIC":
            return (1, Decimal(value))
        case "BYTES":
            return (1, base64.b64decode(value))
        case "TIMESTAMP":
            return (1, from_text(value))
        case _:
            return (1, value)
