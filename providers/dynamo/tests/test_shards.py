"""Tests how the shards of a stream are listed: the cost, listings that overlap, and replicas that lag."""

import math
from datetime import UTC, datetime

import pytest
from botocore.exceptions import ClientError

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance.refusals import refused
from multiclouddb_dynamo import shards as module
from multiclouddb_dynamo.client import Calls
from multiclouddb_dynamo.position import After
from multiclouddb_dynamo.shards import Listing, ShardMap
from multiclouddb_dynamo.starts import end_of

from .world import World, seconds, soon


def listed(name, parent=None, ended=False):
    numbers = {"StartingSequenceNumber": "1"} | ({"EndingSequenceNumber": "2"} if ended else {})
    return {"ShardId": name, "SequenceNumberRange": numbers} | ({"ParentShardId": parent} if parent else {})


def ids(shards):
    return {shard.shard_id for shard in shards}


class Service:
    """A stream whose clock the test moves. It lists the test's shards, a hundred on each page."""

    status = "ENABLED"

    def __init__(self, *shards):
        self.clock, self.calls, self.shards = 0.0, [], shards

    def monotonic(self):
        return self.clock

    def now(self):
        return datetime.fromtimestamp(1_800_000_000 + self.clock, UTC)

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


@pytest.fixture
def served(monkeypatch):
    def make(*shards):
        service = Service(*shards)
        monkeypatch.setattr(module, "time", service)
        return service, ShardMap(service, "arn")

    return make


class TestCost:
    """The cost of looking for children: a stream allows ten DescribeStream calls per second."""

    def test_a_shard_without_children(self, served):
        service, shards = served(listed("p", ended=True))
        while service.clock < 600:
            shards.discover(["p"], soon())
            service.clock += 0.02
        assert service.count(1) >= 3
        assert service.count(10) <= 8
        assert service.count(60) <= 15
        assert service.count(600) <= 80

    def test_a_thousand_shards_that_are_rolled_over_at_once(self, served):
        parents = [f"p{number}" for number in range(1000)]
        ended = [listed(name, ended=True) for name in parents]
        service, shards = served(*ended, *(listed(f"c{name}", name) for name in parents))
        looks, looked = dict.fromkeys(parents, 0), dict.fromkeys(parents, -math.inf)
        answered = {}
        while service.clock < 600:
            # As in the engine, each pause is as long as all pauses before it.
            due = [name for name in parents if service.clock - looked[name] >= 0.1 * 2 ** looks[name]]
            for name in shards.discover(due, soon()) if due else ():
                answered.setdefault(name, service.clock)
                looks[name], looked[name] = looks[name] + 1, service.clock
            service.clock += 0.1 if len(answered) < 1000 else 0.5
        assert len(answered) == 1000
        assert max(answered.values()) < 3
        assert service.count(60) <= 40
        assert service.count(600) <= 0.45 * 600 + 20

    def test_a_new_end_is_looked_for_at_once_whatever_was_asked_before(self, served):
        service, shards = served(listed("p", ended=True), listed("q", ended=True), listed("c", "q"))
        while service.clock < 100:
            shards.discover(["p"], soon())
            service.clock += 0.02
        assert ids(shards.discover(["p", "q"], soon())["q"]) == {"c"}

    def test_a_list_that_takes_long_goes_on_with_the_next_call(self, served):
        parents = [listed(f"p{number}", ended=True) for number in range(10_000)]
        service, shards = served(*parents, listed("c", "p1"))
        calls = 0
        while not (found := shards.discover(["p1"], soon())):
            calls += 1
            assert calls < 10
        assert calls
        assert len(service.calls) == 101
        assert ids(found["p1"]) == {"c"}

    def test_a_listing_that_was_made_for_a_search_answers_the_looks_that_were_due(self, served):
        """The listings of a large stream use up the calls, so no shard could be asked about on its own."""
        parents = [f"p{number}" for number in range(500)]
        ended = [listed(name, ended=True) for name in parents]
        service, shards = served(*ended, *(listed(f"c{name}", name) for name in parents))
        looks, looked, searched = dict.fromkeys(parents, 0), dict.fromkeys(parents, 0.0), -math.inf
        while service.clock < 1500 and min(looks.values()) < 15:
            if service.clock - searched >= 20:
                searched = service.clock
                shards.read_again(soon())
            pauses = {name: min(120, 0.1 * 2 ** looks[name]) for name in parents}
            due = [name for name in parents if service.clock - looked[name] >= pauses[name]]
            for name in shards.discover(due, soon()) if due else ():
                looks[name], looked[name] = looks[name] + 1, service.clock
            service.clock += 2.0
        assert min(looks.values()) == 15
        assert service.clock < 1500

    def test_a_listing_from_before_a_look_was_due_does_not_answer_it(self, served):
        service, shards = served(listed("p", ended=True), listed("c", "p"))
        shards.read_again(soon())
        shards._looks.credit = -math.inf
        assert shards.discover(["p"], soon()) == {}
        service.clock += 1.0
        assert shards.discover(["p"], soon()) == {}
        shards.read_again(soon())
        assert ids(shards.discover(["p"], soon())["p"]) == {"c"}
        assert shards.discover(["p"], soon()) == {}

    def test_a_listing_is_paid_for_before_another_begins_early(self, served):
        service, shards = served(*(listed(f"p{number}", ended=True) for number in range(7000)))
        assert shards.can_list_early()
        shards.read_again(soon())
        service.clock = (70 - 6) / 0.4 - 1
        assert not shards.can_list_early()
        service.clock += 2
        assert shards.can_list_early()

    def test_looks_leave_enough_for_a_listing(self, served):
        """Looks that are due all the time would otherwise put off each listing that can also wait."""
        service, shards = served(*(listed(f"p{number}", ended=True) for number in range(7000)))
        shards.read_again(soon())
        while not shards.can_list_early():
            assert service.clock < 250
            shards.discover([f"p{number}" for number in range(10)], soon())
            service.clock += 2

    def test_no_end_is_told_by_listings_that_follow_each_other_closely(self, served):
        service, shards = served(listed("p", ended=True))
        service.status = "DISABLED"
        while not shards.settled:
            shards.discover(["p"], soon())
            service.clock += 0.02
        assert service.calls[-1] - service.calls[0] >= 5
        assert service.clock < 10


