"""Tests lineage: every shard is read once, after its parent, whatever the service lists and keeps."""

import time
from types import SimpleNamespace

import attrs
import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    FeedEnded,
    FromContinuationToken,
    Gap,
    Invalidated,
    MulticloudDbError,
    Now,
    PartitionFoundLate,
    PhysicalPartition,
    SkipToOldest,
)
from multiclouddb_conformance.refusals import refused
from multiclouddb_dynamo_emulator import ChildFilter, Order, Remains
from multiclouddb_spi.continuation import follow
from multiclouddb_spi.continuation.token import decode_token, encode_token

from .world import ADDRESS, HOUR, TABLE, World, markers, native, seconds, state_of

OLD = 600  # in seconds; longer than the period of which `Now` may repeat events
SKIPS = {"on_expired": SkipToOldest()}
EXPIRED = ErrorCategory.CHECKPOINT_EXPIRED

HASTY = pytest.mark.usefixtures("hasty")
HASTY_READERS = pytest.mark.usefixtures("hasty_readers")


def planned(world, start=None, **settings):
    """Return the consumer of each partition of a plan."""
    request = ChangeFeedRequest(ADDRESS, start or Beginning())
    return [
        world.consumer(
            FromContinuationToken(token), scope=PhysicalPartition(name, with_descendants=True), **settings
        )
        for name, token in world.client().plan_partitions(request, with_descendants=True)
    ]


def alone(world, shard):
    """Return the scope of the given open shard."""
    names = world.client().list_physical_partitions(ADDRESS)
    return PhysicalPartition(next(name for name in names if native(name) == shard))


def test_whoever_reads_for_a_moment_each_half_day_keeps_a_short_position():
    """An ended shard leaves the position after it is gone, although no client ever waits for ten minutes."""
    with World(shards=4) as world:
        world.settings["coverage_audit_seconds"] = 0.0  # half a day has passed for the client too
        consumer, entries = world.consumer(), []
        for _ in range(10):
            written = world.put_everywhere()
            world.roll_over()
            consumer.restart()
            consumer.until_found(written)
            consumer.until_idle()
            entries.append(len(state_of(consumer.token)))
            world.script.advance(12 * HOUR)
        assert consumer.notices == []
        # The open ones, and those of which the service has not yet removed the last record.
        assert max(entries) <= 4 * 5, entries


@HASTY_READERS
class TestLateHalf:
    """A split of which one child is listed late: the child is still read, whatever was known before."""

    def begun(self, world, late):
        """Split every shard, and list each second half late; return what each half contains."""
        consumer = world.consumer()
        consumer.until_found(world.put_everywhere())
        pairs = [world.script.split(shard) for shard in world.open()]
        for _, second in pairs:
            self.hide(world, second, late)
        early = [mark for first, _ in pairs for mark in world.put_in(first, 10)]
        return consumer, early, [mark for _, second in pairs for mark in world.put_in(second, 10)]

    def hide(self, world, shard, late):
        world.script.hide(shard, calls=0 if late else 1, seconds=late or 0.0)

    def first_half_closed(self, world, late):
        consumer, early, hidden = self.begun(world, late)
        first, second = world.open()
        world.script.roll_over(first)
        (child,) = (shard for shard in world.open() if shard != second)
        return consumer, early + world.put_in(child), hidden

    def no_child_at_first(self, world, late):
        found = self.begun(world, late)
        world.script.hide(world.open()[0], calls=1)
        return found

    def filter_refused(self, world, late):
        world.habits.child_filter = ChildFilter.REFUSED
        return self.no_child_at_first(world, late)

    def filter_ignored(self, world, late):
        world.habits.child_filter = ChildFilter.IGNORED
        return self.no_child_at_first(world, late)

    def between_the_halves(self, world, late, generations=0):
        """A read starts at `Now` while only one half is listed; what was in the other before is not read."""
        world.put("a")
        first, second = world.script.split(world.chain())
        world.put_in(second, 2)
        world.script.advance(OLD)
        self.hide(world, second, late)
        for _ in range(generations):
            first = world.script.roll_over(first)
        consumer = world.consumer(Now())
        consumer.read()
        return consumer, world.put_in(first, 10), world.put_in(second, 10)

    def between_the_halves_on_three_pages(self, world, late):
        world.habits.shards_per_page = 2
        for _ in range(3):
            world.roll_over()
        return self.between_the_halves(world, late)

    def first_half_ended_twice(self, world, late):
        return self.between_the_halves(world, late, generations=2)

    @pytest.mark.parametrize(("late", "restart"), [(None, True), (90, False)])
    @pytest.mark.parametrize(
        "row",
        [first_half_closed, no_child_at_first, filter_refused, filter_ignored,
         between_the_halves, between_the_halves_on_three_pages, first_half_ended_twice],
    )  # fmt: skip
    def test_nothing_is_lost_or_delivered_twice(self, world, row, late, restart):
        consumer, early, hidden = row(self, world, late)
        before = set(consumer.markers)
        consumer.until_found(early)
        if restart:
            consumer.restart()
        world.script.advance(late or 0)
        consumer.until_found(hidden)
        assert sorted(set(consumer.markers) - before) == sorted(early + hidden)
        assert len(consumer.markers) == len(set(consumer.markers))
        assert not consumer.notices


