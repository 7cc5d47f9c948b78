"""Lists the partitions in a token together with their positions."""

from __future__ import annotations

from datetime import datetime

import attrs

from multiclouddb_api import MulticloudDbError, PhysicalPartition, invalid_request
from multiclouddb_spi import Cursor, Feed, InvalidCursor
from multiclouddb_spi.continuation.entry import AnyEntry, Plan, Stage
from multiclouddb_spi.continuation.lineage import INSPECTED, Lineage
from multiclouddb_spi.continuation.state import FeedOver, Retired, state_from_json
from multiclouddb_spi.continuation.token import Envelope, encode_token, scope_text

__all__ = ["Standing", "ending", "lineage_of", "one_partition", "read_standings"]


@attrs.frozen
class Standing:
    """One partition in a token.

    Attributes:
        partition_id: The service's own id of the partition.
        state: `active`, `drained` (its children are not named yet), `watched` (some of its children are
            named, and the engine is searching for more), `waiting` (for its parents), `next` (a child of a
            retired partition), or `scan` (the part of a snapshot that is not divided into segments yet).
        cursors: The position of the partition; several positions if its parents gave different positions.
        parents: The parents for which the partition waits.
        entry: The partition's entry in the lineage, or None for a child of a retired partition.
    """

    partition_id: str
    state: str
    cursors: tuple[Cursor, ...]
    parents: tuple[str, ...] = ()
    entry: AnyEntry | None = None

    def describe(self, feed: Feed) -> tuple[str, datetime | None]:
        """Return the position as readable text, and the time of the position.

        No event after the position is older than this time.
        """
        try:
            positions = [feed.describe(cursor) for cursor in self.cursors]
        except InvalidCursor:
            return "unreadable", None
        times = [position.time for position in positions if position.time is not None]
        return ", ".join(position.text for position in positions), min(times, default=None)


def read_standings(envelope: Envelope) -> list[Standing]:
    """Return the partitions in the order in which they are read; an empty result if the feed has ended.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if the state is damaged.
    """
    match _state(envelope):
        case FeedOver():
            return []
        case Retired(_, children):
            return [
                Standing(child.partition_id, "next", (child.cursor,), child.parents) for child in children
            ]
        case Lineage() as lineage:
            return [_standing(entry) for entry in lineage]


def lineage_of(envelope: Envelope) -> Lineage | None:
    """Return the partitions of a feed that continues; None for a feed that has ended."""
    state = _state(envelope)
    return state if isinstance(state, Lineage) else None


def ending(envelope: Envelope) -> str | None:
    """Return a text that says how the token's feed or partition ended; None if it has not ended."""
    match _state(envelope):
        case FeedOver(reason):
            return f"the feed is over: {reason}"
        case Retired(partition_id):
            return f"partition {partition_id} has ended; its children follow"
        case _:
            return None


def one_partition(envelope: Envelope, standing: Standing) -> str:
    """Return a token for only one active partition."""
    assert standing.entry is not None
    alone = Lineage([standing.entry], INSPECTED)
    return encode_token(
        attrs.evolve(
            envelope,
            scope=scope_text(PhysicalPartition("any"), standing.partition_id),
            state=alone.to_json(),
        )
    )


def _state(envelope: Envelope) -> Lineage | Retired | FeedOver:
    try:
        return state_from_json(envelope.state, INSPECTED)
    except InvalidCursor as error:
        raise _damaged(error) from error


def _standing(entry: AnyEntry) -> Standing:
    if isinstance(entry, Plan):
        return Standing(entry.partition_id, "scan", (), entry=entry)
    if entry.stage is Stage.WAIT:
        return Standing(entry.partition_id, "waiting", entry.said, entry.waits, entry)
    state = "active"
    if entry.stage is Stage.END:
        state = "watched" if entry.children else "drained"
    return Standing(entry.partition_id, state, entry.said, entry=entry)


def _damaged(error: InvalidCursor) -> MulticloudDbError:
    return invalid_request(
        "continuation_token", f"is damaged ({error})", "pass a page's continuation_token unchanged"
    )
