"""Checks delivered events against the promises of a feed, for any provider.

Each check is a pure function. The argument `truth` contains the identities of all written changes,
in the order of writing. The events are in the order of delivery. The check returns its findings as
texts, and an empty result if everything is correct. Redelivery is allowed, so only the first
delivery of a change is checked for its order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias

from multiclouddb_api import ChangeEvent, ChangeFeedPage

__all__ = [
    "Identify",
    "by_event_id",
    "check_complete",
    "check_identity",
    "check_key_order",
    "check_known",
    "check_lineage",
    "check_order",
    "check_order_keys",
    "check_watermarks",
    "count_duplicates",
    "first_deliveries",
]

Identify: TypeAlias = Callable[[ChangeEvent], Hashable]
"""A function that returns the identity of an event's change, in the form that the truth contains."""


def by_event_id(event: ChangeEvent) -> Hashable:
    """Identify a change by its event's id."""
    return event.event_id


def first_deliveries(delivered: Iterable[ChangeEvent], identify: Identify = by_event_id) -> list[ChangeEvent]:
    """Return the first delivery of each change, in order."""
    firsts: dict[Hashable, ChangeEvent] = {}
    for event in delivered:
        firsts.setdefault(identify(event), event)
    return list(firsts.values())


def count_duplicates(delivered: Sequence[ChangeEvent], identify: Identify = by_event_id) -> int:
    """Return how many events were redeliveries of a change."""
    return len(delivered) - len(first_deliveries(delivered, identify))


def check_complete(
    truth: Sequence[Hashable], delivered: Iterable[ChangeEvent], identify: Identify = by_event_id
) -> list[str]:
    """Check that every change was delivered."""
    came = {identify(event) for event in delivered}
    return [f"lost: {change}" for change in truth if change not in came]


def check_known(
    truth: Collection[Hashable], delivered: Iterable[ChangeEvent], identify: Identify = by_event_id
) -> list[str]:
    """Check that only written changes were delivered."""
    known = set(truth)
    strange = [event for event in first_deliveries(delivered, identify) if identify(event) not in known]
    return [f"never written: {_name(event)}" for event in strange]


def check_order(
    truth: Sequence[Hashable], delivered: Iterable[ChangeEvent], identify: Identify = by_event_id
) -> list[str]:
    """Check that the changes of each partition were delivered in the order of writing."""
    return _in_order(truth, delivered, identify, lambda event: event.partition_id, "partition")


def check_key_order(
    truth: Sequence[Hashable], delivered: Iterable[ChangeEvent], identify: Identify = by_event_id
) -> list[str]:
    """Check the order of each key's changes across all partitions, and check their order keys."""
    events = first_deliveries(delivered, identify)
    found = _in_order(truth, events, identify, lambda event: event.key, "key")
    return found + check_order_keys(truth, events, identify)


def check_order_keys(
    truth: Sequence[Hashable], delivered: Iterable[ChangeEvent], identify: Identify = by_event_id
) -> list[str]:
    """Check that, for each key, the order keys match the order of writing."""
    by_order_key = sorted(first_deliveries(delivered, identify), key=lambda event: event.order_key)
    return _in_order(truth, by_order_key, identify, lambda event: event.key, "the order_keys of key")


def _in_order(
    truth: Sequence[Hashable],
    delivered: Iterable[ChangeEvent],
    identify: Identify,
    group: Callable[[ChangeEvent], Hashable],
    what: str,
) -> list[str]:
    rank = {change: number for number, change in enumerate(truth)}
    last: dict[Hashable, tuple[int, ChangeEvent]] = {}
    found = []
    for event in first_deliveries(delivered, identify):
        number = rank.get(identify(event))
        if number is None:
            continue
        before = last.get(group(event))
        if before is not None and number < before[0]:
            found.append(f"in {what} {group(event)}: {_name(event)} after {_name(before[1])}")
        else:
            last[group(event)] = (number, event)
    return found


def check_lineage(
    delivered: Iterable[ChangeEvent],
    parents: Mapping[str, Iterable[str]],
    identify: Identify = by_event_id,
) -> list[str]:
    """Check that the events of a partition came after all events of its ancestors."""
    spans: dict[str, tuple[int, int]] = {}
    for number, event in enumerate(first_deliveries(delivered, identify)):
        spans[event.partition_id] = (spans.get(event.partition_id, (number, 0))[0], number)
    latest: dict[str, tuple[int, str]] = {}
    found = []
    for partition_id in _parents_first(parents):
        above = [(-1, "")]
        for parent in parents[partition_id]:
            above.append(latest.get(parent, (-1, "")))
            if parent in spans:
                above.append((spans[parent][1], parent))
        latest[partition_id] = number, ancestor = max(above)
        if partition_id in spans and spans[partition_id][0] < number:
            found.append(f"partition {partition_id} was read before its ancestor {ancestor} was drained")
    return found


def _parents_first(parents: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the partitions, sorted so that each partition comes after all its parents."""
    order: dict[str, None] = {}
    for start in parents:
        pending = [start]
        while pending:
            missing = [name for name in parents[pending[-1]] if name in parents and name not in order]
            if missing:
                pending.extend(missing)
            else:
                order[pending.pop()] = None
    return list(order)


def check_watermarks(
    pages: Iterable[ChangeFeedPage], identify: Identify = by_event_id, seen: Iterable[Hashable] = ()
) -> list[str]:
    """Check that watermarks never go back and that no new event is older than an earlier watermark."""
    known = set(seen)
    mark = None
    found = []
    for number, page in enumerate(pages, 1):
        fresh = [event for event in page.events if identify(event) not in known]
        if mark is not None:
            found += [
                f"page {number}: {_name(event)} is older than the watermark {mark}"
                for event in fresh
                if event.timestamp < mark
            ]
        known.update(identify(event) for event in fresh)
        watermark = page.diagnostics.watermark
        if watermark is not None and mark is not None and watermark < mark:
            found.append(f"page {number}: the watermark went back from {mark} to {watermark}")
        mark = watermark if mark is None else max(mark, watermark or mark)
    return found


def check_identity(delivered: Iterable[ChangeEvent], identify: Identify | None = None) -> list[str]:
    """Check that each event id belongs to only one event."""
    firsts: dict[str, ChangeEvent] = {}
    names: defaultdict[Hashable, set[str]] = defaultdict(set)
    found = []
    for event in delivered:
        first = firsts.setdefault(event.event_id, event)
        if first != event:
            found.append(f"event id {event.event_id} is used both for {_name(first)} and for {_name(event)}")
        if identify is not None:
            names[identify(event)].add(event.event_id)
    found += [
        f"{change} was delivered with several event ids: {', '.join(sorted(ids))}"
        for change, ids in names.items()
        if len(ids) > 1
    ]
    return found


def _name(event: ChangeEvent) -> str:
    return f"{event.type.value} of {event.key} (event {event.event_id})"
