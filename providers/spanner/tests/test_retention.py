"""Tests the oldest readable time: it advances, is named or not, and times without records are told."""

from datetime import timedelta

import attrs
import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    Gap,
    Now,
    PhysicalPartition,
    SkipToOldest,
    Snapshot,
)
from multiclouddb_spanner_emulator.partition import HASHES, place_of
from multiclouddb_spi import Planner, ProviderFault, read_range
from multiclouddb_spi.continuation.watermark import Standings
from multiclouddb_verify import DeltaTarget, DifferenceKind, verify
from pyspark_multiclouddb import merge_into_delta

from .feeds import DAY, MINUTE, STREAM, TABLE, Opened, feed, numbers, once
from .scripted import READ

STATES = pytest.mark.parametrize("told", [True, False], ids=["told", "searched"])
KEEP = "ALTER CHANGE STREAM items_stream SET OPTIONS (retention_period = '{}d')"
EXPIRED = ErrorCategory.CHECKPOINT_EXPIRED


def skipped(items, token, size=0):
    """Return the events and notices of a consumer that accepts losses."""
    pages = list(items.pages(token, size, on_expired=SkipToOldest()))
    return [event for page in pages for event in page.events], [
        notice for page in pages for notice in page.notices
    ]


class TestBeginning:
    @STATES
    def test_a_young_stream_begins_exactly_where_it_was_created(self, told):
        with feed(names_horizon=told) as items:
            items.server.crowd(0.2)
            items.fill(4)
            items.server.advance(DAY - 2 * MINUTE)
            events = items.drain(Beginning())
            once(events, 4)
            first = min(event.timestamp for event in events)
            once(items.drain(AtTime(first)), 4)
            once(items.drain(AtTime(first - timedelta(microseconds=1))), 4)

    def test_an_old_one_begins_a_minute_after_its_oldest_change(self):
        with feed(names_horizon=False) as items:
            items.fill(2)
            items.server.advance(40)  # these changes will be kept for less than the margin
            items.fill(2, start=2)
            items.server.advance(MINUTE)  # these changes will be kept for longer
            items.fill(2, start=4)
            items.server.advance(DAY - 80)
            assert sorted(numbers(items.drain(Beginning()))) == [4, 5]

    @STATES
    def test_a_first_read_that_comes_too_late_is_refused(self, told):
        """Resolve the start, let time pass, and then read each partition for the first time."""
        with feed(names_horizon=told) as items:
            items.fill(3)
            items.server.advance(DAY + MINUTE)
            items.fill(4, start=3)
            plan = items.client.plan_partitions(ChangeFeedRequest(items.address, Beginning()))
            items.server.advance(5 * MINUTE)
            assert len(plan) == len(items.open_partitions())
            for name, token in plan:
                items.refused(EXPIRED, token, scope=PhysicalPartition(name))
            assert sorted(numbers(items.drain(Beginning()))) == [3, 4, 5, 6]

    def test_a_call_that_may_take_hours_leaves_out_a_tenth_of_the_retention(self):
        with feed(initial_partitions=1) as items:
            items.server.advance(2 * DAY)
            items.fill(1)
            items.server.advance(100)
            items.fill(1, start=1)
            items.server.advance(DAY - DAY / 10 - 50)
            assert numbers(items.page(Beginning(), timeout=50_000).events) == [1]

    def test_a_start_stays_ahead_of_retention_for_as_long_as_its_call_may_take(self):
        with feed() as items:
            items.server.advance(2 * DAY)
            items.fill(10)
            items.server.advance(DAY - 11 * MINUTE)
            items.fill(10, start=10)
            late = items.open_partitions()[1]
            items.server.troubles.act(lambda: items.server.advance(5 * MINUTE), token=late, after_rows=None)
            page = items.page(Beginning(), timeout=300)
            events = [*page.events, *items.drain(page.continuation_token)]
            assert sorted(numbers(events)) == list(range(20))

    def test_a_retention_that_was_made_shorter_under_a_client_is_noticed(self):
        with feed() as items:
            items.run(KEEP.format(3))
            items.restart()
            items.token()
            items.fill(3)
            items.server.advance(2 * DAY)
            items.run(KEEP.format(1))
            items.fill(4, start=3)
            assert sorted(numbers(items.drain(Beginning()))) == [3, 4, 5, 6]

    @STATES
    def test_a_default_that_the_service_does_not_state_is_asked_for(self, told):
        with feed(names_horizon=told, default_retention="7d") as items:
            items.fill(2)
            items.server.advance(5 * DAY)
            items.fill(2, start=2)
            request = ChangeFeedRequest(items.address, Beginning())
            once(items.drain(Beginning()), 4)
            plan = items.client.plan_partitions(request)
            found = [
                event for name, token in plan for event in items.drain(token, scope=PhysicalPartition(name))
            ]
            once(found, 4)
            items.server.advance(3 * DAY)
            assert sorted(numbers(items.drain(Beginning()))) == [2, 3]

    @STATES
    def test_losses_skip_no_more_than_a_default_that_is_not_stated(self, told):
        with feed(names_horizon=told, default_retention="7d") as items:
            token = items.token()
            items.fill(2)
            items.server.advance(5 * DAY)
            items.fill(2, start=2)
            items.server.advance(3 * DAY)
            items.restart()
            events, notices = skipped(items, token)
            assert any(isinstance(notice, Gap) for notice in notices)
            assert sorted(numbers(events)) == [2, 3]

    @STATES
    def test_headroom_is_what_is_surely_left(self, told):
        with feed(names_horizon=told, default_retention="3d", initial_partitions=1) as items:

            def left():
                items.restart()
                with Opened(items) as opened:
                    return [
                        opened.feed.headroom(cursor, opened.feed.clock(opened.soon()))
                        for cursor in (early, *opened.starts(Now()).values())
                    ]

            items.server.advance(DAY / 2)
            with Opened(items) as opened:
                (early,) = opened.starts(Now()).values()
            assert left() == pytest.approx([DAY, DAY], abs=MINUTE)  # no stream keeps less than a day
            items.server.advance(2 * DAY)
            assert left() == pytest.approx([DAY / 2, 2.5 * DAY], abs=MINUTE)  # its first change
            items.server.advance(DAY + 5 * MINUTE)
            assert left() == pytest.approx([0, 3 * DAY], abs=MINUTE)

    def test_a_retention_that_changes_is_told_within_a_minute(self, monkeypatch):
        monkeypatch.setattr("multiclouddb_spanner.source._CHECK_SECONDS", 0.0)
        with feed(initial_partitions=1) as items:
            items.run(KEEP.format(7))
            token = items.token()
            assert items.page(token).diagnostics.retention_headroom_seconds > 6 * DAY
            items.run(KEEP.format(1))
            items.page(token)
            assert items.page(token).diagnostics.retention_headroom_seconds < DAY + 1

    def test_a_running_reader_measures_it_again(self, monkeypatch):
        """Otherwise the time since the stream began would be told for ever."""
        monkeypatch.setattr("multiclouddb_spanner.source._CHECK_SECONDS", 0.0)
        with feed(default_retention="3d", initial_partitions=1) as items:
            token = items.token()
            for _ in range(3):
                items.server.advance(2 * DAY)
                token = items.page(token).continuation_token
            assert items.page(token).diagnostics.retention_headroom_seconds < 3 * DAY + MINUTE

    def test_a_stream_that_watched_the_table_later(self):
        with feed(TABLE, "CREATE CHANGE STREAM items_stream", initial_partitions=1) as items:
            items.server.advance(20 * MINUTE)
            items.run("ALTER CHANGE STREAM items_stream SET FOR items")
            items.put(("a", 1))
            items.server.advance(20 * MINUTE)
            assert numbers(items.drain(Beginning())) == [1]


