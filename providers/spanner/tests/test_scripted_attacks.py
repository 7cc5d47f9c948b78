"""Tests cases that only the scripted server can produce: every change must arrive once and in order."""

import itertools
import math
import threading
import time
from contextlib import contextmanager

import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    Gap,
    MulticloudDbError,
    NewItemStateMode,
    Now,
    OperationOptions,
    PhysicalPartition,
    ResourceAddress,
    SkipToOldest,
)
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_spanner_emulator import Habits, Write

from .scripted import READ, Scripted

DAY = 86400
TABLE = "CREATE TABLE items (id STRING(MAX) NOT NULL, n INT64, text STRING(MAX), f FLOAT64) PRIMARY KEY (id)"
STREAM = "CREATE CHANGE STREAM items_stream FOR items OPTIONS (value_capture_type = 'NEW_ROW_AND_OLD_VALUES')"


class Feed:
    """A table on a scripted server, with the library's client."""

    def __init__(self, *statements, postgres=False, **habits):
        self.scripted = Scripted(*(statements or (TABLE, STREAM)), habits=Habits(**habits), postgres=postgres)
        self.server = self.scripted.server
        self.address = ResourceAddress(self.scripted.name, "items")
        self.client = self.scripted.connect()

    def put(self, *rows, names=("id", "n")):
        return self.scripted.write("items", *rows, names=names)

    def fill(self, count, start=0):
        for number in range(start, start + count):
            self.put((f"k{number}", number))

    def open_partitions(self):
        return self.server.open_partitions(self.scripted.database, "items_stream")

    def page(self, start, size=0, *, timeout=30.0, wait=0.0, client=None, **settings):
        position = FromContinuationToken(start) if isinstance(start, str) else start
        request = ChangeFeedRequest(self.address, position, max_page_size=size, **settings)
        return (client or self.client).read_changes(request, OperationOptions(timeout, wait))

    def tried(self, *arguments, **settings):
        """Try to read a page. Return None if the call must be repeated."""
        try:
            return self.page(*arguments, **settings)
        except MulticloudDbError as error:
            if not error.retryable:
                raise
            return None

    def token(self):
        return self.page(Now()).continuation_token

    def drain(self, start, size=0, *, fresh=False, **settings):
        """Read every event up to the current end. If `fresh` is set, read each page with a new client."""
        events = []
        for _ in range(5000):
            page = self.page(start, size, **settings)
            events += page.events
            start = page.continuation_token
            if page.idle or page.partition_retired:
                return events
            if fresh:
                self.restart()
        pytest.fail("never idle")

    def restart(self):
        self.client.close()
        self.client = self.scripted.connect()

    def close(self):
        self.client.close()
        self.scripted.close()


@contextmanager
def feed(*statements, **habits):
    made = Feed(*statements, **habits)
    try:
        yield made
    finally:
        made.close()


def numbers(events):
    return [event.new_item_state["n"] for event in events if event.new_item_state is not None]


def once(events, count):
    """Check that the given number of events arrived, and that each event arrived once."""
    assert len({event.event_id for event in events}) == len(events) == count


def in_order(events):
    """Check that the changes of each key are in the order of `n`, which counts them."""
    last = {}
    for event in events:
        number = event.new_item_state["n"]
        assert number > last.get(str(event.key), -1), event
        last[str(event.key)] = number


