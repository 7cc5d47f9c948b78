"""Proposes a declaration of columns from documents, and tests one against them, in bounded memory."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import attrs
import orjson

from multiclouddb_api import ChangeEvent, encode_json
from multiclouddb_api.codec import deep_json
from multiclouddb_tables.columns import TAKEN, Column, Columns
from multiclouddb_tables.conversion import (
    MisfitError,
    Unheld,
    convert,
    digits_of,
    kind_of_json,
    members,
    tagged,
    value_at,
)

__all__ = ["FEWEST", "Check", "Survey", "Unfit"]

FEWEST: Final = 20
"""With fewer documents that have a path, nothing is proposed for it."""
_MOST_PATHS: Final = 2_000
"""The most paths of which facts are kept, whatever the documents have."""
_DEEPEST: Final = 4
"""The most names in a path; what is below is proposed as JSON."""
_NAMED: Final = 3
_DIGITS: Final = 38
_EXACT: Final = 2**53
_DAY: Final = Column("day", "date", ("day",))
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_ALONE: Final[Mapping[str, str]] = {
    "boolean": "boolean",
    "bytes": "binary",
    "time": "timestamp",
    "float": "double",
}
"""The types of paths at which all values are of one kind."""
_TAGS: Final[Mapping[str, str]] = {
    "decimal": "decimal",
    "int": "integer",
    "float": "float",
    "bytes": "bytes",
    "date": "time",
}


@attrs.define
class _Path:
    """What was seen at a path."""

    kinds: Counter[str] = attrs.field(factory=Counter)
    longest: int = 0
    before: int = 1
    """The most digits before the point."""
    after: int = 0
    """The most digits after it."""
    is_double: bool = True
    """Whether each number is exactly one of `double`."""
    is_nested: bool = False
    """Whether a value without a JSON type has parts, so that only `json` reads well."""
    is_day: bool = True
    """Whether each text is a day."""

    @property
    def count(self) -> int:
        return sum(self.kinds.values())

    def add(self, kind: str, value: Any) -> None:
        self.kinds[kind] += 1
        if kind == "text":
            self.longest = max(self.longest, len(value))
            self.is_day = self.is_day and _is_day(value)
        elif kind in ("integer", "float", "decimal"):
            self._number(value)
        elif (inner := tagged(value)) is not None and isinstance(inner[1], list | dict):
            self.is_nested = True

    def _number(self, value: Any) -> None:
        inner = tagged(value)
        text = str(inner[1]) if inner is not None else repr(value)
        number = Decimal(text)
        if not number.is_finite():
            self.before = _DIGITS + 1  # no decimal has it
            return
        before, after = digits_of(number)
        self.before, self.after = max(self.before, before), max(self.after, after)
        if inner is not None and inner[0] == "decimal":
            self.is_double = self.is_double and Decimal(float(number)) == number
        elif not isinstance(value, float):
            self.is_double = self.is_double and abs(number) <= _EXACT

    @property
    def type(self) -> str:
        """The type that holds all that was seen."""
        kinds = {*self.kinds}
        if self.is_nested or kinds & {"array", "object"}:
            return "json"
        if len(kinds) == 1:
            [kind] = kinds
            if (found := _ALONE.get(kind)) is not None:
                return found
        if not kinds <= {"integer", "float", "decimal"}:
            return "string"
        if kinds == {"integer"} and self.before < len(str(2**63)):
            return "int64"
        # A float is the decimal of its shortest text, as in the column.
        if self.before + self.after <= _DIGITS and ("float" not in kinds or not self.is_double):
            return f"decimal({_DIGITS},{self.after})"
        return "double" if self.is_double else "string"


@attrs.define
class Survey:
    """Counts the types of values of each path of documents.

    Attributes:
        documents: The number of documents.
        unlisted: The number of values at paths that are not listed, because there are too many.
    """

    documents: int = 0
    unlisted: int = 0
    _paths: dict[tuple[str, ...], _Path] = attrs.field(factory=dict)
    _keys: dict[str, _Path] = attrs.field(factory=dict)
    _unlike: set[str] = attrs.field(factory=set)
    """The components of the key of which some document has another value, or none, in a field of its name."""

    def add(self, event: ChangeEvent) -> None:
        """Look at a row of the source.

        Args:
            event: The row; one without a document is left out.
        """
        if event.new_item_state is None:
            return
        self.documents += 1
        document = orjson.loads(encode_json(event.new_item_state))
        for path, kind, value in _leaves(document, ()):
            found = self._paths.get(path)
            if found is None:
                if len(self._paths) == _MOST_PATHS:
                    self.unlisted += 1
                    continue
                found = self._paths[path] = _Path()
            found.add(kind, value)
        fields = members(document) or {}
        for name, value in (members(orjson.loads(encode_json(event.key.components))) or {}).items():
            if fields.get(name) != value:
                self._unlike.add(name)
            self._keys.setdefault(name, _Path()).add(_kind(value), value)

    def rows(self) -> list[dict[str, Any]]:
        """Return what was seen, and what is proposed, for each path and each component of the key."""
        found, taken = list[dict[str, Any]](), {name.lower() for name in TAKEN}
        outer = {path[:at] for path in self._paths for at in range(1, len(path))}
        whole = {path for path in outer if {*self._paths[path].kinds} != {"object"}}
        listed = {
            path: seen
            for path, seen in self._paths.items()
            # The fields of an object have columns of their own, unless it is also something else.
            if path not in outer - whole
            and not any(path[:at] in whole for at in range(1, len(path)))
            # The key has a column already.
            and not (path[0] in self._keys and path[0] not in self._unlike)
        }
        keys = {(name,): seen for name, seen in self._keys.items()}
        for source, by_path in (("key", keys), ("path", listed)):
            for path, seen in sorted(by_path.items()):
                found.append(
                    {
                        "column": _name(path, taken),
                        source: path[0] if source == "key" else [*path],
                        "type": seen.type if seen.count >= FEWEST else None,
                        "documents": seen.count,
                        "types": dict(seen.kinds.most_common()),
                        "longest": seen.longest or None,
                        "days": "text" in seen.kinds and len(seen.kinds) == 1 and seen.is_day,
                        "digits": [seen.before, seen.after] if seen.before + seen.after > 1 else None,
                    }
                )
        return found

    def toml(self) -> Iterator[str]:
        """Return the lines of a proposed `columns.toml`."""
        yield "[columns]"
        for row in self.rows():
            place = f"key = {_quoted(row['key'])}" if "key" in row else f"path = {_listed(row['path'])}"
            name = row["column"] if _PLAIN.fullmatch(row["column"]) else _quoted(row["column"])
            share = 100 * row["documents"] / max(1, self.documents)
            told = ", ".join(f"{count:,} {kind}" for kind, count in row["types"].items())
            told += f"; {share:.0f} % of the documents"
            told += "" if row["longest"] is None else f"; longest text {row['longest']:,}"
            told += "; each text is a day, so date fits too" if row["days"] else ""
            if row["type"] is None:
                few = f"only {row['documents']:,} documents have {place}"
                yield f"# {name}: {few}, so nothing is proposed ({told})"
                continue
            is_plain = row.get("path") == [row["column"]]
            value = _quoted(row["type"]) if is_plain else f"{{ {place}, type = {_quoted(row['type'])} }}"
            yield f"{name} = {value}  # {told}"


def _leaves(value: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Return the paths of a document, with the kind and the value of each; null is no value."""
    for name, each in (members(value) or {}).items():
        if each is None:
            continue
        where, kind = (*path, name), _kind(each)
        yield where, kind, each
        if kind == "object" and len(where) < _DEEPEST:
            yield from _leaves(each, where)


