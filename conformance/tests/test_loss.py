"""Tests that the loss oracle accepts correct clients and detects each kind of incorrect client."""

import itertools
import pickle
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import ClassVar

import attrs
import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeFeedPage,
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    ErrorDetail,
    FromContinuationToken,
    MulticloudDbError,
    MulticloudDbKey,
    Now,
    OperationDiagnostics,
    OperationOptions,
    ResourceAddress,
)
from multiclouddb_conformance.loss import (
    Act,
    Change,
    Delivered,
    LossOracle,
    Pause,
    Read,
    ReadUntilIdle,
    Received,
    Stored,
    iterator_consumer,
    marker_in,
    page_consumer,
    scripted_life,
)
from multiclouddb_conformance.simulation import Listing, ServiceBehaviour, Simulation, SimulationProvider
from multiclouddb_conformance.simulation.batch import to_event
from multiclouddb_spi import Engine, FeedSpec, InlineExecutor

ADDRESS = ResourceAddress("sim", "items")
CONSUMERS = [pytest.param(page_consumer, id="pages"), pytest.param(iterator_consumer(), id="iterator")]


class World:
    """A simulated collection with native writes."""

    def __init__(self, behaviour=None, partitions=2):
        self.sim = Simulation(partitions=partitions, behaviour=behaviour)

    def write(self, writes):
        self.sim.transaction(writes)

    def split(self):
        self.sim.split(self.sim.open_partitions[0])

    def merge(self):
        self.sim.merge(*self.sim.open_partitions[-2:])

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
            case FromContinuationToken(token):
                return int(token)
            case Now():
                return len(self.sim.history)
            case AtTime(moment):
                return sum(written.timestamp < moment for written in self.sim.history)
            case _:
                return 0

    def page(self, start, stop):
        return ChangeFeedPage(
            tuple(self.event(written) for written in self.sim.history[start:stop]),
            str(stop),
            idle=stop == len(self.sim.history),
            diagnostics=OperationDiagnostics(watermark=self.sim.commit_time(self.commit(stop))),
        )

    def event(self, written):
        return to_event(written, FeedSpec(ADDRESS), self.sim.public_id(written.partition_id))

    def commit(self, stop):
        return self.sim.history[stop - 1].commit if stop else 0


def oracle(client=ToyClient, **changes):
    chosen = {
        "world": lambda: nullcontext(World()),
        "client": client,
        "request": ChangeFeedRequest(ADDRESS, Beginning()),
        "life": scripted_life(),
        "lineage": lambda world: world.sim.public_lineage(),
        **changes,
    }
    return LossOracle(**chosen)


def every_finding(report, kind):
    return [text for run in report.runs for text in getattr(run, kind)]


class TestARightClient:
    @pytest.mark.parametrize(("seed", "size"), list(enumerate([0, 1, 50])))
    @pytest.mark.parametrize("consumer", CONSUMERS)
    def test_passes(self, size, consumer, seed):
        request = ChangeFeedRequest(ADDRESS, Beginning(), max_page_size=size)
        report = oracle(request=request, consumer=consumer, life=scripted_life(seed)).run(max_kills=40)
        report.assert_all_kept()
        assert report.lost == 0
        assert report.duplicates > 0
        assert "nothing lost, every promise kept" in str(report)

    def test_is_killed_after_every_step(self):
        report = oracle().run()
        kills = [run.name for run in report.runs if run.plan == "killed after each step"]
        assert len(kills) > 80
        assert [name.split(",")[0] for name in kills] == [
            f"killed after step {number}" for number in range(1, len(kills) + 1)
        ]
        assert {run.kills for run in report.runs if run.plan == "killed after each step"} == {1}

    def test_is_resumed_from_every_token(self):
        report = oracle().run()
        late = [run for run in report.runs if run.plan == "resumed at the end from each token"]
        baseline = report.runs[0]
        assert len(late) == sum("stored" in run.name for run in report.runs)
        assert {run.written for run in late} == {baseline.written}

    def test_events_of_a_killed_page_come_twice(self):
        life = [*scripted_life()[:3], Read()]
        report = oracle(life=life).run()
        by_name = {run.name.split(", ", 1)[-1]: run.duplicates for run in report.runs}
        assert by_name["received a page of 3 events, in life step 4"] == 0
        assert by_name["stored a token, in life step 4"] == 0
        assert max(by_name.values()) == 3

    def test_kills_may_be_bounded(self):
        report = oracle().run(max_kills=5)
        assert [run.plan for run in report.runs].count("killed after each step") == 5
        assert [run.plan for run in report.runs].count("resumed at the end from each token") == 5
        assert oracle().run(max_kills=0).kills > 0

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
        class Flaky(ToyClient):
            def read_changes(self, request, options=None):
                page = super().read_changes(request, options)
                if self.reads % 3:
                    raise MulticloudDbError("busy", ErrorDetail(ErrorCategory.THROTTLED, retryable=True))
                return page

        report = oracle(Flaky).run(max_kills=60)
        report.assert_all_kept()
        assert any("failed: [THROTTLED] busy" in run.name for run in report.runs)


