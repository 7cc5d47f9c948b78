"""Defines the state of a feed, which a token keeps: a lineage, a retired partition, or the end of the feed.

It comes from a start position (`resolve_start`) or from a token (`state_from_json`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias, assert_never

from attrs import frozen

from multiclouddb_api import AtTime, Beginning, ErrorReason, MulticloudDbError, Now, invalid_request
from multiclouddb_spi.batch import Child
from multiclouddb_spi.continuation.entry import Audited, Entry, Stage
from multiclouddb_spi.continuation.lineage import Lineage, Rules
from multiclouddb_spi.continuation.token import to_micros
from multiclouddb_spi.contract import Feed, FeedStart, Seed
from multiclouddb_spi.cursor import Cursor, InvalidCursor
from multiclouddb_spi.faults import no_partition_named


@frozen
class Retired:
    """The only partition that was read has ended.

    The token keeps this state, so each later read with the token reports the end again.

    Attributes:
        partition_id: The service's own id of the partition.
        children: The known children; reading continues with these children.
        watch: The ended partition, as long as more of its children are searched for; else None.
    """

    partition_id: str
    children: tuple[Child, ...]
    watch: Entry | None = None


def retired(lineage: Lineage, partition_id: str, children: Sequence[Child], *, complete: bool) -> Retired:
    """Make the state of a feed that reads a single partition, after this partition has ended."""
    found = tuple(lineage.fresh(partition_id, children))
    if complete:
        return Retired(partition_id, found)
    said, named = (lineage.cursor(partition_id),), tuple(child.partition_id for child in found)
    return Retired(partition_id, found, Entry(partition_id, Stage.END, said, children=named))


@frozen(eq=False, repr=False)
class FeedOver:
    """The state in which every partition has ended and nothing follows.

    Attributes:
        reason: The reason why the feed ended, on one line.
    """

    reason: str


FeedState: TypeAlias = Lineage | Retired | FeedOver


def end_to_json(state: Retired | FeedOver) -> Cursor:
    """Return the end of a feed or partition in the form that a token stores."""
    match state:
        case Retired(partition_id, children, watch):
            value: dict[str, Cursor] = {
                "retired": partition_id,
                "children": [[child.partition_id, list(child.parents), child.cursor] for child in children],
            }
            if watch is not None:
                here = {child.partition_id for child in children}
                value["watch"] = [watch.cursor, watch.looks, [n for n in watch.children if n not in here]]
            return value
        case FeedOver(reason):
            return {"over": reason}


def state_from_json(value: Any, rules: Rules) -> FeedState:
    """Return the state that `end_to_json` or `Lineage.to_json` has converted."""
    end = end_from_json(value)
    if end is not None:
        return end
    lineage = Lineage.from_json(value, rules)
    if not len(lineage):
        raise InvalidCursor("it contains no partition")
    return lineage


def end_from_json(value: Any) -> Retired | FeedOver | None:
    """Return the state if it is the end of a feed or partition, else None."""
    match value:
        case {"retired": str() as partition_id, "children": [*children]}:
            found = tuple(_child(child) for child in children)
            return Retired(partition_id, found, _watch(partition_id, found, value.get("watch")))
        case {"over": str() as reason}:
            return FeedOver(reason)
        case _:
            return None


def _child(item: Any) -> Child:
    match item:
        case [str() as partition_id, [*parents], cursor] if all(
            isinstance(parent, str) for parent in parents
        ):
            return Child(partition_id, tuple(parents), cursor)
        case _:
            raise InvalidCursor("a child partition has an unknown form")


def _watch(partition_id: str, children: tuple[Child, ...], value: Any) -> Entry | None:
    match value:
        case None:
            return None
        case [cursor, int() as looks, [*others]] if (
            type(looks) is int and 0 <= looks < 2**53 and all(isinstance(other, str) for other in others)
        ):
            named = (*others, *(child.partition_id for child in children))
            said = () if cursor is None else (cursor,)  # it was lost
            return Entry(partition_id, Stage.END, said, children=named, looks=looks)
        case _:
            raise InvalidCursor("the search for children is unreadable")


@frozen(eq=False, repr=False)
class EndedFeed:
    """The content of a token after which no change can follow; the service is not asked.

    Attributes:
        token: The request's token.
        over: Why the feed ended.
        skipped: Undecodable records that the token skips.
    """

    token: str
    over: FeedOver
    skipped: tuple[tuple[str, str], ...]


_AHEAD: Final = timedelta(seconds=60)


def resolve_start(
    feed: Feed,
    position: FeedStart,
    clock: Callable[[], datetime | None],
    start: Callable[[], Sequence[Seed]],
    *,
    only: str | None = None,
    field: str = "AtTime.utc",
) -> Lineage:
    """Convert a start position into a lineage."""
    now = None if isinstance(position, Beginning) else clock()
    if isinstance(position, AtTime):
        check_not_ahead(position.utc, now, field, "pass a time in the past, or start now")
    audited = begun(feed, position, now)
    seeds = start()
    if only is None:
        return Lineage.from_seeds(seeds, feed, audited)
    mine = [Entry.read(seed.partition_id, seed.cursor) for seed in seeds if seed.partition_id == only]
    if not mine:
        raise not_startable()
    return Lineage(mine, feed, root=only)


def begun(feed: Feed, position: FeedStart, now: datetime | None) -> Audited | None:
    """Return what the token of a new feed keeps for the search; None where nothing is ever named late."""
    if not feed.names_late:
        return None
    match position:
        case Beginning():
            since = None
        case AtTime(utc):
            since = utc
        case Now():
            since = now
        case _:
            assert_never(position)
    return Audited(None if since is None else to_micros(since), int(time.time()))


def not_startable() -> MulticloudDbError:
    """Make the error for a partition that cannot be started."""
    return invalid_request(
        "PhysicalPartition.partition_id",
        "names no partition that can be read from this start position",
        "list the open ones with client.list_physical_partitions(address)",
    )


def check_has_partitions(lineage: Lineage) -> Lineage:
    """Return the given lineage, but only if it contains a partition of the stream."""
    if not len(lineage):
        raise no_partition_named()
    return lineage


def check_not_ahead(
    moment: datetime, now: datetime | None, field: str, way_out: str = "pass a time in the past"
) -> None:
    """Refuse a start time in the future."""
    if now is not None and moment - now > _AHEAD:
        ahead = (moment - now).total_seconds()
        raise invalid_request(
            field, f"is {ahead:.0f} s ahead of the service's clock", way_out, ErrorReason.CLOCK
        )
