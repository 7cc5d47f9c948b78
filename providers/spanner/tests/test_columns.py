"""Tests change streams that are altered to watch other columns while they are read. No row may be partial."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from multiclouddb_api import ErrorCategory, NewItemStateMode
from multiclouddb_spanner.client import CancelScope
from multiclouddb_spanner.records import Shape
from multiclouddb_spanner.watched import PastSchemas, WatchedTimes
from multiclouddb_spanner_emulator.errors import ServiceError
from multiclouddb_spi import Deadline

from .feeds import HOUR, MINUTE, feed, numbers, once

NARROW = "ALTER CHANGE STREAM items_stream SET FOR items(n)"
WIDE = "ALTER CHANGE STREAM items_stream SET FOR items"
EXPLICIT = "ALTER CHANGE STREAM items_stream SET FOR items(n, text, f)"  # all columns, each by its name
EXTRA = "ALTER TABLE items ADD COLUMN extra INT64"
REQUIRE = {"new_item_state_mode": NewItemStateMode.REQUIRE}


def quarters(items, count):
    """Write rows, one in each quarter of a minute."""
    for number in range(count):
        items.put((f"k{number}", number))
        items.server.advance(MINUTE / 4)


def schema_reads(items):
    return sum("change_stream_tables" in call.sql for call in items.server.journal.calls)


def states(events):
    """Return `n` of each event's row, or None without a row."""
    return [event.new_item_state and event.new_item_state["n"] for event in events]


class TestColumns:
    @pytest.mark.parametrize(
        ("narrow", "wide", "size", "fresh"),
        [
            ([NARROW], [WIDE], 0, False),
            ([NARROW], [WIDE], 1, True),
            (["ALTER CHANGE STREAM items_stream SET FOR ALL", NARROW], [WIDE], 0, False),
        ],
        ids=["at once", "new processes", "a stream of everything"],
    )
    def test_a_stream_that_left_columns_out_for_a_time_has_no_rows_of_that_time(
        self, narrow, wide, size, fresh
    ):
        with feed(initial_partitions=1) as items:
            items.run(*narrow[:-1])
            token = items.token()
            items.put(("a", 1))
            items.run(narrow[-1])
            later = items.token()
            items.put(("a", 2))
            items.put(("b", 3))
            items.run(*wide)
            items.put(("a", 4))
            events = items.drain(token, size, fresh=fresh)
            once(events, 4)
            assert states(events) == [1, None, None, 4]
            assert set(events[0].new_item_state) == {"id", "n", "text", "f"}
            assert states(items.drain(later, fresh=True)) == [None, None, 4]

    def test_whoever_requires_rows_is_told_at_the_change_without_one(self):
        with feed(initial_partitions=1) as items:
            token = items.token()
            items.put(("a", 1))
            items.run(NARROW)
            items.put(("a", 2))
            items.run(WIDE)
            items.put(("a", 3))
            page = items.page(token, **REQUIRE)
            assert numbers(page.events) == [1]
            message = items.refused(ErrorCategory.UNSUPPORTED_CAPABILITY, page.continuation_token, **REQUIRE)
            assert WIDE in message
            assert states(items.page(page.continuation_token).events) == [None, 3]

    def test_a_column_that_the_table_gained_and_the_stream_does_not_watch(self):
        """The records have the same columns before and after. Only the schema shows that the stream
        does not watch one of the table's columns. A client may read an older change after a later one."""
        with feed(initial_partitions=1) as items:
            tokens = [items.token()]
            for number, statements in enumerate(([EXPLICIT, EXTRA], [WIDE], [EXPLICIT])):
                items.put((f"k{number}", number))
                items.server.advance(2 * MINUTE)
                tokens.append(items.token())
                items.run(*statements)
            assert [states(items.drain(tokens[number]))[0] for number in (2, 0, 1)] == [2, 0, None]

    def test_a_column_that_comes_and_one_that_goes(self):
        with feed() as items:
            token = items.token()
            items.put(("a", 1))
            items.run(EXTRA)
            items.put(("a", 2, 5), names=("id", "n", "extra"))
            items.run("ALTER TABLE items DROP COLUMN extra")
            items.put(("a", 3))
            found = [event.new_item_state.get("extra", "none") for event in items.drain(token)]
            assert found == ["none", 5, "none"]

    def test_a_schema_that_the_database_no_longer_keeps(self):
        """The database keeps old schemas for an hour. For an older record, the present schema is used."""
        with feed(initial_partitions=1) as items:
            token = items.token()
            items.put(("a", 1))
            items.server.advance(2 * HOUR)
            items.run(EXTRA)
            assert states(items.drain(token)) == [1]

    def test_the_value_capture_type_is_that_of_the_record(self):
        alter = "ALTER CHANGE STREAM items_stream SET OPTIONS (value_capture_type = '{}')"
        with feed() as items:
            token = items.token(**REQUIRE)
            items.put(("a", 1))
            items.run(alter.format("OLD_AND_NEW_VALUES"))
            items.put(("a", 2))
            items.run(alter.format("NEW_ROW"))
            items.put(("a", 3))
            assert states(items.drain(token)) == [1, None, 3]
            assert numbers(items.page(token, **REQUIRE).events) == [1]
            items.refused(ErrorCategory.UNSUPPORTED_CAPABILITY, token, **REQUIRE)


