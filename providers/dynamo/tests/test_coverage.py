"""Tests audits of coverage, the cost of searching for children, and parents that no longer exist."""

import math
from datetime import UTC, datetime

import pytest

from multiclouddb_api import Beginning, FeedEnded, Now, OperationOptions, PartitionFoundLate
from multiclouddb_dynamo import shards as rooms
from multiclouddb_dynamo.partitions import headroom
from multiclouddb_dynamo.position import After, Horizon, Latest, Start, cursor_of
from multiclouddb_dynamo.shards import ShardMap
from multiclouddb_spi import Deadline, ProviderFault
from multiclouddb_spi.continuation.entry import Entry
from multiclouddb_spi.continuation.lineage import Lineage

from .world import TABLE, World, soon

HOUR = 3600
NOW = 1_800_000_000

pytestmark = pytest.mark.usefixtures("hasty_readers")


class TestAudit:
    """Tests audits that find partitions that were not found by watching splits."""

    @pytest.mark.parametrize(("start", "restart"), [(Beginning(), False), (Now(), True)])
    def test_it_finds_what_a_watch_has_missed(self, world, start, restart):
        """The watch of a split ends before one half is listed."""
        world.settings |= {"child_watch_seconds": 0.0, "coverage_audit_seconds": 0.5}
        consumer = world.consumer(start)
        consumer.read()
        consumer.until_found(world.put("a"))
        first, late = world.script.split(world.chain())
        world.script.hide(late, seconds=HOUR)
        consumer.until_found(world.put_in(first))
        while consumer.read(OperationOptions(wait_seconds=0.05)).diagnostics.open_watches:
            pass
        lost = world.put_in(late, 10)
        if restart:
            consumer.restart()
        world.script.hide(late)
        consumer.until_found(lost)
        found = [notice for notice in consumer.notices if isinstance(notice, PartitionFoundLate)]
        assert [notice.partition_id.rpartition(":")[2] for notice in found] == [late]
        assert sorted(consumer.markers) == sorted(set(consumer.markers))

    def test_it_goes_on_where_an_earlier_one_was_cut_off(self):
        with World(shards=30, shards_per_page=1) as world:
            _, feed = world.feed()
            found, tries = None, 0
            while found is None:
                tries += 1
                try:
                    found = missing(feed.for_one_call(), world.open(), Deadline.after(1.2))
                except ProviderFault:  # at ten calls per second
                    assert tries < 10
            assert found == []
            assert tries > 1
            assert world.journal.count("DescribeStream") == 30

    def test_it_asks_about_no_parent_when_nothing_is_missed(self):
        with World(shards=5) as world:
            world.roll_over()
            world.script.drop_oldest(TABLE, 5)
            _, feed = world.feed()
            assert missing(feed, world.open()) == []
            assert world.journal.count("GetShardIterator") == 0
            *rest, missed = world.open()
            for _ in range(2):
                assert missing(feed, rest) == [missed]
                assert world.journal.count("GetShardIterator") == 1


def missing(feed, names, deadline=None):
    """Return the shards that a search finds in addition to `names`."""
    cursor = cursor_of(After("1" * 21, None))
    survey = feed.survey(dict.fromkeys(names, cursor), deadline or soon())
    lineage = Lineage([Entry.read(name, cursor) for name in names], feed)
    return [seed.partition_id for seed in lineage.found(survey)[0]]


@pytest.mark.parametrize(
    ("place", "seconds"),
    [
        (After("1", NOW - HOUR), 23 * HOUR),
        (Start(NOW - 25 * HOUR), 0),
        (Latest(NOW), 24 * HOUR - 120),
        (Horizon(NOW), None),
        (After("1", None), None),
    ],
)
def test_headroom(place, seconds):
    assert headroom(place, datetime.fromtimestamp(NOW, UTC)) == seconds


class Service:
    """A stream whose clock the test moves. It lists the test's shards, a hundred on each page."""

    status = "ENABLED"

    def __init__(self, shards):
        self.clock, self.calls, self.shards = 0.0, [], shards

    def monotonic(self):
        return self.clock

    def now(self):
        return datetime.fromtimestamp(NOW + self.clock, UTC)

    def is_passing(self, error, *, at_once=False):
        return False

    def describe_stream(self, arn, deadline, *, after=None, parent=None):
        self.calls.append(self.clock)
        self.clock += 0.1
        found = [each for each in self.shards if parent is None or each.get("ParentShardId") == parent]
        begin = 0 if after is None else next(i for i, s in enumerate(found) if s["ShardId"] == after) + 1
        page = found[begin : begin + 100]
        more = {"LastEvaluatedShardId": page[-1]["ShardId"]} if len(found) > begin + 100 else {}
        return {"StreamStatus": self.status, "Shards": page, **more}

    def count(self, seconds):
        return sum(at < seconds for at in self.calls)