def _kind(value: Any) -> str:
    inner = tagged(value)
    if inner is not None:
        return _TAGS.get(inner[0], inner[0])
    kinds = {bool: "boolean", int: "integer", float: "float", str: "text", list: "array", dict: "object"}
    return kinds[type(value)]


def _is_day(text: str) -> bool:
    try:
        convert(text, _DAY)
    except MisfitError:
        return False
    return True


def _name(path: Sequence[str], taken: set[str]) -> str:
    """Return a name that no column has yet."""
    name = "_".join(path).replace("\0", "_") or "_"
    while name.lower() in taken:
        name += "_"
    taken.add(name.lower())
    return name


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _listed(path: Sequence[str]) -> str:
    return f"[{', '.join(map(_quoted, path))}]"


@attrs.define
class Unfit:
    """The values that do not fit into one column.

    Attributes:
        count: Their number.
        kinds: How many of them are of which kind.
        keys: The first keys, as JSON texts.
        values: The values of these keys, as JSON texts.
    """

    count: int = 0
    kinds: Counter[str] = attrs.field(factory=Counter)
    keys: list[str] = attrs.field(factory=list)
    values: list[str] = attrs.field(factory=list, repr=False)


@attrs.define
class Check:
    """Counts the values that do not fit into a declaration.

    Attributes:
        columns: The declaration.
        documents: The number of documents.
        unfit: What does not fit, by column; only of columns with such values.
    """

    columns: Columns
    documents: int = 0
    unfit: dict[str, Unfit] = attrs.field(factory=dict)
    _unheld: tuple[Unheld, ...] = ()

    def add(self, event: ChangeEvent) -> None:
        """Test a row of the source.

        Args:
            event: The row; one without a document is left out.
        """
        if event.new_item_state is None:
            return
        self.documents += 1
        document = members(orjson.loads(encode_json(event.new_item_state)))
        key = members(orjson.loads(encode_json(event.key.components)))
        for column in self.columns.columns:
            value = value_at(column, document, key)
            if value is None:
                continue
            try:
                convert(value, column, self._unheld)
            except MisfitError:
                found = self.unfit.setdefault(column.name, Unfit())
                found.count += 1
                found.kinds[kind_of_json(value)] += 1
                if len(found.keys) < _NAMED:
                    found.keys.append(encode_json(event.key.components).decode())
                    found.values.append(deep_json(value).decode())