class TestStarts:
    LIFE: ClassVar = [
        Act(
            "before",
            lambda world: world.write([("a", {"n": 1}), ("b", {"n": 2})]) or [Change("a", 1), Change("b", 2)],
        ),
        Read(),
        Act("later", lambda world: world.write([("a", {"n": 3})]) or [Change("a", 3)]),
        Read(),
        Act("last", lambda world: world.write([("b", None)]) or [Change("b", None)]),
    ]

    def test_now_needs_what_came_behind_the_first_call_only(self):
        report = oracle(life=self.LIFE, request=ChangeFeedRequest(ADDRESS, Now())).run()
        report.assert_all_kept()
        assert report.runs[0].delivered == 2

    def test_a_now_that_is_not_durable_is_caught(self):
        class Forgetful(ToyClient):
            def page(self, start, stop):
                page = super().page(start, stop)
                return page if page.events else attrs.evolve(page, continuation_token="now")

            def position(self, start):
                if start == FromContinuationToken("now"):
                    return len(self.sim.history)
                return super().position(start)

        report = oracle(Forgetful, life=self.LIFE, request=ChangeFeedRequest(ADDRESS, Now())).run()
        with pytest.raises(AssertionError, match="lost: a=3"):
            report.assert_nothing_lost()

    def test_a_now_that_goes_back_is_caught(self):
        class Early(ToyClient):
            def position(self, start):
                return max(0, super().position(start) - isinstance(start, Now))

        report = oracle(Early, life=self.LIFE, request=ChangeFeedRequest(ADDRESS, Now())).run()
        report.assert_nothing_lost()
        with pytest.raises(AssertionError, match="early: b=2"):
            report.assert_all_kept()

    def test_a_time_is_made_from_the_world(self):
        def request(world):
            return ChangeFeedRequest(ADDRESS, AtTime(world.sim.now + timedelta(microseconds=1)))

        report = oracle(life=self.LIFE, request=request, written_before=2).run()
        report.assert_all_kept()
        assert report.runs[0].delivered == 2

    def test_a_time_needs_to_know_what_came_before(self):
        request = ChangeFeedRequest(ADDRESS, AtTime(Simulation().now))
        with pytest.raises(ValueError, match="written_before"):
            oracle(life=self.LIFE, request=request).run()


class TestWrongApplications:
    def test_storing_the_token_before_the_events_are_done_is_caught(self):
        def consume(client, request, token):
            while True:
                start = Beginning() if token is None else FromContinuationToken(token)
                page = client.read_changes(attrs.evolve(request, start_position=start))
                token = page.continuation_token
                yield Received(page)
                yield Stored(token)
                for event in page.events:
                    yield Delivered(event)
                yield Pause(page.idle)

        report = oracle(consumer=consume).run()
        assert report.lost > 0
        assert report.runs[0].lost == ()
        assert all(
            "stored a token" in run.name or "done with" in run.name or "token of step" in run.name
            for run in report.runs
            if run.lost
        )

    def test_forgetting_the_last_event_of_a_page_is_caught(self):
        def consume(client, request, token):
            for step in page_consumer(client, request, token):
                if not (isinstance(step, Received) and step.page.events):
                    yield step
                    continue
                events = step.page.events[:-1]
                yield Received(step.page)
                yield from map(Delivered, events)
                yield Stored(step.page.continuation_token)
                yield Pause(step.page.idle)
                break

        report = oracle(consumer=consume).run(max_kills=2)
        with pytest.raises(AssertionError, match="lost: "):
            report.assert_nothing_lost()


class Ahead(ToyClient):
    """A client that fetches ahead into a buffer and treats buffered events as delivered."""

    def __init__(self, world):
        super().__init__(world)
        self.buffer = []
        self.fetched = None

    def read_changes(self, request, options=None):
        if self.fetched is None:
            self.fetched = self.position(request.start_position)
        if not self.buffer:
            self.buffer = self.sim.history[self.fetched : self.fetched + 5]
            self.fetched += len(self.buffer)
        written, self.buffer = self.buffer[:2], self.buffer[2:]
        idle = not self.buffer and self.fetched == len(self.sim.history)
        return ChangeFeedPage(tuple(map(self.event, written)), str(self.fetched), idle=idle)


class DropsTheLast(ToyClient):
    """A client that loses the last event of each full page."""

    def page(self, start, stop):
        page = super().page(start, stop)
        return attrs.evolve(page, events=page.events[:-1] if len(page.events) == self.PAGE else page.events)


