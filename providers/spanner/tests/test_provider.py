"""Tests feeds on Google's emulator: both dialects, the streams of a table, starts, positions within a
commit."""

import json
import threading
import time

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
    OperationOptions,
    PhysicalPartition,
    ResourceAddress,
    SkipToOldest,
    connect,
)
from multiclouddb_spanner.provider import PLUGIN
from multiclouddb_spi import Deadline, FeedSpec, Reached

from .servers.emulator import STILL
from .table import Table

pytestmark = pytest.mark.emulator(*STILL)

REQUIRE = NewItemStateMode.REQUIRE
POSTGRES = DatabaseDialect.POSTGRESQL
PG_COLUMNS = "id varchar, n bigint, text varchar"


def page(client, address, start, size=0, wait=0.0, **settings):
    request = ChangeFeedRequest(address, start, max_page_size=size, **settings)
    return client.read_changes(request, OperationOptions(wait_seconds=wait))


def sessions_of(table):
    """Return the sessions that exist on the server for a table's database."""
    return list(table.database.spanner_api.list_sessions(database=table.database.name))


def drained(client, address, start, **settings):
    request = ChangeFeedRequest(address, start, **settings)
    return list(client.iterate_changes(request, until_idle=True))


def refused(category, call, *arguments, **settings):
    with pytest.raises(MulticloudDbError) as caught:
        call(*arguments, **settings)
    assert caught.value.category == category, caught.value
    assert "; " in caught.value.message
    return caught.value.message


@pytest.fixture
def made(still):
    """Provide a function that makes a table, and returns the table and its address."""
    tables = []

    def make(**settings):
        tables.append(Table(still, **settings))
        return tables[-1], ResourceAddress(tables[-1].database.database_id, tables[-1].name)

    yield make
    for table in tables:
        table.drop()


@pytest.fixture(params=["googlesql", "postgresql"])
def either(request, made):
    if request.param == "googlesql":
        return made()
    return made(columns=PG_COLUMNS, dialect=POSTGRES)


class TestFeed:
    def test_in_both_dialects_rows_come_as_they_were_written(self, either, ours):
        table, here = either
        token = page(ours, here, Now()).continuation_token
        table.insert(["a", 2**62, "x"], ["b", None, None])
        table.update(["a", 7], names=("id", "n"))
        table.delete("b")
        events = drained(
            ours,
            here,
            FromContinuationToken(token),
            old_item_state_mode=OldItemStateMode.INCLUDE_IF_AVAILABLE,
        )
        told = [(e.type, e.key.components["id"], e.new_item_state, e.old_item_state) for e in events]
        created = {"id": "a", "n": 2**62, "text": "x"}
        empty = {"id": "b", "n": None, "text": None}
        assert sorted(told, key=lambda each: (each[1], each[0].value)) == [
            (ChangeType.CREATE, "a", created, None),
            (ChangeType.UPDATE, "a", {**created, "n": 7}, created),
            (ChangeType.CREATE, "b", empty, None),
            (ChangeType.DELETE, "b", None, empty),
        ]

    def test_other_tables_of_the_stream_are_left_out(self, made, ours):
        table, here = made(watch="ALL")
        table.ddl("CREATE TABLE others (id STRING(MAX), n INT64, text STRING(MAX)) PRIMARY KEY (id)")
        token = page(ours, here, Now()).continuation_token
        for number in range(5):
            table.put([f"o{number}", 1, ""], table="others")
            table.put([f"k{number}", number, ""])
        assert [e.new_item_state["n"] for e in drained(ours, here, FromContinuationToken(token))] == list(
            range(5)
        )

    def test_a_key_of_several_columns_has_its_own_order(self, made, ours):
        _, here = table, _ = made(columns="b INT64, a STRING(8), n INT64", key="a, b")
        here = _
        token = page(ours, here, Now()).continuation_token
        table.put([1, "x", 5], names=("b", "a", "n"))
        (event,) = drained(ours, here, FromContinuationToken(token))
        assert list(event.key.components.items()) == [("a", "x"), ("b", 1)]
        assert event.key.partition_key == {"a": "x"}

    def test_the_native_record_is_the_service_s(self, either, ours):
        table, here = either
        token = page(ours, here, Now()).continuation_token
        table.insert(["a", 1, "x"], ["b", 2, "y"])
        events = drained(ours, here, FromContinuationToken(token), include_native=True)
        for event in events:
            assert event.native["mod_type"] == "INSERT"
            assert event.native["number_of_records_in_transaction"] >= 1
            assert [column["name"] for column in event.native["column_types"]] == ["id", "n", "text"]
            (mod,) = event.native["mods"]
            assert mod["keys"] == dict(event.key.components)


