"""Defines the state in a token: a running lineage, a retired partition, or the end of the feed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs

from multiclouddb_spi.batch import Child
from multiclouddb_spi.continuation.entry import Entry, Stage
from multiclouddb_spi.continuation.lineage import Lineage, Rules
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.faults import InvalidCursor

__all__ = [
    "FeedOver",
    "FeedState",
    "Retired",
    "end_from_json",
    "retired",
    "state_from_json",
    "state_to_json",
]


@attrs.frozen
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
    """Make the state of a feed that reads a single partition, after this partition has ended.

    Args:
        lineage: The lineage that contains the partition.
        partition_id: The service's own id of the partition.
        children: The children of the partition, as far as they are known; a child may appear twice, because
            services name some children twice.
        complete: True if there are no other children.
    """
    found = tuple(lineage.fresh(partition_id, children))
    once = [child.partition_id for child in found]
    if complete:
        return Retired(partition_id, found)
    said = (lineage.cursor(partition_id),)
    return Retired(partition_id, found, Entry(partition_id, Stage.END, said, children=tuple(once)))


@attrs.frozen
class FeedOver:
    """The state in which every partition has ended and nothing follows.

    Attributes:
        reason: The reason why the feed ended, on one line.
    """

    reason: str


FeedState: TypeAlias = Lineage | Retired | FeedOver


def state_to_json(state: FeedState) -> Cursor:
    """Return the state in the form that a token stores."""
    match state:
        case Lineage():
            return state.to_json()
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
    """Return the state that `state_to_json` has converted.

    Raises:
        InvalidCursor: Raised if `state_to_json` did not make the value, or if a read from this state could
            never return a change.
    """
    end = end_from_json(value)
    if end is not None:
        return end
    lineage = Lineage.from_json(value, rules)
    if not len(lineage):
        raise InvalidCursor("it contains no partition")
    return lineage


def end_from_json(value: Any) -> Retired | FeedOver | None:
    """Return the state if it is the end of a feed or partition, else None.

    Raises:
        InvalidCursor: Raised if a child in the value is unreadable.
    """
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
            return Entry(partition_id, Stage.END, (cursor,), children=named, looks=looks)
        case _:
            raise InvalidCursor("the search for children is unreadable")
