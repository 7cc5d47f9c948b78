"""Tests bounded reads of a service that answers late, ends early, or has no more records."""

import threading
from itertools import chain, combinations, islice

import pytest

from multiclouddb_api import Beginning, ErrorCategory, FeedEnded, MulticloudDbError, SkipToOldest
from multiclouddb_conformance.delegating import WrappedFeed, WrappedProvider
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_conformance.simulation import (
    ServerError,
    ServiceBehaviour,
    Simulation,
    SimulationProvider,
    TrimmedError,
)
from multiclouddb_conformance.simulation.view import View
from multiclouddb_spi import (
    Batch,
    Deadline,
    Drained,
    Ended,
    Feed,
    FeedSpec,
    Partition,
    PartitionState,
    Planner,
    ProviderFault,
    Survey,
    read_range,
    time_limits,
)
from multiclouddb_spi.continuation.entry import Entry, Plan, Stage
from multiclouddb_spi.continuation.follow import PartitionEnd, apply_end
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.planning import ranges
from multiclouddb_spi.time_limits import current

from .reading import Asked, Through, events_of, write


class Clock:
    """A clock that moves only during pauses; short pauses move it by a tenth of a second."""

    def __init__(self):
        self.now, self.pauses = 1000.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds


class Lagging(Through):
    """A feed of a replica that lags: at first its readers return an empty answer at each of some cursors."""

    def __init__(self, feed, cursors, poll_after=0.0):
        super().__init__(feed, self._late)
        self.cursors, self.poll_after = cursors, poll_after

    def _late(self, fetch, *asked):
        if not self.cursors:
            return fetch(*asked)
        cursor = self.cursors.pop(0)
        return Batch((), None, cursor, cursor, caught_up=True, poll_after=self.poll_after)


class World:
    """One partition with a range of three changes, and two changes after it."""

    def __init__(self, clock, **behaviour):
        self.clock = clock
        self.sim = Simulation(behaviour=ServiceBehaviour(**behaviour))
        self.provider = SimulationProvider(self.sim)
        soon = Deadline.after(60)
        self.feed = self.provider.open_feed(FeedSpec(self.sim.address), soon)
        planner = Planner(self.provider, self.feed)
        start = planner.start(Beginning(), soon)
        self.places, self.names = [start.cursor("p0")], []
        for number in range(5):
            self.names.append(self.sim.write("k", {"n": number}).event_id)
            step = planner.advance(start, None, soon)
            self.places.append(step.after.cursor("p0"))
        self.part = ranges.Range("p0", self.places[0], self.places[3])

    def read(self, feed=None):
        return (event.event_id for event in events_of(self.provider, feed or self.feed, [self.part]))


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(time_limits, "time", made)
    monkeypatch.setattr(ranges, "_sleep", made.sleep)
    return made


def test_one_fetch_asks_for_no_more_than_eight_mebibytes(clock):
    """A worker of Spark holds two answers at once: the one that it yields, and the next."""
    world = World(clock)
    asked = Asked(world.feed)
    assert list(world.read(asked)) == world.names[:3]
    assert {nbytes for _, nbytes, _, _ in asked.asked} == {8 * 2**20}


@pytest.mark.parametrize("poll_after", [0.0, 0.05, 2.0])
def test_who_is_behind_is_asked_again_until_it_has_come_so_far(clock, poll_after):
    world = World(clock)
    lagging = Lagging(world.feed, [world.places[0]] * 20, poll_after)
    assert list(world.read(lagging)) == world.names[:3]
    assert clock.pauses == [max(0.1, poll_after)] * 20


def test_who_comes_nearer_is_waited_for_however_long_it_takes(clock):
    world = World(clock)
    lagging = Lagging(world.feed, [*[world.places[0]] * 59, *[world.places[1]] * 59], 2.0)
    assert len(lagging.cursors) * 2.0 > 120
    assert list(world.read(lagging)) == world.names[:3]


def test_who_stays_behind_is_given_up_in_words_that_help(clock):
    world = World(clock)
    with pytest.raises(MulticloudDbError, match=r"nothing more for 120 s.*try again.*start again") as caught:
        list(world.read(Lagging(world.feed, [world.places[0]] * 10_000)))
    assert (caught.value.category, caught.value.retryable) == (ErrorCategory.TRANSIENT_FAILURE, True)
    assert 119 < sum(clock.pauses) < 121


