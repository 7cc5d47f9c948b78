"""Tests what a survey states, and how a feed goes on after a loss: all that is left, once, in order."""

import random
from types import SimpleNamespace

import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    Gap,
    MulticloudDbError,
    Now,
    PhysicalPartition,
    SkipToOldest,
)
from multiclouddb_spanner.client import CancelScope
from multiclouddb_spanner.feed import SpannerFeed
from multiclouddb_spanner.partitions import survey_of
from multiclouddb_spanner.position import Place, cursor_of
from multiclouddb_spi import Deadline, FeedSpec, PartitionState, Planner, Seed, read_range

from .fake import ADDRESS, ORIGIN
from .feeds import DAY, Opened, feed, in_order, numbers, once

NOW = ORIGIN + 100
CUT = cursor_of(Place.at(ORIGIN, ORIGIN + 1))


def at(time, since=0):
    return cursor_of(Place.at(ORIGIN + time, since and ORIGIN + since))


class FakeSource:
    """A source of partitions with given lifetimes. The oldest readable time is ORIGIN."""

    resume_at = 0

    def __init__(self, **lives):
        self.lives = {name: (ORIGIN + begin, ORIGIN + end) for name, (begin, end) in lives.items()}
        self.asked = []

    def oldest(self, now, scope):
        return ORIGIN, self.partitions(ORIGIN, scope)

    def partitions(self, time, scope):
        return [name for name, (begin, end) in self.lives.items() if begin <= time < end]

    def interval(self, name, now, scope):
        self.asked.append(name)
        return self.lives.get(name)


def state(source, asked, expired=(), since=0):
    return survey_of(source, asked, frozenset(expired), NOW, since, CancelScope(Deadline.after(5)))


def oldest(survey):
    return {each.partition_id: each.oldest for each in survey.present}


class TestFacts:
    """Tests what is stated about each partition, and that it takes no call for each partition."""

    def test_one_that_was_alive_at_the_oldest_time_moves_there(self):
        source = FakeSource(a=(-5, 3), b=(3, 200))
        survey = state(source, {"a": at(-4)}, ["a"])
        assert oldest(survey) == {"a": CUT, "b": None}
        assert {each.partition_id: each.state for each in survey.present} == {
            "a": PartitionState.CLOSED, "b": PartitionState.OPEN
        }  # fmt: skip
        assert survey.gone == {}
        assert survey.heirs is None
        assert source.asked == []

    @pytest.mark.parametrize("end", [-1, 0])
    def test_for_one_that_ended_before_all_begin_at_the_oldest_time(self, end):
        """A partition that ends at the oldest time may have changes of it; the heirs begin after them."""
        source = FakeSource(a=(-5, end), b=(end, 200), c=(-100, 1), d=(1, 200))
        survey = state(source, {"a": at(-4), "c": at(50), "d": at(60)}, ["a"])
        assert survey.gone == {"a": None}
        assert survey.heirs == (Seed("b", (), CUT), Seed("c", (), CUT))
        assert source.asked == []

    def test_one_that_began_later_is_left_where_it_is(self):
        source = FakeSource(a=(-5, 3), b=(3, 9), c=(9, 200))
        survey = state(source, {"b": at(4), "c": at(9)}, ["b"])
        assert oldest(survey) == {"b": at(4), "c": at(9)}
        assert survey.heirs is None
        assert source.asked == []

    @pytest.mark.parametrize(
        ("name", "place"),
        [("a", CUT), ("b", at(3)), ("c", None)],
        ids=["alive then", "began later", "alive now"],
    )
    def test_without_a_position_only_an_unknown_one_is_asked_about(self, name, place):
        source = FakeSource(a=(-5, 3), b=(3, 9), c=(9, 200))
        survey = state(source, {name: None})
        assert oldest(survey)[name] == place
        assert survey.gone == {}
        assert source.asked == (["b"] if name == "b" else [])

    def test_without_a_position_one_can_be_gone(self):
        source = FakeSource(a=(-5, -1), b=(-1, 200))
        assert state(source, {"a": None}).gone == {"a": None}

    def test_a_partition_of_another_stream_is_not_known(self):
        survey = state(FakeSource(b=(-1, 200)), {"other": None})
        assert survey.gone == {}
        assert oldest(survey) == {"b": None}

    def test_what_is_older_than_the_start_is_not_wanted(self):
        source = FakeSource(a=(-5, -1), b=(-1, 200))
        survey = state(source, {"a": at(-4)}, since=ORIGIN + 30)
        assert survey.heirs == (Seed("b", (), at(0, 30)),)

    def test_a_position_at_which_the_table_was_not_watched_moves_alone(self):
        source = FakeSource(a=(-5, 200), b=(-9, 200), c=(-9, -2))
        source.resume_at = ORIGIN
        survey = state(source, {"a": at(-4), "b": at(-4), "c": at(-4)}, ["a"])
        assert oldest(survey) == {"a": CUT, "b": None, "c": None}
        assert survey.gone == {}

    def test_if_such_a_partition_has_ended_all_move(self):
        source = FakeSource(a=(-5, -1), b=(-9, 200), c=(-9, -2))
        source.resume_at = ORIGIN
        survey = state(source, {"a": at(-4), "b": at(-4), "c": at(-4)}, ["a"])
        assert survey.gone == {"a": None, "c": None}
        assert survey.heirs == (Seed("b", (), CUT),)


