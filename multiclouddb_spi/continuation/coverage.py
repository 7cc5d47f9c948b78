"""Audits the coverage of a token: finds the open partitions that the token does not cover.

A token covers its own partitions and all their descendants. A service may list a partition late,
and a token does not contain a partition that was never listed. An open partition cannot have been
read to its end. So there are three cases for a listed open partition: it is in the lineage, it
descends from an entry of the lineage, or it was missed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache

from multiclouddb_api import AtTime, Beginning, LogicalPartition, Now, PartitionFoundLate
from multiclouddb_spi.continuation.entry import Active, Audited, AwaitingChildren, Plan, Waiting
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.moment import to_micros, to_moment
from multiclouddb_spi.continuation.reach import parents_of, reach
from multiclouddb_spi.contract import Feed, FeedStart, Partition, PartitionState, Seed, Tracked
from multiclouddb_spi.deadline import Deadline

__all__ = [
    "add_uncovered",
    "ancestors_read",
    "audit_failed",
    "begun",
    "find_uncovered",
    "is_audit_due",
    "missed_by_parents",
    "tracked",
]


def begun(feed: Feed, position: FeedStart, now: datetime | None) -> Audited | None:
    """Return the audit data for the token of a new feed.

    Return None for a feed of one partition key, because such a feed is not audited.

    Args:
        feed: The feed.
        position: The start position.
        now: The service's time, requested before the feed starts; None if the service does not
            report its time.
    """
    if isinstance(feed.spec.scope, LogicalPartition):
        return None
    match position:
        case Beginning():
            since = None
        case AtTime(utc):
            since = utc
        case Now():
            since = now
    return Audited(None if since is None else to_micros(since), int(time.time()), retired=True)


def is_audit_due(audited: Audited | None, every: float) -> bool:
    """Return whether an audit is due now.

    The time of an audit is measured with this machine's clock, which is used for no other decision.

    Args:
        audited: The audit data of the token, or None for a feed that is not audited.
        every: The number of seconds from one audit to the next.
    """
    if audited is None:
        return False
    since = time.time() - audited.at
    # If the clock was set back, audits must not be delayed for long.
    return since >= (every / 10 if audited.retired else every) or since < -every / 10


def find_uncovered(feed: Feed, lineage: Lineage, deadline: Deadline) -> list[Seed] | None:
    """Ask a feed for the partitions that a lineage does not cover.

    Args:
        feed: The feed of the lineage.
        lineage: The lineage of a whole collection.
        deadline: The time limit.

    Returns:
        The result of `Feed.uncovered`: the seeds of the uncovered partitions. None if the service
        cannot answer.
    """
    since = lineage.audited.since if lineage.audited is not None else None
    return feed.uncovered(tracked(lineage), None if since is None else to_moment(since), deadline)


def add_uncovered(feed: Feed, lineage: Lineage, seeds: Sequence[Seed] | None) -> list[PartitionFoundLate]:
    """Add the partitions that an audit found to the lineage, and record the time of the audit.

    Args:
        feed: The feed of the lineage.
        lineage: The lineage.
        seeds: The partitions that `Feed.uncovered` returned.

    Returns:
        A notice for each new partition.
    """
    assert lineage.audited is not None
    # The listing was incomplete, so there is no answer now; a later listing may be complete.
    lineage.audited = Audited(lineage.audited.since, int(time.time()), retired=seeds is None)
    found = {seed.partition_id: seed for seed in seeds or ()}
    return [
        PartitionFoundLate(feed.public_id(name), feed.describe(found[name].cursor).text)
        for name in lineage.add(list(found.values()))
    ]


def audit_failed(lineage: Lineage) -> None:
    """Record that an audit failed; the next audit is then due soon, as after the end of a partition."""
    assert lineage.audited is not None
    lineage.audited = Audited(lineage.audited.since, int(time.time()), retired=True)


def tracked(lineage: Lineage) -> dict[str, Tracked]:
    """Prepare a lineage for `Feed.uncovered`: omit entries and parents that a listing cannot contain."""
    unlisted = {entry.partition_id for entry in lineage} - lineage.listed()
    return {
        entry.partition_id: _tracked(entry, unlisted)
        for entry in lineage
        if entry.partition_id not in unlisted and not isinstance(entry, Plan)
    }


def _tracked(entry: Active | AwaitingChildren | Waiting, unlisted: Collection[str]) -> Tracked:
    match entry:
        case Active(partition_id, cursor):
            return Tracked(partition_id, (cursor,))
        case AwaitingChildren(partition_id, cursor, children):
            return Tracked(partition_id, (cursor,), drained=True, has_children=bool(children))
        case Waiting(partition_id, said, parents):
            return Tracked(partition_id, said, tuple(name for name in parents if name not in unlisted))


def missed_by_parents(
    tracked: Mapping[str, Tracked], listed: Iterable[Partition], is_gone: Callable[[str], bool]
) -> dict[str, tuple[str, ...]] | None:
    """Find the partitions that a token does not cover; the search follows the listed parents.

    Pure. The search begins at each open partition. It also begins at each parent for which a
    partition of the token still waits. Then the search goes from each partition to its parents. If
    the search reaches a partition of the token, the token covers the partition at which the search
    began. If the search reaches an ancestor that was read, the feed missed the descendants of this
    ancestor that the search found.

    Args:
        tracked: Every partition in the token.
        listed: The partitions that the service lists. The listing may be incomplete, and each of its pages
            may show the state at a different time.
        is_gone: A function that asks the service whether an unlisted partition no longer exists. If
            the partition still exists, the service does not list it yet. The audit cannot decide
            whether descendants of an existing but unlisted partition were missed. The function is
            called only if a partition may have been missed.

    Returns:
        A mapping from each missed partition to those of its parents that were also missed. None if the
        listing is incomplete: it lacks an ancestor of an entry of the token, or a partition of the token
        whose children are not known. Then a partition that was read, or will be discovered, may look like a
        missed partition.
    """
    listed = list(listed)
    parents = parents_of(listed)
    if any(name not in parents for name, entry in tracked.items() if not entry.has_children):
        return None
    read, unlisted = ancestors_read(tracked, parents)
    roots = [partition.partition_id for partition in listed if partition.state is PartitionState.OPEN]
    roots += [name for entry in tracked.values() for name in entry.parents if name in parents]
    ends = read | tracked.keys()  # built once; for each root, the work would grow with the square
    branches = [reach([name], parents, ends) for name in dict.fromkeys(roots)]
    branches = [rest for branch in branches if not branch & tracked.keys() and (rest := branch - read)]
    if not branches:
        return {}
    is_gone = cache(is_gone)
    if not all(map(is_gone, unlisted)):
        return None
    known = [branch for branch in branches if all(map(is_gone, sorted(branch - parents.keys())))]
    found = set[str]().union(*known) & parents.keys()
    return {name: tuple(filter(found.__contains__, parents[name])) for name in parents if name in found}


def ancestors_read(
    tracked: Mapping[str, Tracked], parents: Mapping[str, Sequence[str]]
) -> tuple[set[str], list[str]]:
    """Return the ancestors of a token's partitions; the feed has read all of these ancestors.

    Returns:
        Two collections: the ancestors, and the unlisted partitions. An unlisted partition is an
        ancestor or a partition of the token, and the service does not list it. The ancestors of an
        unlisted partition are not known.
    """
    named_by = (
        parent
        for name, entry in tracked.items()
        for parent in parents.get(name, ())
        if parent not in entry.parents
    )
    read = reach(named_by, parents, tracked) - tracked.keys()
    return read, sorted(name for name in read | tracked.keys() if name not in parents)
