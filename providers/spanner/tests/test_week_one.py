"""Tests situations that a team meets within its first week in production, on the scripted server."""

from datetime import timedelta
from itertools import pairwise

import pytest

from multiclouddb_api import (
    Beginning,
    ErrorCategory,
    Gap,
    MulticloudDbError,
    Now,
    PhysicalPartition,
    ResourceAddress,
    SkipToOldest,
)

from .test_scripted_attacks import DAY, STREAM, TABLE, Feed, feed, in_order, numbers, once

KEEP = "ALTER CHANGE STREAM items_stream SET OPTIONS (retention_period = '{}d')"


def run(items, *statements):
    items.server.execute(items.scripted.database, *statements)


class TestSequence:
    """A record sequence has eight digits. In a very large transaction, a record sequence has more digits."""

    @pytest.mark.parametrize("size", [1, 3, 0])
    def test_a_sequence_of_nine_digits_comes_after_one_of_eight(self, size):
        with feed(initial_partitions=1, mods_per_record=1, sequence_step=40_000_000) as items:
            token = items.token()
            items.put(*((f"k{number}", number) for number in range(8)))
            events = items.drain(token, size, fresh=True)
            once(events, 8)
            assert numbers(sorted(events, key=lambda event: event.order_key)) == list(range(8))
            for event in events:
                sequence = event.event_id.split("|")[2]
                assert int(sequence) == 40_000_000 * event.new_item_state["n"]


class TestRetention:
    def test_a_token_that_a_shorter_retention_expires_is_no_token_of_another_stream(self):
        with feed(initial_partitions=2) as items:
            run(items, KEEP.format(7))
            items.restart()
            items.server.advance(3 * DAY)
            token = items.page(items.token()).continuation_token
            items.fill(5)
            items.server.advance(3 * DAY)
            run(items, KEEP.format(1))
            items.fill(3, start=5)
            with pytest.raises(MulticloudDbError) as caught:
                items.drain(token)
            assert caught.value.category == ErrorCategory.CHECKPOINT_EXPIRED
            page = items.page(token, on_expired=SkipToOldest())
            assert any(isinstance(notice, Gap) for notice in page.notices)
            later = items.drain(page.continuation_token)
            assert sorted(numbers([*page.events, *later])) == [5, 6, 7]

    def test_a_longer_retention_is_noticed_too(self):
        with feed(initial_partitions=2) as items:
            items.server.advance(3 * DAY)
            items.fill(2)
            token = items.page(Beginning()).continuation_token
            run(items, KEEP.format(7))
            items.server.advance(2 * DAY)
            items.fill(2, start=2)
            assert sorted(numbers(items.drain(token))) in ([2, 3], [0, 1, 2, 3])


class TestUnwatched:
    """A client that has been reading for a long time notices that its table is no longer watched."""

    @pytest.mark.parametrize("watch", ["DROP FOR ALL", "SET FOR other"])
    def test_a_stream_that_no_longer_watches_the_table_is_told(self, watch, monkeypatch):
        monkeypatch.setattr("multiclouddb_spanner.source._CHECK_SECONDS", 0.0)
        with feed(TABLE, TABLE.replace("items", "other"), STREAM) as items:
            token = items.token()
            items.fill(3)
            events = items.drain(token)
            once(events, 3)
            run(items, f"ALTER CHANGE STREAM items_stream {watch}")
            items.fill(3, start=3)
            for statement in ("ALTER CHANGE STREAM items_stream SET FOR items", "CREATE CHANGE STREAM"):
                with pytest.raises(MulticloudDbError) as caught:
                    items.drain(token)
                assert caught.value.category == ErrorCategory.NOT_FOUND
                assert statement in str(caught.value)
            run(items, "ALTER CHANGE STREAM items_stream SET FOR items")
            once(items.drain(token), 3)

    def test_it_is_asked_seldom(self):
        with feed(initial_partitions=4) as items:
            token = items.token()
            items.drain(token)
            items.server.journal.clear()
            for _ in range(20):
                items.page(token)
            assert [call for call in items.server.journal.calls if "information_schema" in call.sql] == []


class TestMerged:
    @pytest.mark.parametrize("size", [1, 0])
    def test_a_stored_token_of_partitions_that_merged_goes_on_in_the_child(self, size):
        with feed(initial_partitions=6) as items:
            items.fill(12)
            page = items.page(Beginning(), 3)
            token, read = page.continuation_token, len(page.events)
            for _ in range(3):
                items.server.merge(*items.open_partitions()[:2])
                items.fill(12, start=100)
            items.restart()
            events = items.drain(token, size, fresh=True)
            once(events, 12 + 36 - read)

    def test_one_partition_that_merged_names_the_child_with_all_its_parents(self):
        with feed(initial_partitions=2) as items:
            names = items.client.list_physical_partitions(items.address)
            scope = PhysicalPartition(names[0])
            token = items.page(Now(), scope=scope).continuation_token
            items.server.merge(*items.open_partitions())
            while not (page := items.page(token, scope=scope)).partition_retired:
                token = page.continuation_token
            (child,) = page.child_partitions
            assert set(child.parents) == set(names)


class TestNames:
    def test_the_schema_public_may_be_written(self):
        made = Feed(
            "CREATE TABLE items (id varchar NOT NULL, n bigint, PRIMARY KEY (id))",
            "CREATE CHANGE STREAM items_stream FOR items WITH (value_capture_type = 'NEW_ROW')",
            postgres=True,
        )
        try:
            token = made.token()
            made.fill(3)
            made.address = ResourceAddress(made.scripted.name, "public.items")
            once(made.drain(Beginning()), 3)
            made.address = ResourceAddress(made.scripted.name, "items")
            once(made.drain(token), 3)
        finally:
            made.close()


class TestLargeCommits:
    def test_a_commit_over_all_partitions_with_splits_between_pages(self):
        with feed(initial_partitions=5, mods_per_record=40, sequence_step=3) as items:
            token = items.token()
            items.put(*((f"k{number:05}", number) for number in range(4000)))
            events = []
            for round_ in range(200):
                page = items.page(token, 333)
                events += page.events
                token = page.continuation_token
                if round_ in (2, 5):
                    items.server.split(items.open_partitions()[round_])
                    items.restart()
                if page.idle:
                    break
            once(events, 4000)
            in_order(events)


class TestHeartbeats:
    def test_a_long_poll_over_a_quiet_day_moves_token_and_watermark(self):
        with feed(initial_partitions=3) as items:
            token, marks = items.token(), []
            for _ in range(4):
                items.server.advance(6 * 3600)
                page = items.page(token, wait=0.2)
                token = page.continuation_token
                marks.append(page.diagnostics.watermark)
            assert all(later - earlier > timedelta(hours=5) for earlier, later in pairwise(marks))
            items.fill(3)
            once(items.drain(token), 3)


class TestSessions:
    @pytest.mark.parametrize("status", ["ABORTED", "NOT_FOUND", "CANCELLED"])
    def test_a_thousand_partitions_survive_the_loss_of_sessions_and_calls(self, status):
        with feed(initial_partitions=300) as items:
            token = items.page(items.token(), timeout=60).continuation_token
            items.fill(60)
            text = "Session not found" if status == "NOT_FOUND" else "try again"
            items.server.troubles.fail("ChangeStream", status, 30, every=7, message=text)
            items.server.lose_sessions()
            events = []
            while len(events) < 60:
                page = items.tried(token, 7, timeout=60)
                if page is not None:
                    assert not (page.idle and len(events) + len(page.events) < 60)
                    events += page.events
                    token = page.continuation_token
            once(events, 60)
