"""Tests that a page says whether its feed has delivered an event before it."""

import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    OperationOptions,
    PhysicalPartition,
    Snapshot,
    SnapshotOrder,
    connect,
)
from multiclouddb_embedded import EmbeddedStore, Put
from multiclouddb_spi.continuation.token import decode_token, encode_token

STARTS = [Beginning(), Now(), Snapshot(), Snapshot(SnapshotOrder.INTERLEAVED)]


@pytest.fixture
def store(tmp_path):
    with EmbeddedStore(tmp_path / "store.db", durable=False) as store:
        store.create_collection("items", partitions=3)
        yield store


@pytest.fixture
def client(store):
    with connect(f"embedded://{store.path}") as client:
        yield client


def fill(store, first, count=6):
    store.batch("items", [Put(f"k{number}", {"n": number}) for number in range(first, first + count)])


@pytest.mark.parametrize("start", STARTS, ids=["beginning", "now", "snapshot", "interleaved"])
@pytest.mark.parametrize("ask_all", [True, False])
def test_none_up_to_the_first_page_with_events(store, client, start, ask_all):
    token, seen = None, []
    for moment in range(12):
        if moment == 4:
            fill(store, 0)
        if moment == 7:
            store.split("items", store.partitions("items")[0].partition_id)
            fill(store, 6)
        position = start if token is None else FromContinuationToken(token)
        request = ChangeFeedRequest("items", position, max_page_size=2)
        page = client.read_changes(request, OperationOptions(ask_all=ask_all))
        assert page.resumed_from == (token if any(seen) else None)
        seen.append(len(page.events))
        token = page.continuation_token
    assert seen[:4] == [0] * 4
    assert sum(seen) > 2


def test_same_in_a_new_process_and_from_an_older_token(store, client):
    fill(store, 0)
    request = ChangeFeedRequest("items", Beginning(), max_page_size=2)
    first = client.read_changes(request)
    for _ in range(2):
        with connect(f"embedded://{store.path}") as other:
            again = other.read_changes(request.after(first.continuation_token))
            assert again.resumed_from == first.continuation_token
            assert other.read_changes(request).resumed_from is None


def test_partitions_that_are_planned_begin_by_themselves(store, client):
    fill(store, 0, 30)
    planned = client.plan_partitions(ChangeFeedRequest("items", Beginning()))
    for name, token in planned:
        request = ChangeFeedRequest("items", FromContinuationToken(token), PhysicalPartition(name))
        page = client.read_changes(request)
        assert page.resumed_from is None
        assert page.events
        page = client.read_changes(request.after(page.continuation_token))
        assert page.resumed_from is not None


@pytest.mark.parametrize("is_empty", [True, False])
def test_child_of_a_partition_goes_on_after_its_events(store, client, is_empty):
    [name, *_] = client.list_physical_partitions("items")
    if not is_empty:
        fill(store, 0, 30)
    request = ChangeFeedRequest("items", Beginning(), PhysicalPartition(name))
    page = client.read_changes(request)
    assert bool(page.events) is not is_empty
    store.split("items", name.rpartition(":")[2])
    while not page.partition_retired:
        page = client.read_changes(request.after(page.continuation_token))
    for child in page.child_partitions:
        start = FromContinuationToken(child.continuation_token)
        found = client.read_changes(ChangeFeedRequest("items", start, PhysicalPartition(child.partition_id)))
        assert (found.resumed_from is None) is is_empty


def test_damaged_token_is_refused(store, client):
    page = client.read_changes(ChangeFeedRequest("items", Beginning()))
    envelope = decode_token(page.continuation_token)
    assert envelope.fresh
    assert decode_token(encode_token(envelope)) == envelope
    from multiclouddb_spi.continuation import token as tokens

    for value in (True, 0, 2, "1"):
        with pytest.raises(MulticloudDbError, match="damaged"):
            tokens._fresh(value)
