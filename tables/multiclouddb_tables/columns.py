"""Defines the declaration of a table's own columns: `columns.toml`, and the same as a value.

One declaration serves every sink, the table's mark, and `verify`. `conversion` makes the values.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from multiclouddb_api import invalid_request
from multiclouddb_api.arrow import EVENT_SCHEMA
from multiclouddb_api.validators import check_type, suggestion, type_name, utf8
from multiclouddb_tables.rules import DELETED_AT, DOCUMENT, OF_THE_EVENT, STALE_SINCE, TIME, check_cases

__all__ = ["JSON", "RESCUED", "Column", "Columns", "Misfits"]

Misfits: TypeAlias = Literal["refuse", "rescue"]
"""What a sink does with a value that does not fit the type of its column: `"refuse"` the batch, or `"rescue"`
the value: the column is null, and the column `_rescued` has the path and the value."""

RESCUED: Final = "_rescued"
"""The column with the values that do not fit, as a JSON text; null in a row without any."""
LONG_KEY: Final = "_long_key"
"""The column with the keys that are too long for an index of PostgreSQL."""
JSON: Final[Mapping[bytes, bytes]] = {b"multiclouddb": b"json"}
"""The metadata of an Arrow field whose texts are JSON, so that a table may give it a type of its own."""

TAKEN: Final = frozenset((*EVENT_SCHEMA.names, *OF_THE_EVENT, DELETED_AT, STALE_SINCE, RESCUED, LONG_KEY))
"""The names that no declared column may have, in any spelling."""
_TYPES: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIME,
    "timestamp_ntz": pa.timestamp("us"),
    "json": pa.string(),
}
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")
_MOST_DIGITS: Final = 38
_OTHER_NAMES: Final[Mapping[str, str]] = {
    "bigint": "int64", "bool": "boolean", "bytes": "binary", "datetime": "timestamp", "float32": "float",
    "float64": "double", "int": "int64", "integer": "int64", "long": "int64", "number": "double",
    "object": "json", "array": "json", "real": "float", "short": "int16", "smallint": "int16",
    "text": "string", "timestamptz": "timestamp", "tinyint": "int8", "varchar": "string",
}  # fmt: skip
"""What other systems call a type."""
_PARTS: Final = ("type", "path", "key")
_SETTINGS: Final = ("columns", "document", "misfits")


@attrs.frozen
class Column:
    """One column of a declaration."""

    name: str
    """Its name in the table."""
    type: str
    """The name of its type, such as `decimal(12,2)`."""
    path: tuple[str, ...] = ()
    """The names that lead from the document to the value; empty for a component of the key."""
    key: str | None = None
    """The component of the key that the column contains; None if it contains a value of the document."""

    @property
    def field(self) -> pa.Field:
        """The column in Arrow."""
        return pa.field(self.name, arrow_type(self.type), metadata=JSON if self.type == "json" else None)

    @property
    def place(self) -> str:
        """Where the value comes from, for messages."""
        return f"key {self.key}" if self.key is not None else ".".join(self.path)

    def to_value(self) -> dict[str, Any]:
        """Return the column as `columns.toml` has it."""
        if self.key is not None:
            return {"type": self.type, "key": self.key}
        return {"type": self.type, "path": [*self.path]}


def arrow_type(text: str) -> pa.DataType | None:
    """Return the Arrow type of a type of a declaration; None if there is no such type.

    Args:
        text: Its name.
    """
    if (found := _DECIMAL.fullmatch(text)) is not None:
        precision, scale = int(found[1]), int(found[2])
        fits = 1 <= precision <= _MOST_DIGITS and scale <= precision
        return pa.decimal128(precision, scale) if fits else None
    return _TYPES.get(text)


def _column(name: object, value: object) -> Column:
    if not isinstance(name, str) or not name or "\0" in name:
        raise invalid_request("columns", f"has the name {name!r}", "give a text without NUL")
    where = f"column {utf8('columns', name)}"
    if name.lower() in TAKEN:
        raise invalid_request(
            where,
            "has the name of a column that the sink or the event has",
            f'choose another name, and give the field as its path: {name}_ = {{ path = ["{name}"], … }}',
        )
    given: Any = {"type": value} if isinstance(value, str) else value
    if name in _SETTINGS and (isinstance(value, bool) or value in ("refuse", "rescue")):
        raise invalid_request(
            where, f"has the type {value!r}", f"if the setting {name} is meant, write it above [columns]"
        )
    if not isinstance(given, Mapping):
        way_out = 'write a type such as "string", or { path = ["address", "city"], type = "string" }'
        raise invalid_request(where, f"is a {type_name(value)}", way_out)
    for each in given:
        if each not in _PARTS:
            inner = given[each]
            kind = inner if isinstance(inner, str) else "…"
            raise invalid_request(
                where,
                f"has {each!r}",
                f"correct it: {suggestion(str(each), _PARTS)}; a name with a dot stands in quotes, "
                f'"{name}.{each}" = "{kind}", and a field of an object has a path, {name}_{each} = '
                f'{{ path = ["{name}", "{each}"], type = "{kind}" }}',
            )
    text = given.get("type")
    kind = re.sub(r"\s+", "", text).lower() if isinstance(text, str) else ""
    if arrow_type(kind) is None:
        known = [*_TYPES, "decimal(12,2)"]
        way_out = f"choose among {', '.join(known)}; a decimal has up to 38 digits"
        if (meant := _meant(kind)) is not None:
            way_out = f"did you mean {meant!r}? Or {way_out}"
        raise invalid_request(where, f"has the type {text!r}", way_out)
    path, key = given.get("path"), given.get("key")
    if path is not None and key is not None:
        raise invalid_request(where, "has both path and key", "leave one of them out")
    if key is not None:
        if not isinstance(key, str):
            raise invalid_request(where, f"has the key {key!r}", "give the name of a component of the key")
        return Column(name, kind, (), utf8(where, key))
    names: Any = [name] if path is None else path
    is_list = isinstance(names, list | tuple) and all(isinstance(each, str) for each in names)
    if not is_list or not names:
        raise invalid_request(
            where, f"has the path {path!r}", 'give a list of names, such as ["address", "city"]'
        )
    return Column(name, kind, tuple(utf8(where, each) for each in names))


def _meant(kind: str) -> str | None:
    """Return the type that is called so elsewhere, or written nearly so; None if there is none."""
    if kind.startswith(("decimal", "numeric")):
        found = kind.replace("numeric", "decimal", 1)
        return found if arrow_type(found) is not None else "decimal(12,2)"
    word = kind.partition("(")[0]
    if word in _OTHER_NAMES:
        return _OTHER_NAMES[word]
    close = get_close_matches(word, _TYPES, n=1)
    return close[0] if close else None


def _read(given: object) -> tuple[Column, ...]:
    if isinstance(given, tuple) and all(isinstance(each, Column) for each in given):
        return given
    if not isinstance(given, Mapping):
        raise invalid_request("columns", f"is a {type_name(given)}", "pass a dictionary of names and types")
    columns = tuple(_column(name, value) for name, value in given.items())
    check_cases(each.name for each in columns)
    return columns


@attrs.frozen
class Columns:
    """The columns of a table that contain values of the documents, each with its type.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if a name, a type or a path is none.
    """

    columns: tuple[Column, ...] = attrs.field(converter=_read)
    """The columns. Pass a dictionary with a type for each name, such as `{"total": "decimal(12,2)"}`, or with
    what `columns.toml` has for it, such as `{"city": {"path": ["address", "city"], "type": "string"}}`."""
    document: bool = True
    """False to leave out the column `new_item_state`."""
    misfits: Misfits = "refuse"
    """What to do with a value that does not fit the type of its column."""

    def __attrs_post_init__(self) -> None:
        check_type("document", self.document, bool)
        if self.misfits not in ("refuse", "rescue"):
            raise invalid_request("misfits", f"is {self.misfits!r}", 'pass "refuse" or "rescue"')

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Columns:
        """Read a declaration from a file.

        Args:
            path: The file, such as `columns.toml`.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the file cannot be read, or is no declaration.
        """
        try:
            given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            problem = f"{os.fspath(path)} cannot be read ({error.strerror})"
            raise invalid_request("columns", problem, "correct the name") from error
        except ValueError as error:
            raise invalid_request(
                "columns", f"{os.fspath(path)} is no TOML ({error})", "correct the line"
            ) from error
        return cls.from_dict(given)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Columns:
        """Return the declaration that a dictionary of TOML or JSON has.

        Args:
            given: What `to_dict` returns, or what a TOML file contains.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if it is no declaration.
        """
        for name in given:
            if name not in _SETTINGS:
                raise invalid_request(
                    "columns", f"has {name!r} beside [columns]", f"correct it: {suggestion(name, _SETTINGS)}"
                )
        if "columns" not in given:
            raise invalid_request("columns", "has no [columns]", "name the columns there")
        return cls(given["columns"], given.get("document", True), given.get("misfits", "refuse"))

    def to_dict(self) -> dict[str, Any]:
        """Return the declaration in JSON's own types, as the mark of a table contains it."""
        columns = {each.name: each.to_value() for each in self.columns}
        return {"columns": columns, "document": self.document, "misfits": self.misfits}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, with `_rescued` if there is one."""
        return (*(each.name for each in self.columns), *([RESCUED] if self.misfits == "rescue" else []))

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the columns with components of the key; a tombstone keeps them."""
        return tuple(each.name for each in self.columns if each.key is not None)

    @property
    def compared(self) -> tuple[str, ...]:
        """The names of the columns that `verify` compares."""
        return (*self.names, *([DOCUMENT] if self.document else []))

    def fields(self) -> list[pa.Field]:
        """Return the columns in Arrow, with `_rescued` if there is one."""
        rescued = [pa.field(RESCUED, pa.string(), metadata=JSON)] if self.misfits == "rescue" else []
        return [*(each.field for each in self.columns), *rescued]

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a table: those of the change, and the declared ones.

        Args:
            schema: The columns of a change.
        """
        kept = [field for field in schema if field.name != DOCUMENT or self.document]
        return pa.schema([*kept, *self.fields()])

    def told(self, name: str, before: Columns | None) -> str:
        """Return what is different about a column, for messages.

        Args:
            name: A column that has to be filled.
            before: The declaration of the table; None if it had none.
        """
        old, new = (_facts(each) for each in (before, self))
        if name not in new:
            return "no longer declared"
        if name not in old:
            return "new"
        one, other = old[name], new[name]
        if isinstance(one, Column) and isinstance(other, Column) and one.type != other.type:
            return f"{other.type}, and was {one.type}"
        return "of another place"

    def to_fill(self, before: Columns | None) -> tuple[str, ...]:
        """Return the columns that a table of another declaration has to fill or to empty.

        Args:
            before: The declaration of the table; None if it had none.
        """
        old, new = (_facts(each) for each in (before, self))
        if before is not None and (before.misfits, self.misfits) == ("refuse", "rescue"):
            new.pop(RESCUED)  # no row has a value that did not fit
        return tuple(
            name
            for name in (*new, *(each for each in old if each not in new))
            if old.get(name) != new.get(name)
        )


def _facts(columns: Columns | None) -> dict[str, object]:
    """Return what decides the values of each column."""
    if columns is None:
        return {DOCUMENT: True}
    found: dict[str, object] = {each.name: each for each in columns.columns}
    if columns.document:
        found[DOCUMENT] = True
    return found | ({RESCUED: True} if columns.misfits == "rescue" else {})


def check_batch(names: Sequence[str]) -> None:
    """Refuse a batch without documents, and columns that are neither those of a change nor declared."""
    if extra := [name for name in names if name not in (*EVENT_SCHEMA.names, *OF_THE_EVENT)]:
        raise invalid_request(
            "batch",
            f"has columns of its own beside columns=: {', '.join(extra)}",
            "declare them, or leave them out",
        )
    if DOCUMENT not in names:
        raise invalid_request(
            "batch",
            f"has no column {DOCUMENT}, of which the declared columns are made",
            f"leave {DOCUMENT} in the batch; with document = false, the table does not get it",
        )