class LosesDeletes(ToyClient):
    """A client that drops deletes."""

    def page(self, start, stop):
        page = super().page(start, stop)
        return attrs.evolve(page, events=tuple(event for event in page.events if event.new_item_state))


class IdleTooSoon(ToyClient):
    """A client that reports idle while more events exist."""

    def page(self, start, stop):
        return attrs.evolve(super().page(start, stop), idle=True)


class SkipsAfterResume(ToyClient):
    """A client whose first read starts one event too late."""

    def position(self, start):
        late = self.reads == 1 and isinstance(start, FromContinuationToken)
        return min(super().position(start) + late, len(self.sim.history))


class TestWrongClients:
    @pytest.mark.parametrize("client", [Ahead, DropsTheLast, LosesDeletes, IdleTooSoon, SkipsAfterResume])
    def test_that_lose_events_are_caught(self, client):
        report = oracle(client).run()
        assert report.lost > 0
        with pytest.raises(AssertionError, match=r"lost: k\d=|lost: delete of k\d"):
            report.assert_nothing_lost()
        assert f"verdict: {report.lost} lost" in str(report)

    def test_a_loss_that_needs_a_kill_is_not_seen_without(self):
        for client in (Ahead, SkipsAfterResume):
            assert oracle(client).run().runs[0].findings() == []

    def test_the_first_loss_and_its_step_are_named(self):
        with pytest.raises(AssertionError) as caught:
            oracle(SkipsAfterResume).run().assert_nothing_lost()
        first, second = str(caught.value).splitlines()[:2]
        assert "life step" in first
        assert "killed after each step, killed after step" in second

    def test_idle_too_soon_is_named(self):
        life = [*scripted_life()[:-1], Read(3)]
        assert every_finding(oracle(IdleTooSoon, life=life).run(max_kills=1), "hasty")

    def broken(self, kind, change, max_kills=3):
        class Broken(ToyClient):
            def page(self, start, stop):
                return change(self, super().page(start, stop))

        report = oracle(Broken).run(max_kills)
        report.assert_nothing_lost()
        with pytest.raises(AssertionError, match=kind):
            report.assert_all_kept()
        assert "nothing lost, but other promises are broken" in str(report)
        return every_finding(report, kind)

    def test_a_wrong_order_is_caught(self):
        assert self.broken("disorder", lambda _, page: attrs.evolve(page, events=page.events[::-1]))

    def test_an_event_that_nobody_wrote_is_caught(self):
        def change(_, page):
            made_up = tuple(
                attrs.evolve(event, event_id="?", key=MulticloudDbKey({"id": "?"}))
                for event in page.events[:1]
            )
            return attrs.evolve(page, events=page.events + made_up)

        assert self.broken("unknown", change)

    def test_a_new_id_on_redelivery_is_caught(self):
        names = itertools.count()

        def change(_, page):
            return attrs.evolve(
                page, events=tuple(attrs.evolve(event, event_id=f"x{next(names)}") for event in page.events)
            )

        found = self.broken("identity", change, max_kills=None)
        assert any("delete" in text for text in found)
        assert any("k" in text for text in found)

    def test_a_watermark_that_goes_back_is_caught(self):
        def change(client, page):
            mark = client.sim.now - timedelta(seconds=client.reads)
            return attrs.evolve(page, diagnostics=OperationDiagnostics(watermark=mark))

        assert self.broken("watermark", change)

    def test_a_child_before_its_parent_is_caught(self):
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
                return ChangeFeedPage(events, str(stop), idle=stop == len(self.history))

        life = [step for step in scripted_life() if isinstance(step, Act) and not step.forgets]
        report = oracle(ChildFirst, life=life).run(max_kills=2)
        report.assert_nothing_lost()
        assert every_finding(report, "lineage")
        # Without the lineage, the order of each key's changes shows the defect.
        blind = oracle(ChildFirst, life=life, lineage=None).run(max_kills=2)
        assert not every_finding(blind, "lineage")
        assert every_finding(blind, "disorder")

    def test_one_that_never_gets_idle_is_caught(self):
        class Restless(ToyClient):
            def page(self, start, stop):
                return attrs.evolve(super().page(start, stop), idle=False)

        with pytest.raises(AssertionError, match="failed: not idle after 51 pages"):
            oracle(Restless, max_pages=50).run().assert_nothing_lost()

    def test_one_that_never_recovers_is_caught(self):
        class Down(ToyClient):
            def read_changes(self, request, options=None):
                raise MulticloudDbError("down", ErrorDetail(ErrorCategory.TRANSIENT_FAILURE, retryable=True))

        with pytest.raises(AssertionError, match="down"):
            oracle(Down, max_failures=5).run().assert_nothing_lost()

    def test_one_that_fails_for_good_is_caught(self):
        class Broken(ToyClient):
            def read_changes(self, request, options=None):
                if isinstance(request.start_position, FromContinuationToken):
                    raise MulticloudDbError("no such token", ErrorDetail(ErrorCategory.INVALID_REQUEST))
                return super().read_changes(request, options)

        with pytest.raises(AssertionError, match="no such token"):
            oracle(Broken).run().assert_nothing_lost()

    def test_a_bug_goes_through_with_its_trace(self):
        class Buggy(ToyClient):
            def read_changes(self, request, options=None):
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            oracle(Buggy).run()


