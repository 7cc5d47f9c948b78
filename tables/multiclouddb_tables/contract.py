"""Defines what a kind of table does: `Target` for `verify`, `Table` for `verify` and a sink.

`verify` judges by its own canonical values what a table says here. So a row is read as it is stored: nothing
may make of a value in the table what the source has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import attrs
import pyarrow as pa

from multiclouddb_api import ErrorCategory, ErrorDetail, ErrorReason, MulticloudDbError
from multiclouddb_tables.batch import Numbered
from multiclouddb_tables.column_values import ColumnType
from multiclouddb_tables.conversion import Unheld
from multiclouddb_tables.mark import Expected, FoundTable, TableMark

__all__ = [
    "Fix",
    "Own",
    "Part",
    "SupportsHeld",
    "SupportsLeftOut",
    "SupportsParts",
    "SupportsPosition",
    "SupportsRecord",
    "SupportsUnheld",
    "Table",
    "Target",
]


Own: TypeAlias = bool | Collection[str]
"""What to read of a row: False for its document, names for these columns, True for all columns but those that
the sink writes itself."""


@attrs.frozen
class Fix:
    """One row that a repair writes, provided that the table still has what `verify` has seen."""

    key: str
    """The key, as JSON text."""
    seen: tuple[str, ...]
    """The `order_key` of each row of the key that `verify` has seen; empty if there was no row."""
    order_key: str
    """The `order_key` to write."""
    text: str | None = attrs.field(repr=False)
    """The source's document, as JSON text; None if the source has none."""
    columns: Mapping[str, Any] | None = attrs.field(repr=False)
    """With `transform`, the values of the columns that it fills; all other columns keep theirs."""
    timestamp: datetime
    """The time of the repair."""
    removes: bool = False
    """True to remove the rows of the key, because the sink never writes a key with this text."""
    beside: tuple[str, str] | None = None
    """With `removes`, the key and the `order_key` of another row; if it is not in the table, nothing is
    removed. None if there is no such condition."""


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
        """Return the type of each column that `transform` may fill.

        These are all columns except those that the sink writes itself, such as `new_item_state`.
        """
        ...

    def rows(self, keys: Sequence[str] | None = None, *, own: Own = False) -> Iterator[pa.RecordBatch]:
        """Read one version of the table, which is not older than the call.

        `layout.read_rows` makes the batches. If the table cannot forbid several rows of one key, yield all of
        them.

        Args:
            keys: The keys to read, as JSON text, possibly thousands; None for all rows. An empty list reads
                nothing, but checks the table.
            own: The columns to read instead of the document, as one object in `state`. `layout.state_of`
                makes this object from the values as the database returns them: `datetime` in UTC for a time,
                `Decimal`, `bytes`, `date`. A value that the sink would not have written, such as a text in a
                column of numbers, is returned as it is.

        Returns:
            Batches with the columns `key` (text), `order_key` (text; `layout.NO_ORDER` for null), `state`
            (the JSON text of the document as it is stored, or null) and `deleted` (true for a tombstone);
            none if there is no row. All batches of a call are of one version, also if a sink commits
            meanwhile, but two calls may read different versions.

        Raises:
            MulticloudDbError: `NOT_FOUND` if there is no such table; `INVALID_REQUEST` if it is not the table
                of a sink. `TRANSIENT_FAILURE` if the version was removed while it was read; the caller reads
                again from the beginning.
        """
        ...

    def position(self) -> str | None:
        """Return the token that the sink has stored with the table, or None if it stores none there."""
        ...

    def found(self, since: FoundTable | None = None) -> FoundTable:
        """Return which table is there now, and the mark of its sink.

        Args:
            since: What was found before; None if the table was not looked at before.

        Raises:
            MulticloudDbError: `NOT_FOUND` if there is no such table; `INVALID_REQUEST` if the mark is
                damaged.
        """
        ...

    def complete(self, expected: Expected) -> None:
        """Remove `incomplete_since` from the mark, after a comparison has proved that the table is complete.

        Args:
            expected: The table as it was before the comparison. If its mark has another `incomplete_since`
                now, there was another gap meanwhile, and the mark stays as it is.

        Raises:
            MulticloudDbError: As `fix`.
        """
        ...

    def fix(self, fixes: Sequence[Fix], expected: Expected) -> int:
        """Write rows in one commit, each only if its key still has exactly the rows that were seen.

        So the sink always wins: a row that it has changed meanwhile stays as it is. `layout.fixed_row`
        returns the values to write, by column, from what `mark.emptied` returns for the table. The table may
        lack some of these columns; all its other columns stay as they are. A value may be one that its column
        cannot hold, such as a text for a column of numbers or an integer of 70 bits: refuse it before the
        database converts it.

        Args:
            fixes: At most one for each key; with none, only the table is checked. The row is updated, or
                inserted if none was seen; of several rows of a key, one is left. A fix without a document
                makes a tombstone of the row, if there is one. A fix with `removes` removes all rows of the
                key, if they are still those that were seen and the row `beside` was there before this call.
            expected: The table that was compared. Check in the same commit that the rows go into this table,
                and not into another table of its name or an earlier version.

        Returns:
            The number of rows that were written.

        Raises:
            MulticloudDbError: `CONFLICT` if other commits prevented this one again and again;
                `INVALID_REQUEST` if the table is not the expected one.
        """
        ...


