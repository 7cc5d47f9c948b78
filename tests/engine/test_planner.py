"""Tests bounded reads for any service behaviour and step size; repeated reads return the same events."""

from contextlib import nullcontext
from datetime import timedelta

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from multiclouddb_api import Beginning, ErrorCategory, MulticloudDbError, Now, Renamed, SkipToOldest
from multiclouddb_conformance.simulation import (
    CorruptError,
    Listing,
    ServerError,
    ServiceBehaviour,
    Simulation,
    SimulationFeed,
    SimulationProvider,
    TrimmedError,
)
from multiclouddb_spi import (
    Deadline,
    FeedSpec,
    Follows,
    Planner,
    ProviderFault,
    RecordFault,
    SupportsHeads,
    ranges_between,
)
from multiclouddb_spi.continuation.entry import Entry
from multiclouddb_spi.errors import fault_of
from multiclouddb_spi.planning import heads, ranges
from multiclouddb_spi.planning.target import Target, within

from .reading import Asked, events_of, write

BEGINNING = Beginning()
HEADS = st.sampled_from(["all", "none", "some"])
both = pytest.mark.parametrize("heads", ["all", "none"])
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 11), st.integers(1, 5)),
        st.tuples(st.just("transaction"), st.integers(0, 11), st.integers(2, 8)),
        st.tuples(st.just("split"), st.integers(0, 11), st.integers(2, 3)),
        st.tuples(st.just("merge"), st.integers(0, 11), st.integers(1, 11)),
        st.tuples(st.just("roll"), st.integers(0, 11), st.just(0)),
        st.tuples(st.just("step"), st.integers(0, 12), st.integers(0, 1)),
        st.tuples(st.just("idle"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


class Heads:
    """A feed that finds the heads (end positions) of no partition, or of some that differ at each call."""

    def __init__(self, feed, found):
        self._feed, self._found, self.asked, self.left_out = feed, found, 0, set()

    def for_one_call(self):
        return self

    def __getattr__(self, name):
        if name == "heads" and self._found == "none":
            raise AttributeError(name)
        return self._some if name == "heads" else getattr(self._feed, name)

    def _some(self, cursors, max_records, deadline):
        found = self._feed.heads(cursors, max_records, deadline)
        self.asked += 1
        self.left_out = {name for number, name in enumerate(found) if (self.asked + number) % 2}
        return {name: head for name, head in found.items() if name not in self.left_out}


class Consumer:
    """A consumer that plans steps over a simulation, reads them, and records their events."""

    def __init__(self, sim, *, heads="all", position=BEGINNING, on_expired=None):
        self.sim, self.on_expired = sim, on_expired
        self.provider = SimulationProvider(sim)
        self.deadline = Deadline.after(120)
        feed = self.provider.open_feed(FeedSpec(sim.address), self.deadline)
        self.feed = feed if heads == "all" else Heads(feed, heads)
        assert isinstance(self.feed, SupportsHeads) == (heads != "none")
        self.planner = Planner(self.provider, self.feed, on_expired)
        self.at = self.planner.start(position, self.deadline)
        self.steps, self.delivered, self.truth = [], [], {item.event_id: item for item in sim.truth}
        self.skipped = []

    def step(self, most=None, target=None, *, allow_empty=False):
        """Plan and check one step; return the step's events, or None if there was nothing to read."""
        before = self.at.to_json()
        step = self.planner.advance(self.at, most, self.deadline, target, allow_empty=allow_empty)
        assert self.at.to_json() == before, "planning changes nothing"
        self.skipped += step.skipped
        if not step.moved:
            return None
        # Between planning and reading, the two positions that bound the step are stored as text.
        after = self.planner.restore(step.after.to_json())
        parts = ranges_between(self.at, after, step.ends)
        assert len({part.partition_id for part in parts}) == len(parts)
        names = {part.partition_id for part in parts}
        for name in names:
            assert names.isdisjoint(self.sim.lineage[name]), "a child together with its parent"
        self.at = after
        events = self.read(parts)
        if step.empty:
            assert allow_empty
            assert (step.ranges(), events) == ([], [])
        if most is not None:
            assert len(events) <= most
        self.steps.append((parts, events))
        self.delivered += events
        return events

    def read(self, parts):
        events = events_of(self.provider, self.feed, parts, self.on_expired)
        return [event.event_id for event in events]

    def drain(self, most=None, target=None):
        """Make steps until no more events arrive, then a few more for children that are named late."""
        quiet = 0
        for _ in range(10_000):
            quiet = quiet + 1 if self.step(most, target) is None else 0
            if quiet == 4:
                return
        pytest.fail("the planned run does not end")

    def check_left(self, trimmed, form):
        """Check that each event that retention has not removed came, and none twice."""
        left = {item.event_id for item in self.sim.truth if item.commit > trimmed.get(item.partition_id, 0)}
        assert left <= set(self.delivered)
        # Without the parents of partitions, a feed begins again at the oldest moment after a loss.
        may_repeat = form is Listing.OPEN and self.skipped
        assert may_repeat or len(set(self.delivered)) == len(self.delivered)

    def check_all(self):
        """Check that each event came once, in order within its partition and after all parents, and that
        steps can be repeated.
        """
        written = [item.event_id for item in self.sim.truth]
        assert sorted(self.delivered) == sorted(written)
        items = {item.event_id: item for item in self.sim.truth}
        last, ended = {}, {}
        for number, (_, events) in enumerate(self.steps):
            for name in events:
                item = items[name]
                assert (item.commit, item.index) > last.get(item.partition_id, (0, 0))
                last[item.partition_id] = (item.commit, item.index)
                ended[item.partition_id] = number
                for parent in self.sim.lineage[item.partition_id]:
                    assert ended.get(parent, -1) < number
        for name in {item.partition_id for item in items.values()}:
            for parent in self.sim.lineage[name]:
                firsts = [n for n, (_, events) in enumerate(self.steps) if _of(items, events, name)]
                assert ended.get(parent, -1) < min(firsts)
        for parts, events in self.steps:
            assert self.read(parts) == events

    def close(self):
        self.planner.close()
        assert self.provider.calls.open_readers == 0
        assert not self.provider.calls.violations


def _of(items, events, partition_id):
    return [name for name in events if items[name].partition_id == partition_id]


def act(sim, consumer, action):
    kind, first, second = action
    names = sim.open_partitions
    name = names[first % len(names)]
    match kind:
        case "write":
            for number in range(second):
                sim.write(f"k{(first + number) % 12}", {"n": sim.head})
        case "transaction":
            sim.transaction([(f"k{(first + number) % 12}", {"n": sim.head}) for number in range(second)])
        case "split" if len(names) < 10:
            sim.split(name, second)
        case "merge" if sim.may_merge():
            other = names[(first + 1 + second % (len(names) - 1)) % len(names)]
            sim.merge(*{name: None, other: None}) if name != other else None
        case "roll":
            sim.roll(name)
        case "step":
            consumer.step(first or None, allow_empty=bool(second))
        case "idle":
            sim.advance(1)
        case _:
            pass


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch, looks_at_once):
    """Retry at once, without pauses."""
    monkeypatch.setattr(ranges, "_sleep", lambda seconds: None)


class TestAnyLife:
    @settings(max_examples=150, deadline=None)
    @given(
        actions=ACTIONS,
        partitions=st.integers(1, 4),
        heads=HEADS,
        last=st.sampled_from([None, 1, 3, 50]),
        caught=st.integers(0, 4),
        form=st.sampled_from(list(Listing)),
    )
    def test_steps_give_the_truth_in_order_and_again_the_same(
        self, actions, partitions, heads, last, caught, form
    ):
        behaviours = [
            ServiceBehaviour(),
            ServiceBehaviour(late_children=2, seed=caught),
            ServiceBehaviour(separate_end=1.0, jumble=True, repeat_children=True, page_limit=2),
            ServiceBehaviour(seed_descendants=False, heartbeats=False, scan_limit=1),
            ServiceBehaviour(late_siblings=2, proves_children=False),
        ]
        sim = Simulation(partitions=partitions, behaviour=attrs.evolve(behaviours[caught], listing=form))
        consumer = Consumer(sim, heads=heads)
        for action in actions:
            act(sim, consumer, action)
        sim.behaviour = ServiceBehaviour(listing=form)
        consumer.drain(last)
        consumer.check_all()
        # Later splits, merges and writes do not change what was planned before.
        for action in actions:
            if action[0] != "step":
                act(sim, consumer, action)
        for parts, events in consumer.steps:
            assert consumer.read(parts) == events
        consumer.close()

    @settings(max_examples=60, deadline=None)
    @given(actions=ACTIONS, later=ACTIONS, heads=HEADS, most=st.sampled_from([None, 1, 4]))
    def test_target_is_what_was_there_and_nothing_later(self, actions, later, heads, most):
        sim = Simulation(partitions=2)
        consumer = Consumer(sim, heads=heads)
        for action in actions:
            act(sim, consumer, action)
        before = {item.event_id for item in sim.truth}
        target = consumer.planner.target(consumer.at, consumer.deadline)
        for action in later:
            if action[0] != "step":
                act(sim, consumer, action)
        consumer.drain(most, target)
        assert set(consumer.delivered) == before
        consumer.drain(most)
        consumer.check_all()
        consumer.close()

    @settings(max_examples=40, deadline=None)
    @example(
        actions=[("merge", 0, 1), ("roll", 1, 0), ("write", 0, 2), ("split", 0, 2), ("step", 0, 0)],
        rest=[],
        cut=0.5,
        heads="all",
        most=1,
        form=Listing.OPEN,
    )
    @given(
        actions=ACTIONS,
        rest=ACTIONS,
        cut=st.floats(0, 1),
        heads=HEADS,
        most=st.integers(1, 9),
        form=st.sampled_from(list(Listing)),
    )
    def test_skipping_what_retention_took_delivers_all_that_is_left(
        self, actions, rest, cut, heads, most, form
    ):
        sim = Simulation(partitions=3, behaviour=ServiceBehaviour(listing=form))
        consumer = Consumer(sim, heads=heads, on_expired=SkipToOldest())
        for action in actions:
            act(sim, consumer, action)
        sim.trim(upto=int(cut * sim.head))
        kept = sim.partitions.values()
        trimmed = {partition.id: partition.trimmed for partition in kept}
        for action in rest:
            if action[0] != "step":
                act(sim, consumer, action)
        consumer.drain(most)
        consumer.check_left(trimmed, form)
        consumer.close()


class TestTarget:
    @both
    def test_partition_whose_children_are_not_named_yet_is_read_to_its_end(self, heads):
        sim = Simulation()
        consumer = Consumer(sim, heads=heads)
        written = write(sim, 3, keys=1)
        sim.delay_children("p0", 10**6)
        sim.split("p0")
        target = consumer.planner.target(consumer.at, consumer.deadline)
        consumer.drain(target=target)
        assert consumer.delivered == written


class TestTrouble:
    @both
    @pytest.mark.parametrize("form", list(Listing), ids=lambda form: form.value)
    def test_merge_below_a_lost_branch_waits_for_a_parent_that_is_only_slow(self, heads, form):
        sim = Simulation(partitions=2, behaviour=ServiceBehaviour(listing=form))
        consumer = Consumer(sim, heads=heads, on_expired=SkipToOldest())
        sim.write("a", {"n": 1})
        (first, _) = sim.split("p0")
        write(sim, 8)
        sim.merge(first, "p1")
        write(sim, 8)
        sim.trim("p1")
        lost = {item.event_id for item in sim.truth if item.partition_id == "p1"}
        consumer.drain(2)
        assert set(consumer.delivered) == {item.event_id for item in sim.truth} - lost
        items = {item.event_id: item for item in sim.truth}
        for key in {item.key for item in sim.truth}:
            commits = [items[name].commit for name in consumer.delivered if items[name].key == key]
            assert commits == sorted(commits)

    def test_range_is_retried_and_then_raised_in_our_words(self):
        sim = Simulation()
        consumer = Consumer(sim)
        sim.write("a", {"n": 1})
        (part,) = consumer.planner.advance(consumer.at, None, consumer.deadline).ranges()
        sim.fail_next("p0", ServerError("503"), times=3)
        assert consumer.read([part]) == ["1.0"]
        sim.fail_next("p0", CorruptError("broken"))
        with pytest.raises(MulticloudDbError, match="broken") as caught:
            consumer.read([part])
        assert caught.value.category == ErrorCategory.PERMANENT_FAILURE
        assert isinstance(caught.value.__cause__, CorruptError)
        consumer.close()


class Beside(Consumer):
    """Tests reads of `p0` with its descendants, while writes to another partition only move the position."""

    def __init__(self, sim, **settings):
        owners = {key: sim.write(key, {"n": 0}).partition_id for key in (f"k{n}" for n in range(12))}
        self.mine = [key for key, owner in owners.items() if owner == "p0"]
        self.others = [key for key, owner in owners.items() if owner != "p0"]
        super().__init__(sim, position=Now(), **settings)
        only = [entry for entry in self.at.to_json()["p"] if entry[0] == "p0"]
        self.at = self.planner.restore({"p": only})
        self.first = self.at

    def write(self):
        return self.sim.write(self.mine[0], {"n": self.sim.head}).event_id

    def write_beside(self):
        self.sim.write(self.others[0], {"n": self.sim.head})


@both
class TestIdlePosition:
    @pytest.mark.parametrize("most", [None, 1, 5])
    def test_that_moved_is_a_step_where_that_is_allowed(self, heads, most):
        sim = Simulation(partitions=2)
        consumer = Beside(sim, heads=heads)
        consumer.write_beside()
        assert consumer.step(most) is None
        assert consumer.step(most, allow_empty=True) == []
        assert consumer.step(most, allow_empty=True) is None
        assert consumer.feed.compare(consumer.first.cursor("p0"), consumer.at.cursor("p0")) == -1
        consumer.close()

    def test_is_not_taken_for_the_end_of_a_partition(self, heads):
        sim = Simulation(partitions=2)
        consumer = Beside(sim, heads=heads)
        consumer.write_beside()
        sim.roll("p0")
        step = consumer.planner.advance(consumer.at, None, consumer.deadline, allow_empty=True)
        assert (step.empty, list(step.ends)) == (False, ["p0"])

    @pytest.mark.parametrize("allowed", [True, False], ids=["allowed", "not allowed"])
    def test_outlives_retention_only_where_it_moves(self, heads, allowed):
        sim = Simulation(partitions=2)
        consumer = Beside(sim, heads=heads)
        with nullcontext() if allowed else pytest.raises(TrimmedError):
            for _ in range(3):
                consumer.write_beside()
                consumer.step(allow_empty=allowed)
                sim.trim()
            name = consumer.write()
            assert consumer.step() == [name]

    @pytest.mark.parametrize("most", [None, 1])
    def test_is_in_the_target_and_the_run_ends_there(self, heads, most):
        sim = Simulation(partitions=2)
        consumer = Beside(sim, heads=heads)
        consumer.write_beside()
        target = consumer.planner.target(consumer.at, consumer.deadline)
        assert target.cursors["p0"] != consumer.first.cursor("p0")
        consumer.write_beside()
        assert consumer.step(most, target) is None
        assert consumer.step(most, target, allow_empty=True) == []
        assert consumer.at.cursor("p0") == target.cursors["p0"]
        for _ in range(3):
            consumer.write()
            consumer.write_beside()
            assert consumer.step(most, target, allow_empty=True) is None


@pytest.mark.parametrize("most", [None, 8])
def test_only_partitions_without_a_head_are_read_for_one(most):
    sim = Simulation(partitions=4)
    consumer = Consumer(sim, heads="some")
    write(sim, 40, keys=12)
    step = consumer.planner.advance(consumer.at, most, consumer.deadline)
    assert consumer.feed.asked == 1
    assert set(consumer.provider.calls.fetches) == consumer.feed.left_out == {"p0", "p2"}
    assert [part.partition_id for part in step.ranges()] == ["p0", "p1", "p2", "p3"]
    assert len(consumer.read(step.ranges())) == (40 if most is None else most)


@both
def test_a_step_that_its_limit_has_cut_does_not_say_that_the_end_was_reached(heads):
    sim = Simulation()
    consumer = Consumer(sim, heads=heads)
    write(sim, 6, keys=1)
    step = consumer.planner.advance(consumer.at, 3, consumer.deadline)
    assert step.answers["p0"].caught_up_at is None
    step = consumer.planner.advance(step.after, 9, consumer.deadline)
    assert step.answers["p0"].caught_up_at is not None


@pytest.fixture
def short(monkeypatch):
    """Let each answer stop after at most two changes, without saying whether more follow."""
    heads = SimulationFeed.heads

    def answer(feed, cursors, most, deadline):
        found = heads(feed, cursors, 2 if most is None else min(most, 2), deadline)
        unknown = {name: head for name, head in found.items() if head.follows is Follows.MORE}
        return found | {name: attrs.evolve(each, follows=Follows.NOT_KNOWN) for name, each in unknown.items()}

    monkeypatch.setattr(SimulationFeed, "heads", answer)


@pytest.mark.usefixtures("short")
class TestNotKnown:
    """An answer with fewer changes than were asked for proves nothing."""

    @pytest.fixture
    def consumer(self):
        sim = Simulation(2)
        consumer = Consumer(sim)
        few_and_many(sim)
        return consumer

    @pytest.mark.parametrize("most", [None, 100])
    def test_the_end_is_what_was_said_and_no_number(self, consumer, most):
        step = consumer.planner.advance(consumer.at, most, consumer.deadline)
        assert 0 < len(consumer.read(step.ranges())) <= 4
        assert (step.left, step.is_end) == ({"p0", "p1"}, False)
        assert {answer.caught_up_at for answer in step.answers.values()} == {None}
        while (step := consumer.planner.advance(step.after, most, consumer.deadline)).moved:
            last = step
        assert (last.left, last.is_end) == (frozenset(), True)
        assert last.answers["p1"].caught_up_at is not None

    @pytest.mark.parametrize("most", [None, 3])
    def test_a_target_lies_after_everything_that_was_there(self, consumer, most):
        written = {item.event_id for item in consumer.sim.truth}
        target = consumer.planner.target(consumer.at, consumer.deadline)
        few_and_many(consumer.sim)
        consumer.drain(most, target)
        assert set(consumer.delivered) == written

    def test_the_steps_of_a_batch_read_everything(self, consumer):
        steps = consumer.planner.steps(consumer.at, consumer.deadline)
        found = [name for step in steps for name in consumer.read(step.ranges())]
        assert sorted(found) == sorted(item.event_id for item in consumer.sim.truth)

    def test_a_target_ends_although_no_answer_is_the_last_one(self, consumer, monkeypatch):
        """Whoever writes faster than the planner asks does not keep it from ending."""
        sim, heads = consumer.sim, SimulationFeed.heads
        written = {item.event_id for item in sim.truth}

        def busy(*asked):
            sim.advance(1)
            few_and_many(sim)
            assert len(sim.truth) < 10_000, "the plan does not end"
            return heads(*asked)

        monkeypatch.setattr(SimulationFeed, "heads", busy)
        target = consumer.planner.target(consumer.at, consumer.deadline)
        monkeypatch.setattr(SimulationFeed, "heads", heads)
        consumer.drain(None, target)
        assert written < set(consumer.delivered) < {item.event_id for item in sim.truth}

    def test_a_partition_of_which_nothing_is_known_is_an_error_in_the_end(self, consumer, monkeypatch):
        monkeypatch.setattr(heads, "follows_of", lambda batch: Follows.NOT_KNOWN)
        monkeypatch.setattr(SimulationFeed, "heads", lambda *_: {})
        with pytest.raises(ProviderFault, match="has not said in time") as caught:
            consumer.planner.target(consumer.planner.start(Now(), consumer.deadline), 0.0)
        assert caught.value.fault.retryable


@both
@pytest.mark.parametrize("most", [None, 2])
def test_a_partition_that_ends_right_at_the_moment_leads_to_no_child(heads, most):
    sim = Simulation()
    before = write(sim, 3, keys=1)
    sim.advance(1)
    moment = sim.now
    sim.advance(1)
    sim.split("p0")
    write(sim, 10)
    consumer = Consumer(sim, heads=heads)
    consumer.drain(most, consumer.planner.target_at(moment, consumer.deadline))
    assert consumer.delivered == before
    assert [entry.partition_id for entry in consumer.at.active()] == ["p0"]
    with pytest.raises(MulticloudDbError, match="endingPosition") as caught:
        consumer.planner.target_at(sim.now + timedelta(hours=1), consumer.deadline, "endingPosition")
    assert caught.value.category == ErrorCategory.INVALID_REQUEST


def test_a_range_is_read_in_parts_that_fit_into_memory_and_end():
    sim = Simulation()
    write(sim, 3, keys=1)
    consumer = Consumer(sim)
    parts = consumer.planner.advance(consumer.at, None, consumer.deadline).ranges()
    consumer.feed = Asked(consumer.feed)
    assert len(consumer.read(parts)) == 3
    assert consumer.feed.asked
    for most, nbytes, wait, remaining in consumer.feed.asked:
        assert 100 <= most <= 100_000
        assert 1 << 20 <= nbytes <= 1 << 26
        assert wait == 0
        assert 10 <= remaining <= 600


@both
def test_a_partition_beside_one_that_retention_took_is_read_in_the_same_step(heads):
    sim = Simulation(partitions=2)
    consumer = Consumer(sim, heads=heads, on_expired=SkipToOldest())
    write(sim, 40)
    sim.trim("p0")
    step = consumer.planner.advance(consumer.at, None, consumer.deadline)
    left = [item.event_id for item in sim.truth if item.partition_id == "p1"]
    assert consumer.read(step.ranges()) == left != []
    where = consumer.feed.describe(consumer.at.cursor("p0")).text
    assert step.skipped == (f"{consumer.feed.public_id('p0')} after {where}",)
    assert consumer.planner.advance(step.after, None, consumer.deadline).skipped == ()


@both
def test_a_loss_is_skipped_only_after_a_listing_of_all_partitions(heads, monkeypatch):
    sim = Simulation(partitions=2)
    consumer = Consumer(sim, heads=heads, on_expired=SkipToOldest())
    sim.write("a", {"n": 1})
    sim.delay_children("p0", 10**6)
    sim.roll("p0")
    write(sim, 20)
    sim.trim("p0")
    survey, lacks = SimulationFeed.survey, [True]

    def lacking(feed, asked, deadline, **rest):
        found = survey(feed, asked, deadline, **rest)
        shown = [each for each in found.present if not lacks or each.partition_id != "p1"]
        return attrs.evolve(found, present=tuple(shown))

    monkeypatch.setattr(SimulationFeed, "survey", lacking)
    with pytest.raises(Exception, match="not yet said which changes it still keeps") as caught:
        consumer.planner.advance(consumer.at, None, consumer.deadline)
    assert fault_of(None, caught.value).category == ErrorCategory.TRANSIENT_FAILURE
    lacks.clear()
    assert consumer.planner.advance(consumer.at, None, consumer.deadline).skipped


@both
def test_a_position_that_a_look_has_moved_is_told_once(heads):
    """The look for the children of p0 finds p0 gone and p1 behind, before p1 is read."""
    sim = Simulation(partitions=2)
    consumer = Consumer(sim, heads=heads, on_expired=SkipToOldest())
    sim.delay_children("p0", 10**6)
    sim.roll("p0")
    consumer.step()
    write(sim, 20)
    sim.trim()
    step = consumer.planner.advance(consumer.at, None, consumer.deadline)
    assert sorted(place.split()[0] for place in step.skipped) == [
        consumer.feed.public_id(name) for name in ("p0", "p1")
    ]


def test_what_lies_before_a_record_that_cannot_be_fetched_is_a_step():
    sim = Simulation(behaviour=ServiceBehaviour(poison_at_fetch=True))
    consumer = Consumer(sim, heads="none")
    first = sim.write("a", {"n": 1}).event_id
    sim.write("b", {"n": 1}, poison=True)
    assert consumer.step() == [first]
    with pytest.raises(RecordFault):
        consumer.step()


def test_what_was_read_shortly_before_the_deadline_is_a_step():
    sim = Simulation(behaviour=ServiceBehaviour(page_limit=10))
    write(sim, 50, keys=1)
    consumer = Consumer(sim, heads="none")
    step = consumer.planner.advance(consumer.at, None, Deadline.after(20))
    assert len(consumer.read(step.ranges())) == 10


@both
def test_a_notice_inside_a_range_does_not_end_it(heads):
    sim = Simulation()
    consumer = Consumer(sim, heads=heads)
    for _ in range(3):
        write(sim, 1)
        sim.announce("p0", Renamed("a", "b"))
    consumer.drain()
    consumer.check_all()


def test_heads_lie_after_a_record_that_may_be_skipped():
    sim = Simulation(behaviour=ServiceBehaviour(poison_at_fetch=True))
    consumer = Consumer(sim, heads="none")
    for name in "abc":
        sim.write(name, {"n": 1}, poison=name == "b")
    planner = Planner(consumer.provider, consumer.feed, skip_poison=True)
    records, at = 0, consumer.at
    while (step := planner.advance(at, None, consumer.deadline)).moved:
        records, at = records + step.records, step.after
    assert (records, step.is_end) == (3, True)
    planner.close()


def test_a_search_that_finds_an_expired_position_says_so(monkeypatch):
    sim = Simulation(behaviour=ServiceBehaviour(proves_children=False))
    consumer = Consumer(sim)
    planner = Planner(consumer.provider, consumer.feed, audit_seconds=0.0)

    left = []

    def survey(feed, asked, deadline, **_):
        left.append(deadline.remaining())
        raise TrimmedError("gone")

    monkeypatch.setattr(SimulationFeed, "survey", survey)
    with pytest.raises(TrimmedError):
        planner.advance(consumer.at, None, consumer.deadline)
    assert 5 < left[0] <= 10


def test_who_has_answered_is_not_asked_again_because_another_was_lost():
    requests = []
    for lost in (False, True):
        sim = Simulation(2)
        consumer = Consumer(sim, heads="none", on_expired=SkipToOldest())
        consumer.drain()
        write(sim, 24)
        if lost:
            sim.trim("p1")
        before = consumer.provider.calls.fetches["p0"]
        consumer.planner.advance(consumer.at, None, consumer.deadline)
        requests.append(consumer.provider.calls.fetches["p0"] - before)
    assert requests[0] == requests[1] > 0


def test_who_is_lost_after_its_answer_is_asked_again(monkeypatch):
    sim = Simulation(2)
    consumer = Consumer(sim, heads="none", on_expired=SkipToOldest())
    consumer.drain()
    write(sim, 24)
    sim.trim("p1")
    plain = SimulationFeed.survey

    def late(feed, *asked, **options):
        sim.trim("p0")
        return plain(feed, *asked, **options)

    monkeypatch.setattr(SimulationFeed, "survey", late)
    write(sim, 24)
    step = consumer.planner.advance(consumer.at, 2, consumer.deadline)
    assert len(step.skipped) == 2
    assert consumer.planner.advance(step.after, 2, consumer.deadline).skipped == ()


@pytest.mark.parametrize("form", list(Listing), ids=lambda form: form.value)
@pytest.mark.parametrize("splits", [(), ("p0",), ("p1",), ("p0", "p1")], ids=str)
@pytest.mark.parametrize("when", [1, 2])
def test_a_loss_during_planning_loses_no_more(form, splits, when, monkeypatch):
    """A partition has fewer changes than its share; while others are asked for more, some are lost."""
    sim = Simulation(2, behaviour=ServiceBehaviour(listing=form))
    consumer, asked, heads = Consumer(sim, on_expired=SkipToOldest()), [], SimulationFeed.heads
    few_and_many(sim)

    def late(feed, cursors, most, deadline):
        asked.append(cursors)
        if len(asked) == when:
            for name in splits:
                sim.split(name)
            sim.trim()
        return heads(feed, cursors, most, deadline)

    monkeypatch.setattr(SimulationFeed, "heads", late)
    consumer.step(24)
    assert len(asked) >= when
    trimmed = {partition.id: partition.trimmed for partition in sim.partitions.values()}
    write(sim, 24)
    consumer.drain(24)
    consumer.check_left(trimmed, form)


def few_and_many(sim):
    """Write to two partitions: to the first at most 8 changes, to the second at least 20."""
    keys = {sim.write(f"k{number}", {"n": 0}).partition_id: f"k{number}" for number in range(8)}
    for number in range(20):
        sim.write(keys["p1"], {"n": number})


@both
def test_a_step_tells_how_many_records_it_has(heads):
    sim = Simulation(2)
    consumer = Consumer(sim, heads=heads)
    few_and_many(sim)
    step = consumer.planner.advance(consumer.at, 24, consumer.deadline)
    assert step.records == len(consumer.read(step.ranges())) == 24


@pytest.fixture
def uncounted(monkeypatch):
    """Let the service tell the ends of its partitions, but not how many changes lie before them."""
    heads = SimulationFeed.heads

    def unknown(feed, *asked):
        return {name: attrs.evolve(head, records=None) for name, head in heads(feed, *asked).items()}

    monkeypatch.setattr(SimulationFeed, "heads", unknown)


@pytest.mark.usefixtures("uncounted")
def test_records_that_nobody_counts_are_unknown():
    sim = Simulation(2)
    consumer = Consumer(sim)
    few_and_many(sim)
    step = consumer.planner.advance(consumer.at, 24, consumer.deadline)
    assert step.records is None
    assert 0 < len(consumer.read(step.ranges())) <= 24
    assert len(consumer.step(1)) == 1


@pytest.mark.usefixtures("uncounted")
def test_a_quiet_partition_uses_nothing_of_the_limit():
    sim = Simulation(2)
    consumer = Consumer(sim)
    _, late = consumer.at.to_json()["p"]
    few_and_many(sim)
    quiet, _ = consumer.planner.start(Now(), consumer.deadline).to_json()["p"]
    at = consumer.planner.restore({"p": [quiet, late]})
    step = consumer.planner.advance(at, 10, consumer.deadline)
    assert (step.records, len(consumer.read(step.ranges()))) == (None, 10)


def test_a_position_that_stays_expired_is_an_error():
    sim = Simulation()
    consumer = Consumer(sim, heads="none", on_expired=SkipToOldest())
    written = write(sim, 3)
    sim.fail_next("p0", TrimmedError("too old"), times=4)
    with pytest.raises(TrimmedError):
        consumer.step()
    assert consumer.step() == written


class Hinted:
    """A feed whose positions are a number, or unknown, and a hint."""

    @staticmethod
    def compare(one, other):
        return None if None in (one[0], other[0]) else (one[0] > other[0]) - (one[0] < other[0])

    @staticmethod
    def without_hints(cursor):
        return cursor[0]


@pytest.mark.parametrize(
    ("place", "found"),
    [([4, "a"], True), ([5, "a"], True), ([5, "b"], False), ([6, "a"], False), ([None, "a"], True)],
)
def test_a_partition_is_read_up_to_its_target(place, found):
    target = Target({"p": [5, "b"]}, frozenset({"ended"}))
    assert within(Hinted, Entry.read("p", place), target) is found
    assert within(Hinted, Entry.read("ended", place), target)
    assert not within(Hinted, Entry.read("new", place), target)
    assert within(Hinted, Entry.read("new", place), Target({}, None))
    assert within(Hinted, Entry.read("new", place), None)
