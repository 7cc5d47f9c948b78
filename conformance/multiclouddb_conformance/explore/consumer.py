"""A consumer of the model: the engine's own `Lineage`, with the steps that it can take, and what must hold.

It is given one answer of one partition at a time, in any order, which covers every order in which threads can
deliver answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import attrs

from multiclouddb_conformance.explore.world import (
    RULES_OF,
    Bounds,
    BrokenError,
    Consumer,
    Kind,
    Part,
    Scope,
    World,
    ancestors,
    at,
    children_of,
    end_of,
    held_by_key,
    hides,
    is_gone,
    moves,
    parents_of,
    refuses,
    said_by,
    survey_of,
    widened,
)
from multiclouddb_spi import Child, Cursor, Seed, Survey
from multiclouddb_spi.continuation.entry import AnyEntry, Entry, Plan, Stage
from multiclouddb_spi.continuation.lineage import INSPECTED, Lineage, NotProvableError

__all__ = ["begin", "check_read", "delivered", "settle", "steps"]

_PLAN: Final = Plan("plan", None, "0", 0)


def begin(bounds: Bounds, roots: int = 2) -> World:
    """Return a service with open partitions, and a consumer that has just started at their beginning."""
    _kept.cache_clear()  # a defect may have been planted since then
    parts = tuple(Part((), 0) for _ in range(roots))
    mine = range(roots) if bounds.scope is Scope.ALL else range(1)
    seeds = [Seed(str(i), (), 0) for i in mine]
    got, now = (-1,) * roots, 1
    if bounds.watched and bounds.kind is Kind.LATE:
        n, now = len(parts), 2
        parts = (*parts, Part((), 0, 1), Part((n,), 1))
        seeds = [
            *(attrs.evolve(seed, cursor=1) for seed in seeds),
            Seed(str(n), (), 1, ended=True),
            Seed(str(n + 1), (str(n),), 1),
        ]
        got = (*(1 for _ in range(roots + 1)), -1)
    if bounds.chained:
        n, now = len(parts), 2
        parts = (*parts[:-1], Part((), 0, 1), Part((n - 1,), 1))
        seeds, got = [*seeds, Seed(str(n), (str(n - 1),), 1)], (*got, -1)
    lineage = Lineage.from_seeds(seeds, RULES_OF[bounds.kind], root=_root(bounds))
    if bounds.scan:
        lineage.begin_scan(attrs.evolve(_PLAN, holds=True))
    consumer = Consumer(_entries(lineage), got)
    return World(bounds, parts, now, 0, consumer, token=consumer if bounds.crash else None)


def steps(world: World) -> Iterator[tuple[str, World]]:
    """Yield every step that can follow, with its name and the world after it."""
    yield from moves(world)
    if not world.consumer.over:
        yield from _consumer(world)
    if world.bounds.crash and world.token is not None:
        if world.token != world.consumer:
            yield "save", world._replace(token=world.consumer)
            yield "crash", world._replace(consumer=widened(world.token, world), fetched=frozenset())
        elif world.fetched:
            yield "crash", world._replace(fetched=frozenset())


def _consumer(world: World) -> Iterator[tuple[str, World]]:
    bounds, kept = world.bounds, world.consumer.entries
    for entry in kept:
        if isinstance(entry, Plan):
            yield "scan ends", _scanned(world, over=True)
            if bounds.released and entry.holds:
                yield "release", _scanned(world, over=False)
        elif entry.stage is Stage.READ:
            i = int(entry.partition_id)
            yield f"read {i}", _read(world, i)
            end, position = end_of(world, i), at(entry.cursor)
            if bounds.cut and end - position > 1 and not refuses(world, i, position):
                yield f"read one of {i}", _took(world, i, position, position + 1, False, ())
            if bounds.ahead and not any(each[0] == i for each in world.fetched):
                closed = world.parts[i].closed is not None
                if (closed or end > position) and not refuses(world, i, position):
                    answer = (i, position, end, closed, children_of(world, i) if closed else ())
                    yield f"fetch {i}", world._replace(fetched=world.fetched | {answer})
    if bounds.kind is Kind.LATE:
        if any(isinstance(entry, Entry) and entry.stage is Stage.END for entry in kept):
            yield "look", _look(world, most=1000)
            # In a feed of one partition, nothing finds a child that is listed after the last look.
            if bounds.scope is not Scope.DESCENDANTS or all(part.shown for part in world.parts):
                yield "look last", _look(world, most=1)
        if bounds.scope is not Scope.DESCENDANTS:  # a feed of one partition does not search
            yield "search", _search(world)
    else:
        passed = _passed(world)
        if passed.consumer.entries != kept:
            yield "start", passed


def _root(bounds: Bounds) -> str | None:
    return "0" if bounds.scope is Scope.DESCENDANTS else None


def _lineage(world: World) -> Lineage:
    return Lineage(world.consumer.entries, RULES_OF[world.bounds.kind], root=_root(world.bounds))


def _entries(lineage: Lineage) -> tuple[AnyEntry, ...]:
    return _kept(tuple(lineage))


@lru_cache(maxsize=65536)
def _kept(entries: tuple[AnyEntry, ...]) -> tuple[AnyEntry, ...]:
    """Return the entries in an order of their own: in which order they are read is the explorer's choice."""
    again = Lineage.from_json(Lineage(entries, INSPECTED).to_json(), INSPECTED)
    if tuple(again) != entries:
        raise BrokenError(f"a token is read as something else: {list(again)}, not {list(entries)}")
    return tuple(sorted(map(_plain, entries), key=lambda each: each.partition_id))


