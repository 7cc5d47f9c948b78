"""Explores the small histories of a service behind the SPI: the simulation, or a provider on its test server.

The model (`world.py`) says what happens in the service and what a consumer must get; the service does the
same, and a reader (`readers.py`) reads it with the engine. A service can go back to an earlier state, so each
history is continued in every way. Every step of a consumer is a new process: it has nothing but its token.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterator, Sequence
from itertools import count, groupby
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs

from multiclouddb_api import Beginning, ChangeEvent, ResourceAddress
from multiclouddb_conformance.explore.search import NEXT, Result, Violation
from multiclouddb_conformance.explore.world import (
    Bounds,
    BrokenError,
    Consumer,
    Kind,
    World,
    ancestors,
    begin,
    check_read,
    delivered,
    is_gone,
    moves,
    widened,
)
from multiclouddb_spi import Cursor, Feed, FeedStart, Provider

if TYPE_CHECKING:
    from multiclouddb_conformance.explore.readers import Reader

__all__ = ["At", "Got", "Level", "Service"]

ROOTS: Final = 2
_MOST_STEPS: Final = 400


class Service(ABC):
    """A service that does what the model says, and that can go back to an earlier state.

    Attributes:
        kind: What it tells about its partitions.
        address: The collection.
        position: Where a consumer starts; nothing is written before.
        rolls: True if a partition can be replaced by one other.
        empty_answers: How many answers without records may come before the next record.
    """

    kind: ClassVar[Kind]
    address: ResourceAddress
    position: ClassVar[FeedStart] = Beginning()
    rolls: ClassVar[bool] = True
    empty_answers: ClassVar[int] = 0

    @abstractmethod
    def begin(self, partitions: int) -> list[str]:
        """Create the collection with open partitions; return their names."""

    @abstractmethod
    def save(self) -> Any:
        """Return the state."""

    @abstractmethod
    def restore(self, saved: Any) -> None:
        """Go back to a state; this may be done more than once."""

    @abstractmethod
    def provider(self) -> Provider:
        """Connect a new client."""

    @abstractmethod
    def reshape(self, parents: Sequence[str], children: int) -> Sequence[str]:
        """End open partitions; return the names of the new ones."""

    @abstractmethod
    def holder(self, key: str) -> str:
        """Return the name of the open partition that holds a key."""

    @abstractmethod
    def put(self, keys: Sequence[str], moment: int) -> None:
        """Write one item for each key; all that was written before is older."""

    @abstractmethod
    def forget(self, moment: int) -> None:
        """Remove what was written at this moment or earlier, and the partitions that ended by then."""

    def hide(self, name: str, *, hidden: bool) -> None:
        """Keep a partition out of listings, or list it."""
        raise NotImplementedError

    def can_merge(self, names: Sequence[str]) -> bool:
        """Return whether these open partitions can be merged."""
        del names
        return self.kind is not Kind.LATE

    def place(self, feed: Feed, cursor: Cursor) -> Hashable:
        """Return what decides of a position; two positions with the same are read alike."""
        return repr(feed.without_hints(cursor))

    def close(self) -> None:  # noqa: B027 - most services hold nothing
        """Stop the server."""


@attrs.frozen
class Got:
    """What a consumer was told in one step, in this order.

    Attributes:
        gap: The partitions from which something was lost.
        left: Partitions that are read because of it, or that were found late.
        again: True if the whole collection begins again after a loss.
        events: The partition and the moment of each event.
        together: The partitions of which one batch has rows, in any order.
        over: True if the feed ended because of a loss.
        idle: True if the consumer was told that nothing is left.
    """

    gap: Collection[str] = ()
    left: Collection[str] = ()
    again: bool = False
    events: Sequence[tuple[int, int]] = ()
    together: Collection[int] = ()
    over: bool = False
    idle: bool = False


@attrs.define(eq=False)
class Node:
    """One state of the service.

    Attributes:
        world: The model of it, without a consumer.
        names: The names of the partitions.
        saved: What `Service.save` returned.
        after: The states that follow, by step.
    """

    world: World
    names: tuple[str, ...]
    saved: Any
    after: dict[str, Node] = attrs.field(factory=dict)


@attrs.frozen
class At:
    """What a reader sees.

    Attributes:
        service: The service.
        node: Its state.
        token: What the consumer kept.
        fails: True for `Fail()`, False for `SkipToOldest()`.
    """

    service: Service
    node: Node
    token: str
    fails: bool

    def index(self, name: str) -> int:
        """Return the number of a partition in the model."""
        return self.node.names.index(name)


@attrs.frozen
class State:
    """One state of service and consumer.

    Attributes:
        node: The state of the service.
        token: What the consumer kept.
        consumer: What it was given.
        mark: What the token decides.
    """

    node: Node
    token: str = attrs.field(eq=False)
    consumer: Consumer
    mark: Hashable

    def key(self) -> int:
        """Return a number for all that decides what follows."""
        return hash((id(self.node), self.consumer, self.mark))


class Level:
    """All small histories of one service, read by one reader.

    Args:
        service: The service.
        reader: The reader.
        bounds: What may happen; the kind is that of the service.
    """

    def __init__(self, service: Service, reader: Reader, bounds: Bounds) -> None:
        self._service, self._reader, self._bounds = service, reader, bounds
        self._here: Node | None = None

    # -- Steps

    def begin(self) -> State:
        """Return a service with its first records, and a consumer that started before them."""
        names = tuple(self._service.begin(ROOTS))
        world = begin(attrs.evolve(self._bounds, ahead=False), ROOTS)
        world = _with(world, Consumer((), world.consumer.got))
        empty = Node(world, names, None)
        token = self._reader.open(At(self._service, empty, "", self._bounds.fails))
        self._write(empty, world)
        node = self._here = Node(world, names, self._service.save())
        return self._state(node, token, world.consumer)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every step that can follow, with its name and the state after it.

        Raises:
            BrokenError: Raised if a step breaks a promise; its text names the step.
        """
        node = state.node
        for name, world in moves(node.world):
            if self._can(node, name, world):
                after = self._move(node, name, world)
                yield name, self._state(after, state.token, widened(state.consumer, after.world))
        if not state.consumer.over:
            for name in self._reader.steps(self._at(state)):
                yield name, self._read(state, name)

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
        after = Node(world, tuple(names), None)
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
        return At(self._service, state.node, state.token, self._bounds.fails)

    def _state(self, node: Node, token: str, consumer: Consumer) -> State:
        at = At(self._service, node, token, self._bounds.fails)
        mark = None if consumer.over else self._reader.mark(at)
        return State(node, token, consumer, mark)

    def _read(self, state: State, name: str) -> State:
        self._go(state.node)
        token, told = self._reader.step(self._at(state), name)
        world = _with(state.node.world, state.consumer)
        world = _applied(world, told, state.node.names, self._reader.kept(self._at(state), token))
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
            level = sorted(following, key=lambda each: id(each[0].node))
        return result(depth)

    def replay(self, history: Sequence[str]) -> State:
        """Return the state after a history, when everything was read afterwards.

        Raises:
            BrokenError: Raised if a promise does not hold.
        """
        state = self.begin()
        for name in history:
            offered = dict(self.steps(state))
            if name != NEXT:
                if name not in offered:
                    raise LookupError(f"{name!r} is not possible here, but {sorted(offered)}")
                state = offered[name]
        self.settle(state, set())
        return state

    def settle(self, state: State, good: set[int]) -> None:
        """Read on while the service is silent, and check that nothing is missing at the end.

        Args:
            state: Where to begin.
            good: The states that end well; those on the way are added.

        Raises:
            BrokenError: Raised if a promise does not hold.
        """
        way, tried = list[int](), set[str]()
        state = self._shown(state)
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
            tried = tried | {left[0]} if after.key() == state.key() else set()
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