@HASTY
class TestLateChildren:
    @pytest.mark.parametrize("skips", [False, True])
    def test_children_that_were_trimmed_before_they_were_seen_are_a_loss(self, world, skips):
        """The read does not wait forever if a shard is no longer listed but its grandchildren are."""
        consumer = world.consumer(**(SKIPS if skips else {}))
        first = world.chain()
        world.put("a")
        consumer.until_idle()
        world.habits.late_children = 10**9
        world.roll_over()
        consumer.read()
        assert state_of(consumer.token)[0][2:] == [1]
        world.habits.late_children = 0
        for shard in world.script.shards(TABLE):
            world.script.hide(shard.shard_id, 0)
        unseen = world.chain()
        world.put("lost")
        world.roll_over()
        world.script.advance(23 * HOUR)
        left = world.put("left")
        world.roll_over()
        world.script.advance(2 * HOUR)
        consumer.restart()
        if skips:
            assert consumer.until_idle(20) == left
            assert consumer.kinds == [Gap, Gap]
            assert {native(gap.partition_id) for gap in consumer.notices} == {first, unseen}
        else:
            with refused(EXPIRED):
                consumer.until_idle(10)

    def test_a_parent_that_is_only_hidden_is_waited_for(self, world):
        consumer = world.consumer()
        consumer.until_found(world.put("a"))
        for name in (world.chain(), *world.roll_over()):
            world.script.hide(name, seconds=HOUR)
        consumer.restart()
        for _ in range(5):
            assert not consumer.read(seconds(1)).idle
        world.script.advance(HOUR)
        consumer.until_found(world.put("b"))
        assert consumer.notices == []

    def test_a_half_of_a_disabled_stream_is_read_before_the_feed_ends(self, world):
        world.settings["child_watch_seconds"] = 1.0
        consumer = world.consumer()
        consumer.until_found(world.put("a"))
        consumer.restart()  # no request is on its way that would name the half before it is hidden
        first, late = world.script.split(world.chain())
        world.script.hide(late, seconds=HOUR)
        early, lost = world.put_in(first), world.put_in(late)
        world.enable(False)
        consumer.until_found(early)
        assert consumer.until_idle() == []
        assert FeedEnded not in consumer.kinds
        world.script.advance(HOUR)
        consumer.until_found(lost)
        while not consumer.notices:
            consumer.read()
        assert set(consumer.kinds) == {Invalidated, FeedEnded}
        assert consumer.read().idle

    @pytest.mark.parametrize("restart", [False, True])
    def test_a_child_of_an_empty_shard_is_read_from_its_own_first_record(self, restart):
        with World(tells_time=False) as world:
            consumer = world.consumer()
            consumer.until_idle()
            consumer.until_idle()  # the position now contains an iterator of the empty shard
            early = [mark for half in world.script.split(world.chain()) for mark in world.put_in(half, 3)]
            if restart:
                consumer.restart()
            consumer.until_found(early, at_most=5)

    def test_a_child_that_is_closed_and_listed_late_is_read_from_its_first_record(self):
        with World(empty_pages=4) as world:
            first, second = world.script.split(world.chain())
            early = world.put_in(first) + world.put_in(second, 2)
            world.script.roll_over(second)
            world.script.hide(second, calls=3)
            world.script.hide(world.open()[1], calls=3)
            world.consumer().until_found(early, at_most=5)

    def test_a_worker_with_descendants_reads_a_child_from_its_first_record(self):
        with World(empty_pages=4) as world:
            first, _ = world.script.split(world.chain())
            early = world.put_in(first, 3)
            world.script.split(first)
            planned(world)[0].until_found(early, at_most=5)

    def test_a_start_reads_a_parent_that_is_not_listed_before_its_children(self, world):
        world.settings |= {"child_watch_seconds": 0.0}
        first, hidden = world.script.split(world.chain())
        found = world.put_in(first) + world.put_in(hidden, 2)
        found += [mark for child in world.script.split(hidden) for mark in world.put_in(child)]
        world.script.hide(hidden, seconds=HOUR)
        plan = world.client().plan_partitions(ChangeFeedRequest(ADDRESS, Beginning()))
        assert hidden in {native(name) for name, _ in plan}
        consumer = world.consumer()
        consumer.until_found(found, at_most=5)
        assert consumer.markers.index(found[2]) < min(map(consumer.markers.index, found[3:]))

    @pytest.mark.parametrize("retired", [False, True], ids=["planned", "retired"])
    def test_a_watch_that_is_looked_at_after_a_day_does_not_say_that_all_was_read(self, world, retired):
        """Nothing claims that everything was read if one half of a split was trimmed before it was listed."""

        def split():
            _, late = world.script.split(parent)
            world.script.hide(late, seconds=5)
            return late

        world.put("a")
        parent = world.chain()
        scope = alone(world, parent)
        late = None if retired else split()
        start = ChangeFeedRequest(ADDRESS, Beginning() if retired else Now())
        token = dict(world.client().plan_partitions(start))[scope.partition_id]
        consumer = world.consumer(FromContinuationToken(token), scope=scope)
        if retired:
            late = split()
            while not consumer.read().partition_retired:
                pass
        world.put_in(late, 2)
        for _ in range(7):
            world.script.advance(4 * HOUR)
            world.roll_over()
        consumer.restart()
        if retired:
            page = consumer.read()
            assert page.diagnostics.partition_errors.keys() == {scope.partition_id}
            assert page.diagnostics.open_watches == consumer.read().diagnostics.open_watches == 1
        else:
            with refused(EXPIRED):
                consumer.read()