def key_of(partition):
    """Return a key whose changes go to the given one of two partitions."""
    return next(
        key
        for key in (f"k{number}" for number in range(1000))
        if place_of(f'items {{"id":"{key}"}}') * 2 // HASHES == partition
    )


class TestPositions:
    """Tests that the provider never moves a stored position or a requested time."""

    def test_a_partition_that_the_first_page_did_not_read_expires_on_its_own(self):
        with feed() as items:
            items.server.advance(2 * DAY)
            items.put((key_of(1), 1))  # expires two minutes later
            items.server.advance(DAY - 2 * MINUTE)
            items.put((key_of(0), 2))
            items.put((key_of(1), 3))
            waits = items.server.troubles.hang(READ, 1, token=items.open_partitions()[1])
            page = items.page(Beginning(), 1)
            waits.end()
            assert numbers(page.events) == [2]
            token = page.continuation_token
            assert sorted(numbers(items.drain(token))) == [1, 3]
            items.server.advance(3 * MINUTE)
            items.restart()
            items.refused(EXPIRED, token)
            events, notices = skipped(items, token)
            assert [notice for notice in notices if isinstance(notice, Gap)]
            assert 3 in numbers(events)

    def test_a_token_that_a_shorter_retention_expires_is_no_token_of_another_stream(self):
        with feed(initial_partitions=2) as items:
            items.run(KEEP.format(7))
            items.restart()
            items.server.advance(3 * DAY)
            token = items.page(items.token()).continuation_token
            items.fill(5)
            items.server.advance(3 * DAY)
            items.run(KEEP.format(1))
            items.fill(3, start=5)
            items.refused(EXPIRED, token)
            events, notices = skipped(items, token)
            assert any(isinstance(notice, Gap) for notice in notices)
            assert sorted(numbers(events)) == [5, 6, 7]

    def test_a_partition_whose_changes_have_all_expired_is_no_bad_token(self):
        """The service has words of its own for it, with the status of a token that was altered."""
        with feed(initial_partitions=1) as items:
            token = items.token()
            items.restart()
            items.server.troubles.fail(
                READ,
                "OUT_OF_RANGE",
                None,
                message="This partition is no longer valid. All Change Stream records associated with this "
                "partition have expired and have been deleted, as specified by the Change Stream retention "
                "period.",
                token=items.open_partitions()[0],
            )
            items.refused(EXPIRED, token)

    def test_a_stream_recreated_is_not_skipped_into(self):
        with feed() as items:
            token = items.token()
            items.run("DROP CHANGE STREAM items_stream", STREAM)
            items.fill(5)
            items.restart()
            for settings in ({}, {"on_expired": SkipToOldest()}):
                items.refused(ErrorCategory.INVALID_REQUEST, token, **settings)


