"""Merges a batch into the table of a sink, of whatever kind.

`MergeRules` says which batches a table accepts, and `merge_batch` the order of the steps. The stages of a
snapshot, and which queries have begun, are numbers that the table stores, so a process may be killed between
any two commits.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import attrs
import pyarrow as pa

from multiclouddb_api import (
    ChangeFeedPage,
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    MulticloudDbError,
    invalid_request,
)
from multiclouddb_api.redaction import rfc3339
from multiclouddb_api.validators import check_type
from multiclouddb_spi.faults import AFTER_AN_OUTAGE
from multiclouddb_tables.batch import (
    Create,
    MergeBatch,
    MergedSnapshot,
    MissingState,
    Told,
    batch_of,
    check_options,
    concerns,
    new_query,
    other_rows,
    repair,
    rows_stay,
)
from multiclouddb_tables.changes import nameless, piece_of, stored_schema, table_of
from multiclouddb_tables.columns import RESCUED, Columns
from multiclouddb_tables.contract import Table
from multiclouddb_tables.conversion import cutter
from multiclouddb_tables.layout import missing, own_names
from multiclouddb_tables.mark import FeedSource, TableMark
from multiclouddb_tables.rules import DELETED_AT, PAGE_SCHEMA, STALE_SINCE, check_cases

_LOG: Final = logging.getLogger("multiclouddb.tables")
_SNAPSHOT: Final = "multiclouddb-snapshot"
"""The name of the number that records how far a snapshot was merged; the snapshot's id follows."""
_LATEST: Final = "multiclouddb-latest"
"""The name of the number that records whether the table was filled from a feed of latest versions."""
_QUERY: Final = "multiclouddb-query:"
"""The name of the number that records that a query has begun in the table; the query's id follows."""
FILLED: Final = "multiclouddb-filled"
"""The name of the number that is 1 if a row was merged into the table, and tombstones alone were not removed
since."""
_LACKING: Final = "multiclouddb-lacking"
"""The name of the number that records which gap a snapshot repairs; the snapshot's id follows."""
_REFILL: Final = "multiclouddb-refill"
"""The name of the number that records which refill of columns a snapshot completes; its id follows."""
_BEGUN: Final = 0
_ENDED: Final = 1
_SAID: Final = set[tuple[str, str]]()
"""The tables and names about which a warning was logged."""
_NEW_QUERY: Final = "with startingPosition=snapshot, this table, and a checkpointLocation of its own"


