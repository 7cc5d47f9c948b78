"""Visits every state that can be reached within a number of steps, each of them once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain, permutations, product
from typing import Any, Final, TypeAlias

import attrs

from multiclouddb_conformance.explore.consumer import begin, settle, steps
from multiclouddb_conformance.explore.world import (
    Bounds,
    BrokenError,
    Consumer,
    ListingKind,
    Part,
    Scope,
    World,
)
from multiclouddb_spi import collector_paused
from multiclouddb_spi.continuation.entry import AnyEntry, Plan

__all__ = [
    "GROUPS",
    "NEXT",
    "Result",
    "Violation",
    "bounds_of",
    "chosen",
    "default_depth",
    "explore",
    "random_bounds",
    "replay",
    "said",
    "shortened",
    "test_of",
    "wander",
]

NEXT = "next"
"""The last step of a history: every step that can follow."""

_Way: TypeAlias = "tuple[_Way, str] | None"


@attrs.frozen
class Violation:
    """A promise that does not hold."""

    history: tuple[str, ...]
    problem: str


@attrs.frozen
class Result:
    """What was explored."""

    depth: int
    states: int
    transitions: int
    partitions: int
    violations: tuple[Violation, ...]
    seconds: float
    complete: bool = True


@collector_paused()  # the worlds are kept and contain no cycle: collecting takes a fifth of the time
def explore(
    bounds: Bounds,
    depth: int,
    *,
    seconds: float | None = None,
    most: int = 3,
    passed: Callable[[Result], None] = lambda result: None,
) -> Result:
    """Explore all histories of at most `depth` steps, the shortest first; `passed` is told each depth."""
    began = time.process_time()
    first = begin(bounds)
    visited, good = {_mark_of(first)}, set[int]()
    level: list[tuple[World, _Way]] = [(first, None)]
    violations = list[Violation]()
    transitions = 0
    for reached in range(depth):
        following = list[tuple[World, _Way]]()
        last = reached == depth - 1
        for world, way in level:
            if seconds is not None and time.process_time() - began > seconds:
                return _result(reached, visited, transitions, bounds, violations, began, complete=False)
            try:
                for name, after in steps(world):
                    transitions += 1
                    mark = _mark_of(after)
                    if mark in visited:
                        continue
                    visited.add(mark)
                    here = (way, name)
                    try:
                        settle(after, good)
                    except BrokenError as broken:
                        violations.append(Violation(_names(here), f"then, read to the end: {broken}"))
                        continue
                    if not last:
                        following.append((after, here))
            except BrokenError as broken:
                violations.append(Violation((*_names(way), NEXT), str(broken)))
            if len(violations) >= most:
                return _result(reached, visited, transitions, bounds, violations, began, complete=False)
        level = following
        if not last:
            passed(_result(reached + 1, visited, transitions, bounds, violations, began))
    return _result(depth, visited, transitions, bounds, violations, began)


def _mark_of(world: World) -> int:
    """Return a number that two worlds share if only one of them has to be explored."""
    return min(map(hash, _twins(world))) if world.bounds.symmetric else hash(world)


def _twins(world: World) -> Iterator[World]:
    """Yield the world under every numbering of the partitions that began together."""
    alike = dict[tuple[tuple[int, ...], int], list[int]]()
    for i, part in enumerate(world.parts):
        alike.setdefault((part.parents, part.born), []).append(i)
    for orders in product(*(permutations(group) for group in alike.values())):
        to = dict(zip(chain(*alike.values()), chain(*orders), strict=True))
        yield world if all(i == j for i, j in to.items()) else _renumbered(world, to)


def _renumbered(world: World, to: Mapping[int, int]) -> World:
    back = sorted(to, key=to.__getitem__)
    names = {str(i): str(j) for i, j in to.items()}

    def entry(each: AnyEntry) -> AnyEntry:
        if isinstance(each, Plan):
            return each
        waits, children = (tuple(names.get(one, one) for one in ids) for ids in (each.waits, each.children))
        return attrs.evolve(each, partition_id=names[each.partition_id], waits=waits, children=children)

    def consumer(old: Consumer) -> Consumer:
        entries = tuple(sorted(map(entry, old.entries), key=lambda each: each.partition_id))
        got = tuple(old.got[i] for i in back if i < len(old.got))
        gap, told = (frozenset(to[i] for i in ids) for ids in (old.gap, old.told))
        return Consumer(entries, got, gap, told, old.over)

    def part(i: int) -> Part:
        old = world.parts[i]
        return old._replace(parents=tuple(sorted(to[parent] for parent in old.parents)))

    fetched = frozenset(
        (to[i], position, end, closed, tuple(sorted(to[child] for child in named)))
        for i, position, end, closed, named in world.fetched
    )
    token = None if world.token is None else consumer(world.token)
    return world._replace(
        parts=tuple(map(part, back)), consumer=consumer(world.consumer), fetched=fetched, token=token
    )


def replay(bounds: Bounds, history: Iterable[str]) -> World:
    """Return the world after a history."""
    world = begin(bounds)
    for name in history:
        offered = dict(steps(world))
        if name != NEXT:
            if name not in offered:
                raise LookupError(f"{name!r} is not possible here, but {sorted(offered)}")
            world = offered[name]
    settle(world, set())
    return world


@collector_paused()
def wander(bounds: Bounds, length: int, seed: int) -> Violation | None:
    """Follow one random history; return what it breaks, or None."""
    dice, world, names = random.Random(seed), begin(bounds), list[str]()
    try:
        for _ in range(length):
            if not (offered := list(steps(world))):
                break  # the feed has ended, and the service can do no more
            name, world = dice.choice(offered)
            names.append(name)
        settle(world, set())
    except BrokenError as broken:
        return Violation((*names, NEXT), str(broken))
    return None


def shortened(bounds: Bounds, violation: Violation) -> Violation:
    """Return a violation without the steps that it does not need."""
    for i in reversed(range(len(violation.history))):
        history = violation.history[:i] + violation.history[i + 1 :]
        try:
            replay(bounds, history)
        except BrokenError as broken:
            return shortened(bounds, Violation(history, str(broken)))
        except LookupError:
            pass
    return violation


def _names(way: _Way) -> tuple[str, ...]:
    found = list[str]()
    while way is not None:
        way, name = way
        found.append(name)
    return tuple(reversed(found))


def _result(
    depth: int,
    visited: set[int],
    transitions: int,
    bounds: Bounds,
    violations: list[Violation],
    began: float,
    *,
    complete: bool = True,
) -> Result:
    spent = time.process_time() - began
    return Result(depth, len(visited), transitions, bounds.partitions, tuple(violations), spent, complete)


GROUPS: Final[Mapping[str, Mapping[str, Any]]] = {
    "base": {},
    "crash": {"crash": True},
    "fails": {"fails": True},
    "descendants": {"scope": Scope.DESCENDANTS},
    "refused": {"scope": Scope.DESCENDANTS, "fails": True},
    "key": {"scope": Scope.KEY},
    "scan": {"scan": True, "released": True},
    "cut": {"cut": True, "crash": True},
    "empty": {"empty": True},
    "told": {"told": True, "scope": Scope.DESCENDANTS},
    "watched": {"watched": True},
    "chained": {"chained": True},
    "stops": {"stops": True},
    "horizons": {"horizons": True},
    "forgets": {"forgets": True, "chained": True},
    "reduced": {"open": 2, "ahead": False, "symmetric": True},
}
"""The bounds of each group; the steps of `base` belong to all of them."""


def bounds_of(kind: ListingKind, group: str) -> Bounds:
    """Return what may happen in a group."""
    return Bounds(kind, **GROUPS[group])


def random_bounds(kind: ListingKind, group: str) -> Bounds:
    """Return what may happen in a random history of a group: it has most of what single groups have."""
    bounds = bounds_of(kind, group)
    return attrs.evolve(bounds, crash=True, cut=True, empty=True, horizons=True, forgets=True)


def default_depth(group: str) -> int:
    """Return the default depth of a group; all together take about half an hour of CPU time."""
    return {"base": 7, "reduced": 9}.get(group, 5)


def said(what: str, result: Result) -> str:
    """Return one line about all histories of a kind and group, or of a service and reader."""
    words = f"{what}:".ljust(20)
    broken = len(result.violations)
    over = "" if result.complete or broken else "; the time was over before the next depth"
    return (
        f"{words} all histories of at most {result.depth} steps over at most {result.partitions} partitions: "
        f"{result.states:,} states, {result.transitions:,} transitions, {broken} violations "
        f"({result.seconds:.1f} s){over}"
    )


def test_of(bounds: Bounds, violation: Violation, number: int) -> str:
    """Return a test that fails as long as a promise is broken."""
    steps = "".join(f'        "{step}",\n' for step in violation.history)
    return (
        f"def test_history_{number}():\n"
        f"    # {violation.problem}\n"
        f"    replay(\n        {_written(bounds)},\n        (\n"
        + steps.replace("        ", "            ")
        + "        ),\n    )\n"
    )


def _written(bounds: Bounds) -> str:
    given = list(_given(bounds))
    return f"Bounds({', '.join(given)})"


def _given(bounds: Bounds) -> Iterator[str]:
    yield str(bounds.kind)
    for field in attrs.fields(Bounds)[1:]:
        value = getattr(bounds, field.name)
        if value != field.default:
            yield f"{field.name}={value}"


def chosen(kinds: Collection[str], groups: Collection[str]) -> list[tuple[ListingKind, str]]:
    """Return each pair of a kind and a group; an empty choice means all."""
    return [
        (kind, group)
        for kind in ListingKind
        if not kinds or kind.value in kinds
        for group in GROUPS
        if not groups or group in groups
    ]
