"""One record for each partition of a call: its stage and its answers.

                 ask             launched           landed
    UNASKED ──────────▶ DUE ──────────────▶ ASKED ──────────▶ ANSWERED
                         ▲ │                                   │    │
                         │ └─ paced ─▶ PACED ─ its time ─┐     │    └─ hold ─▶ HELD ─┐
                         └───────────────────────────────┴─ ask ◀──── place again ───┘

Everything happens in the caller's thread: other threads only report which fetch has landed (`Fetches`).
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from datetime import datetime
from enum import Enum, auto

import attrs

from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.reading.partition_reader import PartitionReader

__all__ = ["Stage", "Turn", "Turns"]


class Stage(Enum):
    """The stage of a partition in a call."""

    UNASKED = auto()
    """The call knows the partition, but does not read it."""
    DUE = auto()
    """The partition is asked when its turn comes."""
    ASKED = auto()
    """Its fetch is in flight, or has landed and is not processed yet."""
    PACED = auto()
    """Asking it makes no sense before its `not_before`."""
    HELD = auto()
    """Some of its records are left, because the page has no place for them now."""
    ANSWERED = auto()
    """It has answered, and there is no reason to ask it again."""

    __hash__ = object.__hash__  # equality is identity, and the hash of `Enum` is a Python function


@attrs.define(eq=False)
class Turn:
    """One partition of a call.

    Attributes:
        partition_id: The service's own id.
        stage: Its stage; only `Turns` changes it.
        reader: Its reader, while it is ASKED.
        failed_last: True if the previous call ended because of it; it is then asked first.
        not_before: Monotonic time before which asking it makes no sense, while it is PACED.
        silent: True if its last answer was that it has nothing, and it was not asked since.
        awaited: True if it was silent and the fetch in flight waits for news.
        noticed: True if the page contains a notice of it, so that none of its records may follow on that
            page.
        error: Its failure in this call, or None.
        watermark: The watermark of its last batch that was returned completely.
        headroom: Seconds until its position expires; infinite where that is not known.
        skips: How often its position was older than retention in this call.
        lost: Its position before the first of these skips.
    """

    partition_id: str
    stage: Stage = Stage.UNASKED
    reader: PartitionReader | None = None
    failed_last: bool = False
    not_before: float = 0.0
    silent: bool = False
    awaited: bool = False
    noticed: bool = False
    error: Exception | None = None
    watermark: datetime | None = None
    headroom: float = math.inf
    skips: int = 0
    lost: Cursor = None


class Turns:
    """The partitions of one call, by id and by stage; each stage is ordered by the time of entering it.

    Args:
        lineage: Gives the position of each.

    Attributes:
        due: Partitions that are asked when their turn comes.
        asked: Partitions that are being asked.
        paced: Partitions that are asked later.
        held: Partitions that have records left.
        failed: Partitions that have failed in this call, the first one first.
        served: Partitions that have had their turn, the last one last. In the next call they are asked in
            this order, after those that had no turn.
    """

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self._turns: dict[str, Turn] = {}
        self.due, self.asked = OrderedDict[str, Turn](), OrderedDict[str, Turn]()
        self.paced, self.held = OrderedDict[str, Turn](), OrderedDict[str, Turn]()
        self.failed: dict[str, Turn] = {}
        self.served: dict[str, None] = {}
        self._at = {
            Stage.DUE: self.due, Stage.ASKED: self.asked, Stage.PACED: self.paced, Stage.HELD: self.held,
        }  # fmt: skip

    def __iter__(self) -> Iterator[Turn]:
        return iter(self._turns.values())

    def of(self, partition_id: str) -> Turn:
        """The partition's record; a new record is made if there is none."""
        turn = self._turns.get(partition_id)
        if turn is None:
            turn = self._turns[partition_id] = Turn(partition_id)
        return turn

    def find(self, partition_id: str) -> Turn | None:
        """The partition's record, or None."""
        return self._turns.get(partition_id)

    def position(self, partition_id: str) -> Cursor | None:
        """The call's position in a partition; None if the call does not read the partition."""
        turn = self._turns.get(partition_id)
        if turn is None or turn.stage is Stage.UNASKED or partition_id not in self._lineage:
            return None
        return self._lineage.cursor(partition_id)

    def quiet(self) -> set[str]:
        """Partitions that have nothing: they answered so, or they wait for news without a failure."""
        found = set[str]()
        for name, turn in self._turns.items():
            waits = turn.awaited and turn.reader is not None and turn.reader.trouble is None
            if turn.silent or waits:
                found.add(name)
        return found

    # -- Transitions

    def ask(self, partition_ids: Iterable[str]) -> None:
        """Ask these after all others that are due; one that is due or asked stays where it is."""
        for partition_id in partition_ids:
            turn = self.of(partition_id)
            if turn.stage is not Stage.DUE and turn.stage is not Stage.ASKED:
                self._move(turn, Stage.DUE)

    def launched(self, turn: Turn, reader: PartitionReader, *, waits: bool) -> None:
        """Its fetch is in flight."""
        turn.reader, turn.awaited, turn.silent = reader, turn.silent and waits, False
        self._move(turn, Stage.ASKED)

    def landed(self, turn: Turn) -> PartitionReader:
        """Its fetch has an answer; returns its reader, which no longer belongs to the turn."""
        reader = turn.reader
        assert reader is not None
        # In this order, so that an interruption in between leaves no asked partition without a reader.
        self._move(turn, Stage.ANSWERED)
        turn.reader, turn.awaited = None, False
        return reader

    def pace(self, turn: Turn, not_before: float) -> None:
        """Ask it later: asking makes no sense before `not_before`."""
        turn.not_before = not_before
        self._move(turn, Stage.PACED)

    def ask_paced(self) -> None:
        """Make those paced partitions due whose time has come."""
        now = time.monotonic()
        self.ask([name for name, turn in self.paced.items() if turn.not_before <= now])

    def hold(self, turn: Turn) -> None:
        """Leave the rest of its records for later."""
        self._move(turn, Stage.HELD)

    def gone(self, turn: Turn) -> None:
        """It has left the lineage, so it is not read any more."""
        self._move(turn, Stage.ANSWERED)

    def fail(self, turn: Turn, error: Exception) -> None:
        """It has failed."""
        turn.error = error
        self.failed.setdefault(turn.partition_id, turn)

    def recover(self, turn: Turn) -> None:
        """It has answered, or is asked again: its failure is over."""
        turn.error = None
        self.failed.pop(turn.partition_id, None)

    def serve(self, turn: Turn) -> None:
        """It has had its turn."""
        self.served.pop(turn.partition_id, None)
        self.served[turn.partition_id] = None

    def _move(self, turn: Turn, stage: Stage) -> None:
        if turn.stage in self._at:
            self._at[turn.stage].pop(turn.partition_id)
        turn.stage = stage
        if stage in self._at:
            self._at[stage][turn.partition_id] = turn
