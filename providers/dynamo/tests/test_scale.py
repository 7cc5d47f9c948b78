"""Tests feeds of many shards: their calls, the size of a token, and a service that throttles some calls."""

import random
import threading
import time

import orjson
import pytest
from botocore.exceptions import ClientError

from multiclouddb_api import Beginning, ChangeFeedRequest, ErrorCategory, Now
from multiclouddb_conformance.refusals import refused
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_spi.continuation.token import decode_token

from .world import ADDRESS, World, all_of, fetch, seconds, soon

SHARDS = 200
A_PAGE = 20
PAGES = SHARDS // A_PAGE
LATEST, LISTING = "GetShardIterator", "DescribeStream"
REFUSAL = "LimitExceededException"
TRIES = 6
LONG = seconds(120)

pytestmark = pytest.mark.usefixtures("no_pace")


@pytest.fixture(scope="module")
def thousand():
    """Provide a world with many shards, which all tests share because it takes long to make."""
    with World(shards=SHARDS, shards_per_page=A_PAGE) as made:
        yield made


@pytest.fixture
def world(thousand):
    wait_until(  # the last calls of a start that was given up
        lambda: not any(thread.name.startswith("multiclouddb-latest") for thread in threading.enumerate())
    )
    thousand.journal.clear()
    yield thousand
    thousand.troubles.end()


def refuse_at_random(world, share):
    """Refuse the given share of the calls for iterators, in any thread. Return the number of refusals."""
    draw, refusals = random.Random(7), 0
    for shard in world.open():
        times = 0
        while draw.random() < share:
            times += 1
        if times:
            world.troubles.fail(LATEST, REFUSAL, times, shard=shard)
            refusals += times
    return refusals


def plan(world, start):
    return world.client().plan_partitions(ChangeFeedRequest(ADDRESS, start), LONG)


def read(feed, seed):
    reader, found = feed.open(seed.partition_id, seed.cursor), []
    while True:
        batch = fetch(reader)
        found += all_of(batch)
        if not len(batch) and batch.caught_up is not False:
            reader.close()
            return found


class TestNow:
    def test_a_refused_shard_costs_one_call_more(self, world):
        refusals = refuse_at_random(world, 0.2)
        assert refusals > 0.2 * SHARDS / 2
        assert len(plan(world, Now())) == SHARDS
        assert world.journal.count(LISTING) == 2 * PAGES
        assert world.journal.count(LATEST) == SHARDS + refusals

    def test_changes_between_two_tries_are_read(self):
        """Changes between two attempts are read, even in shards whose ends the first attempt has found."""
        with World(shards=100) as world:
            _, feed = world.feed()
            refuse_at_random(world, 0.5)
            call, written, seeds = feed.for_one_call(), [], None
            while seeds is None:
                try:
                    seeds = call.start(Now(), None, soon())
                except ClientError:
                    written += world.put_in(world.open()[3]) + world.put_in(world.open()[-3])
            assert len(written) >= 2
            assert len(seeds) == 100
            after = world.put_everywhere()
            found = [marker for seed in seeds for marker in read(feed, seed)]
        assert set(after) <= set(found) <= set(written) | set(after)

    def test_a_service_that_refuses_everything_is_not_asked_for_every_shard(self, world):
        world.troubles.fail(LATEST, REFUSAL, None)
        began = time.monotonic()
        with refused(ErrorCategory.THROTTLED) as caught:
            plan(world, Now())
        assert time.monotonic() - began < 120
        assert caught.value.retryable
        assert world.journal.count(LISTING) == 2 * PAGES
        assert world.journal.count(LATEST) <= TRIES * (2 * 16 + 1)

    def test_a_refusal_is_told_although_others_hang(self):
        with World(shards=3) as world:
            _, feed = world.feed()
            world.troubles.fail(LATEST, REFUSAL, shard=world.open()[0])
            trouble = world.troubles.hang(LATEST)
            with pytest.raises(ClientError, match=REFUSAL):
                feed.start(Now(), None, soon(7))  # shorter than botocore's own pause for other errors
            trouble.end()


