"""Tests a partition with its descendants: `PhysicalPartition(…, with_descendants=True)`."""

import itertools

import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    FileCheckpointStore,
    Gap,
    MulticloudDbError,
    Now,
    OperationOptions,
    PhysicalPartition,
    SkipToOldest,
)
from multiclouddb_api.iterator import ChangeFeedIterator
from multiclouddb_conformance.simulation import CaughtUp, Listing, ServerError, ServiceBehaviour
from multiclouddb_spi.continuation.entry import Active, Audited, Waiting
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.token import decode_token

OPTIONS = OperationOptions()
QUICK = {"idle_backoff_seconds": 0.001, "max_idle_backoff_seconds": 0.002}
forms = pytest.mark.parametrize("form", list(Listing))
sizes = pytest.mark.parametrize("size", [1, 3, 50])


def branch(bench, name="p0"):
    """Return the scope of a request for a partition with its descendants."""
    return PhysicalPartition(bench.sim.public_id(name), with_descendants=True)


def descendants(sim, root):
    """Return a partition and all its descendants."""
    found = {root}
    for name in sim.lineage:  # children come after their parents
        if found.intersection(sim.lineage[name]):
            found.add(name)
    return found


def truth(sim, root="p0", after=0):
    """Return the ids of the events that a reader of the branch must receive."""
    names = descendants(sim, root)
    return [item.event_id for item in sim.history if item.partition_id in names and item.commit > after]


def ancestors(sim, name):
    """Return all ancestors of a partition."""
    found = set(sim.lineage[name])
    for parent in sim.lineage[name]:
        found |= ancestors(sim, parent)
    return found


def check_order(sim, root, came):
    """Check that a partition's events come in order and after those of its ancestors in the branch."""
    names = descendants(sim, root)
    places = {name: place for place, name in reversed(list(enumerate(came)))}
    own = {name: [] for name in names}
    for item in sim.history:
        if item.partition_id in names and item.event_id in places:
            own[item.partition_id].append(places[item.event_id])
    for name in names:
        assert own[name] == sorted(own[name]), f"{name} is out of order"
        for above in names & ancestors(sim, name):
            if own[above] and own[name]:
                assert own[above][-1] < own[name][0], f"{name} came before the end of {above}"


def read(bench, root="p0", place=None, size=0, **settings):
    """Read until the feed is idle, and check that each event comes once and in order."""
    events, _ = bench.drain(place or Beginning(), size, scope=branch(bench, root), **settings)
    came = [event.event_id for event in events]
    assert len(came) == len(set(came)), "an event came twice"
    check_order(bench.sim, root, came)
    return came


def grown(make_bench, partitions=1, **behaviour):
    bench = make_bench(partitions, behaviour=ServiceBehaviour(**behaviour))
    bench.connect()
    return bench


def fill(bench, *names, count=3):
    for name in names:
        bench.fill_partition(name, count)


