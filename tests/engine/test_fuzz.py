"""Tests that every token, even if random, damaged or forged, results in a page or `INVALID_REQUEST`."""

import base64
import logging
import os
import random
import zlib
from copy import deepcopy

import attrs
import orjson
import pytest

import multiclouddb_api as api
from multiclouddb_conformance.simulation import (
    CorruptError,
    ServerError,
    ServiceBehaviour,
    SimulationFeed,
    SimulationProvider,
)
from multiclouddb_spi import InvalidCursor
from multiclouddb_spi.continuation.token import decode_token, encode_token
from testing.seeds import in_soak

from .test_token import ALPHABET, sealed

TOKENS = int(os.environ.get("MULTICLOUDDB_TOKENS", "2000"))
SCRAPS = [
    None, True, False, 0, 1, 2, -1, 3, 7, 10**6, 2**53, 2**63 - 1, -(2**63), 1.5, 1e300, "", "p0", "p1", "p3",
    "p99", "x", "\0", "é" * 50, [], [[]], {}, [1], [0, 0], [1, 1], [5, 2], [2, -1], ["p0", 3], ["p0", 3, 1],
    ["p0", 3, 2], ["p4", [3], ["p0"]], ["p4", [[3, 1], 4], ["p0", "p1"]], {"over": "so"}, {"over": 1},
    {"retired": "p0", "children": []}, {"retired": "p0", "children": [["p3", ["p0"], 4]]},
    {"retired": "p0", "children": [["p3", "p0", 4]]}, {"v": 2}, ["p0", 3, 8], ["p4", [3], 4, ["p9"], 10**15],
]  # fmt: skip


class StrictFeed(SimulationFeed):
    """A feed that refuses partitions that never existed, as a provider refuses cursors that it cannot have
    created.
    """

    def open(self, partition_id, cursor, until=None):
        self._check(partition_id)
        return super().open(partition_id, cursor, until)

    def survey(self, asked, deadline, **wanted):
        for name, cursor in asked.items():
            self._check(name)
            if cursor is not None:
                self.describe(cursor)
        return super().survey(asked, deadline, **wanted)

    def _check(self, partition_id):
        if partition_id not in self.sim.partitions:
            raise InvalidCursor(f"there is no partition {partition_id!r:.40}")


class StrictProvider(SimulationProvider):
    def open_feed(self, spec, deadline):
        feed = super().open_feed(spec, deadline)
        feed.__class__ = StrictFeed
        return feed


def payload_of(token):
    """Return the JSON inside a valid token."""
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    return raw[5:] if raw[:1] == b"j" else zlib.decompress(raw[5:], -15)


