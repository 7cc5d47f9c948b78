"""Tests that what a client keeps of its consumers changes nothing but the time that a page takes.

From the token of every page, the client that wrote it and a new client deliver the same rest: with several
consumers in one client, after errors, after interrupts, and when a consumer goes back to an older token. The
explorer (`tests/lineage`) follows the small histories of one consumer; these lives are random, with threads.
"""

import os
import random
import threading
from concurrent.futures import Future
from contextlib import suppress
from types import SimpleNamespace

import attrs
import pytest

from multiclouddb_api import Beginning, ErrorCategory, MulticloudDbError, Now, PhysicalPartition
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_conformance.interrupting import interrupted_at
from multiclouddb_conformance.simulation import (
    Listing,
    ServerError,
    ServiceBehaviour,
    Simulation,
    SimulationProvider,
    ThrottledError,
)
from multiclouddb_spi import Deadline, FeedSpec, ProviderFault
from multiclouddb_spi.continuation.entry import Entry
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.fetching import consumers
from multiclouddb_spi.fetching.consumer import Consumer
from multiclouddb_spi.fetching.consumers import Consumers
from multiclouddb_spi.fetching.stream import Budget
from multiclouddb_spi.observing import Observing
from testing.seeds import in_soak
from tests.engine.conftest import Bench
from tests.engine.planted import adopted_wherever_it_stands, kept_after_an_interrupt, not_rewound

LIVES = int(os.environ.get("MULTICLOUDDB_CONSUMER_LIVES", "5"))


class Reader:
    """A consumer of the test: where it is, what it has seen, and how much of it at each token."""

    def __init__(self, start):
        self.start, self.place, self.seen, self.marks = start, start, [], []


class Life:
    """Some consumers in one client, beside a writer, with faults that end by themselves."""

    def __init__(self, make_bench, seed, form=Listing.ALL):
        self.dice = random.Random(seed)
        behaviour = attrs.evolve(ServiceBehaviour(seed=seed), listing=form)
        self.bench = make_bench(self.dice.randrange(1, 5), behaviour=behaviour)
        self.sim = self.bench.sim
        self.bench.connect(
            max_concurrency=self.dice.choice([1, 2, 16]), max_buffered_bytes=65_536, page_records=5,
            attempts=1, pause=lambda seconds: None,
        )  # fmt: skip
        self.readers = [Reader(Beginning()) for _ in range(self.dice.randrange(1, 4))]

    def live(self, steps):
        acts = (
            [self.write] * 4
            + [self.page] * 10
            + [self.interrupt, self.break_off, self.fail, self.reshape, self.go_back]
        )
        for _ in range(steps):
            self.dice.choice(acts)()

    def write(self):
        for _ in range(self.dice.randrange(1, 20)):
            self.sim.write(f"k{self.dice.randrange(12)}", {"n": self.sim.head})

    def fail(self):
        fault = self.dice.choice([ServerError("503"), ThrottledError("slow", 0.0)])
        name = self.dice.choice(list(self.sim.partitions))
        self.sim.fail_next(name, fault, times=self.dice.randrange(1, 3))

    def reshape(self):
        names = self.sim.open_partitions
        if len(names) < 6:
            self.sim.split(self.dice.choice(names))
        elif self.sim.may_merge():
            self.sim.merge(*self.dice.sample(names, 2))

    def read(self, one):
        size, ask_all = self.dice.choice([0, 1, 3, 7]), self.dice.random() < 0.7
        try:
            page = self.bench.page(one.place, size, ask_all=ask_all)
        except MulticloudDbError as error:
            if not error.retryable:
                raise
            return False
        one.seen += [event.event_id for event in page.events]
        if self.dice.random() < 0.8 or page.events:  # else it keeps its token until events come
            one.place = page.continuation_token
            one.marks.append((one.place, len(one.seen)))
        return page.idle

    def page(self):
        self.read(self.dice.choice(self.readers))

    def interrupt(self):
        one = self.dice.choice(self.readers)
        try:
            interrupted_at(self.dice.randrange(1, 2000), lambda: self.bench.page(one.place, 3))
        except MulticloudDbError as error:  # a fault of the service came before that line
            if not error.retryable:
                raise

    def break_off(self, one=None):
        """A call fails after it has read."""
        pages, one = self.bench.engine._calls.kept.pages, one or self.dice.choice(self.readers)

        def fails(*_):
            raise ProviderFault.of(ErrorCategory.TRANSIENT_FAILURE, "no page", retryable=True)

        pages.reading = fails
        with suppress(MulticloudDbError):
            self.bench.page(one.place, 3)
        del pages.reading

    def go_back(self, one=None, mark=None):
        one = one or self.dice.choice(self.readers)
        if one.marks:
            del one.marks[(self.dice.randrange(len(one.marks)) if mark is None else mark) + 1 :]
            one.place, count = one.marks[-1]
            del one.seen[count:]

    def drained(self, one):
        for _ in range(500):
            if self.read(one):
                return
        raise AssertionError("not idle")

    def check(self):
        written = sorted(self.bench.written())
        for one in self.readers:
            self.drained(one)
            assert sorted(one.seen) == written
            for token, count in self.dice.sample(one.marks, min(3, len(one.marks))):
                cold = self.bench.connect()
                rest = [event.event_id for event in self.bench.drain(token, engine=cold)[0]]
                assert sorted(rest) == sorted(one.seen[count:]), "a new client reads on differently"


