"""Finds the written change that caused each event.

Use this module if the event ids are not known in advance.

The key and the marker in the document identify a create or an update. A delete has no document, so it is
identified by its place among the changes of its key, sorted by `order_key`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence

from multiclouddb_api import ChangeEvent, ChangeType
from multiclouddb_conformance.loss.life import Change, plain_key

__all__ = ["Marker", "marker_in", "match"]

Marker = Callable[[ChangeEvent], Hashable | None]
"""A function that returns the marker in an event's document; None if the document contains no marker."""


def marker_in(field: str) -> Marker:
    """Return a function that takes the marker from a field of the new document."""

    def marker(event: ChangeEvent) -> Hashable | None:
        state = event.new_item_state
        return None if state is None else state.get(field)

    return marker


def match(truth: Sequence[Change], delivered: Iterable[ChangeEvent], marker: Marker) -> dict[str, int]:
    """Map each event id to the index of its change in `truth`, the list of written changes.

    The result omits an event if no change in `truth` matches it.
    """
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
    truth: Sequence[Change], numbers: Sequence[int], events: Sequence[ChangeEvent], marker: Marker
) -> dict[str, int]:
    """Do the work of `match` for the events of one key.

    `numbers` are the indices of the key's changes in `truth`.
    """
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


def _next_delete(truth: Sequence[Change], numbers: Sequence[int], start: int) -> int | None:
    rest = range(max(0, start), len(numbers))
    return next((place for place in rest if truth[numbers[place]].marker is None), None)
