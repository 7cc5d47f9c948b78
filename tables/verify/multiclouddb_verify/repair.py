"""Makes confirmed differences equal.

Before a row is written, two answers have to agree: that of a look-up of exactly this key in the source, and
the judgement by the scan and all changes up to the look-up. Without an answer of the look-up, nothing is
written; a key that has moved meanwhile is judged again.

A row whose key is a text that the sink would not write is never written, but removed: if the source answers
that there is no such item, or if the row with the sink's own text is in the table and equal, which is checked
in the same commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import attrs
import numpy as np

from multiclouddb_api import (
    ChangeEvent,
    ErrorCategory,
    MulticloudDbError,
    NotKnown,
    ScanFloor,
    encode_json,
)
from multiclouddb_tables.contract import Fix
from multiclouddb_verify.comparison import GONE, UNKNOWN, DifferenceKind, Seen
from multiclouddb_verify.rounds import Rounds
from multiclouddb_verify.sides import ANOTHER_TEXT, Sides
from multiclouddb_verify.source import Answer, Respelt
from multiclouddb_verify.state import Confirmed, after
from multiclouddb_verify.texts import digests_of

__all__ = ["Repair"]

_REPAIRS: Final = 5
_AT_ONCE: Final = 10_000
"""The number of rows that one commit repairs: a commit may have to write every file again."""
_MOST_REFUSED: Final = 20
"""After so many rows that were refused, without one that was written, the table refuses all of them."""
_OF_A_ROW: Final = frozenset(
    {
        ErrorCategory.INVALID_REQUEST,
        ErrorCategory.CONFLICT,
        ErrorCategory.PERMANENT_FAILURE,
        ErrorCategory.PROVIDER_ERROR,
    }
)
"""The errors, if they are not retryable, that the table may have with one row and not with others."""
_DISAGREES: Final = "the look-up and the scan with the changes after it do not say the same of the source"
_MOVES: Final = "the source changed it between its judgement and its repair, each time; run verify again"
_AGAIN: Final = "it differs after the last repair too; find out what else writes it, and run verify again"
_WAITS: Final = "the row with the sink's own text of this key does not equal the source yet"


class Repair:
    """The repair of the confirmed differences of a comparison.

    Args:
        sides: The two sides.
        rounds: The comparison, which judges the repaired keys again.
    """

    def __init__(self, sides: Sides, rounds: Rounds) -> None:
        self._sides, self._rounds = sides, rounds
        self._refused, self._notes = dict[str, str](), dict[str, str]()
        self._written = 0

    def run(self) -> None:
        """Repair, and judge again, until no difference is left, or it does not help."""
        for number in range(_REPAIRS):
            first, is_last = "", number == _REPAIRS - 1
            while chunk := self._sides.state.confirmed(first, _AT_ONCE):
                first = after(chunk[-1].key)
                self._sides.tell("repair", left=sum(self._sides.state.kinds().values()))
                left_out = self._sides.left_out(chunk).union(self._refused)
                self._fix([each for each in chunk if each.key not in left_out], is_last=is_last)
            if not self._sides.state.pending_count():
                return
            self._rounds.run()
        state, first, notes = self._sides.state, "", self._notes | self._refused
        while chunk := state.confirmed(first, _AT_ONCE):
            first = after(chunk[-1].key)
            state.explain((each.key, notes.get(each.key, _AGAIN)) for each in chunk)

    def _fix(self, chunk: Sequence[Confirmed], *, is_last: bool) -> None:
        """Write the rows of the source where both answers agree, and judge their keys again."""
        self._sides.check_table()
        floor, by_key = self._floor(), {each.key: each for each in chunk}
        for answers in self._sides.look_up([*by_key]):
            self._fix_answered([by_key[key] for key in answers], floor, answers, is_last=is_last)

    def _fix_answered(
        self, chunk: Sequence[Confirmed], floor: str, answers: Mapping[str, Answer], *, is_last: bool
    ) -> None:
        state = self._sides.state
        # This reads every change that a look-up may have shown. It fails if the collection was created again.
        self._rounds.follow_up()
        plan = _Plan(self._sides, floor, answers)
        plan.add_all(chunk)
        self._refused |= plan.refused
        self._write([each.fix for each in plan.agreed])
        self._rounds.know(plan.own_orders)
        fixed = [each for each in plan.agreed if each.confirmed.key not in self._refused]
        with state.transaction():
            state.give_up(plan.unknown.items())
            if is_last:
                # The last judgement is of a state of the source that is over. A row with a foreign key is
                # wrong whatever the source has.
                waits = [each for each, why in plan.again.items() if why is _WAITS]
                state.give_up((each.key, why) for each, why in plan.again.items() if why is not _WAITS)
                state.judge_again(waits)
                self._notes |= {each.key: _WAITS for each in waits}
            else:
                state.judge_again(list(plan.again))
            state.explain((key, note) for key, note in self._refused.items() if key in answers)
            state.repaired((each.confirmed.key, each.note) for each in fixed)
            state.add_pending((each.confirmed.key, each.digest) for each in fixed)

    def _floor(self) -> str:
        """Return the `order_key` of rows without their own.

        It is read before the rows, so that they contain every change below it.
        """
        match self._sides.facts.floor:
            case ScanFloor.HIGH:
                return self._sides.source.floor()
            case ScanFloor.LOW:
                return self._sides.state.fact("floor") or ""
            case _:
                return ""

    def _write(self, fixes: Sequence[Fix]) -> None:
        """Write rows; a row that the table refuses does not stop the others."""
        if not fixes:
            return
        try:
            self._written += self._sides.target.fix(fixes, self._sides.expected)
        except MulticloudDbError as error:
            if error.retryable or error.category not in _OF_A_ROW:
                raise
            if len(fixes) > 1:
                middle = len(fixes) // 2
                self._write(fixes[:middle])
                self._write(fixes[middle:])
                return
            self._refused[fixes[0].key] = error.message
            if len(self._refused) >= _MOST_REFUSED and not self._written:
                raise


@attrs.frozen
class _Agreed:
    """A difference that can be repaired, its fix, the digest of the source, and which answers have agreed."""

    confirmed: Confirmed
    fix: Fix
    digest: int
    note: str


@attrs.define
class _Plan:
    """Decides for each difference whether it can be repaired.

    Attributes:
        agreed: What can be repaired.
        again: What has to be judged again, because the look-up and the judgement do not say the same of the
            same moment; with the reasons.
        unknown: The keys of which the look-up does not say what the source has, with the reasons.
        refused: The keys of documents that the declared columns cannot hold, with the reasons.
        own_orders: The `order_key` of each row of the source that was looked up.
    """

    _sides: Sides
    _floor: str
    _answers: Mapping[str, Answer]
    _now: datetime = attrs.field(factory=lambda: datetime.now(UTC))
    agreed: list[_Agreed] = attrs.field(factory=list)
    again: dict[Confirmed, str] = attrs.field(factory=dict)
    unknown: dict[str, str] = attrs.field(factory=dict)
    refused: dict[str, str] = attrs.field(factory=dict)
    own_orders: dict[str, str] = attrs.field(factory=dict)

    def add_all(self, chunk: Sequence[Confirmed]) -> None:
        # The rows with the sink's own texts are read after the look-up, like the changes.
        own = [each.text for each in self._answers.values() if isinstance(each, Respelt)]
        beside = self._sides.rows_of(own).seen if own else {}
        for each in chunk:
            match self._answers[each.key]:
                case NotKnown(reason):
                    self.unknown[each.key] = reason
                case Respelt(text, event) if each.kind is DifferenceKind.FOREIGN:
                    self._foreign(each, text, event, beside.get(text, ()))
                case Respelt() if each.scanned != GONE or each.last:
                    self.unknown[each.key] = ANOTHER_TEXT
                case Respelt(text):
                    # Only the source itself knows that this is another text of a key.
                    self._sides.state.add_spellings([(each.key, text)])
                    self.again[each] = ANOTHER_TEXT
                case event:
                    self._row(each, event)

    def _row(self, each: Confirmed, event: ChangeEvent | None) -> None:
        versions = self._versions(each.key)
        last = max(versions, default="")
        digest = self._digest(event)
        is_own = self._sides.facts.floor is ScanFloor.ROW
        self.own_orders[each.key] = self._floor if event is None or not is_own else event.order_key
        if last != each.last:
            self.again[each] = _MOVES
        elif digest != each.expected or (last and versions[last] not in (digest, UNKNOWN)):
            # A row above its last change was judged by a look-up, and a second one is no other answer.
            self.again[each] = _DISAGREES
        else:
            own = self.own_orders[each.key]
            # Only a blocked row may get a lower `order_key`.
            order = (
                own if each.kind is DifferenceKind.BLOCKED else max(own, *each.orders) if each.orders else own
            )
            document = None if event is None else event.new_item_state
            try:
                columns = self._sides.columns_of(each.key, document)
            except MulticloudDbError as error:
                self.refused[each.key] = error.message
                return
            text = None if document is None else encode_json(document).decode()
            fix = Fix(each.key, each.orders, order, text, columns, self._now)
            said = "no item" if event is None else "this document"
            note = f"the look-up and the {'changes' if last else 'scan'} say: {said}"
            self.agreed.append(_Agreed(each, fix, digest, note))

    def _foreign(self, each: Confirmed, text: str, event: ChangeEvent | None, beside: Sequence[Seen]) -> None:
        """Decide on a row whose key the sink would write as `text`; `beside` are the rows with that key.

        If that key is judged as equal, those rows are what the scan and the changes say of the source.
        """
        sides, versions = self._sides, self._versions(text)
        if not sides.chosen.of([text], np.array([_hash(text)]))[0]:
            self.unknown[each.key] = "the sink's own text of this key is not one of those that are compared"
            return
        digest, found = self._digest(event), [row.digest for row in beside]
        judged = versions[max(versions)] if versions else digest
        if sides.state.is_open(text) or (found or [GONE]) != [digest] or judged not in (digest, UNKNOWN):
            self.again[each] = _WAITS  # the right row is a difference of its own, and is written first
            return
        place = None if event is None else (text, beside[0].order_key)
        said = "no item" if event is None else "the document that the row with the sink's own key has"
        gone = sides.columns_of(each.key, None)
        fix = Fix(each.key, each.orders, "", None, gone, self._now, removes=True, beside=place)
        note = f"the look-up and the {'changes' if versions else 'scan'} say: {said}"
        self.agreed.append(_Agreed(each, fix, GONE, note))

    def _versions(self, key: str) -> dict[str, int]:
        return self._sides.state.versions(_hash(key), key)

    def _digest(self, event: ChangeEvent | None) -> int:
        return int(self._sides.digests([event])[0])


def _hash(key: str) -> int:
    return int(digests_of([key.encode()])[0])
