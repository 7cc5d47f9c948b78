"""Tests planning by reading: partitions answer in any order, late, or not at all, and readers are lost."""

import itertools
import os
import random
import threading
from collections import Counter
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from unittest.mock import patch

import attrs
import pytest

from multiclouddb_api import Beginning, ClientConfig, SkipToOldest
from multiclouddb_conformance.simulation import (
    CorruptError,
    Listing,
    ServerError,
    ServiceBehaviour,
    Simulation,
)
from multiclouddb_conformance.simulation.reader import SimulationReader
from multiclouddb_conformance.simulation.service_behaviour import CaughtUp
from multiclouddb_spi import Batch, Continue, Deadline, Planner, ProviderFault
from multiclouddb_spi.abilities import Follows
from multiclouddb_spi.errors import fault_of
from multiclouddb_spi.fetching import queue
from multiclouddb_spi.fetching.fetcher import InlineExecutor, ReadContext
from multiclouddb_spi.observing import Observing
from multiclouddb_spi.planning import heads, ranges
from testing.seeds import in_soak

from .reading import Through, write
from .test_planner import Consumer, act

LIVES = int(os.environ.get("MULTICLOUDDB_LIVES", "8"))
BRIEF = 0.01


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch, looks_at_once):
    """Retry at once, and wait only briefly for a slow partition."""
    monkeypatch.setattr(ranges, "_sleep", lambda seconds: None)
    wait_for_slow_ones(monkeypatch, BRIEF)


def wait_for_slow_ones(monkeypatch, seconds):
    for module in ("planning.heads", "fetching.queue"):
        monkeypatch.setattr(f"multiclouddb_spi.{module}.TURN_SECONDS", seconds)


class Shuffled(Executor):
    """Runs what is submitted in another thread and in any order, some of it later than anybody waits."""

    def __init__(self, dice, held=0.0):
        self.dice, self.held = dice, held
        self._waiting, self._later, self._change, self._over = [], [], threading.Condition(), False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        with self._change:
            place = self._later if self.dice.random() < self.held else self._waiting
            place.append((future, fn, args, kwargs))
            self._change.notify()
        return future

    def release(self):
        with self._change:
            self._waiting += self._later
            self._later.clear()
            self._change.notify()

    def shutdown(self, wait=True, *, cancel_futures=False):
        with self._change:
            self._over = True
            self._change.notify()

    def _run(self):
        while True:
            with self._change:
                while not (self._waiting or self._over):
                    if not self._change.wait(4 * BRIEF):
                        self._waiting += self._later
                        self._later.clear()
                if not self._waiting:
                    return
                future, fn, args, kwargs = self._waiting.pop(self.dice.randrange(len(self._waiting)))
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - the future raises it
                future.set_exception(error)


def context_of(provider, executor, **limits):
    config = ClientConfig("simulation", **limits)
    return ReadContext.made(
        provider, config, Observing(None), executor=executor, attempts=1, pause=lambda _: None
    )


class Reading(Consumer):
    """A consumer that plans by reading, on an executor of the test."""

    def __init__(self, sim, executor=None, through=None, position=None, on_expired=None, **limits):
        super().__init__(sim, heads="none", position=position or Beginning(), on_expired=on_expired)
        self.planner.close()
        self.limits, self.executor = limits, executor or InlineExecutor()
        self.planned = self.feed if through is None else Through(self.feed, through)
        self.restart()

    def restart(self):
        """Plan as another process does, which has no reader yet."""
        if hasattr(self, "context"):  # `end` would also end the executor, which is the test's
            self.context.closed.set()
            self.context.consumers.close()
        self.context = context_of(self.provider, self.executor, **self.limits)
        self.planner = Planner(self.provider, self.planned, self.on_expired, context=self.context)

    def close(self):
        self.context.end()
        self.executor.shutdown()
        assert self.context.budget.used == 0
        super().close()


class Odd:
    """Refuses some requests of readers, while it is switched on."""

    def __init__(self, dice, refused):
        self.dice, self.refused = dice, refused

    def __call__(self, fetch, *arguments):
        if self.dice.random() < self.refused:
            raise ServerError("503")
        return fetch(*arguments)


ACTIONS = [
    *itertools.repeat("write", 6), *itertools.repeat("step", 8), "transaction", "split", "split", "merge",
    "roll", "idle", "restart",
]  # fmt: skip