def test_a_partition_that_ends_early_is_told_behind_what_came_before(clock):
    world = World(clock, drop_notice=True, page_limit=1)
    rows = world.read()
    assert next(rows) == world.names[0]
    world.sim.drop()
    with pytest.raises(
        MulticloudDbError, match=r"the end of the planned range.*at an earlier time"
    ) as caught:
        list(rows)
    assert (caught.value.category, caught.value.retryable) == (ErrorCategory.TRANSIENT_FAILURE, True)
    assert clock.pauses == []


def test_an_answer_that_is_still_scanning_is_no_reason_to_wait(clock):
    world = World(clock, scan_limit=1, page_limit=1)
    assert list(world.read()) == world.names[:3]
    assert clock.pauses == []


OPEN = PartitionState.OPEN


def stated(monkeypatch, world, *present):
    """Let the service state that only these partitions are left."""
    monkeypatch.setattr(world.feed, "survey", lambda *_, **__: Survey(present))


@pytest.mark.parametrize(("oldest", "left"), [("p0", 2), ("child", 0)])
def test_after_an_expiry_the_range_continues_only_in_its_own_partition(clock, monkeypatch, oldest, left):
    """If the partition is gone, the service names its descendants; their events belong to other ranges."""
    world = World(clock)
    stated(monkeypatch, world, Partition(oldest, (), OPEN, world.places[1]))
    world.sim.fail_next("p0", TrimmedError("too old"))
    batches = read_range(world.provider, world.feed, world.part, SkipToOldest())
    assert sum(map(len, batches)) == left


class TestSkips:
    """Tests a bounded read that skips expired positions: it loses nothing that the service still has."""

    def read(self, world):
        events = events_of(world.provider, world.feed, [world.part], SkipToOldest())
        return [event.event_id for event in events]

    def test_a_position_that_stays_expired_is_an_error(self, clock, monkeypatch):
        world = World(clock)
        stated(monkeypatch, world, Partition("p0", (), OPEN, world.places[0]))
        world.sim.fail_next("p0", TrimmedError("too old"), times=4)
        with pytest.raises(MulticloudDbError) as caught:
            self.read(world)
        assert caught.value.category is ErrorCategory.CHECKPOINT_EXPIRED
        assert self.read(world) == world.names[:3]

    def test_each_position_may_expire_some_times(self, clock, monkeypatch):
        world = World(clock, page_limit=1)
        read = read_range(world.provider, world.feed, world.part, SkipToOldest())
        for place in world.places[:3]:
            stated(monkeypatch, world, Partition("p0", (), OPEN, place))
            world.sim.fail_next("p0", TrimmedError("too old"), times=3)
            assert len(next(read)) == 1
        assert list(read) == []

    def test_a_partition_that_is_gone_is_in_the_log(self, clock, monkeypatch, caplog):
        world = World(clock)
        stated(monkeypatch, world)
        world.sim.fail_next("p0", TrimmedError("too old"))
        assert self.read(world) == []
        assert "were lost to retention" in caplog.text


def test_a_request_becomes_smaller_while_the_link_is_cut(clock, monkeypatch):
    world = World(clock)
    monkeypatch.setattr("multiclouddb_spi.retry._pause", clock.sleep)
    asked = []

    def broken(fetch, max_records, *rest):
        asked.append(max_records)
        current().heard(50_000)
        if max_records > 700:
            raise ServerError("the connection was cut")
        return fetch(max_records, *rest)

    cut, sizes = Through(world.feed, broken), {}
    for first in ([10_000, 2500, 625], [625]):  # whoever keeps the sizes asks for as little in the next range
        asked.clear()
        batches = ranges.read_range(world.provider, cut, world.part, sizes=sizes)
        found = [event.event_id for batch in batches for event in batch.events(0, len(batch))]
        assert (found, asked[: len(first)]) == (world.names[:3], first)
        assert set(asked[len(first) :]) <= {625}
    for _ in range(99):
        sizes["p0"].succeeded(1, caught_up=False)
    list(ranges.read_range(world.provider, world.feed, world.part, sizes=sizes))
    assert not sizes, "of a partition that gets as much as it wants, nothing is kept"


class Vague(WrappedFeed):
    """A feed that cannot compare two different positions."""

    def compare(self, a, b):
        return 0 if a == b else None


class VagueProvider(WrappedProvider):
    def open_feed(self, spec, deadline):
        return Vague(self.inner.open_feed(spec, deadline), self)


