"""Refuses Delta tables that cannot be read or written, and translates what deltalake refuses.

What the log of a table says is refused when the table is opened. deltalake refuses the rest at a commit or
while files are read; it has hardly any error classes, so its texts decide.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Set
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from multiclouddb_api import ErrorCategory, ErrorDetail, ErrorReason, MulticloudDbError, invalid_request
from multiclouddb_spi.faults import holds_data, key_digest, one_line, without_data

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

__all__ = [
    "check_files",
    "check_path",
    "check_readable",
    "check_writable",
    "contended",
    "damaged",
    "is_gone",
    "is_panic",
    "lost",
    "missing",
    "refusal",
    "safe_cause",
    "too_long",
    "unopened",
    "unreadable",
    "unwritable",
]

_READABLE: Final = frozenset({"timestampNtz", "variantType", "variantType-preview"})
"""The reader features that deltalake's Arrow data set knows; deltalake also merges where it cannot read."""
_VECTORS: Final = "deletionVectors"
_MAPPING: Final = "delta.columnMapping.mode"
_IN_LOWER_CASE: Final = {
    # Of a merge without its changes, a reader makes them of the files that were written anew.
    "delta.enableChangeDataFeed": ("true", "each row of a file would seem to be deleted and inserted"),
    "delta.enableExpiredLogCleanup": ("false", "it would remove older entries of the log"),
}
"""For each property, the value that deltalake only knows in lower case, and what it would do otherwise."""
_INVARIANT: Final = "delta.invariants"
_GENERATED: Final = "delta.generationExpression"
_DECIMAL: Final = re.compile(r"decimal\(\d+, ?(\d+)\)")
_CONSTRAINT: Final = "delta.constraints."
# Messages of the operating system that come through deltalake.
_NO_ACCESS: Final = (
    "PermissionDenied",
    "ReadOnlyFilesystem",
    "StorageFull",
    "Permission denied",
    "Read-only file system",
    "No space left on device",
    "Disk quota exceeded",
    "File too large",
)
_NO_FOLDER: Final = "Not a directory"
# A storage without conditional writes, as deltalake names it.
_UNCONDITIONAL: Final = ("S3 locking", "AWS_S3_ALLOW_UNSAFE_RENAME", "Atomic rename requires")
_FEATURES: Final = re.compile(r"nsupported table features required: \[([^]]*)\]")
_REFUSED_ROW: Final = ("failed validation check", "Check or Invariant", "violated by value in row")
_APPEND_ONLY: Final = "table is append-only"
_OF_STORAGE: Final = (
    "object store",
    "Generic S3 error",
    "Generic MicrosoftAzure error",
    "Generic GCS error",
)
_CAUSE: Final = "↳ "
_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
_QUERY: Final = re.compile(r"(?<=\S)\?\S*[=]\S*")
_HINT: Final = "_last_checkpoint hint"
_UNSUPPORTED: Final = ("Unsupported", "catalog-managed")
_LONG_NAME: Final = ("File name too long", "KeyTooLong", "filename, directory name, or volume label")
_STRANGE_IN_URL: Final = re.compile(r"[?#]|%(?:23|3f|5c|25[0-9a-f]{2})", re.IGNORECASE)
_NO_COMMIT: Final = re.compile(r"Invalid table version: (\d+)")
_GONE: Final = re.compile(r"Object at location .* not found|No such file or directory")


def check_readable(table: DeltaTable, where: str) -> None:
    """Refuse a table whose rows deltalake would read wrong, or not at all."""
    _check_mapping(table, where)
    protocol = table.protocol()
    if unknown := {*(protocol.reader_features or ())} - _READABLE:
        raise _unsupported(where, unknown, "read")


