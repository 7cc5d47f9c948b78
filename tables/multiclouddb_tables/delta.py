"""Defines a Delta table that a sink keeps equal to a collection."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from multiclouddb_api import invalid_request
from multiclouddb_api.redaction import redact_url
from multiclouddb_api.validators import check_type, local_path
from multiclouddb_tables.batch import Numbered
from multiclouddb_tables.changes import LACKING
from multiclouddb_tables.column_values import SINKS
from multiclouddb_tables.contract import Fix, Own, Part, Table, check_position, check_writer
from multiclouddb_tables.delta_log import (
    MARK,
    PLACE,
    POSITION,
    WRITER,
    committed,
    created,
    dataset_of,
    feed_mark,
    found_in,
    has_gone_back,
    kind_of,
    opened,
    said,
    schema_of,
    stored_fields,
    unread,
    with_deleted_at,
    writable,
    written,
)
from multiclouddb_tables.delta_merge import emptied_in, emptying, merge_changes, merge_fixes
from multiclouddb_tables.delta_refusals import missing
from multiclouddb_tables.delta_rows import DeltaPart, batches_of, file_groups, names_of, orders_of, rows_of
from multiclouddb_tables.delta_values import check_values
from multiclouddb_tables.layout import check_columns, check_fixes, check_table
from multiclouddb_tables.mark import Expected, FeedSource, FoundTable, TableMark, declared_names, refilled
from multiclouddb_tables.rules import (
    DELETED_AT,
    STALE_SINCE,
    TIME,
    check_cases,
    check_new_columns,
    check_stored,
    lacking_columns,
)
from multiclouddb_tables.sql import in_backticks, quoted

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable, Field

__all__ = ["DeltaTarget"]

_T = TypeVar("_T")
_TEXT: Final = ("key", "order_key")


class DeltaTarget(Table):
    """A Delta table that `merge_into_delta` writes.

    Args:
        path: The path of a folder, or a URL that `deltalake` supports.
        patience_seconds: For how many seconds a repair is tried again while the sink commits; 600 by default.
        new_columns: For a sink: whether columns that the table does not have are added.
        place: For a sink: what each commit contains about its batch.

    Raises:
        MulticloudDbError: At the first read, `NOT_FOUND` if there is no table, and `INVALID_REQUEST` if it
            does not have the columns of the sink.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        patience_seconds: float = 600.0,
        new_columns: Literal["add", "refuse"] = "refuse",
        place: Mapping[str, Any] | None = None,
    ) -> None:
        check_type("patience_seconds", patience_seconds, int, float)
        check_new_columns(new_columns)
        check_type("place", place, Mapping, type(None))
        self._where = local_path("path", path)
        self._patience = patience_seconds
        self._new_columns, self._place = new_columns, dict(place or {})
        self.writer: str | None = None
        self._table: DeltaTable | None = None
        self._seen: FoundTable | None = None
        self._is_looked_at = False

    @property
    def name(self) -> str:
        """The path or URL, without secrets."""
        where = self._absolute
        return f"delta:{redact_url(where) if '://' in where else where}"

    @property
    def _absolute(self) -> str:
        return self._where if "://" in self._where else os.path.abspath(self._where)

    def rows(self, keys: Sequence[str] | None = None, *, own: Own = False) -> Iterator[pa.RecordBatch]:
        """Read the latest version of the table; see `Target.rows`.

        Args:
            keys: The keys to read; None for all rows.
            own: The table's own columns to read instead of `new_item_state`.
        """
        table = self._open(own=bool(own))
        if keys is None or keys:
            yield from rows_of(table, self._where, keys, own=own)

    def parts(self, *, own: Own = False) -> Sequence[Part]:
        """Divide the latest version of the table; see `SupportsParts.parts`.

        Args:
            own: The table's own columns to read instead of `new_item_state`.
        """
        table = self._open(own=bool(own))
        groups = file_groups(table, self._where)
        made, version = str(table.metadata().id), table.version()
        # A task may run in another folder than this process.
        where = self._absolute
        return [DeltaPart(where, made, version, own, frozenset(group)) for group in groups]

    def _open(self, *, own: bool, writes: bool = False) -> DeltaTable:
        table = writable(self._where) if writes else opened(self._where)
        if table is None:
            raise missing(self._where)
        check_table(self._where, names_of(table), own=own, argument="table_path")
        return table

    def columns(self) -> Mapping[str, pa.DataType | None]:
        """Return the columns that a document may be parsed into; see `Target.columns`."""
        return {
            field.name: field.type for field in schema_of(self._open(own=True)) if field.name not in SINKS
        }

    def found(self, since: FoundTable | None = None) -> FoundTable:
        """Return the table's id, latest version and mark; see `Target.found`.

        Args:
            since: What was found before.
        """
        return found_in(self._open(own=True), self._where, since)

    def _write(self, table: DeltaTable, expected: Expected, commit: Callable[[], _T]) -> _T:
        """Make a commit, if the loaded version is one of the expected table.

        The version shows which table it is, and a commit that is not the next one after it is refused. So
        nothing is written into a table that was made again at the path, or after RESTORE. Delta leaves one
        gap: if the whole folder is replaced between the last look at it and the commit, and the new log is
        shorter, that log gets a commit with a number that it has not reached.
        """
        return committed(
            table, commit,
            check=lambda: expected.check(found_in(table, self._where, expected.found), self.name),
            patience_seconds=self._patience, yields=True,
        )  # fmt: skip

    def complete(self, expected: Expected) -> None:
        """Set the table's property in a commit of its own; see `Target.complete`.

        Args:
            expected: The table, as it was before the comparison.
        """
        table = self._open(own=True)

        def commit() -> None:
            mark = expected.completed(feed_mark(table, self._where))
            if mark is not None:
                _set_properties(table, {MARK: mark.to_json()}, said({}))

        self._write(table, expected, commit)

    def fix(self, fixes: Sequence[Fix], expected: Expected) -> int:
        """Write rows in one commit; see `Target.fix`.

        Args:
            fixes: At most one for each key.
            expected: The table that was compared.

        Raises:
            MulticloudDbError: `CONFLICT` if the sink commits all the time; `INVALID_REQUEST` if the table has
                columns of its own and no `transform` was given, or if it is not the expected one.
        """
        own = any(fix.columns is not None for fix in fixes)
        table = self._open(own=own, writes=True)
        names = names_of(table)
        check_fixes(self._where, names, fixes, feed_mark(table, self._where), argument="table_path")
        # A key with several rows gets one of them back in the same commit. Which rows there are is read from
        # the version on which the commit is based: if another commit comes first, this one is refused.
        several = [fix.key for fix in fixes if len(fix.seen) > 1 or fix.removes]
        several += [fix.beside[0] for fix in fixes if fix.beside is not None]

        def is_as_seen(fix: Fix, there: Mapping[str, list[str]]) -> bool:
            if (len(fix.seen) > 1 or fix.removes) and sorted(fix.seen) != there.get(fix.key):
                return False
            return fix.beside is None or there.get(fix.beside[0]) == [fix.beside[1]]

        def commit() -> int:
            there = orders_of(table, self._where, several)
            kept = [fix for fix in fixes if is_as_seen(fix, there)]
            if not kept:
                return 0
            given = {name for fix in fixes for name in fix.columns or ()}
            columns = [name for name in names if name in SINKS or name in given]
            return merge_fixes(table, self._where, columns, kept)

        return self._write(table, expected, commit)

    def record(self, facts: dict[str, str], expected: Expected) -> None:
        """Make a commit that changes no row, and contains facts.

        Args:
            facts: Names and texts.
            expected: The table that was compared.
        """
        from deltalake import write_deltalake

        table = self._open(own=True, writes=True)
        nothing, properties = schema_of(table).empty_table(), said(facts)
        self._write(
            table, expected,
            lambda: write_deltalake(table, nothing, mode="append", commit_properties=properties),
        )  # fmt: skip

    # What a sink does: it makes one object for each batch, which looks at the table once.

    @property
    def where(self) -> str:
        """The path or URL of the table."""
        return self._where

    @property
    def exists(self) -> bool:
        """True if the table exists."""
        if not self._is_looked_at:
            self._is_looked_at, self._table = True, writable(self._where)
            self._seen = None if self._table is None else found_in(self._table, self._where)
        return self._table is not None

    def prepare(
        self, schema: pa.Schema, mark: TableMark | None = None, *, may_be_stale: bool = False
    ) -> None:
        """Prepare the table for rows with the given schema.

        Args:
            schema: See `Table.prepare`.
            mark: See `Table.prepare`.
            may_be_stale: See `Table.prepare`.
        """
        check_stored(schema)
        stored = with_deleted_at(schema)
        wanted = stored_fields(stored.append(pa.field(STALE_SINCE, TIME)) if may_be_stale else stored)
        check_cases(wanted)
        if not self.exists:
            self._table = created(self._where, schema, mark, self.writer)
            self._seen = found_in(self._table, self._where)
        declared = declared_names(mark)
        if self._lacking(wanted, declared):
            self._commit(lambda: self._add(wanted, declared))

    def redeclare(self, schema: pa.Schema, names: Sequence[str], mark: TableMark) -> None:
        """Give columns the types of another declaration, in one commit, which writes the table anew.

        Args:
            schema: See `Table.redeclare`.
            names: See `Table.redeclare`.
            mark: See `Table.redeclare`.
        """
        table = self._known()
        wanted = stored_fields(pa.schema([field for field in schema if field.name in names]))
        by_name = {field.name: field for field in schema}

        def commit() -> None:
            if feed_mark(table, self._where) != mark:
                raise refilled(self.name)
            known = schema_of(table)
            check_cases(wanted, known.names)
            there = [name for name in names if name in known.names]
            if table.file_uris() == []:
                # In an empty table, a column of the right type stays, also one by which it is partitioned.
                kinds = {field.name: kind_of(field.type) for field in table.schema().fields}
                there = [
                    name for name in there if name not in wanted or kind_of(wanted[name].type) != kinds[name]
                ]
            if not there:
                if new := [field for name, field in wanted.items() if name not in known.names]:
                    table.alter.add_columns(new, commit_properties=said({}))
                return
            if parted := [name for name in there if name in table.metadata().partition_columns]:
                raise invalid_request(
                    f"column {parted[0]}",
                    f"is one by which {self._where} is partitioned, so it cannot be filled again",
                    "fill a new table with the new declaration, from a snapshot, and then drop this one",
                )
            fields = [by_name.get(each.name, each) if each.name in there else each for each in known]
            fields += [by_name[name] for name in wanted if name not in known.names]
            self._rewrite(table, pa.schema(fields), there)

        self._commit(commit)
        table.update_incremental()

    def _rewrite(self, table: DeltaTable, schema: pa.Schema, emptied: Sequence[str]) -> None:
        """Write all rows anew, with other columns, and with null in some of them."""
        from deltalake import write_deltalake

        dataset = dataset_of(table, self._where)
        kept = [name for name in dataset.schema.names if name not in emptied]

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in batches_of(dataset, kept, None, is_plain=False):
                columns = [
                    batch[field.name].cast(field.type)
                    if field.name in kept
                    else pa.nulls(batch.num_rows, field.type)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

        write_deltalake(
            table,
            pa.RecordBatchReader.from_batches(schema, batches()),
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=table.metadata().partition_columns or None,
            writer_properties=written(schema.names),
            commit_properties=self._properties({}),
        )

    def count(self) -> int:
        """Return the number of rows, from the footers of the files."""
        table = self._known()
        try:
            return int(dataset_of(table, self._where).count_rows())
        except OSError as error:
            raise unread(table, self._where, error) from error

    def outdate(self, floor: str, numbers: Mapping[str, int]) -> None:
        """Set the `order_key` of rows from the floor on to `""`; the numbers follow in a commit of their own.

        Args:
            floor: See `Table.outdate`.
            numbers: See `Table.outdate`.
        """
        del numbers
        table = self._known()
        self._commit(
            lambda: table.update(
                updates={"order_key": "''"},
                predicate=f"order_key >= {quoted(floor)}",
                commit_properties=self._properties({}),
            ),
        )

    def bury(self, floor: str, numbers: Mapping[str, int]) -> None:
        """Make tombstones of rows below the floor; the numbers follow in a commit of their own.

        Args:
            floor: See `Table.bury`.
            numbers: See `Table.bury`.
        """
        del numbers
        table = self._known()
        fields = table.schema().fields
        if DELETED_AT not in {field.name for field in fields}:
            self.prepare(pa.schema([(name, pa.string()) for name in _TEXT]))
        micros = int(datetime.now(UTC).timestamp() * 1_000_000)
        gone = self._emptied()
        if STALE_SINCE in {field.name for field in fields}:
            gone.append(STALE_SINCE)
        updates = {in_backticks(name): "NULL" for name in gone} | {
            "order_key": quoted(floor),
            DELETED_AT: f"coalesce({DELETED_AT}, to_timestamp_micros({micros}))",
        }
        self._commit(
            lambda: table.update(
                updates=updates,
                predicate=f"order_key < {quoted(floor)}",
                commit_properties=self._properties({}),
            ),
        )

    def _known(self) -> DeltaTable:
        if not self.exists:
            raise missing(self._where)
        assert self._table is not None
        check_columns(self._where, names_of(self._table), _TEXT, argument="table_path")
        return self._table

    def feed_mark(self) -> TableMark | None:
        """Return the mark among the properties of the table; from now on, no commit accepts another one."""
        mark = feed_mark(self._known(), self._where)
        self._seen = None if self._seen is None else attrs.evolve(self._seen, mark=mark)
        return mark

    def set_feed_mark(self, mark: TableMark) -> None:
        """Set the property, in a commit of its own.

        Args:
            mark: See `Table.set_feed_mark`.
        """
        self._set({MARK: mark.to_json()}, {}, mark.source)
        self.feed_mark()

    def _commit(self, commit: Callable[[], object], source: FeedSource | None = None) -> None:
        """Make a commit on a version of the table that was looked at when this object was made.

        At that moment it was decided that the batch belongs into the table. So another table at the path, an
        earlier version, and the table of another feed are refused.
        """
        table = self._known()
        committed(table, commit, check=lambda: self._check_seen(table, source))

    def _check_seen(self, table: DeltaTable, source: FeedSource | None) -> None:
        if self._seen is not None:
            found_in(table, self._where, self._seen).check_still(self._seen, self._where, source)
        if self.writer is not None:
            check_writer(table.metadata().configuration.get(WRITER), self.writer, self._where)

    def _set(
        self, properties: dict[str, str], notes: Mapping[str, str], source: FeedSource | None = None
    ) -> None:
        # A property goes back with RESTORE, and with it what is known of a snapshot; the number of a
        # transaction, or what a commit says, would not.
        table, told = self._known(), self._properties(notes)
        self._commit(lambda: _set_properties(table, properties, told), source)

    def number(self, name: str) -> int | None:
        """Return a number from the table's properties.

        Args:
            name: See `Table.number`.
        """
        text = self._known().metadata().configuration.get(name)
        return None if text is None else int(text)

    def position(self) -> str | None:
        """Return the position among the properties of the table; None if there is no table, or none in it.

        RESTORE brings back the position of its version together with the rows.
        """
        table = opened(self._where)
        return None if table is None else table.metadata().configuration.get(POSITION)

    def store_position(self, token: str, before: str | None) -> None:
        """Set the property, in a commit of its own; see `SupportsPosition.store_position`.

        Args:
            token: The token of the page.
            before: The position that was stored before.
        """
        table, told = self._known(), self._properties({})

        def check() -> None:
            self._check_seen(table, None)
            check_position(table.metadata().configuration.get(POSITION), before, self._where)

        committed(table, lambda: _set_properties(table, {POSITION: token}, told), check=check)

    def claimed(self) -> str | None:
        """Return the value of the job that has claimed the table; see `SupportsPosition.claimed`."""
        table = opened(self._where)
        return None if table is None else table.metadata().configuration.get(WRITER)

    def claim(self, before: str | None) -> None:
        """Set the property, in a commit of its own; see `SupportsPosition.claim`.

        Args:
            before: The value that was there when the job began.
        """
        table, told, writer = self._known(), self._properties({}), self.writer
        assert writer is not None

        def check() -> None:
            check_writer(table.metadata().configuration.get(WRITER), before, self._where)

        committed(table, lambda: _set_properties(table, {WRITER: writer}, told), check=check)

    def gone_back(self, query: str | None, done: Numbered | None) -> bool:
        """Return True if RESTORE may have taken back changes; see `has_gone_back`.

        Args:
            query: The id of the query, or None for pages.
            done: The number of the batch, and its offsets.
        """
        return has_gone_back(self._known(), query, done)

    def is_empty(self) -> bool:
        """Return True if no file of the table has a row; one without statistics counts as one with rows."""
        # Spark adds a file without rows when it writes an empty DataFrame.
        actions = pa.table(self._known().get_add_actions(flatten=True))
        rows = actions["num_records"] if "num_records" in actions.column_names else pa.nulls(len(actions))
        return not len(actions) or bool(pc.all(pc.equal(rows, 0), skip_nulls=False).as_py())

    def store(self, numbers: Mapping[str, int], notes: Mapping[str, str]) -> None:
        """Set properties of the table, or make a commit that only contains notes.

        Args:
            numbers: See `Table.store`.
            notes: See `Table.store`.
        """
        from deltalake import write_deltalake

        if numbers:
            self._set({name: str(number) for name, number in numbers.items()}, notes)
            return
        nothing = schema_of(table := self._known()).empty_table()
        properties = self._properties(notes)
        self._commit(lambda: write_deltalake(table, nothing, mode="append", commit_properties=properties))
        table.update_incremental()

    def _lacking(self, wanted: Mapping[str, Field], declared: Sequence[str]) -> list[str]:
        """Return the columns that the loaded version lacks; refuse one that it has with another type."""
        known = {field.name: kind_of(field.type) for field in self._known().schema().fields}
        kinds = {name: kind_of(field.type) for name, field in wanted.items()}
        return lacking_columns(self._where, kinds, known, self._new_columns, declared)

    def _add(self, wanted: Mapping[str, Field], declared: Sequence[str]) -> None:
        """Add the columns that the table does not have yet; another sink may have added some of them."""
        if new := self._lacking(wanted, declared):
            fields = [wanted[name] for name in new]
            self._known().alter.add_columns(fields, commit_properties=said({}))

    def _emptied(self, written: Sequence[str] = ()) -> list[str]:
        return emptied_in(self._known(), None if self._seen is None else self._seen.mark, written)

    def _properties(self, notes: Mapping[str, str], **more: bool) -> CommitProperties:
        return said({PLACE: json.dumps({**self._place, **more}, sort_keys=True), **notes})

    def merge(self, rows: pa.Table, notes: Mapping[str, str], *, is_last: bool) -> None:
        """Merge the last changes of some keys in one commit. If nothing changes, there is no commit.

        Args:
            rows: See `Table.merge`.
            notes: See `Table.merge`.
            is_last: See `Table.merge`.
        """
        table, lacking = self._known(), pc.equal(rows["type"].cast(pa.string()), LACKING)
        now, none = pa.scalar(datetime.now(UTC), TIME), pa.scalar(None, TIME)
        deleted = pc.if_else(pc.equal(rows["type"], "DELETE"), now, none)
        source = rows.drop_columns("type").append_column(pa.field(DELETED_AT, TIME), deleted)
        if STALE_SINCE in {field.name for field in table.schema().fields}:
            source = source.append_column(pa.field(STALE_SINCE, TIME), pc.if_else(lacking, now, none))
        check_values(table, self._where, source)
        lacked = emptying(self._emptied(source.column_names))
        if self._seen is not None and self._seen.mark is not None:
            lacked = dict.fromkeys(lacked, "NULL")  # the sink's own columns, which the batch lacks
        properties = self._properties(notes, done=True) if is_last else self._properties(notes)
        self._commit(lambda: merge_changes(table, source, lacked, properties))


def _set_properties(table: DeltaTable, properties: dict[str, str], told: CommitProperties) -> None:
    table.alter.set_table_properties(properties, raise_if_not_exists=False, commit_properties=told)
