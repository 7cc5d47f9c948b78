"""Explores the small histories of a service behind the SPI: the simulation, or a provider on its test server.

The model says what happens in the service (`world.py`) and what a consumer must get (`consumer.py`); the
service does the same, and a reader (`readers.py`) reads it with the engine. A service can go back to an
earlier state, so each history is continued in every way. Every step of a consumer is a new process, which has
nothing but its token. Only the reader `Kept` goes on with the client that has made the steps before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from itertools import count, groupby
from typing import Final

import attrs

from multiclouddb_conformance.explore.consumer import begin, check_read, delivered
from multiclouddb_conformance.explore.kept import Kept
from multiclouddb_conformance.explore.readers import Answers, Pages, Planned, Polls, Reader
from multiclouddb_conformance.explore.search import NEXT, Result, Violation
from multiclouddb_conformance.explore.service import At, Got, Node, Service
from multiclouddb_conformance.explore.world import (
    Bounds,
    BrokenError,
    Consumer,
    Scope,
    World,
    ancestors,
    end_of,
    is_gone,
    moves,
    widened,
)

__all__ = ["LEVEL_GROUPS", "READERS", "Level", "State", "can_explore"]

LEVEL_GROUPS: Final = ("base", "fails", "descendants", "chained")
"""The groups that a level can explore."""
READERS: Final[Mapping[str, Callable[[], Reader]]] = {
    "answers": Answers, "pages": Pages, "kept": Kept, "polls": Polls, "planner": Planned,
}  # fmt: skip
"""The readers by name."""
_PAGES: Final = ("pages", "kept")
_MOST_STEPS: Final = 400


def can_explore(service: Service, reader: str, group: str) -> bool:
    """Return whether a reader can explore a group on a service."""
    if reader == "kept" and not service.keeps_clients:
        return False
    if group == "descendants":
        return reader != "planner"  # a plan reads the whole collection
    return group != "chained" or (
        service.chains and reader not in ("pages", "kept")
    )  # a page reads the chain


@attrs.frozen
class State:
    """One state of service and consumer."""

    node: Node
    token: str = attrs.field(eq=False)
    consumer: Consumer
    mark: Hashable

    def key(self) -> int:
        """Return a number for all that decides what follows."""
        return hash((self.node.number, self.consumer, self.mark))


class Level:
    """All small histories of one service, read by one reader."""

    def __init__(self, service: Service, reader: Reader, bounds: Bounds) -> None:
        self._service, self._reader, self._bounds = service, reader, bounds
        self._here: Node | None = None
        self._nodes = 0

    # -- Steps

    def begin(self) -> State:
        """Return a service with its first records, and a consumer that started before them."""
        # Only one partition and its descendants are read here; somebody else reads the others.
        bounds = attrs.evolve(self._bounds, ahead=False)
        roots = max(self._service.roots, 1 + (bounds.scope is not Scope.ALL or bounds.chained))
        names = tuple(self._service.begin(roots))
        if bounds.chained:
            before = begin(attrs.evolve(bounds, chained=False), roots)
            self._write(Node(before, names, None), before)
            names = (*names, *self._service.reshape(names[-1:], 1))
        world = begin(bounds, roots)
        world = _with(world, Consumer((), world.consumer.got))
        first = Node(world, names, None)
        token = self._reader.open(At(self._service, first, "", bounds))
        self._write(first, world)
        node = self._here = Node(world, names, self._service.save())
        return self._state(node, token, world.consumer)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every step that can follow, with its name and the state after it."""
        node = state.node
        for name, world in self._moves(node.world):
            if self._can(node, name, world):
                yield name, self._moved(state, name, world)
        if not state.consumer.over:
            for name in self._reader.steps(self._at(state)):
                yield name, self._read(state, name)

    def _moves(self, world: World) -> Iterator[tuple[str, World]]:
        """Yield the steps of the service; retention may also remove one moment only."""
        begun = (
            world.now if self._service.trims_open else min(p.born for p in world.parts if p.closed is None)
        )
        for name, after in moves(world):
            if name != "trim":
                yield name, after
                continue
            for each, kept in (("trim", min(begun, after.kept)), ("trim one", world.kept + 1)):
                if world.kept < kept <= min(begun, after.kept) and (each, kept) != ("trim one", begun):
                    yield each, World(world.bounds, world.parts, world.now, kept, world.consumer)

    def _can(self, node: Node, name: str, world: World) -> bool:
        kind, *rest = name.split()
        match kind:
            case "merge":
                self._go(node)
                return self._service.can_merge([node.names[int(i)] for i in rest])
            case "roll":
                return self._service.rolls and ("hide" not in rest or self._hides())
            case "split":
                return "hide" not in rest or self._hides()
            case _:
                return True

    def _hides(self) -> bool:
        return type(self._service).hide is not Service.hide

    def _move(self, node: Node, name: str, world: World) -> Node:
        """Let the service do what the model has done."""
        if (known := node.after.get(name)) is not None:
            return known
        self._go(node)
        self._here = None
        before, names = node.world, [*node.names]
        fresh = range(len(before.parts), len(world.parts))
        for parents, group in groupby(fresh, lambda i: world.parts[i].parents):
            names += self._service.reshape([names[i] for i in parents], len(list(group)))
        for i, part in enumerate(world.parts):
            was = before.parts[i].shown if i < len(before.parts) else True
            if part.shown is not was:
                self._service.hide(names[i], hidden=was)
        if world.kept > before.kept:
            self._service.forget(world.kept)
        self._nodes += 1
        after = Node(world, tuple(names), None, self._nodes)
        if world.now > before.now:
            self._write(after, world)
        after.saved = self._service.save()
        node.after[name], self._here = after, after
        return after

    def _write(self, node: Node, world: World) -> None:
        keys = []
        for i, part in enumerate(world.parts):
            if part.closed is None:
                candidates = (f"{world.now}-{i}-{n}" for n in count())
                keys.append(next(key for key in candidates if self._service.holder(key) == node.names[i]))
        self._service.put(keys, world.now)

    def _go(self, node: Node) -> None:
        if self._here is not node:
            self._service.restore(node.saved)
            self._here = node

    def _at(self, state: State) -> At:
        return At(self._service, state.node, state.token, self._bounds)

    def _state(self, node: Node, token: str, consumer: Consumer) -> State:
        at = At(self._service, node, token, self._bounds)
        mark = None if consumer.over else self._reader.mark(at)
        return State(node, token, consumer, mark)

    def _moved(self, state: State, name: str, world: World) -> State:
        after = self._move(state.node, name, world)
        return self._state(after, state.token, widened(state.consumer, after.world))

    def _read(self, state: State, name: str) -> State:
        self._go(state.node)
        token, told = self._reader.step(self._at(state), name)
        world = _with(state.node.world, state.consumer)
        kept = self._reader.kept(self._at(state), token)
        world = _applied(world, told, state.node.names, kept, copies=self._service.copies)
        return self._state(state.node, token, world.consumer)

    # -- Search

    def explore(self, depth: int, *, seconds: float | None = None, most: int = 3) -> Result:
        """Explore all histories of at most `depth` steps, the shortest first (see `search.explore`)."""
        began = time.process_time()
        first = self.begin()
        visited, good = {first.key()}, set[int]()
        level: list[tuple[State, tuple[str, ...]]] = [(first, ())]
        violations, transitions = list[Violation](), 0

        def result(reached: int, *, complete: bool = True) -> Result:
            took = time.process_time() - began
            return Result(
                reached, len(visited), transitions, self._bounds.partitions, tuple(violations), took, complete
            )

        for reached in range(depth):
            following = list[tuple[State, tuple[str, ...]]]()
            for state, way in level:
                if seconds is not None and time.process_time() - began > seconds:
                    return result(reached, complete=False)
                try:
                    for name, after in self.steps(state):
                        transitions += 1
                        if after.key() in visited:
                            continue
                        visited.add(after.key())
                        try:
                            self.settle(after, good)
                        except BrokenError as broken:
                            violations.append(Violation((*way, name), f"then, read to the end: {broken}"))
                            continue
                        following.append((after, (*way, name)))
                except BrokenError as broken:
                    violations.append(Violation((*way, NEXT), str(broken)))
                if len(violations) >= most:
                    return result(reached, complete=False)
            # Nodes stay together, because going to another state of the service costs most.
            level = sorted(following, key=lambda each: each[0].node.number)
        return result(depth)

    def replay(self, history: Sequence[str]) -> State:
        """Return the state after a history, when everything was read afterwards."""
        state = self.begin()
        for name in history:
            if name == NEXT:
                list(self.steps(state))
            else:
                state = self._next(state, name)
        self.settle(state, set())
        return state

    def _next(self, state: State, name: str) -> State:
        moved = dict(self._moves(state.node.world))
        if name in moved and self._can(state.node, name, moved[name]):
            return self._moved(state, name, moved[name])
        read = [] if state.consumer.over else self._reader.steps(self._at(state))
        if name not in read:
            raise LookupError(f"{name!r} is not possible here, but {sorted([*moved, *read])}")
        return self._read(state, name)

    def settle(self, state: State, good: set[int]) -> None:
        """Read on while the service is silent, and check that nothing is missing at the end."""
        way, tried = list[int](), set[str]()
        state = self._shown(state)
        seen = {state.key()}
        for _ in range(_MOST_STEPS):
            if state.consumer.over:
                break
            if not tried:
                if state.key() in good:
                    break
                way.append(state.key())
            world = _with(state.node.world, state.consumer)
            left = [name for name in self._reader.rest(self._at(state), world) if name not in tried]
            if not left:
                self._check_end(state, world)
                break
            after = self._read(state, left[0])
            # Partitions change their order in the queue for ever, because their answers come in any order.
            tried = tried | {left[0]} if after.key() in seen else set()
            seen.add(after.key())
            state = after
        else:
            raise BrokenError("does not come to an end")
        good.update(way)

    def _shown(self, state: State) -> State:
        """Return the state after every hidden partition is listed."""
        node = state.node
        for i, part in enumerate(node.world.parts):
            if not part.shown:
                name = f"show {i}"
                node = self._move(node, name, dict(moves(node.world))[name])
        return state if node is state.node else self._state(node, state.token, state.consumer)

    def _check_end(self, state: State, world: World) -> None:
        self._reader.check_quiet(self._at(state))
        check_read(world)