def live(seed, *, loses=False):
    """Let a consumer plan beside a service that changes; check what it has delivered at the end."""
    dice = random.Random(seed)
    form = dice.choice(list(Listing))
    behaviour = ServiceBehaviour(
        listing=form, caught_up=dice.choice(list(CaughtUp)), page_limit=dice.choice([1, 2, 1000]),
        heartbeats=dice.random() < 0.5, scan_limit=dice.choice([None, 1]), late_children=dice.choice([0, 2]),
        separate_end=dice.choice([0.0, 1.0]), seed=seed,
    )  # fmt: skip
    sim = Simulation(partitions=dice.choice([1, 2, 3]), behaviour=behaviour)
    executor, odd = Shuffled(dice, dice.choice([0.0, 0.3])), Odd(dice, dice.choice([0.0, 0.2]))
    limits = {"max_concurrency": dice.choice([1, 2, 32])}
    if dice.random() < 0.3:
        limits["max_buffered_bytes"] = 1 << 20
    consumer = Reading(sim, executor, odd, on_expired=SkipToOldest() if loses else None, **limits)
    most, trimmed = dice.choice([None, 1, 2, 3, 50]), {}
    with patch.object(queue, "_FULL_RECORDS", dice.choice([1, 2, 500])):
        for _ in range(dice.randrange(5, 30)):
            executor.release()
            match dice.choice([*ACTIONS, *(["trim"] if loses else [])]):
                case "step":
                    stepped(consumer, most)
                case "restart":
                    consumer.restart()
                case "trim":
                    sim.trim(upto=int(dice.random() * sim.head))
                    trimmed = {each.id: each.trimmed for each in sim.partitions.values()}
                case name:
                    act(sim, consumer, (name, dice.randrange(12), dice.randrange(2, 5)))
        executor.held, odd.refused = 0.0, 0.0
        executor.release()
        sim.behaviour = ServiceBehaviour(listing=form)
        consumer.drain(most)
        if loses:
            consumer.check_left(trimmed, form)
        else:
            consumer.check_all()
        consumer.close()


def stepped(consumer, most):
    """Plan and read a step; a step that finds nothing but failures that may pass is made later."""
    try:
        return consumer.step(most, allow_empty=True)
    except Exception as error:
        if not fault_of(consumer.provider, error).retryable:
            raise


class TestAnyOrder:
    @pytest.mark.parametrize("seed", range(LIVES * 5))
    def test_nothing_is_lost_and_nothing_comes_twice(self, seed):
        live(seed)

    @pytest.mark.parametrize("seed", range(LIVES * 3))
    def test_what_retention_has_left_comes(self, seed):
        live(seed, loses=True)

    @pytest.mark.soak
    @pytest.mark.parametrize("first", in_soak(1000, 100 * LIVES)[::100])
    def test_more_lives(self, first):
        for seed in range(first, first + 100):
            live(seed, loses=bool(seed % 3 == 0))


def keys_of(partitions):
    """Return a key of each partition of a new simulation."""
    probe, found = Simulation(partitions), {}
    for number in range(99):
        found.setdefault(probe.write(f"k{number}", {"n": 0}).partition_id, f"k{number}")
    assert len(found) == partitions
    return dict(sorted(found.items()))


@pytest.mark.parametrize("number", [0, 1])
def test_what_one_answer_of_a_step_calls_likely_outlives_the_next(number):
    """The second answer reads what the empty partition has left of the limit."""
    sim, key = Simulation(2, behaviour=ServiceBehaviour(page_limit=1, heartbeats=False)), keys_of(2)["p0"]
    for written in range(2):
        sim.write(key, {"n": written})
    likely, answers = sim.now + timedelta(seconds=7), []

    def through(fetch, *arguments):
        batch = fetch(*arguments)
        if fetch.__self__._id != "p0":
            return batch
        answers.append(batch)
        return attrs.evolve(batch, likely_read_until=likely if len(answers) == number + 1 else None)

    consumer = Reading(sim, through=through)
    step = consumer.planner.advance(consumer.at, 2, consumer.deadline)
    assert len(answers) == 2
    assert step.answers["p0"].likely_read_until == likely
    consumer.close()


