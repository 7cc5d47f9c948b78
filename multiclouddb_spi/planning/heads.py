"""Finds where the ranges of one step end: asks the partitions at once, and reads those without a cheap head.

The streams are those of pages (`Queue`): as many at once as threads and bytes allow, with their pacing and
retries, in the order of the lineage. What is left in a stream, records or the walk through empty answers,
stays in the consumer for the next step. The rules:

- A range ends where an answer ended. One answer with records is enough for a step, so a partition is not read
  until it has proved that nothing follows. After a full answer it is asked again, round after round, because
  more probably follows, and a step of Spark costs more than an answer: up to the limit, or without one until
  the step has a certain number of records or bytes.
- With a limit, each partition gets an equal share. What is not used is divided among those that have used
  theirs, or whose answers were full. A share is reserved while its answer is outstanding, so the limit is
  hard.
- An answer without records that does not show whether any follow is no end. A reader that an earlier step has
  left is asked once, because its walk goes on in the next step. A reader that is new, or was not used for
  long, is asked until it finds a record or the end: if it were lost again, its walk would never end.
- If nothing was found, everything is asked again until each partition has answered that nothing follows.
- As soon as something was found, or the position of another has moved, a slow partition is waited for only
  shortly. It, and one that fails with an error that may pass, keeps its position. If nothing has moved, its
  error is raised.
- What is lost moves positions or removes partitions; what was found of these is dropped. A partition that
  starts because of a loss is read by the next step.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Final

import attrs

from multiclouddb_api import ErrorCategory, Gap
from multiclouddb_spi.abilities import Follows, Freshness, Head, SupportsHeads
from multiclouddb_spi.batch import Batch, Continue, Ended
from multiclouddb_spi.continuation.entry import Entry
from multiclouddb_spi.continuation.follow import Follow
from multiclouddb_spi.continuation.lineage import Lineage, Loss
from multiclouddb_spi.contract import Provider
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.errors import fault_of
from multiclouddb_spi.faults import ProviderFault, RecordFault, undecided
from multiclouddb_spi.fetching.consumer import Consumer
from multiclouddb_spi.fetching.fetcher import ReadContext, late_fault
from multiclouddb_spi.fetching.page_content import PageContent
from multiclouddb_spi.fetching.queue import Queue, is_full_answer
from multiclouddb_spi.fetching.stream import TURN_SECONDS, Stream
from multiclouddb_spi.planning.pieces import Pieces
from multiclouddb_spi.planning.target import Target, clip, within
from multiclouddb_spi.retry import MOST_SKIPS, Call
from multiclouddb_spi.time_limits import Deadline

_RECORDS: Final = 10_000
_BYTES: Final = 8 * 1024 * 1024
_AT_ONCE: Final = 256
# What a step without a limit reads, except that it always reads the first answer of each partition.
_STEP_RECORDS: Final = 100_000
_STEP_BYTES: Final = 256 * 1024 * 1024
# A reader that was not used for this long may have to begin its walk again, because what it holds of the
# service has expired.
_LIVE_SECONDS: Final = 60.0
# What lies before a record with such an error is delivered first.
_DELIVER_FIRST: Final = (ErrorCategory.PROVIDER_ERROR, ErrorCategory.CHECKPOINT_EXPIRED)
_log = logging.getLogger("multiclouddb.planner")


class Heads:
    """Finds the heads of some partitions, for one step; `after` is changed only by losses.

    Args:
        provider: Classifies failures.
        context: The threads.
        consumer: What is kept between two steps.
        follow: Applies losses to `after`.
        after: The lineage after the step.
        target: The latest position up to which the step may read, or None.
        limit: The hard limit on the records of the step, or None.
        deadline: The time limit.
        call: Sends requests to the feed.
        skips_loss: True to continue after records that are older than the retention.
        skips_poison: True to continue after a record that cannot be fetched; the record counts.
        keep_bytes: About how many bytes of the records that were read to keep.

    Attributes:
        pieces: The records that were read, as far as they were kept.
        gaps: What was lost; each with the partitions that are read because of it.
    """

    def __init__(
        self,
        provider: Provider,
        context: ReadContext,
        consumer: Consumer,
        follow: Follow,
        after: Lineage,
        target: Target | None,
        limit: int | None,
        deadline: Deadline,
        *,
        call: Call,
        skips_loss: bool,
        skips_poison: bool,
        keep_bytes: int = 0,
    ) -> None:
        self._provider, self._feed, self._context, self._follow = provider, consumer.feed, context, follow
        self._consumer = consumer
        self._after, self._target, self._deadline, self._call = after, target, deadline, call
        self._skips_loss, self._skips_poison = skips_loss, skips_poison
        self._limit, self._left, self._share = limit, limit, _RECORDS
        self.gaps = list[tuple[Gap, tuple[str, ...]]]()
        self.pieces = Pieces(keep_bytes)
        # `after` keeps the positions before the step until all heads are known; these are beyond them.
        self._reads = after.copy()
        self._queue = Queue(
            context, consumer, partial(_entry_of, after, self._reads), self._reads.took,
            PageContent(limit or _RECORDS, _BYTES), len(after.active()), deadline,
        )  # fmt: skip
        self._found, self._starts = dict[str, Head](), dict[str, Cursor]()
        self._counted = dict[str, int]()
        self._bytes = 0
        self._walking, self._hungry, self._unknown = set[str](), dict[str, None](), dict[str, None]()
        self._failed = dict[str, Exception]()
        self._lost = Counter[str]()
        self._moved = set[str]()
        self._has_news = self._leaves_slow = self._begins_again = False
        self._together, self._is_read = isinstance(consumer.feed, SupportsHeads), set[str]()

    def find(self, wanted: Mapping[str, Cursor]) -> dict[str, Head]:
        """Return the heads of partitions, which stand at these positions, in the same order.

        A partition that is left out keeps its position; whether records follow in it is not known.
        """
        self._starts.update(wanted)
        self._begin(wanted)
        while not self._begins_again:
            self._ask_together()
            self._launch()
            if self._queue.running:
                stream = self._queue.next(self._patience(), self._free_share)
                if stream is not None:
                    self._answer(stream)
                elif self._deadline.passed():
                    break
                elif not self._may_launch() and (self._may_leave() or self._queue.ask):
                    self._leave_slow()
            elif not self._begin_round():
                break
        late = {stream.partition_id: stream.error for stream in self._queue.leave()}
        if self._begins_again:
            return {}
        self._tell_failed(late)
        return {name: self._found[name] for name in wanted if name in self._found}

    def _may_leave(self) -> bool:
        """Return whether the step has something without the partitions that have not answered yet.

        If only their own positions have moved, they are waited for: an answer that an earlier step has asked
        for proves no end, so partitions that are always slow would be left in each step, without an end.
        """
        return self._has_news or any(name not in self._queue.running for name in self._moved)

    def _leave_slow(self) -> None:
        """Leave running fetches to the next step, or to a later round; others may use their shares."""
        self._leaves_slow = not self._queue.ask
        self._unknown.update(dict.fromkeys(self._queue.running))
        for stream in self._queue.running.values():
            self._free_share(stream)
        self._queue.leave()

    # -- Rounds

    def _begin(self, names: Iterable[str]) -> None:
        """Ask these partitions, each for an equal share of what is left."""
        names = list(names)
        if self._left is not None:
            self._share = max(1, self._left // max(1, len(names)))
        self._queue.put(names)

    def _begin_round(self) -> bool:
        """After all have answered, return whether to ask some of them again."""
        if self._may_launch() or self._deadline.passed():
            return False  # no thread or no bytes are left for them in this step
        hungry, self._hungry = self._hungry, {}
        if hungry and self._has_room():
            self._begin(hungry)
            return True
        if self._has_news or (self._moved and self._leaves_slow):
            return False
        unknown, self._unknown = self._unknown, {}
        if unknown:
            self._begin(unknown)
            return True
        if not self._queue.later:
            return False
        due_at = self._queue.next_due()
        self._context.pause(max(0.0, min(due_at, self._deadline.at) - time.monotonic()), self._deadline)
        self._queue.put_due()
        return True

    def _has_room(self) -> bool:
        """Return whether the step may read more than the first answer of each partition."""
        if self._left is not None:
            return self._left > 0
        return sum(self._counted.values()) < _STEP_RECORDS and self._bytes < _STEP_BYTES

    def _may_launch(self) -> bool:
        return bool(self._queue.ask) and self._left != 0 and not self._begins_again

    def _patience(self) -> float:
        """Return how long to wait for the next answer."""
        shortly = self._may_leave() or bool(self._queue.ask)
        return min(self._deadline.remaining(), TURN_SECONDS if shortly else float("inf"))

    # -- Ask

    def _ask_together(self) -> None:
        """Ask the feed for cheap heads; those that it leaves out are read."""
        while self._together and self._may_launch():
            # A loss may have removed one that is still asked; `Queue.launch` leaves it out too.
            due = (
                name for name in self._queue.ask if name not in self._is_read and self._after.reading(name)
            )
            names = list(due if self._left is None else islice(due, max(self._left, _AT_ONCE)))
            if not names or not isinstance(self._feed, SupportsHeads):
                return
            asked = {name: self._reads.cursor(name) for name in names}
            most = None if self._left is None else self._share
            asked_at = time.monotonic()
            try:
                answers = self._call(partial(self._feed.heads, asked, most, self._deadline), self._deadline)
            except RecordFault:
                if not self._skips_poison:
                    raise
                answers = {}
            except Exception as error:
                if not self._is_skipped_loss(error):
                    raise
                # The positions show which have expired, or each is asked alone.
                losses = self._follow.lost(())
                self._together = bool(losses)
                self._apply(losses)
                continue
            for name, cursor in asked.items():
                head = answers.get(name)
                is_silent = head is None or (
                    head.follows is Follows.NOT_KNOWN and not head.records and head.cursor == cursor
                )
                if head is None or is_silent:
                    self._is_read.add(name)
                    continue
                at = asked_at if head.follows is Follows.END and isinstance(head.outcome, Continue) else None
                head = attrs.evolve(head, answer=Freshness(caught_up_at=at))
                head = clip(self._feed, name, head, self._target)
                self._queue.ask.pop(name, None)
                count = head.records
                if count is None:
                    count = 0 if head.cursor == cursor else self._share
                if self._left is None or count <= self._left:
                    if head.cursor != cursor:
                        self.pieces.drop(name)
                    self._keep(name, head, count)
                else:
                    self._hungry[name] = None

    def _launch(self) -> None:
        """Start as many fetches as threads and bytes allow."""
        if self._may_launch() and not self._deadline.passed():
            self._queue.launch(0.0, self._reserve)
            self._queue.passed.clear()  # a step waits for none of them anyway

    def _reserve(self, stream: Stream) -> int:
        """Reserve the share of a partition, and return how many records may be taken of it."""
        most = sys.maxsize
        if self._left is not None:
            if not self._left:
                return 0
            most = min(self._share, self._left)
            self._left -= most
        if stream.reader is None or time.monotonic() - stream.asked_at > _LIVE_SECONDS:
            self._walking.add(stream.partition_id)
        return most

    def _free_share(self, stream: Stream) -> None:
        if self._left is not None:
            self._left += stream.most or 0

    # -- Take an answer

    def _answer(self, stream: Stream) -> None:
        name = stream.partition_id
        self._free_share(stream)
        if self._queue.is_shaken and self._queue.is_elsewhere(stream):
            self._queue.put([name])
            return
        batch = stream.batch
        if batch is None:
            assert stream.error is not None
            _, is_earlier = self._queue.drop_failed(stream)
            self._fail(name, stream.error, is_earlier=is_earlier)
            return
        self._failed.pop(name, None)
        self._take(stream, batch)

    def _take(self, stream: Stream, batch: Batch) -> None:
        """Take the records of an answer, or as many as the share allows; the rest stays in the stream."""
        name, first, size = stream.partition_id, stream.taken, len(batch)
        stop = self._queue.take(stream, batch, size)
        assert stop is not None, "whatever is asked has a share"
        self._queue.took(stream, batch, stop, size)
        count = stop - first
        if stop < size:
            head = Head(stream.cursor, count, Continue(), Follows.MORE)
        else:
            follows = follows_of(batch)
            if isinstance(batch.outcome, Continue) and stream.asked_at < self._queue.began:
                follows = Follows.NOT_KNOWN  # it was asked by an earlier step
            caught_up = batch.caught_up is True and isinstance(batch.outcome, Continue)
            at = stream.asked_at if caught_up else None
            answer = Freshness(batch.watermark, batch.likely_read_until, at)
            head = Head(batch.end, count, batch.outcome, follows, answer, batch.notices)
        clipped = clip(self._feed, name, head, self._target)
        if clipped is not head or head.notices or isinstance(head.outcome, Ended):
            self.pieces.drop(name)  # a task says what the notices mean, and reads only up to the target
        else:
            self.pieces.add(name, batch, first, stop)
        if clipped is not head or not isinstance(head.outcome, Continue):
            self._consumer.forget(stream)  # nothing of it is read again
        nbytes = batch.nbytes * count // max(1, len(batch))
        self._bytes += nbytes
        self._keep(name, clipped, count, is_full=is_full_answer(count, nbytes))
        if count:
            self._walking.discard(name)
        is_silent = not count and head.follows is Follows.NOT_KNOWN and not head.notices
        if is_silent and clipped is head:
            if name in self._walking:  # at the front, so that it keeps its share of a small limit
                self._queue.put([name])
                self._queue.ask.move_to_end(name, last=False)
            else:
                self._unknown[name] = None

    def _keep(self, name: str, head: Head, count: int, *, is_full: bool = False) -> None:
        """Keep a head, together with what this step has found of the partition before."""
        earlier = self._found.get(name)
        if self._left is not None:
            self._left -= count
            is_full = is_full or count >= self._share
        self._counted[name] = self._counted.get(name, 0) + count
        if head.cursor is not self._reads.cursor(name):
            self._reads.took(name, head.cursor)
        is_read = not isinstance(head.outcome, Continue) or head.follows is Follows.END
        if is_full and not is_read and within(self._feed, Entry.read(name, head.cursor), self._target):
            self._hungry[name] = None
        if earlier is not None:
            known = earlier.records is not None and head.records is not None
            total = (earlier.records or 0) + (head.records or 0)
            notices = earlier.notices + head.notices
            likely = head.answer.likely_read_until or earlier.answer.likely_read_until
            answer = attrs.evolve(head.answer, likely_read_until=likely)
            head = attrs.evolve(head, records=total if known else None, notices=notices, answer=answer)
        self._found[name] = head
        self._has_news = (
            self._has_news
            or bool(count or head.records or head.notices)
            or (not isinstance(head.outcome, Continue))
        )
        if head.cursor != self._starts[name]:
            self._moved.add(name)

    # -- Failures and losses

    def _fail(self, name: str, error: Exception, *, is_earlier: bool) -> None:
        """Skip, keep what lies before, or note that the partition has failed; raise what does not pass."""
        if isinstance(error, RecordFault):
            skipped = Head(error.skip_cursor, 1, Continue())
            clipped = clip(self._feed, name, skipped, self._target)
            is_behind = self._feed.compare(error.skip_cursor, clipped.cursor) == 1
            # Behind the target, it is left to a later run. It counts too, because a step without news moves
            # no position, and the run ends at its target.
            if self._skips_poison or is_behind:
                self.pieces.drop(name)
                self._keep(name, clipped, 1)
                self._hungry.pop(name, None)
                if clipped is skipped:
                    self._queue.put([name])
                return
        if self._is_skipped_loss(error):
            self._skip(name, error)
            return
        fault = fault_of(self._provider, error)
        head = self._found.get(name)
        has_moved = head is not None and head.cursor != self._starts[name]
        if head is not None and has_moved and fault.category in _DELIVER_FIRST:
            self._found[name] = attrs.evolve(head, follows=Follows.MORE)
            return
        if not fault.retryable:
            raise error
        if is_earlier:
            self._queue.put([name])
        else:
            self._failed[name] = error

    def _is_skipped_loss(self, error: Exception) -> bool:
        category = fault_of(self._provider, error).category
        return self._skips_loss and category == ErrorCategory.CHECKPOINT_EXPIRED

    def _skip(self, name: str, error: Exception) -> None:
        """Continue where the service still keeps the changes of a lost partition."""
        losses = self._follow.lost((name,))
        if not losses:
            raise undecided(self._feed.public_id(name)) from error
        # The oldest record may expire before it is read, but this must not be repeated for ever.
        self._lost[name] += 1
        if self._lost[name] > MOST_SKIPS:
            raise error
        self._apply(losses)
        self._queue.put([name])

    def _apply(self, losses: Iterable[Loss]) -> None:
        """Drop what was found of partitions that a loss has moved or removed."""
        losses, self._queue.is_shaken = tuple(losses), True
        self.gaps += self._follow.told(losses)
        if any(loss.everything for loss in losses):
            self._begins_again = True  # the feed begins again: the step ends here
            return
        for name, start in self._starts.items():
            entry = self._after.reading(name)
            if entry is not None and entry.cursor == start:
                continue
            self.pieces.drop(name)
            self._found.pop(name, None)
            count = self._counted.pop(name, 0)
            if self._left is not None:
                self._left += count
            self._hungry.pop(name, None)
            self._unknown.pop(name, None)
            if entry is not None:
                self._starts[name] = entry.cursor
                self._reads.took(name, entry.cursor)
                self._queue.put([name])

    def _tell_failed(self, late: Mapping[str, Exception | None]) -> None:
        """Raise the error of a partition if nothing has moved, or log it."""
        troubles = {name: error or ProviderFault(late_fault()) for name, error in late.items()} | self._failed
        for error in troubles.values():
            if not (self._has_news or self._moved):
                raise error
        for name, error in troubles.items():
            where, fault = self._feed.public_id(name), fault_of(self._provider, error)
            head = self._found.get(name)
            is_in = head is not None and head.cursor != self._starts[name]
            what = "%s: %s is %s in this step, because its read has failed (%s)"
            _log.warning(
                what, self._feed.spec.address, where, "read no further" if is_in else "not", fault.message
            )


def _entry_of(after: Lineage, reads: Lineage, name: str) -> Entry | None:
    """Return how far a step has read a partition; None if a loss has removed it."""
    return None if after.reading(name) is None else reads.reading(name)


def follows_of(batch: Batch) -> Follows:
    """Return what a whole batch shows about the records after it."""
    if not isinstance(batch.outcome, Continue) or batch.caught_up is True:
        return Follows.END
    # Without records, None means that no records follow; after a notice, nothing is known.
    is_end = batch.caught_up is None and not (len(batch) or batch.notices)
    return Follows.END if is_end else Follows.NOT_KNOWN