class Table(Target, Protocol):
    """The base class for a kind of table, which a sink writes and `verify` compares and repairs.

    The process may be killed between any two calls. So each method that writes must be one commit, or a part
    of the caller's transaction, and it must be safe to call it again.
    """

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
        """Create the table for rows with these columns, or check it and add the columns that it lacks.

        Each Arrow type becomes a type of the database that holds every value exactly. If there is no such
        type, store a text or a number, and let the column's declared type show what it stands for, such as
        `DECIMAL_TEXT(9,2)` in SQLite, because `columns` has to return the Arrow type, and `rows` the value.
        If two processes create the table at the same time, one of them succeeds, and both go on with this
        table.

        Args:
            schema: The columns of the rows, without `type`: `key`, `order_key`, usually `timestamp` and
                `new_item_state`, then the user's, with names as the user has written them. `_deleted_at` is
                added to these columns.
            mark: The mark of a table that is created.
            may_be_stale: True if the table needs the column `_stale_since`.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if a column has another type in the table, has a type that
                the table cannot store exactly, or is new although the user has refused new ones.
        """
        ...

    def redeclare(self, schema: pa.Schema, names: Sequence[str], mark: TableMark) -> None:
        """Give columns the types of another declaration, with null in each row.

        A column that the table lacks is added; one of another type is made anew; one of the same type, and
        one that the schema does not have, is emptied. No value is ever converted. The rows keep everything
        else, their `order_key` too.

        Args:
            schema: The columns of the declaration, and those of a change.
            names: The columns. One that neither the schema nor the table has is left out.
            mark: The mark that the table has. Raise a retryable `CONFLICT` if it has another one now, because
                another sink has begun to fill the columns.

        Raises:
            MulticloudDbError: `UNSUPPORTED_CAPABILITY`, the default, for a kind of table that cannot.
        """
        del schema, mark
        raise MulticloudDbError(
            f"columns: the columns {', '.join(names)} of {self.where} cannot be filled again in this kind of "
            "table; fill a new table with the new declaration, from a snapshot, and then drop this one",
            ErrorDetail(ErrorCategory.UNSUPPORTED_CAPABILITY, reason=ErrorReason.NOT_OFFERED),
        )

    def count(self) -> int:
        """Return the number of rows, with tombstones."""
        return sum(batch.num_rows for batch in self.rows(own=True))

    def number(self, name: str) -> int | None:
        """Return a number that was stored with the table, or None.

        Args:
            name: The name of the number, a text of up to a few hundred characters.
        """
        ...

    def store(self, numbers: Mapping[str, int], notes: Mapping[str, str]) -> None:
        """Store numbers and texts in a commit that changes no row.

        Args:
            numbers: By name; `number` returns them.
            notes: What somebody who looks at the table may want to know, by name; nothing reads them.
        """
        ...

    def set_feed_mark(self, mark: TableMark) -> None:
        """Replace the mark of the sink: store its `to_json()`, which `TableMark.from_json` reads.

        Of two feeds that create one table at the same time, only one may fill it. So raise what
        `FoundTable.check_still` raises.

        Args:
            mark: The mark.

        Raises:
            MulticloudDbError: `CONFLICT` if the table has the mark of another feed, which `feed_mark` has not
                returned: another sink has filled it meanwhile.
        """
        ...

    def merge(self, rows: Any, notes: Mapping[str, str], *, is_last: bool) -> None:
        """Merge the last changes of some keys in one commit; possibly no row changes.

        One of the `rows` replaces the table's row of its key only if its `order_key` is higher, compared as
        text by code points. `_deleted_at` becomes the current time if `type` is DELETE, and otherwise null.
        A change of the type LACKING has no document: it changes only `order_key`, and `_stale_since` becomes
        the current time unless it is set already; with every other change, `_stale_since` becomes null. The
        columns that the `rows` lack become null if `mark.lacked` returns them, and otherwise stay.

        Args:
            rows: The columns of `prepare` and `type`, with one row for each key.
            notes: See `store`.
            is_last: True for the last rows of a batch.
        """
        ...

    def outdate(self, floor: str, numbers: Mapping[str, int]) -> None:
        """Set the `order_key` of all rows from the floor on to `""`, because a snapshot begins.

        Args:
            floor: The lowest `order_key` that a row of the snapshot or a later change has.
            numbers: What to store in the same commit if that is possible; if not, the caller stores them.
        """
        ...

    def bury(self, floor: str, numbers: Mapping[str, int]) -> None:
        """Make tombstones of all rows below the floor, because a snapshot has ended that did not have them.

        Their `order_key` becomes the floor, `_deleted_at` the current time unless it is set already, and the
        columns that `mark.emptied` returns null.

        Args:
            floor: See `outdate`.
            numbers: See `outdate`.
        """
        ...

    # Methods that not every kind of table needs.

    unheld: ClassVar[tuple[Unheld, ...]] = ()
    """Values of declared columns that this kind of table does not have; each of them is a misfit."""

    @property
    def where(self) -> str:
        """The name of the table in messages of the sink, without secrets; by default `name`."""
        return self.name

    @property
    def keeps_marks(self) -> bool:
        """True if the mark of a feed, and numbers, can be stored with the table, as by default."""
        return True

    def kept_open(self) -> AbstractContextManager[None]:
        """Keep open, for the calls of one merge, what each would open again; nothing by default."""
        return nullcontext()

    def feed_mark(self) -> TableMark | None:
        """Return the mark of the sink, or None if the table has none."""
        return self.found().mark

    def gone_back(self, query: str | None, done: Numbered | None) -> bool:
        """Return True if the table may have lost changes that the query will not deliver again.

        False by default, for a table that cannot go back to an earlier version on its own.

        Args:
            query: The id of the query, or None for pages.
            done: The number of the batch, or None if it has none.
        """
        del query, done
        return False

    def position(self) -> str | None:
        """Return the stored position; None by default, for a table that stores none."""
        return None