@pytest.mark.parametrize("most", [None, 1, 2, 3])
@pytest.mark.parametrize("answers", [*itertools.product(["now", "late", "refused"], repeat=3)], ids="-".join)
def test_a_step_is_what_a_planner_could_do_that_asks_one_after_the_other(most, answers, monkeypatch):
    """Three partitions with two changes each: those that answer are read, in order, up to the limit."""
    if "late" not in answers:
        wait_for_slow_ones(monkeypatch, 60.0)
    sim, keys = Simulation(3), keys_of(3)
    for name, number in itertools.product(keys, range(2)):
        sim.write(keys[name], {"n": number})
    asks = {f"p{number}": answer for number, answer in enumerate(answers)}
    released = threading.Event()

    def through(fetch, *arguments):
        answer = asks[fetch.__self__._id] if not released.is_set() else "now"
        if answer == "refused":
            raise ServerError("503")
        if answer == "late":
            assert released.wait(20)
        return fetch(*arguments)

    consumer = Reading(sim, ThreadPoolExecutor(8), through)
    prompt = [name for name, answer in asks.items() if answer == "now"]
    if prompt:
        events = consumer.step(most)
        names = [part.partition_id for part in consumer.steps[-1][0]]
        assert set(names) <= set(prompt)
        allowed = min(2 * len(prompt), 99 if most is None else most)
        assert 0 < len(events) <= allowed
        assert len(events) == allowed or "late" in answers  # a busy machine may be late too
    released.set()
    consumer.drain(most)
    consumer.check_all()
    consumer.close()