class MergeRules:
    """The rules of snapshots and batch numbers, for a table.

    Args:
        table: The table.
        sink: The name of the sink's function, for messages.
    """

    def __init__(self, table: Table, sink: str) -> None:
        self._table, self._repair = table, repair(sink)

    def claim(
        self, batch: MergeBatch, source: FeedSource | None, schema: Any, *, may_be_stale: bool = False
    ) -> None:
        """Make the table ready for columns of a feed, and refuse another feed than that of its mark.

        Args:
            batch: The batch.
            source: The feed that the rows name.
            schema: The columns of the rows.
            may_be_stale: True if the table needs the column `STALE_SINCE`.
        """
        stored = self._table.feed_mark() if self._table.exists else None
        wanted = self._marked(stored, batch, source, schema.names)
        stale = (STALE_SINCE,) if may_be_stale else ()
        wanted = None if wanted is None else wanted.with_columns(stale)
        stored, wanted = self._redeclared(stored, wanted)
        self._table.prepare(schema, wanted, may_be_stale=may_be_stale)
        found = self._table.feed_mark()
        if found not in (stored, wanted):
            # Another sink has made or marked the table since it was looked at.
            wanted = self._marked(found, batch, source, schema.names)
            wanted = None if wanted is None else wanted.with_columns(stale)
        if wanted is not None and found != wanted:
            self._table.set_feed_mark(wanted)

    def claim_empty(self, batch: MergeBatch) -> None:
        """Make the table for a batch without rows, or check the mark of the table that there is."""
        if not self._table.exists:
            schema = PAGE_SCHEMA if batch.is_page else batch.empty_schema()
            self.claim(batch, None, schema if batch.columns is None else batch.columns.schema(schema))
            return
        stored = self._table.feed_mark()
        stored, wanted = self._redeclared(stored, self._marked(stored, batch, None, ()))
        if wanted is not None and wanted != stored:
            self._table.set_feed_mark(wanted)

    def _marked(
        self, stored: TableMark | None, batch: MergeBatch, rows: FeedSource | None, names: Sequence[str]
    ) -> TableMark | None:
        where, source, columns = self._table.where, rows or batch.source, (*names, DELETED_AT)
        if rows is not None and batch.source is not None and not rows.may_be(batch.source):
            problem = f"is {batch.source} in source= or in the checkpoint, but the rows come from {rows}"
            reason = ErrorReason.WRONG_RESOURCE
            if batch.source.address == rows.address and batch.source.provider == rows.provider:
                problem += ", which was dropped and created again"
                reason = ErrorReason.RECREATED
            raise invalid_request("source", problem, "pass the rows of that feed", reason)
        if source is None:
            return stored  # a batch without rows
        is_wide = stored is not None and (stored.provider, stored.address) == (
            source.provider,
            source.address,
        )
        if stored is not None and is_wide and source.collection is None:
            source = attrs.evolve(source, collection=stored.source.collection)
        elif (
            stored is not None and is_wide and stored.source.collection is None and not self._table.is_empty()
        ):
            raise invalid_request(
                "table",
                f"{where} is filled from {stored.source}, and its mark does not name the one collection "
                "of its rows, so rows of several may have replaced each other",
                "fill a new table for each collection, from a snapshot of it; then drop this one",
            )
        if stored is None or (batch.begins_anew and stored.source != source):
            anew = TableMark(source, columns)
            if stored is not None and stored.declared is not None:
                anew = attrs.evolve(stored.with_columns(columns), source=source, incomplete_since=None)
            return _since(self._declared(anew, stored, batch), batch)
        if not stored.source.may_be(source):
            same = stored.source.collection == source.collection
            reason = ErrorReason.WRONG_RESOURCE
            if same and (stored.provider, stored.address) == (source.provider, source.address):
                problem = f"comes from {source}, which was dropped and created again after {where} was filled"
                way_out = f"rows of the old collection would stay; {new_query('the sink')}"
                reason = ErrorReason.RECREATED
            elif is_wide:
                problem = (
                    f"has rows of {source.collection}, but {where} has those of {stored.source.collection}"
                )
                way_out = "use a table of its own for each collection"
            else:
                problem = f"comes from {source}, but {where} is filled from {stored.source}"
                way_out = "use a table of its own for each collection"
            raise invalid_request("batch", problem, way_out, reason)
        return _since(self._declared(stored.learned(source).with_columns(columns), stored, batch), batch)

    def check_columns(self, batch: MergeBatch) -> None:
        """Refuse a batch with another declaration than the table has, unless its columns are filled again."""
        if batch.columns is not None and self._table.exists and not self._table.keeps_marks:
            raise MulticloudDbError(
                f"columns: the catalog of {self._table.where} stores no properties, so nothing would keep "
                "the declaration; make the columns of the DataFrame with .schema(…), or use a table "
                "of another catalog",
                ErrorDetail(ErrorCategory.UNSUPPORTED_CAPABILITY, reason=ErrorReason.NOT_OFFERED),
            )
        if self._table.exists and (stored := self._table.feed_mark()) is not None:
            self._declared(stored, stored, batch)

    def declares_anew(self, batch: MergeBatch) -> bool:
        """Return whether the table has another declaration than a batch, which is stored without rows too."""
        stored = self._table.feed_mark() if batch.columns is not None and self._table.exists else None
        return stored is not None and stored.declared != batch.columns

    def _declared(self, mark: TableMark, stored: TableMark | None, batch: MergeBatch) -> TableMark:
        """Return a mark with the declaration of a batch, and with the columns that have to be filled for it.

        Args:
            mark: The mark.
            stored: The mark that the table has.
            batch: The batch.
        """
        wanted, found = batch.columns, None if stored is None else stored.declared
        if wanted is None:
            if found not in (None, Columns({})):
                assert found is not None
                raise invalid_request(
                    "columns",
                    f"is not given, but {self._table.where} has declared columns: {', '.join(found.names)}",
                    "pass the same declaration, such as columns=Columns.from_toml(…); with Columns({}) and "
                    "refill=True, the table gets none",
                    ErrorReason.OTHER_COLUMNS,
                )
            return mark
        if wanted == found:
            return mark
        mark = attrs.evolve(mark, declared=wanted).with_columns(wanted.names)
        if not self._table.exists:
            return mark
        check_cases(wanted.names, self._table.columns())
        to_fill, gone = _differing(wanted, stored)
        mark = attrs.evolve(mark, columns=tuple(name for name in mark.columns if name not in gone))
        if self._table.is_empty():
            return attrs.evolve(mark, unfilled=(), changing=_once(*wanted.names, *to_fill))
        added = (RESCUED,) if wanted.misfits == "rescue" else ()
        if not to_fill:
            return attrs.evolve(mark, changing=_once(*mark.changing, *added))
        self._check_refill(wanted, to_fill, stored, agreed=batch.refill, begins_anew=batch.begins_anew)
        names = _once(*to_fill, *mark.unfilled)
        return attrs.evolve(mark, unfilled=names, changing=_once(*names, *added), refills=mark.refills + 1)

    def check_declaration(self, wanted: Columns, *, refill: bool) -> bool:
        """Compare a declaration with that of the table before anything is read, and refuse another one.

        Args:
            wanted: The declaration.
            refill: True if the user has agreed that a snapshot fills the columns.

        Returns:
            True if a snapshot has to fill columns of the table.
        """
        stored = self._table.feed_mark() if self._table.exists else None
        if stored is None:
            return False
        if wanted == stored.declared:
            return bool(stored.unfilled)
        names, _ = _differing(wanted, stored)
        if not names or self._table.is_empty():
            return False
        self._check_refill(wanted, names, stored, agreed=refill, begins_anew=True)
        return True

    def _check_refill(
        self,
        wanted: Columns,
        names: Sequence[str],
        stored: TableMark | None,
        *,
        agreed: bool,
        begins_anew: bool,
    ) -> None:
        """Refuse to fill columns of a table with rows, unless the user has agreed and a snapshot begins."""
        where = self._table.where
        before = None if stored is None else stored.declared
        told = ", ".join(f"{name} ({wanted.told(name, before)})" for name in names)
        count = self._table.count()
        cost = (
            "the whole collection is read again for that; the table has "
            f"{count:,} row{'' if count == 1 else 's'}, and "
            "multiclouddb verify … --estimate prints the time and the units of a scan"
        )
        begin = "read it from Snapshot() under a new checkpoint, and pass every page"
        if not agreed:
            raise invalid_request(
                "columns",
                f"has another declaration than {where}, in which these columns have to be filled: {told}; "
                f"{cost}; nothing was merged",
                f"{begin}, with refill=True; or pass the declaration that the table has",
                ErrorReason.OTHER_COLUMNS,
            )
        if not begins_anew:
            raise invalid_request(
                "refill",
                f"needs a snapshot of the whole collection to fill {told} in {where}, and none begins on "
                "this batch; nothing was merged",
                begin,
                ErrorReason.OTHER_COLUMNS,
            )

    def _redeclared(
        self, stored: TableMark | None, wanted: TableMark | None
    ) -> tuple[TableMark | None, TableMark | None]:
        """Add, empty and change the columns of another declaration; return the mark before and after it.

        The mark says first which columns these are. So if the process is killed, the next one does the same
        again; and it is over before the first row of the snapshot is merged.
        """
        if wanted is None or wanted.declared is None or not wanted.changing or not self._table.exists:
            return stored, wanted
        if wanted != stored:
            self._table.set_feed_mark(wanted)
        try:
            self._table.redeclare(wanted.declared.schema(PAGE_SCHEMA), wanted.changing, wanted)
        except MulticloudDbError as error:
            if error.detail.category == ErrorCategory.INVALID_REQUEST and stored is not None:
                # The table cannot have these columns, and has all its values: its old declaration holds.
                self._table.set_feed_mark(stored)
            raise
        done = attrs.evolve(wanted, changing=())
        self._table.set_feed_mark(done)
        return done, done

    def check_notices(self, batch: MergeBatch) -> None:
        """Refuse a batch if other rows exist after it, because the table's collection was dropped or renamed.

        A feed of a database or a cluster also has notices of collections whose rows are in other tables.
        """
        source = batch.source
        if source is not None and source.collection is None and self._table.exists:
            mark = self._table.feed_mark()
            is_wide = mark is not None and (mark.provider, mark.address) == (source.provider, source.address)
            source = mark.source if mark is not None and is_wide else source
        for notice in batch.notices:
            what = other_rows(notice)
            if what is not None and (source is None or concerns(notice, source)):
                raise rows_stay(what)

    def check_place(self, batch: MergeBatch) -> None:
        """Refuse a batch whose query has delivered rows before, if the table does not contain them.

        A batch is never left out, because merging it again changes nothing. But what came before it is not
        delivered again: if the table was dropped, replaced or restored since, or the checkpoint is that of
        another table, then rows would be missing for good.
        """
        if batch.is_first or batch.begins_anew or batch.create == "always":
            return
        self._check_filled(batch)
        if batch.is_first is None:
            return
        where = self._table.where
        way_out, because = self._repair, ""
        if batch.create is not None:
            way_out += '; or pass create="always" if you know that no row is missing'
            because = ", for example because the checkpoint was restored to the same time"
        if not self._table.exists:
            raise MulticloudDbError(
                f"table: {where} does not exist, but the query of this batch has delivered rows before, or "
                "began with a batch without rows that was not passed: pass every batch, also an empty one; "
                f"else the table was dropped, or the checkpoint is that of another table; {way_out}",
                ErrorDetail(ErrorCategory.NOT_FOUND, reason=ErrorReason.ROWS_MISSING),
            )
        if not self._is_known(batch.query):
            raise invalid_request(
                "table",
                f"{where} does not contain what the query of this batch has delivered before: it has no mark "
                "of it, so it was made again or belongs to another query, or the first batch, number 0, was "
                "not passed",
                f"pass every batch, also an empty one, or checkpoint=; else {way_out}",
                ErrorReason.ROWS_MISSING,
            )
        if self._table.gone_back(batch.query, batch.done):
            raise invalid_request(
                "table",
                f"{where} was restored to an earlier version, and the query does not deliver again what the "
                "table has lost by that",
                way_out + because,
                ErrorReason.ROWS_MISSING,
            )

    def _check_filled(self, batch: MergeBatch) -> None:
        """Refuse a table that has no row any more: a sink leaves a tombstone for each document it removes."""
        table = self._table
        if not (table.exists and table.keeps_marks and table.number(FILLED) and table.is_empty()):
            return
        way_out = self._repair
        if batch.create is not None:
            way_out += '; or pass create="always" for this batch if only tombstones were removed'
        raise invalid_request(
            "table", f"{table.where} is empty, but a sink has merged rows into it: somebody has removed them",
            way_out, ErrorReason.ROWS_MISSING,
        )  # fmt: skip

    def filled(self) -> None:
        """Record that the table has a row."""
        # With long_keys="skip", a merge may write none.
        if self._table.keeps_marks and not self._table.number(FILLED) and not self._table.is_empty():
            self._table.store({FILLED: 1}, {})

    def _is_known(self, query: str | None) -> bool:
        """Return whether the table knows the query, or any feed if the query has no name."""
        if not self._table.keeps_marks:
            return True
        if query is None:
            return self._table.feed_mark() is not None
        return self._table.number(_QUERY + query) is not None

    def begun(self, batch: MergeBatch) -> None:
        """Record that the query of a batch has begun in the table."""
        if batch.query is not None and self._table.keeps_marks:
            name = _QUERY + batch.query
            if self._table.number(name) is None:
                self._table.store({name: 1}, {})

    def begin(self, scan: MergedSnapshot) -> None:
        """Mark all rows of the table as older than a snapshot, before its first rows are merged."""
        # Rows of the snapshot, and every change after it, then have priority over the rows in the table. A
        # row below the floor needs no change; every other row gets the lowest `order_key`. One commit marks
        # the rows and contains the snapshot's id, so they are marked once. Later batches need the number:
        # without it, earlier rows of the snapshot were in another table, or cannot be told apart from older
        # ones. A table with rows may get its checkpoint after the scan.
        if self._table.exists and self._stage(scan.plan) is not None:
            return
        if scan.is_first and scan.whole:
            # The collection may be empty now, and then the table stays so if somebody has emptied it.
            mark = self._table.feed_mark() if self._table.exists else None
            refill = {f"{_REFILL}:{scan.plan}": mark.refills} if mark is not None and mark.unfilled else {}
            numbers = {**_staged(scan.plan, _BEGUN), **self._lacking(scan.plan), **refill, FILLED: 0}
            self._table.outdate(scan.floor, numbers)
            if self._stage(scan.plan) is None:
                self._table.store(numbers, {})
        elif scan.is_first:
            self._check_empty()
        elif not (scan.was_over and self._table.exists and not self._table.is_empty()):
            raise self._unmarked()
        self._ensure(scan.plan, _ENDED if scan.was_over else _BEGUN)

    def end(self, scan: MergedSnapshot) -> None:
        """Turn documents that a snapshot did not contain into tombstones, after its last rows were merged."""
        if self._stage(scan.plan) != _ENDED:
            self._table.bury(scan.floor, _staged(scan.plan, _ENDED))
        # A whole snapshot has brought what was lost before it began. What is lost during its scan may be a
        # change of a row that it had read already.
        mark, lacking = self._table.feed_mark(), self._lacking(scan.plan)
        after = mark
        if after is not None and any(self._table.number(name) == each for name, each in lacking.items()):
            after = attrs.evolve(after, incomplete_since=None)
        if after is not None and after.unfilled:
            # A snapshot that began before the refill has merged rows without the new columns.
            is_refill = self._table.number(f"{_REFILL}:{scan.plan}") == after.refills
            after = attrs.evolve(after, unfilled=()) if is_refill else after
        if after is not None and after != mark:
            self._table.set_feed_mark(after)
        self._ensure(scan.plan, _ENDED)

    def _lacking(self, plan: str) -> Mapping[str, int]:
        """Return the number of the gap that a snapshot repairs; none if the table lacks nothing."""
        mark = self._table.feed_mark() if self._table.exists else None
        if mark is None or mark.incomplete_since is None:
            return {}
        at = datetime.fromisoformat(mark.incomplete_since)
        return {f"{_LACKING}:{plan}": (at - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)}

    def accept(self, plan: str, *, is_page: bool) -> None:
        """Accept rows of a snapshot if the sink does not know where the snapshot begins and ends."""
        # Otherwise, documents that were deleted before the snapshot would stay in the table. Of a page, the
        # sink knows that an earlier one has begun the snapshot.
        if self._stage(plan) is None:
            if is_page:
                raise self._unmarked()
            self._check_empty()
            self._ensure(plan, _BEGUN)

    def notes(self, batch: MergeBatch) -> Mapping[str, str]:
        """Return the notes of a batch, and a warning if its query is new here and begins with no snapshot."""
        # It is not known which changes lie between the rows of a table and a query that is new there.
        done, where = batch.done, self._table.where
        if done is None:
            return {}
        if batch.scan is not None or done.query is None or self._is_known(batch.query):
            return done.notes
        if self._table.is_empty():
            return done.notes
        text = (
            f"the query {done.app_id or done.query!r} is new in {where}, which has rows, and does not begin "
        )
        text += f"with a snapshot; if the query replaces another one, then {self._repair}"
        if (where, done.query) not in _SAID:
            _SAID.add((where, done.query))
            _LOG.warning("%s", text)
        return {"multiclouddb.warning": text, **done.notes}

    def check_mode(self, *, is_latest: bool) -> None:
        """Refuse changes of a feed of latest versions in a table of another feed, and the other way round."""
        stored = self._table.number(_LATEST)
        if (stored == 1) == is_latest:
            return
        if not self._table.is_empty():
            ours, theirs = ("only latest versions", "all versions and deletes")[:: 1 if is_latest else -1]
            raise invalid_request(
                "batch",
                f"comes from a feed with {ours}, but {self._table.where} was filled from a feed with "
                f"{theirs}: deletes would be missing, or come back",
                "read with the mode with which the table was filled; or begin again in a new table, with a "
                "checkpointLocation and an app_id of its own, and start this feed at its beginning",
                ErrorReason.WRONG_OPTIONS,
            )
        self._table.store({_LATEST: int(is_latest)}, {})

    def _stage(self, plan: str) -> int | None:
        return self._table.number(f"{_SNAPSHOT}:{plan}")

    def _ensure(self, plan: str, stage: int) -> None:
        """Store the stage of a snapshot in a separate commit, unless an earlier commit has stored it."""
        if self._stage(plan) != stage:
            self._table.store(_staged(plan, stage), {})

    def _check_empty(self) -> None:
        """Refuse a snapshot of which the table has no mark, unless the table has no rows."""
        if not self._table.is_empty():
            raise self._unmarked()

    def _unmarked(self) -> MulticloudDbError:
        return invalid_request(
            "batch",
            f"belongs to a snapshot of which {self._table.where} has no mark, so the table may lack rows, "
            "or have rows from before the snapshot: it was dropped or made again meanwhile, or its "
            "page with SnapshotStarted was not passed, or the snapshot does not deliver every row",
            f"start a query {_NEW_QUERY}, and pass checkpoint= from its first batch on; without Spark, "
            "read the whole collection from Snapshot(), and pass every page; or use a new table; see "
            f"{AFTER_AN_OUTAGE}",
            ErrorReason.ROWS_MISSING,
        )


