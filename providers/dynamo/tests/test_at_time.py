"""Tests starts at a time: no change since then is missing, and none from before comes as new."""

import random
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from functools import partial

import attrs
import pytest
from botocore.exceptions import ParamValidationError
from botocore.model import ServiceModel
from moto.server import ThreadedMotoServer

from multiclouddb_api import (
    AtTime,
    Beginning,
    Capability,
    ChangeFeedRequest,
    ErrorCategory,
    ErrorReason,
    PhysicalPartition,
    ResourceAddress,
    Support,
    connect,
)
from multiclouddb_conformance.refusals import refusal, refused
from multiclouddb_dynamo.capabilities import CAPABILITIES, capabilities_of
from multiclouddb_dynamo.client import Calls
from multiclouddb_dynamo.provider import PLUGIN, _capabilities_with
from multiclouddb_dynamo_emulator import Order, Remains, TimeStart
from multiclouddb_spi import Planner, read_range

from .servers import local
from .servers.server import REGION, Server, session
from .world import ADDRESS, EXPIRED, HOUR, TABLE, World, all_of, native, seconds, soon

pytestmark = pytest.mark.usefixtures("hasty")

LIFE = 4 * HOUR
POINT_IN_TIME = Capability.CHANGE_FEED_POINT_IN_TIME


@pytest.fixture
def world():
    with World(shards=2) as made:
        # The middle of a second, so that times are rounded.
        made.script.clock.stop(int(made.script.clock.seconds()) + 0.5)
        yield made


def now_of(world, earlier=0.0):
    return AtTime(world.script.clock.now() - timedelta(seconds=earlier))


def lived(world, rounds=3):
    """Write twice in every shard, and roll all of them over, some times. Return the markers' times."""
    times = {}
    for number in range(rounds):
        for _ in range(2):
            times |= dict.fromkeys(world.put_everywhere(), world.script.clock.seconds())
            world.script.advance(LIFE / 2 - 5)
        if number % 2:
            world.script.split(world.open()[0])
        world.roll_over()
        world.script.advance(10)
    return times | dict.fromkeys(world.put_everywhere(), world.script.clock.seconds())


class TestWhatComes:
    @pytest.mark.parametrize("restarts", [False, True])
    @pytest.mark.parametrize("habit", [TimeStart.APPLIED, TimeStart.OPEN_ONLY])
    def test_everything_since_the_time_and_nothing_before_it(self, world, habit, restarts):
        times = lived(world)
        world.habits.time_start = habit
        moments = sorted(set(times.values()))
        for moment in moments[2:3] if restarts else moments[1:]:
            for start in (int(moment), int(moment) + 1):
                consumer = world.consumer(AtTime(datetime.fromtimestamp(start, UTC)), max_page_size=3)
                if restarts:
                    while not consumer.read().idle:
                        consumer.restart()
                else:
                    consumer.until_idle()
                assert sorted(consumer.markers) == [marker for marker, time in times.items() if time >= start]

    @pytest.mark.parametrize("seed", range(6))
    def test_in_any_history(self, world, seed):
        chance, times = random.Random(seed), {}
        world.habits.order = chance.choice(list(Order))
        for _ in range(30):
            match chance.randrange(6):
                case 0:
                    world.roll_over()
                case 1 if len(world.open()) < 6:
                    world.script.split(chance.choice(world.open()))
                case 2:
                    world.script.advance(chance.choice([1, 60, HOUR / 2]))
                case _:
                    shard = chance.choice(world.open())
                    times |= dict.fromkeys(world.put_in(shard), world.script.clock.seconds())
        for _ in range(4):
            moment = int(chance.choice(list(times.values()))) + chance.choice([0, 0, 1])
            consumer = world.consumer(AtTime(datetime.fromtimestamp(moment, UTC)))
            consumer.until_idle()
            wanted = [marker for marker, time in times.items() if time >= moment]
            assert sorted(consumer.markers) == wanted

    def test_a_time_within_a_second_begins_with_the_second(self, world):
        old = world.put_everywhere()
        world.script.advance(1)
        young = world.put_everywhere()
        consumer = world.consumer(now_of(world, -0.4))
        consumer.until_idle()
        assert sorted(consumer.markers) == young
        assert old not in young

    def test_one_partition(self, world):
        parent = world.open()[0]
        world.put_in(parent)
        world.script.advance(60)
        start = now_of(world)
        wanted = world.put_in(parent)
        names = world.client().list_physical_partitions(ADDRESS)
        (name,) = (each for each in names if native(each) == parent)
        child, _ = world.roll_over()
        consumer = world.consumer(start, scope=PhysicalPartition(name))
        while not (page := consumer.read()).child_partitions:
            pass
        assert consumer.markers == wanted
        assert [native(each.partition_id) for each in page.child_partitions] == [child]

    def test_what_is_written_while_a_time_is_ahead_of_the_clock(self, world):
        old = world.put_everywhere()
        start = now_of(world, -50)
        consumer = world.consumer(start)
        consumer.read()
        world.script.advance(20)
        old += world.put_everywhere()
        consumer.until_idle()
        world.script.advance(30)
        young = world.put_everywhere()
        consumer.restart().until_idle()
        assert sorted(consumer.markers) == young
        assert old
        assert "TRIM_HORIZON" not in {call.iterator_type for call in world.journal.calls("GetShardIterator")}

    def test_a_parent_that_the_listing_hides(self, world):
        parent = world.open()[0]
        start = now_of(world)
        written = world.put_everywhere()
        world.roll_over()
        written += world.put_everywhere()
        world.script.hide(parent, calls=100)
        consumer = world.consumer(start)
        consumer.until_found(written)
        assert sorted(consumer.markers) == sorted(written)

    def test_a_shard_that_the_service_lists_late(self, world):
        world.settings["coverage_audit_seconds"] = 0.2
        world.put_everywhere()
        world.script.advance(HOUR)
        start = now_of(world)
        late = world.open()[0]
        written = world.put_everywhere()
        world.script.hide(late, seconds=30)
        consumer = world.consumer(start)
        consumer.until_idle()
        world.script.advance(10 * 60)
        consumer.until_found(written)
        assert sorted(consumer.markers) == sorted(written)


