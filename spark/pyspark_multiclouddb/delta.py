"""Defines the sink's Delta table: its columns, checks, commits, merges and snapshots.

If two threads or processes change a table at the same time, deltalake refuses the later commit. The sink can
safely repeat any of its commits, so it repeats a refused one on the latest version of the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from multiclouddb_api import invalid_request
from multiclouddb_tables.delta import (
    MARK,
    committed,
    feed_mark,
    found_in,
    in_backticks,
    quoted,
    said,
    schema_of,
    writable,
    written,
)
from multiclouddb_tables.delta_refusals import missing, unwritable
from multiclouddb_tables.mark import FeedSource, TableMark
from multiclouddb_tables.rules import (
    DELETED_AT,
    STALE_SINCE,
    TIME,
    Numbered,
    check_cases,
    check_stored,
    lacking_columns,
    lacks_state,
)

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable, Field

PLAN: Final = "_multiclouddb_plan"
"""The column of a frame that says whence a row comes.

The value is the id of the snapshot, or `LATEST_MARK` for a feed of latest versions; otherwise null.
"""
_TEXT: Final = ("key", "order_key")
_PLACE: Final = "multiclouddb.batch"
"""The name under which each commit of a sink says which batch of which query it belongs to."""
_LIMITS: Final = (8, 64, 512, 4096)


class DeltaStorage:
    """The table that a sink writes; the docstrings of `Storage` say what its methods do."""

    def __init__(
        self,
        where: str,
        *,
        create: bool,
        new_columns: Literal["add", "refuse"],
        place: Mapping[str, Any] | None = None,
    ) -> None:
        self._where, self._new_columns = where, new_columns
        self._place = dict(place or {})
        self._table = writable(where)
        if self._table is None and not create:
            raise missing(where)
        self._seen = None if self._table is None else found_in(self._table, where)

    @property
    def where(self) -> str:
        """The path or URL of the table."""
        return self._where

    def prepare(
        self, schema: pa.Schema, mark: TableMark | None = None, *, may_be_stale: bool = False
    ) -> None:
        """Prepare the table for rows with the given schema."""
        check_stored(schema)
        stored = _stored(schema)
        wanted = _stored_fields(stored.append(pa.field(STALE_SINCE, TIME)) if may_be_stale else stored)
        check_cases(wanted)
        if self._table is None:
            self._table = _created(self._where, schema, mark)
            self._seen = found_in(self._table, self._where)
        known = {field.name: _kind(field.type) for field in self._known().schema().fields}
        kinds = {name: _kind(field.type) for name, field in wanted.items()}
        if new := lacking_columns(self._where, kinds, known, self._new_columns):
            self._commit(lambda: self._add([wanted[name] for name in new]))

    @property
    def exists(self) -> bool:
        """Return True if the table exists."""
        return self._table is not None

    @property
    def keeps_marks(self) -> bool:
        """True, always."""
        return True

    def outdate(self, floor: str, marks: Mapping[str, int]) -> None:
        """Give rows from the floor on the lowest `order_key`; the marks follow in a commit of their own."""
        del marks
        table = self._known()
        self._commit(
            lambda: table.update(
                updates={"order_key": "''"},
                predicate=f"order_key >= {quoted(floor)}",
                commit_properties=self._properties({}),
            ),
        )

    def bury(self, floor: str, marks: Mapping[str, int]) -> None:
        """Make tombstones of rows below the floor; the marks follow in a commit of their own."""
        del marks
        table = self._known()
        kept = {*_TEXT, DELETED_AT, *table.metadata().partition_columns}
        fields = table.schema().fields
        if DELETED_AT not in {field.name for field in fields}:
            self.prepare(pa.schema([(name, pa.string()) for name in _TEXT]))
        micros = int(datetime.now(UTC).timestamp() * 1_000_000)
        gone = [field.name for field in fields if field.nullable and field.name not in kept]
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
        assert self._table is not None, "there is no table yet"
        names = {field.name for field in self._table.schema().fields}
        for name in _TEXT:
            if name not in names:
                problem = f"{self._where} has no column {name}"
                raise invalid_request("table_path", problem, "give a table that this sink created")
        return self._table

    def feed_mark(self) -> TableMark | None:
        """Return the mark among the properties of the table; from now on, no commit accepts another one."""
        mark = feed_mark(self._known(), self._where)
        self._seen = None if self._seen is None else attrs.evolve(self._seen, mark=mark)
        return mark

    def set_feed_mark(self, mark: TableMark) -> None:
        """Set the property, in a commit of its own."""
        self._set({MARK: mark.to_json()}, {}, mark.source)
        self.feed_mark()

    def _commit(self, commit: Callable[[], object], source: FeedSource | None = None) -> None:
        """Make a commit on a version of the table that was looked at when this object was made.

        Then the batch was found to belong into the table. Another table at the path, an earlier version, and
        the table of another feed are refused, although it was found to be the right one shortly before.
        """
        table = self._known()

        def check() -> None:
            if self._seen is not None:
                found_in(table, self._where, self._seen).check_still(self._seen, self._where, source)

        committed(table, commit, check=check)

    def _set(
        self, properties: dict[str, str], notes: Mapping[str, str], source: FeedSource | None = None
    ) -> None:
        # A property goes back with RESTORE, and with it what is known of a snapshot; the number of a
        # transaction, or what a commit says, would not.
        table, told = self._known(), self._properties(notes)
        self._commit(
            lambda: table.alter.set_table_properties(
                properties, raise_if_not_exists=False, commit_properties=told
            ),
            source,
        )

    def mark(self, name: str) -> int | None:
        """Return a number from the table's properties."""
        text = self._known().metadata().configuration.get(name)
        return None if text is None else int(text)

    def gone_back(self, query: str | None, done: Numbered | None) -> bool:
        """Return True if RESTORE may have taken back changes that the query will not deliver again.

        Each commit of a sink names its query and its batch. The log is read from its end: if a commit of the
        query comes first, then nothing was taken back since. If RESTORE comes first, then a commit before the
        restored version must prove that the table contains what came before this batch: the query has merged
        a batch there that began at the same offset, or the last rows of a batch that ended at it. The number
        alone is no proof if there is a checkpoint, because one that was restored from a copy gives the same
        numbers to other rows. A log that was cleaned up proves nothing.

        Args:
            query: The id of the query, or None for pages.
            done: The number of the batch, and its offsets.
        """
        table, is_back = self._known(), False
        until = int(table.version())
        for entry in _history(table):
            version = entry.get("version")
            if version is None or version > until:
                continue
            place = json.loads(entry.get(_PLACE) or "null")
            if entry.get("operation") == "RESTORE":
                is_back, to = True, entry.get("operationParameters", {}).get("version")
                if to is None or not str(to).isdigit():
                    return True
                until = int(to)
            if not isinstance(place, dict):
                continue
            is_own = place.get("query") == query
            if not is_back and (is_own or place.get("anew")):
                return False
            if is_back and is_own and done is not None and _precedes(place, done):
                return False
        return is_back

    def is_empty(self) -> bool:
        """Return True if the table has no file."""
        return not self._known().file_uris()

    def store(self, marks: Mapping[str, int], notes: Mapping[str, str]) -> None:
        """Set properties of the table, or make a commit that only contains notes."""
        from deltalake import write_deltalake

        if marks:
            self._set({name: str(number) for name, number in marks.items()}, notes)
            return
        nothing = schema_of(table := self._known()).empty_table()
        properties = self._properties(notes)
        self._commit(lambda: write_deltalake(table, nothing, mode="append", commit_properties=properties))
        table.update_incremental()

    def _add(self, fields: list[Field]) -> None:
        """Add the columns that the table does not have yet; another thread may have added some of them."""
        names = {field.name for field in self._known().schema().fields}
        if missing := [field for field in fields if field.name not in names]:
            self._known().alter.add_columns(missing, commit_properties=said({}))

    def _properties(self, notes: Mapping[str, str], **more: bool) -> CommitProperties:
        """Return what a commit says beside its rows."""
        return said({_PLACE: json.dumps({**self._place, **more}, sort_keys=True), **notes})

    def merge(self, rows: pa.Table, notes: Mapping[str, str], *, is_last: bool) -> None:
        """Merge the last changes of some keys in one commit. If nothing changes, there is no commit."""
        table, lacking = self._known(), lacks_state(rows)
        now, none = pa.scalar(datetime.now(UTC), TIME), pa.scalar(None, TIME)
        deleted = pc.if_else(pc.equal(rows["type"], "DELETE"), now, none)
        source = rows.drop_columns("type").append_column(pa.field(DELETED_AT, TIME), deleted)
        if may_be_stale := STALE_SINCE in {field.name for field in table.schema().fields}:
            source = source.append_column(pa.field(STALE_SINCE, TIME), pc.if_else(lacking, now, none))
        columns = {name: f"s.{name}" for name in map(in_backticks, source.column_names)}
        is_newer, has_state = "s.order_key > t.order_key", f"s.{STALE_SINCE} IS NULL"
        moved = {name: f"s.{name}" for name in ("order_key", DELETED_AT)}
        moved[STALE_SINCE] = f"coalesce(t.{STALE_SINCE}, s.{STALE_SINCE})"
        properties = self._properties(notes, done=True) if is_last else self._properties(notes)

        def commit() -> None:
            merger = table.merge(
                source,
                "s.key = t.key",
                source_alias="s",
                target_alias="t",
                commit_properties=properties,
                writer_properties=written(source.column_names),
                # deltalake finds the lowest and the highest key of the rows, and skips files that cannot
                # match.
                streamed_exec=False,
            )
            merger = merger.when_matched_update(
                columns, f"{is_newer} AND {has_state}" if may_be_stale else is_newer
            )
            if may_be_stale:
                merger = merger.when_matched_update(moved, f"{is_newer} AND NOT {has_state}")
            merger.when_not_matched_insert(columns).execute()

        self._commit(commit)


