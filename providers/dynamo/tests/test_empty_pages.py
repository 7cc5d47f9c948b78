"""Tests answers without records: when a page is idle, how often a shard is polled, how far it was read."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from botocore.exceptions import ClientError

from multiclouddb_api import Beginning, Now, ResourceAddress
from multiclouddb_dynamo.capabilities import DELAY_SECONDS, EMPTY_ANSWERS
from multiclouddb_dynamo.client import Calls
from multiclouddb_dynamo.mapping import DynamoView
from multiclouddb_dynamo.position import After, Start, Trail, place_of
from multiclouddb_dynamo.reader import DynamoReader
from multiclouddb_dynamo.source import EmptyAnswers, ReaderContext
from multiclouddb_spi import Deadline, FeedSpec, Planner, Range, read_range

from .world import ADDRESS, EXPIRED, HOUR, World, all_of, fetch, seconds, soon, state_of

READ = "GetRecords"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def few_answers():
    """Read as many answers as for the service."""


def cron(world, consumer, most, every=0):
    """Run the consumer in separate processes, each until it is idle, until every record is found.

    Return what was found, and the number of calls of each run.
    """
    calls = []
    while len(calls) < most:
        world.script.advance(every)
        consumer.restart()
        world.journal.clear()
        found = consumer.until_idle()
        calls.append(world.journal.count(READ))
        if found:
            return found, calls
    return [], calls


def begun(world):
    """Return a consumer whose token comes after a record."""
    consumer = world.consumer()
    world.put("a")
    consumer.until_idle()
    return consumer


def waiting(world, count):
    """Return a consumer whose token comes before the given number of empty pages and three records."""
    consumer = begun(world)
    world.script.expire_iterators()
    world.habits.empty_pages = count
    return consumer, world.put("b", "c", "d")


class TestRuns:
    @pytest.mark.parametrize(("count", "every"), [(40, HOUR), (500, 0)])
    def test_they_reach_what_is_behind_empty_pages(self, world, count, every):
        consumer, written = waiting(world, count)
        found, calls = cron(world, consumer, 10, every)
        assert found == written
        assert len(calls) <= 4

    @pytest.mark.parametrize("every", [0, HOUR])
    def test_a_now_whose_iterator_has_expired(self, every):
        with World(empty_pages=50) as world:
            world.put("old")
            world.script.advance(121)
            consumer = world.consumer(Now())
            consumer.read()
            written = world.put("a")
            world.script.advance(EXPIRED)
            found, calls = cron(world, consumer, 10, every)
            assert found == written
            assert len(calls) <= 4

    def test_one_whose_iterators_expire_all_the_time_becomes_idle(self, world):
        consumer = begun(world)
        world.troubles.expire(None, every=2)
        written = world.put("b")
        assert any(consumer.read(seconds(1)).idle for _ in range(9))
        assert consumer.markers[1:] == written

    @pytest.mark.parametrize("refusal", ["ExpiredIteratorException", "ValidationException"])
    def test_an_iterator_that_is_no_good_any_more_costs_a_call(self, world, refusal):
        consumer, written = waiting(world, 40)
        consumer.restart().until_idle()
        world.habits.empty_pages = 0
        world.troubles.fail(READ, refusal, 1, renewed_only=True)
        assert consumer.restart().until_idle() == written


class TestIdleMeansRead:
    COUNT = EMPTY_ANSWERS - 1

    def test_the_first_run_and_a_later_one_read_what_is_behind_empty_pages(self):
        with World(empty_pages=self.COUNT) as world:
            written = world.put("a")
            consumer = world.consumer()
            assert consumer.until_idle() == written
            world.script.expire_iterators()
            written = world.put("b", "c")
            assert consumer.restart().until_idle() == written

    def test_a_run_that_ends_by_itself_does(self):
        with World(empty_pages=self.COUNT) as world:
            provider, feed = world.feed()
            planner = Planner(provider, feed)
            written = world.put("a")
            before = planner.start(Beginning(), soon())
            target = planner.target(before, soon())
            (part,) = planner.advance(before, None, soon(), target).ranges()
            assert [
                marker for batch in read_range(provider, feed, part) for marker in all_of(batch)
            ] == written

    def test_a_call_that_ends_before_is_not_idle(self, world):
        consumer, written = waiting(world, self.COUNT)
        consumer.restart()
        world.troubles.delay(READ, 0.1)
        page = consumer.read(seconds(0.5))
        assert (page.events, page.idle) == ((), False)
        world.troubles.end()
        assert consumer.until_idle() == written

    @pytest.mark.parametrize("count", [1, 4])
    def test_empty_answers_of_an_iterator_that_is_gone_prove_nothing(self, world, count):
        """A new iterator begins at the last record, and may pass empty pages again."""
        consumer, written = waiting(world, count)
        assert consumer.until_idle() == written

    @pytest.mark.parametrize("every", [5, 8])
    def test_throttled_calls_do_not_make_a_shard_busy_for_ever(self, world, every, monkeypatch):
        """The empty answers before a throttled call count together with those after it."""
        records, calls = Calls.records, itertools.count(1)

        def throttled(*arguments, **settings):
            if next(calls) % every == 0:
                world.troubles.fail(READ, "ThrottlingException", 1)
            return records(*arguments, **settings)

        consumer = begun(world).restart()
        monkeypatch.setattr(Calls, "records", throttled)
        assert consumer.until_idle(most=50) == []


class TestEnded:
    def test_one_run_reads_it(self, world):
        written = world.put("a")
        world.roll_over()
        world.habits.empty_pages = 600
        world.put("b")
        consumer = world.consumer()
        while not consumer.markers:
            assert not consumer.read().idle
        assert consumer.markers == written

    def test_one_that_was_open_longer_than_a_shard_is_asked_after(self, world):
        consumer = begun(world)
        world.put("b")
        world.roll_over()
        written = world.put("c")
        world.habits.empty_pages = 200
        world.script.advance(5 * HOUR)
        consumer.restart()
        while len(consumer.markers) < 2:
            assert not consumer.read().idle
        world.habits.empty_pages = 0
        world.script.expire_iterators()
        consumer.restart().until_idle()
        assert consumer.markers[2:] == written


class TestRanges:
    def test_places_that_differ_in_it_alone_are_one_place(self, world):
        provider, feed = world.feed()
        world.put("a")
        (seed,) = feed.start(Beginning(), None, soon())
        reader = feed.open(seed.partition_id, seed.cursor)
        first, second = fetch(reader), fetch(reader)
        bare, hinted = first.cursor_after(1), second.cursor_after(0)
        assert bare != hinted
        assert feed.compare(bare, hinted) == 0
        assert feed.describe(bare) == feed.describe(hinted)
        assert place_of(hinted).trail is not None
        world.journal.clear()
        for start, until in ((bare, hinted), (hinted, bare)):
            assert not list(read_range(provider, feed, Range(seed.partition_id, start, until)))
        assert world.journal.count(READ) == 0

    def test_a_run_that_ends_by_itself_keeps_what_it_has_looked_through(self, world):
        provider, feed = world.feed()
        planner = Planner(provider, feed)
        world.put("a")
        before = planner.start(Beginning(), soon())
        before = planner.advance(before, None, soon(), allow_empty=True).after
        target = planner.target(before, soon())
        step = planner.advance(before, None, soon(), target, allow_empty=True)
        assert step.empty
        assert step.ranges() == []
        assert step.after.to_json()["p"] == [[name, cursor] for name, cursor in target.cursors.items()]
        assert not planner.advance(step.after, None, soon(), target, allow_empty=True).moved

    def test_a_token_of_an_idle_shard_has_its_sequence_number_too(self, world):
        ((_, cursor),) = state_of(begun(world).token)
        place = place_of(cursor)
        assert place.trail is not None
        assert int(place.seq) > 0


class TestReadUntil:
    def test_one_busy_shard_of_three_does_not_lag(self):
        with World(shards=3) as world:
            world.put_everywhere()
            consumer = world.consumer(Now())
            consumer.until_idle()
            for _ in range(2):
                world.script.advance(600)
                world.put_in(world.open()[0], 3)
                consumer.restart().until_idle()
                told = consumer.pages[-1].diagnostics
                assert told.lag_seconds <= DELAY_SECONDS + 20  # a busy machine is slow
                assert told.read_until_estimated
                assert len(told.partitions_read_until) == 3
                assert min(told.partitions_read_until.values()) == told.read_until

    def test_it_does_not_go_back_and_the_watermark_waits_for_proof(self):
        with World(shards=2) as world:
            world.put_everywhere()
            consumer = world.consumer()
            consumer.until_idle()
            before = consumer.pages[-1].diagnostics
            world.script.advance(600)
            world.put_in(world.open()[0])
            consumer.until_idle()
            after = consumer.pages[-1].diagnostics
            # The first changes of the two shards may lie in different seconds.
            assert after.watermark < before.watermark + timedelta(seconds=100)
            assert after.read_until > before.read_until + timedelta(seconds=500)
            known = [page.diagnostics.read_until for page in consumer.pages if page.diagnostics.read_until]
            assert known == sorted(known)


class TestAnswers:
    @pytest.fixture
    def answers(self, monkeypatch):
        """Return a function that adds answers, a pause apart, and then lets time pass."""
        clock = [1000.0]
        monkeypatch.setattr("multiclouddb_dynamo.source.time.monotonic", lambda: clock[0])

        def add(count, pause, later=0):
            found = EmptyAnswers()
            for number in range(count):
                clock[0] += pause if number else 0
                found.add(clock[0])
            clock[0] += later
            return found

        return add

    @pytest.mark.parametrize(
        ("count", "pause", "later", "now", "ago"),
        [
            (EMPTY_ANSWERS - 1, 0.1, 0, NOW, None),
            (EMPTY_ANSWERS, 0.1, 0, NOW, DELAY_SECONDS),
            (EMPTY_ANSWERS, 10.0, 0, NOW, 10 * (EMPTY_ANSWERS - 1)),
            (EMPTY_ANSWERS, 0.1, 100, NOW, DELAY_SECONDS + 100),
            (EMPTY_ANSWERS, 0.1, 0, None, None),
        ],
        ids=["too few", "enough", "far apart", "time passes", "no time of the service"],
    )
    def test_how_far_a_shard_was_read(self, answers, count, pause, later, now, ago):
        found = answers(count, pause, later)
        assert found.read_until(now) == (None if ago is None else NOW - timedelta(seconds=ago))

    # In a feed of many shards, the pauses between answers are long.
    @pytest.mark.parametrize(
        ("pause", "longest", "recent"),
        [(1.0, 0.1, True), (1.9, 0.1, True), (5.0, 0.1, False), (5.0, 4.0, True)],
    )
    def test_answers_of_long_ago_are_not_recent(self, answers, pause, longest, recent):
        assert answers(EMPTY_ANSWERS, pause).are_recent(longest) is recent


class Service:
    """A service that answers without records, except as the test says, and its shards.

    It has the record at each position.
    """

    def __init__(self):
        self.answers, self.asked, self.valid, self._at = [], 0, "here", None

    def hear(self, response):
        """Take no time from a response."""

    def find(self, shard_id):
        return None

    def age(self):
        return 0.0

    def iterator(self, arn, shard_id, kind, seq=None):
        self._at = seq
        return self.valid

    def records(self, iterator, limit, *, native):
        self.asked += 1
        if iterator != self.valid:
            raise ClientError({"Error": {"Code": "ExpiredIteratorException"}}, READ)
        if self._at is not None:
            at, self._at = self._at, None
            return {"Records": [{"dynamodb": {"SequenceNumber": at}}], "NextShardIterator": iterator}
        return self.answers.pop() if self.answers else {"Records": [], "NextShardIterator": iterator}

    def now(self):
        return NOW


class TestPace:
    def readers(self, count, trail=None, place=None):
        self.service = Service()
        source = ReaderContext(self.service, FeedSpec(ADDRESS), None, "arn", self.service)
        views = [
            DynamoView(ResourceAddress(collection="t"), "p", f"s{number}", ("id",)) for number in range(count)
        ]
        return [DynamoReader(source, view, place or Start(None, trail), None) for view in views]

    def pauses(self, reader, count=EMPTY_ANSWERS + 12):
        return [reader.fetch(10, 1 << 20, 0.0, Deadline.after(1)).poll_after for _ in range(count)]

    def test_a_new_reader_looks_a_little_further_and_then_less_and_less_often(self):
        (reader,) = self.readers(1)
        expected = [*[0] * (EMPTY_ANSWERS - 1), 0.1, 0.2, 0.4, 0.8, *[1.0] * 9]
        assert self.pauses(reader) == pytest.approx(expected)

    def test_a_reader_after_another_without_records_looks_further_until_it_finds_one(self):
        (reader,) = self.readers(1, Trail("here", 1))
        assert self.pauses(reader, 64) == pytest.approx([*[0] * 63, 0.1])
        record = {"dynamodb": {"SequenceNumber": "1" * 21, "ApproximateCreationDateTime": 1}}
        self.service.answers = [{"Records": [record], "NextShardIterator": "here"}]
        assert self.pauses(reader, EMPTY_ANSWERS + 1) == pytest.approx([*[0] * EMPTY_ANSWERS, 0.1])

    def test_a_shard_without_records_costs_little_most_times(self):
        """Each process begins where the one before it was idle, after its iterator has expired."""
        counts, place = [], After("1" * 21, int(NOW.timestamp()), Trail("old", 0))
        for number in range(22):
            (reader,) = self.readers(1, place=place)
            self.service.valid = str(number)
            while (batch := reader.fetch(10, 1 << 20, 0.0, Deadline.after(1))).caught_up is False:
                pass
            counts.append(self.service.asked)
            place = place_of(batch.cursor_after(0))
        assert max(counts) > 500
        assert sorted(counts)[len(counts) // 2] <= 20
        assert sum(counts) / len(counts) <= 150

    @pytest.mark.parametrize(
        ("count", "closed", "most"), [(100, 0, 1.0), (250, 0, 1.0), (1000, 0, 4.0), (1000, 500, 2.0)]
    )
    def test_many_empty_shards_cost_no_more_calls_a_second(self, count, closed, most):
        made = self.readers(count)
        for reader in made[count - closed :]:
            reader.close()
        assert max(self.pauses(made[0])) == pytest.approx(most)