def away_and_back(items):
    """Write a change before, two while the stream is away, and one after; return a time while it is away."""
    items.run("CREATE TABLE other (id STRING(MAX) NOT NULL) PRIMARY KEY (id)")
    items.put(("before", 1))
    items.server.advance(MINUTE)
    items.run("ALTER CHANGE STREAM items_stream SET FOR other")
    items.put(("a", 2))
    moment = items.server.now()
    items.server.advance(20 * MINUTE)
    items.put(("a", 3))
    items.run("ALTER CHANGE STREAM items_stream SET FOR items")
    items.server.advance(10 * MINUTE)
    items.put(("after", 4))
    items.restart()
    return moment


class TestOtherColumns:
    """Tests statements that rewrite stored rows, for which the service sends no change records."""

    @pytest.mark.parametrize(
        ("statement", "path"),
        [
            ("ALTER TABLE items ADD COLUMN more STRING(MAX) DEFAULT ('x')", "$.more"),
            ("ALTER TABLE items ADD COLUMN more STRING(MAX)", "$.more"),
            ("ALTER TABLE items DROP COLUMN text", "$.text"),
        ],
    )
    def test_a_comparison_names_the_column_and_repairs_the_rows(self, monkeypatch, tmp_path, statement, path):
        monkeypatch.setattr("multiclouddb_verify.source._CLOCK_ERROR", 0.01)

        def compared(**settings):
            target = DeltaTarget(tmp_path / "table")
            return verify(
                items.client, items.address, target, position=token, state=tmp_path / "state", **settings
            )

        def merged(start):
            for page in items.pages(start):
                merge_into_delta(page, None, tmp_path / "table", None)
            return page.continuation_token

        with feed(initial_partitions=1) as items:
            items.fill(3)
            token = merged(Snapshot())
            items.run(statement)
            items.put(("later", 9))
            token = merged(token)
            report = compared()
            assert {(each.kind, each.path) for each in report.differences} == {(DifferenceKind.STALE, path)}
            assert report.counts.differences == {DifferenceKind.STALE: 3}
            assert compared(repair=True).exit_code == 0

    def test_a_running_reader_warns_once_for_each(self, monkeypatch, caplog):
        monkeypatch.setattr("multiclouddb_spanner.source._CHECK_SECONDS", 0.0)
        with feed(initial_partitions=1) as items, caplog.at_level("WARNING", "multiclouddb.spanner"):
            items.put(("a", 1))
            token = items.page(Beginning()).continuation_token

            def read():
                nonlocal token
                caplog.clear()
                for _ in range(3):
                    token = items.page(token).continuation_token
                return [each.getMessage() for each in caplog.records if each.name == "multiclouddb.spanner"]

            assert read() == []
            items.run("ALTER TABLE items ADD COLUMN more INT64")
            (said,) = read()
            assert "'items' have changed: more was added." in said
            items.run("ALTER TABLE items DROP COLUMN more")
            (said,) = read()
            assert "more was dropped." in said
            table = items.server._world.databases[items.scripted.database].tables["items"]
            table.columns[1] = attrs.evolve(table.columns[1], text="FLOAT64")
            (said,) = read()
            assert "n has another type." in said
            assert read() == []