class TestRetention:
    def test_the_beginning_of_a_stream_that_is_older_than_its_retention_can_be_read(self):
        with feed() as items:
            items.fill(3)
            items.server.advance(2 * DAY)
            items.fill(5, start=3)
            assert sorted(numbers(items.drain(Beginning()))) == [3, 4, 5, 6, 7]

    def test_skipping_gets_past_a_horizon_that_moves(self):
        with feed() as items:
            token = items.token()
            items.fill(3)
            items.server.advance(2 * DAY)
            items.fill(5, start=3)
            found = []
            for _ in range(20):
                page = items.page(token, 2, on_expired=SkipToOldest())
                token = page.continuation_token
                found.append(page)
                if page.idle:
                    break
            assert [notice for page in found for notice in page.notices if isinstance(notice, Gap)]
            assert sorted(numbers(event for page in found for event in page.events)) == [3, 4, 5, 6, 7]

    def test_a_horizon_that_the_service_does_not_name_is_found(self):
        with feed(names_horizon=False) as items:
            items.fill(3)
            items.server.advance(2 * DAY)
            items.fill(5, start=3)
            assert sorted(numbers(items.drain(Beginning()))) == [3, 4, 5, 6, 7]

    def test_expiry_in_the_middle_of_a_drain_is_told(self):
        with feed(mods_per_record=1) as items:
            token = items.token()
            items.fill(40)
            token = items.page(token, 3).continuation_token
            items.server.advance(2 * DAY)
            items.restart()
            with pytest.raises(MulticloudDbError) as caught:
                items.drain(token, 3)
            assert caught.value.category == ErrorCategory.CHECKPOINT_EXPIRED

    def test_a_stream_recreated_is_not_skipped_into(self):
        with feed() as items:
            token = items.token()
            items.fill(5)
            items.server.execute(items.scripted.database, "DROP CHANGE STREAM items_stream", STREAM)
            items.fill(5, start=5)
            items.restart()
            for settings in ({}, {"on_expired": SkipToOldest()}):
                with pytest.raises(MulticloudDbError) as caught:
                    items.drain(token, **settings)
                assert caught.value.category == ErrorCategory.INVALID_REQUEST


class TestClock:
    """Tests a client that was suspended: `time.monotonic` stood still, but the service's time has passed."""

    @pytest.mark.parametrize("slept", [60, 3600, 20 * 3600])
    def test_now_after_a_sleep_leaves_out_what_was(self, slept):
        with feed() as items:
            items.token()
            items.fill(3)
            items.server.advance(slept)
            items.fill(3, start=3)
            token = items.token()
            items.fill(3, start=6)
            assert sorted(numbers(items.drain(token))) == [6, 7, 8]

    @pytest.mark.parametrize("slept", [60, 3600, 20 * 3600])
    def test_no_page_after_a_sleep_is_idle_while_there_is_more(self, slept):
        with feed() as items:
            token = items.token()
            items.fill(3)
            assert len(items.drain(token)) == 3
            items.server.advance(slept)
            items.fill(3, start=3)
            assert len(items.drain(token)) == 6