class TestOneThatDoesNotAnswer:
    @pytest.fixture
    def sim(self):
        return Simulation(3, behaviour=ServiceBehaviour(heartbeats=False))

    def consumer(self, sim, error):
        self.broken = True

        def through(fetch, *arguments):
            if self.broken and fetch.__self__._id == "p1":
                raise error
            return fetch(*arguments)

        return Reading(sim, through=through)

    def test_keeps_its_position_while_others_have_records_and_is_told_then(self, sim, caplog):
        """So a partition whose query ends without naming children does not stop the others."""
        keys, consumer = keys_of(3), self.consumer(sim, ServerError("503"))
        written = [sim.write(key, {"n": 1}).event_id for key in keys.values()]
        step = consumer.planner.advance(consumer.at, None, consumer.deadline)
        assert ("p1" in step.left, step.is_end) == (True, False)
        assert consumer.context.budget.used == 0
        assert "p1 is not in this step, because its read has failed (503)" in caplog.text
        assert set(consumer.step()) == {written[0], written[2]}
        with pytest.raises(ServerError):
            consumer.step()
        self.broken = False
        assert consumer.step() == [written[1]]

    def test_does_not_stop_a_quiet_feed_whose_positions_move(self, sim, caplog):
        """But nobody says that it has been read to its end, and a run that needs its end has its error."""
        sim.behaviour = ServiceBehaviour(heartbeats=True)
        consumer = self.consumer(sim, ServerError("503"))
        sim.write(keys_of(3)["p1"], {"n": 1})
        step = consumer.planner.advance(consumer.at, None, consumer.deadline, allow_empty=True)
        assert (step.empty, set(step.left), step.is_end) == (True, {"p1"}, False)
        assert step.after.cursor("p1") == step.before.cursor("p1")
        assert "p1 is not in this step" in caplog.text
        with pytest.raises(ServerError):
            consumer.planner.target(consumer.at, consumer.deadline)
        self.broken = False
        consumer.drain()
        consumer.check_all()
        consumer.close()

    def test_is_not_waited_for_while_others_move(self, sim, caplog):
        sim.behaviour, released = ServiceBehaviour(heartbeats=True), threading.Event()

        def through(fetch, *arguments):
            assert fetch.__self__._id != "p1" or released.wait(20)
            return fetch(*arguments)

        consumer = Reading(sim, ThreadPoolExecutor(8), through)
        for _ in range(2):
            sim.write(keys_of(3)["p1"], {"n": 1})
            step = consumer.planner.advance(consumer.at, None, consumer.deadline, allow_empty=True)
            assert (step.empty, "p1" in step.left, step.is_end) == (True, True, False)
        released.set()
        consumer.drain()
        consumer.close()

    def test_is_not_waited_for_although_its_own_position_has_moved_too(self, sim):
        """p1 has sent an answer that proves no end, and does not send the next one of its walk."""
        sim.behaviour, released = ServiceBehaviour(heartbeats=True), threading.Event()
        asked, again = Counter(), threading.Event()

        def through(fetch, *arguments):
            asked[name := fetch.__self__._id] += 1
            if name != "p1":
                assert again.wait(20)
                return fetch(*arguments)
            if asked["p1"] == 1:
                return attrs.evolve(fetch(*arguments), records=(), caught_up=False)
            again.set()
            assert released.wait(20)
            return fetch(*arguments)

        consumer = Reading(sim, ThreadPoolExecutor(8), through)
        sim.write(keys_of(3)["p1"], {"n": 1})  # it moves the positions of all, and p1 keeps it to itself
        step = consumer.planner.advance(consumer.at, None, consumer.deadline, allow_empty=True)
        assert (step.empty, asked["p1"], "p1" in step.left, step.is_end) == (True, 2, True, False)
        released.set()
        consumer.drain()
        consumer.close()

    def test_is_waited_for_if_nothing_else_is_to_be_read(self, sim, monkeypatch):
        """Else a partition whose answers are slow would be left in each step, and a run would not end."""
        sim.behaviour, keys = ServiceBehaviour(heartbeats=True), keys_of(3)
        asked = Counter()

        def through(fetch, *arguments):
            name = fetch.__self__._id
            asked[name] += 1
            if name == "p1":
                assert asked[name] < 20
                sim.write(keys["p0"], {"n": 1})  # so that each answer has another position
                threading.Event().wait(5 * BRIEF)
            return fetch(*arguments)

        consumer = Reading(sim, ThreadPoolExecutor(8), through)
        monkeypatch.setattr(consumer.planned, "clock", lambda deadline: None, raising=False)
        assert consumer.planner.target(consumer.at, 60.0).cursors.keys() == keys.keys()
        consumer.close()

    def test_is_told_though_its_failure_comes_after_each_step(self, sim, caplog):
        """Else the others hide it as long as they have records."""
        keys, ends = keys_of(3), []

        def through(fetch, *arguments):
            if fetch.__self__._id != "p1":
                return fetch(*arguments)
            ends.append(threading.Event())
            assert ends[-1].wait(20)
            raise ServerError("503")

        consumer = Reading(sim, ThreadPoolExecutor(8), through)
        for _ in range(50):
            sim.write(keys["p0"], {"n": 1})
            assert len(consumer.step()) == 1
            if "503" in caplog.text:
                break
            threading.Event().wait(2 * BRIEF)  # longer than others wait for it
            ends[-1].set()
        ends[-1].set()
        assert "503" in caplog.text
        assert len(ends) > 1
        consumer.close()

    @pytest.mark.parametrize("most", [None, 3, 6])
    def test_for_too_long_is_asked_anew_for_the_same_share(self, sim, most, monkeypatch):
        """The fetches are those of an earlier step, and take too long only while this one waits for them."""
        wait_for_slow_ones(monkeypatch, 60.0)
        monkeypatch.setattr(SimulationReader, "longest_fetch", lambda reader: 60.0)
        consumer, keys = Reading(sim, ThreadPoolExecutor(8)), keys_of(3)
        for key in [*keys.values()] * 2:
            sim.write(key, {"n": 1})
        sim.hold()
        with pytest.raises(ProviderFault):
            consumer.planner.advance(consumer.at, most, Deadline.after(0.3))
        asked = Counter()

        def longest(reader):
            asked[reader] += 1
            if asked[reader] == 1:  # the step begins
                return 60.0
            sim.release()
            return 0.0

        monkeypatch.setattr(SimulationReader, "longest_fetch", longest)
        step = consumer.planner.advance(consumer.at, most, Deadline.after(60.0))
        assert (step.records, len(step.ranges())) == (most or 6, 3)
        consumer.drain(most)
        consumer.check_all()
        consumer.close()

    def test_for_ever_is_an_error_at_once(self, sim):
        consumer = self.consumer(sim, CorruptError("broken"))
        for key in keys_of(3).values():
            sim.write(key, {"n": 1})
        with pytest.raises(CorruptError):
            consumer.step()
        consumer.close()


