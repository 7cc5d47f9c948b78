"""Tests change streams that are altered to watch other columns while they are read. No row may be partial."""

import pytest
from google.cloud.spanner_admin_database_v1 import DatabaseDialect

from multiclouddb_api import (
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    NewItemStateMode,
    Now,
    ResourceAddress,
    connect,
)
from multiclouddb_spanner_emulator.errors import ServiceError

from .servers.emulator import STILL
from .table import Table
from .test_scripted_attacks import STREAM, TABLE, feed, numbers, once

NARROW = "ALTER CHANGE STREAM items_stream SET FOR items(n)"
WIDE = "ALTER CHANGE STREAM items_stream SET FOR items"
EXPLICIT = "ALTER CHANGE STREAM items_stream SET FOR items(n, text, f)"  # all columns, each by its name
MINUTE, HOUR = 60, 3600


def run(items, *statements):
    items.server.execute(items.scripted.database, *statements)


def put(items, key, number):
    items.put((key, number, "text"), names=("id", "n", "text"))


def quarters(items, count):
    """Write rows, one in each quarter of a minute."""
    for number in range(count):
        put(items, f"k{number}", number)
        items.server.advance(MINUTE / 4)


def schema_reads(items):
    return sum("change_stream_tables" in call.sql for call in items.server.journal.calls)


def states(events):
    return [event.new_item_state and {**event.new_item_state, "f": 0} for event in events]


def row(key, number):
    return {"id": key, "n": number, "text": "text", "f": 0}


class TestColumns:
    @pytest.mark.parametrize("size", [0, 1])
    @pytest.mark.parametrize("fresh", [False, True], ids=["same process", "new processes"])
    def test_a_stream_that_left_columns_out_for_a_time_has_no_rows_of_that_time(self, size, fresh):
        with feed(initial_partitions=1) as items:
            token = items.token()
            put(items, "a", 1)
            run(items, NARROW)
            put(items, "a", 2)
            put(items, "b", 3)
            run(items, WIDE)
            put(items, "a", 4)
            events = items.drain(token, size, fresh=fresh)
            once(events, 4)
            assert states(events) == [row("a", 1), None, None, row("a", 4)]

    def test_the_first_change_of_a_client_is_checked_too(self):
        with feed(initial_partitions=1) as items:
            token = items.token()
            run(items, NARROW)
            put(items, "a", 1)
            assert states(items.drain(token)) == [None]

    def test_whoever_requires_rows_is_told_at_the_change_without_one(self):
        with feed(initial_partitions=1) as items:
            token = items.token()
            put(items, "a", 1)
            run(items, NARROW)
            put(items, "a", 2)
            run(items, WIDE)
            put(items, "a", 3)
            required = {"new_item_state_mode": NewItemStateMode.REQUIRE}
            page = items.page(token, **required)
            assert numbers(page.events) == [1]
            with pytest.raises(MulticloudDbError) as caught:
                items.page(page.continuation_token, **required)
            assert caught.value.category == ErrorCategory.UNSUPPORTED_CAPABILITY
            assert "all columns" in str(caught.value)
            assert WIDE in str(caught.value)
            page = items.page(page.continuation_token)
            assert [state and state["n"] for state in states(page.events)] == [None, 3]

    def test_a_stream_of_everything_that_is_narrowed(self):
        everything = STREAM.replace("FOR items", "FOR ALL")
        with feed(TABLE, everything, initial_partitions=1) as items:
            token = items.token()
            put(items, "a", 1)
            run(items, NARROW)
            put(items, "a", 2)
            run(items, "ALTER CHANGE STREAM items_stream SET FOR ALL")
            put(items, "a", 3)
            assert states(items.drain(token)) == [row("a", 1), None, row("a", 3)]

    def test_a_column_that_the_table_gained_and_the_stream_does_not_watch(self):
        """The records have the same columns before and after. Only the schema shows that the stream
        does not watch one of the table's columns."""
        with feed(initial_partitions=1) as items:
            token = items.token()
            put(items, "a", 1)
            run(items, EXPLICIT, "ALTER TABLE items ADD COLUMN extra INT64")
            items.server.advance(2 * MINUTE)
            put(items, "b", 2)
            events = items.drain(token)
            once(events, 2)
            assert states(events) == [row("a", 1), None]

    def test_a_schema_that_changes_while_a_backlog_is_read_backwards_and_forwards(self):
        """A client may read an older change after a later one, because partitions are read side by side."""
        with feed(initial_partitions=1) as items:
            tokens = [items.token()]
            for number, statement in enumerate((EXPLICIT, WIDE, EXPLICIT)):
                put(items, f"k{number}", number)
                items.server.advance(2 * MINUTE)
                tokens.append(items.token())
                more = ["ALTER TABLE items ADD COLUMN extra INT64"] if number == 0 else []
                run(items, statement, *more)
            found = [states(items.drain(token))[0] for token in (tokens[2], tokens[0], tokens[1])]
            assert [state and state["id"] for state in found] == ["k2", "k0", None]

    def test_a_schema_that_the_database_no_longer_keeps(self):
        """The database keeps old schemas for an hour. For an older record, the present schema is used."""
        with feed(initial_partitions=1) as items:
            token = items.token()
            put(items, "a", 1)
            items.server.advance(2 * HOUR)
            run(items, "ALTER TABLE items ADD COLUMN extra INT64")
            assert states(items.drain(token)) == [row("a", 1)]


