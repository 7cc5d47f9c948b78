"""A consumer of the model: the engine's own `Lineage`, with the steps that it can take, and what must hold.

It is given one answer of one partition at a time, in any order, which covers every order in which threads can
deliver answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeGuard

import attrs

from multiclouddb_api import ErrorCategory, Fail, SkipToOldest
from multiclouddb_conformance.explore.feed import WorldFeed
from multiclouddb_conformance.explore.world import (
    RULES_OF,
    Bounds,
    BrokenError,
    Consumer,
    ListingKind,
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
    widened,
)
from multiclouddb_spi import (
    Awaiting,
    Child,
    Continue,
    Deadline,
    Drained,
    Ended,
    Feed,
    Outcome,
    ProviderFault,
    Seed,
)
from multiclouddb_spi.continuation.entry import AnyEntry, Audited, Entry, Plan, Stage
from multiclouddb_spi.continuation.follow import Follow, Found, Looks, apply_end
from multiclouddb_spi.continuation.lineage import INSPECTED, Lineage
from multiclouddb_spi.retry import directly

__all__ = ["begin", "check_read", "delivered", "settle", "steps"]

_PLAN: Final = Plan("plan", None, "0", 0)
_DEADLINE: Final = Deadline.after(1e9)
_LOOK_SECONDS: Final = 600.0


def begin(bounds: Bounds, roots: int = 2) -> World:
    """Return a service with open partitions, and a consumer that has just started at their beginning."""
    _kept.cache_clear()  # a defect may have been planted since then
    parts = tuple(Part((), 0) for _ in range(roots))
    mine = range(roots) if bounds.scope is Scope.ALL else range(1)
    seeds = [Seed(str(i), (), 0) for i in mine]
    got, now = (-1,) * roots, 1
    if bounds.watched and bounds.kind is ListingKind.LATE:
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
    if bounds.kind is ListingKind.LATE:
        if any(map(_is_end, kept)):
            yield "look", _look(world)
            for entry in kept if bounds.stops else ():
                if _is_end(entry):
                    yield f"look at {entry.partition_id}", _look(world, only=entry.partition_id)
            # In a feed of one partition, nothing finds a child that is listed after the last look.
            if bounds.scope is not Scope.DESCENDANTS or all(part.shown for part in world.parts):
                yield "look last", _last_look(world)
        if bounds.scope is not Scope.DESCENDANTS:  # a feed of one partition does not search
            yield "search", _search(world)
    else:
        passed = _passed(world)
        if passed.consumer.entries != kept:
            yield "start", passed


def _root(bounds: Bounds) -> str | None:
    return "0" if bounds.scope is Scope.DESCENDANTS else None


def _lineage(world: World) -> Lineage:
    kind = world.bounds.kind
    audited = Audited() if kind is ListingKind.LATE else None
    return Lineage(world.consumer.entries, RULES_OF[kind], audited, _root(world.bounds))


def _is_end(entry: AnyEntry) -> TypeGuard[Entry]:
    return isinstance(entry, Entry) and entry.stage is Stage.END


def _is_mine(world: World, i: int) -> bool:
    """Return whether a partition belongs to the scope."""
    match world.bounds.scope:
        case Scope.ALL:
            return True
        case Scope.DESCENDANTS:
            return not i or 0 in ancestors(world, i)
        case Scope.KEY:
            return i in held_by_key(world)


def _entries(lineage: Lineage) -> tuple[AnyEntry, ...]:
    return _kept(tuple(lineage))


@lru_cache(maxsize=65536)
def _kept(entries: tuple[AnyEntry, ...]) -> tuple[AnyEntry, ...]:
    """Sort the entries, because the order in which they are read is the explorer's choice."""
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
    world = world._replace(consumer=consumer, fetched=fetched)
    if not entries:  # nothing is left to read, so the feed ends
        check_read(world)
        return world._replace(consumer=consumer._replace(over=True))
    return world


