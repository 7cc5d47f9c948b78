"""Parses the DDL statements that tests of change streams need, and writes a schema, in both dialects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from multiclouddb_spanner_emulator.errors import ServiceError, invalid
from multiclouddb_spanner_emulator.schema import Column, Table, Watch
from multiclouddb_spanner_emulator.types import column_type

__all__ = [
    "AddColumn",
    "AlterStream",
    "CreateStream",
    "CreateTable",
    "Drop",
    "DropColumn",
    "Statement",
    "parse",
    "stream_statement",
    "table_statement",
]

_NAME: Final = r'[`"]?([A-Za-z_][A-Za-z0-9_]*)[`"]?'
_OPTIONS: Final = ("value_capture_type", "retention_period", "partition_mode", "allow_txn_exclusion")
_CAPTURES: Final = ("OLD_AND_NEW_VALUES", "NEW_VALUES", "NEW_ROW", "NEW_ROW_AND_OLD_VALUES")


@attrs.frozen
class CreateTable:
    """The statement CREATE TABLE."""

    table: Table


@attrs.frozen
class AddColumn:
    """The statement ALTER TABLE … ADD COLUMN."""

    table: str
    column: Column


@attrs.frozen
class DropColumn:
    """The statement ALTER TABLE … DROP COLUMN."""

    table: str
    column: str


@attrs.frozen
class CreateStream:
    """The statement CREATE CHANGE STREAM."""

    name: str
    watch: Watch
    options: dict[str, str]


@attrs.frozen
class AlterStream:
    """The statement ALTER CHANGE STREAM. An attribute that is None is not changed."""

    name: str
    watch: Watch | None
    options: dict[str, str] | None


@attrs.frozen
class Drop:
    """The statement DROP TABLE or DROP CHANGE STREAM."""

    kind: str
    name: str


Statement: TypeAlias = CreateTable | AddColumn | DropColumn | CreateStream | AlterStream | Drop


class _Parser:
    """Parses one statement.

    Args:
        text: The statement.
        postgres: True for the PostgreSQL dialect.
    """

    def __init__(self, text: str, *, postgres: bool) -> None:
        self.text = " ".join(text.strip().rstrip(";").split())
        self.postgres = postgres

    def wrong(self, why: str) -> ServiceError:
        return invalid(f"Error parsing Spanner DDL statement: {self.text} : {why}")

    def name(self, text: str) -> str:
        return text.lower() if self.postgres else text

    def parse(self) -> Statement:
        for form, read in (
            (rf"CREATE TABLE (?:IF NOT EXISTS )?{_NAME} ?\((.*)\)(.*)", self.create_table),
            (rf"ALTER TABLE {_NAME} ADD (?:COLUMN )?(?:IF NOT EXISTS )?(.*)", self.add_column),
            (rf"ALTER TABLE {_NAME} DROP (?:COLUMN )?{_NAME}", self.drop_column),
            (rf"CREATE CHANGE STREAM {_NAME}(.*)", self.create_stream),
            (rf"ALTER CHANGE STREAM {_NAME} (.*)", self.alter_stream),
            (rf"DROP (TABLE|CHANGE STREAM) (?:IF EXISTS )?{_NAME}", self.drop),
        ):
            found = re.fullmatch(form, self.text, re.IGNORECASE)
            if found is not None:
                return read(*found.groups())
        raise self.wrong("The scripted server does not know this statement")

    def drop(self, kind: str, name: str) -> Statement:
        return Drop(kind.upper(), self.name(name))

    def create_table(self, name: str, body: str, rest: str) -> Statement:
        if not self.postgres:
            # The clause "PRIMARY KEY (…)" comes after the columns, so the body ends at its own closing
            # parenthesis.
            body, rest = _balanced(f"({body}){rest}")
        pieces = _pieces(body)
        columns, key = list[Column](), _key(rest)
        for piece in pieces:
            inside = re.fullmatch(r"PRIMARY KEY ?\((.*)\)", piece, re.IGNORECASE)
            if inside is not None:
                key = _key(piece)
            elif not re.match(r"(CONSTRAINT|FOREIGN KEY|CHECK)\b", piece, re.IGNORECASE):
                columns.append(self.column(piece, len(columns) + 1))
                if re.search(r"\bPRIMARY KEY\b", piece, re.IGNORECASE):
                    key = [(columns[-1].name, "")]
        names = tuple(self.name(each) for each, _ in key)
        down = frozenset(self.name(each) for each, order in key if order.upper() == "DESC")
        if not names:
            raise self.wrong("A primary key is needed")
        return CreateTable(Table(self.name(name), columns, names, down))

    def column(self, text: str, ordinal: int) -> Column:
        found = re.match(
            rf"{_NAME} (ARRAY ?<[^>]*>|double precision(?:\[\])?|character varying(?: ?\([^)]*\))?(?:\[\])?"
            r"|timestamp with time zone(?:\[\])?|[A-Za-z0-9_.]+(?: ?\([^)]*\))?(?:\[\])?)(.*)",
            text,
            re.IGNORECASE,
        )
        if found is None:
            raise self.wrong(f"No column: {text}")
        name, of, rest = found.groups()
        nullable = not re.search(r"\bNOT NULL\b|\bPRIMARY KEY\b", rest, re.IGNORECASE)
        return Column(
            self.name(name), column_type(of, postgres=self.postgres), _spelled(of), nullable, ordinal
        )

    def add_column(self, table: str, column: str) -> Statement:
        return AddColumn(self.name(table), self.column(column, 0))

    def drop_column(self, table: str, column: str) -> Statement:
        return DropColumn(self.name(table), self.name(column))

    def create_stream(self, name: str, rest: str) -> Statement:
        watch, options = self._watch(rest)
        return CreateStream(self.name(name), watch or Watch(), options or {})

    def alter_stream(self, name: str, rest: str) -> Statement:
        if re.fullmatch(r"DROP FOR ALL", rest, re.IGNORECASE):
            return AlterStream(self.name(name), Watch(), None)
        return AlterStream(self.name(name), *self._watch(re.sub(r"^SET ?", " ", rest, flags=re.IGNORECASE)))

    def _watch(self, text: str) -> tuple[Watch | None, dict[str, str] | None]:
        found = re.fullmatch(
            r"(?: FOR (.*?))?(?: ?(?:OPTIONS|WITH)? ?\( ?([A-Za-z_]+ ?= ?.*)\))?", text, re.IGNORECASE
        )
        if found is None:
            raise self.wrong(f"Not understood: {text}")
        what, options = found.groups()
        return None if what is None else self._tables(what), None if options is None else self._options(
            options
        )

    def _tables(self, text: str) -> Watch:
        if text.strip().upper() == "ALL":
            return Watch(everything=True)
        tables: dict[str, list[str] | None] = {}
        for piece in _pieces(text):
            found = re.fullmatch(rf"{_NAME} ?(?:\((.*)\))?", piece)
            if found is None:
                raise self.wrong(f"No table: {piece}")
            name, columns = found.groups()
            chosen = None if columns is None else [self.name(_bare(each)) for each in _pieces(columns)]
            tables[self.name(name)] = chosen
        return Watch(tables=tables)

    def _options(self, text: str) -> dict[str, str]:
        options = {}
        for piece in _pieces(text):
            name, _, value = (part.strip() for part in piece.partition("="))
            if name.lower() not in _OPTIONS and not name.lower().startswith("exclude_"):
                raise self.wrong(f"Option: {name} is unknown.")
            value = value.strip("'\"")
            if name.lower() == "value_capture_type" and value not in _CAPTURES:
                raise self.wrong(f"Invalid value_capture_type: {value}")
            options[name.lower()] = value
        return options


def _spelled(of: str) -> str:
    """Return a type in the form that INFORMATION_SCHEMA uses."""
    if "<" in of:
        return re.sub(r"\s+", "", of)
    of = re.sub(r"^varchar\b", "character varying", of, flags=re.IGNORECASE)
    return re.sub(r"^timestamptz\b", "timestamp with time zone", of, flags=re.IGNORECASE)


def _bare(name: str) -> str:
    return name.strip('`" ')


def _key(text: str) -> list[tuple[str, str]]:
    found = re.search(r"PRIMARY KEY ?\(([^)]*)\)", text, re.IGNORECASE)
    parts = [piece.split() for piece in _pieces(found[1])] if found is not None else []
    return [(_bare(part[0]), part[1] if len(part) > 1 else "") for part in parts]


def _balanced(text: str) -> tuple[str, str]:
    """Return the text in the first parentheses, and the text after them."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return text[1:place], text[place + 1 :]
    return text, ""


