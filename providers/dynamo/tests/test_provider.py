"""Tests the provider as a whole: native clients, threads, refused requests, and closing."""

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import boto3
import pytest
from botocore.config import Config

from multiclouddb_api import (
    AtTime,
    Beginning,
    Capability,
    ChangeFeedRequest,
    ClientConfig,
    EntireCluster,
    EntireDatabase,
    ErrorCategory,
    FromContinuationToken,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    OperationOptions,
    PhysicalPartition,
    ResourceAddress,
    connect,
)
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_dynamo import DynamoClients
from multiclouddb_dynamo import client as client_module
from multiclouddb_spi.continuation.token import decode_token

from .servers.server import REGION
from .world import ADDRESS, TABLE, WINDOWS, World, markers, session

READ = "GetRecords"
HOOK = "before-parse.dynamodb-streams.GetRecords"


@pytest.fixture
def world():
    with World() as made:
        yield made


@pytest.fixture
def native(world):
    """Return the application's own clients, with its own settings."""
    config = Config(retries={"mode": "standard", "total_max_attempts": 2}, user_agent_extra="shop")
    settings = {"region_name": REGION, "endpoint_url": world.script.endpoint_url, "config": config}
    made = DynamoClients(
        session().client("dynamodb", **settings), session().client("dynamodbstreams", **settings)
    )
    yield made
    made.dynamodb.close()
    made.streams.close()


class TestNativeClients:
    """Tests that native clients are used unchanged."""

    def read(self, native, start=None, **request):
        with connect("dynamo://", native_client=native) as client:
            return client.read_changes(ChangeFeedRequest(ADDRESS, start or Beginning(), **request))

    def test_they_read_the_same(self, world, native):
        written = world.put("a", "b")
        page = self.read(native)
        own = world.client().read_changes(ChangeFeedRequest(ADDRESS, Beginning()))
        assert markers(page.events) == written
        assert page.events == own.events

    def test_nothing_is_registered_on_them(self, world, native):
        world.put("a")
        handlers = native.streams.meta.events._emitter._handlers.prefix_search(HOOK)
        self.read(native)
        assert native.streams.meta.events._emitter._handlers.prefix_search(HOOK) == handlers

    def test_they_are_not_closed(self, world, native):
        self.read(native)
        assert native.dynamodb.list_tables()["TableNames"] == [TABLE]
        assert native.streams.list_streams()["Streams"]

    def test_their_retries_are_all_there_are(self, world, native):
        world.put("a")
        world.troubles.fail(READ, "InternalServerError", None)
        with pytest.raises(MulticloudDbError):
            self.read(native)
        assert world.journal.count(READ) == 2

    def test_the_retries_of_a_config_of_the_application_are_all_there_are(self, world):
        world.put("a")
        world.troubles.fail(READ, "InternalServerError", None)
        connection = {
            "session": session(),
            "region": REGION,
            "endpoint_url": world.script.endpoint_url,
            "config": Config(retries={"mode": "standard", "total_max_attempts": 3}),
        }
        with (
            connect(ClientConfig("dynamo", connection)) as client,
            pytest.raises(MulticloudDbError) as caught,
        ):
            client.read_changes(ChangeFeedRequest(ADDRESS, Beginning()))
        assert caught.value.retryable
        assert world.journal.count(READ) == 3

    @pytest.mark.parametrize("native", [object(), "clients", 7])
    def test_something_else_is_refused(self, native):
        with pytest.raises(MulticloudDbError) as caught:
            connect("dynamo://eu-west-1", native_client=native)
        assert caught.value.category == ErrorCategory.INVALID_REQUEST
        assert "DynamoClients" in str(caught.value)

    def test_clients_of_the_wrong_service_are_refused(self, native):
        with pytest.raises(MulticloudDbError, match="dynamodbstreams"):
            DynamoClients(native.dynamodb, native.dynamodb)

    def test_a_session_of_the_application_is_used(self, world):
        world.put("a")
        own = boto3.Session(aws_access_key_id="another", aws_secret_access_key="one", region_name=REGION)
        config = world.config()
        connection = {**config.connection, "session": own}
        with connect(ClientConfig("dynamo", connection)) as client:
            assert markers(client.read_changes(ChangeFeedRequest(ADDRESS, Beginning())).events) == [1]


