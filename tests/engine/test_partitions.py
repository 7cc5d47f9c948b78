"""Tests reads of one physical or logical partition, and plans that spread a feed over readers."""

import attrs
import pytest

import multiclouddb_api as api
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_conformance.simulation import ServerError, ServiceBehaviour, SimulationFeed
from multiclouddb_spi import Child
from multiclouddb_spi.continuation.entry import Entry, Stage
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import Retired, end_to_json, retired, state_from_json

BEGINNING = api.Beginning()


def scope(bench, name):
    return api.PhysicalPartition(bench.sim.public_id(name))


def follow(bench, tokens, size=3, most=500):
    """Read every planned partition as an application would: each child once, after all its parents."""
    came, waiting = {}, {}
    todo = list(tokens)
    for _ in range(most):
        if not todo:
            break
        name, token = todo.pop(0)
        page = bench.page(token, size, scope=api.PhysicalPartition(name))
        came.setdefault(name, []).extend(event.event_id for event in page.events)
        assert all(event.partition_id == name for event in page.events)
        if page.partition_retired:
            waiting.update({child.partition_id: child for child in page.child_partitions})
        elif not page.idle:
            todo.append((name, page.continuation_token))
        open_ones = {name for name, _ in todo}
        for child in [child for child in waiting.values() if open_ones.isdisjoint(child.parents)]:
            del waiting[child.partition_id]
            if child.partition_id not in came:
                came[child.partition_id] = []
                todo.append((child.partition_id, child.continuation_token))
    else:
        pytest.fail("it never ends")
    assert not waiting
    return came


def truth(bench, after=0):
    """Return the expected result of `follow`."""
    found = {bench.sim.public_id(name): [] for name in bench.sim.partitions}
    for item in bench.sim.truth:
        if item.commit > after:
            found[bench.sim.public_id(item.partition_id)].append(item.event_id)
    return {name: events for name, events in found.items() if events}


class TestRetirement:
    def test_retired_token_needs_nothing_that_retention_may_take(self, bench):
        bench.fill(5)
        bench.sim.split("p0")
        last = list(bench.walk(scope=scope(bench, "p0")))[-1]
        bench.sim.trim()
        assert bench.page(last.continuation_token, scope=scope(bench, "p0")).partition_retired

    def test_partition_whose_children_are_named_late_is_not_retired_until_then(self, bench):
        pauses = []
        bench.connect(pause=pauses.append)
        bench.fill(2)
        bench.sim.delay_children("p0", 3)
        bench.sim.split("p0")
        pages = list(bench.walk(scope=scope(bench, "p0")))
        assert len(pages) == 5
        assert pauses == [0.05] * 3  # before the caller looks again
        assert not any(page.idle for page in pages)
        assert [page.partition_retired for page in pages] == [False] * 4 + [True]
        assert len(pages[-1].child_partitions) == 2

    @pytest.mark.usefixtures("looks_at_once")
    def test_its_page_tells_of_the_search_for_children(self, make_bench):
        bench = make_bench(behaviour=ServiceBehaviour(proves_children=False))
        bench.connect(child_watch_seconds=0)
        bench.sim.split("p0")
        where = scope(bench, "p0")
        *_, page = bench.walk(scope=where)
        bench.sim.fail_next(None, ServerError("503"), times=None, operation="survey")
        for errors in ([where.partition_id], []):
            page = bench.page(page.continuation_token, scope=where)
            told = page.diagnostics
            assert list(told.partition_errors) == errors
            assert (told.open_watches, told.requests) == (1, 1)
            assert page.partition_retired
            assert not page.idle
            bench.sim.forgive()
        for _ in range(3):
            page = bench.page(page.continuation_token, scope=where)
        assert (page.partition_retired, page.diagnostics.open_watches) == (True, 0)


class TestPlan:
    @pytest.mark.parametrize("pages", [0, 1, 3, 8])
    def test_plan_from_a_token_goes_on_where_the_token_stands(self, make_bench, ids, pages):
        bench = make_bench(partitions=3)
        bench.fill(20)
        bench.sim.merge("p0", "p1")
        bench.sim.split("p2")
        bench.fill(20)
        token, came = bench.page(size=1).continuation_token, []
        came = ids(bench.page(size=1))
        for _ in range(pages):
            page = bench.page(token, 4)
            came += ids(page)
            token = page.continuation_token
        plan = bench.plan(token)
        assert not any(part.is_segment for part in plan)
        rest = [name for events in follow(bench, plan).values() for name in events]
        assert sorted(came + rest) == sorted(bench.written())

    def test_plan_while_children_are_not_named_yet_is_complete(self, bench, ids):
        token = bench.page().continuation_token
        bench.fill(5)
        bench.sim.delay_children("p0", 3)
        bench.sim.split("p0")
        first = bench.page(token)
        bench.fill(5)
        plan = bench.plan(first.continuation_token)
        assert [name for name, _ in plan] == [bench.sim.public_id("p0")]
        rest = [name for events in follow(bench, plan).values() for name in events]
        assert sorted(ids(first) + rest) == sorted(bench.written())

    def test_child_that_waits_is_named_by_its_parents_and_not_planned(self, make_bench):
        bench = make_bench(partitions=2)
        token = bench.page(api.Now()).continuation_token
        bench.sim.merge("p0", "p1")
        bench.sim.fail_next("p1", ServerError("503"), times=None)
        token = bench.page(token).continuation_token
        bench.sim.forgive()
        bench.fill(10)
        plan = bench.plan(token)
        assert [name for name, _ in plan] == [bench.sim.public_id("p1")]
        found = follow(bench, plan)
        assert {name: events for name, events in found.items() if events} == truth(bench)

    def test_other_scopes_are_refused(self, bench):
        with pytest.raises(api.MulticloudDbError, match=r"ChangeFeedRequest\.scope") as caught:
            bench.plan(scope=scope(bench, "p0"))
        assert caught.value.category == api.ErrorCategory.INVALID_REQUEST

    def test_feed_that_is_over_plans_nothing(self, bench):
        bench.sim.behaviour = ServiceBehaviour(drop_notice=True)
        token = bench.page(api.Now()).continuation_token
        bench.sim.drop()
        assert bench.plan(bench.page(token).continuation_token) == ()