class TestCost:
    def test_the_schema_is_read_once_for_each_set_of_columns(self):
        with feed(initial_partitions=8) as items:
            token = items.token()
            items.fill(40)
            items.page(token)
            items.server.journal.clear()
            once(items.drain(token, 7), 40)
            assert schema_reads(items) == 0
            items.run(EXTRA)
            token = items.token()
            items.server.journal.clear()
            items.fill(40)
            once(items.drain(token, 7), 40)
            assert schema_reads(items) == 1

    @pytest.mark.parametrize("hours", [0, 2], ids=["kept", "gone"])
    def test_the_schema_is_read_again_after_a_minute_of_changes(self, hours):
        """Ten minutes of changes: one read for each, and if old schemas are gone, one of the present too."""
        with feed(initial_partitions=1) as items:
            token = items.token()
            quarters(items, 40)
            items.server.advance(hours * HOUR)
            items.server.journal.clear()
            once(items.drain(token, 7), 40)
            assert 5 <= schema_reads(items) <= 10 + hours
            items.server.journal.clear()
            once(items.drain(token, 7), 40)
            assert schema_reads(items) == 0

    def test_a_thread_that_waited_for_the_same_answer_does_not_ask(self):
        entered, waits, over, asked = threading.Event(), threading.Event(), threading.Event(), []

        def ask(at, scope):
            asked.append(at)
            entered.set()
            return over.wait(60)

        class Waiting(CancelScope):
            check = staticmethod(waits.set)  # called while it waits for the other thread

        watched, shape, soon = PastSchemas(ask), Shape(("id",)), Deadline.after(60)
        with ThreadPoolExecutor(2) as pool:
            found = [pool.submit(watched.at, shape, 1, CancelScope(soon))]
            assert entered.wait(60)
            found.append(pool.submit(watched.at, shape, 2, Waiting(soon)))
            assert waits.wait(60)
            over.set()
            assert [each.result(60) for each in found] == [True, True]
        assert asked == [1]


def test_a_time_without_records_ends_where_the_stream_watched_again():
    second, scope = 1_000_000, CancelScope(Deadline.after(60))
    begin, end = 400 * second, 700 * second
    times = WatchedTimes(lambda at, scope: not begin <= at < end, 1000 * second)
    times.look(0, 1000 * second, scope)
    [(found, again)] = times.holes()
    assert begin <= found < end == again


@pytest.mark.parametrize(("number", "size"), [(1, 0), (2, 3), (5, 1)])
def test_no_change_is_delivered_twice_if_a_read_of_the_schema_fails(number, size):
    """The read fails in the middle of a message, after some of its changes were taken."""
    with feed(initial_partitions=1, rows_per_message=3) as items:
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