def check_writable(table: DeltaTable, where: str) -> None:
    """Refuse a table in which a sink cannot replace rows."""
    _check_mapping(table, where)
    # Before deltalake 1.6.5, a scan may apply a vector to other rows than those that were deleted, so a merge
    # brings these back and loses the others (delta-rs#4692). The protocol does not say whether there is a
    # vector yet, and another writer may add one at any time. And no reader here could prove such a merge.
    if _VECTORS in (table.protocol().writer_features or ()):
        raise _unsupported(where, {_VECTORS}, "read or write")
    if table.metadata().configuration.get("delta.appendOnly", "").lower() == "true":
        raise _append_only(where)
    for name, (value, problem) in _IN_LOWER_CASE.items():
        found = table.metadata().configuration.get(name, value)
        if found != value and found.lower() == value:
            raise invalid_request(
                "table_path",
                f"{where} has the property {name} with the value {found}, which Spark takes for {value} and "
                f"deltalake does not: {problem}",
                f"set the property to {value}, in lower case",
            )
    parted = table.metadata().partition_columns
    if "order_key" in parted:
        raise invalid_request(
            "table_path",
            f"{where} is partitioned by order_key, which each change of a row replaces, and which a snapshot "
            "makes empty for a while; Delta stores null in place of an empty text there",
            "partition the table by another column",
        )
    for field in table.schema().fields:
        if _GENERATED in field.metadata:
            # deltalake computes the column of a new row. It leaves that of a changed row as it is, and then
            # refuses the commit, because the value does not fit any more.
            raise invalid_request(
                "table_path",
                f"{where} computes the column {field.name} (GENERATED ALWAYS), and deltalake does not "
                "compute it again when a row changes",
                "drop the column, or write the table in Spark, with merge_into_table",
            )
        scale = _DECIMAL.search(str(field.type))
        if field.name in parted and scale is not None and scale[1] != "0":
            raise invalid_request(
                "table_path",
                f"{where} is partitioned by the column {field.name}, a decimal, and deltalake writes a "
                "negative one, such as 0.-50, into the log, which nobody can read after that",
                "partition the table by another column",
            )


def _check_mapping(table: DeltaTable, where: str) -> None:
    # deltalake takes such a table, and reads null in each column.
    if table.metadata().configuration.get(_MAPPING, "none").lower() != "none":
        raise _unsupported(where, {"columnMapping"}, "read or write")


def _unsupported(where: str, features: Set[str], verb: str) -> MulticloudDbError:
    names = ", ".join(sorted(features))
    return MulticloudDbError(
        f"table_path: {where} has the table feature {names}, and deltalake cannot {verb} such a table; drop "
        "the feature in Spark with ALTER TABLE … DROP FEATURE, or write and verify the table in Spark, with "
        "merge_into_table and TableTarget",
        ErrorDetail(ErrorCategory.UNSUPPORTED_CAPABILITY, reason=ErrorReason.NOT_OFFERED),
    )


def _append_only(where: str) -> MulticloudDbError:
    return invalid_request(
        "table_path",
        f"{where} has the property delta.appendOnly, but a sink replaces rows",
        "remove the property, or give another table",
    )


def missing(where: str) -> MulticloudDbError:
    """Make the error for a table that does not exist."""
    return MulticloudDbError(
        f"table_path: there is no Delta table at {where}; correct the path, or let a merge create it",
        ErrorDetail(category=ErrorCategory.NOT_FOUND),
    )


def is_panic(error: BaseException) -> bool:
    """Return whether an error is a defect of deltalake's Rust code, which is no `Exception` in Python."""
    return type(error).__name__ == "PanicException"


def is_gone(error: BaseException) -> bool:
    """Return whether a file of the version was removed, as VACUUM does."""
    return _GONE.search(str(error)) is not None


def safe_cause(error: BaseException) -> BaseException | None:
    """Return the error as the cause of ours, or None if its text shows data."""
    return None if holds_data(error) else error


def refusal(table: DeltaTable, error: BaseException) -> MulticloudDbError | None:
    """Translate an error of a commit; return None if the commit of another process may have prevented it.

    Args:
        table: The table, in the version on which the commit was based.
        error: An error of deltalake or of the operating system, or a panic.
    """
    from deltalake.exceptions import CommitFailedError

    where, text = table.table_uri, str(error)
    if any(words in text for words in _UNCONDITIONAL):
        return MulticloudDbError(
            f"table_path: the storage of {where} has no conditional writes, so two processes could overwrite "
            "each other's commits; use one that has them (Azure, GCS, S3 with conditional put, a local "
            f"disk), or configure the locking provider that deltalake names: {_told(error)}",
            _detail(ErrorCategory.UNSUPPORTED_CAPABILITY, error, reason=ErrorReason.NOT_OFFERED),
        )
    if found := _FEATURES.search(text):
        return _unsupported(where, {name.strip() for name in found[1].split(",")}, "write")
    if _APPEND_ONLY in text:
        return _append_only(where)
    if any(words in text for words in _REFUSED_ROW):
        return MulticloudDbError(
            f"table_path: {where} refuses a row, because of {_constraints(table)}; the row of a deleted "
            "document has null in all columns of your own; change the documents or the constraint",
            _detail(ErrorCategory.INVALID_REQUEST, error, reason=ErrorReason.MISFIT),
        )
    if is_gone(error):
        return None
    if found := _NO_COMMIT.search(text):
        return MulticloudDbError(
            f"table_path: the log of {where} has a checkpoint of its last version, {found[1]}, but not the "
            f"file _delta_log/{int(found[1]):020}.json, after which deltalake would commit ({_told(error)}); "
            "bring this file back, for example from a backup, or let Spark make one commit, which needs only "
            "the checkpoint; then merge the batch again",
            _detail(ErrorCategory.PERMANENT_FAILURE, error),
        )
    if isinstance(error, OSError) or any(words in text for words in _NO_ACCESS):
        return unwritable(where, error)
    if isinstance(error, CommitFailedError):
        return None
    return MulticloudDbError(
        f"table_path: deltalake cannot write {where} ({_told(error)}); check that the types of the columns "
        "fit, and merge the batch again",
        _detail(ErrorCategory.PERMANENT_FAILURE, error),
    )