def _plain(entry: AnyEntry) -> AnyEntry:
    if isinstance(entry, Entry) and entry.looks:
        return attrs.evolve(entry, looks=0)
    return entry


def _with(world: World, lineage: Lineage, **more: Any) -> World:
    """Return the world after the consumer's lineage has changed; `more` changes the rest of the consumer."""
    entries = _entries(lineage)
    if len(entries) > len(world.parts) + world.bounds.scan:
        raise BrokenError(f"a token of {len(entries)} entries for {len(world.parts)} partitions")
    there = {each.partition_id: each for each in entries}
    fetched = frozenset(
        answer
        for answer in world.fetched
        if isinstance(entry := there.get(str(answer[0])), Entry)
        and entry.stage is Stage.READ
        and entry.cursor == answer[1]
    )
    consumer = world.consumer._replace(entries=entries, **more)
    return world._replace(consumer=consumer, fetched=fetched)


def _read(world: World, i: int) -> World:
    for answer in world.fetched:
        if answer[0] == i:
            return _took(world, *answer)
    entry = next(each for each in world.consumer.entries if each.partition_id == str(i))
    if refuses(world, i, at(entry.cursor)):
        return _lost(world, {str(i)})
    closed = world.parts[i].closed is not None
    return _took(
        world, i, at(entry.cursor), end_of(world, i), closed, children_of(world, i) if closed else ()
    )


def _took(world: World, i: int, position: int, end: int, is_end: bool, children: tuple[int, ...]) -> World:
    """Deliver the records (position, end] of a partition, and its end."""
    got = delivered(world, i, position, end)
    world = world._replace(fetched=frozenset(each for each in world.fetched if each[0] != i))
    lineage = _lineage(world)
    lineage.took(str(i), end)
    if is_end:
        named = [Child(str(j), parents_of(world, j), said_by(world, i, j)) for j in children]
        lineage.ended(str(i), named, complete=world.bounds.kind is not Kind.LATE)
    return _with(world, lineage, got=got)


def delivered(world: World, i: int, position: int, end: int) -> tuple[int, ...]:
    """Return up to which time each partition was delivered, after the records (position, end] of one."""
    got, part = world.consumer.got, world.parts[i]
    low = max(position, part.born)
    if end <= low:
        return got
    if any(isinstance(entry, Plan) and entry.holds for entry in world.consumer.entries):
        raise BrokenError(f"{i} is read before the scan ends")
    if world.bounds.scope is Scope.DESCENDANTS and i and 0 not in ancestors(world, i):
        raise BrokenError(f"{i} belongs to another reader")
    if world.bounds.scope is Scope.KEY and i not in held_by_key(world):
        raise BrokenError(f"{i} does not hold the key")
    for j, last in enumerate(got):
        if j != i and last >= 0 and i in ancestors(world, j):
            raise BrokenError(f"order: {i} after its descendant {j}")
    if low < got[i]:
        raise BrokenError(f"twice: {i}")
    if low > max(got[i], part.born) and i not in world.consumer.gap:
        raise BrokenError(f"a hole without a notice in {i}")
    return (*got[:i], max(got[i], end), *got[i + 1 :])


