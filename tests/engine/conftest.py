"""Provides simulated collections, and engines that read them.

Engines are closed after each test and checked for leaks.
"""

import time

import pytest

import multiclouddb_api as api
from multiclouddb_conformance.simulation import Simulation, SimulationProvider
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_spi import Engine, InlineExecutor
from multiclouddb_spi.fetching.fetcher import ReadContext

BEGINNING = api.Beginning()
MANY_PAGES = 20_000


def eventually_true(condition):
    """A function that waits for the effects of other threads."""
    return wait_until(condition, 30.0)


def at(place):
    """Return a start position from a `StartPosition` or a token's text."""
    return api.FromContinuationToken(place) if isinstance(place, str) else place


class Bench:
    """A simulated collection, and engines that read it."""

    def __init__(self, sim):
        self.sim = sim
        self.opened = []
        self._engine = None

    @property
    def engine(self):
        """The engine that was connected last; without one, a deterministic one is connected."""
        return self._engine or self.connect()

    @property
    def provider(self):
        return self.engine.provider

    @property
    def calls(self):
        return self.provider.calls

    def connect(
        self,
        *,
        threads=False,
        page_records=20,
        provider=None,
        observer=None,
        attempts=6,
        pause=None,
        **config,
    ):
        """Connect another engine, as after a restart."""
        provider = provider or SimulationProvider(self.sim, page_records=page_records)
        executor = None if threads else InlineExecutor()
        if pause is None and not threads:
            pause = _no_pause
        self._engine = Engine(
            provider,
            api.ClientConfig("simulation", **config),
            observer,
            executor=executor,
            attempts=attempts,
            pause=pause,
        )
        self.opened.append(self._engine)
        return self._engine

    def page(
        self,
        place=BEGINNING,
        size=0,
        *,
        timeout=30.0,
        wait=0.0,
        ask_all=True,
        progress=None,
        start_only=False,
        engine=None,
        **request,
    ):
        """Read one page, from a start position or a token."""
        request = api.ChangeFeedRequest(self.sim.address, at(place), max_page_size=size, **request)
        options = api.OperationOptions(timeout, wait, ask_all, progress=progress, start_only=start_only)
        return (engine or self.engine).read_changes(request, options)

    def walk(self, place=BEGINNING, size=0, *, most=MANY_PAGES, **settings):
        """Read pages, one after another, up to the first idle page."""
        for _ in range(most):
            page = self.page(place, size, **settings)
            yield page
            if page.idle or page.partition_retired:
                return
            place = page.continuation_token
        pytest.fail(f"not idle after {most} pages")

    def drain(self, place=BEGINNING, size=0, **settings):
        """Return every event up to the first idle page, and that page's token."""
        events, page = [], None
        for page in self.walk(place, size, **settings):
            events += page.events
        return events, page.continuation_token

    def plan(self, place=BEGINNING, *, with_descendants=False, **request):
        """Return one token for each partition."""
        return self.engine.plan_partitions(
            api.ChangeFeedRequest(self.sim.address, at(place), **request),
            api.OperationOptions(),
            with_descendants=with_descendants,
        )

    def partitions(self):
        """Return the public ids of the open partitions."""
        return self.engine.list_physical_partitions(self.sim.address, api.OperationOptions())

    def refused(self, category, *args, match=None, **settings):
        """Read a page that must fail, and return the error; the test fails if a page is returned."""
        with pytest.raises(api.MulticloudDbError, match=match) as caught:
            self.page(*args, **settings)
        assert caught.value.category == category, caught.value
        return caught.value

    def written(self, after=0):
        """Return the ids of all events after a commit, in commit order."""
        return [item.event_id for item in self.sim.truth if item.commit > after]

    def fill(self, count=20, keys=10):
        """Write documents with `count` different keys."""
        for number in range(count):
            self.sim.write(f"k{number % keys}", {"n": self.sim.head + 1})

    def key_in(self, partition_id):
        """Return a key whose partition is open."""
        for number in range(100_000):
            name = f"key-{number}"
            if self.sim.partitions[partition_id].owns(self.sim.hash_of(self.sim.key(name))):
                return name
        raise AssertionError("no key found")

    def fill_partition(self, partition_id, count=1):
        """Write into one partition and return the ids of the events."""
        key = self.key_in(partition_id)
        return [self.sim.write(key, {"n": number}).event_id for number in range(count)]

    def close(self):
        """Close every engine; check that nothing stays open and that no call has violated the contract."""
        self.sim.release()
        for engine in self.opened:
            engine.close()
        for engine in self.opened:
            provider = engine.provider
            calls = getattr(provider, "calls", None)
            if calls is None:
                continue
            eventually_true(lambda calls=calls: calls.open_readers == 0)
            eventually_true(lambda engine=engine: engine.buffered_bytes == 0)
            assert not calls.violations


class MovedClock:
    """The engine's clock, which a test can move; a pause of a call moves it instead of waiting."""

    def __init__(self, monkeypatch):
        self.moved, self.pauses, monotonic = 0.0, [], time.monotonic
        self.at_pause = lambda: None
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + self.moved)
        monkeypatch.setattr(ReadContext, "pause", lambda context, seconds, _: self.pause(seconds))

    def pause(self, seconds):
        self.pauses.append(seconds)
        self.moved += max(0.0, seconds)
        self.at_pause()


@pytest.fixture
def moved_clock(monkeypatch):
    """Provide the clock of the engine."""
    return MovedClock(monkeypatch)


def _no_pause(seconds):
    """Do not pause, so that tests do not wait."""


@pytest.fixture
def make_bench():
    """Return a function that makes benches, for example `make_bench(partitions=2, behaviour=…)`."""
    benches = []

    def make(partitions=1, **settings):
        bench = Bench(Simulation(partitions, **settings))
        benches.append(bench)
        return bench

    yield make
    for bench in benches:
        bench.close()


@pytest.fixture
def threaded(make_bench):
    """Make a bench whose engine reads on threads."""

    def make(partitions=1, behaviour=None, **config):
        bench = make_bench(partitions, behaviour=behaviour)
        bench.connect(threads=True, **config)
        return bench

    return make


@pytest.fixture
def bench(make_bench):
    """Provide a collection of one partition, and a deterministic engine."""
    return make_bench()


@pytest.fixture
def eventually():
    """Wait for a condition."""
    return eventually_true


@pytest.fixture
def ids():
    """Return the ids of the events of a page or a list, in order."""
    return lambda source: [event.event_id for event in getattr(source, "events", source)]


@pytest.fixture
def ended():
    """Return the reason that a page's notice gives for the end of the feed, or None."""

    def find(page):
        reasons = [notice.reason for notice in page.notices if isinstance(notice, api.FeedEnded)]
        return reasons[0] if reasons else None

    return find
