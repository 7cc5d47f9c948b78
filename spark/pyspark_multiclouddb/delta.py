"""Defines the sink's Delta table: its columns, checks, commits, merges and snapshots.

If two threads or processes change a table at the same time, deltalake refuses the later commit. The sink can
safely repeat any of its commits, so it repeats a refused one on the latest version of the table.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from multiclouddb_api import ChangeType, MulticloudDbError, invalid_request
from multiclouddb_spi.faults import AFTER_AN_OUTAGE
from multiclouddb_spi.sink_rules import STALE_SINCE, lacks_state
from multiclouddb_verify.delta import (
    DELETED_AT,
    TIME,
    cannot_be_written,
    committed,
    in_backticks,
    missing,
    opened,
    quoted,
    written,
)
from pyspark_multiclouddb.errors import REPAIR

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable, Field, Transaction

    from pyspark_multiclouddb.checkpoint import Scan

CHANGE_TYPES: Final = tuple(kind.value for kind in ChangeType)
"""The values of the column `type`."""
PLAN: Final = "_multiclouddb_plan"
"""The column of a frame that says whence a row comes.

The value is the id of the snapshot, or `LATEST_MARK` for a feed of latest versions; otherwise null.
"""
_LOG: Final = logging.getLogger("multiclouddb.spark")
_TEXT: Final = ("key", "order_key")
_OURS: Final = (DELETED_AT, STALE_SINCE)
_SNAPSHOT: Final = "multiclouddb-snapshot"
"""The beginning of the name of the transaction that records how far a snapshot was merged.

The name also contains the id of the snapshot.
"""
_LATEST: Final = "multiclouddb-latest"
"""The name of the transaction that records whether the table was filled from a feed of latest versions."""
_QUERY: Final = "multiclouddb-query:"
"""The beginning of the name of the transaction that records which query uses an `app_id`."""
_BEGUN: Final = 0
_ENDED: Final = 1
_SAID: Final = set[tuple[str, str]]()
"""The tables and names about which a warning was logged."""
_NEW_QUERY: Final = "with startingPosition=snapshot, this table, and a checkpointLocation of its own"


@attrs.frozen
class Piece:
    """One part of a batch."""

    rows: pa.Table
    is_last: bool
    plan: str | None
    is_incomplete: bool
    is_latest: bool | None = None  # whether the feed contains only latest versions; None if it is not known


@attrs.frozen
class Numbered:
    """The number of a batch, as a table stores it, with what its commit says about changes that it lacks."""

    app_id: str
    batch_id: int
    query: str | None
    notes: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def digest(self) -> int | None:
        """The query's id as a number, because a table stores only a number beside a name."""
        if self.query is None:
            return None
        return int.from_bytes(hashlib.blake2b(self.query.encode(), digest_size=8).digest()) >> 1