class TestFollowChildren:
    @sizes
    @forms
    def test_goes_on_with_the_children(self, make_bench, form, size):
        bench = grown(make_bench, 2, listing=form)
        fill(bench, "p0", "p1")
        one, other = bench.sim.split("p0")
        fill(bench, one, other)
        bench.sim.split(other, 3)
        bench.fill(30)
        assert sorted(read(bench, size=size)) == sorted(truth(bench.sim))

    def test_no_page_says_retired(self, bench):
        bench.fill(5)
        bench.sim.split("p0")
        bench.fill(5)
        for page in bench.walk(size=2, scope=branch(bench)):
            assert not page.partition_retired
            assert not page.child_partitions

    def test_children_are_read_in_turn(self, bench):
        one, other = bench.sim.split("p0")
        first, second = bench.fill_partition(one, 2), bench.fill_partition(other, 2)
        came = read(bench, size=1)
        assert came in (
            [first[0], second[0], first[1], second[1]],
            [second[0], first[0], second[1], first[1]],
        )

    def test_a_failing_child_keeps_no_other_waiting(self, bench, ids):
        one, other = bench.sim.split("p0")
        wanted = bench.fill_partition(other, 5)
        fill(bench, one)
        bench.sim.fail_next(one, ServerError("503"), times=None)
        page = bench.page(scope=branch(bench))
        assert ids(page) == wanted
        assert list(page.diagnostics.partition_errors) == [bench.sim.public_id(one)]
        assert not page.idle

    @sizes
    @forms
    @pytest.mark.parametrize("apart", [0.0, 1.0])
    def test_a_merge_child_comes_after_all_its_followed_parents_and_once(self, make_bench, form, size, apart):
        bench = grown(make_bench, 2, listing=form, separate_end=apart)
        one, other = bench.sim.split("p0")
        fill(bench, one)
        fill(bench, other, count=9)
        merged = bench.sim.merge(one, other)
        fill(bench, merged)
        assert sorted(read(bench, size=size)) == sorted(truth(bench.sim))

    @sizes
    @forms
    def test_a_parent_that_nobody_follows_here_is_not_waited_for(self, make_bench, form, size):
        bench = grown(make_bench, 2, listing=form)
        fill(bench, "p0", "p1")
        merged = bench.sim.merge("p0", "p1")
        fill(bench, merged)
        for root in ("p0", "p1"):
            assert read(bench, root, size=size) == truth(bench.sim, root)

    @sizes
    @forms
    @pytest.mark.parametrize("generations", [0, 1, 3])
    def test_a_parent_that_is_found_later_is_waited_for(self, make_bench, form, size, generations):
        """The child has two parents: A, which names it, and a descendant of B, while B itself has not ended
        yet."""
        bench = grown(make_bench, 2, listing=form)
        first, second = bench.sim.split("p0")
        fill(bench, first, count=1)
        fill(bench, second, count=9)
        for _ in range(generations):
            second = bench.sim.roll(second)
            fill(bench, second, count=5)
        merged = bench.sim.merge(first, second)
        fill(bench, merged)
        assert read(bench, size=size)[-3:] == truth(bench.sim)[-3:]

    @forms
    def test_a_stranger_is_not_waited_for_when_all_is_quiet(self, make_bench, form):
        """Partition A merges with a partition outside the branch while partition B is open."""
        bench = grown(make_bench, 2, listing=form, heartbeats=False)
        first, second = bench.sim.split("p0")
        fill(bench, first, second)
        merged = bench.sim.merge(first, "p1")
        fill(bench, merged)
        assert sorted(read(bench)) == sorted(truth(bench.sim))

    @forms
    @pytest.mark.parametrize("caught_up", list(CaughtUp))
    def test_a_busy_partition_does_not_hold_up_a_child_for_ever(self, make_bench, form, caught_up):
        """Partition B is never idle in this test.

        Once partition B has been read past the time at which the child was named, no parent of the child can
        descend from B.
        """
        bench = grown(make_bench, 2, listing=form, heartbeats=False, caught_up=caught_up)
        first, second = bench.sim.split("p0")
        fill(bench, second, count=20)
        merged = bench.sim.merge(first, "p1")
        wanted = set(bench.fill_partition(merged, 2))
        token, came = Beginning(), []
        for _ in range(60):
            page = bench.page(token, 2, scope=branch(bench))
            assert not page.idle
            came += [event.event_id for event in page.events]
            token = page.continuation_token
            bench.fill_partition(second, 1)
            if wanted <= set(came):
                break
        assert wanted <= set(came)

    def test_a_busy_partition_of_a_service_without_a_clock_is_waited_for(self, make_bench, monkeypatch):
        bench = grown(make_bench, 2, listing=Listing.OPEN)
        monkeypatch.setattr(
            "multiclouddb_conformance.simulation.feed.SimulationFeed.clock", lambda self, deadline: None
        )
        first, second = bench.sim.split("p0")
        fill(bench, second, count=20)
        merged = bench.sim.merge(first, "p1")
        wanted = set(bench.fill_partition(merged, 2))
        events, _ = bench.drain(size=2, scope=branch(bench))
        assert wanted <= {event.event_id for event in events}

    @forms
    def test_children_that_wait_for_each_other_are_started_all_the_same(self, make_bench, form):
        bench = grown(make_bench, 3, listing=form)
        one, other = bench.sim.split("p0")
        fill(bench, one, other)
        for half, outside in ((one, "p1"), (other, "p2")):
            fill(bench, bench.sim.merge(half, outside))
        assert sorted(read(bench)) == sorted(truth(bench.sim))

    @sizes
    @forms
    def test_of_children_that_wait_for_each_other_the_older_one_is_first(self, make_bench, form, size):
        """The child of the last merge is named first.

        The other parent of this child descends from a child that is also waiting.
        """
        bench = grown(make_bench, 2, listing=form)
        one, other = bench.sim.split("p0")
        fill(bench, other, count=1)
        first = bench.sim.merge(other, "p1")
        second = bench.sim.roll(first)
        fill(bench, second)
        last = bench.sim.merge(one, second)
        fill(bench, last)
        assert sorted(read(bench, size=size)) == sorted(truth(bench.sim))

    def test_ends_when_every_partition_has_ended(self, make_bench, ended):
        bench = grown(make_bench, drop_notice=True)
        one, _ = bench.sim.split("p0")
        fill(bench, one)
        scope = branch(bench)
        _, token = bench.drain(scope=scope)
        bench.sim.drop()
        page = bench.page(token, scope=scope)
        assert page.idle
        assert ended(page)
        again = bench.page(page.continuation_token, scope=scope)
        assert ended(again) == ended(page)

    @forms
    def test_any_token_resumes_in_another_process(self, make_bench, form):
        bench = grown(make_bench, 3, listing=form, separate_end=0.5, seed=4)
        one, other = bench.sim.split("p0")
        fill(bench, one, other)
        deeper, _ = bench.sim.split(other)
        merged = bench.sim.merge(one, deeper)
        fill(bench, merged)
        foreign = bench.sim.merge(merged, "p1")
        fill(bench, foreign)
        bench.sim.split(foreign)
        bench.fill(20)
        wanted = truth(bench.sim)
        tokens, before = [Beginning()], [[]]
        for page in bench.walk(size=2, scope=branch(bench)):
            tokens.append(page.continuation_token)
            before.append(before[-1] + [event.event_id for event in page.events])
        assert sorted(before[-1]) == sorted(wanted)
        for token, came in zip(tokens, before, strict=True):
            bench.connect()
            events, _ = bench.drain(token, 2, scope=branch(bench))
            whole = came + [event.event_id for event in events]
            assert sorted(whole) == sorted(wanted)
            check_order(bench.sim, "p0", whole)

    def test_iterator_keeps_its_position(self, make_bench, tmp_path):
        bench = grown(make_bench)
        store = FileCheckpointStore(tmp_path)
        came = []

        def changes(start):
            request = ChangeFeedRequest(bench.sim.address, start, branch(bench), max_page_size=2)
            settings = {"checkpoint_store": store, "checkpoint_name": "w", "until_idle": True, **QUICK}
            return ChangeFeedIterator(bench.engine, request, **settings)

        bench.fill(4)
        bench.sim.split("p0")
        bench.fill(6)
        for _ in range(20):
            with changes(Beginning()) as some:
                for page in itertools.islice(some.pages(), 2):
                    came += [change.event_id for change in page.events]
            bench.connect()
        assert set(came) == set(truth(bench.sim))
        assert store.load("w").token == some.continuation_token


