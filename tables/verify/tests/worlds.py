"""A collection of the simulation, with a writer, a sink and a table in memory: all move between calls."""

import json
import random
from itertools import takewhile

import attrs

from multiclouddb_api import (
    BackfillDone,
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    ErrorDetail,
    FromContinuationToken,
    MulticloudDbError,
    Snapshot,
    decode_json,
    encode_json,
)
from multiclouddb_conformance.open_client import open_client
from multiclouddb_conformance.simulated import LATEST_SIMULATED, SIMULATED, SimulationPlugin
from multiclouddb_conformance.simulation import PROVIDER_ID, ServiceBehaviour, Simulation
from multiclouddb_conformance.table import MemoryTable
from multiclouddb_verify import DifferenceKind
from multiclouddb_verify.source import Source, own_text
from multiclouddb_verify.verification import Verification

KINDS = list(DifferenceKind)


class Killed(BaseException):
    """Raised to simulate the death of the process at this point."""


def key_of(name):
    return encode_json({"id": name}).decode()


class Moving:
    """A client; the world moves before each call."""

    def __init__(self, world, client):
        self.world, self.client, self.config = world, client, client.config

    def read_changes(self, request, options=None):
        self.world.tick()
        page = self.world.read(self.client, request)
        self.world.rows += sum(event.backfilled for event in page.events)
        if self.world.has_images:
            return page
        bare = [each if each.backfilled else attrs.evolve(each, new_item_state=None) for each in page.events]
        return attrs.evolve(page, events=tuple(bare))

    def lookup(self, address, keys, options=None, **settings):
        self.world.tick()
        keys = list(keys)
        if any(encode_json(key.components).decode() in self.world.refused for key in keys):
            raise MulticloudDbError("check the credentials", ErrorDetail(ErrorCategory.AUTHENTICATION_FAILED))
        return self.client.lookup(address, keys, options, **settings)

    def capabilities(self, provider_options=None):
        return self.client.capabilities(provider_options)


@attrs.frozen
class Settling(Source):
    given: object = None

    @property
    def facts(self):
        return self.given


