"""What stands behind a token: a running lineage, a retired partition, or the end of the feed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import attrs

from multiclouddb_spi.checkpoint.lineage import Join, Lineage, Waiting
from multiclouddb_spi.contract import Child
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.fault import InvalidCursor

__all__ = [
    "FeedOver",
    "FeedState",
    "Retired",
    "end_from_json",
    "lineage_from_json",
    "state_from_json",
    "state_to_json",
]


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
        InvalidCursor: The value was not made by `state_to_json`, or nothing would ever be read from it.
    """
    end = end_from_json(value)
    if end is not None:
        return end
    lineage = lineage_from_json(value, join)
    if not len(lineage):
        raise InvalidCursor("it holds no partition")
    return lineage


def lineage_from_json(value: Any, join: Join) -> Lineage:
    """The inverse of `Lineage.to_json`, which is never of partitions that wait for each other.

    Raises:
        InvalidCursor: The value was not made by `Lineage.to_json`.
    """
    lineage = Lineage.from_json(value, join)
    if _is_circular({entry.partition_id: entry.parents for entry in lineage if isinstance(entry, Waiting)}):
        raise InvalidCursor("partitions wait for each other")
    return lineage


def _is_circular(parents: Mapping[str, Collection[str]]) -> bool:
    """Whether some of those that wait can never start, because they wait for each other.

    Args:
        parents: Who waits → for whom.
    """
    children: dict[str, list[str]] = {}
    left: dict[str, int] = {}
    for name, waits_for in parents.items():
        mine = parents.keys() & waits_for
        left[name] = len(mine)
        for parent in mine:
            children.setdefault(parent, []).append(name)
    free = [name for name, count in left.items() if not count]
    for name in free:
        for child in children.get(name, ()):
            left[child] -= 1
            if not left[child]:
                free.append(child)
    return len(free) < len(left)


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
