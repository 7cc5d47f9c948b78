"""Records the stage and the answers of each partition in one call, and the result of the call.

                 ask             launched           landed
    UNASKED ──────────▶ DUE ──────────────▶ ASKED ──────────▶ ANSWERED
                         ▲ │                                   │    │
                         │ └─ paced ─▶ PACED ─ its time ─┐     │    └─ hold ─▶ HELD ─┐
                         └───────────────────────────────┴─ ask ◀──── place again ───┘

`Fetches` runs the reads of these partitions. `DueTimes` is what a call leaves for the next one.
Everything in this module runs in the caller's thread: other threads only report which fetch has finished.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum, auto
from typing import Final, Generic, TypeVar

import attrs

from multiclouddb_api import Notice
from multiclouddb_api.pacing import Wakeup, still_waiting
from multiclouddb_api.value import define, frozen
from multiclouddb_spi.continuation.entry import Entry
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import Retired
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.faults import RecordFault
from multiclouddb_spi.fetching.fetcher import ReadContext, closed_fault
from multiclouddb_spi.fetching.readers import PartitionReader
from multiclouddb_spi.time_limits import Deadline

T = TypeVar("T")
_MIN_ASK: Final = 4096
_MAX_ASK: Final = 8 * 1024 * 1024
_LOOK_SECONDS: Final = 0.2
_SEND_SECONDS: Final = 50e-6

HEAD_SECONDS: Final = 2.0
"""The number of seconds for which the other partitions wait for a slow partition."""


class Stage(Enum):
    """The stage of a partition during a call."""

    UNASKED = auto()
    """The call knows the partition but does not read it."""
    DUE = auto()
    """The partition is read when its turn comes."""
    ASKED = auto()
    """The partition's fetch is running, or it has finished but its result is not processed yet."""
    PACED = auto()
    """Reading the partition is not useful before its `not_before` time."""
    HELD = auto()
    """The partition has records left that do not fit on the page at present."""
    ANSWERED = auto()
    """The partition has answered, and there is no reason to read it again."""

    __hash__ = object.__hash__  # faster than the hash of `Enum`, which is a Python function


@define(eq=False)
class Turn:
    """The state of one partition during a call."""

    partition_id: str
    stage: Stage = Stage.UNASKED  # only `Turns` and `Poll` change it
    reader: PartitionReader | None = None  # while the stage is ASKED
    failed_last: bool = False  # the previous call ended because of it; this call reads it first
    not_before: float = 0.0  # in the stage PACED: the monotonic time of the earliest useful read
    silent: bool = False  # it last reported that it has no records, and was not asked again since then
    awaited: bool = False  # it had no records, and its running fetch waits for new ones
    noticed: bool = False  # the page has a notice of it; after the notice, none of its records
    error: Exception | None = None  # its failure in this call
    watermark: datetime | None = None  # of its last batch that was returned completely
    # When its last read began after which the service reported that no records follow, and all of whose
    # records were returned (monotonic).
    caught_up_at: float | None = None
    likely_read_until: datetime | None = None  # of its last batch that was returned completely
    headroom: float = math.inf  # the seconds until its position expires, if that is known
    skips: int = 0  # how often this call has skipped expired records
    lost: Cursor = None  # its position before that


