"""Tests edge cases: events in adjacent microseconds, and many faults at the same time."""

import random
import threading
from datetime import timedelta

import attrs
import grpc
import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    ClientConfig,
    ErrorCategory,
    MulticloudDbError,
    Now,
    PartitionFoundLate,
)
from multiclouddb_conformance.open_client import open_client
from multiclouddb_spanner.provider import PLUGIN
from multiclouddb_spi import Deadline, Drained, FeedSpec, Reached

from .scripted import READ
from .test_scripted_attacks import STREAM, TABLE, feed, in_order, numbers, once

TICK = timedelta(microseconds=1)


class TestNeighbours:
    """Tests commits, splits and merges that are one microsecond apart."""

    def test_every_start_between_them_has_what_comes_after_it(self):
        with feed() as items:
            items.token()
            starts = {}
            items.server.crowd(1.5)
            for number in range(16):
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
                assert sorted(numbers(events)) == list(range(number, 16))
                in_order(events)

    def test_every_moment_between_them_has_what_comes_after_it(self):
        with feed() as items:
            token = items.token()
            items.server.crowd(1.0)
            for number in range(12):
                items.put((f"k{number % 4}", number))
                if number % 3 == 1:
                    items.server.split(items.open_partitions()[0])
                if number % 3 == 2:
                    items.server.merge(*items.open_partitions()[:2])
            events = sorted(items.drain(token), key=lambda event: event.timestamp)
            assert numbers(events) == list(range(12))
            moments = {event.timestamp + ticks * TICK for event in events for ticks in (-1, 0, 1)}
            for number, moment in enumerate(sorted(moments)):
                expected = [each.new_item_state["n"] for each in events if each.timestamp >= moment]
                assert sorted(numbers(items.drain(AtTime(moment), number % 2))) == expected

    def test_the_beginning_has_what_was_written_with_the_stream(self):
        with feed() as items:
            items.server.crowd(0.2)
            items.fill(4)
            once(items.drain(Beginning()), 4)

    def test_a_token_at_each_event_of_them_is_good(self):
        with feed() as items:
            token = items.token()
            items.server.crowd(1.0)
            for number in range(12):
                items.put((f"k{number % 4}", number), (f"l{number % 4}", number))
                if number % 3 == 1:
                    items.server.split(items.open_partitions()[0])
            events = items.drain(token, 1, fresh=True)
            once(events, 24)
            in_order(events)


class TestMixed:
    """Tests transactions that have the same commit timestamp and come in a different order with each
    query."""

    @pytest.mark.parametrize(("size", "mods"), [(1, 1), (3, 2), (3, None), (0, 2)])
    def test_every_change_comes_once_and_is_the_same_each_time(self, size, mods):
        with feed(initial_partitions=1, mods_per_record=mods, mixes_equal_timestamps=True) as items:
            token = items.token()
            for round_ in range(2):
                with items.server.one_commit_timestamp():
                    for number in range(5):
                        items.put(*((f"{letter}{number}", round_) for letter in "abc"))
            events = items.drain(token, size, fresh=True)
            once(events, 30)
            again = {event.event_id: event for event in items.drain(token)}
            assert {event.event_id: event for event in events} == again