def _lost(world: World, expired: Collection[str]) -> World:
    """Go on after a loss, or end the feed."""
    if not world.kept:
        raise BrokenError("a position has expired before anything was removed")
    if world.bounds.fails:
        return world._replace(consumer=world.consumer._replace(over=True), fetched=frozenset())
    lineage = _lineage(world)
    survey = survey_of(world, _asked(lineage))
    before = {each.partition_id: each for each in lineage.listed()}
    missing = _missing(world, before.values(), begins_again=bool(survey.heirs and lineage.gone(survey)))
    try:
        losses = lineage.lost(survey, expired)
    except NotProvableError:
        bounds = world.bounds
        if bounds.kind is Kind.LISTED or (bounds.kind is Kind.LATE and bounds.told and not hides(world)):
            raise BrokenError("all parents are listed, and it says that an heir cannot be proved") from None
        return world._replace(consumer=world.consumer._replace(over=True), fetched=frozenset())
    if not losses and world.bounds.scope is Scope.DESCENDANTS and hides(world):
        return world
    if sorted(loss.partition_id for loss in losses) != missing:
        raise BrokenError(f"{missing} lose records, and {losses} are told")
    for each in lineage.active():
        old = before.get(each.partition_id)
        if old is not None and old.stage is Stage.READ and at(each.cursor) < at(old.cursor):
            raise BrokenError(f"{each.partition_id} moves back from {old.cursor} to {each.cursor}")
    names = {int(loss.partition_id) for loss in losses}
    gap = world.consumer.gap | names | _told(world, [seed for loss in losses for seed in loss.left])
    # What lies between a lost partition and what follows it is lost with it.
    gap |= {j for j in range(len(world.parts)) if not names.isdisjoint(ancestors(world, j))}
    got = world.consumer.got
    if survey.heirs is not None:
        # The notice names the collection: everything from there on comes again, as after a start there.
        gap |= set(range(len(world.parts)))
        kept = {each.partition_id: each.cursor for each in lineage.active()}
        got = tuple(last if kept.get(str(i)) == last else -1 for i, last in enumerate(got))
    told, there = world.consumer.told, {int(parent) for each in survey.present for parent in each.parents}
    if all(i in names for i in there if is_gone(world, i)):  # else what follows them cannot be proved
        told |= {i for i in names if is_gone(world, i)}
    else:
        told = frozenset()
    return _with(world, lineage, got=got, gap=frozenset(gap), told=told)


def _asked(lineage: Lineage) -> dict[str, Cursor]:
    waits = {parent for each in lineage.waiting() for parent in each.waits if parent not in lineage}
    return dict.fromkeys(waits) | {each.partition_id: each.cursor for each in lineage.listed()}


def _missing(world: World, entries: Iterable[Entry], *, begins_again: bool) -> list[str]:
    """Return the partitions of which records were lost, as the service knows it; one notice names each."""
    found = list[str]()
    for entry in entries:
        i = int(entry.partition_id)
        if entry.stage is Stage.END:
            proved = entry.children and world.bounds.scope is not Scope.DESCENDANTS
            lost = is_gone(world, i) and bool(entry.said) and not proved
        else:
            waits = entry.stage is Stage.WAIT and not begins_again
            lost = is_gone(world, i) if waits else refuses(world, i, at(entry.cursor))
        found += [entry.partition_id] * lost
    return sorted(found)


def _look(world: World, most: int) -> World:
    lineage = _lineage(world)
    ends = [each.partition_id for each in lineage.ends()]
    survey = survey_of(world, {end.partition_id: end.cursor for end in lineage.ends()})
    if lineage.gone(survey):
        return _lost(world, ())
    if lineage.is_doubtful:
        world = _found(world, lineage, survey_of(world, _asked(lineage)))
        if world.consumer.over:
            return world
    lineage.looked(survey, ends, most)
    # The last look forgets what was lost.
    return _with(world, lineage, **({"told": frozenset()} if most == 1 else {}))


def _search(world: World) -> World:
    lineage = _lineage(world)
    survey = survey_of(world, _asked(lineage))
    if lineage.gone(survey):
        return _lost(world, ())
    return _found(world, lineage, survey)


