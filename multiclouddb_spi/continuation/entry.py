"""Represents one partition of a token, and defines the JSON form of the partition.

    [id, cursor]                          it is read
    [id, cursor, 2]                       it is read before all others
    [id, cursor, 8]                       it is read, and no listing of the service names it
    [id, cursor, 10]                      it is read before all others, and no listing names it
    [id, cursor, 1]                       it was read to its end, and no child is known
    [id, cursor, 1, [child, …], looks]    it was read to its end, and may have more children
    [id, cursor, 33, …]                   it was read to its end, and the service says that no child will come
    [id, null, 1, …]                      it was lost, and what follows it is not known yet
    [id, [cursor, …], 4, [parent, …]]     it waits for its parents
    [id, [cursor, …], 12, [parent, …]]    it waits, and no listing names it
    [id, cursor, 16 + …, [floor, µs, rate, retention, done, segments, rows, records, credit]]   a snapshot
    [id, cursor, 16 + …, [floor, µs, …, credit, shared]]   the same, if the scan has `shared`

The third item of an entry is a set of bits. A newer version may write bits that this version does not know.
Bit 16 marks the plan of a snapshot; its cursor is the part that is not divided into segments yet, or null.
Bit 32: the stream is read only after the scan. Bit 64: its start was announced. Bit 128:
`SnapshotOrder.AUTO`. The segments that are read are entries with bit 8.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from functools import cached_property
from typing import Any, Final, TypeAlias

from attrs import frozen

from multiclouddb_api import ErrorReason, MulticloudDbError, SnapshotOrder, SnapshotProgress, invalid_request
from multiclouddb_spi.continuation.token import is_micros, to_moment
from multiclouddb_spi.cursor import Cursor, InvalidCursor
from multiclouddb_spi.segment import Scan, plan_id_of

_END: Final = 1
_SUSPECT: Final = 2
_WAIT: Final = 4
_UNLISTED: Final = 8
_FINAL: Final = 32
_KNOWN: Final = _END | _SUSPECT | _WAIT | _UNLISTED | _FINAL
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


@frozen
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
            then read before all others, so that its failure is not postponed for ever; they wait for it up to
            two seconds (`TURN_SECONDS`).
        final: END: True if the service has answered that no more children will come.
        listed: False for an entry that is not a partition of the service, for example a segment of a scan.
    """

    partition_id: str
    stage: Stage
    said: tuple[Cursor, ...]
    waits: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    looks: int = 0
    failed_last: bool = False
    final: bool = False
    listed: bool = True

    @classmethod
    def read(cls, partition_id: str, cursor: Cursor, *, listed: bool = True) -> Entry:
        """Make the entry of a partition that is read from `cursor`."""
        return cls(partition_id, Stage.READ, (cursor,), listed=listed)

    @property
    def cursor(self) -> Cursor:
        """The position of a partition that is read or was read to its end; None if it was lost."""
        return self.said[0] if self.said else None

    @cached_property
    def json(self) -> Cursor:
        """The entry in the form that a token stores; most entries of a large feed stay as they are."""
        unlisted = (not self.listed) * _UNLISTED
        if self.stage is Stage.READ:
            flags = self.failed_last * _SUSPECT | unlisted
            item: list[Cursor] = [self.partition_id, self.said[0], flags]
            return item if flags else item[:2]
        if self.stage is Stage.WAIT:
            return [self.partition_id, list(self.said), _WAIT | unlisted, list(self.waits)]
        known: list[Cursor] = [list(self.children), self.looks] if self.children or self.looks else []
        return [self.partition_id, self.cursor, _END | self.final * _FINAL, *known]

    @property
    def is_unnamed(self) -> bool:
        """Whether nothing is known to follow an ended partition, although something may."""
        return not (self.children or self.final)


