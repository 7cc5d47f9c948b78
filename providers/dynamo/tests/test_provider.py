"""Tests the provider as a whole: native clients, threads, refused requests, and closing."""

from concurrent.futures import ThreadPoolExecutor

import boto3
import pytest
from botocore.config import Config

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    NewItemStateMode,
    OldItemStateMode,
    OperationOptions,
    connect,
)
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_dynamo import DynamoClients
from multiclouddb_dynamo import client as client_module

from .servers.server import REGION
from .world import ADDRESS, TABLE, WINDOWS, World, markers, session

READ = "GetRecords"


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

    def test_a_session_of_the_application_is_used(self, world):
        world.put("a")
        own = boto3.Session(aws_access_key_id="another", aws_secret_access_key="one", region_name=REGION)
        config = world.config()
        connection = {**config.connection, "session": own}
        with connect(ClientConfig("dynamo", connection)) as client:
            assert markers(client.read_changes(ChangeFeedRequest(ADDRESS, Beginning())).events) == [1]


class TestThreads:
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


class TestGates:
    """Tests requests that the service cannot serve.

    The client refuses such requests before any call, and the error says what to do.
    """

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
