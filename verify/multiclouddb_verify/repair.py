"""Makes confirmed differences equal: reads their rows again by key, and writes where nothing has moved."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from multiclouddb_api import ScanFloor, encode_json
from multiclouddb_verify.comparison import Kind
from multiclouddb_verify.rounds import Rounds
from multiclouddb_verify.sides import Sides
from multiclouddb_verify.target import Fix

__all__ = ["Repair"]

_REPAIRS: Final = 5
_AT_ONCE: Final = 10_000
"""The number of rows that one commit repairs: a commit may have to write every file again."""


class Repair:
    """The repair of the confirmed differences of a comparison.

    Args:
        sides: The two sides.
        rounds: The comparison, which judges the repaired keys again.
    """

    def __init__(self, sides: Sides, rounds: Rounds) -> None:
        self._sides, self._rounds = sides, rounds

    def run(self) -> None:
        """Repair, and judge again, until no difference is left, or it does not help."""
        for _ in range(_REPAIRS):
            if not self._sides.state.kinds():
                return
            after = ""
            while chunk := self._sides.state.differences(after, _AT_ONCE):
                after = chunk[-1][0]
                self._sides.tell("repair", left=sum(self._sides.state.kinds().values()))
                self._fix(chunk)
            self._rounds.run()

    def _fix(self, chunk: Sequence[tuple[str, Kind, tuple[str, ...]]]) -> None:
        """Write the rows of the source, and judge their keys again."""
        # The floor is read before the rows, so that they contain every change below it.
        match self._sides.facts.floor:
            case ScanFloor.HIGH:
                floor = self._sides.source.floor()
            case ScanFloor.LOW:
                floor = self._sides.state.fact("floor") or ""
            case _:
                floor = ""
        events = self._sides.look_up([key for key, _, _ in chunk])
        now, fixes = datetime.now(UTC), list[Fix]()
        for key, kind, orders in chunk:
            event = events[key]
            document = None if event is None else event.new_item_state
            own = floor if event is None or self._sides.facts.floor != ScanFloor.ROW else event.order_key
            # Only a blocked row may get a lower `order_key`.
            order = own if kind is Kind.BLOCKED else max(own, *orders) if orders else own
            text = None if document is None else encode_json(document).decode()
            columns = None
            if document is not None and self._sides.transform is not None:
                columns = self._sides.transform(document)
            fixes.append(Fix(key, orders, order, text, columns, now))
        if self._sides.facts.floor == ScanFloor.ROW:
            self._rounds.know(
                {key: floor if each is None else each.order_key for key, each in events.items()}
            )
        self._sides.target.fix(fixes)
        documents = [None if event is None else event.new_item_state for event in events.values()]
        pending = zip(events, self._sides.document_digests(documents).tolist(), strict=True)
        with self._sides.state.transaction():
            self._sides.state.repaired(key for key, _, _ in chunk)
            self._sides.state.add_pending(pending)