def _read(world: World, i: int) -> World:
    for answer in world.fetched:
        if answer[0] == i:
            return _took(world, *answer)
    entry = next(each for each in world.consumer.entries if each.partition_id == str(i))
    if refuses(world, i, at(entry.cursor)):
        return _lost(world, i)
    closed = world.parts[i].closed is not None
    return _took(
        world, i, at(entry.cursor), end_of(world, i), closed, children_of(world, i) if closed else ()
    )


def _took(world: World, i: int, position: int, end: int, is_end: bool, children: tuple[int, ...]) -> World:
    """Deliver the records (position, end] of a partition, and its end."""
    got = delivered(world, i, position, end)
    world = world._replace(fetched=frozenset(each for each in world.fetched if each[0] != i))
    lineage, late = _lineage(world), world.bounds.kind is ListingKind.LATE
    reading = {each.partition_id for each in lineage.active()}
    lineage.took(str(i), end)
    named = tuple(Child(str(j), parents_of(world, j), said_by(world, i, j)) for j in children)
    outcome: Outcome = Drained(named, complete=not late)
    if not named:
        outcome = Awaiting() if late else Ended(None)
    ending = apply_end(lineage, str(i), outcome if is_end else Continue(), names_late=late)
    started = {each.partition_id for each in lineage.active()} - reading
    if started.difference(() if ending is None else ending.started):
        raise BrokenError(f"{started} start, but {ending} is said")
    if lineage.plan is None:
        for entry in lineage.waiting():
            parents = world.parts[int(entry.partition_id)].parents
            if all(got[j] >= end_of(world, j) and str(j) not in lineage for j in parents):
                raise BrokenError(f"{entry.partition_id} waits, and its parents were read")
    return _with(world, lineage, got=got)


def delivered(world: World, i: int, position: int, end: int) -> tuple[int, ...]:
    """Return up to which time each partition was delivered, after the records (position, end] of one."""
    got, part = world.consumer.got, world.parts[i]
    low = max(position, part.born)
    if end <= low:
        return got
    if any(isinstance(entry, Plan) and entry.holds for entry in world.consumer.entries):
        raise BrokenError(f"{i} is read before the scan ends")
    if not _is_mine(world, i):
        raise BrokenError(f"{i} belongs to another reader")
    for j, last in enumerate(got):
        if j != i and last >= 0 and i in ancestors(world, j):
            raise BrokenError(f"order: {i} after its descendant {j}")
    if low < got[i]:
        raise BrokenError(f"twice: {i}")
    if low > max(got[i], part.born) and i not in world.consumer.gap:
        raise BrokenError(f"a hole without a notice in {i}")
    return (*got[:i], max(got[i], end), *got[i + 1 :])


def _lost(world: World, i: int) -> World:
    """Go on after the service has refused the position of a partition, or end the feed."""
    if world.bounds.fails:
        return _over(world)

    def ask(follow: Follow) -> Found:
        losses = follow.lost((str(i),))
        started = dict.fromkeys(seed.partition_id for loss in losses for seed in loss.left)
        return Found(tuple(started), gaps=follow.told(losses))

    return _asked(world, _lineage(world), ask, refused=str(i))


def _look(world: World, *, only: str | None = None, last: bool = False) -> World:
    lineage = _lineage(world)
    ends = [end for end in lineage.ends() if only in (None, end.partition_id)]
    looks = {int(end.partition_id) for end in ends}
    return _asked(world, lineage, lambda follow: follow.look(ends), looks=looks, last=last)


def _last_look(world: World) -> World:
    after = _look(world, last=True)
    # It forgets what was lost.
    return after._replace(consumer=after.consumer._replace(told=frozenset()))


def _search(world: World) -> World:
    return _asked(world, _lineage(world), lambda follow: follow.search(_DEADLINE))


def _over(world: World) -> World:
    if not world.kept:
        raise BrokenError("a position has expired before anything was removed")
    return world._replace(consumer=world.consumer._replace(over=True), fetched=frozenset())


