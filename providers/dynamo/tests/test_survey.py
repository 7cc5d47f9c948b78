"""Tests what a survey states: the service says which shards are gone, and no listing does."""

from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from botocore.exceptions import ClientError

from multiclouddb_api import Invalidated
from multiclouddb_dynamo import shards as shards_module
from multiclouddb_dynamo.position import After, Horizon, Latest, Start, cursor_of, place_of
from multiclouddb_dynamo.shards import Shard
from multiclouddb_dynamo.survey import survey_of_listing
from multiclouddb_dynamo_emulator import Remains
from multiclouddb_spi import PartitionState

from .world import HOUR, TABLE, World, soon

NOW = 1_800_000_000
OLD = cursor_of(After("1" * 21, None))


@contextmanager
def chain(length=3, **habits):
    """Provide a world with one chain of shards, and the ids of the shards in this order."""
    with World(**habits) as world:
        names = [world.chain()]
        while len(names) < length:
            world.put("k")
            names += world.roll_over()
        world.put("k")
        yield world, names, world.feed()[1]


def places(survey):
    return {each.partition_id: each.oldest and place_of(each.oldest) for each in survey.present}


def test_children_that_a_listing_has_named_wait_for_no_rate_limit():
    """A listing for one shard names the children of others, which were withheld until calls were allowed."""
    with chain(2) as (world, (a, b), feed):
        shards = feed._source.shards
        shards.read_again(soon())
        shards._looks.credit = -100.0
        world.journal.clear()
        survey = feed.survey({a: OLD}, soon(), whole=False)
        assert [each.partition_id for each in survey.present] == [b]
        assert not survey.answered
        assert world.journal.count("DescribeStream") == 0


def test_an_audit_that_was_cut_off_goes_on_before_its_pages_are_paid_for():
    """Otherwise its listing would be too old to be continued, and a listing of many calls would never end."""
    with chain(2, shards_per_page=1) as (world, (a, _), feed):
        feed._source.shards._looks.credit = -100.0
        assert not feed.can_audit_early()
        world.troubles.fail("DescribeStream", "InternalServerError", 100)
        with pytest.raises(ClientError):
            feed.survey({a: OLD}, soon())
        world.troubles.end()
        assert feed.can_audit_early()
        feed.survey({a: OLD}, soon())
        assert not feed.can_audit_early()


