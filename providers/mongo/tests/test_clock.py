"""Tests a deployment whose cluster time is ahead of the clocks of its members (DBZ-9683)."""

import time
from datetime import UTC

import pytest
from bson import Int64, Timestamp

from multiclouddb_api import AtTime, Beginning, MulticloudDbKey, Now, ResourceAddress, Snapshot, connect
from multiclouddb_mongo.oplog import Log, LogBeginning
from multiclouddb_mongo.position import At

from .monitor import read, walk
from .servers.mongod import shared

AHEAD = 7200
OWN_SETS = ("ahead",)


def tell(server, seconds):
    """Let a member see a time in the future."""
    told = Timestamp(int(time.time()) + seconds, 1)
    with server.client().start_session() as session:
        session.advance_cluster_time(
            {"clusterTime": told, "signature": {"hash": b"\0" * 20, "keyId": Int64(0)}}
        )
        server.client()["ahead"]["c"].insert_one({}, session=session)


@pytest.fixture(scope="module")
def ahead():
    """Provide a member that has once seen a time two hours in the future."""
    server = shared("ahead")
    tell(server, AHEAD)
    assert server.client().admin.command("ping")["operationTime"].time > time.time() + AHEAD - 600
    return server


@pytest.fixture
def items(ahead, database):
    return ahead.client()[database]["c"]


def now(server):
    return server.client().admin.command("hello")["localTime"].replace(tzinfo=UTC)


def test_a_watermark_is_not_later_than_a_change_that_follows(ahead, items):
    pages = watermarks_hold(ahead, items)
    shown = [each for each in pages if each.events]
    assert [each.diagnostics.watermark is None for each in shown].count(True) == 0
    assert pages[-1].idle
    assert pages[-1].diagnostics.watermark >= pages[-2].diagnostics.watermark
    assert pages[-1].diagnostics.lag_seconds < AHEAD / 2


def test_nor_if_cluster_time_is_ahead_by_less_than_clocks_may_differ(database):
    server = shared("ahead a little")
    tell(server, 8)
    watermarks_hold(server, server.client()[database]["c"])


def watermarks_hold(server, items):
    """Read 20 changes, and return the pages; no watermark is later than a change that follows."""
    items.insert_one({"_id": "first"})
    address = ResourceAddress(items.database.name, "c")
    with connect(server.uri()) as client:
        page = read(client, address, Now())
        assert page.diagnostics.watermark is None or page.diagnostics.watermark <= now(server)
        for number in range(20):
            items.insert_one({"_id": number})
        with connect(server.uri()) as other:  # a reader that has only the token
            pages = list(walk(other, address, page.continuation_token, 3))
    for index, each in enumerate(pages):
        later = [event.timestamp for other in pages[index + 1 :] for event in other.events]
        for moment in (each.diagnostics.watermark, each.diagnostics.read_until):
            assert moment is None or moment <= min(later, default=now(server))
    return pages


def test_rows_are_not_from_the_future(ahead, items):
    items.insert_many([{"_id": number} for number in range(5)])
    address = ResourceAddress(items.database.name, "c")
    with connect(ahead.uri()) as client:
        pages = list(walk(client, address, Snapshot()))
        found = client.lookup(address, [MulticloudDbKey({"_id": 1})])
        rows = [*(event for page in pages for event in page.events if event.backfilled), *found.values()]
        assert len(rows) == 6
        assert max(row.timestamp for row in rows) <= now(ahead)
        assert pages[0].diagnostics.watermark <= now(ahead)


@pytest.mark.parametrize(("age", "expected"), [(100, 100), (-AHEAD // 2, None)], ids=["before", "after"])
def test_the_headroom_follows_the_clocks(ahead, items, monkeypatch, age, expected):
    """The log begins before the time went ahead, or after it."""
    items.insert_one({"_id": "first"})
    monkeypatch.setattr(
        Log, "first_entry", lambda _: LogBeginning(At(int(now(ahead).timestamp()) - age), whole=False)
    )
    with connect(ahead.uri()) as client:
        page = read(client, ResourceAddress(items.database.name, "c"), Now())
        found = page.diagnostics.retention_headroom_seconds
    assert found is None if expected is None else expected - 30 < found < expected + 30


def test_a_start_time_is_never_late(ahead, items):
    items.insert_one({"_id": "before"})
    moment = now(ahead)
    items.insert_one({"_id": "after"})
    address = ResourceAddress(items.database.name, "c")
    with connect(ahead.uri()) as client:
        for start in (Beginning(), AtTime(moment)):
            keys = [event.key["_id"] for page in walk(client, address, start) for event in page.events]
            assert "after" in keys