class Script(Service):
    """The answers of a stream, in the order of the script: shards, and whether pages follow; or a failure."""

    def describe_stream(self, arn, deadline, *, after=None, parent=None):
        (shards, more), *self.shards = self.shards
        if shards is None:
            raise ClientError({"Error": {"Code": "LimitExceededException"}}, "DescribeStream")
        page = {"StreamStatus": "ENABLED", "Shards": [listed(*shard) for shard in shards]}
        return page | ({"LastEvaluatedShardId": "x"} if more else {})


MORE, LAST = True, False
FAILS = None, MORE
OPEN, ENDED = False, True


class TestOverlappingListings:
    """A page of one listing never counts as a page of another that starts between two of its pages."""

    def begun(self, shards):
        """Return a listing that failed at a page."""
        listing = Listing()
        with pytest.raises(ClientError):
            shards.read(soon(), listing)
        return listing

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
        early = self.begun(shards)
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
        early = self.begun(shards)
        assert set(shards.discover(["g"], soon())["g"]) == {shards.find("p")}
        shards.read(soon(), early)
        half = shards.children("p")
        assert ids(half) == {"b"}
        assert end_of(half, After("7", 7)).complete is False
        assert ids(shards.discover(["p"], soon())["p"]) == {"a", "b"}


def test_a_replica_that_lags_is_asked_again_and_does_not_mean_that_the_table_is_gone(monkeypatch):
    """The replica does not know the shard after which a page of a listing begins."""
    describe, left = Calls.describe_stream, [4]

    def described(self, arn, deadline, *, after=None, parent=None):
        if after is not None and left[0]:
            left[0] -= 1
            error = {"Error": {"Code": "ResourceNotFoundException", "Message": "Shard not found"}}
            raise ClientError(error, "DescribeStream")
        return describe(self, arn, deadline, after=after, parent=parent)

    monkeypatch.setattr(Calls, "describe_stream", described)
    with World(shards=101) as world:
        written = world.put("a")
        assert world.consumer().until_idle() == written
        left[0] = 10**6
        with refused(ErrorCategory.TRANSIENT_FAILURE) as caught:
            world.consumer().read(seconds(10))
        assert caught.value.retryable
