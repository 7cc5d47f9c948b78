"""Tests which deletes are marked as caused by a row deletion policy (time to live)."""

import pytest

from multiclouddb_api import Beginning, ChangeFeedRequest, ChangeType, ClientConfig, ResourceAddress
from multiclouddb_spanner.provider import PLUGIN
from multiclouddb_spanner_emulator import Write
from multiclouddb_spi import Deadline, FeedSpec

from .scripted import Scripted

STATEMENTS = {
    False: (
        "CREATE TABLE items (id STRING(MAX) NOT NULL, n INT64) PRIMARY KEY (id)",
        "CREATE CHANGE STREAM items_stream FOR items OPTIONS (value_capture_type = 'NEW_ROW')",
    ),
    True: (
        "CREATE TABLE items (id varchar NOT NULL, n bigint, PRIMARY KEY (id))",
        "CREATE CHANGE STREAM items_stream FOR items WITH (value_capture_type = 'NEW_ROW')",
    ),
}
TAG = "RowDeletionPolicy"
# Each entry contains a transaction's tag, whether the service itself made the transaction, and the value of
# `by_expiry` for a delete in it.
TRANSACTIONS = [
    pytest.param("", False, False, id="of a user"),
    pytest.param(TAG, False, False, id="of a user who chose the tag of the policy"),
    pytest.param(TAG, True, True, id="of the policy"),
    pytest.param("", True, None, id="of the service, without a reason"),
    pytest.param("Other", True, None, id="of the service, for another reason"),
]


@pytest.fixture(params=[False, True], ids=["GoogleSQL", "PostgreSQL"])
def scripted(request):
    made = Scripted(*STATEMENTS[request.param], postgres=request.param)
    yield made
    made.close()


def write(scripted, kind, rows, tag, is_system):
    names = () if kind == "delete" else ("id", "n")
    made = Write(kind, "items", names, rows)
    scripted.server.commit(scripted.database, made, tag=tag, is_system=is_system)


def events_of(scripted):
    with scripted.connect() as client:
        request = ChangeFeedRequest(ResourceAddress(scripted.name, "items"), Beginning())
        return sorted(client.iterate_changes(request, until_idle=True), key=lambda event: event.order_key)


def arrow_of(scripted):
    """Return the Arrow column `by_expiry` for all changes."""
    provider = PLUGIN.connect(ClientConfig("spanner", {"url": scripted.url}), None)
    soon = Deadline.after(20)
    found = {}
    try:
        opened = provider.open_feed(FeedSpec(ResourceAddress(scripted.name, "items")), soon)
        for seed in opened.start(Beginning(), None, soon):
            batch = opened.open(seed.partition_id, seed.cursor).fetch(100, 1 << 20, 0.0, soon)
            table = batch.arrow(0, len(batch)).to_pydict()
            found |= dict(zip(table["order_key"], table["by_expiry"], strict=True))
    finally:
        provider.close()
    return [found[key] for key in sorted(found)]


@pytest.mark.parametrize(("tag", "is_system", "expected"), TRANSACTIONS)
def test_a_delete_is_marked_as_far_as_the_service_tells(scripted, tag, is_system, expected):
    write(scripted, "insert", [["a", "1"], ["b", "1"]], "", False)
    write(scripted, "delete", [["a"], ["b"]], tag, is_system)
    events = events_of(scripted)
    assert [event.type for event in events] == [ChangeType.CREATE] * 2 + [ChangeType.DELETE] * 2
    assert [event.by_expiry for event in events] == [False, False, expected, expected]
    assert arrow_of(scripted) == [event.by_expiry for event in events]


def test_only_deletes_are_marked(scripted):
    """Creates and updates are not marked as expired, even if the service's own transactions make them."""
    write(scripted, "insert", [["a", "1"]], TAG, True)
    write(scripted, "update", [["a", "2"]], TAG, True)
    assert [event.by_expiry for event in events_of(scripted)] == [False, False]


def test_a_row_that_expired_and_came_back_is_not_marked(scripted):
    write(scripted, "insert", [["a", "1"]], "", False)
    scripted.server.expire_row(scripted.database, "items", "a")
    write(scripted, "insert", [["a", "2"]], "", False)
    write(scripted, "delete", [["a"]], "", False)
    assert [event.by_expiry for event in events_of(scripted)] == [False, True, False, False]