class TestBrokenStreams:
    @pytest.mark.parametrize("size", [1, 4, 0])
    @pytest.mark.parametrize(
        "status", ["UNAVAILABLE", "INTERNAL", "ABORTED", "DEADLINE_EXCEEDED", "CANCELLED"]
    )
    def test_a_stream_that_breaks_off_at_any_row_loses_nothing(self, status, size):
        with feed(mods_per_record=1, initial_partitions=1) as items:
            token = items.token()
            items.put(*((f"k{number:02}", number) for number in range(9)))
            items.put(*((f"k{number:02}", number) for number in range(9, 12)))
            for rows in range(12):
                message = "Received RST_STREAM with error code 2" if status == "INTERNAL" else "Scripted."
                items.server.troubles.fail(READ, status, 1, after_rows=rows, message=message)
                events = items.drain(token, size)
                once(events, 12)
                in_order(events)
                items.server.troubles.end()

    def test_a_stream_that_breaks_off_every_time_gets_on(self):
        with feed(mods_per_record=1, initial_partitions=1) as items:
            token = items.token()
            # Each change has its own commit, because the service sends an interrupted commit again.
            items.fill(10)
            trouble = items.server.troubles.fail(READ, "UNAVAILABLE", None, after_rows=2)
            events = []
            for _ in range(60):
                page = items.tried(token, 1, timeout=5.0)
                if page is None:
                    continue
                events += page.events
                token = page.continuation_token
                if len(events) >= 8:
                    trouble.end()
                if page.idle:
                    break
            once(events, 10)

    def test_a_stream_that_falls_silent_holds_no_call(self):
        with feed(mods_per_record=1, initial_partitions=1) as items:
            token = items.token()
            items.put(*((f"k{number:02}", number) for number in range(10)))
            items.server.troubles.hang(READ, 1, after_rows=5)
            began = time.monotonic()
            page = items.tried(token, timeout=2.0)
            events = [] if page is None else list(page.events)
            token = token if page is None else page.continuation_token
            assert time.monotonic() - began < 10
            items.server.troubles.end()
            once([*events, *items.drain(token)], 10)

    def test_a_session_that_is_lost_again_and_again_loses_nothing(self):
        with feed() as items:
            token = items.token()
            items.fill(30)
            events = []
            while True:
                items.server.lose_sessions()
                page = items.page(token, 3)
                events += page.events
                token = page.continuation_token
                if page.idle:
                    break
            once(events, 30)

    def test_a_server_that_comes_back_is_read_on(self):
        with feed() as items:
            token = items.token()
            items.fill(10)
            token_then = items.page(token, 4).continuation_token
            items.server.stop()
            items.restart()
            with pytest.raises(MulticloudDbError) as caught:
                items.page(token_then, timeout=1.0)
            assert caught.value.category == ErrorCategory.TRANSIENT_FAILURE
            items.server.start()
            page = wait_until(lambda: items.tried(token_then, timeout=5.0))
            once([*page.events, *items.drain(page.continuation_token)], 6)

    @pytest.mark.parametrize(
        ("status", "category"),
        [
            ("PERMISSION_DENIED", ErrorCategory.AUTHORIZATION_FAILED),
            ("UNAUTHENTICATED", ErrorCategory.AUTHENTICATION_FAILED),
            ("RESOURCE_EXHAUSTED", ErrorCategory.THROTTLED),
            ("UNAVAILABLE", ErrorCategory.TRANSIENT_FAILURE),
            ("ABORTED", ErrorCategory.TRANSIENT_FAILURE),
            ("DATA_LOSS", ErrorCategory.PERMANENT_FAILURE),
        ],
    )
    def test_a_status_that_stays_has_its_category(self, status, category):
        with feed() as items:
            token = items.token()
            items.fill(1)
            items.server.troubles.fail(READ, status, None)
            with pytest.raises(MulticloudDbError) as caught:
                items.page(token, timeout=20.0)  # a busy machine needs time for the first answer
            assert caught.value.category == category


class TestTransactions:
    @pytest.mark.parametrize("mods", [1, 7, None])
    @pytest.mark.parametrize("size", [1, 10, 0])
    def test_a_transaction_of_many_records_is_cut_anywhere(self, mods, size):
        count = 60 if size == 1 else 3000
        with feed(mods_per_record=mods, sequence_step=3) as items:
            token = items.token()
            items.put(*((f"k{number:04}", number) for number in range(count)))
            once(items.drain(token, size), count)

    def test_a_token_at_every_mod_is_good_for_another_process(self):
        with feed(mods_per_record=3) as items:
            token = items.token()
            items.put(*((f"k{number:02}", number) for number in range(10)))
            items.put(*((f"k{number:02}", number + 100) for number in range(10)))
            once(items.drain(token, 1, fresh=True), 20)

    @pytest.mark.parametrize("size", [1, 2, 0])
    @pytest.mark.parametrize("partitions", [1, 3])
    def test_transactions_with_one_commit_timestamp_are_all_told(self, partitions, size):
        with feed(initial_partitions=partitions) as items:
            token = items.token()
            with items.server.one_commit_timestamp():
                for number in range(6):
                    items.put((f"a{number}", number), (f"b{number}", number))
            items.fill(3)
            events = items.drain(token, size, fresh=True)
            once(events, 15)

    @pytest.mark.parametrize("size", [1, 0])
    def test_one_key_changed_by_transactions_with_one_commit_timestamp(self, size):
        """Spanner itself never gives the same commit timestamp to two transactions on one row.

        If the timestamps are equal on the scripted server, the event ids must still differ.
        """
        with feed(initial_partitions=1) as items:
            token = items.token()
            with items.server.one_commit_timestamp():
                for number in range(4):
                    items.put(("a", number))
            once(items.drain(token, size), 4)

    @pytest.mark.parametrize("size", [1, 3, 0])
    def test_a_moment_in_the_middle_of_equal_timestamps_has_all_of_them(self, size):
        with feed(initial_partitions=1) as items:
            token = items.token()
            with items.server.one_commit_timestamp():
                for number in range(6):
                    items.put((f"a{number}", number))
            moment = items.drain(token)[3].timestamp
            once(items.drain(AtTime(moment), size), 6)

    @pytest.mark.parametrize("characters", [1, 7, 1000])
    @pytest.mark.parametrize("size", [2, 0])
    def test_values_come_in_chunks(self, characters, size):
        with feed(chunk_characters=characters, rows_per_message=1) as items:
            token = items.token()
            for number in range(4):
                items.put((f"k{number}", number, "é\n\"'" * 30), names=("id", "n", "text"))
            events = items.drain(token, size)
            once(events, 4)
            assert {event.new_item_state["text"] for event in events} == {"é\n\"'" * 30}

    def test_values_that_json_has_not(self):
        with feed() as items:
            token = items.token()
            for number, value in enumerate(("NaN", "Infinity", "-Infinity", 0.1)):
                row = [f"k{number}", str(number), value]
                items.server.commit(
                    items.scripted.database, Write("insert", "items", ["id", "n", "f"], [row])
                )
            found = {event.new_item_state["n"]: event.new_item_state["f"] for event in items.drain(token)}
            assert math.isnan(found[0])
            assert (found[1], found[2], found[3]) == (math.inf, -math.inf, 0.1)