class World:
    """One random life; `verify` runs inside it."""

    def __init__(self, seed, *, behaviour=None, kinds=None, kills=0, keys=30, lag=0.0, latest=False):
        self.seed, self.dice, self.kills = seed, random.Random(f"verify {seed}"), kills
        dice = self.dice
        # With several partitions, a change that is not shown yet would hide older ones of another partition.
        self.sim = Simulation(1 if lag else dice.randint(1, 3), behaviour or ServiceBehaviour(seed=seed))
        plugin = SimulationPlugin(LATEST_SIMULATED if latest else SIMULATED)
        plugin.sims.append(self.sim)
        self.clients = [open_client(plugin, ClientConfig(PROVIDER_ID, {})) for _ in range(2)]
        self.client, self.rows = Moving(self, self.clients[0]), 0
        self.lag, self.settle_seconds, self.written = 0.0, 0.0, {}
        self.facts, self.has_images, self.begins_again = {}, True, False
        self.target, self.token, self.time, self.number = MemoryTable(self.tick), None, 1e9, 0
        self.reserved = [f"r{number}" for number in range(12)]
        self.lively = [f"k{number}" for number in range(keys)]
        self.moves, self.left, self.quiet, self.at = False, dice.choice([0, 30, 120, 250]), False, None
        self.speed = dice.choice([0.1, 0.3, 0.6])
        for name in self.reserved + self.lively:
            if dice.random() < 0.8 or name in self.reserved[:8]:
                self.put(name)
        for name in self.reserved[8:]:
            self.put(name)
            self.write(name, None)
        self.drain()
        self.faults = self.plant(KINDS if kinds is None else kinds)
        self.refused = set()
        self.respell()
        self.lag, self.moves = lag, True

    def close(self):
        for client in self.clients:
            client.close()

    # -- The application and the sink

    def put(self, name):
        self.number += 1
        value = self.dice.choice([self.number, float(self.number), [self.number, None], {"$a": True}])
        self.write(name, {"v": value, "n": self.number, "s": f"ä{self.number}"})

    def write(self, name, document):
        self.sim.write(name, document)
        self.written[self.sim.now] = self.time

    def step(self, *, stores=True):
        """Let the sink merge a page; without `stores` it is killed before it stores the token."""
        start = Beginning() if self.token is None else FromContinuationToken(self.token)
        try:
            request = ChangeFeedRequest(self.sim.address, start, max_page_size=5)
            page = self.read(self.clients[1], request)
        except MulticloudDbError as error:
            if not error.retryable:
                raise
            return None
        self.target.merge(page.events)
        if any(isinstance(notice, BackfillDone) for notice in page.notices):
            changes = {"order_key": self.floor, "text": None, "deleted": True}
            self.mark(lambda row: row.order_key < self.floor, **changes)
        if stores:
            self.token = page.continuation_token
        return page

    def mark(self, chosen, **changes):
        """Do what a sink does with its rows when a snapshot begins or ends."""
        self.target.table = [
            attrs.evolve(row, **changes) if chosen(row) else row for row in self.target.table
        ]

    def read(self, client, request):
        """Read a page; the stream shows a change only some time after it was made."""
        page = client.read_changes(request)
        while (shown := self.shown(page.events)) < len(page.events):
            if not shown:
                break
            page = client.read_changes(attrs.evolve(request, max_page_size=shown))
        else:
            return page
        until = page.diagnostics
        if until.lag_seconds is not None:
            until = attrs.evolve(until, read_until=self.sim.now, lag_seconds=0.0)
        token = request.start_position.token
        return attrs.evolve(page, events=(), continuation_token=token, idle=True, diagnostics=until)

    def shown(self, events):
        """Return how many events come before the first one that is not shown yet."""
        shown = (each.backfilled or self.time - self.written[each.timestamp] >= self.lag for each in events)
        return sum(1 for _ in takewhile(bool, shown))

    def drain(self):
        idle = 0
        while idle < 4:
            page = self.step()
            idle = idle + 1 if page is not None and page.idle else 0

    def tick(self):
        """Let anything happen."""
        if not self.moves:
            return
        self.moves = False  # what happens now does not move the world again
        dice = self.dice
        try:
            if self.left > 0:
                self.left -= 1
                for _ in range(dice.randint(0, 2)):
                    name = dice.choice(self.lively)
                    if dice.random() < 0.3:
                        self.write(name, None)
                    else:
                        self.put(name)
                if dice.random() < 0.05 and not self.lag:
                    self.reshape()
            if self.begins_again and self.rows and dice.random() < 0.3:
                self.begins_again = False
                request = ChangeFeedRequest(self.sim.address, Snapshot())
                page = self.clients[1].read_changes(request)
                self.token, [self.floor] = page.continuation_token, [each.floor for each in page.notices]
                self.mark(lambda row: row.order_key >= self.floor, order_key="")
            if dice.random() < self.speed or self.left <= 0:
                self.step(stores=dice.random() < 0.8)
        finally:
            self.moves = True
        if self.kills and dice.random() < 0.05:
            self.kills -= 1
            raise Killed

    def reshape(self):
        names = list(self.sim.open_partitions)
        if len(names) < 4 and self.dice.random() < 0.6:
            self.sim.split(self.dice.choice(names))
        elif self.sim.may_merge():
            self.sim.merge(*self.dice.sample(names, 2))

    # -- The faults

    def plant(self, kinds):
        """Damage rows of keys that do not change any more; return the kinds by key."""
        alive, dead = map(key_of, self.reserved[:8]), map(key_of, self.reserved[8:])
        return self.target.plant(list(alive), list(dead), kinds, self.dice)

    def respell(self):
        """Write some documents with their names in another order, which changes no value."""
        for row in self.target.table:
            if row.key not in self.faults and not row.deleted and self.dice.random() < 0.3:
                row.text = json.dumps(dict(reversed(json.loads(row.text).items())), indent=1)

    # -- The comparison

    def pause(self, seconds):
        self.time += max(seconds, 0.001)
        self.sim.advance(max(seconds, 0.001))
        for _ in range(5):
            self.tick()

    def clock(self):
        self.time += 0.001
        return self.time

    def source(self):
        facts = attrs.evolve(
            self.client.capabilities().scan, settle_seconds=self.settle_seconds, **self.facts
        )
        return Settling(self.client, self.sim.address, given=facts)

    def compare(self, folder, **settings):
        """Run `verify` once."""
        settings = {"state": folder, "patience_seconds": 60.0, **settings}
        clock = {"pause": self.pause, "clock": self.clock}
        return Verification(self.source(), self.target, self.stored, **clock, **settings).run()

    def verify(self, folder, **settings):
        """Run `verify`, and again after each kill; it resumes, or begins again."""
        while True:
            try:
                return self.compare(folder, **settings)
            except Killed:
                # It may have been killed before it had a state; otherwise the state is closed.
                settings["resume"] = self.dice.random() < 0.7
            except MulticloudDbError as error:
                if not error.retryable:
                    raise

    def stored(self):
        self.tick()
        return self.token

    def truth(self):
        return {key_of(key["id"]): dict(value) for key, value in self.sim.documents().items()}

    def refuse(self, count):
        """Let the service refuse to look up some of the damaged rows."""
        chosen = self.dice.sample(sorted(self.faults), count)
        self.refused = {own_text(key) or key for key in chosen}
        self.left_as_they_are = [row for row in self.target.table if self.is_refused(row.key)]

    def is_refused(self, key):
        return (own_text(key) or key) in self.refused

    def is_damaged(self):
        """Return whether a row differs, or was written although it could not be looked up."""
        kept = [row for row in self.target.table if self.is_refused(row.key)]
        others = [row for row in self.target.table if not self.is_refused(row.key) and not row.deleted]
        truth = {key: value for key, value in self.truth().items() if not self.is_refused(key)}
        return (
            kept != self.left_as_they_are
            or len(others) != len({row.key for row in others})
            or {row.key: decode_json(row.text) for row in others} != truth
        )

    def settle(self):
        """Let the sink read everything."""
        self.moves, self.lag = False, 0.0
        self.drain()


def found(report):
    return {each.key: each.kind for each in report.differences}