class Turns:
    """The partitions of one call, by id and by stage; each stage is in the order in which they entered it.

    Attributes:
        failed: Partitions that have failed in this call, in the order of their failures.
        served: Partitions that have had their turn, in this order. The next call reads these partitions in
            the same order, after the partitions that had no turn.
    """

    def __init__(self, lineage: Lineage, active: Iterable[Entry] = ()) -> None:
        self._lineage = lineage
        self.all: dict[str, Turn] = {}
        for entry in active:
            self.all[entry.partition_id] = Turn(entry.partition_id, failed_last=entry.failed_last)
        self.due, self.asked = OrderedDict[str, Turn](), OrderedDict[str, Turn]()
        self.paced, self.held = OrderedDict[str, Turn](), OrderedDict[str, Turn]()
        self.failed: dict[str, Turn] = {}
        self.served: dict[str, None] = {}
        self._at = {
            Stage.DUE: self.due, Stage.ASKED: self.asked, Stage.PACED: self.paced, Stage.HELD: self.held,
        }  # fmt: skip

    def of(self, partition_id: str) -> Turn:
        """Return the record of the partition; make a new record if there is none."""
        turn = self.all.get(partition_id)
        if turn is None:
            turn = self.all[partition_id] = Turn(partition_id)
        return turn

    def position(self, partition_id: str) -> Cursor | None:
        """Return the call's position in a partition; None if the call does not read the partition."""
        turn = self.all.get(partition_id)
        if turn is None or turn.stage is Stage.UNASKED or partition_id not in self._lineage:
            return None
        return self._lineage.cursor(partition_id)

    def quiet(self) -> set[str]:
        """Return the partitions that have reported no records, or whose fetch is waiting for new records."""
        found = set[str]()
        for name, turn in self.all.items():
            waits = turn.awaited and turn.reader is not None and turn.reader.trouble is None
            if turn.silent or waits:
                found.add(name)
        return found

    def ask(self, partition_ids: Iterable[str]) -> None:
        """Put these partitions after all other due partitions."""
        for partition_id in partition_ids:
            turn = self.all.get(partition_id) or self.of(partition_id)
            if turn.stage is not Stage.DUE and turn.stage is not Stage.ASKED:
                self.move(turn, Stage.DUE)

    def ask_paced(self) -> None:
        """Mark every paced partition as due if the time for its next read has come."""
        now = time.monotonic()
        self.ask([name for name, turn in self.paced.items() if turn.not_before <= now])

    def fail(self, turn: Turn, error: Exception) -> None:
        """Record that the read of the partition has failed."""
        turn.error = error
        self.failed.setdefault(turn.partition_id, turn)

    def recover(self, turn: Turn) -> None:
        """Clear the partition's failure, because the partition has answered or is being read again."""
        turn.error = None
        self.failed.pop(turn.partition_id, None)

    def move(self, turn: Turn, stage: Stage) -> None:
        """Move a partition to another stage, after the partitions that are already there."""
        before, after = self._at.get(turn.stage), self._at.get(stage)
        if before is not None:
            before.pop(turn.partition_id)
        turn.stage = stage
        if after is not None:
            after[turn.partition_id] = turn


@frozen(eq=False)
class DueTimes:
    """When partitions are worth asking again, on the monotonic clock; one that is missing is due.

    Attributes:
        times: Maps a partition to its time and to the position for which the time was given.
        soonest: The time at which the first partition of the feed is due; 0 if the feed has something to do.
    """

    times: Mapping[str, tuple[float, Cursor]] = attrs.field(factory=dict)
    soonest: float = 0.0

    def is_due(self, entry: Entry, now: float) -> bool:
        """Return whether a partition is worth asking at its position."""
        rest = self.times.get(entry.partition_id)
        if rest is None or rest[0] <= now:
            return True
        here = entry.said[0]
        return not (rest[1] is here or rest[1] == here)


@define
class PollResult(Generic[T]):
    """The result of a poll; the poll has also changed its lineage."""

    turns: Turns
    limit: int
    values: list[T] = attrs.field(factory=list)  # what the view made of the returned records, in order
    count: int = 0
    notices: list[Notice] = attrs.field(factory=list)
    moved: bool = False  # a partition answered, or a position moved
    idle: bool = False  # every active partition reported that it has no more records
    due: DueTimes | None = None  # what the next call may leave out; None if this call has to ask all
    retired: Retired | None = None  # the end of the only physical partition that the call reads
    over: str | None = None  # why no change can follow any more
    ended: bool = False  # the page ends here, although more records may be available
    failure: tuple[str, Exception] | None = None  # what stops the feed permanently, and where
    poison: tuple[str, RecordFault] | None = None  # the record that stops the feed
    found_late: int = 0  # partitions that the service had listed late
    requests: int = 0
    retries: int = 0
    charge: float | None = None

    @classmethod
    def nothing(cls, lineage: Lineage) -> PollResult[T]:
        """Return the result of a call that reads nothing."""
        return cls(Turns(lineage), 0)

    def stopped(self) -> bool:
        """True if no more records may be read in this call."""
        return bool(self.failure or self.poison or self.retired or self.over)

    def in_hand(self) -> bool:
        """True if there is something to return on a page."""
        return bool(self.count or self.notices)

    def tell(self, notice: Notice, *partition_ids: str) -> None:
        """Add a notice to the page; further events of the given partitions are left for a later page."""
        self.notices.append(notice)
        for name in partition_ids:
            self.turns.of(name).noticed = True


