"""Represents the records of one simulated partition, and converts them to events."""

from __future__ import annotations

import attrs

from multiclouddb_api import ChangeEvent, ChangeType, Notice
from multiclouddb_conformance.simulation.calls import Calls
from multiclouddb_conformance.simulation.partition_log import Written
from multiclouddb_conformance.simulation.position import Place, place_text, to_cursor
from multiclouddb_spi import Continue, Cursor, FeedSpec, Mapper, Outcome, RecordFault
from multiclouddb_spi.scan.contract import LATEST_MARK

__all__ = ["SimulationMapper", "Slice", "poison_fault", "to_event"]


@attrs.define
class Slice:
    """The result of one fetch."""

    begin: Place
    end: Place
    seen: Place = (0, 0)
    records: list[Written] = attrs.field(factory=list)
    places: list[Place] = attrs.field(factory=list)
    notices: list[Notice] = attrs.field(factory=list)
    outcome: Outcome = attrs.field(factory=Continue)
    exhausted: bool = False

    def __len__(self) -> int:
        return len(self.records)

    def nbytes(self) -> int:
        """Return the size of the records in bytes."""
        return sum(record.size for record in self.records)


def to_event(written: Written, spec: FeedSpec, public_id: str) -> ChangeEvent:
    """Convert a record to an event, without side effects."""
    new = spec.with_new
    old = spec.with_old
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


def poison_fault(index: int, written: Written, after: Place) -> RecordFault:
    """Make the fault for a record that cannot be decoded."""
    position = place_text((written.commit, written.index + 1))
    return RecordFault(index, position, "it is poison", to_cursor(after))


@attrs.frozen(eq=False)
class SimulationMapper(Mapper):
    """Maps the records of one partition."""

    spec: FeedSpec
    public_id: str
    calls: Calls
    latest: bool = False

    def cursor_after(self, records: Slice, count: int) -> Cursor:
        return to_cursor(records.places[count - 1])

    def events(self, records: Slice, start: int, stop: int) -> list[ChangeEvent]:
        mapped = []
        for index in range(start, stop):
            written = records.records[index]
            if written.poison:
                raise poison_fault(index, written, records.places[index])
            event = to_event(written, self.spec, self.public_id)
            if self.latest:
                latest_id = f"{LATEST_MARK}{event.event_id}"
                event = attrs.evolve(event, type=ChangeType.UPDATE, event_id=latest_id, by_expiry=False)
            mapped.append(event)
        self.calls.count("mapped", len(mapped))
        return mapped
