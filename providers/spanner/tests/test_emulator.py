"""Tests feeds on Google's emulator: both dialects, the streams of a table, starts, positions within a
commit."""

import json
import time
from datetime import timedelta

import pytest
from google.cloud.spanner_admin_database_v1 import DatabaseDialect

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeFeedRequest,
    ChangeType,
    ClientConfig,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    PhysicalPartition,
    ResourceAddress,
    SkipToOldest,
    connect,
)
from multiclouddb_spanner.provider import PLUGIN
from multiclouddb_spi import Deadline, FeedSpec, Reached

from .servers.emulator import STILL

pytestmark = pytest.mark.emulator(*STILL)

POSTGRES = {"columns": "id varchar, n bigint, text varchar", "dialect": DatabaseDialect.POSTGRESQL}
REQUIRE = {"new_item_state_mode": NewItemStateMode.REQUIRE}


def page(client, address, start, size=0, **settings):
    start = FromContinuationToken(start) if isinstance(start, str) else start
    return client.read_changes(ChangeFeedRequest(address, start, max_page_size=size, **settings))


def drained(client, address, start, **settings):
    start = FromContinuationToken(start) if isinstance(start, str) else start
    return list(client.iterate_changes(ChangeFeedRequest(address, start, **settings), until_idle=True))


def refused(category, client, address, start=None, **settings):
    with pytest.raises(MulticloudDbError) as caught:
        page(client, address, start or Now(), **settings)
    assert caught.value.category == category, caught.value
    assert "; " in caught.value.message
    return caught.value.message


@pytest.fixture(params=["googlesql", "postgresql"])
def either(request, made):
    return made() if request.param == "googlesql" else made(**POSTGRES)


class TestFeed:
    def test_in_both_dialects_rows_come_as_they_were_written(self, either, ours):
        table, here = either
        token = page(ours, here, Now()).continuation_token
        table.insert(["a", 2**62, "x"], ["b", None, None])
        table.update(["a", 7], names=("id", "n"))
        table.delete("b")
        old = {"old_item_state_mode": OldItemStateMode.INCLUDE_IF_AVAILABLE}
        events = drained(ours, here, token, include_native=True, **old)
        told = [(e.type, e.key.components["id"], e.new_item_state, e.old_item_state) for e in events]
        created = {"id": "a", "n": 2**62, "text": "x"}
        empty = {"id": "b", "n": None, "text": None}
        assert sorted(told, key=lambda each: (each[1], each[0].value)) == [
            (ChangeType.CREATE, "a", created, None),
            (ChangeType.UPDATE, "a", {**created, "n": 7}, created),
            (ChangeType.CREATE, "b", empty, None),
            (ChangeType.DELETE, "b", None, empty),
        ]
        for event in events:
            assert event.native["number_of_records_in_transaction"] >= 1
            assert event.native["column_types"][0]["name"] == "id"
            (mod,) = event.native["mods"]
            assert mod["keys"] == dict(event.key.components)

    def test_a_key_of_several_columns_has_its_own_order(self, made, ours):
        table, here = made(columns="b INT64, a STRING(8), n INT64", key="a, b")
        token = page(ours, here, Now()).continuation_token
        table.put([1, "x", 5], names=("b", "a", "n"))
        (event,) = drained(ours, here, token)
        assert list(event.key.components.items()) == [("a", "x"), ("b", 1)]
        assert event.key.partition_key == {"a": "x"}

    def test_a_session_that_the_service_forgets_is_recreated(self, table, ours, here):
        token = page(ours, here, Now()).continuation_token
        service = table.database.spanner_api
        for session in service.list_sessions(database=table.database.name):
            service.delete_session(name=session.name)
        table.put(["a", 1, ""])
        assert len(drained(ours, here, token)) == 1


def test_a_new_process_at_every_change_goes_on_exactly_there(either):
    """A feed stops at every change of large transactions, which contain changes of several types."""
    table, here = either
    provider = PLUGIN.connect(ClientConfig("spanner", {"url": table.emulator.url}), None)
    deadline = Deadline.after(60)
    feed = provider.open_feed(FeedSpec(here), deadline)
    seeds = feed.start(Now(), None, deadline)
    table.insert(*([f"k{number}", number, "x"] for number in range(7)))
    with table.database.batch() as batch:
        batch.insert(table.name, ("id", "n", "text"), [[f"l{number}", number, "y"] for number in range(3)])
        batch.update(table.name, ("id", "n"), [[f"k{number}", 100] for number in range(3)])
        batch.update(table.name, ("id", "text"), [[f"k{number}", "z"] for number in range(3, 5)])
    table.delete("k0", "k1", "l0")

    def fetched(seed, cursor, until=None, most=1000):
        reader = feed.open(seed.partition_id, json.loads(json.dumps(cursor)), until)
        batch = reader.fetch(most, 1 << 20, 0.0, deadline)
        reader.close()
        return batch

    everything, seen = [], []
    for seed in seeds:
        batch = fetched(seed, seed.cursor)
        everything += [event.event_id for event in batch.events(0, len(batch))]
        for count in range(len(batch) + 1):  # the changes after each position, in one answer
            cursor = batch.cursor_after(count)
            rest = fetched(seed, cursor)
            assert rest.events(0, len(rest)) == batch.events(count, len(batch))
            bounded = fetched(seed, seed.cursor, cursor)
            assert bounded.events(0, len(bounded)) == batch.events(0, count)
            assert bounded.outcome == Reached()
        cursor, over = seed.cursor, False
        while not over:  # and the same changes one by one
            got = fetched(seed, cursor, most=1)
            seen += [event.event_id for event in got.events(0, len(got))]
            cursor, over = got.cursor_after(len(got)), got.caught_up
    assert seen == everything
    assert len(set(seen)) == len(seen) == 7 + 3 + 5 + 3
    assert provider.open_calls() == 0
    provider.close()