class Mutations:
    """A generator of tokens that this library never returns."""

    def __init__(self, seed, tokens):
        self.dice, self.tokens = random.Random(seed), tokens
        self.kinds = [self.characters] * 3 + [self.payload_bytes] * 3 + [self.tree] * 4 + [self.forged] * 6

    def one(self):
        return self.dice.choice(self.kinds)()

    def characters(self):
        token = list(self.dice.choice(self.tokens))
        for _ in range(self.dice.randrange(1, 4)):
            place = self.dice.randrange(len(token))
            count = self.dice.randrange(len(ALPHABET)) if self.dice.random() < 0.2 else 1
            token[place : place + self.dice.randrange(3)] = self.dice.choices(ALPHABET, k=count)
        return "".join(token)

    def payload_bytes(self):
        payload = bytearray(payload_of(self.dice.choice(self.tokens)))
        for _ in range(self.dice.randrange(1, 4)):
            place = self.dice.randrange(len(payload))
            letters = b'0123456789[]{},:"pvrcse-\\' if self.dice.random() < 0.5 else bytes(range(256))
            payload[place : place + self.dice.randrange(1, 5)] = self.dice.choices(letters, k=1)
        return self.seal(bytes(payload))

    def tree(self):
        body = orjson.loads(payload_of(self.dice.choice(self.tokens)))
        for _ in range(self.dice.randrange(1, 3)):
            self.mutate(body)
        return self.seal(orjson.dumps(body))

    def forged(self):
        """Return a valid token whose state is replaced with a forged one, made of parts that look valid."""
        body = orjson.loads(payload_of(self.dice.choice(self.tokens)))
        body["c"] = {"p": [self.entry() for _ in range(self.dice.randrange(4))]}
        if self.dice.random() < 0.5:
            times = [None, *(self.dice.randrange(-2, 2**40) for _ in range(3))]
            body["c"]["a"] = [*self.dice.sample(times, 2), self.dice.randrange(3)]
        return self.seal(orjson.dumps(body))

    def entry(self):
        names = [f"p{number}" for number in range(8)]
        entry = [self.dice.choice(names), self.cursor()]
        match self.dice.randrange(7):
            case 0:
                entry.append(self.dice.randrange(10))
            case 1:
                entry[1] = [self.cursor() for _ in range(self.dice.randrange(3))]
                entry += [4, self.dice.sample(names, self.dice.randrange(3))]
            case 2:
                entry += [1, self.dice.sample(names, self.dice.randrange(3)), self.dice.randrange(-1, 9000)]
        return entry

    def cursor(self):
        if self.dice.random() < 0.7:
            return self.dice.randrange(-2, 80)
        return [self.dice.randrange(-2, 80) for _ in range(self.dice.randrange(4))]

    def mutate(self, body):
        places = []

        def visit(node):
            keys = node.keys() if isinstance(node, dict) else range(len(node))
            for key in keys:
                places.append((node, key))
                if isinstance(node[key], dict | list):
                    visit(node[key])

        visit(body)
        # Most fields are in the state, but the other fields are equally important.
        node, key = self.dice.choice(places if self.dice.random() < 0.7 else places[:9])
        match self.dice.randrange(5):
            case 0:
                del node[key]
            case 1 if isinstance(node, list):
                node.append(deepcopy(node[key]))
            case 2 if isinstance(node[key], int) and abs(node[key]) < 2**62:
                node[key] += self.dice.choice([-1, 1, 10, -10])
            case _:
                node[key] = deepcopy(self.dice.choice(SCRAPS))

    def seal(self, payload):
        return sealed(payload, b"j" if self.dice.random() < 0.5 else b"z")


@pytest.fixture(params=["late", "merged"])
def world(make_bench, request):
    """Make a collection whose tokens use every field, and return some of these tokens.

    A service names the children of its partitions late, or merges partitions.
    """
    is_late = request.param == "late"
    bench = make_bench(partitions=3, behaviour=ServiceBehaviour(proves_children=not is_late))
    sim = bench.sim
    tokens = []

    def read(place, size=2, **settings):
        try:
            page = bench.page(place, size, **settings)
        except api.MulticloudDbError as error:
            tokens.extend([error.detail.skip_token] if error.detail.skip_token else [])
            return error.detail.skip_token or place
        tokens.append(page.continuation_token)
        tokens.extend(child.continuation_token for child in page.child_partitions)
        return page.continuation_token

    bench.connect()
    scope = api.PhysicalPartition(sim.public_id("p2"))
    below = api.PhysicalPartition(sim.public_id("p2"), with_descendants=True)
    place, alone, whole = (
        read(api.Beginning()),
        read(api.Beginning(), scope=scope),
        read(api.Beginning(), scope=below),
    )
    bench.fill(10)
    sim.transaction([(f"k{number}", {"n": number}) for number in range(9)])
    sim.write("bad", {"n": 0}, poison=True)
    if is_late:
        sim.delay_children("p0", 3)
        sim.split("p0")
    else:
        sim.merge("p0", "p1")
    sim.split("p2")
    for _ in range(8):
        bench.fill(3)
        sim.fail_next("p1", ServerError("503"), times=3)
        sim.fail_next("p3", CorruptError("broken"))
        place, alone, whole = read(place), read(alone, scope=scope), read(whole, scope=below)
    read(api.Now())
    tokens += [token for _, token in bench.plan()]
    tokens += [token for _, token in bench.plan(with_descendants=True)]
    sim.forgive()
    for _ in range(30):
        place, alone = read(place), read(alone, scope=scope)
    sim.trim(upto=8)
    bench.fill(5)
    bench.connect(provider=StrictProvider(sim), page_records=5)
    return bench, list(dict.fromkeys(tokens))