class TestAge:
    def test_a_time_older_than_the_retention_has_expired(self, world):
        world.put_everywhere()
        with refused(ErrorCategory.CHECKPOINT_EXPIRED, "AtTime.utc"):
            world.consumer(now_of(world, 24 * HOUR + 2)).read()
        consumer = world.consumer(now_of(world, 24 * HOUR - 2))
        assert len(consumer.until_idle()) == 2

    def test_an_unread_start_expires_with_its_time(self, world):
        consumer = world.consumer(now_of(world, 20 * HOUR), max_page_size=1)
        consumer.read()
        world.put_everywhere()
        world.script.advance(5 * HOUR)
        with refused(ErrorCategory.CHECKPOINT_EXPIRED):
            consumer.restart().read()

    def test_a_table_without_changes_does_not_expire(self, world):
        consumer = world.consumer(now_of(world))
        for _ in range(14):
            consumer.restart().until_idle()
            world.script.advance(LIFE)
            world.roll_over()
        written = world.put_everywhere()
        consumer.restart().until_found(written)
        assert sorted(consumer.markers) == written

    @pytest.mark.parametrize("remains", list(Remains))
    def test_a_shard_without_records_since_the_time_may_be_trimmed(self, world, remains):
        first = world.open()
        world.put_everywhere()
        world.script.advance(HOUR)
        world.roll_over()
        written = world.put_everywhere()
        world.script.drop_shards(first, remains)
        consumer = world.consumer(now_of(world, 60))
        consumer.until_found(written)
        assert sorted(consumer.markers) == written

    @pytest.mark.parametrize("hours", [EXPIRED / HOUR, 23])
    def test_an_unread_start_holds_until_then(self, world, hours):
        world.put_everywhere()
        world.script.advance(1)
        consumer = world.consumer(now_of(world))
        consumer.read()
        written = world.put_everywhere()
        world.script.advance(hours * HOUR)
        consumer.restart().until_idle()
        assert sorted(consumer.markers) == written