@HASTY_READERS
class TestListing:
    @pytest.mark.parametrize("order", Order)
    def test_a_parent_may_come_on_a_later_page_than_its_child(self, order):
        with World(shards=3, order=order, shards_per_page=1) as world:
            written = world.put_everywhere()
            world.script.split(world.open()[1])
            written += world.put_everywhere()
            world.roll_over()
            written += world.put_everywhere()
            consumer = world.consumer()
            assert sorted(consumer.until_idle()) == written
            parents = {shard.shard_id: shard.parent for shard in world.script.shards(TABLE)}
            names = [native(event.partition_id) for event in consumer.events]
            for place, name in enumerate(names):
                assert parents[name] not in names[place:]

    def test_shards_that_split_while_they_are_listed(self):
        """A split between two pages of a listing: the listing shows only half of the children."""
        with World(shards=60, order=Order.SHUFFLED, shards_per_page=10) as world:
            world.troubles.act(
                lambda: [world.script.split(shard) for shard in world.open()[:20]], operation="DescribeStream"
            )
            consumer = world.consumer(Now())
            consumer.read()
            written = world.put_everywhere()
            consumer.until_found(written)
            assert sorted(consumer.markers) == written

    @pytest.mark.parametrize(
        ("child_filter", "splits", "calls"),
        [(None, 1, 2), (ChildFilter.IGNORED, 4, 4 + 2 * 6), (ChildFilter.REFUSED, 4, 4 + 2 * 6)],
    )
    def test_children_are_asked_for_one_by_one_where_this_is_possible(self, child_filter, splits, calls):
        habits = {} if child_filter is None else {"child_filter": child_filter}
        with World(shards=20, shards_per_page=5, **habits) as world:
            consumer = world.consumer()
            consumer.until_idle()
            world.journal.clear()
            for shard in world.open()[:splits]:
                world.script.split(shard)
            written = world.put_everywhere()
            assert sorted(consumer.until_idle()) == written
            assert world.journal.count("DescribeStream") <= calls

    @pytest.mark.parametrize("code", ["ResourceNotFoundException", "ValidationException"])
    def test_a_service_that_knows_no_children_of_a_trimmed_parent(self, world, code):
        consumer = world.consumer()
        world.put("a")
        consumer.until_idle()
        world.roll_over()
        written = world.put("b")
        world.troubles.fail("DescribeStream", code, 1, shard=None)
        assert consumer.until_idle() == written


