"""Reads planned ranges as the tasks of the Spark source do: Arrow batches, with documents as JSON text."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from benchmarks.row import Done
from multiclouddb_api import ChangeFeedRequest, ClientConfig, Now, ResourceAddress

if TYPE_CHECKING:
    from multiclouddb_spi import Feed, Provider, Range

__all__ = ["AS_A_TASK", "plan_ranges", "read_arrow"]

AS_A_TASK: Final = "Planned ranges are read as a task of the Spark source reads them, in Arrow batches"
"""What the rows do, in the words of their descriptions."""

_SECONDS: Final = 120.0


def plan_ranges(config: ClientConfig, address: ResourceAddress, size: int, token: str) -> list[Range]:
    """Plan the ranges of a feed that contain this many changes, as the driver of the Spark source does.

    Args:
        config: The configuration of the client.
        address: The collection.
        size: The number of changes.
        token: The position before the first change.

    Raises:
        ValueError: Raised if the feed does not show all changes.
    """
    from multiclouddb_spi import Deadline, Planner, open_provider
    from multiclouddb_spi.continuation.lineage import Lineage
    from multiclouddb_spi.continuation.state import state_from_json
    from multiclouddb_spi.continuation.token import decode_token

    parts: list[Range] = []
    soon, planned = Deadline.after(_SECONDS), 0
    with closing(open_provider(config)) as provider:
        feed = _opened(provider, address)
        planner = Planner(provider, feed)
        lineage = state_from_json(decode_token(token).state, feed)
        assert isinstance(lineage, Lineage)
        while planned < size:
            step = planner.advance(lineage, None, soon)
            if soon.passed():
                raise ValueError(f"planned {planned:,} of {size:,} changes")
            if step.moved:
                parts += step.ranges()
                # A service that does not count its records was asked for everything up to its end.
                planned += size if step.records is None else step.records
                lineage = step.after
    return parts


def read_arrow(config: ClientConfig, address: ResourceAddress, parts: list[Range]) -> Done:
    """Connect, and read ranges as one task does; report the ids of their events."""
    from multiclouddb_api.arrow import events_to_arrow
    from multiclouddb_spi import collector_paused, open_provider, read_range

    count, ids = 0, list[Any]()
    with closing(open_provider(config)) as provider:
        feed = _opened(provider, address)
        for part in parts:
            for batch in read_range(provider, feed, part):
                with collector_paused():
                    arrow = batch.arrow(0, len(batch))
                    if arrow is None:
                        arrow = events_to_arrow(batch.events(0, len(batch)))
                count += len(arrow)
                ids.append(arrow.column("event_id"))
    return Done(count, ids=(text for column in ids for text in column.to_pylist()))


def _opened(provider: Provider, address: ResourceAddress) -> Feed:
    from multiclouddb_spi import Deadline
    from multiclouddb_spi.request_check import spec_of

    spec = spec_of(provider, ChangeFeedRequest(address, Now()), "read")
    return provider.open_feed(spec, Deadline.after(_SECONDS))