class TestLateChildren:
    @pytest.mark.parametrize("seed", range(10))
    def test_a_merged_child_that_is_named_late_is_followed_once(self, make_bench, seed):
        bench = make_bench(2, behaviour=ServiceBehaviour(seed=seed, late_siblings=2, proves_children=False))
        bench.connect(child_watch_seconds=0.2)
        one, other = bench.sim.split("p0")
        _, third = bench.sim.split(one)
        merged = bench.sim.merge(other, third)
        wanted = bench.fill_partition(merged, 2)
        bench.sim.roll(merged)
        request, came = ChangeFeedRequest(bench.sim.address, Beginning(), branch(bench)), []
        with ChangeFeedIterator(bench.engine, request, **QUICK) as changes:
            for page in changes.pages():
                came += [event.event_id for event in page.events]
                if set(wanted) <= set(came) and page.idle and not page.diagnostics.open_watches:
                    break
        assert [name for name in came if name in wanted] == wanted

    def test_a_feed_whose_child_waits_is_not_idle(self, bench):
        bench.fill(2)
        bench.sim.delay_children("p0", 10**6)
        bench.sim.split("p0")
        bench.fill(2)
        token = Beginning()
        for _ in range(4):
            page = bench.page(token, scope=branch(bench))
            token = page.continuation_token
            assert not page.idle

    def test_a_child_waits_for_a_stranger_while_one_is_looked_for(self, make_bench):
        """A child's unknown parent may be a sibling that the service has not named yet."""
        bench = grown(make_bench, listing=Listing.OPEN, proves_children=False, late_siblings=3, seed=2)
        one, other = bench.sim.split("p0")
        older = bench.sim.roll(other)
        fill(bench, older)
        merged = bench.sim.merge(one, older)
        fill(bench, merged)
        token, came = Beginning(), []
        while not set(truth(bench.sim)) <= set(came):
            page = bench.page(token, scope=branch(bench))
            came += [event.event_id for event in page.events]
            token = page.continuation_token
        check_order(bench.sim, "p0", came)

    @pytest.mark.parametrize("looks", [1, 2, 5])
    def test_a_stranger_whose_parent_is_listed_late_is_waited_for(self, make_bench, looks):
        bench = grown(make_bench, 2)
        first, second = bench.sim.split("p0")
        fill(bench, second, count=9)
        middle = bench.sim.roll(second)
        fill(bench, middle, count=5)
        last = bench.sim.roll(middle)
        merged = bench.sim.merge(first, last)
        fill(bench, merged)
        bench.sim.hide(middle, looks)
        assert sorted(read(bench, size=2)) == sorted(truth(bench.sim))


