"""Tests reads of one shard: its end, empty answers, the rate of calls, throttling, and repeatable ranges."""

import itertools
import time

import pytest

from multiclouddb_api import Beginning, ErrorCategory
from multiclouddb_conformance.refusals import refused
from multiclouddb_dynamo import reader as module
from multiclouddb_spi import Continue, Drained, ProviderFault, Range, Reached, read_range

from .world import World, markers, seconds, soon

READ = "GetRecords"
HOUR = 3600


def fetch(reader, records=1000):
    return reader.fetch(records, 1 << 20, 0.0, soon())


def all_of(batch):
    return markers(batch.events(0, len(batch)))


def seed_of(feed):
    (seed,) = feed.start(Beginning(), None, soon())
    return seed


class TestEnds:
    """Tests ends of closed shards: the last answer may contain records, and the end has several forms."""

    @pytest.mark.parametrize("null", [False, True], ids=["absent", "null"])
    @pytest.mark.parametrize("separate", [False, True], ids=["with records", "on a page of its own"])
    def test_records_of_the_last_page_are_delivered(self, null, separate):
        with World(null_iterator=null, separate_end=separate) as world:
            before = world.put("a", "b", "c")
            world.roll_over()
            after = world.put("d")
            for limit in (1, 0):
                assert world.consumer(max_page_size=limit).until_idle() == before + after

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
        assert fetch(feed.open(shard, first.cursor_after(1))).outcome == first.outcome

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
        with pytest.raises(ProviderFault):
            fetch(reader)
        assert world.journal.count(READ) == 0
        reader.close()
        reader.close()


class TestIterators:
    """Tests that an expired iterator is replaced by a new iterator for the position."""

    @pytest.mark.parametrize("always", [False, True])
    def test_an_expired_iterator_is_renewed_without_a_repeat(self, world, always):
        if always:
            world.troubles.expire(None, every=2)
        consumer = world.consumer(max_page_size=1)
        written = world.put("a", "b", "c")
        consumer.read()
        world.script.expire_iterators()
        written += world.put("d")
        consumer.until_idle()
        assert consumer.markers == written

    def test_fresh_iterators_that_are_refused_end_the_call_at_its_deadline(self, world):
        world.put("a")
        world.troubles.fail(READ, "ExpiredIteratorException", None)
        began = time.monotonic()
        with refused(ErrorCategory.TRANSIENT_FAILURE):
            world.consumer().read(seconds(2))
        assert time.monotonic() - began < 9  # less time than botocore waits for an answer
        assert world.journal.count(READ) < 15

    def test_the_next_iterator_is_used_and_not_another_asked_for(self, world):
        consumer = world.consumer(max_page_size=2)
        for _ in range(5):
            world.put("a", "b")
            consumer.until_idle()
        assert world.journal.count("GetShardIterator") == 1


class TestPosition:
    """Tests how old a position is that no records follow."""

    def test_empty_answers_of_a_shard_with_records_do_not_make_its_position_younger(self, world):
        """If records after such a position are lost later, the loss must be reported."""
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
        with refused(ErrorCategory.CHECKPOINT_EXPIRED):
            consumer.restart().read()

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
        assert 1 <= world.journal.count() <= time.monotonic() - began + 2

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

    def test_a_page_asks_for_no_more_records_than_it_may_hold(self, world):
        world.script.fill(world.chain(), 50)
        assert len(world.consumer(max_page_size=7).read().events) == 7
        assert world.journal.calls(READ)[0].limit == 7
        assert all(1 <= call.limit <= module._MOST_RECORDS for call in world.journal.calls(READ))


class TestFailures:
    """Tests that failures are retried until the deadline, and only by the library."""

    def test_a_short_trouble_is_not_seen(self, world):
        written = world.put("a")
        world.troubles.fail(READ, "LimitExceededException", 2)
        page = world.consumer().read()
        assert markers(page.events) == written
        assert page.diagnostics.retries == 2

    @pytest.mark.parametrize(
        ("operation", "more"),
        [
            (READ, {"with_records": True}),
            (READ, {"with_records": True, "reset": True}),
            ("DescribeTable", {}),
            ("DescribeStream", {}),
            ("GetShardIterator", {}),
        ],
    )
    def test_an_answer_that_is_cut_off_ends_nothing(self, world, operation, more):
        written = world.put("a", "b", "c")
        world.troubles.drop(operation, 2, mid_body=True, **more)
        consumer = world.consumer(max_page_size=2)
        consumer.until_idle()
        assert consumer.markers == written


class TestRanges:
    """Tests that `(cursor, until]` always returns the same events, even after later writes."""

    def bounds(self, world, feed):
        seed = seed_of(feed)
        return seed.partition_id, seed.cursor, fetch(feed.open(seed.partition_id, seed.cursor))

    def read(self, provider, feed, part):
        return [marker for batch in read_range(provider, feed, part) for marker in all_of(batch)]

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
        assert [(len(each), each.outcome) for each in (fetch(reader), fetch(reader))] == [
            (2, Reached()), (0, Reached()),
        ]  # fmt: skip
        one = feed.open(shard, start, batch.cursor_after(2))
        assert [fetch(one, 1).outcome, fetch(one, 1).outcome] == [Continue(), Reached()]

    def test_a_range_whose_records_are_trimmed_is_told(self, world):
        world.put("a", "b", "c")
        provider, feed = world.feed()
        shard, _, batch = self.bounds(world, feed)
        world.script.advance(25 * HOUR)
        with refused(ErrorCategory.CHECKPOINT_EXPIRED):
            self.read(provider, feed, Range(shard, batch.cursor_after(1), batch.cursor_after(3)))
