"""Tests the provider against behaviour that DynamoDB Local shows without a script."""

import time

import pytest

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
from multiclouddb_conformance.table import MemoryTable
from multiclouddb_verify import verify

from .servers.local import LocalDynamo, shared
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


@pytest.mark.slow
def test_verify_ends_although_no_answer_has_a_date_and_times_are_rounded_to_minutes(tmp_path, monkeypatch):
    monkeypatch.setattr("multiclouddb_verify.source._IDLE_SECONDS", 0.0)
    server = shared()
    server.create_table("verified")
    for number in range(5):
        server.client().put_item(TableName="verified", Item={"pk": {"S": str(number)}})
    config = ClientConfig("dynamo", {"region": REGION, "endpoint_url": server.endpoint_url})
    address, table = ResourceAddress(collection="verified"), MemoryTable()
    with connect(config) as client:
        page = client.read_changes(ChangeFeedRequest(address, Beginning()), OperationOptions(wait_seconds=5))
        table.merge(page.events)
        began = time.monotonic()
        report = verify(
            client, address, table, position=page.continuation_token, state=tmp_path / "state",
            patience_seconds=30.0,
        )  # fmt: skip
    assert report.equal
    assert report.counts.equal == 5
    assert time.monotonic() - began < PATIENCE
