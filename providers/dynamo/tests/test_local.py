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
from .servers.server import REGION

PATIENCE = 120.0


def test_a_delete_by_the_time_to_live_says_so_and_one_by_hand_does_not():
    # A server of its own: one with the tables of other tests takes minutes until it deletes.
    with LocalDynamo() as server:
        server.create_table("mortal")
        tables = server.client()
        past = {"N": str(int(time.time()) - 60)}
        for key in ("by hand", "by time"):
            tables.put_item(TableName="mortal", Item={"pk": {"S": key}, "ttl": past})
        tables.delete_item(TableName="mortal", Key={"pk": {"S": "by hand"}})
        ttl = {"Enabled": True, "AttributeName": "ttl"}
        tables.update_time_to_live(TableName="mortal", TimeToLiveSpecification=ttl)
        config = ClientConfig("dynamo", {"region": REGION, "endpoint_url": server.endpoint_url})
        position, events, until = Beginning(), [], time.monotonic() + PATIENCE
        with connect(config) as client:
            while len(events) < 4 and time.monotonic() < until:
                request = ChangeFeedRequest(ResourceAddress(collection="mortal"), position)
                page = client.read_changes(request, OperationOptions(wait_seconds=5))
                position = FromContinuationToken(page.continuation_token)
                events += page.events
    deletes = [event for event in events if event.type is ChangeType.DELETE]
    assert [(event.key.components["pk"], event.by_expiry) for event in deletes] == [
        ("by hand", False), ("by time", True),
    ]  # fmt: skip
