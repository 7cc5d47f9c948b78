"""Follows every small history of a query: writes, splits, late partitions, kills, retention, and runs.

A run is one night: it ends when nothing is left, and what lies before its beginning expires. So a position
that a night leaves must not be older than that, or the next night meets an expired one although nothing was
lost. What expires unread is lost, and that is never silent.

No clock decides anything here: a late partition answers when the step no longer waits for it, so a history
that fails always fails.
"""

import itertools
import json
import math
import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

from multiclouddb_api import ChangeFeedRequest, ClientConfig, Now, OperationOptions
from multiclouddb_conformance.simulation import (
    ServiceBehaviour,
    Simulation,
    SimulationFeed,
    SimulationProvider,
)
from multiclouddb_conformance.simulation.partition_log import key_hash
from multiclouddb_conformance.simulation.service_behaviour import CaughtUp
from multiclouddb_spi import Engine
from multiclouddb_spi.fetching.queue import Queue
from multiclouddb_spi.fetching.stream import TURN_SECONDS
from multiclouddb_spi.planning import planner
from multiclouddb_spi.planning.planner import Planner
from pyspark_multiclouddb.errors import SourceError
from testing.seeds import seeds

from .micro_batches import Query

KEYS = [f"k{number}" for number in range(64)]
MOVES = ("write 0", "write 1", "beside", "split 0", "split 1", "merge", "expire", "expire 0", "expire 1")
# The number is the late partition, among the first four that the service still lists; 4 is none of them.
NONE = 4
RUNS = tuple(f"{run} {late}" for run in ("step", "kill", "night") for late in range(NONE + 1))
POISON = ("poison 0", "poison 1")
STARTS = ("now", "beginning", "snapshot", "token")
IDLE = {"idleCheckpointInterval": "5 minutes"}


class NotPossibleError(Exception):
    """An action that is not possible now."""


class Life(NamedTuple):
    """The service and the query of a history."""

    start: str
    options: Mapping[str, str] = IDLE
    behaviour: Mapping[str, Any] = {}
    heads: bool = False
    is_plain: bool = False

    def names_late(self):
        return any(name.startswith("late") for name in self.behaviour)


