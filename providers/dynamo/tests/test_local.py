"""Tests the provider against behaviour that DynamoDB Local shows without a script."""

import time

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ChangeType,
    ClientConfig,
    FromContinuationToken,
    OperationOptions,
    ResourceAddress,
    connect,
)

from .servers.local import LocalDynamo
from .servers.moto import MotoDynamo
from .servers.server import REGION

PATIENCE = 120.0


def client_of(server):
    return connect(ClientConfig("dynamo", {"region": REGION, "endpoint_url": server.endpoint_url}))


def read(client, table, count):
    """Read the given number of events from the beginning, in the order of delivery."""
    position, events, until = Beginning(), [], time.monotonic() + PATIENCE
    while len(events) < count and time.monotonic() < until:
        request = ChangeFeedRequest(ResourceAddress(collection=table), position)
        page = client.read_changes(request, OperationOptions(wait_seconds=5))
        position = FromContinuationToken(page.continuation_token)
        events += page.events
    return events


class TestTimeToLive:
    def test_a_delete_by_the_service_says_so_and_one_by_hand_does_not(self):
        # A server of its own: one with the tables of other tests takes minutes until it deletes.
        with LocalDynamo() as server, client_of(server) as client:
            server.create_table("mortal")
            past = {"N": str(int(time.time()) - 60)}
            for key in ("by hand", "by time"):
                server.client().put_item(TableName="mortal", Item={"pk": {"S": key}, "ttl": past})
            server.client().delete_item(TableName="mortal", Key={"pk": {"S": "by hand"}})
            server.expire_by("mortal", "ttl")
            deletes = [event for event in read(client, "mortal", 4) if event.type is ChangeType.DELETE]
        assert [(event.key.components["pk"], event.by_expiry) for event in deletes] == [
            ("by hand", False),
            ("by time", True),
        ]


class TestMoto:
    def test_a_machine_without_npm_has_a_dynamodb_too(self):
        with MotoDynamo() as server, client_of(server) as client:
            server.create_table("smoke")
            for key in ("a", "b"):
                server.client().put_item(TableName="smoke", Item={"pk": {"S": key}})
            server.client().delete_item(TableName="smoke", Key={"pk": {"S": "a"}})
            events = read(client, "smoke", 3)
        assert [(event.type.value, event.key.components["pk"]) for event in events] == [
            ("CREATE", "a"),
            ("CREATE", "b"),
            ("DELETE", "a"),
        ]
