"""Defines a Delta table that a sink writes: how it is opened, changed, read and repaired.

If two processes change a table at the same time, deltalake refuses the later commit. Every commit here can be
repeated safely. So a refused commit is repeated on the latest version of the table, after a random wait.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyarrow.parquet import ParquetFile

from multiclouddb_api import MulticloudDbError, encode_json, invalid_request
from multiclouddb_api.redaction import redact_url
from multiclouddb_api.validators import check_type, local_path
from multiclouddb_tables.column_values import SINKS, as_stored, own_state
from multiclouddb_tables.contract import Fix, Own, Part
from multiclouddb_tables.delta_refusals import (
    check_readable,
    check_writable,
    contended,
    is_gone,
    is_panic,
    missing,
    refusal,
    safe_cause,
    unreadable,
)
from multiclouddb_tables.mark import Expected, FoundTable, TableMark
from multiclouddb_tables.rules import DELETED_AT, DOCUMENT, STALE_SINCE

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable, WriterProperties
    from pyarrow.dataset import FileSystemDataset

__all__ = [
    "MARK",
    "DeltaTarget",
    "committed",
    "dataset_of",
    "feed_mark",
    "found_in",
    "in_backticks",
    "opened",
    "quoted",
    "said",
    "schema_of",
    "writable",
    "written",
]

MARK: Final = "multiclouddb.mark"
"""The table property that says whose changes the table contains."""
_OURS: Final = ("key", "order_key", DELETED_AT)
_T = TypeVar("_T")
_ONE_AT_A_TIME: Final[defaultdict[str, Lock]] = defaultdict(Lock)
"""For each table, the lock that keeps the threads of this process from refusing each other's commits."""
_PATIENCE_SECONDS: Final = 300.0
_FIRST_WAIT: Final = 0.02
_LONGEST_WAIT: Final = 2.0
_YIELDING: Final = 4.0
_BATCH: Final = 8192
_BUFFER: Final = 1 << 20
_PART_BYTES: Final = 128 << 20
_NO_ORDER: Final = "~null"
"""Stands for an `order_key` that is null: no change is higher, so the row refuses all of them."""


def opened(where: str) -> DeltaTable | None:
    """Return the table, or None if there is none."""
    from deltalake import DeltaTable

    return DeltaTable(where) if DeltaTable.is_deltatable(where) else None


def writable(where: str) -> DeltaTable | None:
    """Return the table for a sink, or None if there is none; refuse one in which rows cannot be replaced."""
    if (table := opened(where)) is not None:
        check_writable(table, where)
    return table


def dataset_of(table: DeltaTable, where: str) -> FileSystemDataset:
    """Return the rows of the version that the table object has loaded."""
    check_readable(table, where)
    # Arrow's threads may still read when the interpreter ends. With deltalake's own file system, which is
    # written in Python, they would then abort the process.
    filesystem = None if "://" in where else SubTreeFileSystem(where, LocalFileSystem())
    return cast("FileSystemDataset", table.to_pyarrow_dataset(filesystem=filesystem))


def feed_mark(table: DeltaTable, where: str) -> TableMark | None:
    """Return the mark that a sink has left among the table's properties, or None."""
    # The table's metadata is in every checkpoint of the log, so it outlives the texts of commits. RESTORE
    # brings back that of its version, but not the numbers of transactions.
    text = table.metadata().configuration.get(MARK)
    return None if text is None else TableMark.from_json(text, where)


def found_in(table: DeltaTable, where: str, since: FoundTable | None = None) -> FoundTable:
    """Return what the version is that the table object has loaded.

    Args:
        table: The table.
        where: Its name, for messages.
        since: What was found before.
    """
    version, before = int(table.version()), None if since is None else since.version
    went_back = before is not None and _went_back(table, before, version)
    return FoundTable(feed_mark(table, where), str(table.metadata().id), version, went_back)


