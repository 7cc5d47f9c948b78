"""Converts the positions in a simulated partition to cursors, and cursors to positions.

The cursor `12` means the position after commit 12. The cursor `[12, 3]` means the position inside
commit 12 after three of its records in this partition. Commits are numbered across the whole
collection, as in a database with one log. These numbers make it possible to compare the positions
of a partition, and to advance the position of an idle partition.
"""

from __future__ import annotations

from typing import TypeAlias

from multiclouddb_spi.cursor import Cursor, InvalidCursor

__all__ = ["Place", "place_after", "place_text", "to_cursor", "to_place"]

Place: TypeAlias = tuple[int, int]
"""The commit to read next, and how many of the commit's records to skip.

A later position in the log is a larger tuple.
"""


def place_after(commit: int) -> Place:
    """Return the position after a whole commit."""
    return (commit + 1, 0)


def to_cursor(place: Place) -> Cursor:
    """Return the cursor of a position."""
    commit, done = place
    return [commit, done] if done else commit - 1


def to_place(cursor: Cursor) -> Place:
    """Return the position that a cursor stands for."""
    if type(cursor) is int and cursor >= 0:
        return place_after(cursor)
    if type(cursor) is list and len(cursor) == 2:
        commit, done = cursor
        if type(commit) is int and type(done) is int and commit > 0 and done > 0:
            return (commit, done)
    raise InvalidCursor("a cursor of the simulation is a commit, or [commit, records done in it]")


def place_text(place: Place) -> str:
    """Return a position as readable text."""
    commit, done = place
    return f"commit {commit}, record {done}" if done else f"commit {commit - 1}"