def _precedes(place: Mapping[str, Any], done: Numbered) -> bool:
    """Return whether a table with a commit of this place contains what comes before a batch."""
    if done.begin is not None:
        is_end = place.get("done") is True and place.get("end") == done.begin
        return is_end or place.get("begin") == done.begin
    batch = place.get("batch")
    if not isinstance(batch, int):
        return False
    return done.batch_id <= batch or (done.batch_id == batch + 1 and place.get("done") is True)


def _history(table: DeltaTable) -> Iterator[Mapping[str, Any]]:
    """Return what commits say, from the last one on; few are read if few are needed."""
    told = 0
    for limit in _LIMITS:
        entries = table.history(limit)
        yield from entries[told:]
        if len(entries) < limit:
            return
        told = len(entries)


def _created(where: str, schema: pa.Schema, mark: TableMark | None) -> DeltaTable:
    """Return a new table, or the table that another thread has just created there."""
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError, DeltaError

    stored, properties = _stored(schema), None if mark is None else {MARK: mark.to_json()}
    try:
        return DeltaTable.create(
            where, schema=stored, mode="ignore", configuration=properties, raise_if_key_not_exists=False
        )
    except CommitFailedError as error:
        try:
            return DeltaTable(where)
        except DeltaError:
            raise unwritable(where, error) from error
    except (DeltaError, OSError) as error:
        raise unwritable(where, error) from error


