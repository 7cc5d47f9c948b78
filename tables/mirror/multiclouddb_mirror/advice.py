"""Names the way out of a refusal in a mirror, which has other arguments than the sinks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from multiclouddb_api import MulticloudDbError

__all__ = ["advised", "advising"]

_AGAIN: Final = "run once with resync=True (--resync), which copies the collection and buries the old rows"
_COLUMN: Final = (
    "give the table the columns and types that it had, or name a new table; columns of the documents are "
    "declared with columns= (--columns)"
)
_WAYS: Final = (
    (
        "long_keys",
        "give the document a shorter key; or name a table of Delta or SQLite, which have room for it",
    ),
    ("new_columns", _COLUMN),
    (
        "missing_state",
        "switch full images on; or wait for the next change of this document, and run once with resync=True "
        "(--resync)",
    ),
    (
        "refill=True",
        "run once with refill=True (--refill), which copies every row again; or leave columns= (--columns) "
        "out, which takes the declaration that the table has",
    ),
    (
        "give each worker",
        "two mirrors write one table: let one process do it, and start this one again, which goes on from "
        "the stored position",
    ),
    ("documents=", "name a new table, whose column new_item_state the mirror makes"),
    ("mode with which", "read with the option with which the table was filled, or name a new table"),
    ("start a query", _AGAIN),
    ("startingPosition", _AGAIN),
    ("from Snapshot()", _AGAIN),
    (
        "another Snapshot()",
        "change or delete the document in the database, and run once with resync=True (--resync)",
    ),
    ('create="', _AGAIN),
    ("checkpoint", _AGAIN),
    ("app_id", _AGAIN),
    ("batch_id", _AGAIN),
)
"""Words of a sink's way out, and what does the same in a mirror; the first that fits is taken."""


_NOTHING: Final = "; nothing was merged; "


def advised(error: MulticloudDbError) -> MulticloudDbError:
    """Return the error of a merge with the way out of a mirror, or the error itself if its own is right.

    Args:
        error: The error of a sink.
    """
    # What a copy costs belongs to the problem.
    problem, _, way_out = error.message.partition(_NOTHING if _NOTHING in error.message else "; ")
    for words, ours in _WAYS:
        if words in way_out:
            return MulticloudDbError(f"{problem}; {ours}", error.detail)
    return error


@contextmanager
def advising() -> Iterator[None]:
    """Let each error name the way out of a mirror."""
    try:
        yield
    except MulticloudDbError as error:
        if (told := advised(error)) is error:
            raise
        raise told from error
