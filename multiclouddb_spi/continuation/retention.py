"""Computes the effects of retention on a lineage: what replaces a lost partition, and which waits never end.

A partition that no longer exists names no children. A partition that the service still lists may
descend from several partitions that no longer exist. The listed partition has to start after all
its lost ancestors, so that it is read once and in order. Therefore, the listed partition waits for
one lost entry of the lineage in the same way as for a parent. As soon as the engine detects the
loss of this entry, or the entry ends, the listed partition waits for the next lost entry. The
engine never relies on another entry to name a listed partition, because a lost entry may still end
normally. A lost entry that ends normally, with records that were read before the loss, names only
its own children. One of these children may be a parent that seemed to be lost. Therefore, the
listed partition also waits for its lost parents, as long as a lost entry may lead to them.

If a partition is listed, it exists. If a partition is not listed, it may still exist, because some
services list only open partitions, or list a partition late. To find out whether a partition
exists, the engine calls `Feed.oldest`. If the partition can still be read, the method returns a
seed with the partition's id.

There are two cases for an existing parent that is not in the lineage and does not descend from an
entry: the feed has already read this parent, or the feed has missed this parent. A parent was
missed if a sibling of the parent is known, but the parent is not known. An audited feed waits for a
missed parent, because the audit starts this parent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import TypeAlias

from multiclouddb_spi.batch import Child
from multiclouddb_spi.continuation.coverage import ancestors_read, tracked
from multiclouddb_spi.continuation.entry import Waiting
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.reach import parents_of, reach
from multiclouddb_spi.contract import Partition, Seed
from multiclouddb_spi.faults import ProviderFault, expired

__all__ = ["Retention", "stranded_fault"]

_Parents: TypeAlias = Mapping[str, tuple[str, ...]]
"""Every partition that the service lists, each with its parents."""


def stranded_fault(public_id: str) -> ProviderFault:
    """Make the fault for a partition that was lost before the service listed it (`Retention.stranded`).

    Args:
        public_id: The public id of the partition.
    """
    return expired(
        f"{public_id} was lost to retention before the service listed it: its changes were never read"
    )


class Retention:
    """The partitions that a service still keeps; each call makes its own instance.

    Args:
        partitions: `Feed.partitions`.
        oldest: `Feed.oldest`.
    """

    def __init__(
        self,
        partitions: Callable[[], Sequence[Partition]],
        oldest: Callable[[Sequence[str]], Sequence[Seed]],
    ) -> None:
        self._partitions, self._oldest = partitions, oldest
        self._asked: set[str] = set()
        self._readable: set[str] = set()
        self._left: set[str] = set()

    def after_loss(
        self, lineage: Lineage, name: str, seeds: Sequence[Seed]
    ) -> tuple[set[str], dict[str, str]]:
        """Decide what each partition waits for after a partition is lost; `Lineage.replace` uses the result.

        Args:
            lineage: The lineage, which still contains the lost partition.
            name: The partition.
            seeds: What replaces the lost partition: its own seed, or the seeds of its remaining descendants
                (`Feed.oldest`).

        Returns:
            Every partition that will be discovered later, and a mapping. The mapping gives the
            entry for which a waiting partition must wait, in the same way as for a parent.
        """
        if any(seed.partition_id == name for seed in seeds):
            return set(), {}
        listed = parents_of(self._partitions())
        others = {entry.partition_id for entry in lineage} - {name}
        gone, left = self._gone(lineage.listed() - {name}, listed)
        heirs = {seed.partition_id: seed.parents for seed in seeds if seed.partition_id not in others}
        parents = heirs | _waits_of(lineage)
        children = _children_of(listed)
        coming = left | _descendants(others | heirs.keys() | left, children)
        awaited = {parent for waits in parents.values() for parent in waits} - others - coming - {name}
        unlisted = _unlisted(awaited, listed)
        coming |= self._oldest_of(unlisted).intersection(unlisted)
        # If a descendant of the lost partition is not among its seeds, nothing is left to read in it.
        coming |= _missed(lineage, awaited - _descendants({name}, children), listed)
        awaited_by = dict(parents)
        holds = _holds(parents, left & parents.keys(), left, _unread(lineage, gone), others)
        # The entry may lead to a parent that seems to be lost, so the partition also waits for that parent.
        coming |= {parent for held in holds for parent in awaited_by[held]} - others - {name}
        return coming, holds

    def after_end(
        self, lineage: Lineage, name: str, children: Sequence[Child]
    ) -> tuple[dict[str, str], set[str]]:
        """Find what partitions wait for after a partition ends; the result is passed to `Lineage.retire`.

        The partitions are the children of the ended partition, and those that already wait for it.

        Args:
            lineage: The lineage, which still contains the ended partition.
            name: The partition.
            children: All its children.

        Returns:
            A mapping from these partitions to entries, and the lost parents for which none of these
            partitions waits. A partition must wait for its entry as if the entry were a parent.
        """
        fresh = {child.partition_id: child.parents for child in children if child.partition_id not in lineage}
        waiting = {entry.partition_id: entry.parents for entry in lineage.waiting_for(name)}
        waits, known = fresh | waiting, _Either(lineage, fresh)
        undiscovered = {parent for parents in waits.values() for parent in parents if parent not in known}
        # The partition is not a parent of these. They waited for it only because it may have led to them.
        unnamed = waiting.keys() - {child.partition_id for child in children}
        if not undiscovered and not unnamed:
            return {}, undiscovered
        listed = parents_of(self._partitions())
        gone, left = self._gone((lineage.listed() | fresh.keys()) - {name}, listed)
        unread = unnamed | {child for child, parents in waits.items() if not undiscovered.isdisjoint(parents)}
        held = (left & fresh.keys()) | (unread & left.union(gone))
        holds = {}
        if held:
            holds = _holds(fresh | _waits_of(lineage), held, left, _unread(lineage, gone), known)
        leading = _Either(known, left, self._oldest_of(_unlisted({name}, listed)))
        still = self._oldest_of(_unlisted(undiscovered, listed))
        # The search goes from the few parents upwards: the whole listing is much larger.
        lost = {parent for parent in undiscovered - still if not _leads(leading, parent, listed)}
        lost -= {parent for child in holds for parent in waits[child]}
        if lineage.audited is None:
            return holds, lost - self._unclear(lost, listed)
        return holds, lost - _missed(lineage, lost, listed)

    def stranded(self, lineage: Lineage) -> list[str]:
        """Return the awaited parents that no longer exist and were never listed.

        An audit calls this method. The result is empty as long as an entry that is being read no longer
        exists, because the descendants of that entry become known when it is read. An entry that waits for
        such a parent does not count, because it is never read.

        Args:
            lineage: The lineage after the audit.
        """
        entries = {entry.partition_id for entry in lineage}
        awaited = {parent for waits in _waits_of(lineage).values() for parent in waits} - entries
        if not awaited:
            return []
        listed = parents_of(self._partitions())
        unlisted = _unlisted(awaited, listed)
        lost = set(unlisted) - self._oldest_of(unlisted)
        if not lost:
            return []
        gone = _unread(lineage, self._gone(lineage.listed(), listed)[0])
        return [] if set(gone) - _waits_of(lineage).keys() else sorted(lost)

    def _unclear(self, names: Collection[str], listed: _Parents) -> set[str]:
        """Return those partitions of `names` that may descend from an unlisted partition.

        No partition in `names` is known to descend from an entry of the lineage.
        """
        above = {name: reach([name], listed) for name in names}
        unlisted = {one for one in set[str]().union(*above.values()) if one not in listed}
        late = self._oldest_of(sorted(unlisted)) & unlisted
        return {name for name in names if not above[name].isdisjoint(late)}

    def _gone(self, names: Collection[str], listed: _Parents) -> tuple[list[str], set[str]]:
        """Return the partitions that no longer exist, and those of their descendants that still exist.

        If the current call has already asked about more partitions, the result contains the
        descendants of all these partitions. Therefore, a partition may wait for an entry that is
        not its ancestor. An unnecessary wait delays the start of a partition, but does not prevent
        the start.
        """
        unlisted = _unlisted(names, listed)
        if not self._asked.issuperset(unlisted):
            left = self._oldest_of(unlisted)
            self._asked, self._readable = set(unlisted), left.intersection(unlisted)
            self._left = self._oldest_of(sorted(self._asked - self._readable)) if self._readable else left
        gone = [name for name in unlisted if name not in self._readable]
        return gone, self._left if gone else set()

    def _oldest_of(self, gone: Sequence[str]) -> set[str]:
        return {seed.partition_id for seed in self._oldest(gone)} if gone else set()


class _Either:
    """The partitions that at least one of several collections contains, without a copy of the collections."""

    def __init__(self, *parts: Container[str]) -> None:
        self._parts = parts

    def __contains__(self, name: object) -> bool:
        return any(name in part for part in self._parts)


def _leads(leading: Container[str], name: str, listed: _Parents) -> bool:
    """Return whether a partition is one of `leading`, or descends from one of them."""
    return any(one in leading for one in reach([name], listed, leading))


def _unlisted(names: Iterable[str], listed: _Parents) -> list[str]:
    return sorted({name for name in names if name not in listed})


def _missed(lineage: Lineage, names: Collection[str], listed: _Parents) -> set[str]:
    """Return the missed partitions in `names`; an audit starts these partitions.

    A partition was missed if it was never read and does not descend from an entry of the lineage.
    """
    there = {name for name in names if name in listed}
    if lineage.audited is None or not there:
        return set()
    return there - ancestors_read(tracked(lineage), listed)[0]


def _unread(lineage: Lineage, names: Sequence[str]) -> list[str]:
    """Return the partitions that may still name children: those that were not read to their end.

    If an ended partition no longer exists, the service cannot name more of its children.
    """
    return [name for name in names if (ending := lineage.ending(name)) is None or not ending.children]


def _waits_of(lineage: Lineage) -> dict[str, tuple[str, ...]]:
    return {entry.partition_id: entry.parents for entry in lineage if isinstance(entry, Waiting)}


def _holds(
    parents: dict[str, tuple[str, ...]],
    names: Collection[str],
    left: Collection[str],
    gone: Sequence[str],
    known: Container[str],
) -> dict[str, str]:
    """For each partition, find a lost entry of the lineage for which the partition can wait.

    The lost entry must not itself wait for the partition; otherwise both would wait for ever. If
    the lost entry waits for a partition that is not in the lineage, the ancestors of this partition
    are unknown. A lost partition may be one of these ancestors, but a partition that still exists
    cannot. Therefore, a lost partition does not wait for such an entry.

    Args:
        parents: Maps each partition to the partitions for which it waits, now or later. The entries that are
            found are added to this mapping.
        names: The partitions.
        left: The partitions that still exist, although they descend from lost ones.
        gone: Entries of the lineage that no longer exist.
        known: The entries of the lineage, and the partitions that are added to it.
    """
    holds: dict[str, str] = {}
    reached: dict[str, set[str]] = {}
    for name in sorted(names):
        for other in reversed(gone):
            waits = reached.get(other)
            if waits is None:
                waits = reached[other] = reach([other], parents)
            if name not in waits and (name in left or all(one in known for one in waits)):
                holds[name] = other
                parents[name] = (*parents.get(name, ()), other)
                # The partition now also waits for `other`, and so does everything that waits for it.
                reached = {one: waits for one, waits in reached.items() if name not in waits}
                break
    return holds


def _children_of(listed: _Parents) -> dict[str, list[str]]:
    """Map each parent in a listing to its listed children."""
    children: dict[str, list[str]] = {}
    for name, parents in listed.items():
        for parent in parents:
            children.setdefault(parent, []).append(name)
    return children


def _descendants(roots: Iterable[str], children: Mapping[str, Sequence[str]]) -> set[str]:
    """Return all listed partitions that descend from `roots`."""
    return reach((child for root in roots for child in children.get(root, ())), children)
