"""What stands behind a token: a running lineage, a retired partition, or the end of the feed."""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs

from multiclouddb_spi.checkpoint.lineage import Join, Lineage
from multiclouddb_spi.contract import Child
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.fault import InvalidCursor

__all__ = ["FeedOver", "FeedState", "Retired", "end_from_json", "state_from_json", "state_to_json"]


@attrs.frozen
class Retired:
    """The one physical partition that was read has ended; kept so that reading again repeats it.

    Attributes:
        partition_id: The service's own id.
        children: Where to go on.
    """

    partition_id: str
    children: tuple[Child, ...]


@attrs.frozen
class FeedOver:
    """Every partition has ended and nothing follows.

    Attributes:
        reason: Why; one line.
    """

    reason: str


FeedState: TypeAlias = Lineage | Retired | FeedOver


def state_to_json(state: FeedState) -> Cursor:
    """The state as it stands in a token: a list for a lineage, an object for an end."""
    match state:
        case Lineage():
            return state.to_json()
        case Retired(partition_id, children):
            return {
                "retired": partition_id,
                "children": [[child.partition_id, list(child.parents), child.cursor] for child in children],
            }
        case FeedOver(reason):
            return {"over": reason}


def state_from_json(value: Any, join: Join) -> FeedState:
    """The inverse of `state_to_json`.

    Raises:
        InvalidCursor: The value was not made by `state_to_json`.
    """
    end = end_from_json(value)
    return Lineage.from_json(value, join) if end is None else end


def end_from_json(value: Any) -> Retired | FeedOver | None:
    """The state when reading has ended there, else None.

    Raises:
        InvalidCursor: A child is unreadable.
    """
    match value:
        case {"retired": str() as partition_id, "children": [*children]}:
            return Retired(partition_id, tuple(_child(child) for child in children))
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