class TestEveryPlace:
    """Tests a feed that stops at every change of large transactions, which contain changes of several
    types."""

    @pytest.fixture
    def written(self, either):
        table, here = either
        provider = PLUGIN.connect(ClientConfig("spanner", {"url": table.emulator.url}), None)
        deadline = Deadline.after(60)
        seeds = provider.open_feed(FeedSpec(here), deadline).start(Now(), None, deadline)
        table.insert(*([f"k{number}", number, "x"] for number in range(12)))
        with table.database.batch() as batch:
            batch.insert(
                table.name, ("id", "n", "text"), [[f"l{number}", number, "y"] for number in range(5)]
            )
            batch.update(table.name, ("id", "n"), [[f"k{number}", 100] for number in range(4)])
            batch.update(table.name, ("id", "text"), [[f"k{number}", "z"] for number in range(4, 7)])
        table.delete("k0", "k1", "l0")
        table.put(["m", 1, "end"])
        yield provider, here, seeds
        provider.close()

    def test_a_new_process_at_every_change_goes_on_exactly_there(self, written):
        provider, here, seeds = written
        deadline = Deadline.after(60)
        everything, seen = [], []
        for seed in seeds:
            feed = provider.open_feed(FeedSpec(here), deadline)
            batch = feed.open(seed.partition_id, seed.cursor).fetch(1000, 1 << 20, 0.0, deadline)
            everything += [event.event_id for event in batch.events(0, len(batch))]
            for count in range(len(batch) + 1):  # the changes after each position, in one answer
                cursor = json.loads(json.dumps(batch.cursor_after(count)))
                rest = feed.open(seed.partition_id, cursor).fetch(1000, 1 << 20, 0.0, deadline)
                assert rest.events(0, len(rest)) == batch.events(count, len(batch))
                bounded = feed.open(seed.partition_id, seed.cursor, cursor).fetch(
                    1000, 1 << 20, 0.0, deadline
                )
                assert bounded.events(0, len(bounded)) == batch.events(0, count)
                assert bounded.outcome == Reached()
            cursor = seed.cursor
            while True:  # and the same changes one by one
                with_one = feed.open(seed.partition_id, cursor)
                got = with_one.fetch(1, 1 << 20, 0.0, deadline)
                with_one.close()
                seen += [event.event_id for event in got.events(0, len(got))]
                cursor = json.loads(json.dumps(got.cursor_after(len(got))))
                if got.caught_up:
                    break
        assert seen == everything
        assert len(set(seen)) == len(seen) == 12 + 5 + 7 + 3 + 1
        assert provider.open_calls() == 0

    def test_events_of_one_transaction_share_its_commit_and_nothing_else(self, written, ours):
        _, here, _ = written
        events = drained(ours, here, Beginning())
        assert len({event.event_id for event in events}) == 28
        assert len({event.timestamp for event in events}) == 4


