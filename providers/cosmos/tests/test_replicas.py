"""Tests answers of replicas that lag, and failovers after which the service gives LSNs again."""

import itertools

import pytest

from multiclouddb_api import (
    Beginning,
    ErrorCategory,
    Gap,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    Now,
    ResourceAddress,
    SkipToOldest,
    Snapshot,
    connect,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_cosmos import client as client_room
from multiclouddb_cosmos.client import Calls
from multiclouddb_cosmos_emulator import CosmosEmulator, Lag, queries
from multiclouddb_cosmos_emulator.errors import bad_request
from multiclouddb_cosmos_emulator.service import Service
from multiclouddb_spi import ProviderFault
from testing.consumer import markers

from .world import ADDRESS, DATABASE, NAME, READ, seconds, soon

pytestmark = pytest.mark.usefixtures("hasty")

HOUR = 3600


def failing(consumer):
    """Return the error of the next read, which gives up after six attempts and long before its deadline."""
    with pytest.raises(MulticloudDbError) as caught:
        consumer.read(seconds(60))
    return caught.value


def lose(world, transactions):
    world.server.lose(DATABASE, NAME, "0", transactions)
    world.server.advance(HOUR)


class TestLoss:
    """An unplanned failover has lost transactions, and later transactions get their LSNs."""

    @pytest.mark.parametrize("lost", [1, 20])
    def test_changes_with_lsns_that_were_read_are_not_skipped(self, lone, lost):
        consumer = lone.consumer()
        lone.fill(30)
        consumer.until_idle()
        lose(lone, lost)
        for written in (0, lost // 2):
            lone.fill(written)
            error = failing(consumer)
            assert error.category == ErrorCategory.TRANSIENT_FAILURE
            assert "Snapshot()" in error.message
        lone.fill(lost - lost // 2)
        error = failing(consumer)
        assert error.category == ErrorCategory.CHECKPOINT_EXPIRED
        assert not error.retryable
        assert "failover" in error.message

    def test_skipping_delivers_every_change_that_is_left(self, lone):
        consumer = lone.consumer(on_expired=SkipToOldest())
        lone.fill(30)
        consumer.until_idle()
        lose(lone, 20)
        written = lone.fill(10)
        assert failing(consumer).retryable
        written += lone.fill(20)
        assert set(consumer.until_idle()) >= set(written)
        assert any(isinstance(notice, Gap) for notice in consumer.notices)

    def test_other_partitions_are_read_and_the_feed_is_not_idle(self, world):
        consumer = world.consumer()
        world.fill(20)
        consumer.until_idle()
        lose(world, 2)
        keys = [f"o{number}" for number in range(20)]
        written = world.put(*(key for key in keys if world.server.partition_of(DATABASE, NAME, key) == "1"))
        page = consumer.read()
        assert markers(page.events) == written
        assert not page.idle
        page = consumer.read(seconds(60))
        assert not page.idle
        (text,) = page.diagnostics.partition_errors.values()
        assert "failover" in text

    def test_a_change_without_a_time_does_not_end_the_read(self, lone):
        consumer = lone.consumer()
        lone.fill(30)
        consumer.until_idle()
        lose(lone, 1)
        assert failing(consumer).retryable
        *_, last = lone.fill(2)
        with lone.server._lock:
            lone.server._container(DATABASE, NAME).partitions[0].changes[-2].seconds = -1
        assert last in consumer.until_idle()

    def test_a_bounded_read_is_not_planned(self, lone):
        """Without a head, the engine reads the range itself, and so gets the reader's error."""
        _, feed = lone.feed()
        (seed,) = feed.start(Now(), None, soon())
        lone.fill(30)
        (head,) = feed.heads({seed.partition_id: seed.cursor}, None, soon()).values()
        here = {seed.partition_id: head.cursor}
        lose(lone, 20)
        assert feed.heads(here, None, soon()) == {}
        for fresh, category in ((0, ErrorCategory.TRANSIENT_FAILURE), (30, ErrorCategory.CHECKPOINT_EXPIRED)):
            lone.fill(fresh)
            assert feed.heads(here, None, soon()) == {}
            with pytest.raises(ProviderFault) as caught:
                feed.open(seed.partition_id, here[seed.partition_id]).fetch(10, 1 << 20, 0.0, soon())
            assert caught.value.fault.category == category

    def test_one_partition_key(self, lone):
        consumer = lone.consumer(scope=LogicalPartition(MulticloudDbKey({"pk": "k"})))
        for _ in range(10):
            lone.put("k", "other")
        consumer.until_idle()
        lose(lone, 10)
        lone.put("other", "k")
        assert failing(consumer).retryable
        for _ in range(10):
            lone.put("k", "other")
        assert failing(consumer).category == ErrorCategory.CHECKPOINT_EXPIRED

    def test_a_scan_starts_again(self, lone):
        lone.fill(40)
        consumer = lone.consumer(Snapshot(), max_page_size=10)
        while len(consumer.events) < 20:
            consumer.read()
        lose(lone, 30)
        assert failing(consumer.restart()).retryable
        lone.fill(40)
        assert failing(consumer).category == ErrorCategory.CHECKPOINT_EXPIRED


class TestLag:
    """Replicas lag, as they do with eventual consistency."""

    @pytest.mark.parametrize("mode", ["all_versions", "latest"])
    def test_a_replica_before_the_position_neither_moves_the_feed_nor_makes_it_idle(self, lone, mode):
        consumer = lone.consumer(provider_options=CosmosOptions(mode=mode))
        lone.fill(10)
        consumer.until_idle()
        lone.server.faults.add(Lag(5), READ, times=None)
        assert failing(consumer).category == ErrorCategory.TRANSIENT_FAILURE
        lone.server.faults.clear()
        assert consumer.until_idle() == []
        written = lone.fill(10)
        assert consumer.until_idle() == written

    def test_a_replica_without_the_transaction_of_the_position_repeats_nothing(self, lone):
        consumer = lone.consumer(max_page_size=2)
        lone.batch("p", *(("upsert", ({"id": f"b{n}", "pk": "p", "n": n},)) for n in range(5)))
        consumer.read()
        lone.server.faults.add(Lag(1), READ)
        consumer.restart().read()
        consumer.until_idle()
        assert sorted(consumer.markers) == list(range(5))

    def test_a_lag_that_passes_costs_one_try(self, lone):
        consumer = lone.consumer()
        for _ in range(5):
            written = lone.fill(3)
            assert consumer.until_idle() == written
            lone.server.faults.add(Lag(2), READ)
            page = consumer.read()
            assert page.idle
            assert page.diagnostics.retries == 1

    def test_a_lag_during_the_search_for_the_oldest_change_skips_nothing(self, lone):
        consumer = lone.consumer(on_expired=SkipToOldest())
        lone.fill(20)
        lone.trim()
        written = lone.fill(20)
        lone.server.faults.add(Lag(15), READ, after=5)
        consumer.until_idle()
        assert sorted(consumer.markers) == written

    @pytest.mark.parametrize("quiet", [0, HOUR])
    def test_a_start_at_now_is_not_taken_for_a_loss(self, lone, quiet):
        lone.fill(10)
        lone.server.advance(quiet)
        consumer = lone.consumer()
        lone.server.advance(quiet)
        lone.server.faults.add(Lag(4), READ)
        written = lone.fill(3)
        assert consumer.until_idle() == written

    def test_times_that_are_not_in_the_order_of_lsns_are_not_taken_for_a_loss(self, lone):
        """In an account with several write regions, a change can arrive after younger ones."""
        consumer = lone.consumer()
        lone.fill(3)
        lone.server.advance(40)
        lone.fill(4)
        with lone.server._lock:
            lone.server._container(DATABASE, NAME).partitions[0].changes[-1].seconds -= 40
        consumer.until_idle()
        lone.server.faults.add(Lag(4), READ)
        assert consumer.until_idle() == []

    def test_changes_of_another_key_are_not_taken_for_a_loss(self, make_world):
        """With version 1 of the hash, long keys that begin alike share a range."""
        world = make_world(1, version=1)
        mine, other = "a" * 150, "a" * 151
        consumer = world.consumer(scope=LogicalPartition(MulticloudDbKey({"pk": mine})))
        world.put(mine)
        consumer.until_idle()
        world.server.advance(HOUR)
        for _ in range(5):
            world.put(other)
        consumer.until_idle()
        world.server.faults.add(Lag(3), READ)
        assert consumer.until_idle() == []

    @pytest.mark.parametrize(
        ("start", "options"),
        [
            (Now(), CosmosOptions()),
            (Now(), CosmosOptions(mode="latest")),
            (Snapshot(), CosmosOptions()),
            (Beginning(), CosmosOptions(backfill=True)),
        ],
        ids=["all_versions", "latest", "snapshot", "backfill"],
    )
    def test_no_change_that_it_lacks_is_older_than_the_watermark(self, lone, monkeypatch, start, options):
        """Microsoft Learn, Consistency levels: an eventually consistent read may come from a late replica."""
        monkeypatch.setattr(Calls, "now", lambda calls: lone.server.clock.now())
        lone.put("a")
        lone.server.advance(100)
        (late,) = lone.put("b")
        lone.server.advance(5)
        lone.server.faults.add(Lag(1), READ, times=2)
        consumer = lone.consumer(start, provider_options=options)
        for _ in range(2):  # the first idle page may come from the late replica
            consumer.until_idle()
        (change,) = [each for each in consumer.events if each.new_item_state["n"] == late]
        before = itertools.takewhile(lambda page: change not in page.events, consumer.pages)
        marks = [page.diagnostics.watermark for page in before]
        assert marks
        assert not change.backfilled
        assert change.timestamp >= max(marks)

    def test_a_scan_reads_on_while_a_replica_lags(self, lone):
        """The first page comes from a replica that does not have all rows of the snapshot yet."""
        written = lone.fill(20)
        consumer = lone.consumer(Snapshot())
        lone.server.faults.add(Lag(15), READ, after=1, times=3)
        consumer.until_idle()
        assert sorted(consumer.markers) == written


@pytest.mark.parametrize("item", ["a", "a%41"])
def test_a_look_up_passes_by_the_cache_of_a_dedicated_gateway(lone, monkeypatch, item):
    """Microsoft Learn, Integrated cache: by default, its items may be five minutes old."""
    told, answer = [], Service.answer
    lone.put(item)

    def noting(service, request, route):
        if route.operation in ("ReadItem", "QueryItems"):
            told.append(request.headers.get("x-ms-dedicatedgateway-bypass-cache"))
        return answer(service, request, route)

    monkeypatch.setattr(Service, "answer", noting)
    key = MulticloudDbKey({"pk": item, "id": item}, 1)
    for native in (None, lone.native):
        with connect(lone.config(), native_client=native) as client:
            assert client.lookup(ADDRESS, [key])[key].new_item_state["id"] == item
    assert told == ["true", "true"]


def test_it_passes_by_the_cache_if_each_partition_is_asked(make_world, put_text, monkeypatch):
    """Real gateways refuse some queries with 400/1004; then azure-cosmos asks each partition by itself."""
    told, answer = [], Service.answer
    world = make_world(2, key=["/a", "/b"])
    put_text(world, '{"id": "x#", "a": "1"}')

    def noting(service, request, route):
        if route.operation == "QueryItems":
            told.append(request.headers.get("x-ms-dedicatedgateway-bypass-cache"))
        return answer(service, request, route)

    monkeypatch.setattr(queries, "needs_plan", lambda select: True)
    monkeypatch.setattr(Service, "answer", noting)
    key = MulticloudDbKey({"a": "1", "id": "x#"}, 1)
    assert world.client().lookup(ADDRESS, [key])[key].key == key
    assert told == ["true"] * 3


@pytest.mark.parametrize(("before", "after"), [("Session", "Strong"), ("Strong", "Session")])
def test_the_level_of_an_account_may_change(make_world, monkeypatch, before, after):
    """Microsoft Learn, Manage consistency levels: it can be changed at any time, and relaxed per request."""
    server = CosmosEmulator(consistency=before)
    world, answer, levels = make_world(1, server=server), Service.answer, []
    world.put("a")

    def noting(service, request, route):
        if route.operation == "ReadItem":
            levels.append(request.headers.get("x-ms-consistency-level"))
            if after == "Session" and levels[-1] == "Strong" and server._account.consistency != "Strong":
                raise bad_request("The consistency level of the request is stronger than the account's.")
        return answer(service, request, route)

    monkeypatch.setattr(Service, "answer", noting)
    key = MulticloudDbKey({"pk": "a", "id": "a"}, 1)
    client = world.client()
    client.lookup(ADDRESS, [key])
    server._account.consistency = after
    if after == "Strong":
        monkeypatch.setattr(client_room, "_LEVEL_SECONDS", 0.0)
    else:
        refusal(ErrorCategory.INVALID_REQUEST, lambda: client.lookup(ADDRESS, [key]), "consistency")
    client.lookup(ADDRESS, [key])
    assert [levels[0], levels[-1]] == [{"Session": "Eventual"}.get(each, each) for each in (before, after)]


@pytest.mark.parametrize(
    ("account", "sent"),
    [
        ("Strong", "Strong"),
        ("BoundedStaleness", "BoundedStaleness"),
        ("Session", "Eventual"),
        ("ConsistentPrefix", "Eventual"),
    ],
)
@pytest.mark.parametrize("item", ["a", "a%41"])
def test_a_look_up_is_as_consistent_as_the_account(make_world, monkeypatch, account, sent, item):
    server, levels = CosmosEmulator(consistency=account), []
    world, answer = make_world(1, server=server), Service.answer
    world.put(item)

    def noting(service, request, route):
        if route.operation in ("ReadItem", "QueryItems"):
            levels.append(request.headers.get("x-ms-consistency-level"))
        return answer(service, request, route)

    monkeypatch.setattr(Service, "answer", noting)
    with connect(world.config()) as client:
        key = MulticloudDbKey({"pk": item, "id": item}, 1)
        (row,) = client.lookup(ResourceAddress(DATABASE, NAME), [key]).values()
    assert row.new_item_state["id"] == item
    assert levels == [sent]