class Target:
    """The table that a sink writes."""

    def __init__(self, where: str, *, create: bool, new_columns: Literal["add", "refuse"]) -> None:
        if new_columns not in ("add", "refuse"):
            raise invalid_request("new_columns", f"is {new_columns!r}", "give 'add' or 'refuse'")
        self._where, self._create, self._new_columns = where, create, new_columns
        self._table = opened(where)
        if self._table is None and not create:
            raise missing(where)

    def has(self, batch: Numbered) -> bool:
        """Return True if the table already contains all changes of this batch or of a later batch."""
        if self._table is None:
            return False
        # If it is not known which query has stored the number, the batch is merged again, which changes
        # nothing; a batch that is left out by mistake would be lost.
        if batch.query is not None:
            stored = self._table.transaction_version(_QUERY + batch.app_id)
            if stored is None:
                return False
            if stored != batch.digest:
                raise self._used(batch)
        last = self._table.transaction_version(batch.app_id)
        return last is not None and last >= batch.batch_id

    def prepare(self, schema: pa.Schema, *, may_be_stale: bool = False) -> None:
        """Prepare the table for rows with the given schema."""
        for name in _OURS:
            if name in schema.names:
                raise invalid_request(
                    "batch", f"has a column {name}", "the sink writes this column; rename yours"
                )
        for name in _TEXT:
            if not (pa.types.is_string(kind := schema.field(name).type) or pa.types.is_large_string(kind)):
                raise invalid_request(f"column {name}", f"is {kind}", "pass the column of the data source")
        stored = _stored(schema)
        wanted = _stored_fields(stored.append(pa.field(STALE_SINCE, TIME)) if may_be_stale else stored)
        check_cases(wanted)
        if self._table is None:
            self._table = _created(self._where, schema)
        known = {field.name: field for field in self._known().schema().fields}
        for name, field in wanted.items():
            if name in known and _kind(known[name].type) != _kind(field.type):
                ours, theirs = (_json(each.type).strip('"') for each in (field, known[name]))
                problem = f"is {ours} in the batch and {theirs} in {self._where}"
                raise invalid_request(f"column {name}", problem, "cast it, or give it another name")
        check_cases(wanted, known)
        new = [field for name, field in wanted.items() if name not in known]
        refused = [field.name for field in new if field.name not in _OURS]
        if refused and self._new_columns == "refuse":
            raise invalid_request(
                "batch",
                f"has columns that {self._where} does not have: {', '.join(refused)}",
                "leave them out, or set new_columns='add'",
            )
        if new:
            committed(self._table, lambda: self._add(new))

    @property
    def exists(self) -> bool:
        """Return True if the table exists."""
        return self._table is not None

    def begin(self, scan: Scan) -> None:
        """Mark all rows of the table as older than a snapshot, before its first rows are merged."""
        # 1. Rows of the snapshot, and every change after it, then have priority over the rows in the table. A
        #    row below the floor needs no change; every other row gets the lowest `order_key`.
        # 2. One commit marks the rows and contains the snapshot's id, so they are marked once.
        # 3. If rows of the snapshot may have been merged before this call, older rows cannot be told apart.
        if self._stage(scan.plan) is not None:
            return
        if scan.is_first and scan.whole:
            committed(
                table := self._known(),
                lambda: table.update(
                    updates={"order_key": "''"},
                    predicate=f"order_key >= {quoted(scan.floor)}",
                    commit_properties=self._note(scan.plan, _BEGUN),
                ),
            )
        elif not scan.was_over:
            self._check_empty()
        self._ensure(scan.plan, _ENDED if scan.was_over else _BEGUN)

    def end(self, scan: Scan) -> None:
        """Turn documents that a snapshot did not contain into tombstones, after its last rows were merged."""
        if self._stage(scan.plan) == _ENDED:
            return
        table = self._known()
        kept = {*_TEXT, DELETED_AT, *table.metadata().partition_columns}
        fields = table.schema().fields
        if DELETED_AT not in {field.name for field in fields}:
            self.prepare(pa.schema([(name, pa.string()) for name in _TEXT]))
        micros = int(datetime.now(UTC).timestamp() * 1_000_000)
        gone = [field.name for field in fields if field.nullable and field.name not in kept]
        updates = {in_backticks(name): "NULL" for name in gone} | {
            "order_key": quoted(scan.floor),
            DELETED_AT: f"coalesce({DELETED_AT}, to_timestamp_micros({micros}))",
        }
        committed(
            table,
            lambda: table.update(
                updates=updates,
                predicate=f"order_key < {quoted(scan.floor)}",
                commit_properties=self._note(scan.plan, _ENDED),
            ),
        )
        self._ensure(scan.plan, _ENDED)

    def accept(self, plan: str) -> None:
        """Accept rows of a snapshot if the sink does not know where the snapshot begins and ends."""
        # Otherwise, documents that were deleted before the snapshot would stay in the table.
        if self._stage(plan) is None:
            self._check_empty()
            self._ensure(plan, _BEGUN)

    def _check_empty(self) -> None:
        """Refuse a snapshot of which the table has no mark, unless the table has no rows."""
        if not self._is_empty():
            raise invalid_request(
                "batch",
                f"contains rows of a snapshot, of which {self._where} has no mark, and the table contains "
                "older rows, which cannot be distinguished from those of the snapshot: checkpoint= was not "
                "given when the snapshot began, or its page with SnapshotStarted was not passed, or the "
                "snapshot does not deliver every row",
                f"start a query {_NEW_QUERY}, and pass checkpoint= from its first batch on; without Spark, "
                "read the whole collection from Snapshot(), and pass every page; or use a new table; see "
                f"{AFTER_AN_OUTAGE}",
            )

    def noted(self, batch: Numbered) -> Numbered:
        """Return the batch of a query that does not begin with a snapshot, with a note if it is new here."""
        # Nobody knows which changes lie between the rows of a table and a query that is new there.
        marks = map(self._known().transaction_version, (batch.app_id, _QUERY + batch.app_id))
        if batch.query is None or any(mark is not None for mark in marks) or self._is_empty():
            return batch
        text = (
            f"app_id {batch.app_id!r} is new in {self._where}, which has rows, and its query does not begin "
        )
        text += f"with a snapshot; if the query replaces another one, then {REPAIR}"
        if (self._where, batch.app_id) not in _SAID:
            _SAID.add((self._where, batch.app_id))
            _LOG.warning("%s", text)
        return attrs.evolve(batch, notes={"multiclouddb.warning": text, **batch.notes})

    def check_mode(self, *, is_latest: bool) -> None:
        """Refuse changes of a feed of latest versions in a table of another feed, and the other way round."""
        stored = self._known().transaction_version(_LATEST)
        if (stored == 1) == is_latest:
            return
        if not self._is_empty():
            ours, theirs = ("only latest versions", "all versions and deletes")[:: 1 if is_latest else -1]
            raise invalid_request(
                "batch",
                f"comes from a feed with {ours}, but {self._where} was filled from a feed with {theirs}: "
                "deletes would be missing, or come back",
                "read with the mode with which the table was filled; or begin again in a new table, with a "
                "checkpointLocation and an app_id of its own, and start this feed at its beginning",
            )
        from deltalake import CommitProperties, Transaction

        self._commit_nothing(CommitProperties(app_transactions=[Transaction(_LATEST, int(is_latest))]))

    def check_unused(self, scan: Scan, batch: Numbered) -> None:
        """Refuse a batch that is recorded as merged although its snapshot has not begun."""
        if scan.is_first and self._stage(scan.plan) is None:
            raise self._used(batch)

    def _used(self, batch: Numbered) -> MulticloudDbError:
        return invalid_request(
            "app_id",
            f"is {batch.app_id!r}, under which another query has merged batches into {self._where}; their "
            f"numbers do not count for the batches of this query",
            f"use another app_id for each checkpoint directory; {REPAIR}",
        )

    def _known(self) -> DeltaTable:
        assert self._table is not None, "there is no table yet"
        names = {field.name for field in self._table.schema().fields}
        for name in _TEXT:
            if name not in names:
                problem = f"{self._where} has no column {name}"
                raise invalid_request("table_path", problem, "give a table that this sink created")
        return self._table

    def _stage(self, plan: str) -> int | None:
        return self._known().transaction_version(f"{_SNAPSHOT}:{plan}")

    def _is_empty(self) -> bool:
        return not self._known().file_uris()

    def _note(self, plan: str, stage: int) -> CommitProperties:
        """Return the text that a commit stores about a snapshot."""
        from deltalake import CommitProperties, Transaction

        return CommitProperties(app_transactions=[Transaction(f"{_SNAPSHOT}:{plan}", stage)])

    def _ensure(self, plan: str, stage: int) -> None:
        """Store the stage of a snapshot in a separate commit, unless an earlier commit has stored it."""
        if self._stage(plan) != stage:
            self._commit_nothing(self._note(plan, stage))

    def note(self, batch: Numbered) -> None:
        """Store the number of a batch that has changed no row, and what the batch lacks."""
        self._commit_nothing(self._properties(batch, is_last=True))

    def _commit_nothing(self, properties: CommitProperties) -> None:
        from deltalake import write_deltalake

        nothing = (table := self._known()).to_pyarrow_dataset().schema.empty_table()
        committed(table, lambda: write_deltalake(table, nothing, mode="append", commit_properties=properties))
        table.update_incremental()

    def _add(self, fields: list[Field]) -> None:
        """Add the columns that the table does not have yet; another thread may have added some of them."""
        names = {field.name for field in self._known().schema().fields}
        if missing := [field for field in fields if field.name not in names]:
            self._known().alter.add_columns(missing)

    def merge(self, rows: pa.Table, batch: Numbered | None, *, is_last: bool) -> None:
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
        properties = None if batch is None else self._properties(batch, is_last=is_last)

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

        committed(table, commit)

    def _properties(self, batch: Numbered, *, is_last: bool) -> CommitProperties:
        from deltalake import CommitProperties

        marks = self._marks(batch, is_last=is_last)
        return CommitProperties(dict(batch.notes) or None, app_transactions=marks)

    def _marks(self, batch: Numbered, *, is_last: bool) -> list[Transaction]:
        """Return the marks that a commit stores about a batch."""
        from deltalake import Transaction

        marks = [Transaction(batch.app_id, batch.batch_id)] if is_last else []
        if batch.digest is None:
            return marks
        name = _QUERY + batch.app_id
        last, stored = map(self._known().transaction_version, (batch.app_id, name))
        if last is not None and stored is None:
            if not is_last:
                return []  # the stored number must not count for this query before the batch is complete
            _LOG.warning(
                "app_id %r: %s contains its batches up to %d, but does not say which query has merged them. "
                "Batch %d is merged, and from now on only the query with this checkpoint can use the app_id. "
                "If the checkpoint directory is new, changes may be missing; %s",
                batch.app_id, self._where, last, batch.batch_id, REPAIR,
            )  # fmt: skip
        return [*marks, Transaction(name, batch.digest)]


