"""States which partitions a simulated service has, in each of the forms of `Listing`.

No form says more than the services that it stands for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from multiclouddb_api import Notice
from multiclouddb_conformance.simulation.partition_log import HashRange, PartitionLog
from multiclouddb_conformance.simulation.position import place_after, to_cursor, to_place
from multiclouddb_conformance.simulation.service_behaviour import Listing
from multiclouddb_conformance.simulation.view import View
from multiclouddb_spi import Cursor, Drained, Partition, PartitionState, Seed, Survey

__all__ = ["kept", "listing", "named", "shown", "survey", "topmost", "with_ancestors"]


def kept(view: View) -> list[PartitionLog]:
    """Return the partitions that can still be read."""
    return [part for part in view.sim.partitions.values() if not part.gone and view.covers(part)]


def shown(view: View) -> list[PartitionLog]:
    """Return the partitions that the service shows to a client."""
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


def listing(view: View) -> Survey:
    """Return the partitions that one listing contains."""
    form = view.sim.behaviour.listing
    parts = [part for part in shown(view) if form is Listing.ALL or part.closed is None]
    parents = {part.id: view.parents(part) if form is not Listing.OPEN else () for part in parts}
    return Survey(tuple(_partition(part, parents[part.id], part.oldest) for part in parts))


def named(view: View, asked: Iterable[str]) -> Survey:
    """Return the children that the ended partitions name now; a child begins at the end of its parent."""
    present, final = dict[str, Partition](), dict[str, Notice | None]()
    gone = dict[str, tuple[str, ...] | None]()
    for name in asked:
        if _is_gone(view, name):
            gone[name] = None
            continue
        if name not in view.sim.partitions:
            continue
        outcome = view.ending(name, asked=True)
        if isinstance(outcome, Drained):
            parts = [view.sim.partitions[child.partition_id] for child in outcome.children]
            present |= {part.id: _partition(part, view.parents(part), part.born) for part in parts}
            if outcome.complete:
                final[name] = None
    return Survey(tuple(present.values()), gone, final=final)


def survey(view: View, asked: Mapping[str, Cursor], expired: Collection[str], since: int) -> Survey:
    """State what exists, and what of it no longer does."""
    form, partitions = view.sim.behaviour.listing, view.sim.partitions
    # The service answers for each partition that is named to it, also if a listing lacks it.
    named_to_it = [partitions[name] for name in asked if name in partitions and not _is_gone(view, name)]
    parts = {part.id: part for part in named_to_it if view.covers(part)}
    if form is not Listing.OPEN:
        parts |= {part.id: part for part in shown(view)}
    gone = {name for name in asked if _is_gone(view, name)}
    present = []
    for part in parts.values():
        oldest: int | None = max(part.oldest, since)
        if (position := asked.get(part.id)) is not None:
            refused = part.id in expired or not _is_kept(view, part, position)
            oldest = part.oldest if refused else None
        present.append(_partition(part, _parents(view, part, gone), oldest))
    if form is Listing.OPEN:
        heirs = tuple(Seed(part.id, (), _after(part.oldest)) for part in topmost(kept(view)))
        return Survey(tuple(present), dict.fromkeys(gone), heirs if gone else None)
    gone |= {name for each in present for name in each.parents if _is_gone(view, name)}
    if form is Listing.OPEN_WITH_RANGES or view.sim.names_late():
        return Survey(tuple(present), dict.fromkeys(gone))
    return Survey(tuple(present), _with_ancestors_that_are_gone(view, gone))


def _is_gone(view: View, name: str) -> bool:
    part = view.sim.partitions.get(name)
    return part is not None and part.gone


def _is_kept(view: View, part: PartitionLog, position: Cursor) -> bool:
    return part.keeps(to_place(position)[0], strict=view.sim.behaviour.strict_retention)


def _after(commit: int) -> Cursor:
    return to_cursor(place_after(commit))


def _partition(part: PartitionLog, parents: tuple[str, ...], oldest: int | None) -> Partition:
    if part.closed is None:
        return Partition(part.id, parents, PartitionState.OPEN, None if oldest is None else _after(oldest))
    end = None if oldest is None else _after(min(oldest, part.closed))
    return Partition(part.id, parents, PartitionState.CLOSED, end)


def _parents(view: View, part: PartitionLog, gone: Collection[str]) -> tuple[str, ...]:
    """Return the parents that the service tells; by ranges, an ancestor stands for parents that are gone."""
    form, partitions = view.sim.behaviour.listing, view.sim.partitions
    parents = view.parents(part)
    if form is Listing.OPEN:
        return ()
    if form is Listing.ALL or any(not partitions[name].gone for name in parents):
        return parents
    earlier = [partitions[name] for name in gone if (partitions[name].closed or 0) <= part.born]
    return tuple(sorted(one.id for one in earlier if _overlap(one.ranges, part.ranges)))


def _with_ancestors_that_are_gone(view: View, gone: Iterable[str]) -> dict[str, tuple[str, ...] | None]:
    found, pending = dict[str, tuple[str, ...] | None](), list(gone)
    while pending:
        name = pending.pop()
        if name not in found:
            found[name] = view.parents(view.sim.partitions[name])
            pending += [one for one in found[name] or () if _is_gone(view, one)]
    return found


def _overlap(some: Iterable[HashRange], others: Iterable[HashRange]) -> bool:
    others = list(others)
    return any(low < top and bottom < high for low, high in some for bottom, top in others)