def _went_back(table: DeltaTable, before: int, version: int) -> bool:
    """Return whether one of the commits after a version was RESTORE, or is not in the log any more."""
    if version <= before:
        return version < before
    # deltalake adds the commits after the version that is loaded, and numbers them as if there were none.
    made = table.history(version - before)
    return len(made) < version - before or any(each.get("operation") == "RESTORE" for each in made)


def committed(
    table: DeltaTable,
    commit: Callable[[], _T],
    *,
    check: Callable[[], object] | None = None,
    patience_seconds: float | None = None,
    yields: bool = False,
) -> _T:
    """Make a commit, and repeat it on the latest version if the commit of another process prevents it.

    The waits between two tries are random and grow, so that processes do not refuse each other for ever.

    Args:
        table: The table; it is brought up to date before each further try.
        commit: Makes the commit; it may be called several times. It must not be repeated by deltalake itself
            (`max_commit_retries=0`), so that it is based on the version that `check` has seen.
        check: Called before each try; raises if the version that the table object has loaded is not that of
            the table that is meant.
        patience_seconds: For how long the commit is tried; five minutes by default.
        yields: True to wait longer between the tries, so that the sink goes first.
    """
    patience = _PATIENCE_SECONDS if patience_seconds is None else patience_seconds
    wait = _FIRST_WAIT * (_YIELDING if yields else 1.0)
    with _ONE_AT_A_TIME[table.table_uri.rstrip("/")]:
        until, tried = time.monotonic() + patience, 0
        while True:
            try:
                check_writable(table, table.table_uri)
                if check is not None:
                    check()
                return commit()
            except MulticloudDbError:
                raise
            except BaseException as error:
                if not (isinstance(error, Exception) or is_panic(error)):
                    raise
                if (refused := refusal(table, error)) is not None:
                    raise refused from safe_cause(error)
                tried += 1
                if time.monotonic() > until:
                    raise contended(table.table_uri, tried, patience, error) from safe_cause(error)
                caught = error
            time.sleep(random.uniform(0, wait))
            wait = min(2 * wait, _LONGEST_WAIT)
            before = table.version()
            table.update_incremental()
            if is_gone(caught) and table.version() == before:
                raise unreadable(table.table_uri, caught) from safe_cause(caught)


def quoted(text: str) -> str:
    """Return a text for a SQL expression."""
    return "'" + text.replace("'", "''") + "'"


def in_backticks(name: str) -> str:
    """Return the name of a column for a SQL expression."""
    return "`" + name.replace("`", "``") + "`"


def schema_of(table: DeltaTable) -> pa.Schema:
    """Return the columns of the table in Arrow's types."""
    return pa.schema(table.schema().to_arrow())


def said(facts: Mapping[str, str]) -> CommitProperties:
    """Return what a commit says; deltalake refuses it if it does not follow the version it is based on."""
    from deltalake import CommitProperties

    return CommitProperties(dict(facts), max_commit_retries=0)


def written(names: Sequence[str]) -> WriterProperties:
    """Return file settings: no dictionary of unique texts, and no statistics of documents."""
    from deltalake import ColumnProperties, WriterProperties

    properties = {name: ColumnProperties(dictionary_enabled=False) for name in ("key", "order_key")}
    if DOCUMENT in names:
        properties[DOCUMENT] = ColumnProperties(statistics_enabled="NONE")
    return WriterProperties(compression="SNAPPY", column_properties=properties)