def entry(name, parent=None, *, closed=False):
    numbers = {"StartingSequenceNumber": "1"} | ({"EndingSequenceNumber": "2"} if closed else {})
    return {"ShardId": name, "SequenceNumberRange": numbers} | ({"ParentShardId": parent} if parent else {})


@pytest.fixture
def served(monkeypatch):
    def make(*shards):
        service = Service(shards)
        monkeypatch.setattr(rooms, "time", service)
        return service, ShardMap(service, "arn")

    return make


class TestCost:
    """Tests the cost of looking for children: a stream allows ten DescribeStream calls per second."""

    def test_a_shard_without_children(self, served):
        service, shards = served(entry("p", closed=True))
        while service.clock < 600:
            shards.discover(["p"], soon())
            service.clock += 0.02
        assert service.count(1) >= 3
        assert service.count(10) <= 8
        assert service.count(60) <= 15
        assert service.count(600) <= 80

    def test_a_thousand_shards_that_are_rolled_over_at_once(self, served):
        parents = [f"p{number}" for number in range(1000)]
        ended = [entry(name, closed=True) for name in parents]
        service, shards = served(*ended, *(entry(f"c{name}", name) for name in parents))
        looks, looked = dict.fromkeys(parents, 0), dict.fromkeys(parents, -math.inf)
        answered = {}
        while service.clock < 600:
            # As in the engine, each pause is as long as all pauses before it.
            due = [name for name in parents if service.clock - looked[name] >= 0.1 * 2 ** looks[name]]
            for name in shards.discover(due, soon()) if due else ():
                answered.setdefault(name, service.clock)
                looks[name], looked[name] = looks[name] + 1, service.clock
            service.clock += 0.1
        assert len(answered) == 1000
        assert max(answered.values()) < 3
        assert service.count(60) <= 40
        assert service.count(600) <= 0.45 * 600 + 20

    def test_a_new_end_is_looked_for_at_once_whatever_was_asked_before(self, served):
        service, shards = served(entry("p", closed=True), entry("q", closed=True), entry("c", "q"))
        while service.clock < 100:
            shards.discover(["p"], soon())
            service.clock += 0.02
        assert {shard.shard_id for shard in shards.discover(["p", "q"], soon())["q"]} == {"c"}

    def test_a_list_that_takes_long_goes_on_with_the_next_call(self, served):
        parents = [entry(f"p{number}", closed=True) for number in range(10_000)]
        service, shards = served(*parents, entry("c", "p1"))
        calls = 0
        while not (found := shards.discover(["p1"], soon())):
            calls += 1
            assert calls < 10
        assert calls
        assert len(service.calls) == 101
        assert {shard.shard_id for shard in found["p1"]} == {"c"}

    def test_no_end_is_told_by_listings_that_follow_each_other_closely(self, served):
        service, shards = served(entry("p", closed=True))
        service.status = "DISABLED"
        while not shards.has_settled():
            shards.discover(["p"], soon())
            service.clock += 0.02
        assert service.calls[-1] - service.calls[0] >= 5
        assert service.clock < 10


def test_a_parent_that_is_only_hidden_is_waited_for(world):
    consumer = world.consumer()
    consumer.until_found(world.put("a"))
    parent = world.chain()
    for name in (parent, *world.roll_over()):
        world.script.hide(name, seconds=HOUR)
    consumer.restart()
    for _ in range(10):
        assert not consumer.read().idle
    world.script.advance(HOUR)
    consumer.until_found(world.put("b"))
    assert consumer.notices == []


def test_a_half_of_a_disabled_stream_that_is_listed_late_is_read_before_the_feed_ends(world, monkeypatch):
    monkeypatch.setattr(rooms, "_SETTLED_SECONDS", 0.0)
    world.settings["child_watch_seconds"] = 1.0
    consumer = world.consumer()
    consumer.until_found(world.put("a"))
    first, late = world.script.split(world.chain())
    early, lost = world.put_in(first), world.put_in(late)
    world.script.hide(late, seconds=90)
    world.server.client().update_table(TableName=TABLE, StreamSpecification={"StreamEnabled": False})
    consumer.until_found(early)
    assert consumer.until_idle() == []
    assert FeedEnded not in {type(notice) for notice in consumer.notices}
    world.script.advance(90)
    consumer.until_found(lost)
    while not consumer.notices:
        consumer.read()
    assert {type(notice) for notice in consumer.notices} == {FeedEnded}