class TestStreamOfATable:
    def test_without_one_the_statement_is_named(self, still, ours):
        database = still.database("CREATE TABLE bare (id INT64) PRIMARY KEY (id)")
        message = refused(
            ErrorCategory.NOT_FOUND, page, ours, ResourceAddress(database.database_id, "bare"), Now()
        )
        assert "CREATE CHANGE STREAM bare_stream FOR bare OPTIONS" in message
        database.drop()

    def test_of_several_one_has_to_be_named(self, made, still, ours):
        table, here = made(streams=("first", "second"))
        message = refused(ErrorCategory.INVALID_REQUEST, page, ours, here, Now())
        assert "'first', 'second'" in message
        with connect(f"{still.url}&change_stream=second") as client:
            token = page(client, here, Now()).continuation_token
            table.put(["a", 1, ""])
            assert len(drained(client, here, FromContinuationToken(token))) == 1
        with connect(f"{still.url}&change_stream=first") as client:
            message = refused(ErrorCategory.INVALID_REQUEST, page, client, here, FromContinuationToken(token))
            assert "recreated" in message or "another" in message
        with connect(f"{still.url}&change_stream=third") as client:
            refused(ErrorCategory.NOT_FOUND, page, client, here, Now())

    @pytest.mark.parametrize("watch", ["items(n)", "items()"])
    def test_one_that_leaves_columns_out_has_to_be_named(self, made, still, ours, watch):
        table, here = made(watch=watch)
        assert "some columns" in refused(ErrorCategory.INVALID_REQUEST, page, ours, here, Now())
        with connect(f"{still.url}&change_stream=items_stream") as client:
            token = page(client, here, Now()).continuation_token
            table.put(["a", 1, "x"])
            (event,) = drained(client, here, FromContinuationToken(token))
            assert event.new_item_state is None
            message = refused(
                ErrorCategory.UNSUPPORTED_CAPABILITY, page, client, here, Now(), new_item_state_mode=REQUIRE
            )
            assert "SET FOR items" in message

    def test_without_whole_rows_require_names_the_statement(self, made, ours):
        table, here = made(capture=None)
        message = refused(
            ErrorCategory.UNSUPPORTED_CAPABILITY, page, ours, here, Now(), new_item_state_mode=REQUIRE
        )
        assert "ALTER CHANGE STREAM items_stream SET OPTIONS (value_capture_type" in message
        assert "INCLUDE_IF_AVAILABLE" in message
        token = page(ours, here, Now()).continuation_token
        table.put(["a", 1, "x"])
        table.put(["a", 2, "x"])
        events = drained(ours, here, FromContinuationToken(token))
        assert [event.new_item_state for event in events] == [{"id": "a", "n": 1, "text": "x"}, None]

    def test_one_that_is_altered_on_the_way_is_told_at_the_change(self, made, ours):
        table, here = made()
        token = page(ours, here, Now(), new_item_state_mode=REQUIRE).continuation_token
        table.put(["a", 1, "x"])
        table.put(["a", 2, "x"])
        table.ddl("ALTER CHANGE STREAM items_stream SET OPTIONS (value_capture_type = 'OLD_AND_NEW_VALUES')")
        table.put(["a", 3, "x"])
        first = page(ours, here, FromContinuationToken(token), new_item_state_mode=REQUIRE)
        assert [event.new_item_state["n"] for event in first.events] == [1, 2]
        start = FromContinuationToken(first.continuation_token)
        message = refused(
            ErrorCategory.UNSUPPORTED_CAPABILITY, page, ours, here, start, new_item_state_mode=REQUIRE
        )
        assert "OLD_AND_NEW_VALUES" in message
        (event,) = drained(ours, here, start)
        assert (event.type, event.new_item_state) == (ChangeType.UPDATE, None)

    def test_a_column_that_is_added_comes_and_one_that_is_left_out_takes_the_rows_along(self, made, ours):
        table, here = made()
        token = page(ours, here, Now()).continuation_token
        table.put(["a", 1, "x"])
        table.ddl("ALTER TABLE items ADD COLUMN more INT64")
        table.put(["a", 2, "x", 5], names=("id", "n", "text", "more"))
        table.ddl("ALTER CHANGE STREAM items_stream SET FOR items(n)")
        table.put(["a", 3, "x", 6], names=("id", "n", "text", "more"))
        states = [event.new_item_state for event in drained(ours, here, FromContinuationToken(token))]
        assert states[-1] is None
        assert all(state is None or len(state) >= 3 for state in states)

    def test_names_that_are_not_there(self, table, ours, still):
        database = table.database.database_id
        for address in (ResourceAddress(database, "Items"), ResourceAddress("no-such-db", "items")):
            refused(ErrorCategory.NOT_FOUND, page, ours, address, Now())
        refused(ErrorCategory.INVALID_REQUEST, page, ours, ResourceAddress(None, "items"), Now())
        with connect(still.url.replace("/tests?", "/no-such-instance?")) as client:
            refused(ErrorCategory.NOT_FOUND, page, client, ResourceAddress(database, "items"), Now())

    def test_one_that_is_dropped_is_missed(self, table, ours, here):
        token = page(ours, here, Now()).continuation_token
        table.ddl("DROP CHANGE STREAM items_stream")
        for start in (FromContinuationToken(token), Now()):
            message = refused(ErrorCategory.NOT_FOUND, page, ours, here, start)
            assert "CREATE CHANGE STREAM" in message