class World:
    """A service, a query over it, and what the query has delivered."""

    def __init__(self, simulation, sim, life):
        self.sim, self.start = sim, life.start
        self.on_loss = life.options.get("failOnDataLoss")
        # Which changes come before the start of the query, and where its present run began.
        self.before, self.began = set(), None
        self.changes, self.documents, self.poison = {}, set(), set()
        self.is_reading = self.is_refused = False
        is_token = self.start == "token"
        start = {"startingToken": position_of(sim)} if is_token else {"startingPosition": self.start}
        for number in range(2):
            self.write(number)
        self.query = Query(simulation, is_plain=life.is_plain, **life.options, **start)

    def act(self, action):
        kind, _, which = action.partition(" ")
        names, number = self.sim.open_partitions, int(which or 0)
        if kind in ("write", "poison", "split", "expire") and number >= len(names):
            raise NotPossibleError
        match kind:
            case "write":
                self.write(number)
            case "poison":
                self.write(number, poison=True)
            case "beside":
                self.sim.commit_elsewhere()
            case "split":
                self.sim.split(names[number])
            case "merge":
                if not self.sim.may_merge():
                    raise NotPossibleError
                self.sim.merge(*names[:2])
            case "expire":
                self.sim.trim(names[number] if which else None)
            case "step":
                self.step(number)
            case "kill":
                self.kill(number)
            case "night":
                self.night(number)

    def write(self, number, *, poison=False):
        """Write to one of the partitions that are open."""
        owns = self.sim.partitions[self.sim.open_partitions[number]].owns
        key = next(key for key in KEYS if owns(key_hash(self.sim.key(key))))
        if poison:
            self.poison.add(self.sim.head)
        self.sim.write(key, {"n": self.sim.head}, poison=poison)

    def plan(self, number):
        """Plan a batch while a partition is late; return whether there is one."""
        listed = [name for name, part in self.sim.partitions.items() if not part.gone]
        if number < NONE and number >= len(listed):
            raise NotPossibleError
        if not self.query.log and self.start != "token":
            self.before = {item.event_id for item in self.sim.truth if self.is_before(item)}
        late.sim, late.name = self.sim, listed[number] if number < NONE else None
        return self.query.plan()

    def is_before(self, item):
        return self.start != "beginning" or item.commit <= self.sim.partitions[item.partition_id].trimmed

    def pending(self, number):
        """Return the batch that is read next, or None if nothing is left."""
        if self.began is None:
            self.began = self.sim.head
            self.query.restart()
            if not self.query.is_plain:
                self.query.reader.prepareForTriggerAvailableNow()
        if self.query.done < len(self.query.log) or self.plan(number):
            return self.query.done
        return None

    def read(self, batch):
        """Read a batch; return False if its process dies of a loss that no offset tells."""
        self.is_reading = True
        try:
            rows = self.query.deliver(batch)
        except SourceError as error:
            if "restart the query, which then skips" not in str(error):
                raise
            assert not self.is_refused, "restarted in vain"
            self.began, self.is_refused = None, True
            return False
        self.is_reading = self.is_refused = False
        found = sorted(row["event_id"] for row in rows if not row["backfilled"])
        # What has expired since then is left out, and told; the table gets what is read now.
        earlier, self.changes[batch] = self.changes.get(batch, found), found
        is_less = self.on_loss == "false" and set(found) < set(earlier)
        assert found == earlier or is_less, "a batch has other changes when it is repeated"
        self.documents |= {
            (json.loads(row["key"])["id"], json.loads(row["new_item_state"])["n"]) for row in rows
        }
        return True

    def step(self, number):
        batch = self.pending(number)
        if batch is None:  # the run ends
            self.sim.trim(upto=self.began)
            self.began = None
        elif self.read(batch):
            self.query.done += 1

    def kill(self, number):
        """Read a batch, and die before it is committed."""
        batch = self.pending(number)
        if batch is not None:
            self.read(batch)
        self.began = None

    def night(self, number):
        """Run until nothing is left; a partition is late in the first step."""
        self.step(number)
        batches = len(self.query.log)
        while self.began is not None:
            self.step(NONE)
            assert len(self.query.log) < batches + 100, "a run without an end"

    def check(self):
        delivered = [name for found in self.changes.values() for name in found]
        after = [item for item in self.sim.truth if item.event_id not in self.before]
        wanted = {item.event_id for item in after if not item.poison}
        named = sum(offset.get("poison", {}).get("count", 0) for offset in self.query.log)
        if self.on_loss is None:  # else some have expired
            assert named == len(after) - len(wanted), "what is left out is not named once"
        assert len(set(delivered)) == len(delivered), "delivered twice"
        assert set(delivered) <= {item.event_id for item in self.sim.truth}, "invented"
        if wanted <= set(delivered):
            return
        assert self.on_loss is not None, "lost"
        if self.on_loss == "false":
            assert self.query.log[-1].get("lost"), "lost in silence"
        else:
            current = {
                (key.components["id"], document["n"]) for key, document in self.sim.documents().items()
            }
            missing = current - self.documents
            # What cannot be decoded is left out and named, if it comes after the snapshot.
            is_named = len(missing) <= named and {n for _, n in missing} <= self.poison
            assert is_named, "another snapshot has not repaired what was lost"


