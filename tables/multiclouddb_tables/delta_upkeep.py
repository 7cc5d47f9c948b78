"""Removes old tombstones and empty folders of a Delta table, and merges its small files."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from multiclouddb_api.validators import to_utc
from multiclouddb_tables.delta import DeltaTarget
from multiclouddb_tables.delta_log import committed, said, writable
from multiclouddb_tables.delta_refusals import missing, unwritable
from multiclouddb_tables.merging import FILLED
from multiclouddb_tables.rules import DELETED_AT

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["compact", "drop_tombstones", "remove_empty_folders"]


def drop_tombstones(path: str, before: datetime) -> int:
    """Remove the rows of documents that were deleted before a time, and return their number.

    Args:
        path: The path of a folder, or a URL that `deltalake` supports.
        before: The time at which the delete was merged.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the time has no zone; `NOT_FOUND` if the table does not exist;
            `CONFLICT` if other processes change the table all the time.
    """
    before = to_utc("before", before)
    table = writable(path)
    if table is None:
        raise missing(path)
    if DELETED_AT not in {field.name for field in table.schema().fields}:
        return 0
    found = committed(table, lambda: table.delete(f"{DELETED_AT} < '{before.isoformat()}'"))
    target = DeltaTarget(path)
    if target.number(FILLED) and target.is_empty():
        target.store({FILLED: 0}, {})
    return int(found["num_deleted_rows"])


def compact(path: str) -> None:
    """Merge small files, and remove files that no version of the last seven days needs.

    Args:
        path: The path of a folder, or a URL that `deltalake` supports.

    Raises:
        MulticloudDbError: As `drop_tombstones`.
    """
    table = writable(path)
    if table is None:
        raise missing(path)
    committed(table, lambda: table.optimize.compact(commit_properties=said({})))
    committed(table, lambda: table.vacuum(dry_run=False))


def remove_empty_folders(table: DeltaTable) -> None:
    """Remove the folders of partitions that have no file any more, because their names have a value of rows.

    Only a file system has such folders. `vacuum` leaves them, and Hadoop's checksums of files that are gone.

    Args:
        table: The table, after a vacuum.

    Raises:
        MulticloudDbError: `PERMANENT_FAILURE` if a folder cannot be removed.
    """
    place = urlsplit(table.table_uri)
    if place.scheme == "file":
        try:
            _remove_empty(url2pathname(place.path), table.metadata().partition_columns)
        except OSError as error:
            raise unwritable(table.table_uri, error) from error


def _remove_empty(folder: str, columns: Sequence[str]) -> None:
    """Remove the empty folders of the first column's values, after those of the next columns in them."""
    if not columns:
        return
    first, *others = columns
    with os.scandir(folder) as entries:
        found = [each for each in entries if each.is_dir(follow_symlinks=False)]
    for each in found:
        if unquote(each.name.partition("=")[0]) != first:
            continue
        _remove_empty(each.path, others)
        names = os.listdir(each.path)
        if all(name.startswith(".") and name.endswith(".crc") for name in names):
            for name in names:
                os.remove(os.path.join(each.path, name))
            try:
                os.rmdir(each.path)
            except OSError as error:
                # Another process has written a file there meanwhile, or removed the folder too.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise
