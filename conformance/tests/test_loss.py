"""Tests that the loss oracle accepts correct clients and detects each kind of incorrect client."""

import itertools
from contextlib import contextmanager, nullcontext
from datetime import timedelta

import attrs
import pytest

import multiclouddb_api as api
from multiclouddb_conformance.loss import (
    Act,
    Delivered,
    LossOracle,
    Pause,
    Read,
    ReadUntilIdle,
    Received,
    Stored,
    WrittenChange,
    iterator_consumer,
    marker_in,
    page_consumer,
    scripted_life,
)
from multiclouddb_conformance.open_client import open_client
from multiclouddb_conformance.simulated import SimulationPlugin
from multiclouddb_conformance.simulation import Listing, ServiceBehaviour, Simulation, SimulationProvider
from multiclouddb_conformance.simulation.batch import to_event
from multiclouddb_spi import Engine, FeedSpec, InlineExecutor
from testing.seeds import seeds

ADDRESS = api.ResourceAddress("sim", "items")
REQUEST = api.ChangeFeedRequest(ADDRESS, api.Beginning())
EACH_STEP, LATE = "killed after each step", "resumed at the end from each token"


class World:
    """A simulated collection with native writes."""

    def __init__(self, behaviour=None, partitions=2):
        self.sim = Simulation(partitions=partitions, behaviour=behaviour)

    def write(self, writes):
        self.sim.transaction(writes)

    def split(self):
        self.sim.split(self.sim.open_partitions[0])

    def merge(self):
        if self.sim.may_merge():
            self.sim.merge(*self.sim.open_partitions[-2:])
        else:
            self.sim.roll(self.sim.open_partitions[-1])

    def trim(self):
        self.sim.trim()


class ToyClient:
    """A client that reads the whole history in commit order, three events per page; a token is a number."""

    PAGE = 3

    def __init__(self, world):
        self.sim = world.sim
        self.reads = 0

    def read_changes(self, request, options=None):
        self.reads += 1
        start = self.position(request.start_position)
        stop = min(start + (request.max_page_size or self.PAGE), len(self.sim.history))
        return self.page(start, stop)

    def position(self, start):
        match start:
            case api.FromContinuationToken(token):
                return int(token)
            case api.Now():
                return len(self.sim.history)
            case api.AtTime(moment):
                return sum(written.timestamp < moment for written in self.sim.history)
            case _:
                return 0

    def page(self, start, stop):
        mark = self.sim.commit_time(self.sim.history[stop - 1].commit if stop else 0)
        return api.ChangeFeedPage(
            tuple(self.event(written) for written in self.sim.history[start:stop]),
            str(stop),
            idle=stop == len(self.sim.history),
            diagnostics=api.OperationDiagnostics(watermark=mark),
        )

    def event(self, written):
        return to_event(written, FeedSpec(ADDRESS), self.sim.public_id(written.partition_id))


def oracle(client=ToyClient, **changes):
    chosen = {
        "world": lambda: nullcontext(World()),
        "client": client,
        "request": REQUEST,
        "life": scripted_life(),
        "lineage": lambda world: world.sim.public_lineage(),
        **changes,
    }
    return LossOracle(**chosen)


def broken(change, **members):
    """Make a class of clients whose pages are changed by a function of the client and the page."""

    def page(self, start, stop):
        return change(self, ToyClient.page(self, start, stop))

    return type("Broken", (ToyClient,), {"page": page, **members})


def failing(category, *, retryable=False, when=lambda client, request: True):
    """Make a class of clients that fail now and then."""

    class Failing(ToyClient):
        def read_changes(self, request, options=None):
            page = super().read_changes(request, options)
            if when(self, request):
                raise api.MulticloudDbError("it failed", api.ErrorDetail(category, retryable=retryable))
            return page

    return Failing


def write(key, *markers):
    def run(world):
        for marker in markers:
            world.write([(key, None if marker is None else {"n": marker})])
        return [WrittenChange(key, marker) for marker in markers]

    return Act("write", run)


def every_finding(report, kind):
    return [text for run in report.runs for text in getattr(run, kind)]