def _asked(
    world: World,
    lineage: Lineage,
    ask: Callable[[Follow], Found],
    *,
    refused: str | None = None,
    looks: Collection[int] | None = None,
    last: bool = False,
) -> World:
    """Let the consumer ask the service about its partitions; check what it decides and what it is told."""
    bounds, service = world.bounds, WorldFeed(world, lineage)
    before = {each.partition_id: each for each in lineage.listed()}
    begins_again = bounds.kind is ListingKind.ALIVE and any(is_gone(world, int(name)) for name in before)
    missing = _missing(world, before.values(), refused, begins_again=begins_again)
    gone = {i for i in missing if is_gone(world, i) and (looks is None or i in looks)}
    policy = Fail() if bounds.fails else SkipToOldest()
    seconds = 0.0 if last else _LOOK_SECONDS
    try:
        found = ask(Follow(service, lineage, directly, _DEADLINE, policy, _EachLook(), seconds))
    except ProviderFault as refusal:
        return _refused(world, lineage, refusal, gone)
    after = {each.partition_id: each for each in lineage.listed()}
    _check_found(found, before, after, looks=looks is not None)
    if found.gaps and bounds.fails:
        raise BrokenError(f"a loss is skipped: {found.gaps}")
    names = [service.numbers[gap.partition_id] for gap, _ in found.gaps]
    left = {name for _, started in found.gaps for name in started}
    left |= {str(service.numbers[late.partition_id]) for late in found.late}
    lost = {i for i in names if i is not None}
    if len(lost) < len(names) - names.count(None):
        raise BrokenError(f"a loss is told twice: {names}")
    doubtful = _doubtful(world, before).intersection(map(int, after))
    late = {i for i in doubtful if lost.isdisjoint(world.parts[i].parents)}
    if untold := {i for i in late - lost if world.consumer.gap.isdisjoint(world.parts[i].parents)}:
        raise BrokenError(f"the first records of {untold} may be removed, and no notice says so")
    if absent := left - after.keys():
        raise BrokenError(f"a notice says that {absent} are read, and they are not")
    if looks is None and refused is None and (silent := after.keys() - before.keys() - left):
        raise BrokenError(f"a search has found {silent}, and no notice says so")
    gap = world.consumer.gap | lost | _told(world, [after[name] for name in left])
    if refused is None and (bounds.fails or not gone):
        _check_unseen(world, before, lost)
        told = frozenset[int]() if lost else world.consumer.told
        gap = gap.union(*(ancestors(world, i) for i in lost - late))
        return _with(world, lineage, gap=gap, told=told)
    lost -= late
    if not names and bounds.scope is Scope.DESCENDANTS and hides(world):
        return world  # what follows may be listed soon
    if not names and bounds.forgets and _lacks(world, before.values()):
        return world  # a listing without an entry decides nothing
    unseen = {i for i in lost.difference(missing) if bounds.kind is ListingKind.LATE and is_gone(world, i)}
    _check_unseen(world, before, unseen)
    if sorted(lost - unseen) != [i for i in missing if not (begins_again and i in gone)]:
        raise BrokenError(f"{missing} lose records, and {names} are told")
    if bounds.kind is ListingKind.LATE and (
        unsaid := _unread_parents(world, left) - world.consumer.gap - lost
    ):
        raise BrokenError(f"{unsaid} are lost and lead to what is read, and {names} are told")
    if silent := set(found.started).difference(left):
        raise BrokenError(f"{silent} start after a loss, and no notice says so")
    if names.count(None) != begins_again:
        raise BrokenError(f"it begins {'' if begins_again else 'not '}again, and {names} are told")
    for name, old in before.items():
        entry = after.get(name)
        if entry is not None and old.stage is entry.stage is Stage.READ and at(entry.cursor) < at(old.cursor):
            raise BrokenError(f"{name} moves back from {old.cursor} to {entry.cursor}")
    # What lies between a lost partition and what follows it is lost with it; so is what led to one unseen.
    gap |= {j for j in range(len(world.parts)) if not ancestors(world, j).isdisjoint(missing)}
    gap = gap.union(*(ancestors(world, i) for i in unseen))
    got = world.consumer.got
    if begins_again:
        # The notice names the collection: everything from there on comes again, as after a start there.
        gap |= set(range(len(world.parts)))
        kept = {int(name): each.cursor for name, each in after.items()}
        got = tuple(last if kept.get(i) == last else -1 for i, last in enumerate(got))
    there = (part for i, part in enumerate(world.parts) if part.shown and not is_gone(world, i))
    if all(i in gone for part in there for i in part.parents if is_gone(world, i)):
        told = world.consumer.told | gone
    else:  # what follows them cannot be proved
        told = frozenset()
    return _with(world, lineage, got=got, gap=frozenset(gap), told=told)


