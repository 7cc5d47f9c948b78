"""Reads and sets the properties of a table of Spark: the mark of its feed, its id, and numbers."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Final

import attrs
from pyspark.errors import AnalysisException, IllegalArgumentException

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError, invalid_request
from multiclouddb_tables.delta_log import MARK
from multiclouddb_tables.mark import FoundTable, TableMark
from pyspark_multiclouddb.named_table import NamedTable, literal

__all__ = ["TableProperties", "marking"]

_LOG: Final = logging.getLogger("multiclouddb.spark")
_IDENTITY: Final = "multiclouddb.table"
"""The table property that no other table of the name has."""
# A text of JSON, with the colon after the name of a member; in a text, an escape, or what becomes one.
_TEXT_OF_JSON: Final = re.compile(r'"(?:[^"\\]|\\.)*"(:?)')
_LETTER: Final = re.compile(r"(\\u[0-9a-f]{4}|\\.)|[A-Za-z']")
_HIDDEN: Final = "(redacted)"
"""What Spark shows in place of a value that it hides ends with this."""


@attrs.define
class TableProperties:
    """The properties of a table, which does not have to exist."""

    table: NamedTable
    _are_kept: bool | None = attrs.field(default=None, init=False)
    _stored: dict[str, str] | None = attrs.field(default=None, init=False)

    @property
    def are_kept(self) -> bool:
        """False on Sail, which does not know the statement, and refuses what would set a property."""
        if self._are_kept is None:
            try:
                self._all()
                self._are_kept = True
            except AnalysisException:
                self._are_kept = True  # the table does not exist yet
            except IllegalArgumentException as error:
                if "found TBLPROPERTIES" not in str(error):
                    raise
                self._are_kept = False
                _LOG.warning(
                    "%s: the catalog stores no table properties, so nothing keeps a batch of another "
                    "collection from being merged into the table",
                    self.table.name,
                )
        return self._are_kept

    def _all(self, *, anew: bool = False) -> dict[str, str]:
        """Return the properties as this object saw them first or has set them; with `anew`, those of now."""
        if anew or self._stored is None:
            rows = self.table.spark.sql(f"SHOW TBLPROPERTIES {self.table.name}").collect()
            self._stored = {row[0]: row[1] for row in rows}
        return self._stored

    def forget(self) -> None:
        """Let the next look read the properties anew."""
        self._stored = None

    def text(self, name: str) -> str | None:
        """Return what is stored under a name, or None."""
        return self._all().get(_property(name)) if self.are_kept else None

    def found(self, *, anew: bool = False) -> FoundTable:
        """Return the mark of the table, and its id.

        Not every kind of table has an id that a statement can read, so the sink stores one with its mark.

        Args:
            anew: True to read what is there now, and not what this object saw first or has set.
        """
        properties = self._all(anew=anew) if self.are_kept else {}
        text = properties.get(MARK)
        if text is not None and text.endswith(_HIDDEN):
            raise invalid_request(
                "table",
                f"{self.table.name} has a mark that Spark hides, so nobody knows which feed fills it",
                "set spark.redaction.regex and spark.sql.redaction.options.regex so that they do not match "
                f"the value of the property {MARK}",
            )
        mark = None if text is None else TableMark.from_json(text, self.table.name)
        return FoundTable(mark, properties.get(_IDENTITY))

    def store(self, texts: Mapping[str, str], check: Callable[[], object]) -> None:
        """Store texts under names, in one commit.

        Args:
            texts: The texts, by their names.
            check: See `NamedTable.commit`.
        """
        self.table.commit(self._setting({_property(name): text for name, text in texts.items()}), check)
        self.forget()

    def store_mark(self, mark: TableMark, check: Callable[[], object]) -> FoundTable:
        """Store a mark; who may not alter the table is told which statement somebody else has to run.

        Args:
            mark: The mark.
            check: See `NamedTable.commit`.

        Returns:
            What the table is with this mark.
        """
        try:
            self.store(_marked(mark, self.found().identity or uuid.uuid4().hex), check)
            return self.found()
        except MulticloudDbError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise MulticloudDbError(
                f"table: the mark of {self.table.name}, which says whose changes it contains, cannot be "
                f"stored ({reason}); let somebody who may alter the table run: "
                f"{self._setting({MARK: _written(mark)})}",
                ErrorDetail(ErrorCategory.AUTHORIZATION_FAILED, native_text=str(error)[:1000]),
            ) from error

    def _setting(self, properties: Mapping[str, str]) -> str:
        return f"ALTER TABLE {self.table.name} SET TBLPROPERTIES ({_pairs(properties)})"


def marking(mark: TableMark) -> str:
    """Return the clause of `CREATE TABLE` that gives a new table its mark, and an id."""
    return f"TBLPROPERTIES ({_pairs(_marked(mark, uuid.uuid4().hex))})"


def _property(name: str) -> str:
    return name if name.startswith("multiclouddb") else f"multiclouddb.{name}"


def _marked(mark: TableMark, identity: str) -> dict[str, str]:
    return {MARK: _written(mark), _IDENTITY: identity}


def _written(mark: TableMark) -> str:
    """Return a mark as JSON in which the letters of all texts are escapes.

    Spark shows no value of a property that contains a word such as `url` or `token`, which its settings
    `spark.redaction.regex` and `spark.sql.redaction.options.regex` name, and a platform may hide more words,
    such as `user`. The mark contains the names of the collection and of columns.
    """

    def escaped(found: re.Match[str]) -> str:
        if found[1]:
            return found[0]
        return _LETTER.sub(lambda each: each[1] or f"\\u{ord(each[0]):04x}", found[0])

    return _TEXT_OF_JSON.sub(escaped, mark.to_json())


def _pairs(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())
