"""Tests snapshots of embedded stores: collections that grow or are dropped, composite keys, damaged rows."""

import itertools
import sqlite3

import pytest

import multiclouddb_api as api
from multiclouddb_conformance.refusals import refused

ORDERED = api.Snapshot(api.SnapshotOrder.ORDERED)


@pytest.fixture
def client(store):
    with api.connect(f"embedded://{store.path}") as client:
        yield client


def fill(store, count):
    address = store.create_collection("items", partitions=2)
    for number in range(count):
        store.put("items", f"k{number}", {"n": number})
    return address


def scan(client, address, size, start=ORDERED, *, on_poison="raise", **settings):
    request = api.ChangeFeedRequest(address, start, max_page_size=size, **settings)
    return client.iterate_changes(request, until_idle=True, on_poison=on_poison)


def test_a_collection_that_grows_at_its_end_is_read_to_its_end(store, client):
    found, number = [], 0
    for page in scan(client, fill(store, 40), 4, api.Snapshot(api.SnapshotOrder.ORDERED, segments=2)).pages():
        found += [event.backfilled for event in page.events]
        if any(isinstance(notice, api.BackfillDone) for notice in page.notices):
            break
        for _ in range(8):
            number += 1
            store.put("items", f"z{number:09}", {"n": number})
    assert found == [True] * 40


def test_a_key_of_several_components_and_one_partition_key(store, client):
    address = store.create_collection("orders", 2, partition_key=["customer"])
    customers = ("a", "a]", 'a"', "b", "ab")
    for customer, number in itertools.product(customers, range(3)):
        store.put("orders", {"customer": customer, "n": number}, {"x": number})
    for customer in customers:
        scope = api.LogicalPartition(api.MulticloudDbKey({"customer": customer}))
        events = scan(client, address, 2, api.Snapshot(), scope=scope)
        assert [dict(event.key.components) for event in events] == [
            {"customer": customer, "n": number} for number in range(3)
        ]


def test_a_dropped_collection_is_never_done(store, client):
    pages = scan(client, fill(store, 50), 5).pages()
    next(page for page in pages if page.events)
    store.create_collection("items", recreate=True)
    with pytest.raises(api.MulticloudDbError) as caught:
        next(page for page in pages if page.notices)
    assert caught.value.category in (api.ErrorCategory.NOT_FOUND, api.ErrorCategory.INVALID_REQUEST)


def test_a_damaged_row_is_reported_and_can_be_skipped(store, client):
    address = fill(store, 6)
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE documents SET doc = '{broken' WHERE key LIKE '%\"k3\"%'")
    connection.close()
    with refused(api.ErrorCategory.PROVIDER_ERROR) as caught:
        list(scan(client, address, 2))
    assert "k3" not in str(caught.value)
    found = [event.key.components["id"] for event in scan(client, address, 2, on_poison="skip")]
    assert sorted(found) == ["k0", "k1", "k2", "k4", "k5"]


def test_documents_are_there_also_where_the_log_keeps_only_keys(store, client):
    address = store.create_collection("items", images="keys")
    store.put("items", "k", {"n": 1})
    assert [event.new_item_state for event in scan(client, address, 0)] == [{"n": 1}]
