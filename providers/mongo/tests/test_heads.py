"""Tests planned bounded reads on real servers: their cost and their end. No change may be lost."""

import itertools
import time
from contextlib import ExitStack, closing
from unittest import mock

import attrs
import pytest
from pymongo import WriteConcern

from multiclouddb_api import (
    AtTime,
    Beginning,
    ClientConfig,
    EntireDatabase,
    ErrorCategory,
    MulticloudDbError,
    Now,
    ResourceAddress,
    SkipToOldest,
)
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_mongo import MongoOptions
from multiclouddb_mongo.position import After, cursor_of, place_of, start_of, ticks_at
from multiclouddb_mongo.provider import PLUGIN
from multiclouddb_mongo.reader import MongoReader
from multiclouddb_mongo.source import ReaderContext
from multiclouddb_spi import (
    Continue,
    Deadline,
    Ended,
    FeedSpec,
    Follows,
    Head,
    Planner,
    ProviderFault,
    Range,
    read_range,
)
from multiclouddb_spi.planning import ranges

from .monitor import deaf, in_scope, keys, listening

FOLLOW = MongoOptions(after_invalidate="follow")
MANY = 300


def soon():
    return Deadline.after(60)


class World:
    """A feed as Spark uses it: one process plans it, and any process reads the ranges."""

    def __init__(self, server, database, *, options=None, scope=None, uri=None, on_expired=None):
        with listening() as self.commands:
            self.provider = PLUGIN.connect(ClientConfig("mongo", {"url": uri or server.uri()}), None)
        self.native = server.client()[database]
        asked = in_scope(scope, ResourceAddress(database, "c"))
        self.feed = self.provider.open_feed(FeedSpec(**asked, options=options or MongoOptions()), soon())
        self.planner = Planner(self.provider, self.feed, on_expired)
        self.at, self.on_expired = None, on_expired

    def start(self, position=None):
        self.at = self.planner.start(position or Now(), soon())
        return self.at.cursor("0")

    def plan(self, most=None, target=None):
        """Plan the next step; afterwards, `commands` contains the commands for it."""
        self.commands.clear()
        return self.planner.advance(self.at, most, soon(), target)

    def planned(self):
        """Plan to the end, because a step ends where an answer ended; return the ends and the ranges."""
        ends, ranges = [], []
        while (step := self.plan()).moved:
            ends += step.ends
            ranges += step.ranges()
            self.at = step.after
            if not len(self.at):
                break
        return ends, ranges

    def heads(self, cursor, most=None, deadline=None):
        self.commands.clear()
        return self.feed.heads({"0": cursor}, most, deadline or soon())

    def read(self, parts):
        batches = [
            batch for part in parts for batch in read_range(self.provider, self.feed, part, self.on_expired)
        ]
        return [key for batch in batches for key in keys(batch.events(0, len(batch)))]

    def write(self, *keys):
        self.native["c"].insert_many([{"_id": key, "text": "x" * 100} for key in keys])

    def changes_sent(self):
        """Return the number of changes that the server has sent since the last plan."""
        replies = [event.reply for event in self.commands.events("succeeded", "aggregate", "getMore")]
        cursors = [reply["cursor"] for reply in replies]
        return sum(len(cursor.get("firstBatch", cursor.get("nextBatch", ()))) for cursor in cursors)


@pytest.fixture
def make(one, database):
    one.client()[database].create_collection("c")
    made = []

    def build(**settings):
        made.append(World(one, database, **settings))
        return made[-1]

    yield build
    for world in made:
        world.provider.close()


def drop(native):
    native["c"].drop()


def rename(native):
    native["c"].rename("elsewhere")


def drop_database(native):
    native.client.drop_database(native.name)


def again(native):
    native["c"].drop()
    native.create_collection("c").insert_one({"_id": "of the next"})


def replace_by_another(native):
    native["d"].insert_one({"_id": 1})
    native["d"].rename("c", dropTarget=True)