class TestThreads:
    def test_several_threads_with_their_own_tokens(self):
        with World(shards=4) as world:
            written = sorted(world.put_everywhere() + world.put_everywhere() + world.put_everywhere())
            client = world.client()

            def read(_):
                return sorted(world.consumer(client=client, max_page_size=3).until_idle())

            with ThreadPoolExecutor(6) as pool:
                found = list(pool.map(read, range(6)))
        assert found == [written] * 6

    def test_readers_while_the_stream_changes(self):
        with World(shards=3) as world:
            client = world.client()
            consumers = [world.consumer(Now(), client, max_page_size=size) for size in (0, 2)]
            for consumer in consumers:
                consumer.read()
            over, written = threading.Event(), []

            def change():
                for _ in range(6):
                    written.extend(world.put_everywhere())
                    world.script.split(world.open()[0])
                    world.roll_over()
                over.set()

            def read(consumer):
                while not over.is_set():
                    consumer.read()
                consumer.until_idle()
                return sorted(consumer.markers)

            with ThreadPoolExecutor(3) as pool:
                futures = [pool.submit(read, consumer) for consumer in consumers]
                pool.submit(change).result()
                found = [future.result() for future in futures]
        assert found == [sorted(written)] * 2

    def test_the_same_token_in_two_threads_gives_the_same_events(self, world):
        written = world.put("a", "b", "c")
        client = world.client()
        request = ChangeFeedRequest(ADDRESS, Beginning())
        with ThreadPoolExecutor(4) as pool:
            pages = list(pool.map(lambda _: client.read_changes(request), range(8)))
        assert [markers(page.events) for page in pages] == [written] * 8

    def test_describe_stream_is_called_ten_times_a_second_by_all_threads_together(self, monkeypatch):
        """If a busy machine delays a call, the next call may follow too soon and be throttled, but rarely."""
        for window in WINDOWS:
            monkeypatch.setattr(client_module, "_WINDOW_SECONDS", window)
            with World(shards=4, enforce_limits=True) as world:
                client = world.client()
                with ThreadPoolExecutor(8) as pool:
                    list(pool.map(client.list_physical_partitions, [ADDRESS] * 25))
                found = world.journal.count("DescribeStream"), world.journal.most_describes
                if found == (25, 10):
                    break
        assert found == (25, 10)


class TestEnd:
    def test_a_closed_client_leaves_no_connection(self, world):
        world.put("a")
        client = world.client()
        client.read_changes(ChangeFeedRequest(ADDRESS, Beginning()))
        world.server.close()
        client.close()
        wait_until(lambda: world.script.connections == 0)

    def test_a_call_that_ends_after_the_client_is_closed_leaves_no_connection(self, world, native):
        """botocore opens a connection for a call that began before the client was closed."""
        calls = client_module.Calls(native, ours=True)
        native.dynamodb.meta.events.register("before-send", lambda **_: calls.close())
        calls.describe_table(TABLE)
        world.server.close()
        wait_until(lambda: world.script.connections == 0)

    def test_close_ends_a_call_in_flight_within_a_second(self, world):
        world.put("a")
        world.troubles.hang(READ)
        client = world.client()
        closer = threading.Timer(0.4, client.close)
        closer.start()
        begin = time.monotonic()
        with pytest.raises(MulticloudDbError):
            client.read_changes(ChangeFeedRequest(ADDRESS, Beginning()))
        assert time.monotonic() - begin < 10  # out of 30 polls; the conformance suite is stricter
        closer.join()
        world.troubles.end()

    def test_a_configuration_pickles_and_a_client_does_not(self, world):
        config = ClientConfig("dynamo", {"region": REGION, "endpoint_url": world.script.endpoint_url})
        with connect(pickle.loads(pickle.dumps(config))) as client:
            client.read_changes(ChangeFeedRequest(ADDRESS, Now()))
            with pytest.raises((TypeError, MulticloudDbError)):
                pickle.dumps(client)


REFUSED = {
    "a moment": {"start_position": "moment"},
    "a key": {"scope": LogicalPartition(MulticloudDbKey({"id": "a"}))},
    "a database": {"scope": EntireDatabase(), "address": ResourceAddress("shop")},
    "everything": {"scope": EntireCluster(), "address": ResourceAddress()},
}