class TestPartitions:
    HABITS = (
        {},
        {"children_per_record": 1},
        {"repeat_children": 2},
        {"children_first": True, "repeat_children": 1},
    )

    @pytest.mark.parametrize("habits", HABITS, ids=str)
    @pytest.mark.parametrize("size", [1, 5, 0])
    def test_children_are_read_after_their_parents_however_they_are_announced(self, habits, size):
        with feed(**habits) as items:
            token = items.token()
            for number in range(60):
                items.put((f"k{number % 7}", number))
                if number in (10, 25):
                    items.server.split(items.open_partitions()[0], 3)
                if number in (18, 40):
                    items.server.merge(*items.open_partitions()[:3])
                if number == 50:
                    items.server.reshape(items.open_partitions()[:2], 3)
            events = items.drain(token, size)
            once(events, 60)
            in_order(events)

    def test_a_partition_that_splits_in_the_commit_timestamp_of_a_change(self):
        with feed(initial_partitions=1) as items:
            token = items.token()
            with items.server.one_commit_timestamp():
                items.put(("a", 0), ("b", 0), ("c", 0))
                items.server.split(items.open_partitions()[0])
                items.put(("a", 1), ("b", 1), ("c", 1))
            for size in (1, 2, 0):
                events = items.drain(token, size, fresh=True)
                once(events, 6)
                in_order(events)

    @pytest.mark.parametrize("size", [1, 0])
    def test_a_merge_waits_for_the_slow_parent(self, size):
        with feed() as items:
            token = items.token()
            a, b = items.open_partitions()
            for number in range(20):
                items.put((f"k{number % 5}", number))
            items.server.merge(a, b)
            for number in range(20, 40):
                items.put((f"k{number % 5}", number))
            slow = items.server.troubles.fail(READ, "UNAVAILABLE", None, token=b)
            events = []
            for round_ in range(200):
                page = items.tried(token, size, timeout=0.4)
                if page is not None:
                    assert not (page.idle and len(events) + len(page.events) < 40)
                    events += page.events
                    token = page.continuation_token
                    if page.idle:
                        break
                if round_ == 10:
                    assert len(events) < 40
                    slow.end()
            once(events, 40)
            in_order(events)

    def test_a_parent_whose_end_is_told_late(self):
        with feed(initial_partitions=1) as items:
            token = items.token()
            (parent,) = items.open_partitions()
            items.fill(5)
            items.server.split(parent)
            items.server.hide_end(parent)
            items.fill(5, start=5)
            events = []
            for _ in range(2):
                page = items.tried(token, timeout=1.5)
                if page is not None:
                    assert not page.idle
                    events += page.events
                    token = page.continuation_token
            items.server.hide_end(parent, hidden=False)
            events += items.drain(token)
            once(events, 10)

    def test_a_partition_alone_tells_its_children_again(self):
        with feed(initial_partitions=1, children_per_record=1, repeat_children=1) as items:
            (name,) = items.client.list_physical_partitions(items.address)
            scope = PhysicalPartition(name)
            token = items.page(Now(), scope=scope).continuation_token
            items.fill(4)
            items.server.split(items.open_partitions()[0], 3)
            while not (page := items.page(token, 1, scope=scope)).partition_retired:
                token = page.continuation_token
            again = items.page(page.continuation_token, scope=scope)
            assert len(page.child_partitions) == 3
            assert {each.partition_id for each in page.child_partitions} == {
                each.partition_id for each in again.child_partitions
            }

    def test_keys_that_move_anywhere_are_all_read(self):
        with feed(moves_keys=True, initial_partitions=3) as items:
            token = items.token()
            for number in range(80):
                items.put((f"k{number % 9}", number))
                if number % 8 == 0:
                    items.server.split(items.open_partitions()[number % 3])
                if number % 8 == 4:
                    items.server.merge(*items.open_partitions()[:2])
            for size in (3, 0):
                events = items.drain(token, size)
                once(events, 80)
                by_key = sorted(events, key=lambda event: event.order_key)
                in_order(by_key)

    def test_a_thousand_partitions(self):
        with feed(initial_partitions=1000) as items:
            token = items.page(items.token(), timeout=60).continuation_token
            items.fill(20)
            items.server.journal.clear()
            events, idle = [], 0
            while len(events) < 20:
                page = items.page(token, timeout=60)
                events += page.events
                token = page.continuation_token
                idle += page.idle
            once(events, 20)
            assert not idle
            journal = items.server.journal
            assert len(journal.queries()) <= 3 * 1000
            assert journal.most_streams <= 64
            wait_until(lambda: not journal.open_streams, 10)

    @pytest.mark.parametrize("multiplexed", [True, False])
    def test_no_session_and_no_stream_is_left(self, multiplexed):
        """A multiplexed session cannot be deleted and costs nothing, so a client may leave one open."""
        with feed(initial_partitions=4, multiplexed=multiplexed) as items:
            token = items.token()
            items.fill(50)
            for _ in range(4):
                items.drain(token, 3)
                items.restart()
            items.client.close()
            journal = items.server.journal
            wait_until(lambda: not journal.open_streams, 10)
            if multiplexed:
                assert len(items.server.sessions) <= 5
            else:
                wait_until(lambda: not items.server.sessions, 10)
            items.client = items.scripted.connect()