def _refused(world: World, lineage: Lineage, refusal: ProviderFault, gone: Collection[int]) -> World:
    """End the feed; check that it may end, and that nothing of the token has changed."""
    bounds = world.bounds
    if refusal.fault.category != ErrorCategory.CHECKPOINT_EXPIRED:
        raise BrokenError(f"a defect of the provider: {refusal}")
    if _entries(lineage) != world.consumer.entries:
        raise BrokenError("a loss that is refused changes the token")
    ends = any(int(end.partition_id) in gone for end in lineage.ends())
    if not bounds.fails:
        is_clear = bounds.kind is ListingKind.LISTED or (bounds.kind is ListingKind.LATE and bounds.told)
        if bounds.scope is not Scope.DESCENDANTS or (is_clear and not hides(world)):
            raise BrokenError(f"all parents are listed, and an heir cannot be proved: {refusal}")
    elif not ends and not _misses(world) and not _doubtful(world, lineage):
        raise BrokenError(f"nothing was lost, and the feed ends: {refusal}")
    return _over(world)


def _doubtful(world: World, before: Container[str]) -> set[int]:
    """Return the listed partitions of which nothing shows whether retention has removed their first records.

    Nobody had named them before their parent was removed, and all that is known of it was delivered.
    """
    if world.bounds.kind is not ListingKind.LATE or world.bounds.scope is Scope.DESCENDANTS:
        return set()
    got, parts, gap = world.consumer.got, world.parts, world.consumer.gap
    passed = {j for j, part in enumerate(parts) if j in gap or max(got[j], part.born) >= end_of(world, j)}
    return {
        i
        for i, part in enumerate(parts)
        if part.shown and not is_gone(world, i) and got[i] < 0 and str(i) not in before
        if any(is_gone(world, j) and j in passed for j in part.parents)
    }


def _misses(world: World) -> bool:
    """Return whether something was removed that was neither delivered nor fetched."""
    had = {i: end for i, _, end, *_ in world.fetched}
    return any(
        max(world.consumer.got[i], had.get(i, -1), part.born) < min(world.kept, end_of(world, i))
        for i, part in enumerate(world.parts)
        if _is_mine(world, i)
    )


def _check_found(
    found: Found, before: Mapping[str, Entry], after: Mapping[str, Entry], *, looks: bool
) -> None:
    """Check that the rest of the call reads what starts, and that a look names all that follows an end."""
    starts = {name for name, each in after.items() if each.stage is Stage.READ}
    starts -= {name for name, each in before.items() if each.stage is Stage.READ}
    if silent := starts.difference(found.started):
        raise BrokenError(f"{silent} start, but {found.started} are read now")
    named = {child.partition_id for child in found.children} | {seed.partition_id for seed in found.left}
    if looks and (silent := after.keys() - before.keys() - named):
        raise BrokenError(f"{silent} follow, but {named} are named")