class TestCost:
    def test_the_schema_is_read_once_for_each_set_of_columns(self):
        with feed(initial_partitions=8) as items:
            token = items.token()
            for number in range(40):
                put(items, f"k{number}", number)
            items.page(token)
            items.server.journal.clear()
            once(items.drain(token, 7), 40)
            assert schema_reads(items) <= 1
            run(items, "ALTER TABLE items ADD COLUMN extra INT64")
            token = items.token()
            items.server.journal.clear()
            for number in range(40):
                put(items, f"k{number}", number)
            once(items.drain(token, 7), 40)
            assert schema_reads(items) == 1

    def test_the_schema_is_read_again_after_a_minute_of_changes(self):
        with feed(initial_partitions=1) as items:
            token = items.token()
            quarters(items, 40)
            items.server.journal.clear()
            once(items.drain(token, 7), 40)
            assert 5 <= schema_reads(items) <= 10

    def test_a_schema_that_is_gone_is_asked_for_once_for_a_minute_of_changes(self):
        with feed(initial_partitions=1) as items:
            token = items.token()
            quarters(items, 40)
            items.server.advance(2 * HOUR)
            items.server.journal.clear()
            once(items.drain(token, 7), 40)
            assert 5 <= schema_reads(items) <= 12


class TestFailures:
    @pytest.mark.parametrize("size", [0, 1, 3])
    @pytest.mark.parametrize("number", [1, 2, 5])
    def test_no_change_is_delivered_twice_if_a_read_of_the_schema_fails(self, number, size):
        """The read fails in the middle of a message, after some of its changes were taken."""
        with feed(initial_partitions=1) as items:
            token = items.token()
            quarters(items, 40)
            items.page(items.token())
            items.restart()
            items.server.journal.clear()

            def fail():
                last = items.server.journal.calls[-1].sql
                if "change_stream_tables" in last and schema_reads(items) == number:
                    raise ServiceError("UNAVAILABLE", "Scripted.")

            items.server.troubles.act(fail, None, method="ExecuteStreamingSql", after_rows=None)
            once(items.drain(token, size), 40)


@pytest.mark.emulator(*STILL)
@pytest.mark.parametrize("dialect", [None, DatabaseDialect.POSTGRESQL], ids=["googlesql", "postgresql"])
def test_on_google_s_emulator_a_time_without_some_columns_has_no_rows(still, dialect):
    columns = None if dialect is None else "id varchar NOT NULL, n bigint, text varchar"
    table = Table(still, dialect=dialect, **({} if columns is None else {"columns": columns}))
    here = ResourceAddress(table.database.database_id, table.name)
    with connect(still.url) as client:
        token = client.read_changes(ChangeFeedRequest(here, Now())).continuation_token
        table.put(["a", 1, "x"])
        table.ddl(NARROW)
        table.put(["a", 2, "x"])
        table.ddl(WIDE)
        table.put(["a", 3, "x"])
        request = ChangeFeedRequest(here, FromContinuationToken(token))
        found = [event.new_item_state for event in client.iterate_changes(request, until_idle=True)]
    assert found == [{"id": "a", "n": 1, "text": "x"}, None, {"id": "a", "n": 3, "text": "x"}]
    table.drop()