class TestARightClient:
    @pytest.mark.parametrize("size", [0, 1, 50])
    @pytest.mark.parametrize("consumer", [page_consumer, iterator_consumer()], ids=["pages", "iterator"])
    def test_passes(self, size, consumer):
        request = attrs.evolve(REQUEST, max_page_size=size)
        report = oracle(request=request, consumer=consumer, life=scripted_life(size)).run(max_kills=15)
        report.assert_all_kept()
        assert report.lost == 0
        assert report.duplicates > 0

    def test_is_killed_after_every_step_and_resumed_from_every_token(self):
        report = oracle().run()
        kills = [run for run in report.runs if run.plan == EACH_STEP]
        assert len(kills) > 80
        assert [run.name.split(",")[0] for run in kills] == [
            f"killed after step {number}" for number in range(1, len(kills) + 1)
        ]
        assert {run.kills for run in kills} == {1}
        late = [run for run in report.runs if run.plan == LATE]
        assert len(late) == sum("stored" in run.name for run in report.runs)
        assert {run.written for run in late} == {report.runs[0].written}

    def test_each_run_has_a_world_and_each_life_a_client_of_its_own(self):
        worlds, clients = [], []

        @contextmanager
        def world():
            worlds.append("open")
            yield World()
            worlds[-1] = "closed"

        class Client(ToyClient):
            def __init__(self, world):
                super().__init__(world)
                clients.append("open")

            def close(self):
                clients[clients.index("open")] = "closed"

        report = oracle(Client, world=world).run(max_kills=3)
        assert worlds == ["closed"] * (len(report.runs) - 3 + 1)
        assert set(clients) == {"closed"}
        assert len(clients) > len(report.runs)

    def test_lives_through_failures(self):
        flaky = failing(api.ErrorCategory.THROTTLED, retryable=True, when=lambda client, _: client.reads % 3)
        report = oracle(flaky).run(max_kills=20)
        report.assert_all_kept()
        assert any("failed: [THROTTLED]" in run.name for run in report.runs)

    @pytest.mark.parametrize("seed", seeds(3, 300))
    def test_the_engine_loses_nothing_in_rough_weather(self, seed):
        check_engine(seed, kills=6)


def behind_two(world):
    return api.ChangeFeedRequest(ADDRESS, api.AtTime(world.sim.now + timedelta(microseconds=1)))


class TestStarts:
    LIFE = (write("a", 1, 2), Read(), write("a", 3), Read(), write("b", 4))
    NOW = api.ChangeFeedRequest(ADDRESS, api.Now())

    @pytest.mark.parametrize(("request_", "before"), [(NOW, None), (behind_two, 2)], ids=["now", "a time"])
    def test_only_what_comes_behind_the_start_is_needed(self, request_, before):
        report = oracle(life=self.LIFE, request=request_, written_before=before).run()
        report.assert_all_kept()
        assert report.runs[0].delivered == 2

    def test_a_now_that_is_not_durable_is_caught(self):
        def position(self, start):
            if start == api.FromContinuationToken("now"):
                return len(self.sim.history)
            return ToyClient.position(self, start)

        def change(_, page):
            return page if page.events else attrs.evolve(page, continuation_token="now")

        forgetful = broken(change, position=position)
        with pytest.raises(AssertionError, match="lost: a=3"):
            oracle(forgetful, life=self.LIFE, request=self.NOW).run().assert_nothing_lost()

    def test_a_now_that_goes_back_is_caught(self):
        class Early(ToyClient):
            def position(self, start):
                return max(0, super().position(start) - isinstance(start, api.Now))

        report = oracle(Early, life=self.LIFE, request=self.NOW).run()
        report.assert_nothing_lost()
        with pytest.raises(AssertionError, match="early: a=2"):
            report.assert_all_kept()

    def test_a_time_needs_to_know_what_came_before(self):
        with pytest.raises(ValueError, match="written_before"):
            oracle(life=self.LIFE, request=api.ChangeFeedRequest(ADDRESS, api.AtTime(Simulation().now))).run()


class TestWrongApplications:
    def test_storing_the_token_before_the_events_are_done_is_caught(self):
        def consume(client, request, token):
            while True:
                start = api.Beginning() if token is None else api.FromContinuationToken(token)
                page = client.read_changes(attrs.evolve(request, start_position=start))
                token = page.continuation_token
                yield Received(page)
                yield Stored(token)
                yield from map(Delivered, page.events)
                yield Pause(page.idle)

        report = oracle(consumer=consume).run()
        assert report.lost > 0
        assert report.runs[0].lost == ()
        places = ("stored a token", "done with", "token of step")
        assert all(any(place in run.name for place in places) for run in report.runs if run.lost)

    def test_forgetting_the_last_event_of_a_page_is_caught(self):
        def consume(client, request, token):
            for step in page_consumer(client, request, token):
                if not (isinstance(step, Received) and step.page.events):
                    yield step
                    continue
                yield Received(step.page)
                yield from map(Delivered, step.page.events[:-1])
                yield Stored(step.page.continuation_token)
                yield Pause(step.page.idle)
                break

        with pytest.raises(AssertionError, match="lost: "):
            oracle(consumer=consume).run(max_kills=2).assert_nothing_lost()