def too_long(table: DeltaTable, rows: pa.Table, error: BaseException) -> MulticloudDbError | None:
    """Translate the refusal of a storage to make a folder, whose name has the value of a partition.

    Args:
        table: The table.
        rows: The rows of the commit, with their keys.
        error: An error of deltalake.
    """
    if not any(words in str(error) for words in _LONG_NAME):
        return None
    found = [
        (len(_name_of(value)), name, key)
        for name in {*table.metadata().partition_columns} & {*rows.column_names}
        for key, value in zip(rows["key"].to_pylist(), rows[name].to_pylist(), strict=True)
        if value is not None
    ]
    _, name, key = max(found, default=(0, "", ""))
    return invalid_request(
        f"column {name}",
        f"has a value in the row of the key {key_digest(key)} that is too long for the name of a folder, and "
        f"{table.table_uri} is partitioned by it",
        "write a shorter value, or partition the table by another column",
        ErrorReason.MISFIT,
    )


def _name_of(value: object) -> str:
    """Return about what Delta makes of a value in the name of a folder."""
    return quote(format(value, "f") if isinstance(value, float | Decimal) else str(value))


def _constraints(table: DeltaTable) -> str:
    """Name the rules that may refuse a row; which one it was, deltalake only says with the row."""
    rules = [
        f"the CHECK constraint {name.removeprefix(_CONSTRAINT)} ({rule})"
        for name, rule in sorted(table.metadata().configuration.items())
        if name.startswith(_CONSTRAINT)
    ]
    rules += [
        f"the invariant of the column {field.name} ({_rule(field.metadata[_INVARIANT])})"
        for field in table.schema().fields
        if _INVARIANT in field.metadata
    ]
    rules += [
        f"the column {field.name}, which is NOT NULL" for field in table.schema().fields if not field.nullable
    ]
    return " or ".join(rules) or "a constraint"


def _rule(invariant: object) -> str:
    """Return the condition of an invariant, which is JSON in the metadata of a column."""
    try:
        return str(json.loads(str(invariant))["expression"]["expression"])
    except (ValueError, LookupError, TypeError):
        return str(invariant)


def _told(error: BaseException) -> str:
    """Return an error of deltalake in one line, with its causes, each of which has a line of its own.

    After the causes comes the place in deltalake's own code.
    """
    first, *others = _COLOUR.sub("", str(error)).split("\n")
    causes = [line.strip().removeprefix(_CAUSE) for line in others if _CAUSE in line]
    return one_line(_QUERY.sub("", ": ".join([first, *causes])))


def unwritable(where: str, error: BaseException) -> MulticloudDbError:
    """Make the error for a table that the operating system or the storage refuses to write."""
    return MulticloudDbError(
        f"table_path: {where} cannot be written ({_told(error)}); check the path, the permissions "
        "of its folder and the space on the disk, and merge the batch again",
        _detail(ErrorCategory.PERMANENT_FAILURE, error),
    )


def unreadable(where: str, error: BaseException) -> MulticloudDbError:
    """Make the error for a version whose files were removed, by VACUUM or with the whole table."""
    return MulticloudDbError(
        f"table_path: {where} cannot be read ({_told(error)}); a version that is read must not be "
        "removed by VACUUM, and the table must not be replaced; try again",
        _detail(ErrorCategory.TRANSIENT_FAILURE, error, retryable=True),
    )


def lost(where: str, error: BaseException) -> MulticloudDbError:
    """Make the error for a newest version whose files were removed; no other version will replace it."""
    return MulticloudDbError(
        f"table_path: the newest version of {where} names a data file that is gone ({_told(error)}); bring "
        "it back, for example from a backup, or remove the table's folder and fill a new table from a "
        "snapshot, which a mirror does when it is started again",
        _detail(ErrorCategory.PERMANENT_FAILURE, error),
    )


