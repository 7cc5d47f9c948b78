"""Records the facts of one run, and checks them against the promises of the feed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import attrs

from multiclouddb_api import ChangeEvent, ChangeFeedPage, ChangeType
from multiclouddb_conformance.loss.life import WrittenChange, plain_key
from multiclouddb_conformance.loss.report import RunReport
from multiclouddb_conformance.model import (
    check_complete,
    check_identity,
    check_key_order,
    check_known,
    check_lineage,
    check_order,
    check_order_keys,
    check_watermarks,
    count_duplicates,
)

__all__ = ["Idle", "Marker", "Reading", "Record", "marker_in", "match"]

Marker = Callable[[ChangeEvent], Hashable | None]
"""A function that returns the marker in an event's document; None if the document contains no marker."""


def marker_in(field: str) -> Marker:
    """Return a function that takes the marker from a field of the new document."""

    def marker(event: ChangeEvent) -> Hashable | None:
        state = event.new_item_state
        return None if state is None else state.get(field)

    return marker


def match(truth: Sequence[WrittenChange], delivered: Iterable[ChangeEvent], marker: Marker) -> dict[str, int]:
    """Map each event id to the index of its change in `truth`, the list of written changes."""
    written: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number, change in enumerate(truth):
        written[change.key].append(number)
    events: defaultdict[Hashable, dict[str, ChangeEvent]] = defaultdict(dict)
    for event in delivered:
        events[plain_key(event.key)].setdefault(event.event_id, event)
    found: dict[str, int] = {}
    for key, by_id in events.items():
        in_order = sorted(by_id.values(), key=lambda event: event.order_key)
        found.update(_match_key(truth, written.get(key, []), in_order, marker))
    return found


def _match_key(
    truth: Sequence[WrittenChange], numbers: Sequence[int], events: Sequence[ChangeEvent], marker: Marker
) -> dict[str, int]:
    """Do the work of `match` for the events of one key."""
    places = {truth[number].marker: place for place, number in enumerate(numbers)}
    found: dict[str, int] = {}
    place, last_delete = 0, ""
    for event in events:
        if event.type is ChangeType.DELETE:
            # Two ids at one place belong to the same delete; another check reports the change of the id.
            start = place - 1 if event.order_key == last_delete else place
            at = _next_delete(truth, numbers, start)
            last_delete = event.order_key
        else:
            at = places.get(marker(event))
        if at is not None:
            found[event.event_id] = numbers[at]
            place = at + 1
    return found


def _next_delete(truth: Sequence[WrittenChange], numbers: Sequence[int], start: int) -> int | None:
    rest = range(max(0, start), len(numbers))
    return next((place for place in rest if truth[numbers[place]].marker is None), None)


@attrs.frozen
class Idle:
    """The state of the run at the time when a page reported that the feed was idle."""

    written: int
    delivered: int
    required_from: int


@attrs.frozen
class Reading:
    """The pages that one consumer received."""

    seen_before: int
    pages: list[ChangeFeedPage] = attrs.field(factory=list)


@attrs.define
class Record:
    """The recorded facts of one run."""

    truth: list[WrittenChange] = attrs.field(factory=list)
    labels: list[str] = attrs.field(factory=list)
    delivered: list[ChangeEvent] = attrs.field(factory=list)
    idle: list[Idle] = attrs.field(factory=list)
    readings: list[Reading] = attrs.field(factory=list)
    required_from: int | None = None
    allowed_from: int | None = None
    kills: int = 0
    error: str | None = None

    def report(
        self,
        plan: str,
        name: str,
        marker: Marker,
        lineage: Mapping[str, tuple[str, ...]] | None,
        *,
        key_order: bool = True,
        latest: bool = False,
    ) -> RunReport:
        """Return all findings about the delivered events."""
        numbers = match(self.truth, self.delivered, marker)

        def identify(event: ChangeEvent) -> str:
            number = numbers.get(event.event_id)
            return f"event {event.event_id}" if number is None else self.labels[number]

        delivered, labels = self.delivered, self.labels
        required = list[str]()
        if self.required_from is not None:
            required = [labels[number] for number in self._required(self.required_from, len(labels), latest)]
        early = {labels[number] for number in numbers.values() if number < (self.allowed_from or 0)}
        return RunReport(
            plan=plan,
            name=name,
            written=len(self.truth),
            delivered=len(delivered),
            duplicates=count_duplicates(delivered, identify),
            kills=self.kills,
            lost=tuple(check_complete(required, delivered, identify)) if self.error is None else (),
            early=tuple(sorted(early)),
            unknown=tuple(check_known(labels, delivered, identify)),
            disorder=(
                *check_order(labels, delivered, identify),
                *(check_key_order if key_order else check_order_keys)(labels, delivered, identify),
                *(self._returned(numbers) if latest else ()),
            ),
            lineage=() if lineage is None else tuple(check_lineage(delivered, lineage, identify)),
            identity=tuple(check_identity(delivered, identify)),
            watermark=tuple(self._watermarks(identify)),
            hasty=tuple(self._hasty([numbers.get(event.event_id) for event in delivered], latest)),
            error=self.error,
        )

    def _watermarks(self, identify: Callable[[ChangeEvent], str]) -> list[str]:
        found = []
        for reading in self.readings:
            seen = {identify(event) for event in self.delivered[: reading.seen_before]}
            found += check_watermarks(reading.pages, identify, seen)
        return found

    def _required(self, start: int, stop: int, latest: bool) -> list[int]:
        """Return the numbers of the changes that have to be delivered, of those from `start` to `stop`."""
        if not latest:
            return list(range(start, stop))
        last = {self.truth[number].key: number for number in range(stop)}
        return sorted(each for each in last.values() if each >= start and self.truth[each].marker is not None)

    def _returned(self, numbers: Mapping[str, int]) -> list[str]:
        """Return the versions that came after a later version of their document in one reading."""
        begins = [reading.seen_before for reading in self.readings]
        found, last = [], dict[Hashable, int]()
        for place, event in enumerate(self.delivered):
            if place in begins:
                last = {}
            number = numbers.get(event.event_id, -1)
            if number < last.get(event.key, -1):
                found.append(f"{self.labels[number]} came again after a later version")
            last[event.key] = max(number, last.get(event.key, -1))
        return found

    def _hasty(self, numbers: list[int | None], latest: bool) -> list[str]:
        found = []
        for idle in dict.fromkeys(self.idle):
            came = set(numbers[: idle.delivered])
            required = self._required(idle.required_from, idle.written, latest)
            missing = [number for number in required if number not in came]
            if missing:
                found.append(
                    f"idle before {len(missing)} changes were delivered, first {self.labels[missing[0]]}"
                )
        return found