@HASTY
class TestTrimmed:
    @pytest.mark.parametrize("remains", Remains)
    def test_shards_that_are_trimmed_between_the_listing_and_the_reading(self, remains):
        with World(shards=2) as world:
            world.put_everywhere()
            world.roll_over()
            world.roll_over()
            written = world.put_everywhere()
            gone = [shard.shard_id for shard in world.script.shards(TABLE) if not shard.is_open]
            world.troubles.act(lambda: world.script.drop_shards(gone, remains), operation="DescribeStream")
            assert sorted(world.consumer().until_idle()) == written

    @pytest.mark.parametrize("remains", Remains)
    @pytest.mark.parametrize("skips", [False, True])
    def test_skipping_loses_nothing_of_what_is_left(self, remains, skips):
        """One branch was read completely; in the other, some records have expired and some remain."""
        with World(shards=2, remains=remains) as world:
            consumer = world.consumer(max_page_size=1, **(SKIPS if skips else {}))
            for shard in world.open():
                world.put_in(shard, 2)
            consumer.read()
            world.roll_over()
            world.script.advance(23 * HOUR)
            written = world.put_everywhere()
            world.script.split(world.open()[0])
            written += world.put_everywhere()
            world.script.advance(2 * HOUR)
            if skips:
                assert set(written) <= set(consumer.restart().until_idle())
                assert Gap in consumer.kinds
                return
            with refused(EXPIRED, "24 hours") as caught:
                consumer.restart().read()
            assert caught.value.detail.oldest_position

    def test_a_child_found_at_now_that_nobody_read_for_a_day_has_expired(self, world):
        """The loss is told although the time of the parent's position is unknown."""
        world.put("a")
        world.habits.late_children = 2
        world.roll_over()
        consumer = world.consumer(Now())
        consumer.read()
        world.habits.late_children = 0
        world.troubles.fail("GetRecords", "InternalServerError", None, shard=world.chain())
        while world.chain() not in {state[0] for state in state_of(consumer.token)}:
            consumer.read()
        world.troubles.end()
        world.put("lost")
        world.script.advance(25 * HOUR)
        world.put("left")
        with refused(EXPIRED):
            consumer.restart().until_idle()

    @pytest.mark.parametrize("by_itself", [False, True])
    def test_a_hidden_shard_is_not_given_up_when_records_of_it_expire(self, by_itself):
        with World(shards=2) as world:
            shard, other = world.open()
            scope = {"scope": alone(world, shard)} if by_itself else {}
            consumer = world.consumer(**SKIPS, **scope)
            consumer.until_found(world.put_in(shard) + ([] if by_itself else world.put_in(other)))
            world.put_in(shard, 2)
            world.script.advance(25 * HOUR)
            kept = world.put_in(shard)
            world.script.hide(shard, calls=8)
            if not by_itself:
                consumer.until_idle()
            consumer.until_found(kept + world.put_in(shard, 2), at_most=5)
            assert set(consumer.kinds) == {Gap}

    @pytest.mark.parametrize("left", [0, 1])
    def test_a_process_that_slept_for_a_day_tells_of_what_was_trimmed_meanwhile(self, left):
        """They are reported even if the client's clock stands still: the service sends the time."""
        with World(shards=2) as world:
            read, unread = world.open()
            world.put_in(unread, 2)
            consumer = world.consumer()
            trouble = world.troubles.fail("GetRecords", "InternalServerError", None, shard=unread)
            consumer.until_found(world.put_in(read), at_most=5)
            trouble.end()
            world.script.advance(25 * HOUR)
            if left:
                world.put_in(unread)
            with refused(EXPIRED):
                consumer.until_idle()


