"""Commits to a Delta table that several threads of one process write.

If two threads change a table at the same time, deltalake refuses the later commit. All commits of the sink
may be repeated, so a refused commit is made again on the latest version of the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeVar

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["committed"]

_T = TypeVar("_T")
_TRIES: Final = 10
_ONE_AT_A_TIME: Final[defaultdict[str, Lock]] = defaultdict(Lock)
"""For each table, the lock that keeps the threads of this process from refusing each other's commits."""


def committed(table: DeltaTable, commit: Callable[[], _T]) -> _T:
    """Make a commit; if another commit was first, update the table to its latest version and try again.

    Args:
        table: The table.
        commit: Makes the commit with `table`. It may be called several times.

    Returns:
        What `commit` returned.

    Raises:
        MulticloudDbError: `CONFLICT` if other processes were first at every attempt.
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