class NextSearch(Enum):
    """When the next search is due; a token stores the number.

    Attributes:
        REGULAR: After the usual time.
        SOON: After a tenth of it, because a partition has left the lineage since the last search.
        UNCLEAR: Within a minute, and nothing is idle until then. The last search saw that a partition to
            which nothing leads had ended, and no child of it, so it did not find what descends from it.
    """

    REGULAR = 0
    SOON = 1
    UNCLEAR = 2


@frozen
class Audited:
    """What a token keeps for the search for partitions that the feed does not cover.

    Attributes:
        since: The service's time when the feed began, in µs since 1970; older changes are not
            needed. None if the time of the feed's start is not known.
        at: The time of the last search, in seconds since 1970. It decides nothing but when to search again.
        next: When the next search is due.
    """

    since: int | None = None
    at: int = 0
    next: NextSearch = NextSearch.SOON

    @property
    def is_unclear(self) -> bool:
        """Whether the last search lacked what descends from an ended partition."""
        return self.next is NextSearch.UNCLEAR


def entry_to_json(entry: AnyEntry) -> Cursor:
    """Return one partition in the form that a token stores."""
    return plan_to_json(entry) if isinstance(entry, Plan) else entry.json


def entry_from_json(item: Any) -> AnyEntry:
    """Return the entry that `entry_to_json` has converted."""
    match item:
        case [str() as name, cursor]:
            return Entry(name, Stage.READ, (cursor,))
        case [str(), _, bool() | float(), *_]:
            raise InvalidCursor("a partition has an unknown form")
        case [str(), _, int() as flags, *_] if is_plan(flags):
            return plan_from_json(item)
        case [str(), _, int() as flags, *_] if flags > 0 and flags & ~_KNOWN:
            raise _newer(f"a partition has the flags {flags}, but this library knows only {_KNOWN}")
        case [str() as name, cursor, 2 | 8 | 10 as flags]:
            failed, listed = bool(flags & _SUSPECT), not flags & _UNLISTED
            return Entry(name, Stage.READ, (cursor,), failed_last=failed, listed=listed)
        case [str() as name, cursor, 1 | 33 as flags]:
            return entry_from_json([name, cursor, flags, [], 0])
        case [str() as name, cursor, 1 | 33 as flags, [*known], looks] if _names(known) and _is_count(looks):
            said, final = () if cursor is None else (cursor,), flags == _END | _FINAL
            return Entry(name, Stage.END, said, (), tuple(known), looks, final=final)
        case [str() as name, [_, *_] as said, 4 | 12 as flags, [_, *_] as waits] if _names(waits):
            return Entry(name, Stage.WAIT, tuple(said), tuple(waits), listed=flags == _WAIT)
        case _:
            raise InvalidCursor("a partition has an unknown form")


def audited_to_json(audited: Audited) -> Cursor:
    """Return the data for searches in the form that a token stores."""
    return [audited.since, audited.at, audited.next.value]


def audited_from_json(value: Any) -> Audited:
    """Return what `audited_to_json` has converted."""
    match value:
        case [since, at, (0 | 1 | 2) as state] if _is_count(at) and (since is None or is_micros(since)):
            return Audited(since, at, NextSearch(state))
        case _:
            raise InvalidCursor("the time of the last audit is unreadable")


def _names(items: list[Any]) -> bool:
    return all(isinstance(item, str) for item in items)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _newer(problem: str) -> MulticloudDbError:
    return invalid_request(
        "continuation_token",
        f"was made by a newer version ({problem})",
        "upgrade multiclouddb",
        ErrorReason.UNKNOWN_VERSION,
    )


_PLAN: Final = 16
_HOLDS: Final = 32
_ANNOUNCED: Final = 64
_AUTO: Final = 128
_KNOWN_OF_A_PLAN: Final = _PLAN | _HOLDS | _ANNOUNCED | _AUTO