class DeltaTarget:
    """A Delta table that `merge_into_delta` writes.

    Args:
        path: The path of a folder, or a URL that `deltalake` supports.
        patience_seconds: For how long a repair is tried again while the sink commits.

    Raises:
        MulticloudDbError: Raised by the first read: `NOT_FOUND` if there is no table; `INVALID_REQUEST` if it
            has not the columns of the sink.
    """

    def __init__(self, path: str | os.PathLike[str], *, patience_seconds: float = 600.0) -> None:
        check_type("patience_seconds", patience_seconds, int, float)
        self._where = local_path("path", path)
        self._patience = patience_seconds

    @property
    def name(self) -> str:
        """The path or URL, without secrets."""
        where = redact_url(self._where) if "://" in self._where else os.path.abspath(self._where)
        return f"delta:{where}"

    def rows(self, keys: Sequence[str] | None = None, *, own: Own = False) -> Iterator[pa.RecordBatch]:
        """Read the latest version of the table; see `Target.rows`.

        Args:
            keys: The keys to read; None for all rows.
            own: The table's own columns to read instead of `new_item_state`.
        """
        table = self._open(own=bool(own))
        if keys is None or keys:
            yield from self._read(table, keys, own=own)

    def parts(self, *, own: Own = False) -> Sequence[Part]:
        """Divide the latest version of the table; see `SupportsParts.parts`.

        Args:
            own: The table's own columns to read instead of `new_item_state`.
        """
        table = self._open(own=bool(own))
        actions = pa.table(table.get_add_actions(flatten=True)).select(["path", "size_bytes"])
        sizes = dict(zip(*(column.to_pylist() for column in actions.columns), strict=True))
        groups, size = list[list[str]](), _PART_BYTES
        for path in dataset_of(table, self._where).files:
            if size >= _PART_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(path)
            size += sizes.get(path, _PART_BYTES)
        made = str(table.metadata().id)
        return [
            DeltaPart(self._where, made, table.version(), _frozen(own), frozenset(group)) for group in groups
        ]

    def _read(
        self, table: DeltaTable, keys: Sequence[str] | None, *, own: Own, paths: Set[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read rows of a version, from all files or from some."""
        names = [field.name for field in table.schema().fields]
        extra = [DOCUMENT]
        if own:
            extra = _own(names) if own is True else sorted(own)
        wanted = None if keys is None else pa.array(keys, pa.string())
        try:
            dataset = dataset_of(table, self._where)
            is_plain = not own and not table.metadata().partition_columns
            for batch in _batches(dataset, [*_OURS, *extra], paths, is_plain=is_plain):
                if wanted is not None:
                    batch = batch.filter(pc.is_in(batch["key"].cast(pa.string()), value_set=wanted))
                if batch.num_rows:
                    if batch["key"].null_count:
                        raise invalid_request(
                            "table_path",
                            f"{self._where} has rows without key, which no sink writes",
                            "delete the rows whose key is null",
                        )
                    yield _as_rows(batch, extra if own else None)
        except OSError as error:
            if opened(self._where) is None:
                raise missing(self._where) from error
            raise unreadable(self._where, error) from error

    def _open(self, *, own: bool, writes: bool = False) -> DeltaTable:
        table = writable(self._where) if writes else opened(self._where)
        if table is None:
            raise missing(self._where)
        names = [field.name for field in table.schema().fields]
        for name in _OURS:
            if name not in names:
                raise invalid_request(
                    "table_path",
                    f"{self._where} has no column {name}, so merge_into_delta has not written it",
                    "give a table of the sink",
                )
        if not own and DOCUMENT not in names:
            raise invalid_request(
                "table_path",
                f"{self._where} has no column {DOCUMENT}",
                "pass transform=, a function that makes the values of the table's columns from a document",
            )
        return table

    def columns(self) -> Mapping[str, pa.DataType | None]:
        """Return the columns that a document may be parsed into; see `Target.columns`."""
        return {
            field.name: field.type for field in schema_of(self._open(own=True)) if field.name not in SINKS
        }

    def position(self) -> None:
        """Return None: the sink stores its position in a checkpoint."""

    def found(self, since: FoundTable | None = None) -> FoundTable:
        """Return the table's id, latest version and mark; see `Target.found`.

        Args:
            since: What was found before.
        """
        return found_in(self._open(own=True), self._where, since)

    def _write(self, table: DeltaTable, expected: Expected, commit: Callable[[], _T]) -> _T:
        """Make a commit on a version of the table that is meant.

        The version says which table it is, and a commit that is not the next one after it is refused. So
        nothing is written into a table that was made again at the path, or after RESTORE. What Delta cannot
        prevent: if the whole folder is replaced between the last look at it and the commit, and the new log
        is shorter, then that log gets a commit with a number that it has not reached.
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
            mark, before = feed_mark(table, self._where), expected.found.mark
            if mark is not None and before is not None and mark.incomplete_since == before.incomplete_since:
                properties = {MARK: attrs.evolve(mark, incomplete_since=None).to_json()}
                table.alter.set_table_properties(
                    properties, raise_if_not_exists=False, commit_properties=said({})
                )

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
        names = [field.name for field in table.schema().fields]
        if not own and (extra := [name for name in _own(names) if name != DOCUMENT]):
            raise invalid_request(
                "table_path",
                f"{self._where} has columns of its own: {', '.join(extra)}",
                "pass transform=, a function that returns their values for a document",
            )
        # A key with several rows gets one of them back in the same commit. Which rows there are is read from
        # the version on which the commit is based: if another commit comes first, this one is refused.
        several = [fix.key for fix in fixes if len(fix.seen) > 1 or fix.removes]
        several += [fix.beside[0] for fix in fixes if fix.beside is not None]

        def is_as_seen(fix: Fix, there: Mapping[str, list[str]]) -> bool:
            if (len(fix.seen) > 1 or fix.removes) and sorted(fix.seen) != there.get(fix.key):
                return False
            return fix.beside is None or there.get(fix.beside[0]) == [fix.beside[1]]

        def commit() -> int:
            there = self._orders(table, several)
            kept = [fix for fix in fixes if is_as_seen(fix, there)]
            if not kept:
                return 0
            given = {name for fix in fixes for name in fix.columns or ()}
            return self._merge(table, [name for name in names if name in SINKS or name in given], kept)

        return self._write(table, expected, commit)

    def _orders(self, table: DeltaTable, keys: Sequence[str]) -> dict[str, list[str]]:
        """Return the order keys of the rows of some keys, in the version that the table object has loaded."""
        if not keys:
            return {}
        found: dict[str, list[str]] = {}
        wanted = pa.array(keys, pa.string())
        for batch in (
            dataset_of(table, self._where)
            .scanner(columns=["key", "order_key"], use_threads=False)
            .to_batches()
        ):
            batch = batch.filter(pc.is_in(batch["key"].cast(pa.string()), value_set=wanted))
            orders = batch["order_key"].fill_null(_NO_ORDER)
            for key, order in zip(batch["key"].to_pylist(), orders.to_pylist(), strict=True):
                found.setdefault(key, []).append(order)
        return {key: sorted(orders) for key, orders in found.items()}

    def _merge(self, table: DeltaTable, names: Sequence[str], fixes: Sequence[Fix]) -> int:
        rows = list[dict[str, Any]]()
        for fix in fixes:
            row: dict[str, Any] = dict(fix.columns or {})
            row |= {
                "key": fix.key,
                "order_key": fix.order_key,
                "timestamp": fix.timestamp,
                DOCUMENT: fix.text,
            }
            row[DELETED_AT] = fix.timestamp if fix.text is None else None
            is_several = len(fix.seen) > 1
            seen = fix.seen[0] if len(fix.seen) == 1 else None
            rows.append(row | {"_match": fix.key, "_seen": seen, "_drop": is_several or fix.removes})
            if is_several and not fix.removes:
                rows.append(row | {"_match": None, "_seen": None, "_drop": False})
        schema = schema_of(table)
        fields = [field for field in schema if field.name in names]
        source = pa.Table.from_pylist(
            rows,
            pa.schema([*fields, ("_match", pa.string()), ("_seen", pa.string()), ("_drop", pa.bool_())]),
        )
        columns = {in_backticks(name): f"s.{in_backticks(name)}" for name in names}
        merged = (
            table.merge(
                source, "s._match = t.key", source_alias="s", target_alias="t",
                writer_properties=written(names), streamed_exec=False, commit_properties=said({}),
            )
            .when_matched_update(
                columns, f"coalesce(t.order_key, {quoted(_NO_ORDER)}) = s._seen AND NOT s._drop"
            )
            .when_matched_delete("s._drop")
            .when_not_matched_insert(
                columns, f"s._seen IS NULL AND NOT s._drop AND (s.{DELETED_AT} IS NULL OR s._match IS NULL)"
            )
            .execute()
        )  # fmt: skip
        removed = sum(fix.removes for fix in fixes)
        return removed + int(merged["num_target_rows_updated"]) + int(merged["num_target_rows_inserted"])

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


def _batches(
    dataset: FileSystemDataset, names: Sequence[str], paths: Set[str] | None, *, is_plain: bool
) -> Iterator[pa.RecordBatch]:
    """Read columns of some files, or of all; `is_plain` if they are texts and times, and in the files."""
    if not is_plain:
        if paths is not None:
            from pyarrow.dataset import FileSystemDataset  # its import loads pandas, for a second

            fragments = [each for each in dataset.get_fragments() if each.path in paths]
            dataset = FileSystemDataset(fragments, dataset.schema, dataset.format, dataset.filesystem)
        yield from dataset.scanner(columns=list(names), batch_size=_BATCH, use_threads=False).to_batches()
        return
    # A scanner of the dataset costs three times as much, and it keeps whole row groups.
    fields = [dataset.schema.field(name) for name in names]
    for path in dataset.files if paths is None else [each for each in dataset.files if each in paths]:
        with dataset.filesystem.open_input_file(path) as stream:
            file = ParquetFile(stream, buffer_size=_BUFFER)
            there = set(file.schema_arrow.names).intersection(names)
            for batch in file.iter_batches(_BATCH, columns=list(there), use_threads=False):
                columns = [
                    batch[field.name].cast(field.type)
                    if field.name in there
                    else pa.nulls(batch.num_rows, field.type)
                    for field in fields
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


@attrs.frozen
class DeltaPart:
    """Some files of one version of a Delta table; see `Part`."""

    where: str = attrs.field(repr=redact_url)
    table_id: str
    version: int
    own: Own
    paths: frozenset[str]

    def rows(self, keys: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Read the rows of the files."""
        table = _at_version(self.where, self.table_id, self.version)
        return DeltaTarget(self.where)._read(table, keys, own=self.own, paths=self.paths)


@lru_cache(4)
def _at_version(where: str, table_id: str, version: int) -> DeltaTable:
    """Return a version of a table; the log of a large table is not read again for each part.

    A process lives on when a table is made again at its path, so a table is known by its id.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        table = DeltaTable(where, version=version)
    except (DeltaError, OSError) as error:
        raise unreadable(where, error) from error
    if str(table.metadata().id) != table_id:
        raise unreadable(where, RuntimeError("the table was made again"))
    return table


def _frozen(own: Own) -> Own:
    """Return the columns in a form that can be hashed and pickled."""
    return own if isinstance(own, bool) else tuple(sorted(own))


def _own(names: Sequence[str]) -> list[str]:
    """Return the columns that a document was parsed into."""
    return [name for name in names if name not in (*_OURS, "timestamp", STALE_SINCE)]


def _as_rows(batch: pa.RecordBatch, own: Sequence[str] | None) -> pa.RecordBatch:
    """Return the columns that `Target.rows` promises."""
    text = pa.string()
    if own is None:
        state = batch[DOCUMENT].cast(text)
    else:
        documents = batch.select(own).to_pylist()
        if nested := {field.name: field.type for field in batch.schema if pa.types.is_nested(field.type)}:
            documents = [
                {name: as_stored(value, nested.get(name)) for name, value in each.items()}
                for each in documents
            ]
        encoded = [encode_json(own_state(each)).decode() for each in documents]
        state = pa.array(encoded, text)
    orders = batch["order_key"].cast(text).fill_null(_NO_ORDER)
    columns = [batch["key"].cast(text), orders, state, pc.is_valid(batch[DELETED_AT])]
    return pa.RecordBatch.from_arrays(columns, names=["key", "order_key", "state", "deleted"])