class TestVague:
    """Where the order of positions is unknown, no event may be left out."""

    @pytest.fixture
    def consumer(self, clock):
        sim = Simulation()
        provider, soon = VagueProvider(SimulationProvider(sim)), Deadline.after(60)
        feed = provider.open_feed(FeedSpec(sim.address), soon)
        planner = Planner(provider, feed, SkipToOldest())
        at = planner.start(Beginning(), soon)
        names = write(sim, 5)

        def read(step):
            return [event.event_id for event in events_of(provider, feed, step.ranges(), SkipToOldest())]

        return sim, planner, at, soon, names, read

    def test_what_lies_before_a_target_is_read_and_nothing_behind_it(self, consumer):
        sim, planner, at, soon, names, read = consumer
        target = planner.target(at, soon)
        sim.write("k", {"n": 5})
        assert [name for step in planner.steps(at, soon, target) for name in read(step)] == names

    def test_each_position_is_asked_alone_because_the_order_does_not_show_which_has_expired(self, consumer):
        sim, planner, at, soon, names, read = consumer
        sim.trim(upto=3)
        assert read(planner.advance(at, None, soon)) == names[3:]

    def test_a_partition_that_may_have_ended_too_early_is_not_taken_for_whole(self, consumer):
        sim, planner, at, soon, _, read = consumer
        sim.behaviour = ServiceBehaviour(drop_notice=True, page_limit=1)
        step = planner.advance(at, None, soon, planner.target(at, soon))
        sim.drop()
        with pytest.raises(MulticloudDbError, match="ended before the end of the planned range") as caught:
            read(step)
        assert (caught.value.category, caught.value.retryable) == (ErrorCategory.TRANSIENT_FAILURE, True)

    @pytest.mark.parametrize("cursors", [[3, 5, 4], [5, 4, 3], [4, 3, 5]])
    def test_a_child_starts_at_the_position_before_all_others(self, cursors):
        sim = Simulation()
        feed = SimulationProvider(sim).open_feed(FeedSpec(sim.address), Deadline.after(60))
        assert Feed.join(feed, "c", cursors) == 3
        with pytest.raises(ProviderFault, match=r"does not say where c starts.*implement `join`"):
            Feed.join(VagueProvider(SimulationProvider(sim)).open_feed(feed.spec, None), "c", cursors)


class TestOutcomes:
    def test_a_dropped_collection_ends_the_scan_and_starts_the_stream(self):
        plan = Plan("plan", [1], "f", 5, holds=True)
        segments = [Entry.read(name, 1, listed=False) for name in ("part-1", "part-2")]
        made = Lineage([plan, *segments, Entry("p0", Stage.WAIT, (1,), ("plan",))], RULES)
        assert apply_end(made, "part-1", Ended(FeedEnded("over")), names_late=False) == PartitionEnd(
            (), ("p0",)
        )
        assert [entry.partition_id for entry in made] == ["p0"]

    def test_a_page_tells_nothing_of_it_but_the_end_of_all(self, make_bench, monkeypatch, ended):
        bench = make_bench(2)
        bench.connect(coverage_audit_seconds=1e9)
        bench.fill(6)
        plain = View.ending

        def ending(view, partition_id, *, asked):
            outcome = plain(view, partition_id, asked=asked)
            return Ended(None) if isinstance(outcome, Drained) else outcome

        monkeypatch.setattr(View, "ending", ending)
        _, token = bench.drain()
        bench.sim.roll("p0")
        page = bench.page(token)
        token = page.continuation_token
        assert page.idle
        assert page.notices == ()
        bench.sim.roll("p1")
        page = bench.page(token)
        assert [type(notice) for notice in page.notices] == [FeedEnded]
        assert ended(page)
        assert page.idle


class Long:
    """A range of changes, of which each fetch returns a part; the fetches of its readers are recorded."""

    def __init__(self, changes=1500, part=600):
        self.most = part
        self.sim = Simulation()
        self.provider = SimulationProvider(self.sim)
        soon = Deadline.after(60)
        self.feed = self.provider.open_feed(FeedSpec(self.sim.address), soon)
        planner = Planner(self.provider, self.feed)
        start = planner.start(Beginning(), soon)
        self.names = write(self.sim, changes, keys=1)
        (self.part,) = planner.advance(start, None, soon).ranges()
        self.threads, self.begun, self.closed = [], threading.Semaphore(0), []
        self.before = lambda number: None
        self.cancelled, self.longest = threading.Event(), 60.0

    def __getattr__(self, name):
        return getattr(self.feed, name)

    def open(self, partition_id, cursor, until=None):
        reader = self.feed.open(partition_id, cursor, until)
        fetch, close = reader.fetch, reader.close

        def slow(records, nbytes, wait, deadline):
            self.threads.append(threading.current_thread())
            self.begun.release()
            self.before(len(self.threads))
            return fetch(min(records, self.most), nbytes, wait, deadline)

        def closed():
            self.closed.append(threading.current_thread())
            close()

        reader.fetch, reader.cancel, reader.close = slow, self.cancelled.set, closed
        reader.longest_fetch = lambda: self.longest
        return reader

    def batches(self):
        return read_range(self.provider, self, self.part)