@frozen
class Plan:
    """The plan of a scan that is not finished.

    Attributes:
        partition_id: The id of the plan among the entries of a lineage.
        cursor: The part of the key space that is not divided into segments yet; None if everything is
            divided.
        floor: The `order_key` of every row in the snapshot.
        moment: The start of the snapshot, in µs since 1970.
        holds: True if the engine reads no changes until the scan ends.
        announced: True after a page has contained the `SnapshotStarted` notice of this scan.
        auto: True if the engine may start to read changes before the scan ends.
        rate: `Snapshot.max_scan_rate`.
        retention: The number of seconds for which the service keeps a new position of the change stream; None
            if this time is not known.
        done: The number of segments that were read to their end.
        segments: The expected number of segments, or None.
        rows: The number of rows that were delivered.
        records: The approximate number of rows at the start, or None.
        credit: A fraction of a place on a page, in quarters: 0 to 3. The scan did not get this
            fraction on earlier pages.
        shared: What the provider needs in addition to read the segments; see `Scan`.
        units: The approximate charge of the whole scan, or None.
    """

    partition_id: str
    cursor: Cursor
    floor: str
    moment: int
    holds: bool = False
    announced: bool = False
    auto: bool = False
    rate: float | None = None
    retention: int | None = None
    done: int = 0
    segments: int | None = None
    rows: int = 0
    records: int | None = None
    credit: int = 0
    shared: Cursor = None
    units: int | None = None

    @property
    def scan(self) -> Scan:
        """What all segments of the scan have in common."""
        return Scan(self.floor, to_moment(self.moment), self.shared, plan_id_of(self.partition_id) or "")

    def progress(self) -> SnapshotProgress:
        """The progress of the scan, in the form that applications see."""
        order = SnapshotOrder.ORDERED if self.holds else SnapshotOrder.INTERLEAVED
        return SnapshotProgress(order, self.done, self.segments, self.rows, self.records, self.units)


AnyEntry: TypeAlias = Entry | Plan


def shown(count: int | None) -> int | None:
    """Return a number that is only shown to users, or None if a token cannot store it."""
    return count if _is_count(count) else None


def plan_to_json(plan: Plan) -> Cursor:
    """Return a plan in the form that a token stores."""
    flags = _PLAN | plan.holds * _HOLDS | plan.announced * _ANNOUNCED | plan.auto * _AUTO
    counts: list[Cursor] = [plan.rate, plan.retention, plan.done, plan.segments, plan.rows, plan.records]
    more: list[Cursor] = [] if plan.shared is None else [plan.shared]
    if plan.units is not None:
        more = [plan.shared, plan.units]
    return [plan.partition_id, plan.cursor, flags, [plan.floor, plan.moment, *counts, plan.credit, *more]]


def is_plan(flags: int) -> bool:
    """Return whether these flags mark a plan in a format that this library supports."""
    return bool(flags & _PLAN) and not flags & ~_KNOWN_OF_A_PLAN


def plan_from_json(item: Any) -> Plan:
    """Return the plan that `plan_to_json` has converted, for an item whose flags mark a plan."""
    match item:
        case [
            str() as partition_id, cursor, int() as flags,
            [str() as floor, moment, rate, retention, done, segments, rows, records, (0 | 1 | 2 | 3) as
            credit, *more],
        ] if (
            floor and is_micros(moment) and _is_rate(rate) and _is_count(done) and _is_count(rows)
            and all(value is None or _is_count(value) for value in (retention, segments, records))
            and type(credit) is int and len(more) < 3
            and all(map(_is_count, more[1:]))
        ):  # fmt: skip
            return Plan(
                partition_id, cursor, floor, moment, bool(flags & _HOLDS), bool(flags & _ANNOUNCED),
                bool(flags & _AUTO), rate, retention, done, segments, rows, records, credit,
                *more,
            )  # fmt: skip
        case _:
            raise InvalidCursor("the plan of a snapshot is unreadable")


def _is_rate(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 < value < math.inf)
