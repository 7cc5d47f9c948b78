"""Tests what only the scripted server can produce: every change must arrive once and in order."""

import json
import random
import threading
from datetime import timedelta

import attrs
import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeEvent,
    ChangeType,
    ClientConfig,
    ErrorCategory,
    MulticloudDbError,
    Now,
    PartitionFoundLate,
    PhysicalPartition,
)
from multiclouddb_conformance.open_client import open_client
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_spanner.provider import PLUGIN
from multiclouddb_spanner_emulator import Write
from multiclouddb_spanner_emulator.reading import Reading
from multiclouddb_spanner_emulator.record import DataChange
from multiclouddb_spi import ProviderFault, RecordFault
from testing.seeds import in_soak

from .feeds import HOUR, POSTGRES, STREAM, TABLE, Opened, feed, in_order, numbers, once
from .scripted import READ

TICK = timedelta(microseconds=1)
OF_BOTH = (
    "CREATE CHANGE STREAM items_stream FOR items, other OPTIONS (value_capture_type = 'NEW_ROW')",
    "CREATE CHANGE STREAM items_stream FOR items, other WITH (value_capture_type = 'NEW_ROW')",
)
TEXT = "é\n\"'" * 8


@pytest.mark.parametrize("method", ["CreateSession", "ExecuteStreamingSql"])
def test_a_service_that_fails_at_first_is_asked_again(method):
    with feed() as items:
        items.server.troubles.fail(method, "UNAVAILABLE", 2)
        token = items.token()
        items.fill(3)
        once(items.drain(token), 3)


def large(items):
    items.put(*((f"k{number:04}", number) for number in range(120)))


def at_once(items):
    """Write twice into each key with one commit timestamp, and then once more."""
    for number in range(2):
        with items.server.one_commit_timestamp():
            for each in range(4):
                items.put(*((f"{letter}{each}", 8 * number + each) for letter in "abc"))
    items.fill(3)


def long(items):
    for number in range(4):
        items.put((f"k{number}", number, TEXT), names=("id", "n", "text"))


@pytest.mark.parametrize(
    ("write", "count", "size", "habits"),
    [
        pytest.param(large, 120, 10, {"mods_per_record": 7, "sequence_step": 3}, id="records"),
        pytest.param(large, 120, 0, {}, id="one record"),
        pytest.param(large, 120, 20, {"mods_per_record": 1, "sequence_step": 1_000_000}, id="nine digits"),
        pytest.param(at_once, 27, 2, {"initial_partitions": 1}, id="one timestamp"),
        pytest.param(at_once, 27, 0, {"initial_partitions": 3}, id="one timestamp, partitions"),
        pytest.param(at_once, 27, 1, {"mixes_equal_timestamps": True, "mods_per_record": 1}, id="mixed, 1"),
        pytest.param(at_once, 27, 3, {"mixes_equal_timestamps": True, "mods_per_record": 2}, id="mixed, 3"),
        pytest.param(long, 4, 2, {"chunk_characters": 1, "rows_per_message": 1}, id="characters"),
        pytest.param(long, 4, 0, {"chunk_characters": 7, "rows_per_message": 1}, id="chunks"),
    ],
)
def test_each_change_of_a_transaction_comes_once_on_any_page(write, count, size, habits):
    with feed(**{"initial_partitions": 1} | habits) as items:
        token = items.token()
        write(items)
        events = items.drain(token, size, fresh=True)
        once(events, count)
        assert {event.event_id: event for event in events} == {e.event_id: e for e in items.drain(token)}
        once(items.drain(AtTime(min(event.timestamp for event in events))), count)
        if write is large:
            assert numbers(sorted(events, key=lambda event: event.order_key)) == list(range(120))
        if write is long:
            assert {event.new_item_state["text"] for event in events} == {TEXT}