def _check_unseen(world: World, before: Mapping[str, Entry], lost: Collection[int]) -> None:
    """Check the notices of partitions that were lost and are no entries."""
    if twice := world.consumer.told.intersection(lost):
        raise BrokenError(f"the loss of {twice} is told twice")
    # What the token does not show any more may be told as lost.
    shown = {int(name) for name in before}
    shown |= {j for i in shown if not is_gone(world, i) for j in world.parts[i].parents}
    untold = shown.intersection(lost) - world.consumer.gap
    if read := {i for i in untold if world.consumer.got[i] >= end_of(world, i)}:
        raise BrokenError(f"{read} were read, and a notice says that they are lost")


def _unread_parents(world: World, names: Iterable[str]) -> set[int]:
    """Return the parents that retention has removed before all their records were delivered."""
    parents = {j for name in names for j in world.parts[int(name)].parents if is_gone(world, j)}
    got = world.consumer.got
    return {j for j in parents if max(got[j], world.parts[j].born) < end_of(world, j)}


def _missing(world: World, entries: Iterable[Entry], refused: str | None, *, begins_again: bool) -> list[int]:
    """Return the partitions of which records were lost, as the service knows it; one notice names each."""
    found = list[int]()
    for entry in entries:
        i = int(entry.partition_id)
        if entry.stage is Stage.END:
            proved = entry.final or (entry.children and world.bounds.scope is not Scope.DESCENDANTS)
            lost = is_gone(world, i) and bool(entry.said) and not proved
        elif (entry.stage is Stage.WAIT and not begins_again) or world.bounds.kind is ListingKind.LATE:
            # A position does not show its age. Nothing is decided about a partition that a listing lacks.
            lost = is_gone(world, i) or (entry.partition_id == refused and world.parts[i].shown)
        else:
            lost = refuses(world, i, at(entry.cursor))
        found += [i] * lost
    return sorted(found)


def _lacks(world: World, entries: Iterable[Entry]) -> bool:
    """Return whether a listing lacks a partition that is an entry and exists."""
    known = {int(entry.partition_id) for entry in entries if entry.said}
    return any(not world.parts[i].shown and not is_gone(world, i) for i in known)


def _told(world: World, entries: Sequence[Entry]) -> set[int]:
    """Return the partitions of which a notice says where reading goes on, after something was lost."""
    starts = {int(each.partition_id): min(map(at, each.said)) for each in entries if each.said}
    late = {i for i, start in starts.items() if start > world.parts[i].born}
    gone = {j for i in starts for j in ancestors(world, i) if is_gone(world, j)}
    return late | (gone if late else set())


class _EachLook(Looks):
    """Counts each look, as if its pause had passed."""

    def asked(self, feed: Feed, end: Entry) -> bool:
        return True


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
    if world.bounds.kind is not ListingKind.LATE:
        return _passed(world)
    for ask in (_look, _search, _last_look):
        if ask is _search and world.bounds.scope is Scope.DESCENDANTS:
            continue
        if ask is _last_look:
            if not world.settled:
                continue
            _check_quiet(world)
        if (after := ask(world)) != world:
            return after
    return world._replace(settled=all(part.closed is not None for part in world.parts))


def check_settled(world: World) -> None:
    """Check a world in which nothing is left to do."""
    if world.consumer.over:
        return
    if world.settled:
        raise BrokenError("the stream was disabled, and the feed does not end")
    _check_quiet(world)
    check_read(world)


def _check_quiet(world: World) -> None:
    lineage = _lineage(world)
    if waiting := lineage.waiting():
        raise BrokenError(f"waits for ever: {[(each.partition_id, each.waits) for each in waiting]}")
    if not lineage.is_quiet({each.partition_id for each in lineage.active()}):
        raise BrokenError("never idle")


def check_idle(world: World) -> None:
    """Check that nothing is left to read in a world that calls itself idle.

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
    if world.bounds.kind is not ListingKind.LATE:
        check_read(world)
    elif not active and any(part.closed is None for part in parts):
        raise BrokenError("idle, and reads nothing")


def check_read(world: World) -> None:
    """Check that every record was delivered, or was removed with a notice."""
    for i, part in enumerate(world.parts):
        if not _is_mine(world, i):
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
        known: Hashes of worlds that are known to end well; those that are visited are added.

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
