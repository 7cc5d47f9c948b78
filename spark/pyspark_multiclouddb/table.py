"""Opens a Delta table, and makes commits to it.

If two threads change a table at the same time, deltalake refuses the later commit. The sink can
safely repeat any of its commits. Therefore the sink repeats a refused commit on the latest version
of the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeVar

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["DELETED_AT", "committed", "missing", "opened"]

DELETED_AT: Final = "_deleted_at"
"""The column that contains the time at which the sink merged a delete; null in the row of a document."""
_T = TypeVar("_T")
_TRIES: Final = 10
_ONE_AT_A_TIME: Final[defaultdict[str, Lock]] = defaultdict(Lock)
"""For each table, the lock that keeps the threads of this process from refusing each other's commits."""


def opened(where: str) -> DeltaTable | None:
    """Return the table, or None if there is none."""
    from deltalake import DeltaTable

    return DeltaTable(where) if DeltaTable.is_deltatable(where) else None


def missing(where: str) -> MulticloudDbError:
    """Make the error for a table that does not exist."""
    return MulticloudDbError(
        f"table_path: there is no Delta table at {where}; correct the path, or let a merge create it",
        ErrorDetail(category=ErrorCategory.NOT_FOUND),
    )


def committed(table: DeltaTable, commit: Callable[[], _T]) -> _T:
    """Make a commit, and repeat it if another commit prevents it.

    Before each new attempt, this function updates `table` to its latest version.

    Args:
        table: The table.
        commit: Makes the commit with `table`. The function `commit` may be called several times.

    Returns:
        What `commit` returned.

    Raises:
        MulticloudDbError: `CONFLICT` if another process changed the table during every attempt.
    """
    from deltalake.exceptions import CommitFailedError

    with _ONE_AT_A_TIME[table.table_uri.rstrip("/")]:
        for tried in range(1, _TRIES + 1):
            try:
                return commit()
            except CommitFailedError as error:
                if tried == _TRIES:
                    raise _conflict(table, error) from error
                table.update_incremental()
    raise AssertionError("the loop returns or raises")


def _conflict(table: DeltaTable, error: Exception) -> MulticloudDbError:
    return MulticloudDbError(
        f"table_path: another process changed {table.table_uri} during each of {_TRIES} attempts; let only "
        f"one process write the table, and try again",
        ErrorDetail(
            category=ErrorCategory.CONFLICT,
            retryable=True,
            native_class=f"deltalake.exceptions.{type(error).__name__}",
            native_text=str(error),
        ),
    )
