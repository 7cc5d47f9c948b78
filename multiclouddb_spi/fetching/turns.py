"""Records the phase and the answers of each partition in one call, and the result of the call.

                 ask             launched           landed
    UNASKED ──────────▶ DUE ──────────────▶ ASKED ──────────▶ ANSWERED
                         ▲ │                                   │    │
                         │ └─ paced ─▶ PACED ─ its time ─┐     │    └─ hold ─▶ HELD ─┐
                         └───────────────────────────────┴─ ask ◀──── place again ───┘

Everything in this module runs in the caller's thread: other threads only report which fetch has finished.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, MutableMapping
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final, Generic, TypeVar

import attrs
from attrs import define

from multiclouddb_api import Notice
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import Retired
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.faults import RecordFault
from multiclouddb_spi.fetching.readers import PartitionReader

T = TypeVar("T")

HEAD_SECONDS: Final = 2.0
"""The number of seconds for which the other partitions wait for a slow partition."""
# Half of what the smallest full answer of a service has: DynamoDB sends at most 1,000 records and 1 MB.
_FULL_RECORDS: Final = 500
_FULL_BYTES: Final = 512 * 1024


def is_full_answer(records: int, nbytes: int) -> bool:
    """Return whether an answer of so many records and bytes is full, so that more records probably follow."""
    return records >= _FULL_RECORDS or nbytes >= _FULL_BYTES


class Phase(Enum):
    """What a call does with a partition at present."""

    UNASKED = auto()
    """The call knows the partition but does not read it."""
    DUE = auto()
    """The partition is read when its turn comes."""
    ASKED = auto()
    """The partition's fetch is running, or it has finished but its result is not processed yet."""
    PACED = auto()
    """Reading the partition is not useful yet; `Consumer.not_before` says when it is."""
    HELD = auto()
    """The partition has records left that do not fit on the page at present."""
    ANSWERED = auto()
    """The partition has answered, and there is no reason to read it again."""

    __hash__ = object.__hash__  # faster than the hash of `Enum`, which is a Python function


@define(eq=False, repr=False)
class Turn:
    """The state of one partition during a call."""

    partition_id: str
    phase: Phase = Phase.UNASKED  # only `Turns` and `Poll` change it
    reader: PartitionReader | None = None  # while the phase is ASKED
    failed_last: bool = False  # the previous call ended because of it; this call reads it first
    silent: bool = False  # it last reported that it has no records, and was not asked again since then
    awaited: bool = False  # it had no records, and its running fetch waits for new ones
    noticed: bool = False  # the page has a notice of it; after the notice, none of its records
    error: Exception | None = None  # its failure in this call
    watermark: datetime | None = None  # of its last batch that was returned completely
    # The monotonic time at which the last read began that has reached the end: the service reported that no
    # records follow, and all records of the read were returned.
    caught_up_at: float | None = None
    likely_read_until: datetime | None = None  # of its last batch that was returned completely
    headroom: float = math.inf  # the seconds until its position expires, if that is known
    skips: int = 0  # how often this call has skipped expired records
    lost: Cursor = None  # its position before the first skip
    told: int = 0  # how many notices the page had before the first skip


class Turns:
    """The partitions of one call, by id and by phase; each phase is in the order in which they entered it.

    Attributes:
        all: The turns that were needed so far; the call may end before most partitions that are due need one.
        failed: Partitions that have failed in this call, in the order of their failures.
        served: Partitions that have had their turn, in this order. The next call reads these partitions in
            the same order, after the partitions that had no turn.
    """

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self.all: dict[str, Turn] = {}
        self.due, self.asked = OrderedDict[str, Turn | None](), OrderedDict[str, Turn]()
        self.paced, self.held = OrderedDict[str, Turn](), OrderedDict[str, Turn]()
        self.failed: dict[str, Turn] = {}
        self.served: dict[str, None] = {}
        self._at: dict[Phase, MutableMapping[str, Any]] = {
            Phase.DUE: self.due, Phase.ASKED: self.asked, Phase.PACED: self.paced, Phase.HELD: self.held,
        }  # fmt: skip

    def of(self, partition_id: str) -> Turn:
        """Return the record of the partition; make a new record if there is none."""
        turn = self.all.get(partition_id)
        if turn is None:
            turn = self.all[partition_id] = Turn(partition_id)
            if partition_id in self.due:
                turn.phase, self.due[partition_id] = Phase.DUE, turn
        return turn

    def position(self, partition_id: str) -> Cursor | None:
        """Return the call's position in a partition; None if the call does not read the partition."""
        turn = self.all.get(partition_id)
        reads = partition_id in self.due if turn is None else turn.phase is not Phase.UNASKED
        if not reads or partition_id not in self._lineage:
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
            turn = self.all.get(partition_id)
            if turn is None:
                self.due[partition_id] = None
            elif turn.phase is not Phase.DUE and turn.phase is not Phase.ASKED:
                self.move(turn, Phase.DUE)

    def fail(self, turn: Turn, error: Exception) -> None:
        """Record that the read of the partition has failed."""
        turn.error = error
        self.failed.setdefault(turn.partition_id, turn)

    def recover(self, turn: Turn) -> None:
        """Clear the partition's failure, because the partition has answered or is being read again."""
        turn.error = None
        self.failed.pop(turn.partition_id, None)

    def move(self, turn: Turn, phase: Phase) -> None:
        """Move a partition to another phase, after the partitions that are already there."""
        before, after = self._at.get(turn.phase), self._at.get(phase)
        if before is not None:
            before.pop(turn.partition_id)
        turn.phase = phase
        if after is not None:
            after[turn.partition_id] = turn


@define(eq=False, repr=False)
class PollResult(Generic[T]):
    """The result of a poll; the poll has also changed its lineage."""

    turns: Turns
    limit: int
    most_bytes: int
    values: list[T] = attrs.field(factory=list)  # what the view made of the returned records, in order
    count: int = 0
    nbytes: float = 0.0  # of the returned records
    notices: list[Notice] = attrs.field(factory=list)
    moved: bool = False  # a partition answered, or a position moved
    idle: bool = False  # every active partition reported that it has no more records
    # When the first partition is worth asking again (monotonic), or 0 if the feed has something to do.
    # None if calls have to ask all.
    soonest: float | None = None
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
        return cls(Turns(lineage), 0, 0)

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
