"""Lists the partitions of a simulated service, and finds uncovered partitions.

`Listing` defines the possible forms of a listing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import assert_never

from multiclouddb_conformance.simulation.partition_log import HashRange, PartitionLog
from multiclouddb_conformance.simulation.position import to_place
from multiclouddb_conformance.simulation.service_behaviour import Listing
from multiclouddb_conformance.simulation.view import View
from multiclouddb_spi import Cursor, Partition, PartitionState, Tracked, missed_by_parents

__all__ = ["kept", "listed", "missed", "shown", "topmost", "with_ancestors"]


def kept(view: View) -> list[PartitionLog]:
    """Return the partitions that can still be read."""
    return [part for part in view.sim.partitions.values() if not part.gone and view.covers(part)]


def shown(view: View) -> list[PartitionLog]:
    """Return the partitions that the service shows to a client.

    The service shows a hidden partition only after some calls.
    """
    return [part for part in kept(view) if view.sim.shows(part.id)]


def topmost(parts: Iterable[PartitionLog]) -> list[PartitionLog]:
    """Return the partitions that have no parent among the given partitions."""
    there = {part.id: part for part in parts}
    return [part for part in there.values() if there.keys().isdisjoint(part.parents)]


def with_ancestors(parts: Iterable[PartitionLog], pool: Iterable[PartitionLog]) -> list[PartitionLog]:
    """Return the partitions and all their ancestors in `pool`. An ancestor need not be listed."""
    known = {part.id: part for part in pool}
    found: dict[str, PartitionLog] = {}
    pending = list(parts)
    while pending:
        part = pending.pop()
        if part.id not in found:
            found[part.id] = part
            pending += [known[name] for name in part.parents if name in known]
    return [part for part in known.values() if part.id in found]


def listed(view: View) -> list[Partition]:
    """Return the partitions that one listing contains."""
    form = view.sim.behaviour.listing
    parts = shown(view)
    if form is not Listing.ALL:
        parts = [part for part in parts if part.closed is None]
    return [_as_listed(view, part, with_parents=form is not Listing.OPEN) for part in parts]


def missed(view: View, tracked: Mapping[str, Tracked]) -> dict[str, tuple[str, ...]] | None:
    """Find the uncovered partitions, and map each one to its uncovered parents.

    Return None if coverage cannot be determined.
    """
    match view.sim.behaviour.listing:
        case Listing.ALL:
            return missed_by_parents(tracked, listed(view), lambda name: view.sim.partitions[name].gone)
        case Listing.OPEN_WITH_RANGES:
            return dict.fromkeys(_missed_by_ranges(view, tracked), ())
        case Listing.OPEN:
            names = _missed_at_a_moment(view, tracked)
            return None if names is None else dict.fromkeys(names, ())
        case other:
            assert_never(other)


def _as_listed(view: View, partition: PartitionLog, *, with_parents: bool) -> Partition:
    state = PartitionState.OPEN if partition.closed is None else PartitionState.CLOSED
    return Partition(partition.id, view.parents(partition) if with_parents else (), state)


def _missed_by_ranges(view: View, tracked: Mapping[str, Tracked]) -> list[str]:
    """Return the uncovered partitions of a service whose partition ids represent ranges of keys.

    An open partition is uncovered if its range overlaps no range of a partition in the token.
    """
    ranges = {name: view.sim.partitions[name].ranges for name in tracked}
    found = [
        part.id
        for part in shown(view)
        if part.closed is None and not any(_overlap(part.ranges, other) for other in ranges.values())
    ]
    for name in _unknown_parents(tracked):
        others = [other for other in tracked if not _waits(tracked, other, name)]
        if not any(_overlap(view.sim.partitions[name].ranges, ranges[other]) for other in others):
            found.append(name)
    return found


def _missed_at_a_moment(view: View, tracked: Mapping[str, Tracked]) -> list[str] | None:
    """Return the partitions that are missing in the token.

    A missing partition was open at the token's latest position, but the token does not contain it.

    A missing partition cannot have been read. The token would otherwise contain the descendants of
    the missing partition, which begin after the token's latest position. If all partitions of the
    token were also open at the latest position, none of them is an ancestor of the missing
    partition. So a read from the token will never reach the missing partition.
    """
    moment = max((_commit(cursor) for entry in tracked.values() for cursor in entry.cursors), default=0)
    alive = {part.id for part in view.sim.partitions.values() if view.covers(part) and part.alive_at(moment)}
    if not tracked.keys() <= alive:
        return None
    visible = {part.id for part in shown(view)}
    return [*sorted((alive & visible) - tracked.keys()), *_unknown_parents(tracked)]


def _commit(cursor: Cursor) -> int:
    commit, done = to_place(cursor)
    return commit if done else commit - 1


def _unknown_parents(tracked: Mapping[str, Tracked]) -> list[str]:
    waited = {parent for entry in tracked.values() for parent in entry.parents}
    return sorted(waited - tracked.keys())


def _waits(tracked: Mapping[str, Tracked], one: str, other: str) -> bool:
    """Return True if one partition of a token waits for another, directly or indirectly."""
    seen, pending = set[str](), [one]
    while pending:
        entry = tracked.get(pending.pop())
        fresh = set(entry.parents) - seen if entry is not None else set()
        seen |= fresh
        pending += fresh
    return other in seen


def _overlap(some: Iterable[HashRange], others: Iterable[HashRange]) -> bool:
    others = list(others)
    return any(low < top and bottom < high for low, high in some for bottom, top in others)