class Ahead(ToyClient):
    """A client that fetches ahead into a buffer and treats buffered events as delivered."""

    def __init__(self, world):
        super().__init__(world)
        self.buffer, self.fetched = [], None

    def read_changes(self, request, options=None):
        if self.fetched is None:
            self.fetched = self.position(request.start_position)
        if not self.buffer:
            self.buffer = self.sim.history[self.fetched : self.fetched + 5]
            self.fetched += len(self.buffer)
        written, self.buffer = self.buffer[:2], self.buffer[2:]
        idle = not self.buffer and self.fetched == len(self.sim.history)
        return api.ChangeFeedPage(tuple(map(self.event, written)), str(self.fetched), idle=idle)


class SkipsAfterResume(ToyClient):
    """A client whose first read starts one event too late."""

    def position(self, start):
        late = self.reads == 1 and isinstance(start, api.FromContinuationToken)
        return min(super().position(start) + late, len(self.sim.history))


class ChildFirst(ToyClient):
    """A client that reads the newest partitions first."""

    def __init__(self, world):
        super().__init__(world)
        self.history = sorted(
            self.sim.history, key=lambda written: (-int(written.partition_id[1:]), written.commit)
        )

    def read_changes(self, request, options=None):
        start = self.position(request.start_position)
        stop = min(start + 3, len(self.history))
        events = tuple(map(self.event, self.history[start:stop]))
        return api.ChangeFeedPage(events, str(stop), idle=stop == len(self.history))


def drop_last(client, page):
    return attrs.evolve(page, events=page.events[:-1] if len(page.events) == client.PAGE else page.events)


def drop_deletes(_, page):
    return attrs.evolve(page, events=tuple(event for event in page.events if event.new_item_state))


def always_idle(_, page):
    return attrs.evolve(page, idle=True)


def never_idle(_, page):
    return attrs.evolve(page, idle=False)


def reverse(_, page):
    return attrs.evolve(page, events=page.events[::-1])


def make_up(_, page):
    key = api.MulticloudDbKey({"id": "?"})
    made_up = tuple(attrs.evolve(event, event_id="?", key=key) for event in page.events[:1])
    return attrs.evolve(page, events=page.events + made_up)


def rename(_, page, names=itertools.count()):  # noqa: B008 - counted over all clients
    events = tuple(attrs.evolve(event, event_id=f"x{next(names)}") for event in page.events)
    return attrs.evolve(page, events=events)


def set_watermark_back(client, page):
    mark = client.sim.now - timedelta(seconds=client.reads)
    return attrs.evolve(page, diagnostics=api.OperationDiagnostics(watermark=mark))


class TestWrongClients:
    @pytest.mark.parametrize(
        "client",
        [Ahead, SkipsAfterResume, *map(broken, (drop_last, drop_deletes, always_idle))],
        ids=["ahead", "skips after resume", "drops the last", "drops deletes", "idle too soon"],
    )
    def test_that_lose_events_are_caught(self, client):
        report = oracle(client).run()
        assert report.lost > 0
        with pytest.raises(AssertionError, match=r"lost: k\d=|lost: delete of k\d"):
            report.assert_nothing_lost()
        assert f"verdict: {report.lost} lost" in str(report)

    def test_the_kill_that_makes_a_loss_is_named(self):
        for client in (Ahead, SkipsAfterResume):
            assert oracle(client).run(max_kills=1).runs[0].findings() == []
        with pytest.raises(AssertionError) as caught:
            oracle(SkipsAfterResume).run().assert_nothing_lost()
        first, second = str(caught.value).splitlines()[:2]
        assert "life step" in first
        assert "killed after each step, killed after step" in second

    @pytest.mark.parametrize(
        ("kind", "change"),
        [
            ("disorder", reverse),
            ("unknown", make_up),
            ("identity", rename),
            ("watermark", set_watermark_back),
        ],
    )
    def test_that_break_another_promise_are_caught(self, kind, change):
        report = oracle(broken(change)).run(max_kills=20 if kind == "identity" else 3)
        report.assert_nothing_lost()
        with pytest.raises(AssertionError, match=kind):
            report.assert_all_kept()
        assert every_finding(report, kind)

    def test_a_child_before_its_parent_is_caught(self):
        life = [step for step in scripted_life() if isinstance(step, Act) and not step.forgets]
        report = oracle(ChildFirst, life=life).run(max_kills=2)
        report.assert_nothing_lost()
        assert every_finding(report, "lineage")
        # Without the lineage, the order of each key's changes shows the defect.
        blind = oracle(ChildFirst, life=life, lineage=None).run(max_kills=2)
        assert not every_finding(blind, "lineage")
        assert every_finding(blind, "disorder")

    @pytest.mark.parametrize(
        ("client", "limit", "message"),
        [
            (broken(never_idle), {"max_pages": 50}, "failed: not idle after 51 pages"),
            (failing(api.ErrorCategory.TRANSIENT_FAILURE, retryable=True), {"max_failures": 5}, "it failed"),
            (
                failing(
                    api.ErrorCategory.INVALID_REQUEST,
                    when=lambda _, request: isinstance(request.start_position, api.FromContinuationToken),
                ),
                {},
                "it failed",
            ),
        ],
        ids=["never idle", "never recovers", "fails for good"],
    )
    def test_that_do_not_end_are_caught(self, client, limit, message):
        with pytest.raises(AssertionError, match=message):
            oracle(client, **limit).run().assert_nothing_lost()