class Late:
    """Holds the fetches of one partition, until a step has left it behind or cannot go on without it."""

    def __init__(self):
        self.sim = self.name = None
        self.left = []

    def advance(self, *wanted, real=Planner.advance, **more):
        """Stand in for `Planner.advance`: plan a step."""
        if self.name is not None:
            self.sim.hold(self.name)
        try:
            return real(*wanted, **more)
        finally:
            self.end()

    def end(self):
        """Let it answer, and wait until it has."""
        if self.name is not None:
            self.sim.release(self.name)
            self.name = None
        while self.left:
            self.left.pop().exception()

    def next(self, queue, patience, *more, real=Queue.next):
        """Stand in for `Queue.next`: wait for whoever is not late as long as it takes."""
        if self.name in queue.running and len(queue.running) == 1 and not queue.landed:
            if patience <= TURN_SECONDS:  # the step has something without it
                self.left.append(queue.running[self.name].future)
                return None
            self.end()
        return real(queue, math.inf, *more)


late = Late()


def position_of(sim):
    """Return the token of a client that has read everything."""
    engine = Engine(SimulationProvider(sim), ClientConfig("simulation"))
    try:
        page = engine.read_changes(ChangeFeedRequest(sim.address, Now()), OperationOptions())
        return page.continuation_token
    finally:
        engine.close()


def trouble(simulation, monkeypatch, life, history, *, skips=False):
    """Follow a history, and two nights after it; return what is wrong, or None.

    With `skips`, an action that is not possible is left out.
    """
    sim = Simulation(partitions=2, behaviour=ServiceBehaviour(seed=1, **life.behaviour))
    with monkeypatch.context() as patch:
        patch.setattr(simulation, "provider", SimulationProvider(sim))
        if not life.heads:
            patch.setattr(SimulationFeed, "heads", lambda self, *_: {})
        world = World(simulation, sim, life)
        try:
            for action in history:
                with suppress(*([NotPossibleError] if skips else [])):
                    world.act(action)
            for _ in range(4 if life.names_late() else 2):
                world.night(NONE)
            world.check()
        except AssertionError as error:
            return str(error).partition("\n")[0]
        except SourceError as error:
            # What expires between a plan and its tasks ends the query, because a plan can't be changed.
            ends = world.on_loss is None or (world.on_loss == "resnapshot" and world.is_reading)
            # What is named after the night in which it was written expires unread.
            expires = life.names_late() or any(action.startswith("expire") for action in history)
            return None if ends and expires and "CHECKPOINT_EXPIRED" in str(error) else str(error)
    return None


def follow(simulation, monkeypatch, life, history, *, skips=False):
    """Follow a history; if something is wrong, say it of the actions that it needs."""
    what = trouble(simulation, monkeypatch, life, history, skips=skips)
    number = len(history) if what is not None else 0
    while number > 0:
        number -= 1
        less = history[:number] + history[number + 1 :]
        with suppress(NotPossibleError):
            found = trouble(simulation, monkeypatch, life, less, skips=skips)
            if found is not None:
                history, what = less, found
    assert what is None, f"{life} {history}: {what}"


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    monkeypatch.setattr(Planner, "advance", lambda *wanted, **more: late.advance(*wanted, **more))
    monkeypatch.setattr(Queue, "next", lambda *wanted: late.next(*wanted))
    monkeypatch.setattr("pyspark_multiclouddb.micro_batches._NAP_SECONDS", 0.0)
    # A night is longer than the ten minutes after which all partitions are listed again.
    monkeypatch.setattr(planner, "is_search_due", lambda feed, audited, every: audited is not None)


SKIPS, RESNAPSHOTS = {"failOnDataLoss": "false"}, {"failOnDataLoss": "resnapshot"}
LATE = [{"late_siblings": 5}, {"late_children": 3}, {"late_listing": 2}]
ENDS_APART = {"caught_up": CaughtUp.WHEN_EMPTY, "separate_end": 1.0, "scan_limit": 2}


