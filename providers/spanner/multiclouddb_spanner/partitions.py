"""Finds start positions for partitions that no parent has named.

If no parent has named a partition, the partition was missed, or remains after its ancestors have
expired.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from multiclouddb_spanner.cancel_scope import CancelScope
from multiclouddb_spanner.errors import is_past
from multiclouddb_spanner.position import Place, cursor_of
from multiclouddb_spanner.records import Children, Item
from multiclouddb_spanner.source import Source
from multiclouddb_spi import Deadline, Seed

__all__ = ["oldest_left", "seeds_of_missed"]

_MOST_ANCESTORS: Final = 10_000


def seeds_of_missed(
    source: Source, missed: Sequence[str], at: int, since: int, deadline: Deadline, scope: CancelScope
) -> list[Seed]:
    """Return start positions for the partitions that an audit found, and for their ancestors.

    Only ancestors that ended after the start of the feed are included. When a parent is read, its
    records name all its children. Therefore the ancestors of missed partitions were missed as well.

    Args:
        source: The change stream.
        missed: The partitions.
        at: A time at which the partitions are alive.
        since: Changes older than this time are not needed.
        deadline: The time limit.
        scope: An object through which another thread can cancel the call.
    """
    now = source.client.now(deadline, scope)
    bound = max(since, source.earliest(now, deadline, scope))
    seeds: dict[str, Seed] = {}
    pending = [(name, at) for name in missed]
    while pending and len(seeds) < _MOST_ANCESTORS:
        name, alive_at = pending.pop()
        if name in seeds:
            continue
        begin, _ = source.interval(name, now, deadline, scope, alive_at) or (alive_at, alive_at)
        parents = _parents(source, name, begin, deadline, scope) if begin > bound else ()
        seeds[name] = Seed(name, parents, cursor_of(Place.at(max(begin, bound))))
        pending += [(parent, begin - 1) for parent in parents]
    return list(seeds.values())


def _parents(
    source: Source, name: str, begin: int, deadline: Deadline, scope: CancelScope
) -> tuple[str, ...]:
    """Return the parents of a partition.

    The record that names the parents belongs to a partition that ended when this partition started.

    The result is empty if the record that names the parents has expired.
    """
    try:
        before = source.partitions(begin - 1, deadline, scope)
    except Exception as error:
        if not is_past(error):
            raise
        return ()
    after = set(source.partitions(begin, deadline, scope))
    for candidate in before:
        if candidate in after:
            continue

        def parents_in(item: Item, candidate: str = candidate) -> tuple[str, ...] | None:
            if isinstance(item, Children) and name in item.parents:
                return item.parents[name] or (candidate,)
            return None

        parents = source.find_first(candidate, begin - 1, begin, parents_in, deadline, scope)
        if parents is not None:
            return parents
    return ()


def oldest_left(
    source: Source, names: Sequence[str], now: int, deadline: Deadline, scope: CancelScope
) -> list[Seed]:
    """Return new start positions for partitions whose old positions have expired.

    Args:
        source: The change stream.
        names: The partitions.
        now: The service's time.
        deadline: The time limit.
        scope: An object through which another thread can cancel the call.
    """
    earliest, alive = source.oldest(now, deadline, scope)
    # If later changes expire before they are read, this is a new gap, which is reported.
    start = cursor_of(Place.at(earliest))
    open_then = set(alive)
    seeds = {name: Seed(name, (), start) for name in names if name in open_then}
    gone = False
    for name in names:
        if name in seeds:
            continue
        interval = source.interval(name, now, deadline, scope)
        if interval is None or interval[1] < earliest:
            gone = True
        else:
            seeds[name] = Seed(name, (), cursor_of(Place.at(max(earliest, interval[0]))))
    if gone:
        seeds |= {name: Seed(name, (), start) for name in alive if name not in seeds}
    return list(seeds.values())
