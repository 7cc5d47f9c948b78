"""The tables that a mirror writes, by the text that names them on a command line."""

from __future__ import annotations

import hashlib
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack
from uuid import uuid4

import attrs

from multiclouddb_api import (
    ChangeFeedPage,
    ChangeType,
    Checkpoint,
    CheckpointStore,
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    MulticloudDbError,
    SnapshotStarted,
    invalid_request,
    open_checkpoint_store,
)
from multiclouddb_mirror.advice import advising
from multiclouddb_tables.batch import Create, MissingState
from multiclouddb_tables.columns import Columns
from multiclouddb_tables.contract import SupportsPosition, Target, check_position
from multiclouddb_tables.conversion import counted_rescues
from multiclouddb_tables.delta import DeltaTarget
from multiclouddb_tables.delta_upkeep import compact, drop_tombstones
from multiclouddb_tables.mark import FoundTable
from multiclouddb_tables.merging import MergeRules, merge_changes

if TYPE_CHECKING:
    import pyarrow as pa

    from multiclouddb_postgres.lock import TableLocks

__all__ = [
    "PROVED",
    "Destination",
    "How",
    "MergedRows",
    "PositionMovedError",
    "Shared",
    "destination_among",
    "destination_of",
]

PROVED: Final = "multiclouddb.proved_at"
"""The name of the number that says when a proof has last found the table equal, in µs since 1970. A RESTORE
takes it back to that of its version."""

_SINK: Final = "mirror"
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9._-]|^[^A-Za-z0-9]")
_DELTA_SECONDS: Final = 5.0
"""How long a position may wait for its commit, because each one makes the log of a Delta table longer. A
mirror that is killed before merges the pages since then again, which changes nothing."""


class PositionMovedError(Exception):
    """The table, which the run has claimed, has another position than it has loaded: load it again."""


class How(TypedDict, total=False):
    """How a page is merged; each is as in `merge_into_delta`."""

    missing_state: MissingState
    """What to do with a change that has no document."""
    columns: Columns | None
    """The declared columns."""
    refill: bool
    """True to fill columns of another declaration."""
    create: Create
    """When the table is made, or one without a mark is taken over."""


_AT_ONCE: Final = 8
"""How many tables are written at the same time: each takes connections, and the memory of a page."""


@attrs.frozen
class MergedRows:
    """What of a page is in the table."""

    events: int = 0
    """The number of its rows and changes."""
    deletes: int = 0
    """How many of them were deletes."""
    rescued: int = 0
    """How many of the rows have values in `_rescued`."""


class Shared:
    """What the tables of one process share, so that hundreds of them need little of a server and of memory.

    `turn` lets only some of them work at a time; those that follow a quiet collection wait for the source
    outside of it. `locks` returns the locks of PostgreSQL's tables, which need one connection for all.
    """

    def __init__(self) -> None:
        self.turn = BoundedSemaphore(_AT_ONCE)
        self._guard = Lock()
        self._locks: TableLocks | None = None

    def locks(self) -> TableLocks:
        """Return the locks of PostgreSQL's tables."""
        from multiclouddb_postgres.lock import TableLocks

        with self._guard:
            if self._locks is None:
                self._locks = TableLocks()
            return self._locks