@runtime_checkable
class SupportsPosition(Protocol):
    """A table that stores the position of its feed with the rows, so that both go back together.

    It also stores who writes it: a value that each job makes anew, and puts in place of the one that it has
    found. From then on no step of another job succeeds, whether that one is alive or was killed, so nothing
    has to expire and nobody has to remove anything.
    """

    writer: str | None
    """The value of the job that uses this object: each step checks in its commit that the table still has
    it, and a table that is made gets it. None, the default, to check nothing."""

    def claimed(self) -> str | None:
        """Return the value of the job that has claimed the table last; None if none has."""
        ...

    def claim(self, before: str | None) -> None:
        """Put `writer` in place of the value of another job.

        Args:
            before: The value that was there when this job began.

        Raises:
            MulticloudDbError: `CONFLICT` if another one is there by now.
        """
        ...

    def position(self) -> str | None:
        """Return the token of the last page whose changes are in the table, or None if none is stored."""
        ...

    def store_position(self, token: str, before: str | None) -> None:
        """Store the position after a page was merged.

        Args:
            token: The token of the page.
            before: The position that was stored before; None if there was none.

        Raises:
            MulticloudDbError: `CONFLICT` if another one is stored by now, because a second process writes the
                table.
        """
        ...


def check_position(stored: object, before: str | None, where: str) -> None:
    """Refuse to replace a position that another process has stored, or that was removed.

    Args:
        stored: The position that is stored now.
        before: The one that is expected.
        where: The name of the table, for the message.

    Raises:
        MulticloudDbError: `CONFLICT` if it is another one.
    """
    _check_kept(stored, before, where)
    if stored != before:
        raise MulticloudDbError(
            f"table: another process has stored a position in {where} meanwhile; let one process write the "
            "table, and start this one again when the other has ended",
            ErrorDetail(ErrorCategory.CONFLICT, reason=ErrorReason.OTHER_WRITER),
        )


