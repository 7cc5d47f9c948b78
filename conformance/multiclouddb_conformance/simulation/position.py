"""Positions in a simulated partition, and the cursors that stand for them; pure.

A cursor is `12`: behind commit 12; or `[12, 3]`: inside commit 12, behind three of the records that
it left in this partition. Commits are numbered through the whole collection, as in a database with
one log, so that positions of one partition can be compared and an idle partition can move.
"""

from __future__ import annotations

from typing import TypeAlias

from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.faults import InvalidCursor

__all__ = ["Place", "behind", "place_text", "to_cursor", "to_place"]

Place: TypeAlias = tuple[int, int]
"""What is read next: the commit, and how many of its records to step over. Ordered as tuples are."""


def behind(commit: int) -> Place:
    """The place behind a whole commit."""
    return (commit + 1, 0)


def to_cursor(place: Place) -> Cursor:
    """The cursor of a place."""
    commit, done = place
    return [commit, done] if done else commit - 1


def to_place(cursor: Cursor) -> Place:
    """The place of a cursor.

    Raises:
        InvalidCursor: No place has this cursor.
    """
    if type(cursor) is int and cursor >= 0:
        return behind(cursor)
    if type(cursor) is list and len(cursor) == 2:
        commit, done = cursor
        if type(commit) is int and type(done) is int and commit > 0 and done > 0:
            return (commit, done)
    raise InvalidCursor("a cursor of the simulation is a commit, or [commit, records done in it]")


def place_text(place: Place) -> str:
    """A place for a person."""
    commit, done = place
    return f"commit {commit}, record {done}" if done else f"commit {commit - 1}"