def test_a_plan_has_one_change_sent_however_many_there_are(make):
    world = make()
    world.start()
    world.write(*range(MANY))
    step = world.plan()
    assert world.changes_sent() == 1
    assert world.commands.names("aggregate", "listCollections") == ["aggregate"] * 2 + ["listCollections"]
    world.commands.clear()
    assert world.read(step.ranges()) == list(range(MANY))
    assert world.changes_sent() == MANY


def test_a_run_to_the_present_end_has_two_sent_and_each_change_once(make):
    """The test plans like Spark's `availableNow`: a target, a step to the target, and an empty step."""
    world = make()
    world.start()
    world.write(*range(MANY))
    world.commands.clear()
    target = world.planner.target(world.at, soon())
    sent = world.changes_sent()
    world.write("later")
    step = world.plan(target=target)
    sent += world.changes_sent()
    assert step.after.cursor("0") == target.cursors["0"]
    world.commands.clear()
    assert world.read(step.ranges()) == list(range(MANY))
    assert sent == 2
    assert world.changes_sent() <= MANY + 1  # the change after the target
    world.at = step.after
    assert not world.plan(target=target).moved
    assert world.commands.names() == []


def test_a_quiet_collection_of_a_busy_cluster_is_no_step_and_one_stream(make):
    world = make()
    world.start()
    for number in range(20):
        world.native["other"].insert_one({"_id": number})
    assert not world.plan().moved
    assert (world.changes_sent(), len(world.commands.opening())) == (0, 1)
    assert world.commands.names("listCollections") == []


def test_a_pipeline_of_the_caller_decides_what_is_a_change(make):
    world = make(options=MongoOptions(pipeline=[{"$match": {"fullDocument._id": {"$gte": 40}}}]))
    cursor = world.start()
    world.write(*range(30))
    assert world.heads(cursor)["0"].records == 0
    world.write(*range(30, 60))
    (head,) = world.heads(cursor).values()
    assert (head.records, head.outcome, place_of(head.cursor).kind) == (None, Continue(), "h")
    assert world.read([Range("0", cursor, head.cursor)]) == list(range(40, 60))


@pytest.mark.parametrize(
    ("scope", "options", "most"),
    [
        (EntireDatabase(), MongoOptions(), None),
        (None, MongoOptions(allow_missing=True), None),
        (None, MongoOptions(), 7),
    ],
    ids=["a database", "a collection that need not be there", "a limit"],
)
def test_where_an_end_may_be_hidden_the_head_is_found_by_reading(make, scope, options, most):
    world = make(scope=scope, options=options)
    cursor = world.start()
    world.write(*range(10))
    assert (world.heads(cursor, most), world.commands.names()) == ({}, [])
    assert world.read(world.plan(most).ranges()) == list(range(most or 10))


@pytest.mark.parametrize("far", [0, 1, 2])
def test_a_mark_right_behind_the_start_is_left_to_reading(make, monkeypatch, far):
    """A lagging member may send no changes after the start, although changes exist before the mark."""
    world = make()
    cursor = world.start()
    begin = ticks_at(place_of(cursor))
    mark = After("h", f"82{begin + far:016X}2B0229296E04")
    late_place = After("e", f"82{begin:016X}2B0000")  # this sorts before the marks
    first = mock.MagicMock(outcome=Continue(), notices=(), **{"__len__.return_value": 1})
    first.cursor_after.return_value = cursor_of(late_place)
    monkeypatch.setattr(type(world.feed), "_peek", lambda *_: first)
    monkeypatch.setattr(ReaderContext, "head", lambda _: mark)
    assert world.heads(cursor) == (
        {"0": Head(cursor_of(mark), None, Continue(), Follows.END)} if far == 2 else {}
    )


def test_a_change_from_behind_the_end_of_the_log_is_a_head_itself(make, monkeypatch):
    """A change can be the head even if it is later than the end of the log on another member."""
    world = make()
    cursor = world.start()
    before = world.feed._source.now()
    world.write(1, 2, 3)
    monkeypatch.setattr(ReaderContext, "head", lambda _: before)
    (head,) = world.heads(cursor).values()
    assert (head.records, head.outcome) == (1, Continue())
    assert world.read([Range("0", cursor, head.cursor)]) == [1]