class TestTruth:
    def test_keys_may_be_values_or_keys(self):
        assert Change("a", 1) == Change(MulticloudDbKey({"_id": "a"}), 1)
        both = MulticloudDbKey({"tenant": 1, "id": 2})
        assert Change(both, 1).key == both

    def test_deletes_are_told_apart_by_their_place(self):
        def change(*markers):
            def run(world):
                for marker in markers:
                    world.write([("a", None if marker is None else {"n": marker})])
                return [Change("a", marker) for marker in markers]

            return Act("changes", run)

        class LosesSecondDelete(ToyClient):
            def page(self, start, stop):
                page = super().page(start, stop)
                return attrs.evolve(page, events=tuple(e for e in page.events if e.event_id != "4.0"))

        life = [change(1, None, 2, None, 3, None)]
        oracle(life=life).run().assert_all_kept()
        report = oracle(LosesSecondDelete, life=life).run()
        assert {len(run.lost) for run in report.runs} == {1}
        assert every_finding(report, "lost")[0].startswith("lost: delete of a (change 4")

    def test_the_marker_may_be_anywhere(self):
        life = [Act("write", lambda world: world.write([("a", {"version": 7})]) or [Change("a", 7)])]
        oracle(life=life, marker=marker_in("version")).run().assert_all_kept()
        assert oracle(life=life).run().lost > 0


class TestTrims:
    def test_a_consumer_reads_to_the_end_before_retention_takes_anything(self):
        read, written = [], []

        class Trimmed(World):
            def trim(self):
                read.append(Watching.position_read)
                written.append(len(self.sim.history))

        class Watching(ToyClient):
            position_read = 0

            def page(self, start, stop):
                Watching.position_read = stop
                return super().page(start, stop)

        oracle(Watching, world=lambda: nullcontext(Trimmed())).run()
        assert read == written
        assert len(read) > 80

    def test_they_are_left_out_where_tokens_are_resumed_at_the_end(self):
        trims = []
        life = [
            *scripted_life()[:4],
            ReadUntilIdle(),
            Act("trim", lambda world: trims.append(1), forgets=True),
            *scripted_life()[4:5],
        ]
        report = oracle(life=life).run(max_kills=2)
        assert len(trims) == len(report.runs) - 2


class TestReport:
    def test_pickles_and_compares(self):
        report = oracle(SkipsAfterResume).run(max_kills=4)
        assert pickle.loads(pickle.dumps(report)) == report

    def test_is_a_table(self):
        text = str(oracle().run(max_kills=3)).splitlines()
        assert text[0].split() == ["run", "runs", "kills", "delivered", "twice", "lost", "other"]
        assert [line.split("  ")[0] for line in text[1:5]] == [
            "never killed",
            "killed after each step",
            "killed after each page",
            "resumed at the end from each token",
        ]

    def test_long_lists_are_cut(self):
        assert "more" in str(oracle(DropsTheLast).run()).splitlines()[-1]

    def test_scripted_lives_are_fixed_by_their_seed(self):
        def names(seed):
            return [step.name for step in scripted_life(seed) if isinstance(step, Act)]

        assert names(1) == names(1) != names(2)
        assert {"split", "merge", "trim"} <= set(names(1))


class EngineClient:
    """A client that uses the engine and the simulation, without threads and without waiting."""

    def __init__(self, world):
        self.provider = SimulationProvider(world.sim, page_records=20)
        self.engine = Engine(
            self.provider,
            ClientConfig("simulation", max_buffered_bytes=65536),
            executor=InlineExecutor(),
            pause=lambda _: None,
        )

    def read_changes(self, request, options=None):
        return self.engine.read_changes(request, options or OperationOptions())

    def close(self):
        self.engine.close()
        assert self.provider.calls.violations == []
        assert self.provider.calls.open_readers == 0


class TestTheEngine:
    @pytest.mark.parametrize("seed", range(6))
    def test_loses_nothing_in_rough_weather(self, seed):
        report = oracle(
            EngineClient,
            world=lambda: nullcontext(World(ServiceBehaviour.rough(seed, listing=list(Listing)[seed % 3]))),
            request=ChangeFeedRequest(ADDRESS, Beginning(), max_page_size=seed % 4),
            life=scripted_life(seed),
        ).run(max_kills=8)
        report.assert_all_kept()
