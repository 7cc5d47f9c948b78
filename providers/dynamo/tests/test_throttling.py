"""Tests a service that throttles some calls: a start with many shards must not begin again."""

import random
import threading
import time
from collections import deque
from datetime import UTC, datetime

import pytest
from botocore.exceptions import ClientError

from multiclouddb_api import Beginning, ChangeFeedRequest, ErrorCategory, Now
from multiclouddb_conformance.refusals import refused
from multiclouddb_conformance.waiting import wait_until
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
    return world.client().plan_partitions(ChangeFeedRequest(ADDRESS, start), seconds(LONG))


def read(feed, seed):
    """Return the markers of all changes after a seed."""
    reader, found = feed.open(seed.partition_id, seed.cursor), []
    while True:
        batch = reader.fetch(1000, 1 << 20, 0.0, soon())
        found += [event.new_item_state["n"] for event in batch.events(0, len(batch))]
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
            assert len(plan(world, Now())) == 20
            assert world.journal.count(LATEST) == 20 + 1

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
        assert time.monotonic() - began < LONG
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
    """Tests a listing of ten pages that are read one after another."""

    @pytest.mark.parametrize(
        ("ask", "pages"),
        [
            (lambda world: plan(world, Beginning()), PAGES),
            (lambda world: plan(world, Now()), 2 * PAGES),
            (lambda world: world.client().list_physical_partitions(ADDRESS, seconds(LONG)), PAGES),
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
            world.client().list_physical_partitions(ADDRESS, seconds(LONG))
        assert world.journal.count(LISTING) == calls

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

    def test_the_children_of_many_shards_are_asked_for_without_beginning_anew(self):
        with World(shards=6, shards_per_page=2) as world:
            _, feed = world.feed()
            seeds = feed.start(Beginning(), None, soon())
            world.roll_over()
            for seed in seeds[:3]:
                feed.open(seed.partition_id, seed.cursor).fetch(10, 1 << 20, 0.0, soon())
            world.journal.clear()
            world.troubles.fail(LISTING, REFUSAL, every=2)
            ended = {seed.partition_id: seed.cursor for seed in seeds[:3]}
            assert len(feed.survey(ended, soon(), whole=False).present) == 3
            assert world.journal.count(LISTING) == 3 + 1


class Script:
    """The answers of a stream, in the order of the script: shards, and whether pages follow; or a failure."""

    def __init__(self, *answers):
        self.answers = deque(answers)

    def describe_stream(self, arn, deadline, *, after=None, parent=None):
        shards, more = self.answers.popleft() or (None, None)
        if shards is None:
            raise ClientError({"Error": {"Code": REFUSAL}}, LISTING)
        page = {"StreamStatus": "ENABLED", "Shards": [listed(*shard) for shard in shards]}
        return page | ({"LastEvaluatedShardId": "x"} if more else {})

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


def ids(shards):
    return {shard.shard_id for shard in shards}


class TestOverlappingListings:
    """A page of one listing never counts as a page of another that starts between two of its pages."""

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
        assert ids(shards.children("p")) == {"a", "b"}

    def test_half_of_a_split_is_known_and_not_taken_for_the_whole(self):
        """The first page was read before the split, the second after it."""
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
        assert ids(half) == {"b"}
        assert end_of(half, After("7", 7)).complete is False
        assert ids(shards.discover(["p"], soon())["p"]) == {"a", "b"}