def test_the_time_of_the_start_is_kept_as_long_as_it_lies_ahead(make, monkeypatch):
    world = make()
    world.write(0)
    world.native["other"].insert_one({})
    cursor = world.start(Beginning())
    *_, begin = cursor
    assert begin > ticks_at(place_of(cursor))
    # Otherwise, a drop of a former collection would end a feed that continues at the beginning.
    (part,) = world.feed.survey({"0": None}, soon(), expired={"0"}).present
    assert start_of(part.oldest) >= begin
    place = After("h", f"82{begin - 1:016X}2B0229296E04")
    monkeypatch.setattr(ReaderContext, "head", lambda _: place)
    (head,) = world.heads(cursor).values()
    assert head.cursor == ["h", place.data, begin]


def test_without_a_change_by_the_deadline_the_head_is_left_to_reading(make, monkeypatch):
    world = make()
    cursor = world.start()
    nothing = world.feed.open("0", cursor).fetch(1, 1, 0.0, soon())
    more = attrs.evolve(nothing, caught_up=False)
    monkeypatch.setattr(MongoReader, "fetch", lambda *_: more)
    began = time.monotonic()
    assert world.heads(cursor, deadline=Deadline.after(0.3)) == {}
    assert time.monotonic() - began >= 0.3


class TestEnds:
    @pytest.mark.parametrize(
        ("end", "before"),
        [(drop, 0), (drop, 20), (rename, 1), (drop_database, 20), (again, 1), (replace_by_another, 0)],
    )
    def test_a_step_does_not_go_past_one(self, make, end, before):
        world = make()
        cursor = world.start()
        if before:
            world.write(*range(before))
        end(world.native)
        if not before:
            (head,) = world.heads(cursor).values()
            assert (head.records, type(head.outcome)) == (0, Ended)
        ends, ranges = world.planned()
        assert (ends, len(world.at)) == (["0"], 0)
        assert world.read(ranges) == list(range(before))

    @pytest.mark.parametrize("end", [drop, replace_by_another])
    def test_one_that_comes_after_the_plan_is_for_the_next(self, make, end):
        world = make()
        world.start()
        world.write(*range(20))
        world.at = (step := world.plan()).after
        end(world.native)
        assert world.read(step.ranges()) == list(range(20))
        assert list(world.plan().ends) == ["0"]

    def test_one_that_is_followed_is_none(self, make):
        world = make(options=FOLLOW)
        world.start()
        world.write(*range(20))
        again(world.native)
        world.write(*range(100, 120))
        ends, ranges = world.planned()
        assert ends == []
        assert world.read(ranges) == [*range(20), "of the next", *range(100, 120)]

    @pytest.mark.parametrize("on_expired", [None, SkipToOldest()], ids=["fails", "skips"])
    def test_a_step_ends_where_another_collection_was_renamed_over_the_one_that_is_followed(
        self, make, on_expired
    ):
        world = make(options=FOLLOW, on_expired=on_expired)
        world.start()
        world.write(*range(20))
        replace_by_another(world.native)
        world.write(*range(100, 120))
        step = world.plan()
        assert world.read(step.ranges()) == list(range(20))
        world.at = step.after
        if on_expired is None:
            with pytest.raises(ProviderFault, match="renamed over"):
                world.plan()
            return
        found = []
        for _ in range(5):
            world.at = (step := world.plan()).after
            found += world.read(step.ranges())
        assert found[-20:] == list(range(100, 120))

    def test_one_of_a_former_collection_is_none(self, make):
        old = make()
        moment = old.feed.clock(soon())
        old.write(*range(20))
        drop(old.native)
        old.native.create_collection("c")
        world = make()
        world.start(AtTime(moment))
        world.write(*range(100, 120))
        step = world.plan()
        assert (step.ends, world.changes_sent()) == ({}, 1)
        assert world.read(step.ranges()) == [*range(20), *range(100, 120)]

    def test_events_on_both_sides_of_a_notice_are_read(self, make):
        world = make(scope=EntireDatabase())
        world.start()
        world.write(1, 2)
        for key in (3, 4):
            drop(world.native)
            world.write(key)
        got = []
        while (step := world.plan(1)).moved:
            world.at, found = step.after, world.read(step.ranges())
            assert len(found) <= 1
            got += found
        assert got == [1, 2, 3, 4]

    def test_a_drop_of_the_database_is_seen_by_its_feed(self, make):
        world = make(scope=EntireDatabase())
        world.start()
        world.write(1, 2)
        drop_database(world.native)
        world.native.create_collection("c")
        world.write(3)
        ends, ranges = world.planned()
        assert ends == ["0"]
        assert world.read(ranges) == [1, 2]

    def test_a_collection_that_went_and_came_back_is_told_by_the_read(self, make):
        """Only reading shows that a collection was dropped and recreated; no cheap request shows it."""
        world = make()
        world.start()
        world.write(*range(20))
        rename(world.native)
        world.native["elsewhere"].rename("c")
        world.write("back")
        step = world.plan()
        with pytest.raises(
            MulticloudDbError, match=r"end of the planned range.*at an earlier time"
        ) as caught:
            world.read(step.ranges())
        assert caught.value.category == ErrorCategory.TRANSIENT_FAILURE