@HASTY_READERS
class TestLostShards:
    @pytest.mark.parametrize("calls", [0, 1, 2, 4, pytest.param(8, marks=pytest.mark.soak)])
    def test_a_shard_that_is_listed_after_its_child_is_read_first(self, world, calls):
        """A → B → C: a feed stands in A when A expires; the listing shows C some calls before it shows B."""
        world.settings["coverage_audit_seconds"] = 0.2
        a = world.chain()
        consumer = world.consumer(**SKIPS)
        consumer.until_found(world.put("k1", "k2"))
        b = world.script.roll_over(a)
        middle = world.put("k1", "k2", "k3")
        last = world.put_in(world.script.roll_over(b), 2)
        world.script.drop_shards([a])
        if calls:
            world.script.hide(b, calls=calls)
        consumer.restart()
        del consumer.events[:]
        consumer.until_found(middle + last)
        assert consumer.markers == middle + last
        assert consumer.kinds.count(Gap) == 1

    @pytest.mark.parametrize(
        ("shards", "page", "calls", "within"),
        [(40, 10, 8, 30), pytest.param(1000, 100, 20, 30, marks=pytest.mark.soak)],
    )
    def test_many_lost_shards_take_few_listings(self, shards, page, calls, within):
        with World(shards=shards, shards_per_page=page) as world:
            consumer = world.consumer(**SKIPS)
            old, long = world.open(), seconds(120)
            for shard in old:
                world.script.fill(shard, 1)
            while len(consumer.events) < len(old):
                consumer.read(long)
            for shard in world.roll_over():
                world.script.fill(shard, 1)
            world.script.drop_shards(old)
            consumer.restart()
            world.journal.clear()
            del consumer.events[:]
            began = time.monotonic()
            while len(consumer.events) < len(old):
                consumer.read(long)
            assert time.monotonic() - began < within
            consumer.until_idle()
            assert len({event.event_id for event in consumer.events}) == len(consumer.events) == len(old)
            assert consumer.kinds.count(Gap) == len(old)
            assert world.journal.count("DescribeStream") <= calls

    def test_a_shard_that_waits_for_a_lost_one_is_read(self):
        """A → B, beside C: a feed that has begun with all of them has not read A when A expires."""
        with World(shards=2) as world:
            a, c = world.open()
            lost = world.put_in(a, 3)
            b = world.script.roll_over(a)
            kept = world.put_in(b, 2) + world.put_in(c, 2)
            consumer = world.consumer(max_page_size=1, **SKIPS)
            consumer.read()
            world.script.drop_shards([a])
            consumer.restart()
            consumer.until_found(kept)
            assert set(kept) <= set(consumer.markers) < {*lost, *kept}
            assert consumer.kinds.count(Gap) == 1

    @pytest.mark.parametrize("found_by", ["look", "search"])
    @pytest.mark.parametrize("settings", [{}, SKIPS], ids=["fail", "skip"])
    def test_the_half_of_a_split_that_the_last_run_did_not_see_has_lost_changes(
        self, world, settings, found_by
    ):
        """A splits into B and C just before a nightly job ends: the job sees A's end and B. The next finds
        C, whose first changes are gone as A is, when it asks for A's children or else lists all shards.
        """
        world.settings["coverage_audit_seconds"] = 0.2
        root = world.chain()
        consumer = world.consumer(**settings)
        consumer.until_found(world.put_in(root))
        b, c = world.script.split(root)
        world.script.hide(c, seconds=HOUR)
        consumer.until_found(world.put_in(b))
        world.put_in(c, 2)
        world.script.advance(4 * HOUR)
        kept = world.put_in(c) + world.put_in(world.script.roll_over(c))
        world.script.advance(21 * HOUR)
        if found_by == "search":
            world.script.hide(c, calls=1)
        consumer.restart()
        if settings:
            consumer.until_found(kept)
            found_late = [PartitionFoundLate] if found_by == "search" else []
            assert consumer.kinds == [Gap, *found_late]
        else:
            with refused(EXPIRED, "listed only after" if found_by == "search" else "may have been trimmed"):
                consumer.until_found(kept, at_most=50)

    @pytest.mark.parametrize("settings", [{}, SKIPS], ids=["fail", "skip"])
    def test_a_branch_whose_newest_shard_is_not_listed_yet_is_waited_for(self, world, settings, monkeypatch):
        """A splits into B and C just before a nightly job ends, which sees B only. When it runs again, C is
        gone, and the newest shard that descends from C has ended a moment ago: no open shard leads to C.
        """
        slept = SimpleNamespace(time=world.script.clock.seconds, monotonic=time.monotonic)
        monkeypatch.setattr(follow, "time", slept)
        monkeypatch.setattr(follow, "_UNCLEAR_SECONDS", 2.0)
        consumer = world.consumer(**settings)
        root = world.chain()
        consumer.until_found(world.put_in(root))
        b, c = world.script.split(root)
        world.script.hide(c, seconds=HOUR)
        consumer.until_found(world.put_in(b))
        kept = []
        for pause in [4.0, *[3.9] * 5]:
            world.script.advance(pause * HOUR)
            c = world.script.roll_over(c)
            world.script.advance(0.1 * HOUR)
            kept += world.put_in(c) + world.put_in(b)
            b = world.script.roll_over(b)
        world.script.advance(3.95 * HOUR)
        c = world.script.roll_over(c)
        kept += world.put_in(c)
        world.script.hide(c, seconds=1)
        consumer.restart()
        if settings:
            consumer.until_idle()
            assert set(consumer.markers) >= set(kept[1:])
        else:
            with refused(EXPIRED, "before the service listed it"):
                consumer.until_idle()

    def test_what_remains_of_a_disabled_stream_is_read(self, world):
        """A splits into B and C, C rolls over to D; A and C expire, and no shard is open any more."""
        world.settings["child_watch_seconds"] = 1.0
        a, consumer = world.chain(), world.consumer(**SKIPS)
        consumer.until_found(world.put("a"))
        b, c = world.script.split(a)
        world.put_in(c)
        left = world.put_in(b) + world.put_in(world.script.roll_over(c), 2)
        world.enable(False)
        world.script.drop_shards([a, c])
        consumer.restart()
        del consumer.events[:]
        while FeedEnded not in consumer.kinds:
            consumer.read()
        assert sorted(consumer.markers) == left
        assert consumer.kinds.count(Gap) == 2

    @pytest.mark.parametrize("settings", [{}, SKIPS], ids=["fail", "skip"])
    def test_a_worker_with_descendants_is_planned_again_after_a_loss(self, settings):
        """What remains may descend from the partition of another worker."""
        with World(shards=2) as world:
            workers, old = planned(world, **settings), world.open()
            for worker, shard in zip(workers, old, strict=True):
                worker.until_found(world.put_in(shard))
            world.roll_over()
            world.put_everywhere()
            world.script.drop_shards(old)
            later = world.put_everywhere()
            for worker in workers:
                with refused(EXPIRED):
                    worker.restart().until_found(later, at_most=5)
                assert not set(worker.markers) & set(later)

    @pytest.mark.parametrize("hidden", ["nothing", "a half", "the middle"])
    def test_a_worker_goes_on_where_the_listing_proves_what_follows(self, world, hidden):
        """A worker's only shard is lost; a half of it, or the parent of what is listed, is listed later."""
        (worker,) = planned(world, **SKIPS)
        world.put("lost")
        root = world.chain()
        middle, half = world.script.split(root)
        left = world.put_in(middle) + world.put_in(half, 2)
        left += world.put_in(world.script.roll_over(middle), 2)
        world.script.drop_shards([root])
        if hidden != "nothing":
            world.script.hide(half if hidden == "a half" else middle, calls=6)
        while not set(left) <= set(worker.markers):
            try:
                worker.read()
            except MulticloudDbError as error:
                if not error.retryable:
                    raise
        worker.until_idle()
        assert len(worker.events) == 5
        # The first changes of what is listed late may be gone too.
        assert worker.kinds == ([Gap] if hidden == "nothing" else [Gap, PartitionFoundLate])


