"""Names the way out of a refusal in a mirror, which has other arguments than the sinks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from multiclouddb_api import ErrorCategory, ErrorReason, MulticloudDbError

__all__ = ["advised", "advising"]

_AGAIN: Final = "run once with resync=True (--resync), which copies the collection and buries the old rows"
_WAYS: Final[Mapping[tuple[ErrorCategory, ErrorReason | None], str]] = {
    (ErrorCategory.INVALID_REQUEST, ErrorReason.LONG_KEY): (
        "name a table of Delta or SQLite, which have room for it; or put such changes aside with set_aside= "
        "(--set-aside); or give the document a shorter key, or delete it, and run once with resync=True "
        "(--resync)"
    ),
    (ErrorCategory.INVALID_REQUEST, ErrorReason.WRONG_COLUMNS): (
        "give the table the columns and types that it had, or name a new table; columns of the documents are "
        "declared with columns= (--columns)"
    ),
    (ErrorCategory.INVALID_REQUEST, ErrorReason.NO_DOCUMENT): (
        "switch full images on; or wait for the next change of this document, and run once with resync=True "
        "(--resync)"
    ),
    (ErrorCategory.INVALID_REQUEST, ErrorReason.OTHER_COLUMNS): (
        "run once with refill=True (--refill), which copies every row again; or leave columns= (--columns) "
        "out, which takes the declaration that the table has"
    ),
    (ErrorCategory.INVALID_REQUEST, ErrorReason.WRONG_OPTIONS): (
        "read with the option with which the table was filled, or name a new table"
    ),
    (ErrorCategory.INVALID_REQUEST, ErrorReason.UNDECODABLE): (
        "change or delete the document in the database, and run once with resync=True (--resync)"
    ),
    (ErrorCategory.INVALID_REQUEST, ErrorReason.ROWS_MISSING): _AGAIN,
    (ErrorCategory.NOT_FOUND, ErrorReason.ROWS_MISSING): _AGAIN,
    (ErrorCategory.INVALID_REQUEST, ErrorReason.RECREATED): _AGAIN,
    (ErrorCategory.INVALID_REQUEST, ErrorReason.REPLACED): _AGAIN,
    (ErrorCategory.CONFLICT, ErrorReason.DELETED): (
        "restore it; or start the mirror again, which copies every row"
    ),
}
"""What a mirror can do, by the category and the reason of a sink's error. The way out of any other error is
right as it is."""


_NOTHING: Final = "; nothing was merged; "


def advised(error: MulticloudDbError) -> MulticloudDbError:
    """Return the error of a merge with the way out of a mirror, or the error itself if its own is right.

    Args:
        error: The error of a sink.
    """
    ours = _WAYS.get((error.category, error.reason))
    if ours is None:
        return error
    # What a copy costs belongs to the problem.
    problem, _, _ = error.message.partition(_NOTHING if _NOTHING in error.message else "; ")
    return MulticloudDbError(f"{problem}; {ours}", error.detail)


@contextmanager
def advising() -> Iterator[None]:
    """Let each error name the way out of a mirror."""
    try:
        yield
    except MulticloudDbError as error:
        if (told := advised(error)) is error:
            raise
        raise told from error
