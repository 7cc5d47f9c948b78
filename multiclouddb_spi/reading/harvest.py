"""What the answers of partitions mean for the page and for the lineage: cut, move on, retire, skip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from multiclouddb_api import ErrorCategory, FeedEnded, Gap, OnExpired, SkipToOldest
from multiclouddb_spi.batch import Awaiting, Batch, Child, Drained, Ended, Outcome
from multiclouddb_spi.checkpoint.coverage import is_audit_due
from multiclouddb_spi.checkpoint.entry import Drained as DrainedEntry
from multiclouddb_spi.checkpoint.lineage import Lineage
from multiclouddb_spi.checkpoint.mover import Moved, Mover
from multiclouddb_spi.checkpoint.retention import stranded_fault
from multiclouddb_spi.checkpoint.state import Retired, retired
from multiclouddb_spi.collector import collector_paused
from multiclouddb_spi.contract import Feed, Seed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.fault import RecordFault
from multiclouddb_spi.reading.fetcher import Fetcher
from multiclouddb_spi.reading.live import Live
from multiclouddb_spi.reading.result import Slice, SweepResult
from multiclouddb_spi.watch import Watch

__all__ = ["Harvest"]

T = TypeVar("T")

_AUDIT_SECONDS: Final = 10.0
_MOST_SKIPS: Final = 3
_ALL_ENDED: Final = "every partition has ended and all that they held has been read"


class Harvest(Generic[T]):
    """Collects what one call's partitions answer; every method moves the lineage and the result.

    Methods that can end a partition return the ids that start in its place.

    Args:
        feed: The opened feed.
        lineage: Moved on in place.
        view: Makes of a batch's records `[i, j)` what the caller wants.
        fetcher: Makes control calls and says what failures mean.
        watch: Told of retired partitions and gaps.
        deadline: When the call has to be over.
        on_expired: What to do about a position older than retention.
        single: True to report the end of a partition instead of going on with its children.
        watch_seconds: For how long more children of a drained partition are looked for.

    Attributes:
        result: What was found so far.
    """

    def __init__(
        self,
        feed: Feed,
        lineage: Lineage,
        view: Callable[[Batch, int, int], T],
        fetcher: Fetcher,
        watch: Watch,
        deadline: Deadline,
        *,
        on_expired: OnExpired,
        single: bool,
        watch_seconds: float,
    ) -> None:
        self._feed, self._lineage, self._view = feed, lineage, view
        self._fetcher, self._watch, self._deadline = fetcher, watch, deadline
        self._on_expired, self._single = on_expired, single
        self._mover = Mover(feed, lineage, fetcher.call, deadline, watch_seconds)
        self._skips, self._lost, self._discovered = Counter[str](), dict[str, Cursor](), set[str]()
        self.result: SweepResult[T] = SweepResult()

    def take(self, live: Live, batch: Batch, stop: int) -> bool:
        """Hand out records up to `stop`; False when the provider cannot map its own records."""
        first, result, name = live.taken, self.result, live.partition_id
        try:
            value, stop = self._viewed(name, batch, first, stop)
        except Exception as error:  # noqa: BLE001 - a defect of the provider, told like any failure
            self.blame(name, error)
            return False
        if stop > first or not len(batch):
            live.cursor, live.taken = batch.cursor_after(stop), stop
            self._lineage.advance(name, live.cursor)
        if value is not None:
            result.slices.append(Slice(name, value, stop - first, live.cursor))
            result.count += stop - first
        return True

    def finish(self, name: str, batch: Batch) -> list[str] | None:
        """A batch is handed out whole: only now does it count how it ends.

        Returns:
            What starts in the partition's place; None while there is more to read in it.
        """
        self.result.batches[name] = batch
        for notice in batch.notices:
            self.result.tell(notice, name)
        return self._ends(name, batch.outcome)

    def has_ended(self) -> bool:
        """Whether a partition has ended in this call whose children have not been asked for."""
        unnamed = {entry.partition_id for entry in self._lineage.unnamed()}
        return self.result.moved and not unnamed <= self._discovered

    def discover(self) -> list[str]:
        """Ask once for more children of the partitions that have ended, as far as that is due."""
        entries = self._mover.due()
        if not entries:
            return []
        asked = {entry.partition_id for entry in entries}
        self._discovered.update(asked)
        for name in asked:
            self.result.errors.pop(name, None)
        moved = self.result.moved
        self.result.requests += 1
        try:
            started = self._mover.discover(entries, self._ends)
        except Exception as error:
            if not self._fetcher.fault(error).retryable:
                raise
            self.result.errors.update(dict.fromkeys(asked, error))
            return []
        # A look that finds nothing must not hide that no read has worked.
        self.result.moved = moved or any(self._has_changed(entry) for entry in entries)
        if not len(self._lineage) and self.result.over is None:
            self.result.over = _ALL_ENDED
        return started

    def _has_changed(self, entry: DrainedEntry) -> bool:
        now = self._lineage.ending(entry.partition_id)
        return now is None or now.children != entry.children

    def failed(self, name: str, error: Exception) -> list[str]:
        """A read has failed for good in this call: blame it, or skip what retention has taken."""
        expired = self._fetcher.fault(error).category == ErrorCategory.CHECKPOINT_EXPIRED
        if not expired or not isinstance(self._on_expired, SkipToOldest):
            self.blame(name, error)
            return []
        if self._skips[name] == _MOST_SKIPS:  # what is oldest is always gone already: no progress to tell of
            self._forget_gaps(name)
            self.blame(name, error)
            return []
        coming = None
        try:
            seeds = self._mover.oldest(name)
            if not self._single or [seed.partition_id for seed in seeds] == [name]:
                coming = self._mover.ask_coming(name, seeds)
        except Exception as failed:  # noqa: BLE001 - classified by the provider
            self.blame(name, failed)
            return []
        self._tell_gap(name, seeds)
        if coming is None:
            children = tuple(Child(seed.partition_id, seed.parents, seed.cursor) for seed in seeds)
            self.result.retired = Retired(name, children)
            return []
        started = self._mover.replace(name, seeds, coming)
        self._pass_on(name, started)
        if not len(self._lineage):
            self.result.over = "everything was lost to retention"
        return started

    def blame(self, name: str, error: Exception) -> None:
        """Note a failure; one that is not retryable stops the feed."""
        self.result.errors[name] = error
        if not self._fetcher.fault(error).retryable:
            self.result.failure = (name, error)

    def _viewed(self, name: str, batch: Batch, first: int, stop: int) -> tuple[T | None, int]:
        """What the view makes of the records, up to the first that is poison."""
        try:
            return self._mapped(batch, first, stop), stop
        except RecordFault as fault:
            self.result.poison = (name, fault)
            return self._mapped(batch, first, fault.index), fault.index

    def _mapped(self, batch: Batch, first: int, stop: int) -> T | None:
        if stop <= first:
            return None
        with collector_paused():
            return self._view(batch, first, stop)

    def _ends(self, name: str, outcome: Outcome) -> list[str] | None:
        """Move on by an outcome; the ids that start now, or None while there is more to read."""
        moved: Moved | None = Moved()
        if isinstance(outcome, Drained) and self._single:
            self._tell_retired(name, outcome.children)
            self.result.retired = retired(self._lineage, name, outcome.children, complete=outcome.complete)
        else:
            try:
                waits = self._mover.ask_waits(name, outcome)
            except Exception as error:  # noqa: BLE001 - classified by the provider
                self.blame(name, error)
                return []
            moved = self._mover.end(name, outcome, waits)
        if moved is None:
            return None
        self._tell_end(name, outcome, moved)
        self._pass_on(name, [*(child.partition_id for child in moved.fresh), *moved.started])
        self.result.moved = True
        if not isinstance(outcome, Awaiting):
            self.result.headroom.pop(name, None)  # read to its end: nothing of it can be lost
        return list(moved.started)

    def _tell_end(self, name: str, outcome: Outcome, moved: Moved) -> None:
        match outcome:
            case Drained(children) if not self._single:
                if moved.fresh or not children:
                    self._tell_retired(name, moved.fresh)
                if not len(self._lineage):
                    self.result.over = _ALL_ENDED
            case Ended(notice) if notice is not None:
                # All partitions of a dropped collection say so; that the feed is over, the last one does.
                if notice not in self.result.notices and not isinstance(notice, FeedEnded):
                    self.result.tell(notice, name)
                if not len(self._lineage):
                    self.result.ended(notice)
            case Ended():
                if not len(self._lineage):
                    self.result.over = _ALL_ENDED
            case _:
                pass

    def audit_when_due(self, every: float, meanwhile: Callable[[], None]) -> None:
        """Compare the lineage with what the service lists; the next call reads what it does not cover.

        Args:
            every: Seconds from one audit to the next.
            meanwhile: Begins what the service may do at the same time.
        """
        if self._single or not is_audit_due(self._lineage.audited, every):
            return
        meanwhile()
        address = self._feed.spec.address
        try:
            audit = self._mover.audit(
                self._deadline.sooner(min(_AUDIT_SECONDS, self._deadline.remaining() / 2))
            )
        except Exception as error:  # noqa: BLE001 - it costs the audit, not the page
            self._watch.audit_failed(address, self._fetcher.fault(error).message)
            return
        for late in audit.late:
            self.result.tell(late, *audit.seeds)
            self.result.found_late += 1
            self._watch.partition_found_late(address, late)
        if audit.error is not None:
            self._watch.audit_failed(address, self._fetcher.fault(audit.error).message)
        for name in audit.stranded:
            self._skip_stranded(name)

    def _skip_stranded(self, name: str) -> None:
        """A parent that was gone before it was listed: raise, or tell of the gap and go on without it."""
        where = self._feed.public_id(name)
        if not isinstance(self._on_expired, SkipToOldest):
            self.blame(name, stranded_fault(where))
            return
        gap = Gap(where, "its first record, for it was never listed", "nothing left")
        self.result.tell(gap, name, *self._lineage.release(name))
        self.result.moved = True
        self._watch.gap(self._feed.spec.address, gap)

    def worth_asking(self) -> list[str]:
        """The active partitions, without those that failed although the vendor's client had tried again."""
        errors = self.result.errors
        return [
            entry.partition_id
            for entry in self._lineage.active()
            if (error := errors.get(entry.partition_id)) is None
            or not self._fetcher.fault(error).vendor_retried
        ]

    def _pass_on(self, name: str, heirs: Sequence[str]) -> None:
        """What follows a partition comes after the partition's notice, too."""
        if name in self.result.noticed:
            self.result.noticed.update(heirs)

    def _tell_retired(self, name: str, children: Sequence[Child]) -> None:
        public_id = self._feed.public_id
        named = tuple(dict.fromkeys(public_id(child.partition_id) for child in children))
        self._watch.partition_retired(self._feed.spec.address, public_id(name), named)

    def _tell_gap(self, name: str, seeds: list[Seed]) -> None:
        """Records behind the position are gone: reading goes on with the oldest that are left."""
        self._skips[name] += 1
        lost = self._lineage.cursor(name)
        self._lost.setdefault(name, lost)
        gap = Gap(
            self._feed.public_id(name),
            self._feed.describe(lost).text,
            ", ".join(self._feed.describe(seed.cursor).text for seed in seeds[:3]) or "nothing left",
        )
        self.result.tell(gap, name, *(seed.partition_id for seed in seeds))
        self.result.moved = True
        self._watch.gap(self._feed.spec.address, gap)

    def _forget_gaps(self, name: str) -> None:
        """Take back what was told of a partition and leave it where it stood: a later call tells it."""
        where, notices = self._feed.public_id(name), self.result.notices
        notices[:] = [item for item in notices if not (isinstance(item, Gap) and item.partition_id == where)]
        self._lineage.advance(name, self._lost[name])