def _created(where: str, schema: pa.Schema) -> DeltaTable:
    """Return a new table, or the table that another thread has just created there."""
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError, DeltaError

    stored = _stored(schema)
    try:
        return DeltaTable.create(where, schema=stored, mode="ignore")
    except CommitFailedError as error:
        try:
            return DeltaTable(where)
        except DeltaError:
            raise cannot_be_written(where, error) from error
    except (DeltaError, OSError) as error:
        raise cannot_be_written(where, error) from error


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
        # deltalake creates a table with nanoseconds, but cannot read it.
        if cause is not None or "timestamp_nanos" in _json(fields[each.name].type):
            problem = f"is {each.type}, which a Delta table cannot store"
            raise invalid_request(f"column {each.name}", problem, "cast it, or leave it out") from cause
    return fields


def check_cases(wanted: Iterable[str], known: Iterable[str] = ()) -> None:
    """Refuse a column whose name differs from another one only in upper and lower case."""
    spelled = {name.lower(): name for name in known}
    for name in wanted:
        other = spelled.setdefault(name.lower(), name)
        if other != name:
            raise invalid_request(
                f"column {name}",
                f"differs from the column {other} only in upper and lower case",
                "rename one of the two",
            )


def incomplete_rows() -> MulticloudDbError:
    """Make the error for a batch with a missing value, or with a `type` that is no change type."""
    return invalid_request(
        "batch",
        "has rows without key, order_key or type, or whose type is not CREATE, UPDATE or DELETE",
        "pass the rows of the data source, and give other names to columns that you add",
    )


def _kind(of: object) -> str:
    """Return the name of a Delta type. The name does not say whether the type is nullable."""
    return re.sub(r'"(nullable|containsNull|valueContainsNull)":(true|false)', "", _json(of))


def _json(of: object) -> str:
    return str(of.to_json())  # type: ignore[attr-defined]
