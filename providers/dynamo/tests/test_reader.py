"""Tests reads of one shard: its end, iterators, the size of a page, failures, and repeatable ranges."""

import time

import pytest
from botocore.exceptions import ClientError

from multiclouddb_api import Beginning, ErrorCategory, Now
from multiclouddb_conformance.refusals import refused
from multiclouddb_dynamo import reader as module
from multiclouddb_spi import Continue, ProviderFault, Range, Reached, read_range

from .world import HOUR, World, all_of, fetch, seconds, soon

READ = "GetRecords"
ITERATOR = "GetShardIterator"
MISSING = "ResourceNotFoundException"
HUGE = str(10**39 - 1)


def seed_of(feed):
    (seed,) = feed.start(Beginning(), None, soon())
    return seed


class TestEnds:
    @pytest.mark.parametrize("null", [False, True], ids=["absent", "null"])
    @pytest.mark.parametrize("separate", [False, True], ids=["with records", "on a page of its own"])
    def test_records_of_the_last_page_are_delivered(self, null, separate):
        with World(null_iterator=null, separate_end=separate) as world:
            before = world.put("a", "b", "c")
            world.roll_over()
            after = world.put("d")
            for limit in (1, 0):
                assert world.consumer(max_page_size=limit).until_idle() == before + after

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
    def test_fresh_iterators_that_are_refused_end_the_call_at_its_deadline(self, world):
        world.put("a")
        world.troubles.fail(READ, "ExpiredIteratorException", None)
        began = time.monotonic()
        with refused(ErrorCategory.TRANSIENT_FAILURE):
            world.consumer().read(seconds(2))
        assert time.monotonic() - began < 9  # less time than botocore waits for an answer
        assert world.journal.count(READ) < 15


class TestPosition:
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


def test_a_page_asks_for_no_more_records_than_it_may_hold(world):
    world.script.fill(world.chain(), 50)
    assert len(world.consumer(max_page_size=7).read().events) == 7
    assert world.journal.calls(READ)[0].limit == 7
    assert all(1 <= call.limit <= module._MOST_RECORDS for call in world.journal.calls(READ))


class TestRanges:
    def bounds(self, world, feed):
        seed = seed_of(feed)
        return seed.partition_id, seed.cursor, fetch(feed.open(seed.partition_id, seed.cursor))

    def read(self, provider, feed, part):
        return [marker for batch in read_range(provider, feed, part) for marker in all_of(batch)]

    def test_a_range_outlives_a_roll_over(self, world):
        written = world.put("a", "b", "c")
        provider, feed = world.feed()
        shard, start, batch = self.bounds(world, feed)
        world.put("d")
        world.roll_over()
        world.put("e")
        for first in range(4):
            begin = batch.cursor_after(first) if first else start
            assert all_of(fetch(feed.open(shard, begin)))[: 3 - first] == written[first:]
            for last in range(first, 4):
                part = Range(shard, begin, batch.cursor_after(last) if last else start)
                assert self.read(provider, feed, part) == written[first:last]

    def test_a_bound_is_hard_and_told(self, world):
        world.put("a", "b", "c")
        _, feed = world.feed()
        shard, start, batch = self.bounds(world, feed)
        for size, told in ((1000, [(2, Reached()), (0, Reached())]), (1, [(1, Continue()), (1, Reached())])):
            reader = feed.open(shard, start, batch.cursor_after(2))
            assert [(len(each), each.outcome) for each in (fetch(reader, size), fetch(reader, size))] == told

    def test_a_range_whose_records_are_trimmed_is_told(self, world):
        world.put("a", "b", "c")
        provider, feed = world.feed()
        shard, _, batch = self.bounds(world, feed)
        world.script.advance(25 * HOUR)
        with refused(ErrorCategory.CHECKPOINT_EXPIRED):
            self.read(provider, feed, Range(shard, batch.cursor_after(1), batch.cursor_after(3)))


class TestMissingShard:
    @pytest.fixture(params=[Beginning(), Now()], ids=["after a record", "now"])
    def consumer(self, world, request):
        """Provide a consumer in another process, whose iterator has expired."""
        consumer = world.consumer(request.param)
        consumer.read()
        if request.param == Beginning():
            world.put("a")
            consumer.until_idle()
        consumer.restart()
        world.script.expire_iterators()
        return consumer

    def test_it_is_asked_for_again(self, world, consumer):
        written = world.put("b")
        world.troubles.fail(ITERATOR, MISSING, 3)
        assert consumer.until_idle() == written

    def test_one_that_is_gone_for_good_has_expired_unless_the_deadline_comes_first(self, world, consumer):
        written = world.put("b")
        trouble = world.troubles.fail(ITERATOR, MISSING, None)
        with refused(ErrorCategory.TRANSIENT_FAILURE):
            consumer.read(seconds(0.3))
        with refused(ErrorCategory.CHECKPOINT_EXPIRED):
            consumer.read()
        trouble.end()
        assert consumer.until_idle() == written


def fault_at(provider, feed, shard, cursor):
    with pytest.raises((ProviderFault, ClientError)) as caught:
        fetch(feed.open(shard, cursor))
    error = caught.value
    return error.fault if isinstance(error, ProviderFault) else provider.classify(error)


class TestNumbers:
    """The service refuses a sequence number; some servers fail at it."""

    @pytest.mark.parametrize("listed", [False, True])
    @pytest.mark.parametrize("code", ["ValidationException", "InternalFailure", "InternalServerError"])
    def test_one_far_behind_the_shard_is_an_invalid_request(self, world, code, listed):
        world.put("a")
        provider, feed = world.feed()
        if listed:
            feed.survey({}, soon())
        world.troubles.fail(ITERATOR, code, None)
        found = fault_at(provider, feed, world.chain(), [HUGE, None])
        assert (found.category, found.retryable) == (ErrorCategory.INVALID_REQUEST, False)
        assert HUGE in found.message

    def test_one_in_front_of_a_shard_has_expired_and_a_good_one_is_tried_again(self, world):
        world.put("a")
        provider, feed = world.feed()
        found = fault_at(provider, feed, world.chain(), ["1".zfill(21), None])
        assert found.category == ErrorCategory.CHECKPOINT_EXPIRED
        batch = fetch(feed.open(world.chain(), ["h", None]))
        world.troubles.fail(ITERATOR, "InternalFailure", None)
        found = fault_at(provider, feed, world.chain(), batch.cursor_after(1))
        assert (found.category, found.retryable) == (ErrorCategory.TRANSIENT_FAILURE, True)