class TestWhole:
    def test_a_listing_names_all_shards_and_asks_about_none(self):
        with chain() as (world, (a, b, c), feed):
            world.script.drop_shards([a])
            survey = feed.survey({}, soon())
            assert [(each.partition_id, each.parents, each.state) for each in survey.present] == [
                (b, (a,), PartitionState.CLOSED),
                (c, (b,), PartitionState.OPEN),
            ]
            assert survey.gone == {}
            assert world.journal.count("GetShardIterator") == 0

    @pytest.mark.parametrize("expired", [False, True])
    def test_only_the_service_says_that_a_shard_is_gone(self, expired):
        with chain() as (world, (a, b, c), feed):
            world.script.hide(b, seconds=HOUR)
            survey = feed.survey({a: OLD}, soon(), expired={a} if expired else ())
            assert survey.gone == {}
            world.script.drop_shards([a])
            survey = feed.survey({a: OLD}, soon(), expired={a} if expired else ())
            assert survey.gone == {a: None}
            assert [each.partition_id for each in survey.present] == [c]

    def test_every_refused_position_that_can_be_read_gets_a_place(self):
        with chain() as (world, (a, b, c), feed):
            survey = feed.survey(dict.fromkeys((a, b, c), OLD), soon(), expired={a, b, c})
            assert None not in places(survey).values()
            world.script.hide(b, seconds=HOUR)
            survey = feed.survey({b: OLD}, soon(), expired={b})
            assert survey.gone == {}
            assert isinstance(places(survey)[b], Horizon)  # it is only not listed

    def test_what_is_gone_is_asked_once_in_a_process(self):
        with chain(6) as (world, names, feed):
            world.script.drop_shards(names[:4])
            for _ in range(3):
                survey = feed.survey(dict.fromkeys(names[:4], OLD), soon(), expired={names[0]})
                assert survey.gone == dict.fromkeys(names[:4])
            assert world.journal.count("GetShardIterator") == 4

    def test_parents_are_not_asked_about_while_every_refused_shard_exists(self):
        with World(shards=5) as world:
            world.roll_over()
            world.script.drop_oldest(TABLE, 5)
            feed, (mine, *_) = world.feed()[1], world.open()
            feed.survey({mine: OLD}, soon(), expired={mine})
            assert world.journal.count("GetShardIterator") == 0

    def test_one_call_lists_once(self):
        with chain() as (world, (a, b, c), feed):
            call = feed.for_one_call()
            for asked in ({a: OLD}, {a: OLD, b: OLD}, {c: OLD}):
                call.survey(asked, soon(), expired=asked.keys())
            assert world.journal.count("DescribeStream") == 1
            feed.for_one_call().survey({a: OLD}, soon())
            assert world.journal.count("DescribeStream") == 2

    @pytest.mark.parametrize(("asks", "old", "calls"), [(False, 300.0, 4), (True, 0.0, 4), (True, 300.0, 2)])
    def test_only_a_young_listing_is_continued(self, monkeypatch, asks, old, calls):
        """A call that only wants a listing does not continue an earlier one."""
        monkeypatch.setattr(shards_module, "_OLD_SECONDS", old)
        with World(shards=4, shards_per_page=1) as world:
            feed, asked = world.feed()[1], {world.open()[0]: OLD}
            world.troubles.fail("DescribeStream", "AccessDeniedException", 1, every=3)
            with pytest.raises(Exception, match="AccessDenied"):
                feed.survey(asked, soon())
            world.journal.clear()
            feed.survey(asked if asks else {}, soon())
            assert world.journal.count("DescribeStream") == calls

    @pytest.mark.parametrize("remains", [Remains.LISTED, Remains.VANISHED])
    def test_without_a_clock_listed_shards_that_cannot_be_read_are_gone(self, remains):
        """DynamoDB Local lists such shards for ever, and its answers contain no time."""
        with chain(4, tells_time=False, remains=remains, retention_seconds=HOUR) as (world, names, feed):
            a, b, c, d = names
            assert world.chain() == d
            world.script.advance(2 * HOUR)
            world.put("k")
            survey = feed.survey({b: OLD}, soon(), expired={b})
            assert survey.gone == {a: (), b: (a,), c: (b,)}
            assert places(survey) == {d: Start(None)}


class TestChildren:
    def test_only_children_are_asked_for(self):
        with chain() as (_world, (a, b, c), feed):
            feed.survey({}, soon())
            end = cursor_of(After("2" * 21, NOW))
            survey = feed.survey({a: end, b: end}, soon(), whole=False)
            assert {each.partition_id: each.parents for each in survey.present} == {b: (a,), c: (b,)}
            assert places(survey)[b] == Start(NOW)
            assert set(survey.answered) == {a, b}
            assert survey.gone == survey.final == {}

    def test_after_a_lost_shard_they_begin_at_their_oldest_record(self):
        with chain() as (_world, (a, b, _c), feed):
            assert isinstance(places(feed.survey({a: None}, soon(), whole=False))[b], Horizon)

    @pytest.mark.parametrize("gone", [False, True])
    def test_a_shard_without_children_is_gone_only_if_the_service_refuses_it(self, gone):
        with chain() as (world, (a, b, c), feed):
            for name in (b, c):
                world.script.hide(name, seconds=HOUR)
            world.script.drop_shards([a, b] if gone else [])
            survey = feed.survey({b: OLD}, soon(), whole=False)
            assert (survey.gone, survey.final) == ({b: None} if gone else {}, {})
            assert set(survey.answered) == {b}

    def test_those_that_the_rate_limit_leaves_out_are_not_answered(self):
        with chain() as (world, (_a, b, c), feed):
            world.script.hide(c, seconds=HOUR)
            answered = [set(feed.survey({b: OLD}, soon(), whole=False).answered) for _ in range(20)]
            assert answered[0] == {b}
            assert set() in answered

    def test_nothing_follows_in_a_stream_that_was_disabled(self, monkeypatch):
        monkeypatch.setattr(shards_module, "_SETTLED_SECONDS", 0.0)
        with chain() as (world, (_a, b, c), feed):
            world.enable(False)
            for _ in range(2):
                feed.survey({}, soon())
            survey = feed.survey({b: OLD, c: OLD}, soon(), whole=False)
            assert {name: type(notice) for name, notice in survey.final.items()} == {c: Invalidated}


