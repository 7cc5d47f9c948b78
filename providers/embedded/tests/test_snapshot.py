"""Tests snapshots of embedded stores: collections that grow or are dropped, composite keys, damaged rows."""

import itertools
import sqlite3

import pytest

import multiclouddb_api as api

ORDERED = api.Snapshot(api.SnapshotOrder.ORDERED)


def fill(store, count):
    address = store.create_collection("items", partitions=2)
    for number in range(count):
        store.put("items", f"k{number}", {"n": number})
    return address


def read(client, address, start, size=0, **settings):
    position = api.FromContinuationToken(start) if isinstance(start, str) else start
    request = api.ChangeFeedRequest(address, position, max_page_size=size, **settings)
    return client.read_changes(request, api.OperationOptions())


def pages(client, address, start, size=0, **settings):
    while True:
        page = read(client, address, start, size, **settings)
        yield page
        if page.idle or page.partition_retired:
            return
        start = page.continuation_token


class TestScan:
    def test_a_collection_that_grows_at_its_end_is_read_to_its_end(self, store):
        address = fill(store, 40)
        found, number = [], 0
        with api.connect(f"embedded://{store.path}") as client:
            for page in pages(client, address, api.Snapshot(api.SnapshotOrder.ORDERED, segments=2), 4):
                found += [event.backfilled for event in page.events]
                if any(isinstance(notice, api.BackfillDone) for notice in page.notices):
                    break
                for _ in range(8):
                    number += 1
                    store.put("items", f"z{number:09}", {"n": number})
        assert found == [True] * 40

    def test_a_key_of_several_components_and_one_partition_key(self, store):
        address = store.create_collection("orders", 2, partition_key=["customer"])
        customers = ("a", "a]", 'a"', "b", "ab")
        for customer, number in itertools.product(customers, range(3)):
            store.put("orders", api.MulticloudDbKey({"customer": customer, "n": number}), {"x": number})
        for customer in customers:
            scope = api.LogicalPartition(api.MulticloudDbKey({"customer": customer}))
            with api.connect(f"embedded://{store.path}") as client:
                events = [
                    e for page in pages(client, address, api.Snapshot(), 2, scope=scope) for e in page.events
                ]
            assert [dict(event.key.components) for event in events] == [
                {"customer": customer, "n": number} for number in range(3)
            ]

    def test_a_dropped_collection_is_never_done(self, store):
        address = fill(store, 50)
        with api.connect(f"embedded://{store.path}") as client:
            token = read(client, address, ORDERED).continuation_token
            token = read(client, address, token, 5).continuation_token
            store.create_collection("items", recreate=True)
            with pytest.raises(api.MulticloudDbError) as caught:
                next(page for page in pages(client, address, token, 5) if page.notices)
        assert caught.value.category in (api.ErrorCategory.NOT_FOUND, api.ErrorCategory.INVALID_REQUEST)

    def test_a_damaged_row_is_reported_and_can_be_skipped(self, store):
        address = fill(store, 6)
        with sqlite3.connect(store.path) as connection:
            connection.execute("UPDATE documents SET doc = '{broken' WHERE key LIKE '%\"k3\"%'")
        connection.close()
        with api.connect(f"embedded://{store.path}") as client:
            start, found, raised = ORDERED, [], []
            while True:
                try:
                    page = read(client, address, start, 2)
                except api.MulticloudDbError as error:
                    raised.append(error)
                    start = error.detail.skip_token
                    continue
                found += [event.key.components["id"] for event in page.events]
                start = page.continuation_token
                if page.idle:
                    break
        assert [error.category for error in raised] == [api.ErrorCategory.PROVIDER_ERROR]
        assert "k3" not in str(raised[0])
        assert sorted(found) == ["k0", "k1", "k2", "k4", "k5"]

    def test_documents_are_there_also_where_the_log_keeps_only_keys(self, store):
        address = store.create_collection("items", images="keys")
        store.put("items", "k", {"n": 1})
        with api.connect(f"embedded://{store.path}") as client:
            events = [event for page in pages(client, address, ORDERED) for event in page.events]
        assert [event.new_item_state for event in events] == [{"n": 1}]