class TestQuiet:
    """Tests a lineage in which each partition has answered that it has no more records."""

    def quiet(self, *waiting, audited=None):
        entries = [Active("a", 1), Active("b", 1), *waiting]
        return Lineage(entries, lambda _, cursors: cursors[0], audited).is_quiet({"a", "b"})

    def test_child_of_one_that_is_read_is_to_come(self):
        assert self.quiet()
        assert not self.quiet(Waiting("m", (1,), ("a",)))
        assert not self.quiet(Waiting("m", (1,), ("a", "undiscovered")))

    def test_strangers_and_what_waits_behind_them_are_settled_apart(self):
        assert self.quiet(Waiting("m", (1,), ("undiscovered",)))
        assert self.quiet(Waiting("m", (1,), ("undiscovered",)), Waiting("n", (1,), ("m", "other")))

    def test_whole_collection_waits_for_every_parent(self):
        assert not self.quiet(Waiting("m", (1,), ("undiscovered",)), audited=Audited())


class TestStarts:
    def test_now_is_durable(self, bench):
        bench.fill(5)
        page = bench.page(Now(), scope=branch(bench))
        after = bench.sim.head
        bench.sim.split("p0")
        bench.fill(9)
        assert sorted(read(bench, place=page.continuation_token)) == sorted(truth(bench.sim, after=after))

    def test_time(self, bench):
        bench.fill(5)
        moment = bench.sim.now
        after = bench.sim.head
        bench.sim.split("p0")
        bench.fill(9)
        assert set(read(bench, place=AtTime(moment))) >= set(truth(bench.sim, after=after))

    def test_partition_that_has_ended_begins_with_its_children(self, bench):
        bench.fill(5)
        after = bench.sim.head
        bench.sim.split("p0")
        bench.fill(9)
        assert sorted(read(bench, place=Now())) == sorted(truth(bench.sim, after=after))

    @sizes
    @forms
    def test_followers_of_a_plan_have_everything_together(self, make_bench, form, size):
        bench = grown(make_bench, 3, listing=form)
        bench.fill(20)
        plan = bench.engine.plan_partitions(
            ChangeFeedRequest(bench.sim.address, Beginning()), OPTIONS, with_descendants=True
        )
        bench.sim.split("p0")
        bench.fill(20)
        bench.sim.merge("p1", "p2")
        bench.fill(20)
        came = set()
        for name, token in plan:
            scope = PhysicalPartition(name, with_descendants=True)
            mine = [event.event_id for event in bench.drain(token, size, scope=scope)[0]]
            root = name.rpartition(":")[2]
            assert sorted(mine) == sorted(truth(bench.sim, root))
            came.update(mine)
        assert came == set(bench.written())