@pytest.mark.parametrize("width", [1, 4])
def test_partitions_are_asked_at_once_but_no_more_than_the_client_may(width, monkeypatch):
    wait_for_slow_ones(monkeypatch, 60.0)
    sim, running, most, lock = Simulation(12), [], [], threading.Lock()
    write(sim, 100)
    full = threading.Barrier(width)

    def through(fetch, *arguments):
        with lock:
            running.append(1)
            most.append(len(running))
        with suppress(threading.BrokenBarrierError):
            full.wait(5)
        try:
            return fetch(*arguments)
        finally:
            with lock:
                running.pop()

    consumer = Reading(sim, ThreadPoolExecutor(12), through, max_concurrency=width)
    assert len(consumer.step()) == 100
    assert max(most) == width
    consumer.close()


class TestBacklog:
    """Many more records are there than the service sends in one answer."""

    @pytest.fixture
    def sim(self):
        return Simulation(2, behaviour=ServiceBehaviour(page_limit=10, heartbeats=False))

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch):
        monkeypatch.setattr(queue, "_FULL_RECORDS", 5)
        monkeypatch.setattr(heads, "_STEP_RECORDS", 60)

    def test_an_answer_is_full_of_bytes_too(self, sim):
        sim.behaviour = ServiceBehaviour(page_limit=2, heartbeats=False)
        key = keys_of(2)["p0"]
        for _ in range(6):
            sim.write(key, {"text": "x" * 300_000})
        consumer = Reading(sim)
        assert len(consumer.step()) == 6
        consumer.close()

    def sizes(self, sim, most=None, unsure=None, **records):
        """Return how many records each step has, and how often the planner has asked each partition."""
        asked, keys = Counter(), keys_of(2)

        def through(fetch, *arguments):
            asked[name := fetch.__self__._id] += 1
            batch = fetch(*arguments)
            return attrs.evolve(batch, caught_up=False) if name == unsure else batch

        consumer = Reading(sim, through=through)
        for name, number in [(name, n) for name, count in records.items() for n in range(count)]:
            sim.write(keys[name], {"n": number})
        steps = []
        while sum(steps) < sum(records.values()):
            steps.append(len(consumer.step(most)))
        found, unsure = dict(asked), None
        consumer.drain()
        consumer.check_all()
        consumer.close()
        return steps, found

    def test_of_one_partition_is_one_step(self, sim):
        assert self.sizes(sim, p0=55) == ([55], {"p0": 6, "p1": 1})

    def test_is_several_steps_if_it_is_large(self, sim):
        assert self.sizes(sim, p0=50, p1=50)[0] == [60, 40]

    def test_is_several_steps_if_its_records_are_large(self, sim, monkeypatch):
        monkeypatch.setattr(heads, "_STEP_BYTES", 1)
        assert self.sizes(sim, p0=50, p1=10)[0] == [20, 10, 10, 10, 10]

    @pytest.mark.parametrize("most", [25, 26])
    def test_fills_each_step_up_to_its_limit(self, sim, most):
        assert self.sizes(sim, most, p0=55)[0] == [most, most, 55 - 2 * most]

    @pytest.mark.parametrize("most", [None, 1000])
    def test_few_records_are_read_with_one_request(self, sim, most):
        assert self.sizes(sim, most, p0=4) == ([4], {"p0": 1, "p1": 1})

    @pytest.mark.parametrize("most", [None, 1000])
    def test_an_answer_without_records_ends_it(self, sim, most):
        """A new reader is asked until it finds records, not until it has proved that nothing follows."""
        assert self.sizes(sim, most, "p0", p0=10)[1]["p0"] == 2

    def test_is_read_as_far_as_the_service_answers(self, sim, caplog):
        asked, key = Counter(), keys_of(2)["p0"]

        def through(fetch, *arguments):
            asked[name := fetch.__self__._id] += 1
            if name == "p0" and asked[name] == 2:
                raise ServerError("503")
            return fetch(*arguments)

        for number in range(25):
            sim.write(key, {"n": number})
        consumer = Reading(sim, through=through)
        assert len(consumer.step()) == 10
        assert "p0 is read no further in this step, because its read has failed (503)" in caplog.text
        assert len(consumer.step()) == 15
        consumer.check_all()
        consumer.close()