class TestListing:
    @pytest.mark.parametrize(
        ("ask", "pages"),
        [
            (lambda world: plan(world, Beginning()), PAGES),
            (lambda world: plan(world, Now()), 2 * PAGES),
            (lambda world: world.client().list_physical_partitions(ADDRESS, LONG), PAGES),
        ],
        ids=["beginning", "now", "partitions"],
    )
    def test_a_page_that_is_refused_twice_is_where_the_next_try_begins(self, world, ask, pages):
        for _ in range(2):
            world.troubles.fail(LISTING, REFUSAL, every=PAGES)
        assert len(ask(world)) == SHARDS
        assert world.journal.count(LISTING) == pages + 2

    @pytest.mark.parametrize(
        ("code", "every", "category", "calls"),
        [
            (REFUSAL, 1, ErrorCategory.THROTTLED, TRIES),
            ("AccessDeniedException", 3, ErrorCategory.AUTHORIZATION_FAILED, 3),
        ],
    )
    def test_a_refusal_for_good_ends_it(self, world, code, every, category, calls):
        world.troubles.fail(LISTING, code, None, every=every)
        with refused(category):
            world.client().list_physical_partitions(ADDRESS, LONG)
        assert world.journal.count(LISTING) == calls

    def test_a_page_is_not_asked_for_at_once_when_the_service_wants_a_pause(self, world):
        """If the service asks for a pause, the engine waits before it retries."""
        _, feed = world.feed()
        call = feed.for_one_call()
        world.troubles.fail(LISTING, REFUSAL, every=2, retry_after=0.5)
        with pytest.raises(ClientError, match=REFUSAL):
            call.survey({}, soon(120))
        assert world.journal.count(LISTING) == 2
        assert len(call.survey({}, soon(120)).present) == SHARDS
        assert world.journal.count(LISTING) == PAGES + 1

    def test_the_children_of_many_shards_are_asked_for_without_beginning_anew(self):
        with World(shards=6, shards_per_page=2) as world:
            _, feed = world.feed()
            seeds = feed.start(Beginning(), None, soon())
            world.roll_over()
            world.journal.clear()
            world.troubles.fail(LISTING, REFUSAL, every=2)
            ended = {seed.partition_id: seed.cursor for seed in seeds[:3]}
            assert len(feed.survey(ended, soon(), whole=False).present) == 3
            assert world.journal.count(LISTING) == 3 + 1

    def test_children_on_two_pages_are_all_found(self):
        with World(shards=3, shards_per_page=1) as world:
            _, feed = world.feed()
            seed = feed.start(Beginning(), None, soon())[0]
            children = world.script.split(seed.partition_id)
            world.journal.clear()
            found = feed.survey({seed.partition_id: seed.cursor}, soon(), whole=False).present
            assert {each.partition_id for each in found} == set(children)
            assert world.journal.count(LISTING) == 2  # a page for each child, and no listing of all shards

    def test_the_end_of_a_shard_takes_one_call_for_its_children(self):
        """The reader asks for them, because only they show that the shard has ended."""
        with World(shards=3, shards_per_page=1) as world:
            _, feed = world.feed()
            seed = feed.start(Beginning(), None, soon())[0]
            world.journal.clear()
            children = world.script.split(seed.partition_id)
            fetch(feed.open(seed.partition_id, seed.cursor))
            found = feed.survey({seed.partition_id: seed.cursor}, soon(), whole=False).present
            assert {each.partition_id for each in found} == set(children)
            assert world.journal.count(LISTING) == 2  # a page for each child


class TestCost:
    def until_all(self, consumer, count):
        while len(consumer.events) < count:
            consumer.read(LONG)

    def test_a_page_call_is_linear_in_active_shards(self):
        """A page call needs one listing and, for each shard, one iterator and a few answers."""
        active = 200
        with World(shards=active) as world:
            for shard in world.open():
                world.script.fill(shard, 1)
            world.journal.clear()
            consumer = world.consumer()
            self.until_all(consumer, active)
            assert world.journal.count(LATEST) <= active + 10
            assert world.journal.count(LISTING) == active / 100
            assert world.journal.count("DescribeTable") <= 3
            assert world.journal.most_readers == 1
            # A shard id of the service has 37 characters, a sequence number 40, and 24 bytes are ours.
            assert len(orjson.dumps(decode_token(consumer.token).state)) <= active * (37 + 40 + 24)

            for shard in world.open()[:5]:
                world.script.fill(shard, 1)
            world.journal.clear()
            self.until_all(consumer, active + 5)
            assert world.journal.count("GetRecords") <= 4 * active + 10
            assert world.journal.count(LISTING) == 0

    @pytest.mark.parametrize("size", [100, pytest.param(1000, marks=pytest.mark.soak)])
    def test_each_record_is_sent_about_once(self, size):
        shards, records = 16, 150
        # One sixteenth of the real sizes, which are a megabyte for pages and 64 megabytes for the buffer.
        with World(shards=shards, page_bytes=2**16) as world:
            for shard in world.open():
                world.script.fill(shard, records, 1000)
            consumer = world.consumer(client=world.client(max_buffered_bytes=2**22), max_page_size=size)
            self.until_all(consumer, shards * records)
            sent = sum(call.records for call in world.journal.calls("GetRecords"))
            assert len(consumer.events) == shards * records
            assert sent <= 1.2 * shards * records
            assert world.journal.count(LATEST) == shards