class TestTruth:
    def test_deletes_are_told_apart_by_their_place(self):
        def lose_second(_, page):
            return attrs.evolve(page, events=tuple(each for each in page.events if each.event_id != "4.0"))

        life = [write("a", 1, None, 2, None, 3, None)]
        oracle(life=life).run().assert_all_kept()
        report = oracle(broken(lose_second), life=life).run()
        assert {len(run.lost) for run in report.runs} == {1}
        assert every_finding(report, "lost")[0].startswith("lost: delete of a (change 4")

    def test_the_marker_may_be_anywhere(self):
        life = [Act("write", lambda world: world.write([("a", {"version": 7})]) or [WrittenChange("a", 7)])]
        oracle(life=life, marker=marker_in("version")).run().assert_all_kept()
        assert oracle(life=life).run().lost > 0

    @pytest.mark.parametrize("key_order", [True, False])
    def test_order_across_partitions_is_wanted_only_where_it_is_promised(self, key_order):
        def client(world):
            plugin = SimulationPlugin()
            plugin.sims.append(world.sim)
            return open_client(plugin, api.ClientConfig("simulation"))

        split = Act("split", lambda world: world.split())
        life = [step for number in range(24) for step in (write("a", number, 100 + number), split)]
        report = oracle(
            client,
            world=lambda: nullcontext(World(ServiceBehaviour(moves_keys=True), 4)),
            request=attrs.evolve(REQUEST, max_page_size=2),
            life=life,
            lineage=None,
            key_order=key_order,
        ).run(2)
        report.assert_nothing_lost()
        assert bool([run for run in report.runs if run.findings()]) is key_order


class TestTrims:
    def test_a_consumer_reads_to_the_end_before_retention_takes_anything(self):
        place, read, written = [0], [], []

        class Trimmed(World):
            def trim(self):
                read.append(place[0])
                written.append(len(self.sim.history))

        class Watching(ToyClient):
            def page(self, start, stop):
                place[0] = stop
                return super().page(start, stop)

        oracle(Watching, world=lambda: nullcontext(Trimmed())).run(max_kills=20)
        assert read == written
        assert len(read) > 20

    def test_they_are_left_out_where_tokens_are_resumed_at_the_end(self):
        trims = []
        trim = Act("trim", lambda world: trims.append(1), forgets=True)
        life = [*scripted_life()[:4], ReadUntilIdle(), trim, scripted_life()[4]]
        report = oracle(life=life).run(max_kills=2)
        assert len(trims) == len(report.runs) - 2


class EngineClient:
    """A client that uses the engine and the simulation, without threads and without waiting."""

    def __init__(self, world):
        self.provider = SimulationProvider(world.sim, page_records=20)
        config = api.ClientConfig("simulation", max_buffered_bytes=65536)
        self.engine = Engine(self.provider, config, executor=InlineExecutor(), pause=lambda _: None)

    def read_changes(self, request, options=None):
        return self.engine.read_changes(request, options or api.OperationOptions())

    def close(self):
        self.engine.close()
        assert self.provider.calls.violations == []
        assert self.provider.calls.open_readers == 0


def check_engine(seed, kills):
    behaviour = ServiceBehaviour.rough(seed, listing=list(Listing)[seed % 3])
    oracle(
        EngineClient,
        world=lambda: nullcontext(World(behaviour)),
        request=attrs.evolve(REQUEST, max_page_size=seed % 4),
        life=scripted_life(seed),
    ).run(max_kills=kills).assert_all_kept()
