"""Applies a service's answers about partitions to a lineage, for pages and for bounded reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import assert_never

import attrs

from multiclouddb_api import PartitionFoundLate
from multiclouddb_spi.batch import (
    Awaiting,
    Child,
    Continue,
    Drained,
    Ended,
    Outcome,
    Reached,
    Scanned,
    children_of,
)
from multiclouddb_spi.continuation.coverage import add_uncovered, audit_failed, find_uncovered
from multiclouddb_spi.continuation.entry import AwaitingChildren
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.moment import to_micros
from multiclouddb_spi.continuation.retention import Retention
from multiclouddb_spi.continuation.watching import settle
from multiclouddb_spi.contract import Feed, Seed
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.retry import Call

__all__ = ["Audit", "Coming", "Moved", "Mover", "Waits"]


@attrs.frozen
class Moved:
    """The result of handling the end of a partition.

    Attributes:
        fresh: The children that were not known before.
        started: The ids of the partitions that start now.
    """

    fresh: tuple[Child, ...] = ()
    started: tuple[str, ...] = ()


@attrs.frozen
class Waits:
    """Describes for which partitions the children of a partition wait.

    Attributes:
        fresh: The children that are not known yet.
        holds: Maps a child, or a partition that already waits, to the entry for which it must wait as if the
            entry were its parent.
        lost: Parents that are older than the retention, or that are not reachable from any entry of the
            lineage. No child waits for these parents.
        now: The service's time, in µs since 1970. None if the feed has audits, if no child waits
            for an undiscovered parent, or if the service does not report its time.
    """

    fresh: tuple[Child, ...] = ()
    holds: Mapping[str, str] = {}
    lost: frozenset[str] = frozenset()
    now: int | None = None


@attrs.frozen
class Coming:
    """Describes the waits of descendants after retention has removed their ancestor.

    Attributes:
        partitions: The partitions that will be discovered later.
        holds: Maps a partition to an entry. The partition waits for this entry in the same way as
            for a parent.
    """

    partitions: Collection[str]
    holds: Mapping[str, str]


@attrs.frozen
class Audit:
    """The result of an audit of coverage.

    Attributes:
        late: The missed partitions, which are now in the lineage, each with its notice.
        seeds: The ids of all partitions that the feed named.
        stranded: Partitions that no longer exist and were never listed, although other partitions wait for
            them.
        error: The reason why the service did not name the stranded partitions, or None.
    """

    late: tuple[PartitionFoundLate, ...]
    seeds: tuple[str, ...]
    stranded: tuple[str, ...]
    error: Exception | None = None


class Mover:
    """Applies the service's answers to one lineage; each call of the client makes its own instance.

    Args:
        feed: The feed of the lineage.
        lineage: The lineage to change; it is changed in place.
        call: The function that sends control requests to the service.
        deadline: The time limit of the call.
        watch_seconds: How long to search for more children of an ended partition.
    """

    def __init__(
        self, feed: Feed, lineage: Lineage, call: Call, deadline: Deadline, watch_seconds: float
    ) -> None:
        self._feed, self._lineage, self._call = feed, lineage, call
        self._deadline, self._watch_seconds = deadline, watch_seconds
        self._retention = _retention(feed, call, deadline)

    def ask_waits(self, name: str, outcome: Outcome) -> Waits:
        """Find the partitions for which the children of a partition must wait.

        The lineage does not change. The answer also applies to the partitions that already wait for
        this partition.

        Args:
            name: The partition.
            outcome: The outcome of reading the partition.

        Raises:
            Exception: The error that the provider raised.
        """
        self._lineage.check_end(name, outcome)
        fresh = self._lineage.fresh_children(name, children_of(outcome))
        if not fresh and not self._lineage.waiting_for(name):
            return Waits()
        holds, lost = self._retention.after_end(self._lineage, name, fresh)
        undiscovered = self._lineage.undiscovered(name, fresh) - lost
        now = self._now() if undiscovered and self._lineage.audited is None else None
        return Waits(tuple(fresh), holds, frozenset(lost), now)

    def _now(self) -> int | None:
        now = self._call(lambda: self._feed.clock(self._deadline), self._deadline)
        return None if now is None else to_micros(now)

    def end(self, name: str, outcome: Outcome, waits: Waits) -> Moved | None:
        """Apply the outcome of the partition's last read.

        After an error in this method, the lineage must not be used any more.

        Args:
            name: The partition.
            outcome: The outcome of reading the partition.
            waits: From `ask_waits`.

        Returns:
            What follows the partition; None if the partition may contain more records.
        """
        match outcome:
            case Drained(complete=complete):
                started = self._lineage.retire(
                    name, waits.fresh, waits.lost, waits.holds, complete=complete, now=waits.now
                )
                return Moved(waits.fresh, tuple(started))
            case Scanned(pieces):
                return Moved((), tuple(self._lineage.scanned(name, pieces)))
            case Ended(notice) if notice is not None and self._lineage.is_segment(name):
                # The collection was dropped: nothing is left to scan, and the stream also reports the end.
                return Moved((), tuple(self._lineage.end_scan()))
            case Ended():
                return Moved((), tuple(self._lineage.retire(name, (), waits.lost, waits.holds)))
            case Awaiting():
                self._lineage.await_children(name)
                return Moved()
            case Continue() | Reached():
                return None
            case _:
                assert_never(outcome)

    def discover(
        self, entries: Sequence[AwaitingChildren], end: Callable[[str, Outcome], Sequence[str] | None]
    ) -> list[str]:
        """Ask the service once for more children of partitions that have ended.

        Args:
            entries: The ended partitions for which a search is due; there is at least one.
            end: A function that applies an answer to the lineage, and returns the ids of the partitions that
                start.

        Returns:
            The ids of the partitions that start now.

        Raises:
            Exception: The error that the provider raised.
        """
        asked = {entry.partition_id: entry.cursor for entry in entries}
        outcomes = self._call(lambda: self._feed.discover(asked, self._deadline), self._deadline)
        return settle(self._feed, self._lineage, entries, outcomes, self._watch_seconds, end)

    def oldest(self, *names: str) -> list[Seed]:
        """Return the seeds from which to read after positions have expired (`Feed.oldest`)."""
        return self._call(lambda: self._feed.oldest(names, self._deadline), self._deadline)

    def ask_coming(self, name: str, seeds: Sequence[Seed]) -> Coming:
        """Find the waits that are necessary after the loss of a partition.

        The lineage does not change.

        Args:
            name: The partition.
            seeds: From `oldest`.

        Raises:
            Exception: The error that the provider raised.
        """
        return Coming(*self._retention.after_loss(self._lineage, name, seeds))

    def replace(self, name: str, seeds: Sequence[Seed], coming: Coming) -> list[str]:
        """Continue with the remaining descendants of a lost partition.

        Return the ids of the partitions that start now.

        Args:
            name: The partition.
            seeds: From `oldest`.
            coming: From `ask_coming`.
        """
        return self._lineage.replace(name, seeds, coming.partitions, coming.holds)

    def audit(self, deadline: Deadline) -> Audit:
        """Compare the lineage with the partitions that the service lists, and add the missed ones.

        Args:
            deadline: The time limit.

        Raises:
            Exception: The error that the provider raised; the next audit is then due soon.
        """
        feed, lineage = self._feed, self._lineage
        try:
            seeds = self._call(lambda: find_uncovered(feed, lineage, deadline), deadline)
        except Exception:
            audit_failed(lineage)
            raise
        late = add_uncovered(feed, lineage, seeds)
        stranded: list[str] = []
        failed: Exception | None = None
        try:
            stranded = _retention(feed, self._call, deadline).stranded(lineage)
        except Exception as error:  # noqa: BLE001 - returned with what was found; the next audit asks again
            failed = error
        if stranded or failed is not None:
            audit_failed(lineage)  # audit again soon: this call may not report what it has found
        found = tuple(seed.partition_id for seed in seeds or ())
        return Audit(tuple(late), found, tuple(stranded), failed)


def _retention(feed: Feed, call: Call, deadline: Deadline) -> Retention:
    # This is a function, because a method of the mover would create a reference cycle, which would keep
    # every event in memory until the garbage collector runs.
    asked = feed.for_one_call()
    return Retention(
        lambda: call(lambda: asked.partitions(deadline), deadline),
        lambda names: call(lambda: feed.oldest(names, deadline), deadline),
    )