def merge_changes(
    table: Table,
    sink: str,
    batch: pa.Table | ChangeFeedPage,
    batch_id: int | None = None,
    app_id: str | None = None,
    *,
    create: Create = "first",
    missing_state: MissingState = "refuse",
    source: str | None = None,
    columns: Columns | None = None,
    refill: bool = False,
) -> bool:
    """Merge a page, or an Arrow table of changes, into a table: the body of a sink without Spark.

    Args:
        table: The table.
        sink: The name of the sink's function, for messages.
        batch: A page of `read_changes`, or a pyarrow table with the columns of the events.
        batch_id: As in `merge_into_delta`.
        app_id: As in `merge_into_delta`.
        create: As in `merge_into_delta`.
        missing_state: As in `merge_into_delta`.
        source: As in `merge_into_delta`.
        columns: As in `merge_into_delta`.
        refill: As in `merge_into_delta`.

    Returns:
        True if rows were merged.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` and `NOT_FOUND` as in `merge_into_delta`.
    """
    check_type("batch", batch, pa.Table, ChangeFeedPage)
    check_options(
        batch_id=batch_id, app_id=app_id, create=create, new_columns="refuse", missing_state=missing_state,
        source=source, columns=columns, refill=refill,
    )  # fmt: skip
    if create == "never" and not table.exists:
        raise missing(table.where)
    changes = table_of(batch)
    work = batch_of(
        batch, batch_id, app_id, Told(),
        pieces=lambda: piece_of(changes, missing_state, cutter(columns, table.unheld)),
        empty_schema=lambda: stored_schema(batch), create=create, source=source, columns=columns,
        refill=refill,
    )  # fmt: skip
    with table.kept_open():
        return merge_batch(table, sink, work)