class TestStreamOfATable:
    def test_of_several_one_has_to_be_named(self, made, still, ours):
        table, here = made(streams=("first", "second"))
        assert "'first', 'second'" in refused(ErrorCategory.INVALID_REQUEST, ours, here)
        with connect(f"{still.url}&change_stream=second") as client:
            token = page(client, here, Now()).continuation_token
            table.put(["a", 1, ""])
            assert len(drained(client, here, token)) == 1
        with connect(f"{still.url}&change_stream=first") as client:
            refused(ErrorCategory.INVALID_REQUEST, client, here, FromContinuationToken(token))
        with connect(f"{still.url}&change_stream=third") as client:
            refused(ErrorCategory.NOT_FOUND, client, here)

    @pytest.mark.parametrize("watch", ["items(n)", "items()"])
    def test_one_that_leaves_columns_out_has_to_be_named(self, made, still, ours, watch):
        table, here = made(watch=watch)
        assert "some columns" in refused(ErrorCategory.INVALID_REQUEST, ours, here)
        with connect(f"{still.url}&change_stream=items_stream") as client:
            token = page(client, here, Now()).continuation_token
            table.put(["a", 1, "x"])
            (event,) = drained(client, here, token)
            assert event.new_item_state is None
            message = refused(ErrorCategory.UNSUPPORTED_CAPABILITY, client, here, **REQUIRE)
            assert "SET FOR items" in message

    def test_names_that_are_not_there(self, table, ours, still, here):
        database = table.database.database_id
        table.ddl("CREATE TABLE bare (id INT64) PRIMARY KEY (id)")
        message = refused(ErrorCategory.NOT_FOUND, ours, ResourceAddress(database, "bare"))
        assert "CREATE CHANGE STREAM bare_stream FOR bare OPTIONS" in message
        for address in (ResourceAddress(database, "Items"), ResourceAddress("no-such-db", "items")):
            refused(ErrorCategory.NOT_FOUND, ours, address)
        refused(ErrorCategory.INVALID_REQUEST, ours, ResourceAddress(None, "items"))
        with connect(still.url.replace("/tests?", "/no-such-instance?")) as client:
            refused(ErrorCategory.NOT_FOUND, client, here)
        token = page(ours, here, Now()).continuation_token
        table.ddl("DROP CHANGE STREAM items_stream")
        for start in (FromContinuationToken(token), Now()):
            assert "CREATE CHANGE STREAM" in refused(ErrorCategory.NOT_FOUND, ours, here, start)

    @pytest.mark.parametrize("settings", [{}, {"on_expired": SkipToOldest()}], ids=["fail", "skip"])
    def test_an_earlier_stream_of_the_name_is_refused(self, table, still, here, settings):
        with connect(still.url) as client:
            old = page(client, here, Now()).continuation_token
            table.put(["lost", 1, ""])
            newer = page(client, here, old).continuation_token
            partition = client.list_physical_partitions(here)[0]
        table.ddl("DROP CHANGE STREAM items_stream", *table.streams)
        table.put(["a", 1, ""])
        with connect(still.url) as client:
            for token in (old, newer):
                refused(ErrorCategory.INVALID_REQUEST, client, here, FromContinuationToken(token), **settings)
            refused(ErrorCategory.INVALID_REQUEST, client, here, scope=PhysicalPartition(partition))
            assert len(drained(client, here, Beginning())) == 1


class TestStarts:
    def test_a_moment_to_come_leaves_out_what_comes_before_it(self, table, ours, here):
        table.put(["a", 1, ""])
        (event,) = drained(ours, here, Beginning())
        before = AtTime(event.timestamp - timedelta(days=365))
        refused(ErrorCategory.CHECKPOINT_EXPIRED, ours, here, before)
        provider = PLUGIN.connect(ClientConfig("spanner", {"url": table.emulator.url}), None)
        deadline = Deadline.after(30)
        feed = provider.open_feed(FeedSpec(here), deadline)
        soon = feed.clock(deadline) + timedelta(seconds=1)
        token = page(ours, here, AtTime(soon)).continuation_token
        table.put(["too-early", 1, ""])
        while feed.clock(deadline) < soon:
            time.sleep(0.05)
        table.put(["later", 1, ""])
        provider.close()
        assert [event.key.components["id"] for event in drained(ours, here, token)] == ["later"]

    def test_now_is_after_what_was_just_acknowledged(self, table, ours, here):
        for number in range(20):
            table.put([f"k{number}", number, ""])
            token = page(ours, here, Now()).continuation_token
            table.put([f"n{number}", number, ""])
            keys = [event.key.components["id"] for event in drained(ours, here, token)]
            assert keys == [f"n{number}"]


def test_nothing_stays_open_after_many_pages(table, here):
    table.put(*([f"k{number}", number, "x"] for number in range(50)))
    provider = PLUGIN.connect(ClientConfig("spanner", {"url": table.emulator.url}), None)
    deadline = Deadline.after(120)
    feed = provider.open_feed(FeedSpec(here), deadline)
    (start, *_) = feed.start(Beginning(), None, deadline)
    for _ in range(40):
        reader = feed.open(start.partition_id, start.cursor)
        for _ in range(3):
            reader.fetch(5, 1 << 20, 0.0, deadline)
        assert provider.open_calls() <= 1
        reader.close()
    assert provider.open_calls() == 0
    sessions = [list(table.database.spanner_api.list_sessions(database=table.database.name))]
    provider.close()
    sessions.append(list(table.database.spanner_api.list_sessions(database=table.database.name)))
    before, after = map(len, sessions)
    assert before - after == 1