def unopened(where: str, error: BaseException) -> MulticloudDbError:
    """Make the error for a table whose log deltalake does not read."""
    text = _told(error)
    if _NO_FOLDER in text:
        return _no_folder(where, where)
    if any(words in text for words in _OF_STORAGE) or isinstance(error, OSError):
        return MulticloudDbError(
            f"table_path: the log of {where} cannot be read ({text}); check the path, the credentials and "
            "the network, and try again",
            _detail(ErrorCategory.TRANSIENT_FAILURE, error, retryable=True),
        )
    if any(words in text for words in _UNSUPPORTED):
        return MulticloudDbError(
            f"table_path: deltalake cannot open {where} ({text}); update deltalake, or write and verify the "
            "table in Spark, with merge_into_table and TableTarget",
            _detail(ErrorCategory.UNSUPPORTED_CAPABILITY, error, reason=ErrorReason.NOT_OFFERED),
        )
    if _HINT in text:
        return MulticloudDbError(
            f"table_path: {where} has a _delta_log/_last_checkpoint which names a checkpoint that is not "
            f"there ({text}); remove this file, which is only a hint, and try again: if another file "
            "is missing too, the next error says so",
            _detail(ErrorCategory.PERMANENT_FAILURE, error),
        )
    return MulticloudDbError(
        f"table_path: the log of {where} is damaged ({text}); bring back the file that is missing or cut "
        "off, for example from a backup, or fill a new table from a snapshot",
        _detail(ErrorCategory.PERMANENT_FAILURE, error),
    )


def damaged(where: str, error: BaseException) -> MulticloudDbError:
    """Make the error for a file of a table that is no Parquet file of its columns."""
    return MulticloudDbError(
        f"table_path: a file of {where} is damaged, or has other columns than the table "
        f"({without_data(one_line(str(error)))}); bring it back, for example from a backup, or fill a new "
        "table from a snapshot",
        _detail(ErrorCategory.PERMANENT_FAILURE, error),
    )


def check_files(paths: Iterable[str], where: str) -> None:
    """Refuse to read a shallow clone, whose files are those of another table.

    Args:
        paths: The files of a version, as they are in its log: a URL if a file is not in the table's folder.
        where: The name of the table, for the message.
    """
    if any("://" in path for path in paths):
        raise MulticloudDbError(
            f"table_path: {where} is a shallow clone: it has files of another table, which deltalake cannot "
            "read; make a DEEP CLONE, or write and verify the table in Spark, with merge_into_table and "
            "TableTarget",
            ErrorDetail(ErrorCategory.UNSUPPORTED_CAPABILITY, reason=ErrorReason.NOT_OFFERED),
        )


def check_path(where: str) -> None:
    """Refuse what can be no folder, and a folder whose name deltalake takes for that of another one."""
    # In some places, it decodes %20, takes a backslash for a slash, and reads a ? or a # as in a URL.
    if "://" in where:
        # What follows a ? or a # is no part of the place, so two tables would have one folder.
        if (cut := _STRANGE_IN_URL.search(where)) is not None:
            raise invalid_request(
                "table_path",
                f"has {cut[0]!r} in a URL, and deltalake would write the table, or a part of it, into "
                "another folder",
                "give a folder without it",
            )
        return
    path = os.path.abspath(where)
    strange = re.search(r"%[0-9A-Fa-f]{2}|[?#]" + (r"|\\" if os.sep == "/" else ""), path)
    if strange is not None:
        raise invalid_request(
            "table_path",
            f"has {strange[0]!r} in {path!r}, and deltalake would write a part of the table into another "
            "folder",
            "give a folder without it",
        )
    there = next((each for each in (path, *map(str, Path(path).parents)) if os.path.exists(each)), path)
    if os.path.isfile(there):
        raise _no_folder(where, there)


def _no_folder(where: str, file: str) -> MulticloudDbError:
    return invalid_request(
        "table_path",
        f"{where} is no folder, because {file} is a file",
        "give the path of a folder, which a merge makes if there is none",
    )


def contended(where: str, tried: int, patience: float, error: BaseException) -> MulticloudDbError:
    """Make the error for commits of others that have prevented ours again and again."""
    return MulticloudDbError(
        f"table_path: other processes changed {where} during each of {tried} attempts in {patience:.0f} "
        "seconds; let them commit less often, and try again",
        _detail(ErrorCategory.CONFLICT, error, retryable=True, reason=ErrorReason.OTHER_WRITER),
    )


def _detail(
    category: ErrorCategory,
    error: BaseException,
    *,
    retryable: bool = False,
    reason: ErrorReason | None = None,
) -> ErrorDetail:
    kind = type(error)
    name = f"deltalake.exceptions.{kind.__name__}" if kind.__module__ == "_internal" else None
    return ErrorDetail(
        category,
        retryable=retryable,
        native_class=name or f"{kind.__module__}.{kind.__name__}",
        native_text=without_data(str(error)),
        reason=reason,
    )