class TestBounded:
    """Tests that a range from a cursor to a head contains the same events, no matter when it is read."""

    @pytest.mark.parametrize("habits", [{}, {"mods_per_record": 1, "mixes_equal_timestamps": True}], ids=str)
    def test_a_range_is_the_same_after_splits_and_breaks(self, habits):
        with feed(**habits) as items:
            provider = PLUGIN.connect(ClientConfig("spanner", {"url": items.scripted.url}), None)
            soon = Deadline.after(60)
            try:
                opened = provider.open_feed(FeedSpec(items.address), soon)
                starts = {seed.partition_id: seed.cursor for seed in opened.start(Now(), None, soon)}
                items.fill(20)
                with items.server.one_commit_timestamp():
                    for number in range(20, 25):
                        items.put((f"k{number}", number), (f"l{number}", number))
                heads = opened.heads(starts, None, soon)
                assert heads.keys() == starts.keys()
                items.fill(5, start=30)
                for token in items.open_partitions():
                    items.server.split(token)
                items.fill(5, start=40)
                whole = {
                    name: bounded(opened, name, starts[name], heads[name].cursor, 1000) for name in starts
                }
                assert sum(len(each) for each in whole.values()) == 30
                for size in (1, 4):
                    items.server.troubles.fail(READ, "UNAVAILABLE", None, after_rows=3, every=2)
                    for name in starts:
                        found = bounded(opened, name, starts[name], heads[name].cursor, size)
                        assert sorted(found) == sorted(whole[name])
                    items.server.troubles.end()
                late = opened.heads(starts, None, soon)
                for name, head in late.items():
                    found = bounded(opened, name, starts[name], head.cursor, 3)
                    assert set(found) >= set(whole[name])
            finally:
                provider.close()


def bounded(opened, name, cursor, until, size):
    """Return the ids of the events from a cursor to a bound.

    After an interruption, the read continues at the position that it has reached.
    """
    found = []
    reader = opened.open(name, cursor, until)
    for _ in range(500):
        try:
            batch = reader.fetch(size, 1 << 20, 0.0, Deadline.after(60))
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            reader.close()
            reader = opened.open(name, cursor, until)
            continue
        found += [event.event_id for event in batch.events(0, len(batch))]
        cursor = batch.end
        if isinstance(batch.outcome, Reached | Drained):
            reader.close()
            return found
    return pytest.fail("the bound is never reached")


class TestStorms:
    """Tests many events at once: writes, splits, merges, broken streams, lost sessions, killed consumers."""

    @pytest.mark.parametrize("seed", range(4))
    def test_nothing_is_lost_and_nothing_comes_twice(self, seed):
        dice = random.Random(seed)
        habits = {
            "mods_per_record": dice.choice([None, 1, 3]),
            "chunk_characters": dice.choice([9, 1000, 1_000_000]),
            "children_per_record": dice.choice([None, 1]),
            "repeat_children": dice.choice([0, 1]),
            "multiplexed": dice.choice([True, False]),
            "initial_partitions": dice.choice([1, 3]),
        }
        with feed(**habits) as items:
            token = items.token()
            config = ClientConfig("spanner", {"url": items.scripted.url})
            config = attrs.evolve(config, coverage_audit_seconds=0)
            over = threading.Event()
            written = []

            def write():
                own = random.Random(seed + 1000)
                for number in range(80):
                    count = own.choice([1, 1, 1, 5])
                    written.append(count)
                    items.put(*((f"k{(number + each) % 9}", 10 * number + each) for each in range(count)))
                    if own.random() < 0.12:
                        items.server.split(own.choice(items.open_partitions()))
                    if own.random() < 0.12 and len(items.open_partitions()) > 1:
                        items.server.merge(*own.sample(items.open_partitions(), 2))
                    if own.random() < 0.1:
                        items.server.move(own.choice(items.open_partitions()))
                    if own.random() < 0.15:
                        status = own.choice(["UNAVAILABLE", "INTERNAL", "ABORTED", "RESOURCE_EXHAUSTED"])
                        place = own.choice([None, 0, 1, 2, 5])
                        text = "RST_STREAM"
                        items.server.troubles.fail(READ, status, 1, after_rows=place, message=text)
                    if own.random() < 0.05:
                        items.server.lose_sessions()
                    if own.random() < 0.05:
                        items.server.crowd(0.02)
                    over.wait(0.003)
                over.set()

            writer = threading.Thread(target=write)
            writer.start()
            events, notices = [], []
            client = open_client(PLUGIN, config)
            try:
                while True:
                    ended = over.is_set()
                    try:
                        page = items.page(token, dice.choice([1, 4, 30]), client=client)
                    except MulticloudDbError as error:
                        if not error.retryable:
                            raise
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
            assert len(events) == len({event.event_id for event in events}) == sum(written)
            in_order(events)
            assert [notice for notice in notices if isinstance(notice, PartitionFoundLate)] == []