class TestPartitions:
    def test_starts_and_splits_a_microsecond_apart(self):
        with feed() as items:
            beginning, starts = items.token(), {}
            items.server.crowd(1.5)
            for number in range(14):
                starts[number] = items.token()
                items.put((f"k{number % 4}", number))
                if number % 5 == 1:
                    items.server.split(items.open_partitions()[0])
                if number % 5 == 3:
                    items.server.merge(*items.open_partitions()[:2])
                if number % 5 == 4:
                    items.server.move(items.open_partitions()[-1])
            for number, token in starts.items():
                events = items.drain(token, (0, 1, 3)[number % 3])
                assert sorted(numbers(events)) == list(range(number, 14))
                in_order(events)
            events = sorted(items.drain(beginning, 2, fresh=True), key=lambda event: event.timestamp)
            assert numbers(events) == list(range(14))
            moments = {event.timestamp + ticks * TICK for event in events for ticks in (-1, 0, 1)}
            for number, moment in enumerate(sorted(moments)):
                expected = [each.new_item_state["n"] for each in events if each.timestamp >= moment]
                assert sorted(numbers(items.drain(AtTime(moment), number % 2))) == expected

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

    def test_a_parent_whose_end_is_told_late(self):
        with feed(initial_partitions=1) as items:
            token, events = items.token(), []
            (parent,) = items.open_partitions()
            items.fill(5)
            items.server.split(parent)
            items.server.hide_end(parent)
            items.fill(5, start=5)
            for _ in range(2):
                page = items.tried(token, timeout=1.5)
                if page is not None:
                    assert not page.idle
                    events += page.events
                    token = page.continuation_token
            items.server.hide_end(parent, hidden=False)
            once([*events, *items.drain(token)], 10)

    @pytest.mark.parametrize("told", [True, False], ids=["told", "searched"])
    def test_a_partition_that_began_after_the_start_is_read_from_its_beginning(self, told):
        with feed(initial_partitions=1, names_lifetime=told) as items:
            for number in range(20):
                if number == 10:
                    items.server.split(items.open_partitions()[0])
                items.put((f"k{number % 10}", number))
            names = items.client.list_physical_partitions(items.address)
            events = [e for name in names for e in items.drain(Beginning(), scope=PhysicalPartition(name))]
            once(events, 10)
            in_order(events)

    def test_a_partition_of_another_stream_is_refused(self):
        with feed(initial_partitions=1) as items, Opened(items) as opened:
            (name,) = items.client.list_physical_partitions(items.address)
            scope = PhysicalPartition(name[:-4] + "AAAA")
            message = items.refused(ErrorCategory.INVALID_REQUEST, Beginning(), scope=scope)
            assert "does not belong" in message
            (cursor,) = opened.starts(Now()).values()
            with pytest.raises(ProviderFault, match="does not belong to change stream 'items_stream'"):
                opened.feed.open("another", cursor).fetch(10, 1 << 20, 0.0, opened.soon())

    @pytest.mark.parametrize("multiplexed", [True, False])
    def test_no_session_and_no_stream_is_left(self, multiplexed):
        """A multiplexed session cannot be deleted and costs nothing, so a client may leave one open."""
        with feed(initial_partitions=4, multiplexed=multiplexed) as items:
            token = items.token()
            items.fill(30)
            for _ in range(4):
                items.drain(token, 3)
                items.restart()
            items.client.close()
            wait_until(lambda: not items.server.journal.open_streams, 10)
            if multiplexed:
                assert len(items.server.sessions) <= 5
            else:
                wait_until(lambda: not items.server.sessions, 10)
            items.client = items.scripted.connect()


class TestClock:
    """Tests a client that was suspended: `time.monotonic` stood still, but the service's time has passed."""

    def test_no_page_after_a_sleep_is_idle_while_there_is_more(self):
        with feed() as items:
            token = items.token()
            items.fill(3)
            assert len(items.drain(token)) == 3
            items.server.advance(20 * 3600)
            items.fill(3, start=3)
            assert len(items.drain(token)) == 6
            later = items.token()
            items.fill(3, start=6)
            assert sorted(numbers(items.drain(later))) == [6, 7, 8]


