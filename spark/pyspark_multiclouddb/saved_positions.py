"""Decides which positions an offset saves, so that a run leaves none from before its beginning."""

from __future__ import annotations

import math
import time
from collections.abc import Collection

from attrs import frozen

from multiclouddb_spi import Step
from multiclouddb_spi.continuation.entry import AnyEntry, Entry, Plan
from multiclouddb_spi.continuation.lineage import Lineage


@frozen(eq=False, repr=False)
class Saving:
    """What the offset at the end of a step saves.

    Attributes:
        stands: The positions of all partitions; idle ones may stand where they stood before.
        is_needed: True if these positions must be saved although the step has no records.
        is_empty: True if the step has no records.
        is_unread: Nothing was found, but it is not known of every partition that nothing follows.
        came: The idle partitions whose position is saved now.
        is_old: True if the last time at which all positions were saved is too long ago.
    """

    stands: Lineage
    is_needed: bool
    is_empty: bool
    is_unread: bool
    came: frozenset[str]
    is_old: bool


class SavedPositions:
    """Remembers what the offsets of a query have saved; it does no I/O.

    An offset makes a micro-batch, so where idle partitions stand is saved only once in a number of seconds.
    But a partition that was slow when all were saved, or that a split has made since then, would keep a
    position from before this run if the run ends now, and the next run might find that it has expired. So it
    is saved as soon as it has moved.
    """

    def __init__(self, idle_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        self._saved_at = -math.inf
        # The partitions that stood at their end when their position was saved. Where such a one stands later,
        # without a record, is saved once in `idle_seconds`.
        self._at_end: frozenset[str] = frozenset()

    def begin(self, lineage: Lineage, *, left: Collection[str] | None = ()) -> None:
        """Note that all positions are saved.

        Args:
            lineage: The positions.
            left: The partitions that may have records after them; None if each may.
        """
        self._saved_at = time.monotonic()
        self._at_end = frozenset() if left is None else _names(lineage).difference(left)

    def saving(self, before: Lineage, step: Step) -> Saving:
        """Return what the offset at the end of a step saves, if the offset before it has saved `before`."""
        is_empty = step.empty or not step.moved
        is_unread = is_empty and bool(step.left)
        is_old = time.monotonic() - self._saved_at >= self._idle_seconds or bool(step.skipped)
        due = is_old or is_unread
        came = _moved(before, step.after, self._at_end | step.left)
        stands = step.after if is_empty or due else _without_idle_moves(before, step, came)
        is_needed = _is_worth_saving(before, step.after, due or bool(came))
        return Saving(stands, is_needed, is_empty, is_unread, came, is_old)

    def saved(self, step: Step, saving: Saving) -> None:
        """Note that the offset at the end of a step has saved this."""
        there = _names(step.after)
        if saving.stands is step.after:
            self._saved_at, saved = time.monotonic(), there
        else:
            saved = step.news | saving.came
        self._at_end = (saved - step.left) | (frozenset() if saving.is_old else self._at_end & there)


def _names(lineage: Lineage) -> frozenset[str]:
    """Return the partitions that are read."""
    return frozenset(entry.partition_id for entry in lineage.active() if entry.listed)


def _entries(lineage: Lineage) -> dict[str, AnyEntry]:
    return {entry.partition_id: entry for entry in lineage}


def _stage(entry: AnyEntry) -> object:
    return entry.stage if isinstance(entry, Entry) else Plan


def _is_worth_saving(before: Lineage, stands: Lineage, due: bool) -> bool:
    """Return True if the new positions must be saved although the step has no records."""
    then, now = _entries(before), _entries(stands)
    if then.keys() != now.keys() or any(_stage(then[name]) is not _stage(now[name]) for name in now):
        return True  # the ranges of a batch come from the partitions in its first offset
    return due and then != now


def _moved(before: Lineage, after: Lineage, known: Collection[str]) -> frozenset[str]:
    """Return the partitions, but for those in `known`, that stand at another position than before."""
    pairs = ((name, before.reading(name), after.cursor(name)) for name in _names(after).difference(known))
    return frozenset(name for name, old, cursor in pairs if old is not None and old.cursor != cursor)


def _without_idle_moves(before: Lineage, step: Step, came: Collection[str]) -> Lineage:
    """Return the end of a step, but keep the old positions of idle partitions, except of those in `came`."""
    kept = step.after.copy()
    for entry in before.active():
        name = entry.partition_id
        if name not in step.news and name not in came and kept.reading(name) is not None:
            kept.took(name, entry.cursor)
    return kept
