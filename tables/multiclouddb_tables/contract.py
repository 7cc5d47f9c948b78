"""Defines what a kind of table does: for `verify` the protocol `Target`, for a sink also `Table`.

`verify` judges by its own canonical values what a table says here. So a row is read as it is stored: nothing
may make of a value in the table what the source has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeAlias, runtime_checkable

import attrs
import pyarrow as pa

from multiclouddb_tables.column_values import ColumnType
from multiclouddb_tables.mark import Expected, FoundTable, TableMark
from multiclouddb_tables.rules import Numbered

__all__ = [
    "Fix",
    "Own",
    "Part",
    "Storage",
    "SupportsHeld",
    "SupportsLeftOut",
    "SupportsParts",
    "SupportsRecord",
    "Table",
    "Target",
]


Own: TypeAlias = bool | Collection[str]
"""The columns to read: False for the document, names, or True for all but those that the sink needs."""


@attrs.frozen
class Fix:
    """One row to write, on the condition that the table still contains what `verify` has seen."""

    key: str
    """The key, as JSON text."""
    seen: tuple[str, ...]
    """The `order_key` of each row of the key that `verify` has seen; empty if there was none."""
    order_key: str
    """The `order_key` to write."""
    text: str | None = attrs.field(repr=False)
    """The document of the source, as JSON text, or None if it does not exist there."""
    columns: Mapping[str, Any] | None = attrs.field(repr=False)
    """With `transform`, the values of the columns that it fills; other columns stay as they are."""
    timestamp: datetime
    """The time of the repair."""
    removes: bool = False
    """True to remove the rows of the key, because the sink does not write such a text."""
    beside: tuple[str, str] | None = None
    """With `removes`, the key and the `order_key` of another row, which has to be in the table when these are
    removed; or None."""


@runtime_checkable
class Target(Protocol):
    """A table that a sink keeps equal to a collection.

    The sink merges by `key` and `order_key`: it replaces a row only with one of a higher `order_key`.
    """

    @property
    def name(self) -> str:
        """The name of the table in messages and reports, without secrets."""
        ...

    def columns(self) -> Mapping[str, ColumnType]:
        """Return the type of each column that `transform` may fill; see `ColumnType`.

        The columns that the sink writes itself are left out, `new_item_state` too.
        """
        ...

    def rows(self, keys: Sequence[str] | None = None, *, own: Own = False) -> Iterator[pa.RecordBatch]:
        """Read one version of the table, which is not older than the call.

        Args:
            keys: The keys to read, as JSON text; None for all rows.
            own: The columns to read instead of the document, as one object in `state`.

        Returns:
            Batches with the columns `key` (text), `order_key` (text), `state` (the JSON text of the document,
            or null) and `deleted` (true for a tombstone). An empty table gives no batch. Each call reads one
            version; two calls may read different versions.

        Raises:
            MulticloudDbError: `NOT_FOUND` if there is no such table; `INVALID_REQUEST` if it is not the table
                of a sink. `TRANSIENT_FAILURE` if the version was removed while it was read; the caller reads
                again from the beginning.
        """
        ...

    def position(self) -> str | None:
        """Return the token that the sink has stored in the table itself, or None if it stores none there."""
        ...

    def found(self, since: FoundTable | None = None) -> FoundTable:
        """Return the table that is there now, with the mark that says whose changes it contains.

        Args:
            since: What was found before; None if the table was not looked at before.

        Raises:
            MulticloudDbError: `NOT_FOUND` if there is no such table; `INVALID_REQUEST` if the mark is
                damaged.
        """
        ...

    def complete(self, expected: Expected) -> None:
        """Remove from the mark that the table is incomplete, because it was proved to be complete.

        Args:
            expected: The table, as it was before the comparison. A mark that contains another time than then
                stays as it is.

        Raises:
            MulticloudDbError: As `fix`.
        """
        ...

    def fix(self, fixes: Sequence[Fix], expected: Expected) -> int:
        """Write rows in one commit, each only if its key still has exactly the rows that were seen.

        A row that has changed meanwhile stays as it is: the sink's change always wins.

        Args:
            fixes: At most one for each key. Without a document, the row becomes a tombstone; it is not made
                if there is no row. With `removes`, all rows of the key are removed, if there are still those
                that were seen, and the row `beside` as well. Without any, only the table is checked.
            expected: The table that was compared. The step that writes makes sure that it writes into this
                one, and not into another table of its name or an earlier version.

        Returns:
            The number of rows that were written.

        Raises:
            MulticloudDbError: `CONFLICT` if other commits prevented this one again and again;
                `INVALID_REQUEST` if the table is not the expected one.
        """
        ...


class Storage(Protocol):
    """What a sink needs of a table.

    `merge_batch` calls the methods that write in an order in which the process may be killed between any two
    of them. So each of them is one commit, or a part of the caller's transaction, and can be repeated.
    """

    @property
    def where(self) -> str:
        """The name of the table in messages, without secrets."""
        ...

    @property
    def exists(self) -> bool:
        """True if the table exists."""
        ...

    def is_empty(self) -> bool:
        """Return True if the table has never had a row, as far as it can tell."""
        ...

    def prepare(
        self, schema: pa.Schema, mark: TableMark | None = None, *, may_be_stale: bool = False
    ) -> None:
        """Make the table with a mark, or check it and add what is missing, for rows with these columns.

        Args:
            schema: The columns of the rows, without `type`. `_deleted_at` is added to them.
            mark: The mark of a table that is made.
            may_be_stale: True if the table needs the column `_stale_since`.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if a column has another type in the table, or one that the
                table cannot store exactly, or if it is new and the user has refused new ones.
        """
        ...

    @property
    def keeps_marks(self) -> bool:
        """True if marks can be stored with the table."""
        ...

    def mark(self, name: str) -> int | None:
        """Return a number that was stored with the table, or None.

        Args:
            name: The name of the number.
        """
        ...

    def store(self, marks: Mapping[str, int], notes: Mapping[str, str]) -> None:
        """Store numbers and texts in a commit that changes no row.

        Args:
            marks: The numbers by name; `mark` returns them.
            notes: What somebody who looks at the table may want to know, by name; nothing reads them.
        """
        ...

    def feed_mark(self) -> TableMark | None:
        """Return the mark that says whose changes the table contains, or None if it has none."""
        ...

    def set_feed_mark(self, mark: TableMark) -> None:
        """Replace the mark that says whose changes the table contains.

        Args:
            mark: The mark.

        Raises:
            MulticloudDbError: `CONFLICT` if the table has the mark of another feed, which `feed_mark` has not
                returned: another sink has filled it meanwhile.
        """
        ...

    def merge(self, rows: Any, notes: Mapping[str, str], *, is_last: bool) -> None:
        """Merge the last changes of some keys in one commit; possibly no row changes.

        Args:
            rows: The columns of `prepare` and `type`, with one row for each key. A row replaces that of its
                key only if its `order_key` is higher, as texts are compared by code points. `_deleted_at`
                becomes the time of now if `type` is DELETE, else null. In a table with `_stale_since`, a row
                that is no DELETE and has no document moves only `order_key`, and `_stale_since` becomes the
                time of now unless it has one; every other change empties `_stale_since`.
            notes: See `store`.
            is_last: True for the last rows of a batch.
        """
        ...

    def outdate(self, floor: str, marks: Mapping[str, int]) -> None:
        """Give rows from the floor on the `order_key` `""`, because a snapshot begins.

        Args:
            floor: The lowest `order_key` that a row of the snapshot or a later change has.
            marks: To store in the same commit, if possible; the caller stores those that are not there.
        """
        ...

    def bury(self, floor: str, marks: Mapping[str, int]) -> None:
        """Make tombstones of rows below the floor, because a snapshot has ended that did not contain them.

        Their `order_key` becomes the floor, `_deleted_at` the time of now unless they have one, and every
        other column null.

        Args:
            floor: As of `outdate`.
            marks: As of `outdate`.
        """
        ...

    def gone_back(self, query: str | None, done: Numbered | None) -> bool:
        """Return True if the table may have lost changes that the query will not deliver again.

        Args:
            query: The id of the query, or None for pages.
            done: The number of the batch.
        """
        ...


class Table(Storage, Target, Protocol):
    """A kind of table: what a sink writes, and `verify` compares and repairs; the base class of an author.

    Methods that not every kind of table needs have an answer here.
    """

    @property
    def where(self) -> str:
        """The name of the table, as `name`."""
        return self.name

    @property
    def keeps_marks(self) -> bool:
        """True."""
        return True

    def feed_mark(self) -> TableMark | None:
        """Return the mark of the table that was found."""
        return self.found().mark

    def gone_back(self, query: str | None, done: Numbered | None) -> bool:
        """Return False: the table does not go back to an earlier version on its own.

        Args:
            query: See `Storage.gone_back`.
            done: See `Storage.gone_back`.
        """
        del query, done
        return False

    def position(self) -> str | None:
        """Return None: the table stores no position."""
        return None


class Part(Protocol):
    """A part of one version of a table; it can be pickled, and read by another process."""

    def rows(self, keys: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Read the rows of the part, as `Target.rows` returns them.

        Args:
            keys: The keys to read, as JSON text; None for all rows.
        """
        ...


@runtime_checkable
class SupportsParts(Target, Protocol):
    """A target that several processes can read at the same time."""

    def parts(self, *, own: Own = False) -> Sequence[Part]:
        """Divide one version of the table, which is not older than the call.

        Args:
            own: See `Target.rows`.
        """
        ...


@runtime_checkable
class SupportsRecord(Protocol):
    """A target that can store in a commit when it was proved equal."""

    def record(self, facts: dict[str, str], expected: Expected) -> None:
        """Make a commit that changes no row, and contains facts.

        Args:
            facts: Names and texts.
            expected: The table that was compared.
        """
        ...


@runtime_checkable
class SupportsHeld(Protocol):
    """A target whose column of documents may not tell apart all documents that a source can."""

    def held(self) -> Callable[[Any], Any] | None:
        """Return what makes of a document the one that the column gives back; None if it is the same."""
        ...


@runtime_checkable
class SupportsLeftOut(Protocol):
    """A target whose sink may leave out keys, because the table cannot have them."""

    def left_out(self, keys: Sequence[str]) -> Collection[str]:
        """Return for which of some keys the sink writes no row, so that a missing row is expected.

        Args:
            keys: The keys, as JSON text.
        """
        ...