def _pieces(text: str) -> list[str]:
    """Split a text at the commas outside parentheses."""
    pieces, depth, start = list[str](), 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "(<") - (letter in ")>")
        if letter == "," and not depth:
            pieces.append(text[start:place])
            start = place + 1
    pieces.append(text[start:])
    return [piece.strip() for piece in pieces if piece.strip()]


def parse(text: str, *, postgres: bool) -> Statement:
    """Parse a text, and return its statement.

    Raises:
        ServiceError: Raised if the emulator does not know the statement.
    """
    return _Parser(text, postgres=postgres).parse()


def table_statement(table: Table, *, postgres: bool) -> str:
    """Return the statement that creates a table as it is now."""
    lines = [f"  {each.name} {each.text}{'' if each.nullable else ' NOT NULL'}," for each in table.columns]
    key = ", ".join(f"{name} DESC" if name in table.descending else name for name in table.key)
    last = [f"  PRIMARY KEY({key})", ")"] if postgres else [f") PRIMARY KEY({key})"]
    return "\n".join([f"CREATE TABLE {table.name} (", *lines, *last])


def stream_statement(name: str, watch: Watch, options: Mapping[str, str], *, postgres: bool) -> str:
    """Return the statement that creates a change stream as it is now."""
    parts = [f"CREATE CHANGE STREAM {name}"]
    if watch.everything or watch.tables:
        parts.append(f"FOR {'ALL' if watch.everything else ', '.join(_watched(watch.tables.items()))}")
    if options:
        chosen = ", ".join(f"{option} = '{value}'" for option, value in options.items())
        parts.append(f"WITH ({chosen})" if postgres else f"OPTIONS ( {chosen} )")
    return ("\n" if postgres else " ").join(parts)


def _watched(tables: Iterable[tuple[str, Sequence[str] | None]]) -> Iterable[str]:
    return (name if columns is None else f"{name}({', '.join(columns)})" for name, columns in tables)
