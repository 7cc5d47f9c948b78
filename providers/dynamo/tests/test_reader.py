"""Tests reads of one shard: its end, empty answers, the rate of calls, throttling, and repeatable ranges."""

import itertools
import time

import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    MulticloudDbError,
)
from multiclouddb_conformance.waiting import assert_prompt
from multiclouddb_dynamo import reader as module
from multiclouddb_dynamo_emulator import Order
from multiclouddb_spi import (
    Continue,
    Drained,
    Planner,
    ProviderFault,
    Range,
    Reached,
    read_range,
)

from .world import ADDRESS, TABLE, World, markers, seconds, soon

READ = "GetRecords"
VENDOR = 9  # in seconds; less time than botocore waits for an answer
PATIENCE = 60.0
HOUR = 3600


@pytest.fixture
def world():
    with World() as made:
        yield made


def refused_in_time(world, timeout, category, *, asked=0):
    """Return the error of a call, which must not take much longer than the time limit.

    If a busy machine made fewer calls than expected within the time limit, this test checks less.
    """
    errors = []

    def attempt():
        for _ in range(10):
            world.journal.clear()
            begin = time.monotonic()
            with pytest.raises(MulticloudDbError) as caught:
                world.consumer().read(seconds(timeout))
            took = time.monotonic() - begin
            assert took < VENDOR
            if world.journal.count(READ) >= asked:
                break
        assert caught.value.category == category
        errors.append(caught.value)
        return took

    assert_prompt(timeout + 1.5, attempt, at_most=VENDOR)
    return errors[-1]


def fetch(reader, records=1000):
    return reader.fetch(records, 1 << 20, 0.0, soon())


def all_of(batch):
    return markers(batch.events(0, len(batch)))


def seed_of(feed, position=None):
    (seed,) = feed.start(position or Beginning(), None, soon())
    return seed


class TestEnds:
    """Tests ends of closed shards: the last answer may contain records, and the end has several forms."""

    @pytest.mark.parametrize("null", [False, True], ids=["absent", "null"])
    @pytest.mark.parametrize("separate", [False, True], ids=["with records", "on a page of its own"])
    @pytest.mark.parametrize("limit", [1, 0])
    def test_records_of_the_last_page_are_delivered(self, null, separate, limit):
        with World(null_iterator=null, separate_end=separate) as world:
            before = world.put("a", "b", "c")
            world.roll_over()
            after = world.put("d")
            consumer = world.consumer(max_page_size=limit)
            assert consumer.until_idle() == before + after

    def test_an_end_is_repeated(self, world):
        world.put("a")
        shard = world.chain()
        children = set(world.script.split(shard))
        _, feed = world.feed()
        feed.survey({}, soon())
        reader = feed.open(shard, ["h", int(time.time())])
        first, second = fetch(reader), fetch(reader)
        assert isinstance(first.outcome, Drained)
        assert second.outcome == first.outcome
        assert (len(first), len(second)) == (1, 0)
        assert {child.partition_id for child in first.outcome.children} == children
        end = feed.open(shard, first.cursor_after(1))
        assert fetch(end).outcome == first.outcome

    def test_a_batch_that_is_cut_goes_on_behind_its_last_event(self, world):
        written = world.put("a", "b", "c", "d")
        _, feed = world.feed()
        seed = seed_of(feed)
        batch = fetch(feed.open(seed.partition_id, seed.cursor))
        for count in range(len(written) + 1):
            rest = fetch(feed.open(seed.partition_id, batch.cursor_after(count)))
            assert all_of(rest) == written[count:]

    def test_a_cancelled_reader_reads_no_more(self, world):
        _, feed = world.feed()
        seed = seed_of(feed)
        reader = feed.open(seed.partition_id, seed.cursor)
        reader.cancel()
        with pytest.raises(ProviderFault) as caught:
            fetch(reader)
        assert "cancelled" in caught.value.fault.message
        assert world.journal.count(READ) == 0
        reader.close()
        reader.close()


class TestIterators:
    """Tests that an expired iterator is replaced by a new iterator for the position."""

    @pytest.mark.parametrize("size", [1])
    def test_an_expired_iterator_is_renewed_without_a_repeat(self, world, size):
        consumer = world.consumer(max_page_size=size)
        written = world.put("a", "b", "c")
        consumer.read()
        world.script.expire_iterators()
        written += world.put("d")
        consumer.until_idle()
        assert consumer.markers == written

    def test_iterators_that_expire_all_the_time(self, world):
        world.troubles.expire(None, every=2)
        consumer = world.consumer(max_page_size=1)
        written = world.put("a", "b", "c", "d", "e")
        consumer.until_idle()
        assert consumer.markers == written

    def test_fresh_iterators_that_are_refused_end_the_call_at_its_deadline(self, world):
        world.put("a")
        world.troubles.fail(READ, "ExpiredIteratorException", None)
        refused_in_time(world, 2, ErrorCategory.TRANSIENT_FAILURE)
        assert world.journal.count(READ) < 15

    def test_the_next_iterator_is_used_and_not_another_asked_for(self, world):
        consumer = world.consumer(max_page_size=2)
        for _ in range(5):
            world.put("a", "b")
            consumer.until_idle()
        assert world.journal.count("GetShardIterator") == 1