class TestHeads:
    def test_a_head_says_where_no_change_is(self):
        """A change that was delivered, or that was committed before the start, is none."""
        with feed(initial_partitions=4, mods_per_record=1) as items, Opened(items) as made:
            starts = made.starts(Now())
            assert {head.records for head in made.feed.heads(starts, None, made.soon()).values()} == {0}
            items.put(("a", 1))
            heads = made.feed.heads(starts, None, made.soon())
            assert None in {head.records for head in heads.values()}
            found = {
                name: made.feed.open(name, starts[name], heads[name].cursor).fetch(
                    1, 1 << 20, 0.0, made.soon()
                )
                for name in starts
            }
            ((name, batch),) = [each for each in found.items() if len(each[1])]
            at, _ = batch.cursor_after(1)
            for cursor in (batch.cursor_after(1), [at, at + 1]):
                assert made.feed.heads({name: cursor}, None, made.soon())[name].records == 0


@pytest.mark.parametrize(("later", "records"), [(timedelta(0), None), (TICK, 0)], ids=["at it", "after it"])
def test_a_change_at_the_very_start_is_before_the_head(later, records):
    with feed(initial_partitions=1) as items, Opened(items) as made:
        items.fill(1)
        [event] = items.drain(Beginning())
        starts = made.starts(AtTime(event.timestamp + later))
        [head] = made.feed.heads(starts, None, made.soon()).values()
        assert head.records == records