@HASTY
class TestIncarnations:
    def test_a_disabled_stream_cannot_be_started_in(self, world):
        world.enable(False)
        for start in (Beginning(), Now()):
            with refused(ErrorCategory.INVALID_REQUEST, "enable"):
                world.consumer(start).read()

    def test_a_stream_that_was_enabled_again_is_another(self, world):
        """Another process sees it at its first read, before the last changes of the old stream."""
        consumer = world.consumer()
        world.put("a")
        consumer.until_idle()
        world.put("unread")
        world.enable(False)
        world.enable()
        world.put("b")
        with refused(ErrorCategory.INVALID_REQUEST, "recreated"):
            world.consumer(consumer.start).read()
        with refused(ErrorCategory.INVALID_REQUEST, "recreated"):
            consumer.until_idle()
        assert consumer.markers in ([1], [1, 2])

    @pytest.mark.parametrize(
        ("part", "other"), [(3, "eu-west-3"), (4, "123456789012")], ids=["region", "account"]
    )
    def test_the_stream_of_a_replica_is_no_earlier_stream(self, world, part, other):
        """Each region of a global table has a stream of its own (localstack/localstack#7405)."""
        consumer = world.consumer()
        consumer.until_idle()
        envelope = decode_token(consumer.start.token)
        names = envelope.incarnation.split(":")
        names[part] = other
        token = encode_token(attrs.evolve(envelope, incarnation=":".join(names)))
        with refused(ErrorCategory.INVALID_REQUEST, other, "has a stream of its own"):
            world.consumer(FromContinuationToken(token)).read()

    @pytest.mark.parametrize("start", [Beginning(), Now()], ids=["beginning", "now"])
    def test_a_client_that_knew_the_old_stream_starts_in_the_new_one(self, world, start):
        client = world.client()
        world.consumer(start, client).read()
        world.enable(False)
        world.enable()
        consumer = world.consumer(start, client)
        consumer.read()
        written = world.put("b")
        assert markers(consumer.events) + consumer.until_idle() == written

    def test_a_deleted_table(self, world):
        consumer = world.consumer()
        world.put("a")
        consumer.until_idle()
        world.server.client().delete_table(TableName=TABLE)
        consumer.until_idle()
        # A sink refuses the first: the rows of its table are those of a table that is gone.
        assert consumer.kinds[:2] == [Invalidated, FeedEnded]
        with refused(ErrorCategory.NOT_FOUND):
            world.consumer().read()
