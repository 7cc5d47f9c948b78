"""Tests a service that throttles some calls.

If one call is refused, a start with a thousand shards must not begin again.
"""

import random
import threading
import time
from collections import deque
from datetime import UTC, datetime

import pytest
from botocore.exceptions import ClientError

from multiclouddb_api import Beginning, ChangeFeedRequest, ErrorCategory, MulticloudDbError, Now
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_dynamo import client as client_module
from multiclouddb_dynamo.partitions import end_of
from multiclouddb_dynamo.position import After
from multiclouddb_dynamo.shards import Listing, ShardMap

from .world import ADDRESS, World, seconds, soon

SHARDS = 200
A_PAGE = 20
PAGES = SHARDS // A_PAGE
LATEST, LISTING = "GetShardIterator", "DescribeStream"
REFUSAL = "LimitExceededException"
TRIES = 6
LONG = 120


@pytest.fixture(autouse=True)
def no_pace(monkeypatch):
    """Disable pauses, because other tests cover the rate of listings."""
    monkeypatch.setattr(client_module, "_DESCRIBES_A_SECOND", 1000)


@pytest.fixture(scope="module")
def thousand():
    """Provide a world with many shards, which all tests share because it takes long to make."""
    with World(shards=SHARDS, shards_per_page=A_PAGE) as made:
        yield made


@pytest.fixture
def world(thousand):
    wait_until(nobody_asks)  # the last calls of a start that was given up
    thousand.journal.clear()
    yield thousand
    thousand.troubles.end()


def nobody_asks():
    return not any(thread.name.startswith("multiclouddb-latest") for thread in threading.enumerate())


def refuse_at_random(world, share, seed):
    """Refuse the given share of the calls for iterators, in any thread. Return a counter of the refusals."""
    draw, refused = random.Random(seed), 0
    for shard in world.open():
        times = 0
        while draw.random() < share:
            times += 1
        if times:
            world.troubles.fail(LATEST, REFUSAL, times, shard=shard)
            refused += times
    return refused


def refuse_twice(world, after):
    """Refuse two consecutive calls for pages, after the given number of further calls."""
    for _ in range(2):
        world.troubles.fail(LISTING, REFUSAL, every=after + 1)


def counts(world):
    return world.journal.count(LISTING), world.journal.count(LATEST)


class TestNow:
    @pytest.mark.parametrize("share", [0.2], ids=["a fifth"])
    def test_a_refused_shard_costs_one_call_more(self, world, share):
        refused = refuse_at_random(world, share, seed=7)
        assert refused > share * SHARDS / 2
        consumer = world.consumer(Now())
        began = time.monotonic()
        plan = consumer.client.plan_partitions(ChangeFeedRequest(ADDRESS, Now()), seconds(LONG))
        assert time.monotonic() - began < LONG
        assert len(plan) == SHARDS
        assert counts(world) == (2 * PAGES, SHARDS + refused)

    @pytest.mark.parametrize(
        "trouble",
        [
            lambda troubles: troubles.fail(LATEST, "InternalServerError"),
            lambda troubles: troubles.drop(LATEST),
            lambda troubles: troubles.drop(LATEST, mid_body=True),
        ],
        ids=["an error of the service", "no answer", "half an answer"],
    )
    def test_whatever_passes_costs_one_call_more(self, trouble):
        with World(shards=20) as world:
            trouble(world.troubles)
            plan = world.client().plan_partitions(ChangeFeedRequest(ADDRESS, Now()), seconds(LONG))
            assert len(plan) == 20
            assert world.journal.count(LATEST) == 20 + 1

    def test_what_is_written_between_two_tries_is_read(self):
        """Changes between two attempts are read, even in shards whose ends the first attempt has found."""
        with World(shards=100) as world:
            _, feed = world.feed()
            refuse_at_random(world, 0.5, seed=7)
            call, written = feed.for_one_call(), []
            while True:
                try:
                    seeds = call.start(Now(), None, soon())
                    break
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
        with pytest.raises(MulticloudDbError) as caught:
            world.consumer(Now()).read(seconds(LONG))
        assert time.monotonic() - began < LONG
        assert caught.value.category == ErrorCategory.THROTTLED
        assert caught.value.retryable
        listed, asked = counts(world)
        assert listed == 2 * PAGES
        assert asked <= TRIES * (2 * 16 + 1)

    def test_a_refusal_is_told_although_others_hang(self):
        with World(shards=3) as world:
            _, feed = world.feed()
            world.troubles.fail(LATEST, REFUSAL, shard=world.open()[0])
            trouble = world.troubles.hang(LATEST)
            with pytest.raises(ClientError, match=REFUSAL):
                feed.start(Now(), None, soon(7))  # shorter than botocore's own pause for other errors
            trouble.end()


def read(feed, seed):
    """Return the markers of all changes after a seed."""
    reader, found = feed.open(seed.partition_id, seed.cursor), []
    while True:
        batch = reader.fetch(1000, 1 << 20, 0.0, soon())
        found += [event.new_item_state["n"] for event in batch.events(0, len(batch))]
        if not len(batch) and batch.caught_up is not False:
            reader.close()
            return found


