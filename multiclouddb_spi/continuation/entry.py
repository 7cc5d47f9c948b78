"""Represents one partition of a token, and defines the JSON form of the partition.

    [id, cursor]                          it is read
    [id, cursor, 2]                       it is read first and alone
    [id, cursor, 8]                       it is read, and no listing of the service names it
    [id, cursor, 10]                      it is read first and alone, and no listing names it
    [id, cursor, 1]                       it was read to its end, and no child is known
    [id, cursor, 1, [child, …], looks]    it was read to its end, and may have more children
    [id, null, 1, …]                      it was lost, and what follows it is not known yet
    [id, [cursor, …], 4, [parent, …]]     it waits for its parents
    [id, [cursor, …], 12, [parent, …]]    it waits, and no listing names it
    [id, cursor, 16 + …, […]]             the plan of a snapshot, see `plan.py`

The third item of an entry is a set of bits. A newer version may write bits that this version does not know.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, Final, TypeAlias

import attrs

from multiclouddb_api import MulticloudDbError, invalid_request
from multiclouddb_spi.continuation.plan import Plan, is_plan, plan_from_json, plan_to_json
from multiclouddb_spi.continuation.times import is_micros
from multiclouddb_spi.cursor import Cursor
from multiclouddb_spi.faults import InvalidCursor

__all__ = [
    "AnyEntry",
    "Audited",
    "Entry",
    "Stage",
    "audited_from_json",
    "audited_to_json",
    "entry_from_json",
    "entry_to_json",
]

_END: Final = 1
_SUSPECT: Final = 2
_WAIT: Final = 4
_UNLISTED: Final = 8
_KNOWN: Final = _END | _SUSPECT | _WAIT | _UNLISTED
_MOST: Final = 2**53
"""The highest count in a token; JSON parsers in all languages can read this number exactly."""


class Stage(Enum):
    """What the engine does with a partition."""

    READ = auto()
    """It reads the partition from its position."""
    WAIT = auto()
    """A parent was not read to its end yet."""
    END = auto()
    """The partition was read to its end, or lost; it may have more children than are known."""

    __hash__ = object.__hash__  # faster than the hash of `Enum`, which is a Python function


@attrs.frozen
class Entry:
    """One partition of a token.

    Attributes:
        partition_id: The service's own id of the partition.
        stage: What the engine does with the partition.
        said: READ: the position up to which everything was delivered. WAIT: the distinct start positions that
            the seed and the ended parents gave. END: the position of the end; empty if the partition was
            lost.
        waits: WAIT: the parents that have not ended yet, as far as is known.
        children: END: the children that were named, also those that were read to their end since then.
        looks: END: how often the engine has asked for more children, each time after a longer pause.
        failed_last: READ: the last read failed permanently after it had delivered events. The partition is
            then read first and alone, so that its failure is not postponed for ever.
        listed: False for an entry that is not a partition of the service, for example a segment of a scan.
    """

    partition_id: str
    stage: Stage
    said: tuple[Cursor, ...]
    waits: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    looks: int = 0
    failed_last: bool = False
    listed: bool = True

    @classmethod
    def read(cls, partition_id: str, cursor: Cursor, *, listed: bool = True) -> Entry:
        """Make the entry of a partition that is read from `cursor`."""
        return cls(partition_id, Stage.READ, (cursor,), listed=listed)

    @property
    def cursor(self) -> Cursor:
        """The position of a partition that is read or was read to its end; None if it was lost."""
        return self.said[0] if self.said else None


AnyEntry: TypeAlias = Entry | Plan


@attrs.frozen
class Audited:
    """What a token keeps for the search for partitions that the feed does not cover.

    Attributes:
        since: The service's time when the feed began, in µs since 1970; older changes are not
            needed. None if the time of the feed's start is not known.
        at: The time of the last search, in seconds since 1970. It decides nothing but when to search again.
        retired: True if a partition has left the lineage since then; the next search is due soon.
    """

    since: int | None = None
    at: int = 0
    retired: bool = True


def entry_to_json(entry: AnyEntry) -> Cursor:
    """Return one partition in the form that a token stores."""
    if isinstance(entry, Plan):
        return plan_to_json(entry)
    unlisted = (not entry.listed) * _UNLISTED
    if entry.stage is Stage.READ:
        flags = entry.failed_last * _SUSPECT | unlisted
        return [entry.partition_id, entry.said[0], flags] if flags else [entry.partition_id, entry.said[0]]
    if entry.stage is Stage.WAIT:
        return [entry.partition_id, list(entry.said), _WAIT | unlisted, list(entry.waits)]
    known: list[Cursor] = [list(entry.children), entry.looks] if entry.children or entry.looks else []
    return [entry.partition_id, entry.cursor, _END, *known]


def entry_from_json(item: Any) -> AnyEntry:
    """Return the entry that `entry_to_json` has converted.

    Raises:
        InvalidCursor: Raised if `entry_to_json` did not make the value.
        MulticloudDbError: `INVALID_REQUEST` if a newer version of the library made the value.
    """
    match item:
        case [str() as name, cursor]:
            return Entry(name, Stage.READ, (cursor,))
        case [str(), _, bool(), *_]:
            raise InvalidCursor("a partition has an unknown form")
        case [str(), _, int() as flags, *_] if is_plan(flags):
            return plan_from_json(item)
        case [str(), _, int() as flags, *_] if flags > 0 and flags & ~_KNOWN:
            raise _newer(f"a partition has the flags {flags}, but this library knows only {_KNOWN}")
        case [str() as name, cursor, 2 | 8 | 10 as flags]:
            failed, listed = bool(flags & _SUSPECT), not flags & _UNLISTED
            return Entry(name, Stage.READ, (cursor,), failed_last=failed, listed=listed)
        case [str() as name, cursor, 1]:
            return Entry(name, Stage.END, () if cursor is None else (cursor,))
        case [str() as name, cursor, 1, [*children], looks] if _names(children) and _is_count(looks):
            said = () if cursor is None else (cursor,)
            return Entry(name, Stage.END, said, children=tuple(children), looks=looks)
        case [str() as name, [_, *_] as said, 4 | 12 as flags, [_, *_] as waits] if _names(waits):
            return Entry(name, Stage.WAIT, tuple(said), tuple(waits), listed=flags == _WAIT)
        case _:
            raise InvalidCursor("a partition has an unknown form")


def audited_to_json(audited: Audited) -> Cursor:
    """Return the data for searches in the form that a token stores."""
    return [audited.since, audited.at, int(audited.retired)]


def audited_from_json(value: Any) -> Audited:
    """Return what `audited_to_json` has converted.

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