class TestCalls:
    @pytest.mark.parametrize("horizon", [True, False])
    def test_a_survey_of_many_lost_partitions_takes_few_queries(self, horizon):
        with feed(initial_partitions=60, names_horizon=True) as items, Opened(items) as opened:
            seeds = opened.starts(Now())
            for token in items.open_partitions():
                items.server.move(token)
            items.server.advance(2 * DAY)
            items.server.journal.clear()
            survey = opened.feed.survey(seeds, opened.soon(), expired=seeds.keys())
            assert survey.gone.keys() == seeds.keys()
            assert sorted(seed.partition_id for seed in survey.heirs) == sorted(items.open_partitions())
            assert len(items.server.journal.queries()) <= 4

    def test_a_listing_takes_one(self):
        with feed(initial_partitions=5) as items, Opened(items) as opened:
            items.server.journal.clear()
            survey = opened.feed.survey({}, opened.soon())
            assert [each.partition_id for each in survey.present] == items.open_partitions()
            assert {each.state for each in survey.present} == {PartitionState.OPEN}
            assert len(items.server.journal.queries()) == 1


def test_now_begins_in_the_microsecond_after_the_service_s_time():
    """A change that is acknowledged may have been committed in the microsecond that the service names."""
    source = FakeSource(p=(-5, 200))
    source.client = SimpleNamespace(name="d", now=lambda scope: NOW)
    source.info = SimpleNamespace(stream="s")
    made = SpannerFeed(source, FeedSpec(ADDRESS))
    (seed,) = made.start(Now(), None, Deadline.after(5))
    assert made.moment(seed.cursor) == NOW + 1


def test_the_moment_of_a_position_is_the_earliest_commit_time_after_it():
    with feed() as items, Opened(items) as opened:
        assert opened.feed.moment(at(3)) == ORIGIN + 3
        assert opened.feed.moment(at(3, 8)) == ORIGIN + 8
        assert not opened.feed.names_late


# -- After a loss


def outage(items):
    """Reshape all partitions twice, and write into each of them, during an outage of two days."""
    for token in items.open_partitions():
        items.server.split(token)
    items.fill(20, start=100)
    items.server.advance(2 * DAY)
    items.server.merge(*items.open_partitions()[:2])


