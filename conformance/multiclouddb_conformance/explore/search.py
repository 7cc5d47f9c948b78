"""Visits every state that can be reached within a number of steps, each of them once."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import TypeAlias

import attrs

from multiclouddb_conformance.explore.world import Bounds, BrokenError, World, begin, mark_of, settle, steps

__all__ = ["NEXT", "Result", "Violation", "explore", "replay", "shortened", "wander"]

NEXT = "next"
"""The last step of a history: every step that can follow."""

_Way: TypeAlias = "tuple[_Way, str] | None"


@attrs.frozen
class Violation:
    """A promise that does not hold.

    Attributes:
        history: The shortest history that shows it.
        problem: What is wrong at its end.
    """

    history: tuple[str, ...]
    problem: str


@attrs.frozen
class Result:
    """What was explored.

    Attributes:
        depth: All histories of at most so many steps were explored.
        states: The number of different states.
        transitions: The number of steps between them.
        partitions: The largest number of partitions.
        violations: The first violations of each kind.
        seconds: The CPU time.
        complete: False if the time was over before the last depth was explored.
    """

    depth: int
    states: int
    transitions: int
    partitions: int
    violations: tuple[Violation, ...]
    seconds: float
    complete: bool = True


def explore(bounds: Bounds, depth: int, *, seconds: float | None = None, most: int = 3) -> Result:
    """Explore all histories of at most `depth` steps, the shortest first.

    Args:
        bounds: What may happen.
        depth: The number of steps.
        seconds: The CPU time after which to stop; None to explore all.
        most: Stop after so many violations.
    """
    began = time.process_time()
    first = begin(bounds)
    visited, good = {mark_of(first)}, set[int]()
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
                    mark = mark_of(after)
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
    return _result(depth, visited, transitions, bounds, violations, began)


def replay(bounds: Bounds, history: Iterable[str]) -> World:
    """Return the world after a history.

    Raises:
        BrokenError: Raised if a promise does not hold on the way, or when everything is read afterwards.
    """
    world = begin(bounds)
    for name in history:
        offered = dict(steps(world))
        if name != NEXT:
            if name not in offered:
                raise LookupError(f"{name!r} is not possible here, but {sorted(offered)}")
            world = offered[name]
    settle(world, set())
    return world


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
