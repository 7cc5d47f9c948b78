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
    MulticloudDbError,
    NewItemStateMode,
    OldItemStateMode,
    connect,
)
from multiclouddb_conformance.refusals import refused
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_dynamo import DynamoClients
from multiclouddb_dynamo import client as client_module

from .servers.server import REGION
from .world import ADDRESS, TABLE, WINDOWS, World, markers, session

READ = "GetRecords"
START = ChangeFeedRequest(ADDRESS, Beginning())


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


class TestApplication:
    """Tests the application's own clients, configuration and session."""

    def test_native_clients_read_the_same_with_their_own_retries(self, world, native):
        written = world.put("a", "b")
        with connect("dynamo://", native_client=native) as client:
            world.troubles.fail(READ, "InternalServerError", None)
            with pytest.raises(MulticloudDbError):
                client.read_changes(START)
            assert world.journal.count(READ) == 2
            world.troubles.end()
            page = client.read_changes(START)
            assert markers(page.events) == written
            assert page.events == world.client().read_changes(START).events

    def test_the_retries_of_a_config_are_all_there_are(self, world):
        world.put("a")
        world.troubles.fail(READ, "InternalServerError", None)
        retries = {"config": Config(retries={"mode": "standard", "total_max_attempts": 3})}
        config = ClientConfig("dynamo", {**world.config().connection, **retries})
        with connect(config) as client, pytest.raises(MulticloudDbError) as caught:
            client.read_changes(START)
        assert caught.value.retryable
        assert world.journal.count(READ) == 3

    def test_a_session_is_used(self, world):
        world.put("a")
        own = boto3.Session(aws_access_key_id="another", aws_secret_access_key="one", region_name=REGION)
        config = ClientConfig("dynamo", {**world.config().connection, "session": own})
        with connect(config) as client:
            assert markers(client.read_changes(START).events) == [1]


def test_describe_stream_is_called_ten_times_a_second_by_all_threads_together(monkeypatch):
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


def test_a_closed_client_leaves_no_connection(world, native):
    """botocore opens a connection for a call that began before the client was closed."""
    client = world.client()
    client.read_changes(START)
    client.close()
    calls = client_module.Calls(native, ours=True)
    native.dynamodb.meta.events.register("before-send", lambda **_: calls.close())
    calls.describe_table(TABLE)
    world.server.close()
    wait_until(lambda: world.script.connections == 0)


@pytest.mark.parametrize(
    ("view", "new", "old"),
    [("KEYS_ONLY", False, False), ("NEW_IMAGE", True, False), ("OLD_IMAGE", False, True),
     ("NEW_AND_OLD_IMAGES", True, True)],
)  # fmt: skip
def test_items_that_a_stream_does_not_hold_are_refused(view, new, old):
    asked = [
        (new, {"new_item_state_mode": NewItemStateMode.REQUIRE}),
        (old, {"old_item_state_mode": OldItemStateMode.REQUIRE}),
    ]
    with World(view=view) as world:
        world.put("a")
        for there, modes in asked:
            if there:
                assert len(world.consumer(**modes).read().events) == 1
                continue
            with refused(ErrorCategory.UNSUPPORTED_CAPABILITY, view):
                world.consumer(**modes).read()


def test_diagnostics(world):
    written = world.put("a", "b")
    consumer = world.consumer()
    page = consumer.read()
    assert markers(page.events) == written
    told = page.diagnostics
    assert told.watermark <= page.events[-1].timestamp
    assert told.requests >= 2
    assert told.retention_headroom_seconds == pytest.approx(24 * 3600, abs=60)
    assert told.lag_seconds < 60
    idle = consumer.read()
    assert idle.idle
    assert idle.diagnostics.lag_seconds < 60