@pytest.mark.parametrize("skips", [False, True], ids=["fail", "skip"])
def test_workers_with_descendants_do_not_read_what_belongs_to_others(skips):
    with feed(initial_partitions=2) as items:
        request = ChangeFeedRequest(items.address, Now())
        parts = items.client.plan_partitions(request, with_descendants=True)
        outage(items)
        items.fill(16, start=200)
        settings = {"on_expired": SkipToOldest()} if skips else {}
        for name, token in parts:
            with pytest.raises(MulticloudDbError) as caught:
                items.drain(token, scope=PhysicalPartition(name, with_descendants=True), **settings)
            assert caught.value.category == ErrorCategory.CHECKPOINT_EXPIRED


@pytest.mark.parametrize(("ahead", "size"), [(False, 1), (True, 0)], ids=["all behind", "one ahead"])
def test_a_feed_that_skips_reads_all_that_is_left_once_and_becomes_idle(size, ahead):
    with feed(initial_partitions=3) as items:
        token = items.token()
        items.fill(5)
        if ahead:  # some partitions are ahead of others when the outage begins
            token = items.page(token, 1).continuation_token
        outage(items)
        items.restart()  # without the changes that the client has fetched ahead
        items.fill(30, start=200)
        events, notices = [], []
        for _ in range(300):
            page = items.page(token, size, on_expired=SkipToOldest())
            events += page.events
            notices += page.notices
            token = page.continuation_token
            if page.idle:
                break
        else:
            pytest.fail("never idle")
        assert sorted(numbers(events)) == list(range(200, 230))
        once(events, 30)
        in_order(events)
        assert any(isinstance(notice, Gap) for notice in notices)


@pytest.mark.parametrize("seed", [0, 1])
def test_no_planned_batch_brings_a_child_before_its_parent_after_a_loss(seed):
    plan(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 200))
def test_no_planned_batch_brings_a_child_too_early_in_many_histories(seed):
    plan(seed)


def plan(seed):
    """Reshapes, writes and outages in random order; each step's ranges are read in any order."""
    dice = random.Random(seed)
    with feed(initial_partitions=3) as items, Opened(items) as opened:
        planner = Planner(opened.provider, opened.feed, SkipToOldest())
        lineage, last, written = planner.start(Beginning(), opened.soon()), {}, 0
        kept = 0
        for turn in range(40):
            match dice.choice(
                ("write", "write", "write", "split", "merge", "move", "step", "step", "outage")
            ):
                case "write":
                    items.put(*[(f"k{key}", written + n) for n, key in enumerate(dice.sample(range(8), 4))])
                    written += 4
                case "split" if len(items.open_partitions()) < 6:
                    items.server.split(dice.choice(items.open_partitions()))
                case "merge" if len(items.open_partitions()) > 1:
                    items.server.merge(*dice.sample(items.open_partitions(), 2))
                case "move":
                    items.server.move(dice.choice(items.open_partitions()))
                case "outage" if turn < 30:
                    items.server.advance(dice.choice((0.6, 1.2)) * DAY)
                case "step":
                    lineage = advanced(planner, opened, lineage, dice, last)
                case _:
                    pass
        kept = written
        items.put(*[(f"k{key}", written + key) for key in range(8)])
        for _ in range(200):
            before = lineage
            lineage = advanced(planner, opened, lineage, dice, last)
            if lineage.stands_like(before) or set(last.values()) >= set(range(kept, kept + 8)):
                break
        assert last == {f"k{key}": kept + key for key in range(8)}


def advanced(planner, opened, lineage, dice, last):
    """Plan one step and read it; check that the changes of each key come in order."""
    step = planner.advance(lineage, 5, opened.soon())
    parts = step.ranges()
    dice.shuffle(parts)
    found = {}
    for part in parts:
        for batch in read_range(opened.provider, opened.feed, part, SkipToOldest()):
            for event in batch.events(0, len(batch)):
                found.setdefault(event.key.components["id"], []).append(event.new_item_state["n"])
    for key, came in found.items():
        assert min(came) > last.get(key, -1), f"{key}: {came} after {last[key]}"
        last[key] = max(came)
    return step.after