class TestEmptyAnswers:
    """Tests answers with an iterator but without records, which do not prove that the shard is empty."""

    @pytest.mark.parametrize("count", [20])
    def test_nothing_is_lost_and_nothing_ended(self, world, count, monkeypatch):
        monkeypatch.setattr(module, "_MOST_PAUSE", 0.01)
        consumer = world.consumer()
        written = world.put("a", "b")
        world.troubles.empty_pages(count)
        pages = 0
        while not consumer.events:
            consumer.read()
            pages += 1
            assert pages <= count
        assert consumer.markers == written

    def test_empty_answers_of_a_shard_with_records_do_not_make_its_position_younger(self, world):
        """Empty answers do not make a position newer.

        If records after it are lost later, the loss must be reported.
        """
        consumer = world.consumer()
        world.put("a")
        consumer.until_idle()
        world.script.advance(60)
        world.roll_over()
        world.put("lost")
        world.script.advance(3.5 * HOUR)  # about the time that a shard stays open
        world.troubles.empty_pages(100, shard=world.chain())
        consumer.restart()
        while not consumer.read().idle:
            pass
        assert consumer.markers == [1]
        assert consumer.pages[-1].diagnostics.watermark <= consumer.events[0].timestamp
        world.roll_over()
        world.troubles.end()
        world.script.advance(21 * HOUR)
        with pytest.raises(MulticloudDbError) as caught:
            consumer.restart().read()
        assert caught.value.category == ErrorCategory.CHECKPOINT_EXPIRED

    def test_an_idle_table_does_not_fall_out_of_retention(self, world):
        """The shards of an idle table roll over every four hours, and nothing is written for days."""
        consumer = world.consumer()
        world.put("a")
        consumer.until_idle()
        for _ in range(10):
            world.script.advance(4 * HOUR)
            world.roll_over()
            consumer.restart().until_idle()
        written = world.put("b")
        assert consumer.restart().until_idle() == written