class TestRefused:
    @pytest.mark.parametrize(
        ("habits", "words"),
        [
            ({"time_start": TimeStart.REFUSED}, "does not know the ShardIteratorType AT_TIMESTAMP"),
            ({"time_start": TimeStart.FROM_THE_END}, "ignores the time"),
            ({"time_start": TimeStart.FROM_THE_OLDEST}, "ignores the time"),
            ({"tells_time": False}, "sends no time"),
        ],
    )
    def test_where_the_server_cannot(self, habits, words):
        with World(**habits) as world:
            world.put("a")
            start = now_of(world, 60)
            act = partial(world.consumer(start).read)
            error = refusal(ErrorCategory.UNSUPPORTED_CAPABILITY, act, words, "start at Beginning()")
            assert not error.retryable
            assert world.journal.count("GetRecords") == 0

    def test_moto_which_ignores_the_time(self):
        """moto 5.2.5 gives an iterator for every type, and cannot read with one that it does not know."""
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        try:
            with Server("http://{}:{}".format(*server.get_host_and_port())) as made:
                made.create_table(TABLE, partition_key="id")
                made.client().put_item(TableName=TABLE, Item={"id": {"S": "a"}})
                url = f"dynamo://{REGION}?endpoint_url={made.endpoint_url}"
                request = ChangeFeedRequest(ADDRESS, AtTime(datetime.now(UTC) - timedelta(minutes=1)))
                with connect(url) as client:
                    with refused(ErrorCategory.UNSUPPORTED_CAPABILITY, "ignores the time"):
                        client.read_changes(request)
                    way_out = attrs.evolve(request, start_position=Beginning())
                    assert len(client.read_changes(way_out).events) == 1
        finally:
            server.stop()

    def test_dynamodb_local_which_does_not_know_the_type(self):
        server, name = local.shared(), "at-time"
        server.create_table(name, partition_key="id")
        with connect(f"dynamo://{REGION}?endpoint_url={server.endpoint_url}") as client:
            request = ChangeFeedRequest(ResourceAddress(collection=name), AtTime(datetime.now(UTC)))
            with refused(ErrorCategory.UNSUPPORTED_CAPABILITY, "start at Beginning()"):
                client.read_changes(request)


class TestOlderBotocore:
    """botocore knows the time since 1.43.114; older versions refuse the parameter `Timestamp`."""

    def test_a_model_without_the_parameter_has_no_such_capability(self):
        model = session().client("dynamodbstreams", region_name=REGION).meta.service_model
        description = deepcopy(model._service_description)
        assert _capabilities_with(model) == PLUGIN.capabilities()
        del description["shapes"]["GetShardIteratorInput"]["members"]["Timestamp"]
        found = _capabilities_with(ServiceModel(description, "dynamodbstreams"))
        assert found[POINT_IN_TIME].support is Support.UNSUPPORTED
        assert "install botocore 1.43.114 or newer, or start at Beginning()" in found[POINT_IN_TIME].note
        assert {each for each in found if found[each] != CAPABILITIES[each]} == {POINT_IN_TIME}
        assert found.scan == CAPABILITIES.scan

    def test_a_start_is_refused_without_a_call(self, world, monkeypatch):
        older = capabilities_of("1.40.0", knows_times=False)
        monkeypatch.setattr("multiclouddb_dynamo.provider._capabilities_with", lambda _: older)
        act = world.consumer(now_of(world)).read
        error = refusal(ErrorCategory.UNSUPPORTED_CAPABILITY, act, "botocore 1.40.0", "1.43.114")
        assert error.detail.reason is ErrorReason.NOT_OFFERED
        assert not world.journal.calls("DescribeTable")

    def test_a_token_of_a_newer_one_is_read(self, world, monkeypatch):
        world.put_everywhere()
        world.script.advance(10)
        start = now_of(world)
        written = world.put_everywhere()
        world.habits.empty_pages = 1000
        consumer = world.consumer(start)
        consumer.read(seconds(2))
        assert not consumer.markers
        world.habits.empty_pages = 0
        world.script.advance(EXPIRED)

        def refuse(*_):
            raise ParamValidationError(report='Unknown parameter in input: "Timestamp"')

        monkeypatch.setattr(Calls, "iterator_at", refuse)
        consumer.restart().until_idle()
        assert sorted(consumer.markers) == written


class TestPlanned:
    """A range that ends at a time, as a batch of Spark with an `endingPosition`."""

    def test_everything_before_the_time(self, world):
        times = lived(world)
        provider, feed = world.feed()
        for moment in sorted(set(times.values())):
            for start in (Beginning(), AtTime(datetime.fromtimestamp(min(times.values()), UTC))):
                planner = Planner(provider, feed)
                target = planner.target_at(datetime.fromtimestamp(moment, UTC), soon())
                found = [
                    marker
                    for step in planner.steps(planner.start(start, soon()), soon(), target)
                    for part in step.ranges()
                    for batch in read_range(provider, feed, part)
                    for marker in all_of(batch)
                ]
                assert sorted(found) == [marker for marker, time in times.items() if time < int(moment)]
        provider.close()
