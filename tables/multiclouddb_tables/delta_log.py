"""Opens a Delta table, looks at its log, and commits to it.

If two processes change a table at the same time, deltalake refuses the later commit. Every commit here can be
repeated safely. So a refused commit is repeated on the latest version of the table, after a random wait.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import pyarrow as pa
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from multiclouddb_api import MulticloudDbError, invalid_request
from multiclouddb_tables.batch import Numbered
from multiclouddb_tables.delta_refusals import (
    check_files,
    check_path,
    check_readable,
    check_writable,
    contended,
    is_gone,
    is_panic,
    lost,
    missing,
    refusal,
    safe_cause,
    unopened,
    unreadable,
    unwritable,
)
from multiclouddb_tables.mark import FoundTable, TableMark
from multiclouddb_tables.rules import DELETED_AT, DOCUMENT, TIME

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable, Field, WriterProperties
    from pyarrow.dataset import FileSystemDataset

__all__ = [
    "CHARACTERS",
    "INT96",
    "MARK",
    "PLACE",
    "POSITION",
    "WRITER",
    "committed",
    "created",
    "dataset_of",
    "feed_mark",
    "found_in",
    "has_gone_back",
    "kind_of",
    "opened",
    "said",
    "schema_of",
    "stored_fields",
    "unread",
    "with_deleted_at",
    "writable",
    "written",
]

CHARACTERS: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""The metadata of a column of type `CHAR` or `VARCHAR`, whose type Spark calls `STRING`."""
INT96: Final = "us"
"""The unit in which times of 96 bits are read, as Spark writes them; in nanoseconds, Arrow's own unit for
them, the year 9999 becomes another one."""
MARK: Final = "multiclouddb.mark"
"""The table property with the feed whose changes the table contains."""
POSITION: Final = "multiclouddb.position"
WRITER: Final = "multiclouddb.writer"
"""The table property with the token of the last page whose changes the table contains."""
PLACE: Final = "multiclouddb.batch"
"""The name under which each commit of a sink has its query and batch."""
_T = TypeVar("_T")
_ONE_AT_A_TIME: Final[defaultdict[str, Lock]] = defaultdict(Lock)
"""For each table, the lock that keeps the threads of this process from refusing each other's commits."""
_PATIENCE_SECONDS: Final = 300.0
_FIRST_WAIT: Final = 0.02
_LONGEST_WAIT: Final = 2.0
_YIELDING: Final = 4.0
_LIMITS: Final = (8, 64, 512, 4096)


def opened(where: str) -> DeltaTable | None:
    """Return the table, or None if there is none."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    check_path(where)
    try:
        return DeltaTable(where) if DeltaTable.is_deltatable(where) else None
    except (DeltaError, OSError) as error:
        raise unopened(where, error) from safe_cause(error)


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
    from pyarrow.dataset import ParquetReadOptions

    filesystem = None if "://" in where else SubTreeFileSystem(where, LocalFileSystem())
    options = ParquetReadOptions(coerce_int96_timestamp_unit=INT96)
    found = table.to_pyarrow_dataset(filesystem=filesystem, parquet_read_options=options)
    dataset = cast("FileSystemDataset", found)
    check_files(dataset.files, where)
    return dataset


def unread(table: DeltaTable, where: str, error: BaseException) -> MulticloudDbError:
    """Translate an error of reading the files of the version that the table object has loaded.

    Args:
        table: The table; it is not brought up to date.
        where: Its path or URL.
        error: An error of deltalake, of Arrow or of the operating system.
    """
    if (newest := opened(where)) is None:
        return missing(where)
    return (lost if _is_lost(error, _which(table), newest) else unreadable)(where, error)


def _which(table: DeltaTable) -> tuple[str, int]:
    """Return which version of which table is loaded."""
    return str(table.metadata().id), int(table.version())


def _is_lost(error: BaseException, read: tuple[str, int], newest: DeltaTable) -> bool:
    """Return whether a file is gone that the newest version needs; VACUUM removes none of these."""
    return is_gone(error) and _which(newest) == read


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
    # deltalake also returns the commits after the loaded version, but with numbers that count only up to it.
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
            except BaseException as error:  # a panic of deltalake is no Exception
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
            before = _which(table)
            table.update_incremental()
            if _is_lost(caught, before, table):
                raise lost(table.table_uri, caught) from safe_cause(caught)


def schema_of(table: DeltaTable) -> pa.Schema:
    """Return the columns of the table in Arrow's types."""
    return pa.schema(table.schema().to_arrow())