@pytest.mark.parametrize(
    ("life", "history"),
    [
        # Another process reads the first batch of Spark 4.0 again, of which some has expired.
        (Life("beginning", IDLE | SKIPS, heads=True, is_plain=True), ("kill 1", "expire")),
        # What expires before the first batch of Spark 4.0 is told in its offset, or read again.
        (Life("token", IDLE | SKIPS, is_plain=True), ("merge", "expire")),
        (Life("token", IDLE | RESNAPSHOTS, is_plain=True), ("expire",)),
        # What expires between a plan and its tasks.
        (Life("token", IDLE | SKIPS), ("step 0", "step 0", "expire")),
        # One partition has expired, and another one begins with a change that cannot be decoded.
        (
            Life("token", IDLE | SKIPS | {"onPoison": "skip"}, {"poison_at_fetch": True}),
            ("night 4", "poison 0", "write 1", "kill 4", "expire 1"),
        ),
        # One half of a split is found when its parent, and its own change, has expired.
        (Life("token", IDLE | SKIPS, LATE[0]), ("split 0", "write 1")),
        # The first batch of Spark 4.0 has not read two partitions to their end.
        (Life("beginning", IDLE, ENDS_APART, heads=True, is_plain=True), ("split 1", "split 0")),
    ],
)
def test_histories_that_random_ones_have_found(simulation, monkeypatch, life, history):
    follow(simulation, monkeypatch, life, history)


SOAK = pytest.mark.soak


def every_life():
    """Return each start with the longest histories that are followed, in `make test` and in the soak."""
    for start, loss, is_plain in itertools.product(STARTS, [{}, SKIPS, RESNAPSHOTS], [False, True]):
        usual = not (loss or is_plain)
        for length in range(1, 4 if usual else 3):
            marks = [SOAK] if length > (2 if usual else 1) else []
            name = "-".join([start, *loss.values(), *["4.0"][:is_plain], str(length)])
            yield pytest.param(Life(start, IDLE | loss, is_plain=is_plain), length, id=name, marks=marks)


@pytest.mark.parametrize(("life", "length"), list(every_life()))
def test_every_history(simulation, monkeypatch, life, length):
    for history in itertools.product(MOVES + RUNS, repeat=length):
        with suppress(NotPossibleError):
            follow(simulation, monkeypatch, life, history)


def some_life(dice):
    is_plain = dice.random() < 0.25
    limit = {} if is_plain or dice.random() < 0.5 else {"maxRecordsPerTrigger": dice.choice("12")}
    on_loss = dice.choice([{}, {}, SKIPS, RESNAPSHOTS])
    behaviour = {
        "caught_up": dice.choice([CaughtUp.EXACT, CaughtUp.WHEN_EMPTY]),
        "page_limit": dice.choice([1, 3, 1000]),
        "separate_end": dice.choice([0.0, 1.0]),
        "scan_limit": dice.choice([None, 2]),
        "jumble": dice.choice([True, False]),
        "seed_descendants": dice.choice([True, False]),
    }
    poison = dice.choice([{}, {"onPoison": "skip"}])
    behaviour["poison_at_fetch"] = dice.choice([True, False])
    behaviour |= dice.choice([{}, {}, *LATE])
    idle = {"idleCheckpointInterval": dice.choice(["5 minutes", "5 minutes", "0 seconds"])}
    options = {**idle, **limit, **on_loss, **poison}
    return Life(dice.choice(STARTS), options, behaviour, heads=dice.random() < 0.4, is_plain=is_plain)


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_loss_before_the_first_batch_is_told_once(simulation, monkeypatch, is_plain):
    sim = Simulation(partitions=2)
    monkeypatch.setattr(simulation, "provider", SimulationProvider(sim))
    world = World(simulation, sim, Life("token", IDLE | SKIPS, is_plain=is_plain))
    for action in ("expire", "write 0", "kill 4", "kill 4", "night 4", "night 4"):
        world.act(action)
    assert world.query.log[-1]["lost"] == 1


@pytest.mark.parametrize("seed", seeds(12, 200))
def test_some_longer_histories(simulation, monkeypatch, seed):
    dice = random.Random(seed)
    for _ in range(20):
        life = some_life(dice)
        moves = MOVES + POISON if "onPoison" in life.options else MOVES
        history = [dice.choice(dice.choice([moves, RUNS])) for _ in range(dice.randrange(3, 9))]
        follow(simulation, monkeypatch, life, history, skips=True)