class TestRecreated:
    @pytest.mark.parametrize("settings", [{}, {"on_expired": SkipToOldest()}], ids=["fail", "skip"])
    def test_an_earlier_stream_of_the_name_is_refused(self, table, still, here, settings):
        with connect(still.url) as client:
            old = page(client, here, Now()).continuation_token
            table.put(["lost", 1, ""])
            newer = page(client, here, FromContinuationToken(old)).continuation_token
            partition = client.list_physical_partitions(here)[0]
        table.ddl("DROP CHANGE STREAM items_stream", *table.streams)
        table.put(["a", 1, ""])
        with connect(still.url) as client:
            for token in (old, newer):
                message = refused(
                    ErrorCategory.INVALID_REQUEST,
                    page,
                    client,
                    here,
                    FromContinuationToken(token),
                    **settings,
                )
                assert "recreated" in message
            message = refused(
                ErrorCategory.INVALID_REQUEST, page, client, here, Now(), scope=PhysicalPartition(partition)
            )
            assert "recreated" in message
            assert len(drained(client, here, Beginning())) == 1

    def test_an_instance_of_another_name_is_told_before_it_is_read(self, table, still, here):
        with connect(still.url) as client:
            token = page(client, here, Now()).continuation_token
        other = still.client.instance(
            "other", configuration_name=still.instance.configuration_name, node_count=1
        )
        other.create().result(60)
        database = other.database(here.database, ddl_statements=[
            "CREATE TABLE items (id STRING(MAX)) PRIMARY KEY (id)",
            "CREATE CHANGE STREAM items_stream FOR items",
        ])  # fmt: skip
        database.create().result(60)
        try:
            with connect(still.url.replace("/tests?", "/other?")) as client:
                refused(ErrorCategory.INVALID_REQUEST, page, client, here, FromContinuationToken(token))
        finally:
            database.drop()
            other.delete()


class TestStarts:
    def test_a_moment_to_come_leaves_out_what_comes_before_it(self, table, ours, here):
        table.put(["a", 1, ""])
        (event,) = drained(ours, here, Beginning())
        provider = PLUGIN.connect(ClientConfig("spanner", {"url": table.emulator.url}), None)
        deadline = Deadline.after(30)
        feed = provider.open_feed(FeedSpec(here), deadline)
        soon = feed.clock(deadline) + (event.timestamp - event.timestamp.replace(microsecond=0)) * 0
        soon = soon.replace(microsecond=0).fromtimestamp(soon.timestamp() + 1, soon.tzinfo)
        token = page(ours, here, AtTime(soon)).continuation_token
        table.put(["too-early", 1, ""])
        while feed.clock(deadline) < soon:
            time.sleep(0.05)
        table.put(["later", 1, ""])
        provider.close()
        keys = [event.key.components["id"] for event in drained(ours, here, FromContinuationToken(token))]
        assert keys == ["later"]

    def test_before_the_stream_is_expired_and_names_the_oldest(self, table, ours, here):
        table.put(["a", 1, ""])
        (event,) = drained(ours, here, Beginning())
        start = AtTime(event.timestamp.replace(year=event.timestamp.year - 1))
        assert "keeps nothing before" in refused(ErrorCategory.CHECKPOINT_EXPIRED, page, ours, here, start)

    def test_now_is_after_what_was_just_acknowledged(self, table, ours, here):
        for number in range(20):
            table.put([f"k{number}", number, ""])
            token = page(ours, here, Now()).continuation_token
            table.put([f"n{number}", number, ""])
            keys = [event.key.components["id"] for event in drained(ours, here, FromContinuationToken(token))]
            assert keys == [f"n{number}"]


class TestWaiting:
    def test_a_change_ends_a_wait(self, table, ours, here):
        token = page(ours, here, Now()).continuation_token
        writer = threading.Timer(0.3, table.put, (["a", 1, ""],))
        writer.start()
        got = page(ours, here, FromContinuationToken(token), wait=20)
        writer.join()
        assert len(got.events) == 1

    def test_nothing_stays_open_after_a_thousand_pages(self, table, here):
        table.put(*([f"k{number}", number, "x"] for number in range(50)))
        for number in range(50):
            table.put([f"s{number}", number, "x"])
        provider = PLUGIN.connect(ClientConfig("spanner", {"url": table.emulator.url}), None)
        deadline = Deadline.after(120)
        feed = provider.open_feed(FeedSpec(here), deadline)
        (start, *_) = feed.start(Beginning(), None, deadline)
        for _ in range(250):
            reader = feed.open(start.partition_id, start.cursor)
            for _ in range(4):
                reader.fetch(5, 1 << 20, 0.0, deadline)
            assert provider.open_calls() <= 1
            reader.close()
        assert provider.open_calls() == 0
        before = len(sessions_of(table))
        provider.close()
        assert before - len(sessions_of(table)) == 1


def test_a_session_that_the_service_forgets_is_recreated(table, ours, here):
    token = page(ours, here, Now()).continuation_token
    for session in sessions_of(table):
        table.database.spanner_api.delete_session(name=session.name)
    table.put(["a", 1, ""])
    assert len(drained(ours, here, FromContinuationToken(token))) == 1
