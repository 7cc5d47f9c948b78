"""Asks the service about its partitions, and applies the answers to a lineage.

This serves pages, bounded reads, and the token of a partition that has ended. `Lineage` decides what follows
from an answer; this module decides when to ask, what to ask, and what to report to the user.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Final, assert_never

import attrs
from attrs import frozen

from multiclouddb_api import (
    ErrorCategory,
    ErrorReason,
    Gap,
    OnExpired,
    PartitionFoundLate,
    SkipToOldest,
)
from multiclouddb_spi.batch import Awaiting, Child, Continue, Drained, Ended, Outcome, Reached, Scanned
from multiclouddb_spi.continuation.entry import Audited, Entry, NextSearch
from multiclouddb_spi.continuation.lineage import Lineage, Loss
from multiclouddb_spi.continuation.token import to_moment
from multiclouddb_spi.continuation.uncovered import NotProvableError
from multiclouddb_spi.contract import Feed, FeedIdentity, Seed, Survey
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.faults import ProviderFault, expired
from multiclouddb_spi.retry import Call
from multiclouddb_spi.time_limits import Deadline

_FIRST_PAUSE: Final = 0.1
_MOST_PAUSE: Final = 120.0
_MOST_KEPT: Final = 16384
_UNCLEAR_SECONDS: Final = 60.0  # DynamoDB lists a child some seconds after its parent has ended


@frozen
class PartitionEnd:
    """What follows the end of a partition.

    Attributes:
        fresh: The children that were not known before.
        started: The partitions that start.
    """

    fresh: tuple[Child, ...] = ()
    started: tuple[str, ...] = ()


@frozen
class Found:
    """What a question to the service has changed.

    Attributes:
        started: The partitions that are read from now on.
        children: The children that ended partitions have named.
        gaps: What was lost; each with the partitions that are read because of it.
        late: Partitions that the feed did not cover.
        over: Ended partitions that will have no more children, each with a notice about the end, or None.
        left: What follows lost partitions, and is read from now on.
    """

    started: tuple[str, ...] = ()
    children: tuple[Child, ...] = ()
    gaps: tuple[tuple[Gap, tuple[str, ...]], ...] = ()
    late: tuple[PartitionFoundLate, ...] = ()
    over: tuple[tuple[str, Ended], ...] = ()
    left: tuple[Seed, ...] = ()


def apply_end(lineage: Lineage, name: str, outcome: Outcome, *, names_late: bool) -> PartitionEnd | None:
    """Apply what follows the last record of a partition or segment."""
    lineage.check_end(name, outcome)
    match outcome:
        case Drained(children, complete):
            if not (complete or names_late):
                raise _not_late(name)
            fresh = tuple(lineage.fresh(name, children))
            return PartitionEnd(fresh, tuple(lineage.ended(name, fresh, complete=complete)))
        case Awaiting():
            if not names_late:
                raise _not_late(name)
            return PartitionEnd((), tuple(lineage.ended(name, (), complete=False)))
        case Scanned(pieces):
            return PartitionEnd((), tuple(lineage.scanned(name, pieces)))
        case Ended(notice) if notice is not None and lineage.is_segment(name):
            # The collection was dropped: nothing is left to scan, and the stream also reports the end.
            return PartitionEnd((), tuple(lineage.end_scan()))
        case Ended():
            return PartitionEnd((), tuple(lineage.ended(name, (), complete=True)))
        case Continue() | Reached():
            return None
        case _:
            assert_never(outcome)


def _not_late(name: str) -> ProviderFault:
    return ProviderFault.of(
        ErrorCategory.PERMANENT_FAILURE,
        f"{name} has ended without naming all its children, but its feed says that no child is named late "
        "(Feed.names_late); this is a defect of the provider: report it",
    )


class Looks:
    """When this client last asked for more children of an ended partition; any thread may use it.

    A token keeps how often the service was asked. Such a look counts only if this client itself has seen the
    pause before it pass, so a restart or a wrong clock makes a search last longer and never ends it early.
    """

    def __init__(self) -> None:
        self._last = OrderedDict[tuple[FeedIdentity, str, int], float]()
        self._lock = threading.Lock()

    def is_due(self, feed: Feed, end: Entry) -> bool:
        """Return whether to ask now; at once if no child is known, because nothing goes on without one."""
        passed = self._passed(feed, end)
        return end.is_unnamed or passed is None or passed >= _pause_after(end.looks)

    def asked(self, feed: Feed, end: Entry) -> bool:
        """Record that the service was asked; return whether this look counts."""
        passed = self._passed(feed, end)
        counts = passed is not None and passed >= _pause_after(end.looks)
        with self._lock:
            key = (feed.identity, end.partition_id, end.looks + counts)
            if key not in self._last:
                self._last[key] = time.monotonic()
            self._last.move_to_end(key)
            if len(self._last) > _MOST_KEPT:
                self._last.popitem(last=False)
        return counts

    def _passed(self, feed: Feed, end: Entry) -> float | None:
        with self._lock:
            last = self._last.get((feed.identity, end.partition_id, end.looks))
        return None if last is None else time.monotonic() - last


def _pause_after(looks: int) -> float:
    """Return the pause after so many looks; each pause is about as long as all before it together."""
    return min(_MOST_PAUSE, _FIRST_PAUSE * 2.0 ** min(looks, 32))


def most_looks(seconds: float) -> int:
    """Return after how many looks a search has lasted at least so many seconds."""
    looks, lasted = 1, _FIRST_PAUSE
    while lasted < seconds:
        lasted += min(_MOST_PAUSE, _FIRST_PAUSE * 2.0**looks)
        looks += 1
    return looks


def is_search_due(feed: Feed, audited: Audited | None, every: float) -> bool:
    """Return whether to search for uncovered partitions: every `every` seconds, sooner after an end.

    After an end, a tenth of the time is enough, if the feed can search so early.
    The time is measured with this machine's clock, which decides nothing else.
    """
    if audited is None:
        return False
    since = time.time() - audited.at
    if audited.is_unclear and abs(since) >= min(every / 10, _UNCLEAR_SECONDS) and feed.can_audit_early():
        return True
    # If the clock was set back, searches must not be delayed for long.
    if since >= every or since < -every / 10:
        return True
    return audited.next is not NextSearch.REGULAR and since >= every / 10 and feed.can_audit_early()


class Follow:
    """Follows the partitions of one lineage; each call of the client makes its own."""

    def __init__(
        self,
        feed: Feed,
        lineage: Lineage,
        call: Call,
        deadline: Deadline,
        on_expired: OnExpired,
        looks: Looks,
        watch_seconds: float,
    ) -> None:
        self._feed, self._asked, self._lineage = feed, feed.for_one_call(), lineage
        self._call, self._deadline, self._looks = call, deadline, looks
        self._skips, self._watch_seconds = isinstance(on_expired, SkipToOldest), watch_seconds

    # -- Losses

    def lost(self, expired_ids: Collection[str], *, deadline: Deadline | None = None) -> tuple[Loss, ...]:
        """Apply what retention has removed; the caller has checked that losses may be skipped."""
        survey = self._survey(self._entries(), deadline or self._deadline, expired_ids)
        lineage = self._lineage
        try:
            losses = tuple(lineage.lost(survey, expired_ids))
        except NotProvableError:
            raise self._not_provable(expired_ids) from None
        audited = lineage.audited
        # A loss does not delay the search that an earlier one waits for.
        if losses and audited is not None and not audited.is_unclear and lineage.is_unclear(survey):
            lineage.audited = attrs.evolve(audited, at=int(time.time()), next=NextSearch.UNCLEAR)
        return losses

    def _not_provable(self, lost_ids: Collection[str]) -> ProviderFault:
        names = ", ".join(map(self._feed.public_id, sorted(lost_ids)[:3])) or "a partition"
        return ProviderFault.of(
            ErrorCategory.CHECKPOINT_EXPIRED,
            f"{names} no longer exists, and the service does not tell what descends from it, so "
            "this part of the feed cannot go on, even with SkipToOldest(); plan the feed again "
            "(client.plan_partitions)",
            reason=ErrorReason.AGED_OUT,
        )

    def told(self, losses: Iterable[Loss]) -> tuple[tuple[Gap, tuple[str, ...]], ...]:
        """Return the notice of each loss, with the partitions that are read because of it."""
        describe, losses = self._feed.describe, tuple(losses)
        gaps = []
        all_lost = [loss for loss in losses if loss.everything]
        for loss in [*(one for one in losses if not one.everything), *all_lost[:1]]:
            before = "its first record (the service never listed it)"
            if loss.is_start:
                before = "its first record (the service listed it too late)"
            if loss.position is not None:
                before = describe(loss.position).text
            left = ", ".join(describe(seed.cursor).text for seed in loss.left[:3])
            where = (
                str(self._feed.spec.address) if loss.everything else self._feed.public_id(loss.partition_id)
            )
            nothing = "what descends from it" if len(self._lineage) else "nothing left"
            gap = Gap(where, before, left or nothing)
            gaps.append((gap, tuple(seed.partition_id for seed in loss.left)))
        return tuple(gaps)

    # -- Late children

    def due(self) -> list[Entry]:
        """Return the ended partitions for which to ask for more children now."""
        ends = self._lineage.ends()
        if self._lineage.is_over():
            return ends
        return [end for end in ends if not end.final and self._looks.is_due(self._feed, end)]

    def look(self, ends: Collection[Entry]) -> Found:
        """Ask once for more children of ended partitions."""
        lineage = self._lineage
        asked = {end.partition_id: end.cursor for end in ends}
        survey = self._survey(asked, self._deadline, whole=False)
        answered = asked.keys() if survey.answered is None else asked.keys() & set(survey.answered)
        if gone := lineage.gone(survey):
            self._refuse(gone)
            losses = self.lost(())
            left = {seed.partition_id: seed for loss in losses for seed in loss.left}
            return Found(tuple(left), gaps=self.told(losses), left=tuple(left.values()))
        counted = {
            end.partition_id
            for end in ends
            if end.partition_id in answered and self._looks.asked(self._feed, end)
        }
        proved, stranded = list[Seed](), list[Loss]()
        # Before a feed ends, it is compared once with all that exists.
        over = bool(survey.final) and lineage.is_over(survey.final)
        if lineage.is_doubtful or over:
            try:
                proved, stranded = self._found(self._survey(self._entries(), self._deadline))
            except NotProvableError:
                raise self._not_provable(asked) from None
        children, started = lineage.looked(survey, counted, most_looks(self._watch_seconds))
        started += [seed.partition_id for seed in proved]
        ended = tuple((name, Ended(survey.final[name])) for name in lineage.close(survey.final, over=over))
        late = self._late(proved)
        return Found(tuple(started), tuple(children), self.told(stranded), late, ended, tuple(proved))

    # -- Uncovered partitions

    def search(self, deadline: Deadline) -> Found:
        """Compare the lineage with what the service lists, and read what nothing leads to."""
        lineage, audited = self._lineage, self._lineage.audited
        assert audited is not None
        # The next search comes soon, if this one fails.
        soon = NextSearch.UNCLEAR if audited.is_unclear else NextSearch.SOON
        lineage.audited = attrs.evolve(audited, at=int(time.time()), next=soon)
        survey = self._survey(self._entries(), deadline)
        if lineage.gone(survey):
            # Nothing is found while an entry is gone.
            if not self._skips:
                return Found()  # a read or a look refuses it
            losses = self.lost((), deadline=deadline)
            started = tuple(seed.partition_id for loss in losses for seed in loss.left)
            return Found(started, gaps=self.told(losses))
        added, stranded = self._found(survey)
        # A child is listed within seconds, so only the first search that lacks one does not conclude.
        following = NextSearch.SOON
        if not audited.is_unclear and lineage.is_unclear(survey):
            following = NextSearch.UNCLEAR
        elif lineage.is_shown_by(survey):
            lineage.searched(survey)
            following = NextSearch.REGULAR
        lineage.audited = attrs.evolve(lineage.audited, next=following)
        started = tuple(seed.partition_id for seed in added)
        return Found(started, gaps=self.told(stranded), late=self._late(added))

    def _late(self, added: Iterable[Seed]) -> tuple[PartitionFoundLate, ...]:
        """Return a notice for each partition, with its position, because its first records may be gone."""
        id_of, describe = self._feed.public_id, self._feed.describe
        return tuple(
            PartitionFoundLate(id_of(seed.partition_id), describe(seed.cursor).text) for seed in added
        )

    def _found(self, survey: Survey) -> tuple[list[Seed], list[Loss]]:
        """Read what nothing leads to; raise if partitions were lost unseen and the caller does not skip."""
        added, stranded = self._lineage.found(survey, skips=self._skips)
        if stranded and not self._skips:
            first = stranded[0]
            why = "was lost to retention before the service listed it: its changes were never read"
            if first.is_start:
                why = (
                    "was listed only after retention had removed its parent: its first changes may be lost, "
                    "and nothing shows whether it had any"
                )
            raise expired(f"{self._feed.public_id(first.partition_id)} {why}")
        return added, stranded

    def _refuse(self, gone: Collection[str]) -> None:
        """Raise if the caller does not skip ended partitions that were lost."""
        if not self._skips:
            raise expired(
                f"{self._feed.public_id(min(gone))} was lost to retention before the service named its "
                "children: their changes may be lost"
            )

    def _entries(self) -> dict[str, Cursor]:
        """Return all partitions about which the service is asked, with their positions."""
        return {each.partition_id: each.cursor for each in self._lineage.listed()}

    def _survey(
        self,
        asked: dict[str, Cursor],
        deadline: Deadline,
        refused: Collection[str] = frozenset(),
        *,
        whole: bool = True,
    ) -> Survey:
        audited = self._lineage.audited
        since = None if audited is None or audited.since is None else to_moment(audited.since)
        feed = self._asked
        return self._call(
            lambda: feed.survey(asked, deadline, expired=refused, since=since, whole=whole), deadline
        )