class TestARecordBehindTheTarget:
    """It cannot be fetched, but the run that ends at the target does not need it."""

    @pytest.mark.parametrize("skips", [True, False])
    @pytest.mark.parametrize("before", [0, 3])
    @pytest.mark.parametrize("most", [None, 1, 50])
    def test_is_left_to_a_later_run(self, skips, before, most):
        sim = Simulation(2, behaviour=ServiceBehaviour(page_limit=3, poison_at_fetch=True))
        first, second = keys_of(2).values()
        consumer = Reading(sim)
        consumer.planner = Planner(
            consumer.provider, consumer.planned, context=consumer.context, skip_poison=skips
        )
        written = [sim.write(first, {"n": number}).event_id for number in range(before)]
        written.append(sim.write(second, {"n": 0}).event_id)  # the end of `p0` lies behind its last record
        target = consumer.planner.target(consumer.at, consumer.deadline)
        sim.write(first, {"n": 0}, poison=True)
        while consumer.step(most, target) is not None:
            pass
        assert sorted(consumer.delivered) == sorted(written)
        assert {name: consumer.at.cursor(name) for name in target.cursors} == dict(target.cursors)
        consumer.close()


class TestWalk:
    """A partition answers without records several times before the first record comes."""

    ANSWERS = 5

    @pytest.fixture
    def sim(self):
        return Simulation(2, behaviour=ServiceBehaviour(heartbeats=False))

    @pytest.fixture
    def consumer(self, sim):
        """Return a consumer of a service of which a new reader of `p1` finds nothing at first."""
        walked = Counter()

        def through(fetch, *arguments):
            reader = fetch.__self__
            walked[reader] += 1
            if reader._id != "p1" or walked[reader] > self.ANSWERS:
                return fetch(*arguments)
            place = reader._place
            batch = fetch(*arguments)
            reader._place = place
            return attrs.evolve(
                batch, records=[], end=batch.begin, outcome=Continue(), caught_up=False, nbytes=0
            )

        return Reading(sim, through=through)

    def test_goes_on_in_the_next_step_if_its_reader_lives(self, sim, consumer):
        keys = keys_of(2)
        consumer.drain()
        asked = consumer.provider.calls.fetches
        for _ in range(3):
            sim.write(keys["p0"], {"n": 1})
            before = asked["p1"]
            assert len(consumer.step()) == 1
            assert asked["p1"] == before + 1

    def test_goes_on_inside_the_step_if_its_reader_is_lost_after_each(self, sim, consumer):
        keys, found = keys_of(2), []
        late = sim.write(keys["p1"], {"n": 1}).event_id
        for _ in range(2):
            sim.write(keys["p0"], {"n": 1})
            found += consumer.step()
            consumer.context.consumers.forget()
        assert late in found

    def test_goes_on_inside_the_step_if_its_reader_was_not_used_for_long(self, sim, consumer, monkeypatch):
        monkeypatch.setattr("multiclouddb_spi.planning.heads._LIVE_SECONDS", -1.0)
        keys = keys_of(2)
        late = sim.write(keys["p1"], {"n": 1}).event_id
        sim.write(keys["p0"], {"n": 1})
        assert late in consumer.step()

    def test_is_no_end(self, sim, consumer):
        assert consumer.planner.target(consumer.at, consumer.deadline)
        assert consumer.provider.calls.fetches["p1"] > self.ANSWERS


@pytest.mark.parametrize(
    ("records", "caught_up", "follows"),
    [
        (1, None, Follows.NOT_KNOWN),
        (1, False, Follows.NOT_KNOWN),
        (1, True, Follows.END),
        (0, None, Follows.END),
        (0, False, Follows.NOT_KNOWN),
        (0, True, Follows.END),
    ],
)
def test_an_answer_with_records_is_no_end_unless_the_service_says_so(records, caught_up, follows):
    assert heads.follows_of(Batch(range(records), None, 0, 1, caught_up=caught_up)) is follows


def test_a_partition_is_not_asked_again_before_it_is_worth_it():
    sim, asked = Simulation(3, behaviour=ServiceBehaviour(poll_after=60.0, heartbeats=False)), Counter()

    def through(fetch, *arguments):
        asked[fetch.__self__._id] += 1
        return fetch(*arguments)

    consumer = Reading(sim, through=through)
    consumer.planner.advance(consumer.at, None, consumer.deadline, allow_empty=True)
    # A step that may find nothing waits until one is worth it.
    consumer.planner.advance(consumer.at, None, Deadline.after(0.2), allow_empty=True)
    assert set(asked.values()) == {1}
    consumer.close()