class Fetches:
    """The fetches of one call, and the readers that the call has taken out of the cache for these fetches.

    The first read of a partition requests at most `limit` records; later reads may request more.
    `hand` has the readers that have left the cache or a turn, and are not in the other one yet.
    """

    def __init__(
        self, context: ReadContext, feed: Feed, turns: Turns, active: int, limit: int, deadline: Deadline
    ) -> None:
        self._context, self._feed, self._turns = context, feed, turns
        self._limit, self._deadline = limit, deadline
        self._cache, self._budget = context.cache, context.budget
        self._share = min(_MAX_ASK, max(_MIN_ASK, context.budget.limit // (active + 1)))
        self._most = max(limit, context.page_records)
        self._no_room = self._sorted = self._at_once = False
        self._landed: deque[Turn] = deque()
        self.hand = list[PartitionReader]()
        self._slow_from = 0.0  # before this time, no partition that is being read counts as slow
        self._wakeup = Wakeup()
        # They wait for memory while records of others are returned, and keep their place in the lineage.
        self.overtaken: frozenset[str] = frozenset()

    def may_ask(self) -> bool:
        """Return whether one more partition can be read now."""
        if not self._turns.due or (len(self._turns.asked) >= self._context.width and self._full()):
            return False
        if self._at_once and (self._landed or self._deadline.passed()):
            return False  # the answer is there already; the next partition may not be needed
        reserve = max(self._share, self._budget.expected)
        fits = self._budget.used + reserve <= self._budget.limit
        return fits or self._make_room(reserve) or self._may_ask_without()

    def _full(self) -> bool:
        """Return whether enough partitions are being read."""
        now = time.monotonic()
        if now < self._slow_from:
            return True
        began = [turn.reader.asked_at for turn in self._turns.asked.values() if turn.reader]
        fresh = [at for at in began if at > now - HEAD_SECONDS]
        if len(fresh) == len(began):
            self._slow_from = min(fresh, default=now) + HEAD_SECONDS
        return len(fresh) >= self._context.width

    def _make_room(self, reserve: int) -> bool:
        """Evict other readers' records; return whether enough bytes are then free for one more answer."""
        if not self._no_room:  # no room was found before, so there is none for the rest of this call
            self._no_room = not self._cache.make_room(reserve, self._in_use)
        return self._budget.over(reserve) <= 0

    def _may_ask_without(self) -> bool:
        """Return whether a partition may be read although no bytes are left for an answer."""
        due = self._turns.due
        if not self._sorted:  # partitions with records go first, because returning records frees bytes
            self._sorted = True
            fetched = [name for name in due if self._holds(name)]
            for name in reversed(fetched):
                due.move_to_end(name, last=False)
            self.overtaken = frozenset(due).difference(fetched) if fetched else frozenset()
        return not self._turns.asked or self._holds(next(iter(due)))

    def _holds(self, partition_id: str) -> bool:
        return self._cache.holds(self._feed, partition_id, self._turns.position(partition_id))

    def _in_use(self, reader: PartitionReader) -> bool:
        return reader.feed is self._feed and self._turns.position(reader.partition_id) == reader.cursor

    def ask_held(self) -> None:
        """Read again from partitions that have records left, because the page may have room for them now."""
        self._turns.ask(list(self._turns.held))
        self._sorted = False

    def launch(self, turn: Turn, reader: PartitionReader, wait: float, most: int | None = None) -> None:
        """Start a fetch of a partition; it is finished at once if the reader still has records."""
        turn.reader, turn.awaited, turn.silent = reader, turn.silent and wait > 0, False
        turn.stage, self._turns.asked[turn.partition_id] = Stage.ASKED, turn
        del self._turns.due[turn.partition_id]
        if reader.batch is not None:
            self._landed.append(turn)
            return
        if reader.future is None:
            self._start(reader, wait, most)
        assert reader.future is not None
        self._slow_from = min(self._slow_from, reader.asked_at + HEAD_SECONDS)

        def arrived(_: object) -> None:
            """Record that an answer arrived; any thread may call this method."""
            self._landed.append(turn)
            self._wakeup.send()

        reader.future.add_done_callback(arrived)

    def land(self, patience: float) -> Turn | None:
        """Return the next partition that has answered; None if none answers within `patience` seconds."""
        until = time.monotonic() + patience
        while True:
            landed = bool(self._landed)  # read before `closed`: closing cancels fetches, which then arrive
            if self._context.closed.is_set():
                raise closed_fault()
            if landed:
                return self._landed.popleft()
            left = until - time.monotonic()
            if left <= 0:
                return None
            if not self._wakeup.wait(min(_LOOK_SECONDS, left)):
                still_waiting(self._trouble)

    def _trouble(self) -> str | None:
        """Return the reason for the last retry of a running fetch."""
        readers = [turn.reader for turn in self._turns.asked.values() if turn.reader]
        failures = [reader.trouble for reader in readers if reader.trouble is not None]
        return self._context.fetcher.fault(failures[-1]).message if failures else None

    def prefetch(self, reader: PartitionReader) -> None:
        """Start the next read of a partition that has more records, if enough bytes are free."""
        if (
            reader.future is None
            and not reader.at_once
            and len(self._turns.asked) < self._context.width
            and not self._no_room  # otherwise, other partitions are waiting for these bytes
            and self._budget.over(max(self._share, self._budget.expected)) <= 0
        ):
            self._start(reader, 0.0)
            if not self._landed:
                # Let the pool's thread send the request now, because the mapping that follows does not
                # release the interpreter lock. If another answer has already arrived, this call is not
                # waiting for the service.
                time.sleep(_SEND_SECONDS)

    def park(self) -> dict[str, Exception | None]:
        """Leave running fetches to the next call, except those that have been running for too long."""
        passed, asked = time.monotonic() >= self._deadline.at, self._turns.asked
        late: dict[str, Exception | None] = {}
        while asked:
            turn = next(iter(asked.values()))
            reader = turn.reader
            assert reader is not None
            gives_up = False
            if passed and reader.future is not None and not reader.future.done():
                if not (turn.awaited and reader.trouble is None):  # else there are just no records
                    late[turn.partition_id] = reader.trouble
                gives_up = reader.takes_too_long()
            if gives_up:
                reader.discard()
            else:
                self._cache.put(reader)
            del asked[turn.partition_id]
        self._cache.tidy(self._in_use)
        return late

    def abandon(self) -> None:
        """Cancel every running fetch; after an interrupt, a reader may already be in the cache again."""
        for reader in [*self.hand, *(turn.reader for turn in self._turns.asked.values() if turn.reader)]:
            self._cache.remove(reader)
            reader.discard()

    def _start(self, reader: PartitionReader, wait: float, most: int | None = None) -> None:
        reader.window = min(self._most, max(self._limit, 2 * reader.window))
        reader.waiting = wait > 0
        reserve = max(self._share, self._budget.expected)
        records = reader.window if most is None else min(reader.window, most)
        reader.hold(reserve)
        self._context.fetcher.start(reader, records, self._share, wait, self._deadline)
        self._at_once = reader.at_once
