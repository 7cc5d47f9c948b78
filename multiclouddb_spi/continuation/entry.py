"""Represents one partition of a token, and defines the JSON form of the partition.

    [id, cursor]                          it is read
    [id, cursor, 2]                       it is read first and alone
    [id, cursor, 8]                       it is read, and no listing of the service names it
    [id, cursor, 10]                      it is read first and alone, and no listing names it
    [id, cursor, 1]                       it has ended, and no child is known
    [id, cursor, 1, [child, …], 17]       it has ended; children are known; searched for 1.7 s
    [id, [cursor, …], 4, [parent, …]]     it waits for its parents
    [id, [cursor, …], 4, [parent, …], µs] it waits; some parents were undiscovered at this time
    [id, [cursor, …], 12, [parent, …]]    it waits, and no listing names it
    [id, cursor, 16 + …, […]]             the plan of a snapshot, see `plan.py`

The third item of an entry is a set of bits. A newer version may write bits that this version does not know.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final, TypeAlias

import attrs

from multiclouddb_api import MulticloudDbError, invalid_request
from multiclouddb_spi.continuation.moment import is_micros
from multiclouddb_spi.continuation.plan import Plan, is_plan, plan_from_json, plan_to_json
from multiclouddb_spi.contract import Seed
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.faults import InvalidCursor

__all__ = [
    "Active",
    "Audited",
    "AwaitingChildren",
    "Entry",
    "Plan",
    "Waiting",
    "audited_from_json",
    "audited_to_json",
    "entry_from_json",
    "entry_to_json",
    "place_of",
    "seeded",
]

_DRAINED: Final = 1
_SUSPECT: Final = 2
_WAITING: Final = 4
_UNLISTED: Final = 8
_KNOWN: Final = _DRAINED | _SUSPECT | _WAITING | _UNLISTED
_MOST: Final = 2**53
"""The highest count in a token; JSON parsers in all languages can read this number exactly."""


@attrs.frozen
class Active:
    """A partition that is being read.

    Attributes:
        partition_id: The service's own id of the partition.
        cursor: Everything up to this position has been delivered.
        failed_last: True if the last read of this partition failed permanently after it had delivered events.
            The partition is then read first and alone, so that its failure is not postponed forever.
        listed: False for an unlisted entry, which is not a partition of the service; for example, a
            segment of a scan. Audits and retention ignore an unlisted entry. The children of an
            unlisted entry are also unlisted.
    """

    partition_id: str
    cursor: Cursor
    failed_last: bool = False
    listed: bool = True


@attrs.frozen
class AwaitingChildren:
    """A partition that has ended and may have more children than are known.

    Attributes:
        partition_id: The service's own id of the partition.
        cursor: The position at which the partition ends.
        children: The children that were named so far, including those that have been read to their end since
            then; empty if no child is known.
        watched: How long the search for children has lasted while the process was running, in
            tenths of a second.
    """

    partition_id: str
    cursor: Cursor
    children: tuple[str, ...] = ()
    watched: int = 0


@attrs.frozen
class Waiting:
    """A child partition whose parents have not all been read to their end.

    Attributes:
        partition_id: The service's own id of the partition.
        said: The distinct start positions for this partition, from its seed and from its parents that were
            read to their end.
        parents: The parents that have not named this child yet, and a lost partition that the child may
            descend from.
        named_at: The service's time when the child was named, in µs since 1970. None if the child
            had no undiscovered parent at this time (`undiscovered_parents.py`), or if the service
            does not report the time.
        listed: False for an entry that is not a partition of the service, see `Active.listed`.
    """

    partition_id: str
    said: tuple[Cursor, ...]
    parents: tuple[str, ...]
    named_at: int | None = None
    listed: bool = True


@attrs.frozen
class Audited:
    """The data that a token keeps for audits of coverage (`Feed.uncovered`).

    Attributes:
        since: The service's time when the feed began, in µs since 1970; older changes are not
            needed. None if the time of the feed's start is not known.
        at: The time of the last audit, in seconds since 1970; it is used only to choose the time of the next
            audit.
        retired: True if a partition was removed from the lineage after the last audit. The next audit is due
            soon in this case.
    """

    since: int | None = None
    at: int = 0
    retired: bool = True


Entry: TypeAlias = Active | AwaitingChildren | Waiting | Plan


def seeded(seed: Seed, present: Container[str]) -> Entry:
    """Return the entry of a partition that starts at its seed.

    The entry waits for those of its parents that are present. The entry keeps only those children
    of the seed that are present. The engine discovers the other children later.
    """
    if children := tuple(child for child in seed.children if child in present):
        return AwaitingChildren(seed.partition_id, seed.cursor, children)
    parents = tuple(parent for parent in seed.parents if parent in present and parent != seed.partition_id)
    if parents:
        return Waiting(seed.partition_id, (seed.cursor,), parents)
    return Active(seed.partition_id, seed.cursor)


def place_of(entry: Entry) -> Entry:
    """Return a copy of an entry in which the duration of the search for children is 0."""
    return attrs.evolve(entry, watched=0) if type(entry) is AwaitingChildren else entry


def entry_to_json(entry: Entry) -> Cursor:
    """Return one partition in the form that a token stores."""
    match entry:
        case Plan():
            return plan_to_json(entry)
        case Active(partition_id, cursor, failed_last, listed):
            flags = failed_last * _SUSPECT | (not listed) * _UNLISTED
            return [partition_id, cursor, flags] if flags else [partition_id, cursor]
        case AwaitingChildren(partition_id, cursor, (), 0):
            return [partition_id, cursor, _DRAINED]
        case AwaitingChildren(partition_id, cursor, children, watched):
            return [partition_id, cursor, _DRAINED, list(children), watched]
        case Waiting(partition_id, said, parents, named_at, listed):
            flags = _WAITING | (not listed) * _UNLISTED
            moment = [] if named_at is None else [named_at]
            return [partition_id, list(said), flags, list(parents), *moment]


def entry_from_json(item: Any) -> Entry:
    """Return the entry that `entry_to_json` has converted.

    Raises:
        InvalidCursor: Raised if `entry_to_json` did not make the value.
        MulticloudDbError: `INVALID_REQUEST` if a newer version of the library made the value.
    """
    match item:
        case [str() as partition_id, cursor]:
            return Active(partition_id, cursor)
        case [str(), _, bool(), *_]:
            raise InvalidCursor("a partition has an unknown form")
        case [str(), _, int() as flags, *_] if is_plan(flags):
            return plan_from_json(item)
        case [str(), _, int() as flags, *_] if flags > 0 and flags & ~_KNOWN:
            raise _newer(f"a partition has the flags {flags}, but this library knows only {_KNOWN}")
        case [str() as partition_id, cursor, 2 | 8 | 10 as flags]:
            return Active(partition_id, cursor, bool(flags & _SUSPECT), not flags & _UNLISTED)
        case [str() as partition_id, cursor, 1]:
            return AwaitingChildren(partition_id, cursor)
        case [str() as partition_id, cursor, 1, [*children], watched] if _names(children) and _is_count(
            watched
        ):
            return AwaitingChildren(partition_id, cursor, tuple(children), watched)
        case [str() as partition_id, [_, *_] as said, 4 | 12 as flags, [_, *_] as parents, *moment] if _names(
            parents
        ) and (not moment or (len(moment) == 1 and is_micros(moment[0]))):
            named_at = moment[0] if moment else None
            return Waiting(partition_id, tuple(said), tuple(parents), named_at, flags == _WAITING)
        case _:
            raise InvalidCursor("a partition has an unknown form")


def audited_to_json(audited: Audited) -> Cursor:
    """Return the audit data in the form that a token stores."""
    return [audited.since, audited.at, int(audited.retired)]


def audited_from_json(value: Any) -> Audited:
    """Return the audit data that `audited_to_json` has converted.

    Raises:
        InvalidCursor: Raised if `audited_to_json` did not make the value.
    """
    match value:
        case [since, at, (0 | 1) as retired] if _is_count(at) and (since is None or is_micros(since)):
            return Audited(since, at, bool(retired))
        case _:
            raise InvalidCursor("the time of the last audit is unreadable")


def _names(items: list[Any]) -> bool:
    return all(isinstance(item, str) for item in items)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _newer(problem: str) -> MulticloudDbError:
    return invalid_request(
        "continuation_token", f"was made by a newer version ({problem})", "upgrade multiclouddb"
    )
