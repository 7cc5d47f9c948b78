"""Records of one simulated partition, and how they become events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import attrs

from multiclouddb_api import ChangeEvent, NewItemStateMode, Notice, OldItemStateMode
from multiclouddb_conformance.simulation.calls import Calls
from multiclouddb_conformance.simulation.position import Place, place_text, to_cursor
from multiclouddb_conformance.simulation.tree import Written
from multiclouddb_spi import Batch, Continue, Cursor, FeedSpec, Outcome, RecordFault

__all__ = ["SimulationBatch", "Slice", "poison_fault", "to_event"]


@attrs.define
class Slice:
    """What one fetch found.

    Attributes:
        begin: Where it began.
        end: Where reading goes on.
        seen: Behind the last commit that was looked at; `end` may lie further.
        records: The records.
        places: For each record the place behind it.
        notices: Facts found on the way.
        outcome: What comes behind the last record.
        exhausted: True when there is nothing behind it at present.
    """

    begin: Place
    end: Place
    seen: Place = (0, 0)
    records: list[Written] = attrs.field(factory=list)
    places: list[Place] = attrs.field(factory=list)
    notices: list[Notice] = attrs.field(factory=list)
    outcome: Outcome = attrs.field(factory=Continue)
    exhausted: bool = False

    def nbytes(self) -> int:
        """Bytes that the records count for."""
        return sum(record.size for record in self.records)


def to_event(written: Written, spec: FeedSpec, public_id: str) -> ChangeEvent:
    """The event of a record; pure."""
    new = spec.new_item_state_mode is not NewItemStateMode.OMIT
    old = spec.old_item_state_mode is not OldItemStateMode.OMIT
    return ChangeEvent(
        event_id=written.event_id,
        key=written.key,
        type=written.type,
        timestamp=written.timestamp,
        new_item_state=written.document if new else None,
        old_item_state=written.previous if old else None,
        order_key=f"{written.commit:016d}.{written.index:08d}",
        by_expiry=written.by_expiry,
        backfilled=False,
        address=spec.address,
        partition_id=public_id,
        native=written if spec.include_native else None,
    )


def poison_fault(index: int, written: Written, behind: Place) -> RecordFault:
    """The fault of a record that cannot be decoded."""
    position = place_text((written.commit, written.index + 1))
    return RecordFault(index, position, "it is poison", to_cursor(behind))


class SimulationBatch(Batch):
    """One fetch's records."""

    def __init__(self, found: Slice, spec: FeedSpec, public_id: str, calls: Calls) -> None:
        self._found = found
        self._spec = spec
        self._public_id = public_id
        self._calls = calls
        self.nbytes = found.nbytes()
        self.outcome = found.outcome
        self.notices = tuple(found.notices)
        self.charge = 1.0 + len(found.records)

    @property
    def written(self) -> Sequence[Written]:
        """The records, for whoever wraps this."""
        return self._found.records

    def __len__(self) -> int:
        return len(self._found.records)

    def cursor_after(self, count: int) -> Cursor:
        """See `Batch.cursor_after`."""
        if count == len(self._found.records):
            return to_cursor(self._found.end)
        return to_cursor(self._found.places[count - 1] if count else self._found.begin)

    def events(self, start: int, stop: int) -> list[ChangeEvent]:
        """See `Batch.events`."""
        mapped = []
        for index in range(start, stop):
            written = self._found.records[index]
            if written.poison:
                raise poison_fault(index, written, self._found.places[index])
            mapped.append(to_event(written, self._spec, self._public_id))
        self._calls.count("mapped", len(mapped))
        return mapped

    def tell(
        self, caught_up: bool | None, watermark: datetime | None, poll_after: float, headroom: float | None
    ) -> SimulationBatch:
        """Set what the service says besides; returns itself."""
        self.caught_up = caught_up
        self.watermark = watermark
        self.poll_after = poll_after
        self.headroom = headroom
        return self
