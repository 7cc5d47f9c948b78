"""Partitions that are not known from their parents: missed ones, and what retention has left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from multiclouddb_spanner.hold import Hold
from multiclouddb_spanner.position import Place, cursor_of
from multiclouddb_spanner.records import Children
from multiclouddb_spanner.stream import Stream
from multiclouddb_spi import Deadline, Seed

__all__ = ["oldest_left", "seeds_of_missed"]

_MOST_ANCESTORS: Final = 10_000


def seeds_of_missed(
    stream: Stream, missed: Sequence[str], at: int, since: int, deadline: Deadline, hold: Hold
) -> list[Seed]:
    """Where to start partitions that an audit has found, with all that they came from since the feed began.

    A partition that came from one that was read would have been named by it. So what it came from was missed
    as well.

    Args:
        stream: Whose.
        missed: The partitions.
        at: A moment at which they are alive.
        since: Nothing older is wanted.
        deadline: When it has to be over.
        hold: Who asks.
    """
    now = stream.calls.now(deadline, hold)
    bound = max(since, stream.earliest(now, deadline, hold))
    seeds: dict[str, Seed] = {}
    pending = list(missed)
    while pending and len(seeds) < _MOST_ANCESTORS:
        name = pending.pop()
        if name in seeds:
            continue
        begin, _ = stream.interval(name, now, deadline, hold) or (at, at)
        parents = _parents(stream, name, begin, deadline, hold) if begin > bound else ()
        seeds[name] = Seed(name, parents, cursor_of(Place.at(max(begin, bound))))
        pending += parents
    return list(seeds.values())


def _parents(stream: Stream, name: str, begin: int, deadline: Deadline, hold: Hold) -> tuple[str, ...]:
    """The parents of a partition: those that ended where it began say it."""
    before = stream.partitions(begin - 1, deadline, hold)
    after = set(stream.partitions(begin, deadline, hold))
    for candidate in before:
        if candidate in after:
            continue
        window = stream.window(candidate, begin - 1, begin, deadline, hold)
        try:
            while (items := window.next()) is not None:
                for item in items:
                    if isinstance(item, Children) and name in item.parents:
                        return item.parents[name] or (candidate,)
        finally:
            window.cancel()
    return ()


def oldest_left(stream: Stream, names: Sequence[str], now: int, deadline: Deadline, hold: Hold) -> list[Seed]:
    """Where partitions can be read on whose positions have expired.

    Args:
        stream: Whose.
        names: The partitions.
        now: The service's time.
        deadline: When it has to be over.
        hold: Who asks.
    """
    earliest = stream.earliest(now, deadline, hold)
    # It moves on while the answer is read.
    start = cursor_of(Place(Place.at(earliest).cut, horizon=True))
    alive = stream.partitions(earliest, deadline, hold)
    seeds = {name: Seed(name, (), start) for name in names if name in alive}
    gone = False
    for name in names:
        if name in seeds:
            continue
        interval = stream.interval(name, now, deadline, hold)
        if interval is None or interval[1] < earliest:
            gone = True
        else:
            seeds[name] = Seed(name, (), cursor_of(Place.at(max(earliest, interval[0]))))
    if gone:
        seeds |= {name: Seed(name, (), start) for name in alive if name not in seeds}
    return list(seeds.values())