class TestUnwatched:
    """Tests a change stream that is pointed away from its table and back while nobody reads."""

    @pytest.mark.parametrize("size", [0, 1])
    def test_what_is_before_arrives_and_then_the_loss_is_told(self, size):
        with feed(initial_partitions=1) as items:
            token = items.token()
            moment = away_and_back(items)
            page = items.page(token, size)
            assert numbers(page.events) == [1]
            assert "did not watch" in items.refused(EXPIRED, page.continuation_token, size=size, fresh=True)
            items.refused(EXPIRED, AtTime(moment))

    @pytest.mark.parametrize("size", [0, 1])
    def test_whoever_accepts_the_loss_reads_on_after_a_notice(self, size):
        with feed(initial_partitions=2) as items:
            token = items.token()
            away_and_back(items)
            events, notices = skipped(items, token, size)
            assert numbers(events) == [1, 4]
            once(events, 2)
            assert [notice for notice in notices if isinstance(notice, Gap)]

    @pytest.mark.parametrize("limit", [None, 5])
    def test_a_bounded_read_plans_up_to_it_and_then_tells_the_loss(self, limit):
        with feed(initial_partitions=2) as items:
            with Opened(items) as early:
                start = Planner(early.provider, early.feed).start(Now(), early.soon())
            moment = away_and_back(items)
            with Opened(items) as late:
                planner = Planner(late.provider, late.feed)
                step = planner.advance(start, limit, late.soon(), allow_empty=True)
                now = late.feed.clock(late.soon())
                told = Standings().measure(late.feed, step.after, step.answers, now)
                assert told.read_until < moment + timedelta(seconds=5 * MINUTE), "the loss is not read yet"
                rows = [
                    event
                    for part in step.ranges()
                    for batch in read_range(late.provider, late.feed, part)
                    for event in batch.events(0, len(batch))
                ]
                assert numbers(rows) == [1]
                with pytest.raises(ProviderFault) as caught:
                    planner.advance(step.after, limit, late.soon(), allow_empty=True)
                assert caught.value.fault.category == EXPIRED


OPTION = "ALTER CHANGE STREAM items_stream SET OPTIONS ({} = {})"
HIDES = pytest.mark.parametrize(
    "option",
    ["exclude_delete", "exclude_update", "exclude_insert", "exclude_ttl_deletes", "allow_txn_exclusion"],
)


class TestLeftOut:
    """Tests a change stream that is altered to leave changes out."""

    @HIDES
    def test_a_running_reader_ends_within_a_minute(self, option, monkeypatch):
        monkeypatch.setattr("multiclouddb_spanner.source._CHECK_SECONDS", 0.0)
        with feed(initial_partitions=1) as items:
            items.put(("a", 1))
            token = items.page(Beginning()).continuation_token
            items.run(OPTION.format(option, "true"))
            assert option in items.refused(ErrorCategory.NOT_FOUND, token)

    @HIDES
    def test_a_reader_that_names_the_stream_is_refused_its_old_token(self, option):
        with feed(initial_partitions=1) as items:
            items.scripted.url += "&change_stream=items_stream"
            items.restart()
            items.put(("a", 1))
            token = items.page(Beginning()).continuation_token
            items.run(OPTION.format(option, "true"))
            items.restart()
            assert option in items.refused(ErrorCategory.NOT_FOUND, token)
            token = items.page(Beginning()).continuation_token  # this start knows what the stream leaves out
            items.put(("b", 2))
            items.restart()
            items.page(token)
            items.run(OPTION.format(option, "false"))
            items.restart()
            items.page(token)

    @HIDES
    def test_changes_that_were_left_out_while_nobody_read_are_told(self, option):
        with feed(initial_partitions=1) as items:
            token = items.token()
            items.put(("before", 1))
            items.server.advance(5 * MINUTE)
            items.run(OPTION.format(option, "true"))
            items.server.advance(20 * MINUTE)
            items.run(OPTION.format(option, "false"))
            items.server.advance(5 * MINUTE)
            items.put(("after", 2))
            items.restart()
            page = items.page(token)
            assert numbers(page.events) == [1]
            assert "left some of its changes out" in items.refused(EXPIRED, page.continuation_token)
            events, notices = skipped(items, token)
            assert numbers(events) == [1, 2]
            assert any(isinstance(notice, Gap) for notice in notices)

    def test_what_a_named_stream_always_left_out_is_no_loss(self):
        with feed(initial_partitions=1) as items:
            items.run(OPTION.format("exclude_delete", "true"))
            items.scripted.url += "&change_stream=items_stream"
            items.restart()
            token = items.token()
            items.put(("a", 1))
            items.server.advance(20 * MINUTE)
            items.put(("b", 2))
            items.restart()
            assert numbers(items.drain(token)) == [1, 2]