def merge_batch(table: Table, sink: str, batch: MergeBatch) -> bool:
    """Merge a batch into a table, in the order in which a process may be killed between any two commits.

    Args:
        table: The table.
        sink: The name of the sink's function, for messages.
        batch: The batch.

    Returns:
        True if rows were merged.
    """
    rules, merged = MergeRules(table, sink), False
    rules.check_notices(batch)
    rules.check_place(batch)
    rules.check_columns(batch)
    for each in batch.begun if batch.is_page else ():
        rules.claim_empty(batch)
        rules.begin(each)
    notes: Mapping[str, str] = {}
    with closing(batch.pieces()) as pieces:
        for piece in pieces:
            if not merged:
                if piece.source is None and batch.source is None:
                    raise nameless()
                notes = rules.notes(batch) if table.exists else _notes(batch)
                rules.claim(batch, piece.source, piece.schema, may_be_stale=piece.is_incomplete)
                rules.check_mode(is_latest=piece.is_latest)
                rules.begun(batch)
                _begin(rules, batch, piece.plan)
            table.merge(piece.rows, notes, is_last=piece.is_last)
            merged = True
    if merged:
        rules.filled()
    if not merged and (batch.has_gap or rules.declares_anew(batch)):
        rules.claim_empty(batch)
    if not merged and batch.done is not None and (batch.is_first or batch.begins_anew or batch.done.notes):
        # The first batch of a query may have no rows. It makes the table, so that a later batch can tell
        # whether the table was dropped since. Notes are stored even if no row has changed, for example
        # because no change could be decoded.
        notes = rules.notes(batch) if table.exists else batch.done.notes
        rules.claim_empty(batch)
        rules.begun(batch)
        if batch.done.notes:
            _begin(rules, batch, None)
        if notes:
            table.store({}, notes)
    # A batch without rows may also begin or end a snapshot.
    for scan in batch.ended:
        if scan.is_first and not merged:
            rules.claim_empty(batch)
        rules.begin(scan)
        if scan.is_over:
            rules.end(scan)
    return merged