class TestListing:
    """Tests a listing of ten pages that are read one after another."""

    def asking(self, world):
        client = world.client()
        return {
            "beginning": lambda: client.plan_partitions(
                ChangeFeedRequest(ADDRESS, Beginning()), seconds(LONG)
            ),
            "now": lambda: client.plan_partitions(ChangeFeedRequest(ADDRESS, Now()), seconds(LONG)),
            "partitions": lambda: client.list_physical_partitions(ADDRESS, seconds(LONG)),
        }

    @pytest.mark.parametrize("what", ["beginning", "now", "partitions"])
    def test_a_page_that_is_refused_twice_is_where_the_next_try_begins(self, world, what):
        ask = self.asking(world)[what]
        refuse_twice(world, PAGES - 1)
        assert len(ask()) == SHARDS
        assert world.journal.count(LISTING) == (2 * PAGES if what == "now" else PAGES) + 2

    def test_a_service_that_refuses_everything_is_asked_as_often_as_the_engine_tries(self, world):
        world.troubles.fail(LISTING, REFUSAL, None)
        with pytest.raises(MulticloudDbError) as caught:
            self.asking(world)["partitions"]()
        assert caught.value.category == ErrorCategory.THROTTLED
        assert world.journal.count(LISTING) == TRIES

    def test_a_page_is_not_asked_for_at_once_when_the_service_wants_a_pause(self, world):
        """If the service asks for a pause, the engine waits before it retries."""
        _, feed = world.feed()
        call = feed.for_one_call()
        world.troubles.fail(LISTING, REFUSAL, every=2, retry_after=0.5)
        with pytest.raises(ClientError, match=REFUSAL):
            call.survey({}, soon(LONG))
        assert world.journal.count(LISTING) == 2
        assert len(call.survey({}, soon(LONG)).present) == SHARDS
        assert world.journal.count(LISTING) == PAGES + 1

    def test_a_refusal_for_good_ends_it(self, world):
        world.troubles.fail(LISTING, "AccessDeniedException", None, every=3)
        with pytest.raises(MulticloudDbError) as caught:
            self.asking(world)["partitions"]()
        assert caught.value.category == ErrorCategory.AUTHORIZATION_FAILED
        assert world.journal.count(LISTING) == 3

    def test_the_children_of_many_shards_are_asked_for_without_beginning_anew(self):
        with World(shards=6, shards_per_page=2) as world:
            _, feed = world.feed()
            seeds = feed.start(Beginning(), None, soon())
            world.roll_over()
            readers = [feed.open(seed.partition_id, seed.cursor) for seed in seeds[:3]]
            for reader in readers:
                reader.fetch(10, 1 << 20, 0.0, soon())
            world.journal.clear()
            world.troubles.fail(LISTING, REFUSAL, every=2)
            ended = {seed.partition_id: seed.cursor for seed in seeds[:3]}
            assert len(feed.survey(ended, soon(), whole=False).present) == 3
            assert world.journal.count(LISTING) == 3 + 1


class Script:
    """The answers of a stream, in the order of the script. A text in the script stands for an error."""

    def __init__(self, *answers):
        self.answers = deque(answers)

    def describe_stream(self, arn, deadline, *, after=None, parent=None):
        shards, more = self.answers.popleft() or (None, None)
        if shards is None:
            raise ClientError({"Error": {"Code": REFUSAL}}, LISTING)
        return {
            "StreamStatus": "ENABLED",
            "Shards": [listed(*shard) for shard in shards],
            **({"LastEvaluatedShardId": "x"} if more else {}),
        }

    def is_passing(self, error, *, at_once=False):
        return False

    def now(self):
        return datetime(2026, 1, 1, tzinfo=UTC)


def listed(name, parent, ended):
    numbers = {"StartingSequenceNumber": "1"} | ({"EndingSequenceNumber": "2"} if ended else {})
    return {"ShardId": name, "SequenceNumberRange": numbers} | ({"ParentShardId": parent} if parent else {})


FAILS = None
MORE, LAST = True, False
OPEN, ENDED = False, True


class TestOverlappingListings:
    """Tests a listing that starts between two pages of another listing.

    A page of one listing never counts as a page of the other listing.
    """

    def test_one_that_began_earlier_does_not_replace_what_is_known(self):
        shards = ShardMap(
            Script(
                ([("p", None, OPEN)], MORE),
                FAILS,
                ([("p", None, ENDED), ("a", "p", OPEN), ("b", "p", OPEN)], LAST),
                ([("b", "p", OPEN)], LAST),
            ),
            "arn",
        )
        early = Listing()
        with pytest.raises(ClientError):
            shards.read(soon(), early)
        shards.read(soon())
        assert set(shards.read(soon(), early).shards) == {"p", "b"}
        assert {shard.shard_id for shard in shards.children("p")} == {"a", "b"}

    def test_half_of_a_split_is_known_and_not_taken_for_the_whole(self):
        """The first page of the listing was read before the split, and the second page after it.

        The end of `p` is seen between the two pages.
        """
        shards = ShardMap(
            Script(
                ([("g", None, ENDED)], LAST),
                ([], MORE),
                FAILS,
                ([("p", "g", ENDED)], LAST),
                ([("p", "g", ENDED), ("b", "p", OPEN)], LAST),
                ([("a", "p", OPEN), ("b", "p", OPEN)], LAST),
            ),
            "arn",
        )
        shards.read(soon())
        early = Listing()
        with pytest.raises(ClientError):
            shards.read(soon(), early)
        assert set(shards.discover(["g"], soon())["g"]) == {shards.find("p")}
        shards.read(soon(), early)
        half = shards.children("p")
        assert {shard.shard_id for shard in half} == {"b"}
        assert end_of(half, After("7", 7)).complete is False
        assert {shard.shard_id for shard in shards.discover(["p"], soon())["p"]} == {"a", "b"}
