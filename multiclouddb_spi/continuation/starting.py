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

__all__ = ["check_has_partitions", "check_not_ahead", "not_startable", "resolve_start"]

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
    """Convert a start position into a lineage.

    Args:
        feed: The feed that is started.
        position: The start position.
        clock: A function that asks for the service's time before the start, like `Feed.clock`.
        start: A function that asks for the first partitions, like `Feed.start`.
        only: The only partition to start, or None for the whole scope of the feed.
        field: The caller's name for the time in `AtTime`, used in the error.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` for a time in the future, or for a partition that cannot be
            started.
        Exception: The error that `clock` or `start` raised.
    """
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
    """Return the given lineage, but only if it contains a partition of the stream.

    Args:
        lineage: The lineage, to which no scan was added yet.

    Raises:
        ProviderFault: `TRANSIENT_FAILURE` if the lineage is empty. No change could be read later
            from a lineage without a partition of the stream, not even after a scan.
    """
    if not len(lineage):
        raise no_partition_named()
    return lineage


def check_not_ahead(
    moment: datetime, now: datetime | None, field: str, way_out: str = "pass a time in the past"
) -> None:
    """Refuse a start time in the future.

    Args:
        moment: The start time that the caller has passed.
        now: The service's time, or None if the service does not report its time; such a service checks the
            start time itself.
        field: The caller's name for the time, used in the error.
        way_out: What the user can do instead.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the time is more than 60 s ahead of the service's clock.
    """
    if now is not None and moment - now > _AHEAD:
        ahead = (moment - now).total_seconds()
        raise invalid_request(field, f"is {ahead:.0f} s ahead of the service's clock", way_out)