@pytest.mark.parametrize("parents", [(), ("p",), ("q", "p"), ("p", "q"), ("x", "q", "p")], ids=str)
def test_parents_come_back_in_their_order(parents):
    state = Retired("p", (Child("c", parents, [1]), Child("d", ("p",), 2)))
    assert state_from_json(end_to_json(state), RULES) == state


@pytest.mark.parametrize("complete", [True, False])
def test_only_unfinished_ends_are_looked_at_again(complete):
    lineage, child = Lineage([Entry.read("p", [1, 0])], RULES), Child("c", ("p",), [1, 0])
    end = None if complete else Entry("p", Stage.END, ([1, 0],), children=("c",))
    assert retired(lineage, "p", [child], complete=complete) == Retired("p", (child,), end)


@pytest.fixture
def worker(make_bench):
    """Read one partition of a service that lists late up to its last record, and then split it."""
    bench = make_bench(behaviour=ServiceBehaviour(late_listing=1))
    settings = {"scope": api.PhysicalPartition(bench.sim.public_id("p0")), "on_expired": api.SkipToOldest()}
    token = bench.page(api.Now(), **settings).continuation_token
    bench.fill_partition("p0")

    def read(times):
        nonlocal token
        pages = []
        for _ in range(times):
            pages.append(bench.page(token, **settings))
            token = pages[-1].continuation_token
        return pages

    return bench, read, bench.sim.split("p0")


@pytest.mark.parametrize("restarts", [False, True], ids=["goes-on", "restarts"])
def test_a_child_that_is_listed_late_after_a_loss_is_named(worker, looks_at_once, restarts):
    bench, read, children = worker
    bench.sim.hide(children[1], 4)
    bench.sim.trim("p0")
    told = []
    for _ in range(8):
        (page,) = read(1)
        told += [notice.partition_id for notice in page.notices]
        if restarts:
            bench.connect()
    # The child's first changes may be gone too, so it has a notice.
    assert told == [bench.sim.public_id(name) for name in ("p0", children[1])]
    assert [child.partition_id for child in page.child_partitions] == list(map(bench.sim.public_id, children))
    assert not page.diagnostics.partition_errors


def test_the_observer_hears_of_late_partitions(worker, looks_at_once):
    bench, read, children = worker

    class Noting(api.Observer):
        def partition_found_late(self, address, found):
            told.append((address, found))

    told = []
    bench.connect(observer=Noting())
    bench.sim.hide(children[1], 4)
    bench.sim.trim("p0")
    notices = [notice for page in read(8) for notice in page.notices]
    (late,) = [notice for notice in notices if isinstance(notice, api.PartitionFoundLate)]
    assert told == [(bench.sim.address, late)]


def test_every_child_is_named_if_the_partition_is_lost_before_that(worker, ids):
    bench, read, children = worker
    bench.sim.delay_children("p0", 1000)
    assert [len(ids(page)) for page in read(2)] == [1, 0]
    for name in children:
        bench.fill_partition(name)
    bench.sim.trim("p0")
    bench.sim.split(children[0])  # only the first one ends
    first, *_, last = read(4)
    assert [type(notice) for notice in first.notices] == [api.Gap]
    assert [child.partition_id for child in last.child_partitions] == list(map(bench.sim.public_id, children))
    assert (first.partition_retired, ids(last)) == (True, [])


@pytest.mark.usefixtures("looks_at_once")
def test_a_look_that_the_service_does_not_answer_ends_no_search(make_bench, monkeypatch):
    bench = make_bench(behaviour=ServiceBehaviour(proves_children=False))
    bench.connect(child_watch_seconds=0)
    bench.fill(4)
    bench.sim.split("p0")
    survey = SimulationFeed.survey

    def unanswered(feed, asked, deadline, *, whole=True, **rest):
        found = survey(feed, asked, deadline, whole=whole, **rest)
        return found if whole else attrs.evolve(found, present=(), answered=())

    token = BEGINNING
    with monkeypatch.context() as patch:
        patch.setattr(SimulationFeed, "survey", unanswered)
        for _ in range(6):
            page = bench.page(token)
            token = page.continuation_token
    assert page.diagnostics.open_watches == 1
    for _ in range(6):
        page = bench.page(token)
        token = page.continuation_token
    assert page.diagnostics.open_watches == 0


def test_another_process_reads_only_its_partition(make_bench, looks_at_once, ids):
    bench = make_bench(2, behaviour=ServiceBehaviour(late_listing=1))
    scope = api.PhysicalPartition(bench.sim.public_id("p0"), with_descendants=True)
    settings = {"scope": scope, "on_expired": api.SkipToOldest()}
    token = bench.page(api.Now(), **settings).continuation_token
    bench.fill_partition("p0")
    children = bench.sim.split("p0")
    bench.sim.trim("p0")
    own = [event for name in children for event in bench.fill_partition(name)]
    bench.fill_partition("p1", 5)
    read = []
    for _ in range(8):
        bench.connect()
        page = bench.page(token, **settings)
        read += ids(page)
        token = page.continuation_token
    assert sorted(read) == own
