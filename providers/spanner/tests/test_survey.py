"""Tests what a survey states, and how a feed goes on after a loss: all that is left, once, in order."""

from types import SimpleNamespace

import pytest

from multiclouddb_api import (
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
from multiclouddb_spanner.position import Place, cursor_of, moment_of
from multiclouddb_spanner.survey import survey_of
from multiclouddb_spi import Deadline, FeedSpec, PartitionState, Seed

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


BEFORE = {"a": (-5, 3), "b": (3, 9), "c": (9, 200)}
UNWATCHED = {"a": at(-4), "b": at(-4), "c": at(-4)}
# For each case: the partitions with their lifetimes, the asked positions, the refused ones, the oldest places
# of the present ones, the gone ones, the heirs, and the partitions about which the service is asked. The last
# word says that the table was not watched before the oldest time.
FACTS = {
    "alive at the oldest time: moves there": (
        {"a": (-5, 3), "b": (3, 200)}, {"a": at(-4)}, {"a"}, {"a": CUT, "b": None}, (), None, (), False,
    ),
    "ended before: all begin at the oldest time": (
        {"a": (-5, -1), "b": (-1, 200), "c": (-100, 1), "d": (1, 200)},
        {"a": at(-4), "c": at(50), "d": at(60)}, {"a"},
        {"b": None, "c": CUT, "d": at(60)}, ("a",), ("b", "c"), (), False,
    ),
    # It may have changes of the oldest time; the heirs begin after them.
    "ended at the oldest time": (
        {"a": (-5, 0), "b": (0, 200)}, {"a": at(-4)}, {"a"}, {"b": CUT}, ("a",), ("b",), (), False,
    ),
    "began later: stays": (
        BEFORE, {"b": at(4), "c": at(9)}, {"b"}, {"b": at(4), "c": at(9)}, (), None, (), False,
    ),
    "no position, alive then": (BEFORE, {"a": None}, (), {"a": CUT, "c": None}, (), None, (), False),
    "no position, began later": (BEFORE, {"b": None}, (), {"b": at(3), "c": None}, (), None, ("b",), False),
    "no position, alive now": (BEFORE, {"c": None}, (), {"c": None}, (), None, (), False),
    "no position, gone": (
        {"a": (-5, -1), "b": (-1, 200)}, {"a": None}, (), {"b": None}, ("a",), ("b",), ("a",), False,
    ),
    "no position, ended at the oldest time": (
        {"a": (-5, 0), "b": (0, 200)}, {"a": None}, (), {"a": at(0), "b": None}, (), None, ("a",), False,
    ),
    "of another stream": (
        {"b": (-1, 200)}, {"other": None}, (), {"b": None}, (), None, ("other",), False,
    ),
    "unwatched: only the refused one moves": (
        {"a": (-5, 200), "b": (-9, 200), "c": (-9, -2)}, UNWATCHED, {"a"}, {"a": CUT, "b": None, "c": None},
        (), None, (), True,
    ),
    "unwatched and ended: all move": (
        {"a": (-5, -1), "b": (-9, 200), "c": (-9, -2)}, UNWATCHED, {"a"}, {"b": CUT},
        ("a", "c"), ("b",), (), True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FACTS.values(), ids=FACTS)
def test_what_a_survey_states_and_asks(case):
    lives, asked, refused, places, gone, heirs, calls, unwatched = case
    source = FakeSource(**lives)
    source.resume_at = ORIGIN if unwatched else 0
    survey = state(source, asked, refused)
    # A partition that was alive then is an heir, so its own place does not matter.
    told = {name: place for name, place in oldest(survey).items() if name not in (heirs or ())}
    assert told == {name: place for name, place in places.items() if name not in (heirs or ())}
    assert survey.gone == dict.fromkeys(gone)
    assert survey.heirs == (None if heirs is None else tuple(Seed(name, (), CUT) for name in heirs))
    assert source.asked == list(calls)


def test_states_say_what_is_alive_and_older_changes_are_not_wanted():
    source = FakeSource(a=(-5, 3), b=(3, 200))
    assert {each.partition_id: each.state for each in state(source, {"a": at(-4)}, {"a"}).present} == {
        "a": PartitionState.CLOSED, "b": PartitionState.OPEN
    }  # fmt: skip
    source = FakeSource(a=(-5, -1), b=(-1, 200))
    assert state(source, {"a": at(-4)}, since=ORIGIN + 30).heirs == (Seed("b", (), at(0, 30)),)


def test_surveys_take_few_queries():
    with feed(initial_partitions=60) as items, Opened(items) as opened:
        items.server.journal.clear()
        survey = opened.feed.survey({}, opened.soon())
        assert [each.partition_id for each in survey.present] == items.open_partitions()
        assert {each.state for each in survey.present} == {PartitionState.OPEN}
        assert len(items.server.journal.queries()) == 1
        seeds = opened.starts(Now())
        for token in items.open_partitions():
            items.server.move(token)
        items.server.advance(2 * DAY)
        items.server.journal.clear()
        survey = opened.feed.survey(seeds, opened.soon(), expired=seeds.keys())
        assert survey.gone.keys() == seeds.keys()
        assert sorted(seed.partition_id for seed in survey.heirs) == sorted(items.open_partitions())
        assert len(items.server.journal.queries()) <= 4
        since = items.server.now()
        survey = opened.feed.survey(seeds, opened.soon(), expired=seeds.keys(), since=since)
        assert {moment_of(opened.feed.moment(seed.cursor)) for seed in survey.heirs} == {since}


def test_now_begins_in_the_microsecond_after_the_service_s_time():
    """A change that is acknowledged may have been committed in the microsecond that the service names."""
    source = FakeSource(p=(-5, 200))
    source.client = SimpleNamespace(name="d", now=lambda scope: NOW)
    source.info = SimpleNamespace(stream="s", key_digest=lambda: "", left_out=())
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
        pages = list(items.pages(token, size, on_expired=SkipToOldest()))
        events = [event for page in pages for event in page.events]
        assert sorted(numbers(events)) == list(range(200, 230))
        once(events, 30)
        in_order(events)
        assert any(isinstance(notice, Gap) for page in pages for notice in page.notices)