class TestPace:
    """Tests the poll rate: once a second for an empty shard, and without delay for a lagging shard."""

    def test_an_idle_second_costs_few_calls(self, world):
        consumer = world.consumer()
        consumer.until_idle()
        until = time.monotonic() + 2
        while time.monotonic() < until:
            consumer.read()
        world.journal.clear()
        began = time.monotonic()
        while time.monotonic() < began + 2:
            consumer.read()
        assert world.journal.count() <= time.monotonic() - began + 2

        def until_asked():
            world.journal.clear()
            began = time.monotonic()
            while not world.journal.count(READ):
                consumer.read()
            return time.monotonic() - began

        assert_prompt(2, until_asked, at_most=60)

    def test_a_shard_that_is_behind_is_read_without_a_pause(self, monkeypatch):
        for pause in ("FIRST", "MOST"):
            monkeypatch.setattr(f"multiclouddb_dynamo.reader._{pause}_PAUSE", 1.0)
        with World(page_bytes=3000) as world:
            world.script.fill(world.chain(), 300, 300)
            consumer = world.consumer()
            while not consumer.read().idle:
                pass
            calls = [call for call in world.journal.calls(READ) if call.records]
            assert len(calls) >= 30
            gaps = [b.began - a.began - a.seconds for a, b in itertools.pairwise(calls)]
            assert sorted(gaps)[len(gaps) // 2] < 0.5

    def test_one_reader_a_shard(self):
        with World(shards=4, enforce_limits=True) as world:
            consumer = world.consumer(max_page_size=3)
            written = []
            for _ in range(4):
                written += world.put_everywhere()
                world.roll_over()
                consumer.read()
            written += world.put_everywhere()
            consumer.until_idle()
            assert sorted(consumer.markers) == sorted(written)
            assert world.journal.most_readers == 1
            assert [each for each in world.journal.violations if each.operation == READ] == []


class TestFailures:
    """Tests that failures are retried until the deadline, and only by the library."""

    @pytest.mark.parametrize("code", ["LimitExceededException"])
    def test_a_short_trouble_is_not_seen(self, world, code):
        written = world.put("a")
        world.troubles.fail(READ, code, 2)
        page = world.consumer().read()
        assert markers(page.events) == written
        assert page.diagnostics.retries == 2

    @pytest.mark.parametrize(
        ("code", "category"),
        [
            ("ThrottlingException", ErrorCategory.THROTTLED),
            ("ServiceUnavailable", ErrorCategory.TRANSIENT_FAILURE),
        ],
    )
    def test_a_long_one_is_named_at_the_deadline(self, world, code, category):
        world.put("a")
        world.troubles.fail(READ, code, None)
        error = refused_in_time(world, 2.5, category, asked=2)  # the first answer has set the clock
        assert error.retryable
        assert error.detail.native_code == code

    def test_what_is_no_trouble_of_the_service_is_tried_once(self, world):
        world.put("a")
        world.troubles.fail(READ, "AccessDeniedException", None)
        with pytest.raises(MulticloudDbError) as caught:
            world.consumer().read()
        assert caught.value.category == ErrorCategory.AUTHORIZATION_FAILED
        assert world.journal.count(READ) == 1

    @pytest.mark.parametrize("reset", [False, True])
    def test_an_answer_that_is_cut_off_is_no_end_of_a_shard(self, world, reset):
        written = world.put("a", "b", "c")
        world.troubles.drop(READ, 2, mid_body=True, with_records=True, reset=reset)
        consumer = world.consumer(max_page_size=2)
        consumer.until_idle()
        assert consumer.markers == written

    @pytest.mark.parametrize("operation", ["DescribeTable", "DescribeStream", "GetShardIterator"])
    def test_cut_answers_of_other_calls(self, world, operation):
        written = world.put("a")
        world.troubles.drop(operation, 2, mid_body=True)
        assert world.consumer().until_idle() == written


class TestRanges:
    """Tests that `(cursor, until]` always returns the same events, even after later writes."""

    def bounds(self, world, feed):
        seed = seed_of(feed)
        batch = fetch(feed.open(seed.partition_id, seed.cursor))
        return seed.partition_id, seed.cursor, batch

    def read(self, provider, feed, part):
        return [
            marker
            for batch in read_range(provider, feed, part)
            for marker in markers(batch.events(0, len(batch)))
        ]

    @pytest.mark.parametrize("later", ["roll over", "split", "iterators"])
    def test_whatever_comes_later(self, world, later):
        written = world.put("a", "b", "c")
        provider, feed = world.feed()
        shard, start, batch = self.bounds(world, feed)
        match later:
            case "roll over":
                world.put("d")
                world.roll_over()
                world.put("e")
            case "split":
                world.script.split(shard)
            case "iterators":
                world.script.expire_iterators()
        for first in range(4):
            for last in range(first, 4):
                begin = batch.cursor_after(first) if first else start
                part = Range(shard, begin, batch.cursor_after(last) if last else start)
                assert self.read(provider, feed, part) == written[first:last]

    def test_a_bound_is_hard_and_told(self, world):
        world.put("a", "b", "c")
        _, feed = world.feed()
        shard, start, batch = self.bounds(world, feed)
        reader = feed.open(shard, start, batch.cursor_after(2))
        first = fetch(reader)
        assert (len(first), first.outcome) == (2, Reached())
        assert (len(fetch(reader)), fetch(reader).outcome) == (0, Reached())
        one = feed.open(shard, start, batch.cursor_after(2))
        assert fetch(one, 1).outcome == Continue()
        assert fetch(one, 1).outcome == Reached()

    def test_a_range_whose_records_are_trimmed_is_told(self, world):
        world.put("a", "b", "c")
        provider, feed = world.feed()
        shard, _, batch = self.bounds(world, feed)
        world.script.advance(25 * HOUR)
        with pytest.raises(MulticloudDbError) as caught:
            self.read(provider, feed, Range(shard, batch.cursor_after(1), batch.cursor_after(3)))
        assert caught.value.category == ErrorCategory.CHECKPOINT_EXPIRED

    @pytest.mark.parametrize("most", [1, None])
    def test_all_ranges_of_a_plan_are_all_events(self, most):
        """The stream splits and rolls over between planning and reading."""
        with World(shards=2, order=Order.SHUFFLED) as world:
            provider, feed = world.feed()
            planner = Planner(provider, feed)
            lineage = planner.start(Beginning(), soon())
            written, found = world.put_everywhere(), []
            until = time.monotonic() + PATIENCE
            for number in itertools.count():
                if number > 6 and (len(found) >= len(written) or time.monotonic() > until):
                    break
                step = planner.advance(lineage, most, soon())
                if number in (1, 4):
                    world.script.split(world.open()[0])
                    written += world.put_everywhere()
                elif number == 6:
                    world.roll_over()
                    written += world.put_everywhere()
                for part in reversed(step.ranges()):
                    once = self.read(provider, feed, part)
                    assert self.read(provider, feed, part) == once
                    found += once
                    assert most is None or len(once) <= most
                lineage = planner.restore(step.after.to_json())
        assert sorted(found) == sorted(written)


def test_a_page_asks_for_no_more_records_than_it_may_hold(world):
    world.script.fill(world.chain(), 50)
    request = ChangeFeedRequest(ADDRESS, Beginning(), max_page_size=7)
    assert len(world.client().read_changes(request).events) == 7
    assert world.journal.calls(READ)[0].limit == 7
    assert all(1 <= call.limit <= module._MOST_RECORDS for call in world.journal.calls(READ))
    assert world.script.shards(TABLE)[0].records == 50