def play(make_bench, seed, form=Listing.ALL):
    life = Life(make_bench, seed, form)
    try:
        life.live(60)
        life.check()
    except (AssertionError, MulticloudDbError) as error:
        error.add_note(f"seed {seed}, {form}")
        raise


@pytest.mark.parametrize("form", [Listing.ALL, Listing.OPEN], ids=lambda form: form.value)
@pytest.mark.parametrize(
    "lives", [range(LIVES), pytest.param(in_soak(LIVES, 100 * LIVES), marks=pytest.mark.soak)], ids=len
)
def test_a_new_client_reads_on_in_the_same_way(make_bench, looks_at_once, lives, form):
    for seed in lives:
        play(make_bench, seed, form)


PLANTED = [kept_after_an_interrupt, not_rewound, adopted_wherever_it_stands]


@pytest.mark.parametrize("defect", PLANTED, ids=lambda defect: defect.__name__)
@pytest.mark.parametrize("checks", [True, False])
def test_a_planted_defect_is_found(looks_at_once, monkeypatch, defect, checks):
    monkeypatch.setattr(Consumers, "checks", checks)
    defect(monkeypatch)

    def careless(partitions, **settings):
        return Bench(Simulation(partitions, **settings))

    def some_lives():
        for seed in range(40):
            play(careless, seed)

    with pytest.raises((AssertionError, MulticloudDbError)):
        some_lives()


class TestTaken:
    """A consumer is used only for a request of its own feed and scope, and only by one call at once."""

    def test_not_for_another_scope(self, make_bench):
        bench = make_bench(2)
        token = bench.page(Now()).continuation_token
        scope = PhysicalPartition(bench.partitions()[0])
        bench.refused(ErrorCategory.INVALID_REQUEST, token, scope=scope)
        bench.fill(3)
        assert len(bench.drain(token)[0]) == 3

    def test_a_token_is_none_before_the_first_event_also_if_the_page_is_returned_again(
        self, make_bench, moved_clock
    ):
        bench = make_bench(8, behaviour=ServiceBehaviour(poll_after=10.0))
        bench.connect(max_concurrency=2)
        page = bench.page(Now(), ask_all=False)
        for _ in range(3):
            page = bench.page(page.continuation_token, ask_all=False)
            assert (page.resumed_from, page.events) == (None, ())