def said(facts: Mapping[str, str]) -> CommitProperties:
    """Return the properties of a commit; it is refused if it does not follow the version it is based on."""
    from deltalake import CommitProperties

    return CommitProperties(dict(facts), max_commit_retries=0)


def written(names: Sequence[str]) -> WriterProperties:
    """Return file settings: no dictionary of unique texts, and no statistics of documents."""
    from deltalake import ColumnProperties, WriterProperties

    properties = {name: ColumnProperties(dictionary_enabled=False) for name in ("key", "order_key")}
    if DOCUMENT in names:
        properties[DOCUMENT] = ColumnProperties(statistics_enabled="NONE")
    return WriterProperties(compression="SNAPPY", column_properties=properties)


def has_gone_back(table: DeltaTable, query: str | None, done: Numbered | None) -> bool:
    """Return True if RESTORE may have taken back changes that a query will not deliver again.

    Each commit of a sink names its query and its batch. The log is read from its end: if a commit of the
    query comes first, then nothing was taken back since. If RESTORE comes first, then a commit before the
    restored version must prove that the table contains what came before this batch: the query has merged a
    batch there that began at the same offset, or the last rows of a batch that ended at it. The number alone
    is no proof if there is a checkpoint, because one that was restored from a copy gives the same numbers to
    other rows. A log that was cleaned up proves nothing.

    Args:
        table: The table.
        query: The id of the query, or None for pages.
        done: The number of the batch, and its offsets.
    """
    is_back = False
    until = int(table.version())
    for entry in _history(table):
        version = entry.get("version")
        if version is None or version > until:
            continue
        place = json.loads(entry.get(PLACE) or "null")
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


def created(where: str, schema: pa.Schema, mark: TableMark | None, writer: str | None = None) -> DeltaTable:
    """Return a new table, or the table that another thread has just created there."""
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError, DeltaError

    stored, properties = with_deleted_at(schema), {} if mark is None else {MARK: mark.to_json()}
    if writer is not None:
        properties[WRITER] = writer
    try:
        return DeltaTable.create(
            where, schema=stored, mode="ignore", configuration=properties, raise_if_key_not_exists=False
        )
    except CommitFailedError as error:
        if (made := opened(where)) is None:
            raise unwritable(where, error) from error
        return made
    except (DeltaError, OSError) as error:
        raise unwritable(where, error) from error


def with_deleted_at(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a batch with that of tombstones."""
    return schema.append(pa.field(DELETED_AT, TIME))


def stored_fields(schema: pa.Schema) -> dict[str, Field]:
    """Return the columns in the form in which a Delta table declares them."""
    from deltalake import Schema

    fields: dict[str, Field] = {}
    for each in schema:
        cause = None
        try:
            [fields[each.name]] = Schema.from_arrow(pa.schema([each])).fields
        except Exception as error:  # noqa: BLE001 - deltalake raises no narrower class
            cause = error
        # deltalake creates a table with nanoseconds, but cannot read it. It takes an unsigned column for a
        # signed one, and panics at the first number that does not fit. A column without a type (void) makes
        # the whole table unreadable for other readers, and no later batch can give it a type.
        is_lossy = cause is None and "timestamp_nanos" in _json(fields[each.name].type)
        if cause is not None or is_lossy or _has(each.type, _is_unstorable):
            problem = f"is {each.type}, which a Delta table cannot store"
            raise invalid_request(f"column {each.name}", problem, "cast it, or leave it out") from cause
    return fields


def _is_unstorable(kind: pa.DataType) -> bool:
    is_empty = pa.types.is_struct(kind) and not kind.num_fields
    return pa.types.is_unsigned_integer(kind) or pa.types.is_null(kind) or is_empty


def _has(kind: pa.DataType, wanted: Callable[[pa.DataType], bool]) -> bool:
    """Return whether a type is, or contains, a wanted one."""
    if pa.types.is_dictionary(kind):
        return _has(kind.value_type, wanted)
    parts = [kind.field(number).type for number in range(kind.num_fields)]
    return wanted(kind) or any(_has(part, wanted) for part in parts)


def kind_of(of: object) -> str:
    """Return the name of a Delta type. The name does not say whether the type is nullable."""
    return re.sub(r',?"(nullable|containsNull|valueContainsNull)":(true|false)', "", _json(of)).strip('"')


def _json(of: object) -> str:
    return str(of.to_json())  # type: ignore[attr-defined]