def listed(name, parent=None, *, last=None, seen=NOW):
    return Shard(name, parent, last, "1", seen)


class Refusing:
    """Stands for the source of a feed and for its shards; knows which shards are gone and which trimmed."""

    settled = False

    def __init__(self, gone=(), trimmed=()):
        self.shards, self._gone, self._trimmed, self.asked = self, set(gone), set(trimmed), []

    def seconds(self):
        return NOW

    def gone(self, names, deadline):
        return self._gone & set(names)

    def trimmed(self, shards, deadline):
        self.asked += [shard.shard_id for shard in shards]
        return self._trimmed & {shard.shard_id for shard in shards}


CHAIN = {
    "a": listed("a", "z", last="2"), "b": listed("b", "a", last="2"), "c": listed("c", "b", last="2"),
    "d": listed("d", "c", last="2"), "e": listed("e", "d"), "r": listed("r", last="2"),
}  # fmt: skip


class TestStart:
    """Tests where a shard begins that nobody has read: every wanted change is read, and a loss is told."""

    def places(self, source, asked=("x",), since=None, shards=CHAIN):
        survey = survey_of_listing(source, shards, dict.fromkeys(asked), (), since, soon())
        return {name: place for name, place in places(survey).items() if place is not None}

    def test_it_is_the_life_of_one_shard_for_each_generation(self):
        source = Refusing(gone={"x"})
        assert self.places(source, shards={name: CHAIN[name] for name in "cde"}) == {
            "c": Start(NOW - 18 * HOUR), "d": Start(NOW - 12 * HOUR), "e": Start(NOW - 6 * HOUR)
        }  # fmt: skip
        assert source.asked == []

    @pytest.mark.parametrize("parent", [None, "r"])
    @pytest.mark.parametrize("trimmed", [False, True])
    def test_what_was_trimmed_has_expired_if_no_parent_shows_it(self, parent, trimmed):
        shards = {**CHAIN, "a": listed("a", parent, last="2"), "q": listed("q", "r")}  # `r` was read
        source = Refusing(gone={"x"}, trimmed={"a"} if trimmed else ())
        found = self.places(source, asked=("x", "q"), shards=shards)
        assert source.asked == ["a"]
        assert found["a"] == (Start(0) if trimmed else Start(NOW - 23 * HOUR))

    def test_a_parent_that_is_gone_shows_it(self):
        source = Refusing(gone={"x", "z"}, trimmed={"a"})
        assert self.places(source)["a"] == Horizon(NOW)
        assert source.asked == []

    def test_only_a_start_that_may_be_younger_than_a_shard_is_a_bound(self):
        found = self.places(Refusing(gone={"z"}), since=NOW - 48 * HOUR)
        assert not [place for place in found.values() if isinstance(place, Latest)]
        source = Refusing(gone={"z"}, trimmed={"a"})
        assert set(self.places(source, since=NOW - 60).values()) == {Latest(NOW - 60)}
        assert source.asked == []

    def test_what_descends_from_an_asked_shard_or_is_above_one_has_no_start(self):
        source = Refusing()
        assert self.places(source, asked=("c",)).keys() == {"c"}
        assert source.asked == []

    def test_the_youngest_descendant_decides(self):
        shards = {**CHAIN, "f": listed("f", "a")}
        assert self.places(Refusing(gone={"z"}), shards=shards)["a"] == Start(NOW - 12 * HOUR)

    @pytest.mark.parametrize(("seen", "start"), [(HOUR, 0), (None, None)])
    def test_a_time_before_1970_or_of_no_service_is_not_a_time(self, seen, start):
        assert self.places(Refusing(), shards={"e": listed("e", seen=seen)}) == {"e": Start(start)}


def test_the_times_are_those_of_the_service():
    with World() as world:
        feed = world.feed()[1]
        survey = feed.survey({"shardId-0" + "0" * 30: None}, soon(), since=datetime.now(UTC))
        assert [type(place) for place in places(survey).values()] == [Latest]