def _stored(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(DELETED_AT, TIME))


def _stored_fields(schema: pa.Schema) -> dict[str, Field]:
    """Return the columns in the form in which a Delta table declares them."""
    from deltalake import Schema

    fields: dict[str, Field] = {}
    for each in schema:
        cause = None
        try:
            [fields[each.name]] = Schema.from_arrow(pa.schema([each])).fields
        except Exception as error:  # noqa: BLE001 - deltalake raises no narrower class
            cause = error
        # 1. deltalake creates a table with nanoseconds, but cannot read it.
        # 2. It takes an unsigned column for a signed one, and panics at the first number that does not fit.
        is_lossy = cause is None and "timestamp_nanos" in _json(fields[each.name].type)
        if cause is not None or is_lossy or _has_unsigned(each.type):
            problem = f"is {each.type}, which a Delta table cannot store"
            raise invalid_request(f"column {each.name}", problem, "cast it, or leave it out") from cause
    return fields


def _has_unsigned(kind: pa.DataType) -> bool:
    """Return whether a type is unsigned, or has an unsigned part."""
    if pa.types.is_dictionary(kind):
        return _has_unsigned(kind.value_type)
    parts = [kind.field(number).type for number in range(kind.num_fields)]
    return pa.types.is_unsigned_integer(kind) or any(map(_has_unsigned, parts))


def _kind(of: object) -> str:
    """Return the name of a Delta type. The name does not say whether the type is nullable."""
    return re.sub(r',?"(nullable|containsNull|valueContainsNull)":(true|false)', "", _json(of)).strip('"')


def _json(of: object) -> str:
    return str(of.to_json())  # type: ignore[attr-defined]
