"""Makes the first lineage of a feed from a start position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from multiclouddb_api import AtTime, Beginning, MulticloudDbError, invalid_request
from multiclouddb_spi.continuation.entry import Entry
from multiclouddb_spi.continuation.follow import begun
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.contract import Feed, FeedStart, Seed
from multiclouddb_spi.faults import no_partition_named

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
        raise invalid_request(field, f"is {ahead:.0f} s ahead of the service's clock", way_out)
