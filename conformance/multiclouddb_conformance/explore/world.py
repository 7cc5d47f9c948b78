"""A model of a service: a value, and the steps that lead from it to other values.

Every step of the service writes one record into each open partition, so that each partition has a record at
every time from its birth to its end, and a loss of any of them shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from itertools import combinations
from typing import Final, NamedTuple

import attrs

from multiclouddb_api import FeedEnded, Notice
from multiclouddb_spi import Cursor, Partition, PartitionState, Seed, Survey
from multiclouddb_spi.continuation.entry import AnyEntry

__all__ = [
    "RULES",
    "RULES_OF",
    "Bounds",
    "BrokenError",
    "Consumer",
    "ListingKind",
    "Part",
    "Rules",
    "Scope",
    "World",
    "ancestors",
    "at",
    "children_of",
    "end_of",
    "held_by_key",
    "hides",
    "is_gone",
    "moves",
    "parents_of",
    "refuses",
    "said_by",
    "survey_of",
    "widened",
]


class ListingKind(Enum):
    """What a service reports about its partitions."""

    LISTED = "listed"
    """Partitions merge; a listing names all of them with their parents (the embedded store)."""
    ALIVE = "alive"
    """Partitions merge; a listing names those that exist at one time, without parents (Spanner)."""
    LATE = "late"
    """Partitions never merge; a listing names each with its parent, some of them late (DynamoDB)."""


class Scope(Enum):
    """What the consumer reads."""

    ALL = "all"
    DESCENDANTS = "descendants"
    """Partition 0 with its descendants; somebody else reads the others."""
    KEY = "key"
    """One partition key, which lies in partition 0 at first."""


class BrokenError(Exception):
    """A promise does not hold."""


@attrs.frozen(eq=False)
class Bounds:
    """How far to explore, and with which steps.

    Attributes:
        kind: The kind of the service.
        scope: What is read.
        open: The largest number of open partitions.
        partitions: The largest number of partitions.
        ahead: True if answers are fetched before they are delivered.
        crash: True if the consumer keeps a token and goes on from it after a crash.
        fails: True for `Fail()`: the feed ends at a loss. False for `SkipToOldest()`.
        scan: True if the feed begins with the scan of a snapshot, and the stream waits for it.
        released: True if the stream may be released before the scan ends.
        cut: True if a page may end inside a partition.
        empty: True if a partition may end without a record.
        told: True if a late listing contains the parents of what is gone.
        watched: True if the feed begins after the end of a partition that may have more children.
        chained: True if the feed begins when its last partition has ended, whose child waits for it.
        stops: True if the stream may be disabled: all partitions end without children.
        horizons: True if retention may remove a part of what is old, and not only all of it.
        forgets: True if a later listing may lack a partition that was listed, until the stream is disabled.
        symmetric: True if histories that differ only in the numbers of the partitions are explored once.
    """

    kind: ListingKind
    scope: Scope = Scope.ALL
    open: int = 3
    partitions: int = 9
    ahead: bool = True
    crash: bool = False
    fails: bool = False
    scan: bool = False
    released: bool = False
    cut: bool = False
    empty: bool = False
    told: bool = False
    watched: bool = False
    chained: bool = False
    stops: bool = False
    horizons: bool = False
    forgets: bool = False
    symmetric: bool = False


class Part(NamedTuple):
    """A partition: its parents, its first and last time (None while it is open), and whether it is listed."""

    parents: tuple[int, ...]
    born: int
    closed: int | None = None
    shown: bool = True


class Consumer(NamedTuple):
    """What a consumer has, and what it was given: a crash takes both back to the same token."""

    entries: tuple[AnyEntry, ...]
    got: tuple[int, ...]
    gap: frozenset[int] = frozenset()
    told: frozenset[int] = frozenset()
    over: bool = False


class World(NamedTuple):
    """One state of service and consumer."""

    bounds: Bounds
    parts: tuple[Part, ...]
    now: int
    kept: int
    consumer: Consumer
    fetched: frozenset[tuple[int, int, int, bool, tuple[int, ...]]] = frozenset()
    token: Consumer | None = None
    settled: bool = False


def at(cursor: Cursor) -> int:
    """Return the time that a position of the model is."""
    assert isinstance(cursor, int)
    return cursor


class Rules:
    """A position is the time of the last delivered record, and its own moment."""

    def __init__(self, kind: ListingKind) -> None:
        self.names_late = kind is ListingKind.LATE

    def join(self, child_id: str, cursors: Sequence[Cursor]) -> Cursor:
        return min(map(at, cursors))

    def compare(self, a: Cursor, b: Cursor) -> int | None:
        # A position of a service that names children late does not show its age.
        return (at(a) > at(b)) - (at(a) < at(b)) if a == b or not self.names_late else None

    def moment(self, cursor: Cursor) -> int | None:
        return None if self.names_late else at(cursor)


_OVER: Final = FeedEnded("it has stopped")
RULES_OF: Final = {kind: Rules(kind) for kind in ListingKind}
"""The rules of each kind of service."""
RULES: Final = RULES_OF[ListingKind.LATE]
"""The rules of a service whose positions are numbers, for tests."""


def moves(world: World) -> Iterator[tuple[str, World]]:
    """Yield every step of the service that can follow, with its name and the world after it."""
    parts, bounds = world.parts, world.bounds
    there = [i for i, part in enumerate(parts) if part.closed is None]
    merges = bounds.kind is not ListingKind.LATE
    if len(parts) < bounds.partitions:
        for i in there:
            if len(there) < bounds.open:
                yield f"split {i}", _shaped(world, (i,), 2)
                if not merges:
                    yield f"split {i} hide", _shaped(world, (i,), 2, hidden=(1,))
            yield f"roll {i}", _shaped(world, (i,), 1)
            if not merges:
                yield f"roll {i} hide", _shaped(world, (i,), 1, hidden=(0,))
            if bounds.empty:
                yield f"roll {i} twice", _shaped(_shaped(world, (i,), 1, still=True), (len(parts),), 1)
        if merges:
            for pair in combinations(there, 2):
                yield f"merge {pair[0]} {pair[1]}", _shaped(world, pair, 1)
    if bounds.stops and not merges and there and world.kept < world.now and not hides(world):
        yield "stop", _shaped(world, tuple(there), 0)
    if not (there or world.settled or hides(world)):  # it is sure only after some time
        yield "settle", world._replace(settled=True)
    # Nothing is removed that is younger than a partition which is not listed yet.
    latest = min((part.born for part in parts if not part.shown), default=world.now)
    if not there:  # a stream without records does not exist
        latest = max(end_of(world, i) for i in range(len(parts))) - 1
    if world.kept < latest:
        yield "trim", world._replace(kept=latest)
        for time in range(world.kept + 1, latest if bounds.horizons else 0):
            yield f"trim to {time}", world._replace(kept=time)
    for i, part in enumerate(parts):
        if not part.shown:
            yield f"show {i}", _show(world, i)
        elif bounds.forgets and not merges and not is_gone(world, i) and not world.settled:
            yield f"forget {i}", _show(world, i, shown=False)


def _shaped(
    world: World,
    closing: tuple[int, ...],
    children: int,
    hidden: Collection[int] = (),
    *,
    still: bool = False,
) -> World:
    parts = [p._replace(closed=world.now) if i in closing else p for i, p in enumerate(world.parts)]
    parts += [Part(closing, world.now, None, k not in hidden) for k in range(children)]
    return world._replace(
        parts=tuple(parts),
        now=world.now + (not still),
        consumer=world.consumer._replace(got=world.consumer.got + (-1,) * children),
    )


def widened(consumer: Consumer, world: World) -> Consumer:
    """Return a consumer that knows of every partition that appeared since then."""
    return consumer._replace(got=consumer.got + (-1,) * (len(world.parts) - len(consumer.got)))


def _show(world: World, i: int, *, shown: bool = True) -> World:
    parts = list(world.parts)
    parts[i] = parts[i]._replace(shown=shown)
    return world._replace(parts=tuple(parts))


def is_gone(world: World, i: int) -> bool:
    """Return whether retention has removed a partition."""
    closed = world.parts[i].closed
    return closed is not None and closed <= world.kept


def end_of(world: World, i: int) -> int:
    """Return the time of the last record of a partition."""
    closed = world.parts[i].closed
    return world.now if closed is None else closed


def ancestors(world: World, i: int, until: Collection[int] = ()) -> set[int]:
    """Return the ancestors of a partition; those of the ones in `until` are left out."""
    found, pending = set[int](), [*(() if i in until else world.parts[i].parents)]
    while pending:
        one = pending.pop()
        if one not in found:
            found.add(one)
            pending += () if one in until else world.parts[one].parents
    return found


def held_by_key(world: World) -> list[int]:
    """Return the partitions that hold the key: 0, and of the children of such a one the first."""
    held, taken = [0], set[int]()
    for i, part in enumerate(world.parts):
        mine = [parent for parent in part.parents if parent in held]
        if mine and not any(parent in taken for parent in mine):
            held.append(i)
            taken.update(mine)
    return held


def parents_of(world: World, i: int) -> tuple[str, ...]:
    """Return the parents of a partition that belong to the scope."""
    parents = world.parts[i].parents
    if world.bounds.scope is Scope.KEY:
        held = held_by_key(world)
        parents = tuple(parent for parent in parents if parent in held)
    return tuple(map(str, parents))


def children_of(world: World, i: int) -> tuple[int, ...]:
    """Return the children that are named at the end of a partition."""
    found = (j for j, part in enumerate(world.parts) if i in part.parents and part.shown)
    if world.bounds.scope is Scope.KEY:
        held = held_by_key(world)
        return tuple(j for j in found if j in held)
    return tuple(found)


def survey_of(
    world: World, asked: Mapping[str, Cursor], expired: Collection[str] = (), *, whole: bool = True
) -> Survey:
    """Return the answer of such a service to `Feed.survey`; `expired` and `whole` as there."""
    kind, parts = world.bounds.kind, world.parts
    gone = {i for i in range(len(parts)) if is_gone(world, i)}
    if kind is ListingKind.ALIVE:
        lost = {name: None for name in asked if int(name) in gone}
        there = {i for i in map(int, asked) if i not in gone}
        then = [i for i, part in enumerate(parts) if part.born <= world.kept and i not in gone]
        heirs = tuple(Seed(str(i), (), world.kept) for i in then) if lost else None
        if heirs is not None and world.bounds.scope is Scope.KEY:
            held = held_by_key(world)
            heirs = tuple(seed for seed in heirs if int(seed.partition_id) in held)
        return Survey(
            tuple(_present(world, i, asked, expired, with_parents=False) for i in sorted(there)), lost, heirs
        )
    wanted = range(len(parts)) if world.bounds.scope is not Scope.KEY else held_by_key(world)
    present = tuple(
        _present(world, i, asked, expired)
        for i in wanted
        if i not in gone and parts[i].shown
        if whole or not asked.keys().isdisjoint(map(str, parts[i].parents))
    )
    final = dict[str, Notice | None]()
    if kind is ListingKind.LATE:
        if whole and not world.settled:  # what leads to no open partition has no position
            led = _led(world)
            present = tuple(
                each
                if each.partition_id in asked or int(each.partition_id) in led
                else attrs.evolve(each, oldest=None)
                for each in present
            )
        names = [each.partition_id for each in present] if whole else asked
        final = {name: _OVER for name in names if world.settled and _is_last(world, int(name))}
    if kind is ListingKind.LISTED or world.bounds.told:
        told = {str(i): parents_of(world, i) for i in gone if parts[i].shown or str(i) in asked}
        return Survey(present, told, final=final)
    unlisted = {parent for each in present for parent in each.parents} | set(asked)
    return Survey(present, {name: None for name in unlisted if int(name) in gone}, final=final)


def _led(world: World) -> set[int]:
    """Return the listed open partitions, and their ancestors as far as all between them are listed."""
    found, pending = set[int](), [i for i, part in enumerate(world.parts) if part.closed is None]
    while pending:
        one = pending.pop()
        if one not in found and world.parts[one].shown:
            found.add(one)
            pending += world.parts[one].parents
    return found


def _is_last(world: World, i: int) -> bool:
    """Return whether a partition exists and nothing follows it, after the stream was disabled."""
    return not is_gone(world, i) and not any(i in part.parents for part in world.parts)


def _present(
    world: World, i: int, asked: Mapping[str, Cursor], expired: Collection[str], *, with_parents: bool = True
) -> Partition:
    part, position = world.parts[i], asked.get(str(i))
    state = PartitionState.OPEN if part.closed is None else PartitionState.CLOSED
    parents = parents_of(world, i) if with_parents else ()
    # A position of a service that names children late does not show its age.
    is_old = str(i) in expired or world.bounds.kind is not ListingKind.LATE
    if position is not None and not (is_old and refuses(world, i, at(position))):
        return Partition(str(i), parents, state)
    return Partition(str(i), parents, state, min(max(part.born, world.kept), end_of(world, i)))


def refuses(world: World, i: int, position: int) -> bool:
    """Return whether a read from this position has expired."""
    return is_gone(world, i) or position < min(world.kept, end_of(world, i))


def said_by(world: World, parent: int, child: int) -> int:
    """Return where a child starts according to one of its parents; only the first is exact (C1)."""
    part = world.parts[child]
    is_early = parent != min(part.parents) and world.bounds.scope is Scope.ALL
    return part.born - (is_early and part.born > 0)


def hides(world: World) -> bool:
    """Return whether a partition is not listed yet."""
    return not all(part.shown for part in world.parts)
