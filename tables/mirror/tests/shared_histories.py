"""Every small history of two collections of a database and of their tables, which share one reading of it.

A history is a path in a tree: from each state, every action leads to the next one. A run is one action; each
moment at which it can be killed is a state too, because a table notes itself after each of its steps. The
judge looks at the service itself, and at positions; it knows nothing else of what the library says.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from threading import RLock
from unittest.mock import patch

import attrs

from multiclouddb_api import (
    BackfillDone,
    ChangeType,
    ErrorCategory,
    ErrorDetail,
    MulticloudDbClient,
    MulticloudDbError,
    ResourceAddress,
    SnapshotStarted,
)
from multiclouddb_mirror import MirrorJob, Mirrors, mirror
from multiclouddb_mirror.destinations import Destination
from multiclouddb_spi.continuation.token import decode_token
from multiclouddb_spi.token_report import is_in_snapshot, lineage_of
from multiclouddb_tables.mark import FeedSource, FoundTable, TableMark

from .memory_service import DATABASE, LOG, Service, partition_of, time_of

NAMES = ("a", "b")


class Violation(AssertionError):  # noqa: N818 - of a promise
    """A promise is broken."""


@attrs.frozen
class Row:
    order: str
    document: dict | None
    deleted_at: object = None


@attrs.define
class Table:
    """What is durable of a table, and what the judge knows of it."""

    rows: dict = attrs.field(factory=dict)
    token: str | None = None
    mark: TableMark | None = None
    seen: dict = attrs.field(factory=dict)
    """The newest change of each key that was ever merged."""
    floor: str = ""
    """Every change up to it was merged with the last copy."""
    source: str | None = None
    """The collection of which it is a copy."""
    number: int = 0
    """Its number."""
    positioned: int = 0
    """The number of the collection in which the stored position is; an earlier one, until it is replaced."""
    copies: bool = False
    """True during a copy."""

    def copy(self):
        return attrs.evolve(self, rows=dict(self.rows), seen=dict(self.seen))

    def state(self):
        rows = tuple(
            sorted((k, r.order, r.document and r.document["v"], r.deleted_at) for k, r in self.rows.items())
        )
        place = None
        if self.token is not None:
            envelope = decode_token(self.token)
            place = repr((envelope.state, envelope.incarnation, envelope.watermark, envelope.fresh))
            if self.copies:
                place = self.token
        return (
            rows,
            place,
            tuple(sorted(self.seen.items())),
            self.floor,
            self.number,
            self.positioned,
            self.copies,
        )


class Destined(Destination):
    """A table in memory, which notes its state after each step."""

    is_kept = True

    def __init__(self, world, name, fails_at=None):
        self._world, self._name, self._fails_at = world, name, fails_at
        super().__init__(self)

    name = property(lambda self: f"memory:{self._name}")
    table = property(lambda self: self._world.tables[self._name])

    def _step(self):
        if self._fails_at is not None and len(self._world.noted[self._name]) > self._fails_at:
            raise MulticloudDbError("does not fit; change it", ErrorDetail(ErrorCategory.INVALID_REQUEST))

    def _note(self):
        self._world.noted[self._name].append(self.table.copy())

    def begin(self):
        pass

    def end(self):
        pass

    def found(self, since=None):
        return None if self.table.mark is None else FoundTable(self.table.mark)

    def load(self):
        return self.table.token

    stored = load

    def merge_alone(self, batch, **how):
        self.merge(batch)

    def merge(self, page, **how):
        with self._world.lock:
            self._merge_page(page)

    def _merge_page(self, page):
        self._step()
        table, service = self.table, self._world.service
        for notice in page.notices:
            if isinstance(notice, SnapshotStarted):
                # The scan may be older than the collection that has this name now.
                table.number, table.copies = int(notice.floor.partition("~")[2]), True
                table.source = service.sources[table.number]
                table.rows = {key: attrs.evolve(row, order="") for key, row in table.rows.items()}
                table.seen, table.floor = {}, notice.floor
        source = FeedSource.of_page(page)
        if source is not None:
            table.mark = TableMark(source)
        for event in page.events:
            self._merge(event)
        for notice in page.notices:
            if isinstance(notice, BackfillDone):
                for key, row in table.rows.items():
                    if row.order < notice.floor:
                        table.rows[key] = Row(notice.floor, None, row.deleted_at or time_of(service.tick))
                table.copies = False
        self._world.judge_rows(self._name)
        self._note()

    def _merge(self, event):
        table, (key,) = self.table, event.key.components.values()
        there = table.rows.get(key)
        table.seen[key] = max(table.seen.get(key, ""), event.order_key)
        if there is None or there.order < event.order_key:
            gone = event.type is ChangeType.DELETE
            at = time_of(self._world.service.tick) if gone else None
            table.rows[key] = Row(event.order_key, None if gone else event.new_item_state, at)

    def save(self, token, *, now):
        if token != self.table.token and self.table.mark is not None:
            self._step()
            self._world.judge_position(self._name, token)
            self.table.token, self.table.positioned = token, self.table.number
            self._note()

    def drop_tombstones(self, before):
        rows = self.table.rows
        old = [key for key, row in rows.items() if row.document is None and row.deleted_at < before]
        for key in old:
            del rows[key]
        self._note()
        return len(old)

    def check_declaration(self, columns, *, refill):
        raise NotImplementedError

    def store(self, numbers):
        raise NotImplementedError

    def number(self, name):
        raise NotImplementedError

    def compact(self):
        raise NotImplementedError

    def lacking_right(self):
        raise NotImplementedError


class World:
    """A service, its tables, and how it came to them."""

    def __init__(self, service, tables=None, history=()):
        self.service, self.history = service, history
        self.tables = {name: Table() for name in NAMES} if tables is None else tables
        self.noted = {}
        self.lock = RLock()

    def copy(self, action):
        tables = {name: table.copy() for name, table in self.tables.items()}
        return World(self.service.copy(), tables, (*self.history, action))

    def state(self):
        return self.service.state(), tuple(table.state() for table in self.tables.values())

    # -- The judge

    def fail(self, name, text):
        raise Violation(f"table {name}: {text}, after {' | '.join(map(str, self.history))}")

    def _newer(self, one, other):
        """Return whether an order is certainly newer.

        A position of a collection in LOG may be before the whole transaction.
        """
        return one[:6] > other[:6] if self.service.kind == LOG else one > other

    def judge_rows(self, name):
        table = self.tables[name]
        for key, row in table.rows.items():
            if row.document is None:
                continue
            if row.document["of"] != name:
                self.fail(name, f"has {key} of {row.document['of']}")
            if row.order and row.document["in"] != table.source:
                self.fail(name, f"has {key} of the collection {row.document['in']}, not {table.source}")
            if row.order and self._newer(table.seen.get(key, ""), row.order):
                self.fail(name, f"{key} is {row.order} again, after {table.seen[key]}")

    def judge_position(self, name, token):
        """Check a position that is about to be stored."""
        table = self.tables[name]
        envelope = decode_token(token)
        if envelope.address != ResourceAddress(DATABASE, name) or envelope.scope != "collection":
            self.fail(name, f"stores a position of {envelope.address}, {envelope.scope}")
        if is_in_snapshot(token):
            return
        new = places(token)
        if table.token is not None and not is_in_snapshot(table.token):
            for partition, place in places(table.token).items():
                if self._newer(order_of(place), order_of(new[partition])):
                    self.fail(name, f"{partition} goes back from {place} to {new[partition]}")
        for change in self.service.log:
            if change.key is None or change.collection != name or self._made(change) != table.source:
                continue
            partition = partition_of(change.key) if len(new) > 1 else "p0"
            merged = max(table.seen.get(change.key, ""), table.floor)
            if change.place < new[partition] and merged < change.order:
                self.fail(name, f"stores {new}, and {change.key} {change.order} is not merged")

    def _made(self, change):
        return f"{change.incarnation}/{change.field}"

    def judge_end(self, name, outcome, began):
        """Check what became of a run that has ended by itself.

        Args:
            name: The table.
            outcome: Its report or error.
            began: The service when the run began.
        """
        table, there = self.tables[name], self.service.collections.get(name)
        if isinstance(outcome, MulticloudDbError):
            if there is not None and there.number == table.positioned:
                self.fail(name, f"{outcome!r}")
            return
        if not outcome.caught_up:
            self.fail(name, f"has not caught up: {outcome}")
        first = began.collections.get(name)
        if first is None or first.number != table.number:
            if self.is_told(name):
                self.fail(name, "does not say that its collection is another one")
            return
        if there is None or there.number != table.number:
            return  # it was made again after everything was read, which the next run finds
        # It has the newest rows: those from when the run began, or later ones.
        live = self.live(name)
        for key in {*live, *first.rows, *there.rows}:
            later = [
                c.document
                for c in self.service.log
                if c.tick > began.tick and (c.collection, c.key) == (name, key)
            ]
            if live.get(key) not in [first.rows.get(key), *later]:
                self.fail(
                    name, f"{key} is {live.get(key)} and not {first.rows.get(key)}, though it has caught up"
                )

    def live(self, name):
        """Return the documents of a table."""
        return {key: row.document for key, row in self.tables[name].rows.items() if row.document is not None}

    def is_equal(self, name):
        """Return whether a table has the rows of its collection."""
        with self.service.lock:
            there = self.service.collections.get(name)
            return there is not None and self.live(name) == there.rows

    def is_told(self, name):
        """Return whether the service says that the collection of a table is gone."""
        if self.service.kind == LOG:
            return True
        there = self.service.collections.get(name)
        return there is None or self.service.made_of(name) != self.tables[name].source

    # -- Actions

    def write(self, *writes):
        """Return what follows if the writes are committed in one transaction; None if they cannot be."""
        for name, key, puts in writes:
            there = self.service.collections.get(name)
            if there is None or not (puts or key in there.rows):
                return None
        text = "+".join(f"{'put' if puts else 'delete'} {name}.{key}" for name, key, puts in writes)
        made = self.copy(text)
        made.service.write(*writes)
        return made

    def change(self, text, action):
        """Return what follows if something happens to the service."""
        made = self.copy(text)
        action(made.service)
        return made

    def run(
        self,
        names=NAMES,
        *,
        fails=None,
        meanwhile=None,
        disturbed=("database", 1),
        text=None,
        follows=False,
        **settings,
    ):
        """Return the states after a run, of which the first is that of its end.

        Args:
            names: The tables. One of them is run alone.
            fails: A table, and the number of its steps after which each fails.
            meanwhile: What happens to the service while the run reads.
            disturbed: See `Service.disturbed`.
            text: How the action is called.
            follows: True to go on until every table is equal.
            **settings: The settings of the run.
        """
        made = self.copy(text or f"run {' '.join(names)}{'' if fails is None else f' {fails}'}")
        made.noted = {name: [made.tables[name].copy()] for name in names}
        began = made.service.copy()
        made.service.meanwhile, made.service.disturbed = meanwhile, disturbed
        to = {name: Destined(made, name, fails[1] if fails and fails[0] == name else None) for name in names}
        if follows:
            ended = _followed(made, to)
        else:
            settings = {"tombstones": timedelta(0), **settings}
            with made.service.connect() as client:
                if len(names) > 1:
                    ended = _mirrored(client, to, settings)
                else:
                    ended = {name: _tried(client, name, to[name], settings) for name in names}
        made.service.meanwhile = None
        for name, outcome in ended.items():
            if isinstance(outcome, MulticloudDbError) and isinstance(outcome.__cause__, Violation):
                raise outcome.__cause__
            is_error = isinstance(outcome, MulticloudDbError)
            if is_error if follows else not is_error or fails is None or fails[0] != name:
                made.judge_end(name, outcome, began)
        yield made
        # Killed: each table stands after some of its steps.
        for steps in itertools.product(*(range(len(made.noted[name])) for name in names)):
            killed = made.copy("")
            where = " ".join(f"{name}:{step}" for name, step in zip(names, steps, strict=True))
            killed.history = (*made.history[:-1], f"{made.history[-1]} killed at {where}")
            for name, step in zip(names, steps, strict=True):
                killed.tables[name] = made.noted[name][step].copy()
            yield killed


QUICK = {
    "multiclouddb_mirror.sharing._GATHER_SECONDS": 0.005,
    "multiclouddb_mirror.sharing._JOIN_SECONDS": 0.0,
    "multiclouddb_mirror.sharing._REST_SECONDS": 0.0,
    "multiclouddb_mirror.sharing._TOLD_SECONDS": 0.0,
    "multiclouddb_mirror.sharing._CHECK_SECONDS": 0.0,
    "multiclouddb_mirror.mirroring._WAIT_SECONDS": 0.0,
}
"""How a run that follows comes to everything that it does within a second."""
_PAGES, _PATIENCE = 400, 100
"""How many pages a run that follows may have, and for how many it waits for what is to happen meanwhile."""


def _followed(world, to):
    """Follow the service until every table is equal, and what is to happen meanwhile has happened."""
    ended, count, iterate = {}, itertools.count(), MulticloudDbClient.iterate_changes

    def quickly(client, request, **settings):
        return iterate(
            client, request, **settings, idle_backoff_seconds=0.002, max_idle_backoff_seconds=0.002
        )

    def on_page(job, progress):
        with world.lock:
            pages = next(count)
            is_equal = all(name in ended or world.is_equal(name) for name in to)
        if pages > _PAGES or (is_equal and (world.service.meanwhile is None or pages > _PATIENCE)):
            mirrors.stop()

    with ExitStack() as stack:
        for name, value in QUICK.items():
            stack.enter_context(patch(name, value))
        stack.enter_context(patch.object(MulticloudDbClient, "iterate_changes", quickly))
        client = stack.enter_context(world.service.connect())
        mirrors = stack.enter_context(_mirrors(client, to, ended, on_page=on_page, follow=True))
        mirrors.run()
    for name, outcome in ended.items():
        if not isinstance(outcome, MulticloudDbError) and not world.is_equal(name):
            world.fail(name, f"is not equal after {next(count)} pages")
    return ended


def _tried(client, name, to, settings):
    try:
        return mirror(client, ResourceAddress(DATABASE, name), to, **settings)
    except MulticloudDbError as error:
        return error
    except Violation as violation:
        error = MulticloudDbError("a violation", ErrorDetail(ErrorCategory.PERMANENT_FAILURE))
        error.__cause__ = violation
        return error


@contextmanager
def _mirrors(client, to, ended, **settings):
    jobs = [MirrorJob(ResourceAddress(DATABASE, name), f"memory:{name}", is_listed=True) for name in to]
    with patch("multiclouddb_mirror.several.destination_among", lambda shared, target, _: to[target[7:]]):
        yield Mirrors(
            client, jobs, lambda job, outcome: ended.update({job.address.collection: outcome}), **settings
        )


def _mirrored(client, to, settings):
    ended = {}
    with _mirrors(client, to, ended, **settings) as mirrors:
        mirrors.run()
    return ended


def order_of(place):
    return f"{place[0]:06d}.{place[1]:03d}"


def places(token):
    """Return the position of each partition."""
    return {each.partition_id: tuple(each.said[0]) for each in lineage_of(decode_token(token))}


def first_world(kind, copied=NAMES):
    """Return two collections with a row each, and tables, of which some are copies of them."""
    service = Service(kind)
    for name in NAMES:
        service.create(name)
        service.write((name, "k0", True))
    return next(World(service, history=(kind,)).run(copied))


def changes_of(world):
    """Yield the states after one change of the service."""
    if world.service.collections["a"].field == "id":
        yield world.change("make a again", remake)
        yield world.change("make a again twice", remake_twice)
    everywhere = tuple((name, "k0", True) for name in NAMES)
    puts = [((name, key, True),) for name, key in (("a", "k0"), ("a", "k1"), ("b", "k0"))]
    deletes = [((name, "k0", False),) for name in NAMES]
    # In one transaction, as MongoDB has it: the key is gone when it ends.
    flash = [(("a", "k1", True), ("a", "k1", False))] if world.service.kind == LOG else []
    for writes in (everywhere, *puts, *deletes, *flash):
        if (made := world.write(*writes)) is not None:
            yield made
    yield world.change("trim", Service.trim)


def remake(service):
    service.drop("a")
    service.create("a", "n")
    service.write(("a", "k0", True))


def remake_twice(service):
    remake(service)
    service.drop("a")
    service.create("a")


def drop(service):
    service.drop("a")


def busy(service):
    """Write a third collection all the time; in the second partition, a row of a comes and goes."""
    service.tick += 10
    service.create("c")
    service.write(("c", "k0", True))
    service.write(("a", "k1", True))
    service.write(("a", "k1", False))
    service.write(("b", "k1", True))
    for _ in range(3):
        service.write(("c", "k0", True))


def runs_of(world):
    """Yield the states after each run, and after each moment at which it can be killed."""
    yield from world.run()
    yield from world.run(("a",))
    yield from world.run(("b",))
    yield next(world.run(fails=("a", 1)))
    with patch("multiclouddb_mirror.sharing._SLOW_SECONDS", 0.0):
        yield next(world.run(text="run a b, each too slow"))
    happens = [busy, remake, remake_twice] if world.service.collections["a"].field == "id" else [busy]
    copies = [("b", 1), ("b", 2)] if world.tables["b"].token is None else []
    for each in happens:
        shared = [("database", 2)] if each is remake_twice else [("database", count) for count in (1, 2, 3)]
        for reading in (*shared, ("a", 1), *copies):
            text = f"meanwhile {each.__name__} after fetch {reading[1]} of {reading[0]}"
            names = ("a",) if reading[0] == "a" else NAMES
            yield from world.run(
                names, meanwhile=each, disturbed=reading, text=f"run {' '.join(names)}, {text}"
            )


def follows_of(world):
    """Yield the states after runs that follow the service."""
    happens = [None, busy]
    if world.service.collections["a"].field == "id":
        happens += [remake, remake_twice, drop]
    for each in happens:
        for fetches in (1, 3, 9):
            text = (
                f"follow a b, meanwhile {getattr(each, '__name__', each)} after fetch {fetches} of database"
            )
            yield next(world.run(follows=True, meanwhile=each, disturbed=("database", fetches), text=text))


def explored(kind, rounds, copied=NAMES, runs=runs_of, every=1):
    """Follow every history: in each round some changes, and then a run; at the end, a run of every table.

    Args:
        kind: The kind of the service.
        rounds: The number of changes in each round; a history may have fewer.
        copied: The tables that exist when it begins; the others begin with a copy.
        runs: Yields the states after the runs of a state, in the last round.
        every: To run only from each so many-th state in the last round.

    Returns:
        The number of different states.
    """
    found = set()
    now = list(unique([first_world(kind, copied)], found))
    for number, count in enumerate(rounds):
        changed = now
        for _ in range(count):
            changed = changed + list(unique((new for world in changed for new in changes_of(world)), found))
        is_last = number == len(rounds) - 1
        step, follow = (every, runs) if is_last else (1, runs_of)
        ran = unique((new for world in changed[::step] for new in follow(world)), found)
        now = ran if is_last else list(ran)
    for world in now:
        finished(world)
    return len(found)


def unique(worlds, found):
    for world in worlds:
        if (state := world.state()) not in found:
            found.add(state)
            yield world


def finished(world):
    """Check that whatever was there, the next runs make every table equal."""
    last = next(world.run(text="finally run a b"))
    for name, table in last.tables.items():
        there = last.service.collections.get(name)
        if there is not None and there.number != table.positioned:
            last = next(last.run((name,), resync=True, text=f"copy {name} again"))
    for name in NAMES:
        if name in last.service.collections and not last.is_equal(name):
            last.fail(name, f"has {last.live(name)} and not {last.service.collections[name].rows}")