def check_writer(stored: object, writer: str | None, where: str) -> None:
    """Refuse a step of a job if another one has claimed the table, or its claim was removed.

    Args:
        stored: The value that is stored now.
        writer: The value that is expected.
        where: The name of the table, for the message.

    Raises:
        MulticloudDbError: `CONFLICT` if it is another one.
    """
    _check_kept(stored, writer, where)
    if stored != writer:
        raise MulticloudDbError(
            f"table: another process has begun to write {where}, and nothing of this step was written; let "
            "one process write the table, and start this one again when the other has ended",
            ErrorDetail(ErrorCategory.CONFLICT, reason=ErrorReason.OTHER_WRITER),
        )


class Part(Protocol):
    """A part of one version of a table, which can be pickled and read in another process."""

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
        """Divide one version of the table into parts; it is not older than the call.

        Args:
            own: See `Target.rows`.
        """
        ...


@runtime_checkable
class SupportsRecord(Protocol):
    """A target that can store when it was proved equal."""

    def record(self, facts: dict[str, str], expected: Expected) -> None:
        """Store facts in a commit that changes no row.

        Args:
            facts: The facts, by name.
            expected: The table that was compared.
        """
        ...


@runtime_checkable
class SupportsHeld(Protocol):
    """A target whose documents may come back changed, such as a `jsonb` column of PostgreSQL."""

    def held(self) -> Callable[[Any], Any] | None:
        """Return a function from a document to what the table gives back of it; None if that is the same."""
        ...


@runtime_checkable
class SupportsUnheld(Protocol):
    """A target that says which values its columns do not have; one without this has all."""

    @property
    def unheld(self) -> tuple[Unheld, ...]:
        """What is a misfit in each declared column."""
        ...


@runtime_checkable
class SupportsLeftOut(Protocol):
    """A target whose sink may leave out keys that the table cannot hold."""

    def left_out(self, keys: Sequence[str]) -> Collection[str]:
        """Return those of the keys for which the sink writes no row; their missing rows are expected.

        Args:
            keys: The keys, as JSON text.
        """
        ...


def _check_kept(stored: object, expected: str | None, where: str) -> None:
    """Refuse a step if what was stored before it is gone, which is no sign of another process."""
    if stored is None and expected is not None:
        raise MulticloudDbError(
            f"table: what this process has stored in {where} is gone: somebody has removed it, or restored "
            "the table; start this process again, which goes on from what the table has",
            ErrorDetail(ErrorCategory.CONFLICT, reason=ErrorReason.DELETED),
        )