def _applied(world: World, told: Got, names: Sequence[str], kept: Collection[str], *, copies: bool) -> World:
    """Return the world after a consumer was told something; `kept` go on where they were."""
    if told.over:
        if not world.kept:
            raise BrokenError("the feed ends before anything was removed")
        return _with(world, Consumer((), world.consumer.got, world.consumer.gap, over=True))
    consumer, every = world.consumer, range(len(world.parts))
    lost = {names.index(name) for name in told.gap if name in names}
    if (lost or told.again) and not world.kept:
        raise BrokenError("something was lost before anything was removed")
    for i in lost if not copies else ():
        # A child of a partition that was read to its end may be lost before it is named.
        if world.kept < max(consumer.got[i], world.parts[i].born) < end_of(world, i):
            raise BrokenError(f"the loss of {i} is told, and nothing of it was removed")
    gap = {*consumer.gap, *lost} | {j for j in every if not lost.isdisjoint(ancestors(world, j))}
    for i in (names.index(name) for name in told.left):
        gap |= {i} | {j for j in ancestors(world, i) if is_gone(world, j)}
    got = consumer.got
    if told.again:
        gap = set(every)
        got = tuple(last if names[i] in kept else -1 for i, last in enumerate(got))
    world = _with(world, Consumer((), got, frozenset(gap)))
    for i in told.together if not copies else ():
        if above := ancestors(world, i) & set(told.together):
            raise BrokenError(f"one batch has rows of {i} and of its ancestors {sorted(above)}")
    for i, moment in told.events:
        if copies:  # only what comes twice or leaves a hole is wrong
            only = tuple(last if j == i else -1 for j, last in enumerate(got))
            alone = _with(world, Consumer((), only, frozenset(gap)))
            last = delivered(alone, i, moment - 1, moment)[i]
            got = (*got[:i], last, *got[i + 1 :])
        else:
            got = delivered(world, i, moment - 1, moment)
        world = _with(world, Consumer((), got, frozenset(gap)))
    for i in reversed(every) if copies else ():
        # Its children have its records. So their notices tell its loss, after the others were read.
        below = {j for j in every if i in world.parts[j].parents}
        if below & gap and all(j in gap or got[j] > world.parts[j].born for j in below):
            gap.add(i)
            world = _with(world, Consumer((), got, frozenset(gap)))
    if told.idle and all(part.shown for part in world.parts):
        check_read(world)
    return world


def _with(world: World, consumer: Consumer) -> World:
    return World(world.bounds, world.parts, world.now, world.kept, consumer)