class Destination(ABC):
    """A table, and the position that is stored with it.

    Args:
        target: The table, as `verify` reads it.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        """The table, as `verify` reads it."""
        self.turn: AbstractContextManager[object] = nullcontext()
        """What a run enters while it works with the table; see `Shared`."""

    @property
    def name(self) -> str:
        """The name of the table, without secrets."""
        return self.target.name

    def found(self) -> FoundTable | None:
        """Return the table that is there now, or None if there is none."""
        try:
            return self.target.found()
        except MulticloudDbError as error:
            if error.category is ErrorCategory.NOT_FOUND:
                return None
            raise

    @abstractmethod
    def check_declaration(self, columns: Columns, *, refill: bool) -> bool:
        """Compare a declaration with that of the table, before anything is read for it.

        Args:
            columns: The declaration.
            refill: True if the user has agreed that a copy fills the columns.

        Returns:
            True if a copy has to fill columns.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if it has to, and the user has not agreed.
        """

    is_kept: bool = False
    """True if the position is part of the table, so that one without the other cannot be."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a run, which ends with `end`; where the server can tell, refuse a second one at once.

        Raises:
            MulticloudDbError: `CONFLICT` if another process writes the table.
        """

    @abstractmethod
    def end(self) -> None:
        """End a run."""

    @abstractmethod
    def load(self) -> str | None:
        """Return the stored position, and go on from it: the next one replaces no other."""

    @abstractmethod
    def stored(self) -> str | None:
        """Return the position that is stored now; any thread may ask."""

    @abstractmethod
    def merge(self, page: ChangeFeedPage, **how: Unpack[How]) -> None:
        """Merge a page.

        Args:
            page: The page.
            **how: See `How`.

        Raises:
            MulticloudDbError: `CONFLICT` if another process has begun to write the table since `load`. Then
                nothing was merged.
        """

    def merge_counted(self, page: ChangeFeedPage, how: How) -> MergedRows:
        """Merge a page, and count what was merged.

        Args:
            page: As in `merge`.
            how: As in `merge`.
        """
        with counted_rescues() as rescued:
            self.merge(page, **how)
        deletes = sum(event.type is ChangeType.DELETE for event in page.events)
        return MergedRows(len(page.events), deletes, sum(rescued))

    @abstractmethod
    def save(self, token: str, *, now: bool) -> None:
        """Store the position after a page.

        Args:
            token: The token of the page.
            now: False if it may wait, because another page follows.
        """

    @abstractmethod
    def merge_alone(self, batch: ChangeFeedPage | pa.Table, **how: Unpack[How]) -> None:
        """Merge a page, or changes of one in an Arrow table, and leave the position as it is.

        Args:
            batch: The page, or the changes.
            **how: See `How`.
        """

    @abstractmethod
    def store(self, numbers: Mapping[str, int]) -> None:
        """Store numbers with the table, which exists.

        Args:
            numbers: The numbers, by name.
        """

    @abstractmethod
    def number(self, name: str) -> int | None:
        """Return a number that is stored with the table, or None.

        Args:
            name: The name.
        """

    @abstractmethod
    def drop_tombstones(self, before: datetime) -> int:
        """Remove the rows of documents that were deleted before a time, and return their number.

        Args:
            before: The time at which the delete was merged.
        """

    @property
    def has_files(self) -> bool:
        """True if small files of the table may be merged."""
        return isinstance(self.target, DeltaTarget)

    @abstractmethod
    def compact(self) -> None:
        """Merge small files, if the table has files."""

    @abstractmethod
    def lacking_right(self) -> str | None:
        """Return which right to write the table is missing; None if none is, `""` if that is not known."""

    def elsewhere(self, store: CheckpointStore, name: str) -> Destination:
        """Return the same table with its position in a checkpoint store.

        Args:
            store: The store.
            name: The name of the checkpoint.
        """
        return _Apart(self, store, name)


class _Kept(Destination):
    """A table whose position is stored with it after each merge.

    A run claims the table before its first step. So of two that begin at the same time, one is refused
    before it has written anything; and one that begins later, such as a copy of every row, goes on where the
    other is, which is refused before its next step.
    """

    is_kept = True

    def __init__(
        self,
        target: Target,
        made: Callable[[ChangeFeedPage | pa.Table | None], Any],
        pause_seconds: float,
        path: str,
    ) -> None:
        super().__init__(target)
        self._path = path
        self._made_of, self._pause = made, pause_seconds
        self._writer, self._before = uuid4().hex, None
        self._is_claimed = self._is_loaded = False  # a position that is stored elsewhere is never loaded
        self._stored: str | None = None
        self._has_merged = False
        self._saved_at = -pause_seconds

    def _made(self, batch: ChangeFeedPage | pa.Table | None) -> Any:
        table = self._made_of(batch)
        table.writer = self._writer
        return table

    def _claim(self) -> None:
        """Claim the table, unless this run has; a table that does not exist is claimed when it is made."""
        if not self._is_claimed:
            table = self._made(None)
            if table.exists:
                table.claim(self._before)
                if self._is_loaded and table.position() != self._stored:
                    # The run from which the table was taken has stored it in the meantime.
                    raise PositionMovedError
            self._is_claimed = True

    def check_declaration(self, columns: Columns, *, refill: bool) -> bool:
        return MergeRules(self._made(None), _SINK).check_declaration(columns, refill=refill)

    def begin(self) -> None:
        self._writer, self._is_claimed = uuid4().hex, False
        self._before = self._made(None).claimed()

    def end(self) -> None:
        pass  # the next run puts its own value in place of this one's

    def load(self) -> str | None:
        table = self._made_of(None)
        stored: str | None = table.position()
        if stored is not None and table.gone_back(None, None):
            # RESTORE has taken the position back together with the rows, so nothing is missing: this commit
            # says so to the rules of a merge, which refuse a table that has lost what was merged.
            table.store_position(stored, stored)
        self._stored, self._is_loaded = stored, True
        return stored

    def stored(self) -> str | None:
        found: SupportsPosition = self._made_of(None)
        return found.position()

    def drop_tombstones(self, before: datetime) -> int:
        if self.has_files:
            return drop_tombstones(self._path, before)
        dropped: int = self._made_of(None).drop_tombstones(before)
        return dropped

    def compact(self) -> None:
        if self.has_files:
            compact(self._path)

    def lacking_right(self) -> str | None:
        if "://" in self._path:
            return ""
        place = Path(self._path).absolute()
        while not place.exists():
            place = place.parent
        return None if os.access(place, os.W_OK) else f"the right to write {place}"

    def store(self, numbers: Mapping[str, int]) -> None:
        # It is no step of the run, so it claims nothing.
        self._made_of(None).store(numbers, {})

    def number(self, name: str) -> int | None:
        found: int | None = self._made_of(None).number(name)
        return found

    def merge(self, page: ChangeFeedPage, **how: Unpack[How]) -> None:
        self.merge_alone(page, **how)

    def merge_alone(self, batch: ChangeFeedPage | pa.Table, **how: Unpack[How]) -> None:
        self._claim()
        merge_changes(self._made(batch), _SINK, batch, **how)
        self._has_merged = True

    def save(self, token: str, *, now: bool) -> None:
        at = time.monotonic()
        if token == self._stored or (not now and at - self._saved_at < self._pause):
            return
        table = self._made(None)
        if table.exists:
            if table.gone_back(None, None):
                # What was merged since the stored position may be gone with the rows.
                raise MulticloudDbError(
                    f"table: {self.name} was restored to an earlier version during the run; start it again",
                    ErrorDetail(ErrorCategory.CONFLICT, reason=ErrorReason.OTHER_WRITER),
                )
            self._claim()
            with advising():
                self._made(None).store_position(token, self._stored)
            self._stored, self._saved_at = token, at
        elif self._stored is not None or self._has_merged:
            raise MulticloudDbError(
                f"table: {self.name} was dropped during the run; start it again, which copies every row",
                ErrorDetail(ErrorCategory.NOT_FOUND, reason=ErrorReason.ROWS_MISSING),
            )


class _Stored(Destination):
    """A table whose position is in a checkpoint store."""

    def __init__(self, target: Target, store: CheckpointStore) -> None:
        super().__init__(target)
        self._store = store
        self._saved: Checkpoint | None = None

    @property
    @abstractmethod
    def _name(self) -> str:
        """The name of the checkpoint."""

    def load(self) -> str | None:
        self._saved = self._store.load(self._name)
        return None if self._saved is None else self._saved.token

    def stored(self) -> str | None:
        found = self._store.load(self._name)
        return None if found is None else found.token

    def save(self, token: str, *, now: bool) -> None:
        del now
        before = self._saved
        if before is None or before.token != token:
            version = None if before is None else before.version
            with advising():
                self._saved = self._store.save(self._name, token, version)


class _Apart(_Stored):
    """A table whose position is in a store that its user has chosen."""

    def __init__(self, table: Destination, store: CheckpointStore, name: str) -> None:
        super().__init__(table.target, store)
        self.turn = table.turn
        self._table, self._checkpoint = table, name

    @property
    def _name(self) -> str:
        return self._checkpoint

    def check_declaration(self, columns: Columns, *, refill: bool) -> bool:
        return self._table.check_declaration(columns, refill=refill)

    def drop_tombstones(self, before: datetime) -> int:
        return self._table.drop_tombstones(before)

    def compact(self) -> None:
        self._table.compact()

    def lacking_right(self) -> str | None:
        return self._table.lacking_right()

    def store(self, numbers: Mapping[str, int]) -> None:
        self._table.store(numbers)

    def number(self, name: str) -> int | None:
        return self._table.number(name)

    def begin(self) -> None:
        self._table.begin()

    def end(self) -> None:
        self._table.end()

    def merge(self, page: ChangeFeedPage, **how: Unpack[How]) -> None:
        self._table.merge_alone(page, **how)

    def merge_alone(self, batch: ChangeFeedPage | pa.Table, **how: Unpack[How]) -> None:
        self._table.merge_alone(batch, **how)


class _WithRows(_Stored):
    """A table of PostgreSQL, whose checkpoint is stored in the transaction of the rows."""

    def __init__(self, dsn: str, table: str, patience_seconds: float, locks: TableLocks) -> None:
        from multiclouddb_postgres import PostgresTarget, merge_into_postgres
        from multiclouddb_postgres.checkpoints import PostgresCheckpointStore

        # `PostgresTarget` finds the position itself, also one that another program has stored.
        self._pg = PostgresTarget(dsn, table, patience_seconds=patience_seconds)
        super().__init__(self._pg, PostgresCheckpointStore(dsn))
        self._dsn, self._table, self._merge = dsn, table, merge_into_postgres
        self._locks = locks
        self._locked: str | None = None
        self._found_name: str | None = None

    @property
    def _name(self) -> str:
        """The name of the table with its schema, so that a table has one position, however it is named."""
        from multiclouddb_postgres.lock import full_name

        if self._found_name is None:
            self._found_name = _checkpoint_name(full_name(self._dsn, self._table))
        return self._found_name

    def check_declaration(self, columns: Columns, *, refill: bool) -> bool:
        return self._pg.check_declaration(columns, refill=refill)

    def drop_tombstones(self, before: datetime) -> int:
        return self._pg.drop_tombstones(before)

    def compact(self) -> None:
        pass  # it has no files

    def lacking_right(self) -> str | None:
        from multiclouddb_postgres.rights import lacking_right

        return lacking_right(self._dsn, self._table)

    def store(self, numbers: Mapping[str, int]) -> None:
        self._pg.store(numbers)

    def number(self, name: str) -> int | None:
        return self._pg.number(name)

    def begin(self) -> None:
        self._locked = self._locks.take(self._dsn, self._table)

    def end(self) -> None:
        if self._locked is not None:
            self._locks.release(self._dsn, self._locked)

    def merge_alone(self, batch: ChangeFeedPage | pa.Table, **how: Unpack[How]) -> None:
        self._merge(batch, None, self._dsn, self._table, None, **how)

    def merge(self, page: ChangeFeedPage, **how: Unpack[How]) -> None:
        self._merge(
            page, None, self._dsn, self._table, None,
            checkpoint_name=self._name, checkpoint=self._saved, **how,
        )  # fmt: skip
        saved = self._store.load(self._name)
        check_position(None if saved is None else saved.token, page.continuation_token, self.name)
        self._saved = saved


def destination_of(text: str, position: str | None = None, patience_seconds: float = 600.0) -> Destination:
    """Return the table that a text names.

    Args:
        text: `delta:PATH`, `postgres:DSN#TABLE` or `sqlite:PATH#TABLE`.
        position: The URL of a checkpoint whose last part is its name, such as
            `s3://bucket/positions/orders`; None, the default, to store the position with the table.
        patience_seconds: How long `verify` waits for rows that the sink has locked; 600 by default.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the text names no table, or a package is missing.
    """
    return destination_among(Shared(), text, position, patience_seconds)


def destination_among(
    shared: Shared, text: str, position: str | None, patience_seconds: float = 600.0
) -> Destination:
    """Return the table that a text names, as one of several of this process.

    Args:
        shared: What they share.
        text: As in `destination_of`.
        position: As in `destination_of`.
        patience_seconds: As in `destination_of`.
    """
    kind, _, rest = text.partition(":")
    place, _, name = rest.rpartition("#")
    found: Destination
    match kind:
        case "delta" if rest:
            found = _delta(rest, patience_seconds)
        case "postgres" if place and name:
            found = _postgres(place, name, patience_seconds, shared)
        case "sqlite" if place and name:
            from multiclouddb_tables.sqlite import SqliteTable

            found = _Kept(
                SqliteTable(place, name, patience_seconds=patience_seconds),
                lambda page: SqliteTable(place, name),
                0.0,
                place,
            )
        case _:
            # The text may contain a password, so no message shows it.
            raise invalid_request(
                "target",
                "is neither delta:PATH nor postgres:DSN#TABLE nor sqlite:PATH#TABLE",
                "name the table in one of these forms",
            )
    found.turn = shared.turn
    if position is None:
        return found
    store, _, checkpoint = position.rpartition("/")
    if "://" not in store:
        raise invalid_request(
            "position",
            "is no URL of a checkpoint",
            "write the store and a name, such as file:///data/positions/orders",
        )
    return found.elsewhere(open_checkpoint_store(store), checkpoint)


def _postgres(dsn: str, table: str, patience_seconds: float, shared: Shared) -> Destination:
    try:
        return _WithRows(dsn, table, patience_seconds, shared.locks())
    except ImportError as error:
        raise MulticloudDbError(
            f'target: cannot import {error.name}; run: pip install "multiclouddb[postgres]"',
            ErrorDetail(ErrorCategory.INVALID_REQUEST, reason=ErrorReason.NOT_INSTALLED),
        ) from error


def _checkpoint_name(table: str) -> str:
    """Return the name of the checkpoint of a table, which has fewer characters to choose from."""
    name = _NO_NAME.sub("_", table)[:100]
    if name == table:
        return name
    return f"t{name}-{hashlib.sha256(table.encode()).hexdigest()[:16]}"


def _delta(path: str, patience_seconds: float) -> Destination:
    def made(batch: ChangeFeedPage | pa.Table | None) -> DeltaTarget:
        notices = batch.notices if isinstance(batch, ChangeFeedPage) else ()
        # Each commit says where it comes from, so that a table that was restored is recognized.
        anew = {"anew": True} if any(isinstance(n, SnapshotStarted) and n.whole for n in notices) else {}
        return DeltaTarget(path, place={"query": None, **anew})

    return _Kept(DeltaTarget(path, patience_seconds=patience_seconds), made, _DELTA_SECONDS, path)