@pytest.mark.parametrize("count", [TOKENS, pytest.param(100 * TOKENS, marks=pytest.mark.soak)])
def test_any_token_gives_a_page_or_invalid_request(world, count):
    bench, tokens = world
    states = [decode_token(token).state for token in tokens]
    assert {name for state in states for name in state} >= {"p", "retired"}
    # A child waits for two parents; or an end without a child, and one with some, wait for more.
    lengths = {2, 3, 5} if bench.sim.names_late() else {2, 4}
    assert {len(entry) for state in states for entry in state.get("p", ())} >= lengths
    mutations = Mutations(str(in_soak(0, 1)[0]), tokens)
    name = bench.sim.public_id("p2")
    scopes = [{}] * 6 + [
        {"scope": api.PhysicalPartition(name, with_descendants=form)} for form in (False, True)
    ]
    outcomes, wrong = {}, []
    for number in range(count):
        if number % 5000 == 4999:
            bench.engine.close()
            bench.connect(provider=StrictProvider(bench.sim), page_records=5)
        token = mutations.one()
        if not token.strip():
            continue
        try:
            page = bench.page(token, 3, timeout=60, **scopes[number % 8])
            assert isinstance(page, api.ChangeFeedPage)
            outcome = "page"
        except api.MulticloudDbError as error:
            outcome = error.category
            right = outcome == api.ErrorCategory.INVALID_REQUEST
            # A forged position or parent cannot be distinguished from one that was lost.
            right |= outcome == api.ErrorCategory.CHECKPOINT_EXPIRED
            # A forged end of a partition that has merged looks like a provider that names children late.
            right |= outcome == api.ErrorCategory.PERMANENT_FAILURE and "(C1)" in error.message
            # A forged position may be directly before the record that cannot be decoded.
            right |= outcome == api.ErrorCategory.PROVIDER_ERROR and "it is poison" in error.message
            if not right:
                wrong.append((number, token, error))
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    logging.getLogger("multiclouddb.tests").info("%d tokens: %s", count, dict(sorted(outcomes.items())))
    assert not wrong[:5]
    assert outcomes["page"] > count / 100
    assert outcomes[api.ErrorCategory.INVALID_REQUEST] > count / 2


def test_every_token_of_the_corpus_is_still_good(world):
    bench, tokens = world
    bench.sim.behaviour = ServiceBehaviour()
    good = 0
    for token in tokens:
        try:
            bench.page(token)
            good += 1
        except api.MulticloudDbError as error:
            allowed = (api.ErrorCategory.CHECKPOINT_EXPIRED, api.ErrorCategory.PROVIDER_ERROR)
            if error.category not in allowed and "scope" not in error.message:
                raise
    assert good > 5


def test_a_forged_token_of_one_partition_that_contains_another_is_refused(world):
    bench, tokens = world
    scope = api.PhysicalPartition(bench.sim.public_id("p2"))
    [alone, *_] = [
        each for each in map(decode_token, tokens) if each.scope == "partition:p2" and "p" in each.state
    ]
    [[_, *rest]] = alone.state["p"]
    listing = [
        alone.state | {"p": [[name, *rest] for name in names]}
        for names in (["p2", "p1"], ["p1"], ["p1", "p3"])
    ]
    for state in (*listing, {"retired": "p1", "children": []}):
        with pytest.raises(api.MulticloudDbError, match="another partition than the one") as caught:
            bench.page(encode_token(attrs.evolve(alone, state=state)), 3, scope=scope)
        assert caught.value.category == api.ErrorCategory.INVALID_REQUEST