class TestKept:
    """Tests which consumers a client keeps; each is known by its token."""

    @pytest.fixture
    def make(self, bench, monkeypatch):
        monkeypatch.setattr(Consumers, "checks", False)  # these have no real tokens
        self.feed = SimulationProvider(bench.sim).open_feed(FeedSpec(bench.sim.address), Deadline.after(60))
        self.budget, self.clock = Budget(100), 0.0
        monkeypatch.setattr(consumers, "time", SimpleNamespace(monotonic=lambda: self.clock))

        def made(nbytes=0, partitions=1, ended=False):
            lineage = Lineage([Entry.read(f"p{number}", 1) for number in range(partitions)], RULES)
            if ended:
                lineage.ended("p0", [], complete=False)
            consumer = Consumer(self.feed, lineage, "collection", "")
            for entry in lineage.active():
                stream = consumer.at(entry.partition_id, 1, self.budget, Observing(None))
                stream.asked_at, consumer.open_streams = 1.0, consumer.open_streams + 1
                if nbytes:
                    stream.future = Future()
                    stream.future.set_result(None)
                    stream.hold(nbytes)
            return consumer

        return made

    def left_in(self, kept, keys):
        return [key for key in keys if kept.take(key, self.feed.spec, "collection")]

    def test_the_one_that_was_used_last_goes_last(self, make, monkeypatch):
        monkeypatch.setattr(consumers, "_MOST_KEYS", 3)
        kept = Consumers(self.budget, 100)
        for key in ("a", "b", "c"):
            kept.put(make(), key)
        used = kept.take("a", self.feed.spec, "collection")
        kept.put(used, "a")
        kept.put(make(), "d")
        assert self.left_in(kept, "abcd") == ["a", "c", "d"]

    def test_their_number_is_bounded(self, make):
        kept = Consumers(self.budget, 100)
        for number in range(consumers._MOST_PARTITIONS):
            kept.put(make(partitions=0), number)
        assert len(kept) <= 20_000

    def test_their_partitions_are_bounded_but_the_newest_is_kept(self, make, monkeypatch):
        monkeypatch.setattr(consumers, "_MOST_PARTITIONS", 10)
        kept = Consumers(self.budget, 100)
        for key in ("a", "b", "c"):
            kept.put(make(partitions=4), key)
        kept.put(make(partitions=20), "d")
        assert self.left_in(kept, "abcd") == ["d"]

    def test_as_many_as_allowed_stay(self, make, monkeypatch):
        monkeypatch.setattr(consumers, "_MOST_PARTITIONS", 8)
        kept = Consumers(self.budget, 100)
        for key in ("a", "b"):
            kept.put(make(partitions=4), key)
        assert self.left_in(kept, "ab") == ["a", "b"]

    def test_so_are_the_open_readers(self, make):
        kept = Consumers(self.budget, 10)
        for key in ("a", "b", "c"):
            kept.put(make(partitions=4), key)
        last = make(partitions=20)
        kept.put(last, "d")
        assert (last.open_streams, self.left_in(kept, "abcd")) == (10, ["d"])
        assert [bool(each.asked_at) for each in last.streams.values()] == [True] * 10 + [False] * 10

    def test_the_next_reader_of_a_partition_asks_for_as_little_as_the_last(self, make):
        """Else a slow link, over which no full answer arrives, would be tried with full ones again."""
        consumer = make()
        stream = consumer.streams["p0"]
        stream.size.failed(1 << 20)
        asked = stream.size.of(1000)
        consumer.drop(stream)
        again = consumer.at("p0", 1, self.budget, Observing(None))
        assert again is not stream
        assert (again.size.of(1000), asked) == (asked, 250)

    def test_it_is_known_when_a_partition_is_due_after_its_reader_was_closed(self, make):
        kept, consumer, throttled = Consumers(self.budget, 0), make(partitions=2), ValueError("slow")
        due, other = consumer.streams.values()
        due.due_at, due.error, other.error = 5.0, throttled, throttled
        kept.put(consumer, "a")
        assert consumer.open_streams == 0
        left = [(each.due_at, each.error) for each in consumer.streams.values()]
        assert left == [(5.0, throttled), (0.0, None)]

    def test_readers_that_were_closed_do_not_count(self, make):
        kept = Consumers(self.budget, 10)
        kept.put(make(partitions=20), "a")
        kept.put(make(partitions=0), "b")
        assert self.left_in(kept, "ab") == ["a", "b"]

    @pytest.mark.parametrize(("seconds", "left"), [(59, ["a", "b"]), (61, ["b"])])
    def test_one_that_nobody_uses_for_a_minute_goes(self, make, seconds, left):
        kept = Consumers(self.budget, 10)
        kept.put(make(), "a")
        self.clock = seconds
        kept.put(make(), "b")
        assert self.left_in(kept, "ab") == left

    def test_one_that_searches_for_children_loses_only_its_readers(self, make):
        kept = Consumers(self.budget, 10)
        searching = make(partitions=2, ended=True)
        kept.put(searching, "a")
        for self.clock in (61, 122):
            kept.put(make(), "b")
        assert searching.open_streams == 0
        assert self.left_in(kept, "a") == ["a"]

    def test_it_is_found_by_each_of_its_keys_until_one_call_has_it(self, make):
        kept = Consumers(self.budget, 10)
        kept.put(make(), "old", "new")
        assert len(kept) == 1
        assert self.left_in(kept, ["old", "new"]) == ["old"]

    @pytest.mark.parametrize(("spec", "scope"), [("other", "collection"), (None, "other")])
    def test_it_is_of_one_feed_and_scope(self, make, spec, scope):
        kept = Consumers(self.budget, 10)
        kept.put(make(), "a")
        assert kept.take("a", spec or self.feed.spec, scope) is None
        assert self.left_in(kept, "a") == ["a"]

    def test_what_was_fetched_over_the_bound_goes_after_a_call(self, make):
        kept, last = Consumers(self.budget, 10), make(nbytes=40)
        for key in ("a", "b", "c"):
            kept.put(make(nbytes=40), key)
        assert self.budget.used == 160
        self.clock = 11
        kept.put(last, "d")
        assert self.budget.used == 80
        assert self.left_in(kept, "abcd") == ["a", "b", "c", "d"]

    def test_one_that_is_put_back_after_the_client_has_closed_is_discarded(self, make):
        kept, consumer = Consumers(self.budget, 10), make(nbytes=40)
        kept.close()
        kept.put(consumer, "a")
        assert (consumer.open_streams, self.budget.used, len(kept)) == (0, 0, 0)

    def test_nothing_stays_of_one_whose_place_another_has_taken(self, make):
        """It would be discarded with the thread's consumers at the end."""
        kept, first, second = Consumers(self.budget, 10), make(), make()
        kept.put(first, "old", "older")
        kept.use(second, instead=kept.take("old", self.feed.spec, "collection"))
        kept.put(second, "new")
        assert (len(kept), self.left_in(kept, ["old", "older", "new"])) == (1, ["new"])

    def test_those_of_this_thread_end_with_all_and_those_of_others_when_they_come_back(self, make):
        kept, ours, theirs = Consumers(self.budget, 10), make(nbytes=40), make(nbytes=20)
        for each in (ours, theirs):
            kept.put(each, id(each))
        other = threading.Thread(target=kept.take, args=(id(theirs), self.feed.spec, "collection"))
        other.start()
        other.join()
        kept.take(id(ours), self.feed.spec, "collection")
        kept.close()
        assert (ours.open_streams, theirs.open_streams, self.budget.used) == (0, 1, 20)
        kept.put(theirs, "b")
        assert (theirs.open_streams, self.budget.used, len(kept)) == (0, 0, 0)

    def test_one_that_gives_its_place_to_an_equal_token_is_discarded(self, make):
        kept, first = Consumers(self.budget, 10), make(nbytes=40)
        kept.put(first, "a")
        kept.put(make(), "a")
        assert (first.open_streams, len(kept)) == (0, 1)
