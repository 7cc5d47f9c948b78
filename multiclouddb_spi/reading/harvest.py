"""What the answers of partitions mean for the page and for the lineage: cut, move on, retire, skip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from multiclouddb_api import ErrorCategory, FeedEnded, Gap, OnExpired, SkipToOldest
from multiclouddb_spi.checkpoint.lineage import Lineage
from multiclouddb_spi.checkpoint.retention import Retention
from multiclouddb_spi.collector import collector_paused
from multiclouddb_spi.contract import Awaiting, Batch, Child, Drained, Ended, Feed, Outcome, Partition, Seed
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.fault import RecordFault
from multiclouddb_spi.reading.fetcher import Fetcher
from multiclouddb_spi.reading.live import Live
from multiclouddb_spi.reading.result import Slice, SweepResult
from multiclouddb_spi.watch import Watch

__all__ = ["Harvest"]

T = TypeVar("T")

_MOST_SKIPS: Final = 3


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
    ) -> None:
        self._feed, self._lineage, self._view = feed, lineage, view
        self._fetcher, self._watch, self._deadline = fetcher, watch, deadline
        self._on_expired, self._single = on_expired, single
        self._retention = Retention(self._listed, self._oldest)
        self._skips: Counter[str] = Counter()
        self.result: SweepResult[T] = SweepResult()
        self._discovered: set[str] = set()

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
        self.result.notices.extend(batch.notices)
        return self._outcome(name, batch.outcome)

    def has_ended(self) -> bool:
        """Whether a partition has ended in this call whose children have not been asked for."""
        return self.result.moved and not self._lineage.drained().keys() <= self._discovered

    def discover(self) -> list[str]:
        """Ask once for the children of all partitions that ended without naming them."""
        drained = self._lineage.drained()
        if not drained:
            return []
        self._discovered.update(drained)
        self.result.requests += 1
        try:
            outcomes = self._fetcher.call(
                lambda: self._feed.discover(drained, self._deadline), self._deadline
            )
        except Exception as error:
            if not self._fetcher.fault(error).retryable:
                raise
            self.result.errors.update(dict.fromkeys(drained, error))
            return []
        self.result.moved = True
        started = []
        for name in drained:
            self.result.errors.pop(name, None)
            started += self._outcome(name, outcomes.get(name, Awaiting())) or []
        return started

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
        coming, holds = set[str](), dict[str, str]()
        try:
            seeds = self._oldest([name])
            if not self._single:
                coming, holds = self._retention.lost(self._lineage, name, seeds)
        except Exception as failed:  # noqa: BLE001 - classified by the provider
            self.blame(name, failed)
            return []
        self._tell_gap(name, seeds)
        if self._single and [seed.partition_id for seed in seeds] != [name]:
            children = tuple(Child(seed.partition_id, seed.parents, seed.cursor) for seed in seeds)
            self.result.retired = (name, children)
            return []
        started = self._lineage.replace(name, seeds, coming, holds)
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

    def _outcome(self, name: str, outcome: Outcome) -> list[str] | None:
        started: list[str] = []
        match outcome:
            case Drained(children) if self._single:
                self._tell_retired(name, children)
                once = {child.partition_id: child for child in children}  # services name some twice
                self.result.retired = (name, tuple(once.values()))
            case Drained(children):
                try:
                    named, lost = self._retention.named(self._lineage, name, children)
                except Exception as error:  # noqa: BLE001 - classified by the provider
                    self.blame(name, error)
                    return []
                self._tell_retired(name, children)
                started = self._lineage.retire(name, named, lost)
            case Awaiting():
                self._lineage.await_children(name)
            case Ended(notice):
                # All partitions of a dropped collection say so; that the feed is over, the last one does.
                if notice not in self.result.notices and not isinstance(notice, FeedEnded):
                    self.result.notices.append(notice)
                started = self._lineage.retire(name)
                if not len(self._lineage):
                    self.result.ended(notice)
            case _:
                return None
        self.result.moved = True
        if not isinstance(outcome, Awaiting):
            self.result.headroom.pop(name, None)  # read to its end: nothing of it can be lost
        return started

    def worth_asking(self) -> list[str]:
        """The active partitions, without those that failed although the vendor's client had tried again."""
        errors = self.result.errors
        return [
            entry.partition_id
            for entry in self._lineage.active()
            if (error := errors.get(entry.partition_id)) is None
            or not self._fetcher.fault(error).vendor_retried
        ]

    def _tell_retired(self, name: str, children: tuple[Child, ...]) -> None:
        public_id = self._feed.public_id
        named = tuple(dict.fromkeys(public_id(child.partition_id) for child in children))
        self._watch.partition_retired(self._feed.spec.address, public_id(name), named)

    def _oldest(self, names: Sequence[str]) -> list[Seed]:
        return self._fetcher.call(lambda: self._feed.oldest(names, self._deadline), self._deadline)

    def _listed(self) -> list[Partition]:
        return self._fetcher.call(lambda: self._feed.partitions(self._deadline), self._deadline)

    def _tell_gap(self, name: str, seeds: list[Seed]) -> None:
        """Records behind the position are gone: reading goes on with the oldest that are left."""
        self._skips[name] += 1
        lost = self._lineage.cursor(name)
        gap = Gap(
            self._feed.public_id(name),
            self._feed.describe(lost).text,
            ", ".join(self._feed.describe(seed.cursor).text for seed in seeds[:3]) or "nothing left",
        )
        self.result.notices.append(gap)
        self.result.moved = True
        self._watch.gap(self._feed.spec.address, gap)

    def _forget_gaps(self, name: str) -> None:
        where, notices = self._feed.public_id(name), self.result.notices
        notices[:] = [item for item in notices if not (isinstance(item, Gap) and item.partition_id == where)]