def _found(world: World, lineage: Lineage, survey: Survey) -> World:
    """Read what nothing leads to, or end the feed."""
    over = world._replace(consumer=world.consumer._replace(over=True), fetched=frozenset())
    try:
        added, losses = lineage.found(survey, skips=not world.bounds.fails)
    except NotProvableError:
        return over
    if losses and world.bounds.fails:
        if _entries(lineage) != world.consumer.entries:
            raise BrokenError("a loss that is refused changes the token")
        return over
    if world.bounds.scope is Scope.DESCENDANTS:  # a look says nothing of what it adds, but for losses
        added = [seed for loss in losses for seed in loss.left]
    gap = world.consumer.gap | _told(world, added)
    told = frozenset[int]() if losses else world.consumer.told
    for loss in losses:
        if int(loss.partition_id) in world.consumer.told:
            raise BrokenError(f"the loss of {loss.partition_id} is told twice")
        gap |= {int(loss.partition_id), *ancestors(world, int(loss.partition_id))}
    return _with(world, lineage, gap=frozenset(gap), told=told)


def _told(world: World, seeds: Sequence[Seed]) -> set[int]:
    """Return the partitions of which a notice says where reading goes on, after something was lost."""
    late = {
        int(seed.partition_id) for seed in seeds if at(seed.cursor) > world.parts[int(seed.partition_id)].born
    }
    gone = {j for seed in seeds for j in ancestors(world, int(seed.partition_id)) if is_gone(world, j)}
    return late | (gone if late else set())


def _passed(world: World) -> World:
    lineage = _lineage(world)
    lineage.start_passed()
    return _with(world, lineage)


def _scanned(world: World, *, over: bool) -> World:
    lineage = _lineage(world)
    if over:
        lineage.end_scan()
    else:
        lineage.release_stream()
    return _with(world, lineage)


def drained(world: World) -> World:
    """Return the world after one more step while the service is silent; itself if nothing is left to do."""
    if not all(part.shown for part in world.parts):
        world = world._replace(parts=tuple(part._replace(shown=True) for part in world.parts))
    if world.consumer.over:
        return world
    for entry in world.consumer.entries:
        if isinstance(entry, Plan):
            return _scanned(world, over=True)
        if entry.stage is Stage.READ:
            i = int(entry.partition_id)
            ends = world.parts[i].closed is not None
            if ends or at(entry.cursor) < world.now or any(each[0] == i for each in world.fetched):
                return _read(world, i)
    if world.bounds.kind is not Kind.LATE:
        return _passed(world)
    looked = _look(world, most=1000)
    if looked != world or looked.consumer.over or world.bounds.scope is Scope.DESCENDANTS:
        return looked
    return _search(looked)


def check_settled(world: World) -> None:
    """Check a world in which nothing is left to do."""
    if world.consumer.over:
        return
    lineage = _lineage(world)
    if waiting := lineage.waiting():
        raise BrokenError(f"waits for ever: {[(each.partition_id, each.waits) for each in waiting]}")
    if not lineage.is_quiet({each.partition_id for each in lineage.active()}):
        raise BrokenError("never idle")
    check_read(world)


def check_idle(world: World) -> None:
    """Check that a world that says that it is idle is so.

    Raises:
        BrokenError: Raised if something is left to read. A partition that is named late may be.
    """
    lineage, parts = _lineage(world), world.parts
    if world.consumer.over:
        return
    active = lineage.active()
    done = {each.partition_id for each in active if at(each.cursor) == world.now}
    if not lineage.is_quiet({name for name in done if parts[int(name)].closed is None}):
        return
    if world.bounds.kind is not Kind.LATE:
        check_read(world)
    elif not active and any(part.closed is None for part in parts):
        raise BrokenError("idle, and reads nothing")


def check_read(world: World) -> None:
    """Check that every record was delivered, or was removed with a notice."""
    for i, part in enumerate(world.parts):
        if world.bounds.scope is Scope.DESCENDANTS and i and 0 not in ancestors(world, i):
            continue
        if world.bounds.scope is Scope.KEY and i not in held_by_key(world):
            continue
        end = end_of(world, i)
        if end > part.born and world.consumer.got[i] < end:
            if end > world.kept:
                raise BrokenError(f"lost although it is kept: {i}")
            if i not in world.consumer.gap:
                raise BrokenError(f"lost without a notice: {i}")


def settle(world: World, known: set[int]) -> None:
    """Read on while the service is silent, and check that nothing is missing at the end.

    Args:
        world: Where to begin.
        known: Hashes of worlds that end well; those on the way are added.

    Raises:
        BrokenError: Raised if a promise does not hold.
    """
    check_idle(world)
    way = list[int]()
    for _ in range(200):
        mark = hash(world)
        if mark in known:
            break
        way.append(mark)
        after = drained(world)
        if after == world:
            check_settled(world)
            break
        world = after
    else:
        raise BrokenError("does not come to an end")
    known.update(way)