def _differing(wanted: Columns, stored: TableMark | None) -> tuple[tuple[str, ...], Sequence[str]]:
    """Return the columns that another declaration fills or empties, and those that are the sink's no more."""
    found = None if stored is None else stored.declared
    # What an earlier sink has made of documents without a declaration is emptied too.
    known = () if stored is None else own_names(stored.columns)
    gone = [name for name in known if name not in wanted.compared]
    return _once(*wanted.to_fill(found), *gone), gone


def _once(*names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _since(mark: TableMark, batch: MergeBatch) -> TableMark:
    """Return the mark, with the time of now if the batch comes after a gap."""
    if not batch.has_gap:
        return mark
    # Each gap has a time of its own, because neither a snapshot nor a comparison that was under way has
    # brought what a later gap has lost.
    return attrs.evolve(mark, incomplete_since=rfc3339(datetime.now(UTC)))


def _notes(batch: MergeBatch) -> Mapping[str, str]:
    return {} if batch.done is None else batch.done.notes


def _begin(rules: MergeRules, batch: MergeBatch, plan: str | None) -> None:
    """Begin the snapshot of a batch in the table, unless this snapshot has already begun."""
    if batch.scan is not None:
        if plan not in (None, batch.scan.plan):
            raise invalid_request(
                "checkpoint",
                f"belongs to the snapshot {batch.scan.plan}, but the batch contains rows of {plan}",
                "pass the checkpointLocation of the query that calls this function",
            )
        rules.begin(batch.scan)
    elif plan is not None and not batch.is_told:
        rules.accept(plan, is_page=batch.is_page)


def _staged(plan: str, stage: int) -> Mapping[str, int]:
    return {f"{_SNAPSHOT}:{plan}": stage}