class TestCost:
    def test_small_pages_over_a_backlog_do_not_ask_again(self):
        with feed() as items:
            token = items.token()
            for first in range(0, 300, 2):
                items.put((f"k{first}", first), (f"k{first + 1}", first + 1))
            items.server.journal.clear()
            once(items.drain(token, 5), 300)
            queries = items.server.journal.queries()
            assert len(queries) <= 30
            assert sum(call.rows for call in queries) <= 1.2 * 300

    def test_hours_without_changes_have_few_heartbeats(self):
        """The service sends one for each interval of a history without changes, and each has to be read."""
        with feed(initial_partitions=1) as items:
            token = items.token()
            items.server.advance(20 * 3600)
            items.server.journal.clear()
            assert items.drain(token) == []
            queries = [call.query for call in items.server.journal.queries()]
            assert sum((each.end - each.start) // (each.heartbeat * 10**6) for each in queries) <= 20 * 12

    def test_an_idle_long_poll_asks_seldom(self):
        with feed(initial_partitions=3) as items:
            token = items.page(items.token()).continuation_token
            items.server.journal.clear()
            assert items.page(token, wait=6).events == ()
            assert len(items.server.journal.queries()) <= 3 * 4


class TestSlowService:
    """A service that comes no further in the time of a call than a small part of the first window."""

    @pytest.fixture(autouse=True)
    def slow(self, monkeypatch):
        records = Reading.records

        def some(reading):
            if reading._query.token is None:
                yield from records(reading)
                return
            for number, each in enumerate(each for found in records(reading) for each in found):
                while number >= 10 and reading._is_active():
                    with reading._changed:
                        reading._changed.wait(0.05)
                yield [each]

        monkeypatch.setattr(Reading, "records", some)
        monkeypatch.setattr("multiclouddb_spanner.reader._TELL_SECONDS", 0.0)

    @pytest.mark.parametrize("postgres", [False, True])
    @pytest.mark.parametrize("kind", ["nothing", "changes of another table", "few changes"])
    def test_a_process_for_each_call_comes_further(self, kind, postgres):
        other = POSTGRES[0] if postgres else TABLE
        both = (other, other.replace("items", "other"), OF_BOTH[postgres])
        with feed(*both, initial_partitions=1, postgres=postgres) as items:
            token = items.token()
            for number in range(100):
                items.server.advance(30)
                if kind != "nothing":
                    name = "items" if kind == "few changes" and number % 50 == 5 else "other"
                    items.scripted.write(name, (f"k{number}", number))
            items.server.advance(10 * HOUR)
            items.put(("z", 999))
            found = []
            for _ in range(60):
                items.restart()
                page = items.tried(token, timeout=0.5)
                if page is not None:
                    token = page.continuation_token
                    found += numbers(page.events)
                if 999 in found:
                    break
            assert found == ([5, 55, 999] if kind == "few changes" else [999])


class TestWindowThatStaysOpen:
    def test_its_end_was_the_present_of_the_fetch_that_began_it(self):
        with feed(initial_partitions=1, rows_per_message=1) as items, Opened(items) as made:
            ((name, cursor),) = made.starts(Now()).items()
            items.put(("a", 1))
            reader = made.feed.open(name, cursor)
            assert len(reader.fetch(1, 1 << 20, 0.0, made.soon())) == 1
            items.put(("b", 2))
            batch = reader.fetch(1000, 1 << 20, 0.0, made.soon())
            assert (len(batch), batch.caught_up) == (0, False)
            assert len(reader.fetch(1000, 1 << 20, 0.0, made.soon())) == 1

    def test_without_a_free_slot_it_is_read_to_its_end(self, monkeypatch):
        """Each query that is ended makes the next one shorter, so a slow service would never catch up."""
        monkeypatch.setattr("multiclouddb_spanner.reader._TELL_SECONDS", 0.0)
        with feed(initial_partitions=1, rows_per_message=1) as items, Opened(items) as made:
            ((name, cursor),) = made.starts(Now()).items()
            items.server.advance(20 * HOUR)
            made.feed._source.slots = threading.Semaphore(0)
            reader = made.feed.open(name, cursor)
            found = [reader.fetch(1000, 1 << 20, 0.0, made.soon()).caught_up for _ in range(5)]
            assert found == [False, False, False, False, True]


class TestOtherTables:
    @pytest.fixture
    def damaged(self, monkeypatch):
        """Let records of another table come without a time."""
        text = DataChange.text

        def without(record):
            data = json.loads(text(record))
            if data["data_change_record"]["table_name"] == "other":
                del data["data_change_record"]["commit_timestamp"]
            return json.dumps(data)

        monkeypatch.setattr(DataChange, "text", without)

    def test_their_damaged_records_are_nobodys_fault_here(self, damaged):
        statements = (POSTGRES[0], POSTGRES[0].replace("items", "other"), OF_BOTH[1])
        with feed(*statements, postgres=True, initial_partitions=1) as items:
            token = items.token()
            items.put(("a", 1))
            items.scripted.write("other", ("o", 1))
            items.put(("b", 2))
            assert numbers(items.drain(token)) == [1, 2]

    @pytest.mark.parametrize(("rows", "later"), [(100, 1), (1, 100)])
    def test_a_record_without_a_time_is_skipped_however_its_messages_are_cut(self, monkeypatch, rows, later):
        fields = DataChange.fields

        def untimed(record):
            (told,), *others = fields(record)
            if record.transaction.startswith("poison"):
                told[0] = "soon"
            return [told], *others

        monkeypatch.setattr(DataChange, "fields", untimed)
        both = (TABLE, TABLE.replace("items", "other"), OF_BOTH[0])
        with feed(*both, initial_partitions=1, rows_per_message=rows) as items, Opened(items) as made:
            items.put(("x", 0))
            ((name, cursor),) = made.starts(Now()).items()
            items.scripted.write("other", ("o", 1))
            items.server.poison(items.scripted.database, "items_stream", "items", "a")
            items.scripted.write("other", ("o", 2))
            items.put(("b", 2))
            batch = made.feed.open(name, cursor).fetch(1000, 1 << 20, 0.0, made.soon())
            with pytest.raises(RecordFault) as caught:
                batch.events(0, len(batch))
            items.server.habits.rows_per_message = later
            reader, found = made.feed.open(name, caught.value.skip_cursor), []
            while 2 not in found:
                batch = reader.fetch(1000, 1 << 20, 0.0, made.soon())
                found += numbers(batch.events(0, len(batch)))
            assert found == [2]


class TestStreamOfATable:
    @pytest.mark.parametrize("fresh", [True, False], ids=["new client", "same client"])
    def test_a_stream_that_is_dropped_while_it_is_read_is_told(self, fresh):
        with feed() as items:
            token = items.token()
            items.fill(3)
            token = items.page(token, 2).continuation_token
            items.run("DROP CHANGE STREAM items_stream")
            if fresh:
                items.restart()
            message = items.refused(ErrorCategory.NOT_FOUND, token, timeout=5.0)
            assert "CREATE CHANGE STREAM" in message

    @pytest.mark.parametrize("watch", ["DROP FOR ALL", "SET FOR other"])
    def test_a_stream_that_no_longer_watches_the_table_is_told(self, watch, monkeypatch):
        monkeypatch.setattr("multiclouddb_spanner.source._CHECK_SECONDS", 0.0)
        with feed(TABLE, TABLE.replace("items", "other"), STREAM) as items:
            token = items.token()
            items.fill(3)
            once(items.drain(token), 3)
            items.run(f"ALTER CHANGE STREAM items_stream {watch}")
            items.fill(3, start=3)
            message = items.refused(ErrorCategory.NOT_FOUND, token)
            assert "CHANGE STREAM items_stream" in message
            items.run("ALTER CHANGE STREAM items_stream SET FOR items")
            once(items.drain(token), 3)

    def test_whether_the_table_is_watched_is_asked_seldom(self):
        with feed(initial_partitions=4) as items:
            token = items.token()
            items.drain(token)
            items.server.journal.clear()
            for _ in range(20):
                items.page(token)
            assert [call for call in items.server.journal.calls if "information_schema" in call.sql] == []

    def test_only_the_addressed_table_comes_of_a_stream_of_many(self):
        everything = "CREATE CHANGE STREAM items_stream FOR ALL OPTIONS (value_capture_type = 'NEW_ROW')"
        with feed(TABLE, TABLE.replace("items", "other"), everything) as items:
            token = items.token()
            for number in range(60):
                items.scripted.write("other", (f"o{number}", number))
                if number % 20 == 10:
                    items.put((f"k{number}", number))
            assert sorted(numbers(items.drain(token, 2))) == [10, 30, 50]


@pytest.mark.parametrize("kind", ["beginning", "time", "token"])
def test_a_first_change_that_cannot_be_decoded_can_be_skipped(kind):
    with feed(initial_partitions=1) as items:
        token = items.token()
        at = items.server.now()
        items.server.poison(items.scripted.database, "items_stream", "items", "a")
        items.fill(3)
        start = {"beginning": Beginning(), "time": AtTime(at), "token": token}[kind]
        with pytest.raises(MulticloudDbError) as caught:
            items.page(start)
        assert caught.value.category == ErrorCategory.PROVIDER_ERROR
        once(items.drain(caught.value.detail.skip_token), 3)


TAG = "RowDeletionPolicy"


@pytest.mark.parametrize("postgres", [False, True], ids=["GoogleSQL", "PostgreSQL"])
def test_a_delete_is_marked_as_far_as_the_service_tells(postgres):
    # The tag, whether the service made the change, and what is known about the expiry.
    deletes = [
        ("", False, False),
        (TAG, False, False),
        (TAG, True, True),
        ("", True, None),
        ("x", True, None),
    ]
    with feed(postgres=postgres, initial_partitions=1, chunk_characters=50) as items, Opened(items) as made:
        for tag, is_system, _ in deletes:
            for kind, row in (("insert", ["a", "1"]), ("update", ["a", "2"]), ("delete", ["a"])):
                write = Write(kind, "items", () if kind == "delete" else ("id", "n"), [row])
                items.server.commit(items.scripted.database, write, tag=tag, is_system=is_system)
        events = items.drain(Beginning())
        assert [event.type for event in events] == [*ChangeType] * len(deletes)
        assert [event.by_expiry for event in events] == [
            told for _, _, expiry in deletes for told in (False, False, expiry)
        ]
        assert numbers(events) == [1, 2] * len(deletes)
        ((name, cursor),) = made.starts(Beginning()).items()
        batch = made.feed.open(name, cursor).fetch(100, 1 << 20, 0.0, made.soon())
        arrow = batch.arrow(0, len(batch)).to_pydict()
        assert arrow["by_expiry"] == [event.by_expiry for event in events]


@pytest.mark.parametrize("seeds", [range(2), pytest.param(in_soak(2, 60), marks=pytest.mark.soak)], ids=len)
@pytest.mark.parametrize("silent", [False, True])
def test_nothing_is_lost_in_storms(seeds, silent):
    """Writes, splits, merges, broken streams, lost sessions and killed consumers, all at once."""
    for seed in seeds:
        with pytest.MonkeyPatch.context() as patch:
            # Each fetch of a past period tells how far it has come, or none does.
            patch.setattr("multiclouddb_spanner.reader._TELL_SECONDS", [0.0, 2.0][seed % 2])
            storm(seed, silent=silent)


def storm(seed, *, silent):
    dice = random.Random(seed)
    habits = {
        "mods_per_record": dice.choice([None, 1, 3]),
        "chunk_characters": dice.choice([9, 1000, 1_000_000]),
        "children_per_record": dice.choice([None, 1]),
        "repeat_children": dice.choice([0, 1]),
        "multiplexed": dice.choice([True, False]),
        "initial_partitions": dice.choice([1, 3]),
        "rows_per_message": dice.choice([1, 100]),
    }
    both = (TABLE, TABLE.replace("items", "other"), OF_BOTH[0])
    with feed(*both, **habits) as items:
        config = ClientConfig("spanner", {"url": items.scripted.url})
        config = attrs.evolve(config, coverage_audit_seconds=0)
        over, written, token = threading.Event(), [], items.token()

        def write():
            own, server, troubles = random.Random(seed + 1000), items.server, items.server.troubles
            for number in range(80):
                count = own.choice([1, 1, 1, 5])
                written.append(count)
                items.put(*((f"k{(number + each) % 9}", 10 * number + each) for each in range(count)))
                if own.random() < 0.5:
                    items.scripted.write("other", (f"o{number}", number))
                if own.random() < 0.12:
                    server.split(own.choice(items.open_partitions()))
                if own.random() < 0.12 and len(items.open_partitions()) > 1:
                    server.merge(*own.sample(items.open_partitions(), 2))
                if own.random() < 0.1:
                    server.move(own.choice(items.open_partitions()))
                if own.random() < 0.15:
                    status = own.choice(["UNAVAILABLE", "INTERNAL", "ABORTED", "RESOURCE_EXHAUSTED"])
                    place = own.choice([None, 0, 1, 2, 5])
                    troubles.fail(READ, status, 1, after_rows=place, message="RST_STREAM")
                if silent and own.random() < 0.2:
                    server.habits.silent_ends = own.choice([1, 2, 9])
                if own.random() < 0.05:
                    server.lose_sessions()
                if own.random() < 0.05:
                    server.crowd(0.02)
                over.wait(0.003)
            over.set()

        writer = threading.Thread(target=write)
        writer.start()
        events, notices, client = [], [], open_client(PLUGIN, config)
        try:
            while True:
                ended = over.is_set()
                page = items.tried(token, dice.choice([1, 4, 30]), client=client)
                if page is None:
                    continue
                events += page.events
                notices += page.notices
                token = page.continuation_token
                if ended and page.idle:
                    break
                if dice.random() < 0.1:
                    client.close()
                    client = open_client(PLUGIN, config)
        finally:
            client.close()
            writer.join()
        # A partition that had ended is read again from its last change.
        seen = dict[str, ChangeEvent]()
        first = [seen.setdefault(event.event_id, event) for event in events if event.event_id not in seen]
        assert len(first) == sum(written), seed
        assert silent or len(events) == len(first), seed
        in_order(first)
        assert [notice for notice in notices if isinstance(notice, PartitionFoundLate)] == []
