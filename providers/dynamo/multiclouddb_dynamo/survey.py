"""States which shards exist, which are gone, and from where those can be read that nobody has read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from multiclouddb_api import Invalidated, Notice
from multiclouddb_dynamo.position import (
    EARLY_SECONDS,
    Horizon,
    Latest,
    Place,
    Start,
    cursor_of,
    place_of,
)
from multiclouddb_dynamo.shards import Shard, ShardMap, by_parent
from multiclouddb_dynamo.source import ReaderContext
from multiclouddb_dynamo.starts import LIFE_SECONDS, start_of
from multiclouddb_spi import Cursor, Deadline, Partition, PartitionState, Survey

# Every available record is younger than a day. An hour is subtracted, because a reader needs time to start.
_KEPT_SECONDS: Final = 23 * 3600
# A sink refuses this, because the table that its rows come from may be gone. Whether those were all records
# is not known: DynamoDB Local ends the shards of a deleted table without the records that nobody had read.
_OVER: Final = Invalidated(
    "the stream was disabled or its table deleted; what the service still delivered was read"
)


def survey_of_listing(
    source: ReaderContext,
    shards: Mapping[str, Shard],
    asked: Mapping[str, Cursor],
    expired: Collection[str],
    since: int | None,
    deadline: Deadline,
) -> Survey:
    """State what a listing shows; a shard is gone only if the service refuses it."""
    now = source.seconds()
    lost: dict[str, Shard] = {}
    if now is None:
        # Only the age of a position shows that an unread shard was trimmed, if the shard is still listed.
        lost = _refused(source.shards, shards, expired, deadline)
    gone = source.shards.gone((name for name in asked if name not in shards), deadline)
    hidden = [name for name in expired if name not in shards and name not in gone]
    starts = dict.fromkeys(hidden, cursor_of(Horizon(now)))
    starts |= {name: cursor_of(start_of(shards[name], Horizon(now))) for name in asked if name in shards}
    if asked and (gone or lost or not expired):
        there = {name: shard for name, shard in shards.items() if name not in lost}
        heights = _uncovered(there, asked.keys() - gone - lost.keys(), source.shards.settled)
        gone |= source.shards.gone((name for name in heights if name not in shards), deadline)
        starts |= _oldest(source.shards, there, heights, gone | lost.keys(), since, deadline)
    present = [_partition(shard, starts.get(name)) for name, shard in shards.items() if name not in lost]
    for name in hidden:  # these shards exist although the listing lacks them
        shard = source.shards.find(name)
        unknown = Partition(name, (), PartitionState.CLOSED, starts[name])
        present.append(unknown if shard is None else _partition(shard, starts[name]))
    told = {name: shard.parents for name, shard in lost.items()}
    final = _final(shards) - lost.keys() if source.shards.settled else ()
    return Survey(tuple(present), dict.fromkeys(gone) | told, final=dict.fromkeys(final, _OVER))


def survey_of_children(source: ReaderContext, asked: Mapping[str, Cursor], deadline: Deadline) -> Survey:
    """State the known children of ended shards; ask for more if the rate limit of the stream allows calls."""
    found = source.shards.discover(asked, deadline)
    listed, horizon = source.shards.listed, Horizon(source.seconds())
    present: dict[str, Partition] = {}
    # A listing for another shard may have named the children since the shard ended; they need no call.
    for name, children in ({name: source.shards.children(name) for name in asked} | found).items():
        place = horizon if asked[name] is None else place_of(asked[name])
        present |= {each.shard_id: _partition(each, cursor_of(start_of(each, place))) for each in children}
    childless = [name for name, children in found.items() if not children]
    gone = source.shards.gone((name for name in childless if name not in listed), deadline)
    final: dict[str, Notice | None] = {}
    if source.shards.settled:
        final = {name: _OVER for name in childless if name not in gone}
    return Survey(tuple(present.values()), dict.fromkeys(gone), final=final, answered=found.keys())


def _final(shards: Mapping[str, Shard]) -> set[str]:
    """Return the shards without children, where no more shards will be listed."""
    return shards.keys() - {shard.parent for shard in shards.values()}


def _uncovered(shards: Mapping[str, Shard], held: Collection[str], settled: bool) -> dict[str, int]:
    """Walk up from each last shard that descends from no held one; count the generations below."""
    read = set[str]()
    for name in held:
        above = _parent(shards, name)
        while above is not None and above not in read and above not in held:
            read.add(above)
            above = _parent(shards, above)
    heights: dict[str, int] = {}
    final = _final(shards) if settled else ()
    for shard in shards.values():
        way, above = list[str](), shard.shard_id if shard.last is None or shard.shard_id in final else None
        while above is not None and above not in held and above not in read:
            way.append(above)
            above = _parent(shards, above)
        if above is None or above in read:
            for height, name in enumerate(way):
                heights[name] = min(height, heights.get(name, height))
    return heights


def _parent(shards: Mapping[str, Shard], name: str) -> str | None:
    return shards[name].parent if name in shards else None


def _oldest(
    known: ShardMap,
    shards: Mapping[str, Shard],
    heights: Mapping[str, int],
    gone: Collection[str],
    since: int | None,
    deadline: Deadline,
) -> dict[str, Cursor]:
    """Return the positions before the oldest records of shards that nobody has read.

    The service is asked whether the oldest records of a shard are trimmed only if they may be a day old, and
    if no parent shows it: with a parent that is gone, the loss is known; a parent that exists is read first.
    """
    found, old = dict[str, Place](), list[Shard]()
    for name, height in heights.items():
        shard = shards.get(name)
        if shard is None:
            continue
        if shard.seen is None:  # the service gives no time, so the age of the shard is not known
            found[name] = Start(None)
            continue
        # A shard ends before its child begins, so each generation adds at most the life of one shard.
        oldest, kept = shard.seen - LIFE_SECONDS * (height + 1), shard.seen - _KEPT_SECONDS
        if since is not None and since - EARLY_SECONDS > max(oldest, kept):
            found[name] = Latest(since)
        elif oldest >= kept:
            found[name] = Start(max(0, oldest))
        elif shard.parent in gone:
            found[name] = Horizon(shard.seen)
        else:
            found[name] = Start(max(0, kept))
            if shard.parent not in heights:
                old.append(shard)
    found |= dict.fromkeys(known.trimmed(old, deadline), Start(0))
    return {name: cursor_of(place) for name, place in found.items()}


def _refused(
    known: ShardMap, shards: Mapping[str, Shard], names: Iterable[str], deadline: Deadline
) -> dict[str, Shard]:
    """Return the closed shards, and their closed descendants, that are listed but cannot be read."""
    children = by_parent(shards.values())
    lost = {name: shard for name, shard in shards.items() if name in known.lost}
    pending = [shards[name] for name in names if name in shards]
    while pending:
        pending = [shard for shard in pending if shard.last is not None]
        refused = known.unreadable([shard.shard_id for shard in pending], deadline)
        lost |= {name: shards[name] for name in refused}
        pending = [child for name in refused for child in children.get(name, ())]
    for shard in list(lost.values()):
        above = shard.parent
        while above is not None and above in shards and above not in lost:  # its ancestors are gone too (C2)
            lost[above] = shards[above]
            above = shards[above].parent
    return lost


def _partition(shard: Shard, oldest: Cursor) -> Partition:
    state = PartitionState.OPEN if shard.last is None else PartitionState.CLOSED
    return Partition(shard.shard_id, shard.parents, state, oldest)