class TestLaggingMember:
    """Tests reading a range from a member that has not replicated the whole range yet."""

    @pytest.fixture
    def late(self, three, database, monkeypatch):
        """Provide two worlds, one of which reads a lagging member."""
        # The first world uses the whole set; the second uses a member that applies changes only after many
        # requests.
        three.wait_healthy()
        three.client()[database].create_collection("c").insert_one({"_id": "first"})
        late = next(member for member in three.members if member != three.wait_primary())
        self.wait_for(three, late, database, "first")
        whole = World(three, database)
        part = World(three, database, uri=f"mongodb://{late}/?directConnection=true")
        admin, asked = three.direct(late).admin, itertools.count(1)

        def stop():
            admin.command({"configureFailPoint": "rsSyncApplyStop", "mode": "alwaysOn"})

        def go_on(*_):
            if next(asked) == 5:
                admin.command({"configureFailPoint": "rsSyncApplyStop", "mode": "off"})
                whole.native["other"].insert_one({})
            time.sleep(0.02)

        monkeypatch.setattr(ranges, "_sleep", go_on)
        yield whole, part, stop
        admin.command({"configureFailPoint": "rsSyncApplyStop", "mode": "off"})
        whole.provider.close()
        part.provider.close()
        three.wait_healthy()

    def wait_for(self, three, member, database, key):
        wait_until(lambda: three.direct(member)[database]["c"].find_one({"_id": key}))

    def test_is_waited_for(self, late):
        whole, part, stop = late
        whole.start()
        stop()
        whole.write(*range(20))
        step = whole.plan()
        assert step.moved
        assert part.read(step.ranges()) == list(range(20))

    def test_is_not_taken_for_one_that_has_nothing_right_before_a_mark(self, late):
        whole, part, stop = late
        stop()
        # Within a second, the cluster time grows by one with each operation.
        for key in range(100):
            start = whole.start()
            whole.write(key)
            until = cursor_of(whole.feed._source.now())
            if ticks_at(place_of(until)) == ticks_at(place_of(start)) + 1:
                break
        else:
            pytest.fail("each write has a second of its own")
        assert part.read([Range("0", start, until)]) == [key]

    def test_of_a_replica_set_does_not_tell_the_head(self, three, database):
        three.wait_healthy()
        items = three.client()[database].create_collection("c", write_concern=WriteConcern(3))
        world = World(three, database, uri=three.uri(readPreference="secondary"))
        with closing(world.provider), ExitStack() as stack:
            cursor = world.start()
            items.insert_many([{"_id": number} for number in range(20)])
            wait_until(lambda: world.heads(cursor))
            for member in set(three.members) - {three.wait_primary()}:
                stack.enter_context(deaf(three.direct(member)))
            items.with_options(write_concern=WriteConcern(1)).insert_one({"_id": "late"})
            assert world.heads(cursor) == {}
        three.wait_healthy()