class TestCapture:
    def test_an_altered_stream_is_noticed_at_the_record(self):
        with feed() as items:
            token = items.page(Now(), new_item_state_mode=NewItemStateMode.REQUIRE).continuation_token
            items.put(("a", 1))
            alter = "ALTER CHANGE STREAM items_stream SET OPTIONS (value_capture_type = '{}')"
            items.server.execute(items.scripted.database, alter.format("OLD_AND_NEW_VALUES"))
            items.put(("a", 2))
            items.server.execute(items.scripted.database, alter.format("NEW_ROW"))
            items.put(("a", 3))
            events = items.drain(token)
            assert [event.new_item_state and event.new_item_state["n"] for event in events] == [1, None, 3]
            seen = []

            def read(position):
                while True:
                    page = items.page(position, 1, new_item_state_mode=NewItemStateMode.REQUIRE)
                    seen.extend(page.events)
                    position = page.continuation_token

            with pytest.raises(MulticloudDbError) as caught:
                read(token)
            assert caught.value.category == ErrorCategory.UNSUPPORTED_CAPABILITY
            assert numbers(seen) == [1]

    def test_a_column_that_comes_and_one_that_goes(self):
        with feed() as items:
            token = items.token()
            items.put(("a", 1))
            items.server.execute(items.scripted.database, "ALTER TABLE items ADD COLUMN extra INT64")
            items.put(("a", 2, 5), names=("id", "n", "extra"))
            items.server.execute(items.scripted.database, "ALTER TABLE items DROP COLUMN extra")
            items.put(("a", 3))
            states = [event.new_item_state for event in items.drain(token)]
            assert ["extra" in state for state in states] == [False, True, False]
            assert states[1]["extra"] == 5

    def test_only_the_addressed_table_comes_of_a_stream_of_many(self):
        other = TABLE.replace("items", "other")
        everything = "CREATE CHANGE STREAM items_stream FOR ALL OPTIONS (value_capture_type = 'NEW_ROW')"
        with feed(TABLE, other, everything) as items:
            token = items.token()
            for number in range(300):
                items.scripted.write("other", (f"o{number}", number))
                if number % 100 == 50:
                    items.put((f"k{number}", number))
            assert sorted(numbers(items.drain(token, 2))) == [50, 150, 250]

    def test_the_dialect_of_postgres_has_the_same_events(self):
        told = []
        for postgres in (False, True):
            made = (
                (
                    "CREATE TABLE items (id varchar NOT NULL, n bigint, PRIMARY KEY (id))",
                    "CREATE CHANGE STREAM items_stream FOR items WITH (value_capture_type = 'NEW_ROW')",
                )
                if postgres
                else (
                    "CREATE TABLE items (id STRING(MAX) NOT NULL, n INT64) PRIMARY KEY (id)",
                    "CREATE CHANGE STREAM items_stream FOR items OPTIONS (value_capture_type = 'NEW_ROW')",
                )
            )
            scripted = Scripted(*made, postgres=postgres, habits=Habits(chunk_characters=50))
            try:
                with scripted.connect() as client:
                    address = ResourceAddress(scripted.name, "items")
                    page = client.read_changes(ChangeFeedRequest(address, Now()))
                    scripted.write("items", ("a", 1), ("b", 2))
                    scripted.write("items", ("a", 3))
                    (tokens,) = [scripted.server.open_partitions(scripted.database, "items_stream")]
                    scripted.server.split(tokens[0])
                    scripted.write("items", ("a", 4), kind="replace")
                    scripted.server.expire_row(scripted.database, "items", "b")
                    events, token = [], page.continuation_token
                    for _ in itertools.count():
                        page = client.read_changes(
                            ChangeFeedRequest(address, FromContinuationToken(token), max_page_size=1)
                        )
                        token = page.continuation_token
                        events += page.events
                        if page.idle:
                            break
            finally:
                scripted.close()
            events.sort(key=lambda event: event.order_key)
            told.append([(event.key, event.type, event.new_item_state, event.by_expiry) for event in events])
        assert told[0] == told[1]
        assert len(told[0]) == 5

    def test_a_stream_with_ranges_that_may_change_is_refused_by_name(self):
        mutable = (
            "CREATE CHANGE STREAM items_stream FOR items OPTIONS "
            "(value_capture_type = 'NEW_ROW', partition_mode = 'MUTABLE_KEY_RANGE')"
        )
        with feed(TABLE, mutable) as items:
            with pytest.raises(MulticloudDbError, match="MUTABLE_KEY_RANGE") as caught:
                items.token()
            assert caught.value.category == ErrorCategory.UNSUPPORTED_CAPABILITY


class TestWaiting:
    def test_a_long_poll_gets_the_first_change_of_any_partition(self):
        with feed(initial_partitions=6) as items:
            token = items.token()
            writer = threading.Timer(0.3, items.put, [("a", 1)])
            writer.start()
            began = time.monotonic()
            page = items.page(token, wait=20)
            writer.join()
            assert len(page.events) == 1
            assert time.monotonic() - began < 10

    def test_hours_without_a_change_move_the_token_and_keep_it_good(self):
        with feed() as items:
            token = items.token()
            for _ in range(30):
                items.server.advance(3600)
                items.restart()
                page = items.page(token)
                assert (page.events, page.idle) == ((), True)
                token = page.continuation_token
            items.fill(3)
            once(items.drain(token), 3)

    def test_a_split_during_a_long_poll_is_followed(self):
        with feed(initial_partitions=1) as items:
            token = items.token()

            def act():
                items.server.split(items.open_partitions()[0])
                items.fill(4)

            writer = threading.Timer(0.3, act)
            writer.start()
            events = []
            for _ in range(20):
                page = items.page(token, wait=5)
                token = page.continuation_token
                events += page.events
                if len(events) == 4:
                    break
            writer.join()
            once(events, 4)