class TestGates:
    """Tests requests that the service cannot serve.

    The client refuses such requests before any call, and the error says what to do.
    """

    @pytest.mark.parametrize("name", REFUSED)
    def test_scopes_and_starts(self, world, name):
        asked = {"address": ADDRESS, "start_position": Beginning()} | REFUSED[name]
        if asked["start_position"] == "moment":
            asked["start_position"] = AtTime(world.script.clock.now())
        with pytest.raises(MulticloudDbError) as caught:
            world.client().read_changes(ChangeFeedRequest(**asked))
        assert caught.value.category == ErrorCategory.UNSUPPORTED_CAPABILITY
        assert ";" in caught.value.message
        assert world.journal.count("DescribeStream") == 0

    @pytest.mark.parametrize(
        ("view", "new", "old"),
        [("KEYS_ONLY", False, False), ("NEW_IMAGE", True, False), ("OLD_IMAGE", False, True),
         ("NEW_AND_OLD_IMAGES", True, True)],
    )  # fmt: skip
    def test_items_that_a_stream_does_not_hold(self, view, new, old):
        asked = [
            (new, {"new_item_state_mode": NewItemStateMode.REQUIRE}),
            (old, {"old_item_state_mode": OldItemStateMode.REQUIRE}),
        ]
        with World(view=view) as world:
            world.put("a")
            for there, modes in asked:
                request = ChangeFeedRequest(ADDRESS, Beginning(), **modes)
                if there:
                    assert len(world.client().read_changes(request).events) == 1
                    continue
                with pytest.raises(MulticloudDbError) as caught:
                    world.client().read_changes(request)
                assert caught.value.category == ErrorCategory.UNSUPPORTED_CAPABILITY
                assert view in str(caught.value)

    def test_what_is_declared(self, world):
        capabilities = world.client().capabilities()
        assert capabilities.is_supported(Capability.CHANGE_FEED_BEGINNING)
        assert not capabilities.is_supported(Capability.CHANGE_FEED_POINT_IN_TIME)


class TestPartitions:
    def test_each_partition_by_itself_is_the_whole(self):
        with World(shards=3) as world:
            written = world.put_everywhere()
            client, found = world.client(), []
            for name in client.list_physical_partitions(ADDRESS):
                found += world.consumer(client=client, scope=PhysicalPartition(name)).until_idle()
        assert sorted(found) == written

    def test_a_partition_is_followed_through_its_children(self):
        with World(shards=2) as world:
            client = world.client()
            todo = [(name, None, Beginning()) for name in client.list_physical_partitions(ADDRESS)]
            written = world.put_everywhere()
            world.script.split(world.open()[0])
            world.roll_over()
            written += world.put_everywhere()
            found = []
            while todo:
                name, _, start = todo.pop()
                consumer = world.consumer(start, client, scope=PhysicalPartition(name))
                while True:
                    page = consumer.read()
                    if page.partition_retired:
                        todo += [
                            (child.partition_id, name, FromContinuationToken(child.continuation_token))
                            for child in page.child_partitions
                        ]
                    if page.partition_retired or page.idle:
                        break
                found += consumer.markers
        assert sorted(found) == written

    def test_the_end_of_a_partition_is_repeated(self, world):
        (name,) = world.client().list_physical_partitions(ADDRESS)
        world.put("a")
        world.roll_over()
        consumer = world.consumer(scope=PhysicalPartition(name))
        while not consumer.read().partition_retired:
            pass
        again = consumer.restart().read()
        assert again.partition_retired
        ends = [
            [
                (child.partition_id, child.parents, decode_token(child.continuation_token).state)
                for child in children
            ]
            for children in (again.child_partitions, consumer.pages[-2].child_partitions)
        ]
        assert ends[0] == ends[1] != []  # the tokens were issued at different times


def test_diagnostics(world):
    written = world.put("a", "b")
    page = world.client().read_changes(ChangeFeedRequest(ADDRESS, Beginning()))
    assert markers(page.events) == written
    told = page.diagnostics
    assert told.watermark <= page.events[-1].timestamp
    assert told.requests >= 2
    assert told.retention_headroom_seconds == pytest.approx(24 * 3600, abs=60)
    assert told.lag_seconds < 60
    idle = world.client().read_changes(
        ChangeFeedRequest(ADDRESS, FromContinuationToken(page.continuation_token)), OperationOptions()
    )
    assert idle.idle
    assert idle.diagnostics.lag_seconds < 60