def names_of(batches):
    return [event.event_id for batch in batches for event in batch.events(0, len(batch))]


class TestReadAhead:
    """Tests that the next records of a long range are read while the caller uses the last ones."""

    @pytest.fixture
    def long(self):
        return Long()

    def test_the_next_fetch_runs_while_the_caller_has_a_batch(self, long):
        batches = long.batches()
        first = next(batches)
        assert all(long.begun.acquire(timeout=30) for _ in range(2))
        assert names_of([first, *batches]) == long.names
        assert threading.current_thread() not in long.threads

    def test_no_more_than_one_batch_is_read_ahead(self, long):
        batches = long.batches()
        next(batches)
        assert all(long.begun.acquire(timeout=30) for _ in range(2))
        assert not long.begun.acquire(timeout=0.2)
        batches.close()

    def test_a_caller_that_stops_ends_the_fetch_and_closes_the_reader(self, long):
        long.before = lambda number: number == 2 and long.cancelled.wait(30)
        batches = long.batches()
        next(batches)
        assert all(long.begun.acquire(timeout=30) for _ in range(2))
        batches.close()
        assert long.cancelled.is_set()
        assert long.closed == [threading.current_thread()]
        long.threads[1].join(30)
        assert not long.threads[1].is_alive()

    def test_of_a_short_range_nothing_is_read_ahead(self):
        short = Long(400, 150)
        batches = short.batches()
        next(batches)
        assert short.begun.acquire(timeout=30)
        assert not short.begun.acquire(timeout=0.2)
        assert names_of(batches) == short.names[150:]

    def test_a_fetch_that_never_answers_is_given_up(self, long, monkeypatch):
        monkeypatch.setattr(ranges, "_sleep", lambda seconds: None)
        answer = threading.Event()
        long.longest, long.before = 0.1, lambda number: number in (1, 3) and answer.wait(30)
        assert names_of(long.batches()) == long.names
        assert long.cancelled.is_set()
        assert not answer.is_set()
        assert len(long.closed) == 1  # the others are closed when their fetches end
        answer.set()
        for thread in long.threads:
            thread.join(30)
        assert len(long.closed) == 3

    def test_a_fetch_that_is_given_up_again_is_asked_for_in_parts(self, monkeypatch):
        """Over a slow link no full answer comes in time, and nobody counts its bytes."""
        monkeypatch.setattr(ranges, "_sleep", lambda seconds: None)
        long, asked = Long(100, 100), []
        long.longest = 0.1

        def late(partition_id, cursor, until=None):
            """The first three answers arrive, but after they were given up."""
            reader, given_up = Long.open(long, partition_id, cursor, until), threading.Event()
            fetch, reader.cancel = reader.fetch, given_up.set

            def fetched(records, *limits):
                asked.append(records)
                assert len(asked) >= 4 or given_up.wait(30)
                return fetch(records, *limits)

            reader.fetch = fetched
            return reader

        long.open = late
        assert names_of(long.batches()) == long.names
        assert asked[:4] == [10_000, 10_000, 2500, 625]

    def test_a_range_whose_fetch_never_ends_is_closed_all_the_same(self, long, monkeypatch):
        monkeypatch.setattr(ranges, "_CLOSE_SECONDS", 0.1)
        answer = threading.Event()
        long.before = lambda number: number == 2 and answer.wait(30)
        batches = long.batches()
        next(batches)
        assert all(long.begun.acquire(timeout=30) for _ in range(2))
        batches.close()
        assert long.closed == []
        answer.set()
        long.threads[1].join(30)
        assert long.closed == [long.threads[1]]

    @pytest.mark.parametrize("stop", [1, 2, None])
    def test_each_order_of_failures_and_ends(self, monkeypatch, stop):
        monkeypatch.setattr(ranges, "_sleep", lambda seconds: None)
        for failing in chain.from_iterable(combinations(range(1, 6), count) for count in range(3)):
            long = Long()

            def fails(number, failing=failing):
                if number in failing:
                    raise ServerError

            long.before = fails
            batches = long.batches()
            names = names_of(islice(batches, stop))
            batches.close()
            assert names == long.names[: None if stop is None else stop * long.most], failing
            assert not any(each.name.startswith("multiclouddb-range") for each in threading.enumerate())