def _applied(world: World, told: Got, names: Sequence[str], kept: Collection[str]) -> World:
    """Return the world after a consumer was told something; `kept` are partitions that go on where they were.

    Raises:
        BrokenError: Raised if it must not be told that now.
    """
    if told.over:
        if not world.kept:
            raise BrokenError("the feed ends before anything was removed")
        return _with(world, Consumer((), world.consumer.got, world.consumer.gap, over=True))
    consumer, every = world.consumer, range(len(world.parts))
    lost = {names.index(name) for name in told.gap if name in names}
    if (lost or told.again) and not world.kept:
        raise BrokenError("something was lost before anything was removed")
    gap = {*consumer.gap, *lost} | {j for j in every if not lost.isdisjoint(ancestors(world, j))}
    for i in (names.index(name) for name in told.left):
        gap |= {i} | {j for j in ancestors(world, i) if is_gone(world, j)}
    got = consumer.got
    if told.again:
        gap = set(every)
        got = tuple(last if names[i] in kept else -1 for i, last in enumerate(got))
    world = _with(world, Consumer((), got, frozenset(gap)))
    for i in told.together:
        if above := ancestors(world, i) & set(told.together):
            raise BrokenError(f"one batch has rows of {i} and of its ancestors {sorted(above)}")
    for i, moment in told.events:
        got = delivered(world, i, moment - 1, moment)
        world = _with(world, Consumer((), got, frozenset(gap)))
    if told.idle and all(part.shown for part in world.parts):
        check_read(world)
    return world


def _with(world: World, consumer: Consumer) -> World:
    return World(world.bounds, world.parts, world.now, world.kept, consumer)


def moment_of(event: ChangeEvent) -> tuple[int, int]:
    """Return the partition of an event in the model, and its moment."""
    moment, i, _ = str(event.key.components["id"]).split("-")
    return int(i), int(moment)
