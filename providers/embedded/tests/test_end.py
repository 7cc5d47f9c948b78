"""Tests that `close` and `stop` end running calls within a second."""

import pytest

from multiclouddb_api import ChangeFeedRequest, Now, ResourceAddress, connect
from multiclouddb_conformance.slow_link import SlowConsumer, seconds_to_close, seconds_to_stop
from multiclouddb_embedded import EmbeddedStore

ADDRESS = ResourceAddress("main", "orders")


@pytest.mark.parametrize("end", ["close", "stop"])
def test_within_a_second(tmp_path, end):
    place = tmp_path / "store.db"
    with EmbeddedStore(place) as store:
        store.create_collection("orders")
        with connect(f"embedded://{place}") as client:
            consumer = SlowConsumer(client, ADDRESS, Now(), timeout=30.0, wait=20.0).begin()
            if end == "close":
                assert seconds_to_close(client, consumer.read) < 1
            else:
                request = ChangeFeedRequest(ADDRESS, consumer.start)
                assert seconds_to_stop(client.iterate_changes(request, wait_seconds=20)) < 1