class TestCost:
    def test_small_pages_over_a_backlog_do_not_ask_again(self):
        with feed() as items:
            token = items.token()
            items.fill(1000)
            items.server.journal.clear()
            once(items.drain(token, 5), 1000)
            queries = items.server.journal.queries()
            assert len(queries) <= 40
            assert sum(call.rows for call in queries) <= 1.2 * 1000

    def test_an_idle_long_poll_asks_seldom(self):
        with feed(initial_partitions=3) as items:
            token = items.drain_token = items.page(items.token()).continuation_token
            items.server.journal.clear()
            assert items.page(token, wait=6).events == ()
            assert len(items.server.journal.queries()) <= 3 * 4


class TestStarting:
    @pytest.mark.parametrize("method", ["CreateSession", "ExecuteStreamingSql"])
    def test_a_service_that_fails_at_first_is_asked_again(self, method):
        with feed() as items:
            items.server.troubles.fail(method, "UNAVAILABLE", 2)
            token = items.token()
            items.fill(3)
            once(items.drain(token), 3)

    def test_a_service_that_makes_no_session_holds_no_call(self):
        with feed() as items:
            items.server.troubles.hang("CreateSession")
            with pytest.raises(MulticloudDbError) as caught:
                items.page(Now(), timeout=1.0)
            assert caught.value.category == ErrorCategory.TRANSIENT_FAILURE

    def test_a_token_of_another_instance_is_refused_before_any_call(self):
        with feed() as items:
            token = items.token()
            elsewhere = items.scripted.url.replace("/tests?", "/others?")
            items.server.create(
                items.scripted.database.replace("instances/tests", "instances/others"), TABLE, STREAM
            )
            config = ClientConfig("spanner", {"url": elsewhere})
            with open_client(PLUGIN, config) as client:
                before = len(items.server.journal.queries())
                with pytest.raises(MulticloudDbError) as caught:
                    items.page(token, client=client)
                assert caught.value.category == ErrorCategory.INVALID_REQUEST
                assert len(items.server.journal.queries()) == before

    def test_a_stream_that_is_dropped_while_it_is_read_is_told(self):
        with feed() as items:
            token = items.token()
            items.fill(3)
            token = items.page(token, 2).continuation_token
            items.server.execute(items.scripted.database, "DROP CHANGE STREAM items_stream")
            items.restart()
            with pytest.raises(MulticloudDbError) as caught:
                items.page(token)
            assert caught.value.category == ErrorCategory.NOT_FOUND
            assert "CREATE CHANGE STREAM" in str(caught.value)

    def test_a_stream_that_is_dropped_under_a_client_is_told(self):
        with feed() as items:
            token = items.token()
            items.fill(3)
            items.drain(token)
            items.server.execute(items.scripted.database, "DROP CHANGE STREAM items_stream")
            with pytest.raises(MulticloudDbError) as caught:
                items.drain(token, timeout=5.0)
            assert caught.value.category in (ErrorCategory.NOT_FOUND, ErrorCategory.INVALID_REQUEST)

    def test_a_stream_that_no_longer_watches_the_table_is_told(self):
        with feed() as items:
            token = items.token()
            items.fill(3)
            items.server.execute(items.scripted.database, "ALTER CHANGE STREAM items_stream DROP FOR ALL")
            items.fill(3, start=3)
            items.restart()
            with pytest.raises(MulticloudDbError) as caught:
                items.drain(token)
            assert caught.value.category in (ErrorCategory.NOT_FOUND, ErrorCategory.INVALID_REQUEST)

    def test_several_streams_of_a_table_are_listed(self):
        with feed(TABLE, STREAM, STREAM.replace("items_stream", "second")) as items:
            with pytest.raises(MulticloudDbError) as caught:
                items.token()
            assert caught.value.category == ErrorCategory.INVALID_REQUEST
            assert "items_stream" in str(caught.value)
            assert "second" in str(caught.value)