class TestTokens:
    def tokens(self, bench):
        alone = PhysicalPartition(bench.sim.public_id("p0"))
        scopes = {"alone": alone, "branch": branch(bench), "other": branch(bench, "p1"), "all": None}
        return {
            name: (bench.page(**({} if scope is None else {"scope": scope})).continuation_token, scope)
            for name, scope in scopes.items()
        }

    def test_tokens_of_the_two_forms_are_distinguished(self, make_bench):
        bench = grown(make_bench, 2)
        made = self.tokens(bench)
        scopes = {name: decode_token(token).scope for name, (token, _) in made.items()}
        assert scopes == {
            "alone": "partition:p0",
            "branch": "descendants:p0",
            "other": "descendants:p1",
            "all": "collection",
        }
        for (name, (token, _)), (other, (_, scope)) in itertools.permutations(made.items(), 2):
            settings = {} if scope is None else {"scope": scope}
            error = bench.refused(ErrorCategory.INVALID_REQUEST, token, **settings)
            assert "continuation_token" in error.message, (name, other)

    def test_message_says_what_differs_and_how_to_go_on(self, make_bench):
        bench = grown(make_bench, 2)
        made = self.tokens(bench)
        (alone, one), (whole, all_of_it) = made["alone"], made["branch"]
        error = bench.refused(ErrorCategory.INVALID_REQUEST, alone, scope=all_of_it)
        assert "was made for the partition p0 without its descendants" in error.message
        assert "with_descendants=False" in error.message
        error = bench.refused(ErrorCategory.INVALID_REQUEST, whole, scope=one)
        assert "was made for the partition p0 with its descendants" in error.message
        assert "with_descendants=True" in error.message

    def test_tokens_of_the_two_plans_are_told_apart(self, make_bench):
        bench = grown(make_bench, 2)
        request = ChangeFeedRequest(bench.sim.address, Beginning())
        for with_descendants in (False, True):
            plan = bench.engine.plan_partitions(request, OPTIONS, with_descendants=with_descendants)
            for name, token in plan:
                mine = PhysicalPartition(name, with_descendants=with_descendants)
                bench.page(token, scope=mine)
                other = PhysicalPartition(name, with_descendants=not with_descendants)
                bench.refused(ErrorCategory.INVALID_REQUEST, token, scope=other, match="with_descendants")

    def test_token_is_an_ordinary_one_with_one_lineage(self, make_bench):
        bench = grown(make_bench, 2, listing=Listing.OPEN)
        first, _ = bench.sim.split("p0")
        merged = bench.sim.merge(first, "p1")
        token = bench.page(scope=branch(bench)).continuation_token
        state = decode_token(token).state
        (waiting,) = [item for item in state["p"] if item[0] == merged]
        assert waiting[2:4] == [4, ["p1"]]
        assert isinstance(waiting[4], int)
        assert "a" not in state


class TestPoison:
    def test_way_around_is_of_the_same_scope(self, bench):
        one, other = bench.sim.split("p0")
        fill(bench, one, other, count=2)
        bench.sim.write(bench.key_in(one), {}, poison=True)
        bench.fill_partition(one, 2)
        token, errors, came = Beginning(), [], []
        for _ in range(30):
            try:
                page = bench.page(token, scope=branch(bench))
            except MulticloudDbError as error:
                errors.append(error)
                token = error.detail.skip_token
                bench.refused(
                    ErrorCategory.INVALID_REQUEST, token, scope=PhysicalPartition(bench.sim.public_id(one))
                )
                continue
            came += [event.event_id for event in page.events]
            token = page.continuation_token
            if page.idle:
                break
        assert len(errors) == 1
        assert len(came) == len(truth(bench.sim)) - 1


class TestRetention:
    def test_what_was_lost_is_an_error(self, bench):
        bench.fill(5)
        token = bench.page(size=2, scope=branch(bench)).continuation_token
        bench.sim.split("p0")
        bench.fill(5)
        bench.sim.trim()
        bench.refused(ErrorCategory.CHECKPOINT_EXPIRED, token, scope=branch(bench))

    @forms
    def test_or_a_gap_behind_which_the_descendants_are_read(self, make_bench, form):
        bench = grown(make_bench, listing=form)
        bench.fill(5)
        token = bench.page(size=2, scope=branch(bench)).continuation_token
        bench.sim.split("p0")
        bench.fill(5)
        bench.sim.trim()
        after = bench.sim.head
        bench.fill(9)
        pages = list(bench.walk(token, scope=branch(bench), on_expired=SkipToOldest()))
        came = {event.event_id for page in pages for event in page.events}
        assert came >= set(truth(bench.sim, after=after))
        assert any(isinstance(notice, Gap) for page in pages for notice in page.notices)
