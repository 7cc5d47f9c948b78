"""Tests that one call polls an unchanged feed with many partitions, and that no change is missed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import multiclouddb_api as api
from multiclouddb_conformance.waiting import SOON, assert_prompt
from multiclouddb_embedded import EmbeddedStore, Put
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_embedded.reader import EmbeddedReader
from multiclouddb_embedded.store.collection import partition_hash, partition_identity
from multiclouddb_spi import Deadline, Fault, ProviderFault

PARTITIONS = 8
ADDRESS = api.ResourceAddress("main", "orders")


@pytest.fixture
def store(tmp_path: Any) -> Iterator[EmbeddedStore]:
    with EmbeddedStore(tmp_path / "store.db", durable=False) as store:
        store.create_collection("orders", PARTITIONS, retention=timedelta(days=1))
        store.batch("orders", [Put(f"o-{number}", {"n": number}) for number in range(40)])
        yield store


class Consumer:
    """Reads page after page, each from the token of the previous page."""

    def __init__(self, client: api.MulticloudDbClient) -> None:
        self.client = client
        self.page = client.read_changes(api.ChangeFeedRequest(ADDRESS, api.Beginning()))
        self.seen = [event.event_id for event in self.page.events]

    def next(self, wait: float = 0.0, timeout: float = 30.0) -> api.ChangeFeedPage:
        position = api.FromContinuationToken(self.page.continuation_token)
        options = api.OperationOptions(timeout, wait)
        self.page = self.client.read_changes(api.ChangeFeedRequest(ADDRESS, position), options)
        self.seen += [event.event_id for event in self.page.events]
        return self.page

    def timed(self, wait: float = 0.0, timeout: float = 30.0) -> tuple[api.ChangeFeedPage, float]:
        """Read the next page; return it with the duration of the call."""
        began = time.monotonic()
        page = self.next(wait, timeout)
        return page, time.monotonic() - began

    def until_quiet(self) -> api.ChangeFeedPage:
        """Read until the partitions are no longer polled."""
        for _ in range(20):
            page = self.next()
            if page.idle and page.diagnostics.requests == 1:
                return page
        raise AssertionError("every page has asked the partitions")


@pytest.fixture
def consumer(store: EmbeddedStore) -> Iterator[Consumer]:
    with api.connect(api.ClientConfig("embedded", {"path": store.path}, max_concurrency=2)) as client:
        yield Consumer(client)


def test_a_quiet_feed_takes_one_call_and_every_write_is_read(store: EmbeddedStore, consumer: Consumer):
    before = consumer.until_quiet()
    for _ in range(5):
        page = consumer.next()
        assert (page.idle, page.diagnostics.requests) == (True, 1)
        assert page.continuation_token == before.continuation_token
        assert page.diagnostics.watermark == before.diagnostics.watermark
        assert page.diagnostics.retention_headroom_seconds == 86400
        assert page.diagnostics.lag_seconds < 60
    for number in range(30):
        consumer.until_quiet()
        store.put("orders", f"o-{number}", {"n": -number})
        consumer.next()
    assert len(set(consumer.seen)) == len(consumer.seen) == 70


def test_its_token_is_refused_for_another_scope(consumer: Consumer):
    token = consumer.until_quiet().continuation_token
    scope = api.PhysicalPartition(consumer.client.list_physical_partitions(ADDRESS)[0])
    request = api.ChangeFeedRequest(ADDRESS, api.FromContinuationToken(token), scope)
    with pytest.raises(api.MulticloudDbError, match="made for the scope"):
        consumer.client.read_changes(request)


def test_a_feed_whose_coverage_is_audited_is_read_each_time(consumer: Consumer, monkeypatch: Any):
    monkeypatch.setattr(EmbeddedFeed, "names_late", True)
    consumer.page = consumer.client.read_changes(api.ChangeFeedRequest(ADDRESS, api.Now()))
    assert [consumer.next().diagnostics.requests for _ in range(5)] == [PARTITIONS] * 5


def test_a_write_during_the_read_is_read_next(store: EmbeddedStore, consumer: Consumer, monkeypatch: Any):
    """The mark is requested before the read, so a write during the read changes the next mark."""
    # On a busy machine, other threads would read.
    monkeypatch.setattr("multiclouddb_embedded.reader.AT_ONCE_SECONDS", 10.0)
    fetch, written = EmbeddedReader.fetch_at_once, list[str]()
    while not consumer.next().idle:
        pass

    def late(self: EmbeddedReader, *args: Any) -> Any:
        batch = fetch(self, *args)
        if not written and not batch.records:  # this partition has already reported that it has no changes
            written.append(self._name)
            found = {row.partition_id: (row.low, row.high) for row in store.partitions("orders")}
            low, high = found[self._name]
            store.batch("orders", [Put(key_in(store, low, high), {"late": True})])
        return batch

    monkeypatch.setattr(EmbeddedReader, "fetch_at_once", late)
    store.put("orders", "early", {"n": 0})  # otherwise the mark says that no partition has to be read
    for _ in range(6):
        consumer.next()
    assert written
    assert len(consumer.seen) == 42


def key_in(store: EmbeddedStore, low: int, high: int) -> str:
    """Return a key whose hash is in the range."""
    names = (f"late-{number}" for number in range(10_000))
    keys = ((name, partition_identity(api.MulticloudDbKey({"id": name}))) for name in names)
    return next(name for name, identity in keys if low <= partition_hash(identity) < high)


def test_a_mark_that_fails_does_not_fail_the_page(consumer: Consumer, monkeypatch: Any):
    consumer.until_quiet()

    def fails(self: EmbeddedFeed, deadline: object) -> object:
        raise OSError("no answer")

    monkeypatch.setattr(EmbeddedFeed, "change_mark", fails)
    page = consumer.next()
    assert page.idle
    assert page.diagnostics.requests == PARTITIONS


@pytest.mark.parametrize(("timeout", "most"), [(10, 2.0), (1.6, 0.9)])
def test_a_mark_that_never_comes_does_not_block_the_feed(
    store: EmbeddedStore, consumer: Consumer, monkeypatch: Any, timeout: float, most: float
):
    """The call waits a second for the mark, and at most a quarter of its time; the rest is for reading."""

    def hangs(self: EmbeddedFeed, deadline: Deadline) -> object:
        time.sleep(max(0.0, deadline.remaining()) + 0.1)
        return None

    def attempt() -> float:
        consumer.until_quiet()
        store.put("orders", "o-1", {"n": -1})
        with monkeypatch.context() as patch:
            patch.setattr(EmbeddedFeed, "change_mark", hangs)
            page, took = consumer.timed(timeout=timeout)
        assert [event.new_item_state for event in page.events] == [{"n": -1}]
        return took

    assert_prompt(most, attempt, at_most=timeout + SOON)


@pytest.mark.parametrize("fails", [True, False])
def test_a_mark_that_comes_late_does_not_prolong_the_wait(consumer: Consumer, monkeypatch: Any, fails: bool):
    """The time until the mark has failed or changed is a part of the time that the caller wants to wait."""

    def late(self: EmbeddedFeed, deadline: Deadline) -> object:
        time.sleep(0.7)
        if fails:
            raise ProviderFault(Fault(api.ErrorCategory.PERMANENT_FAILURE, "no mark; read the partitions"))
        return object()

    def attempt() -> float:
        consumer.until_quiet()
        with monkeypatch.context() as patch:
            patch.setattr(EmbeddedFeed, "change_mark", late)
            page, took = consumer.timed(wait=1.0)
        assert (page.idle, page.diagnostics.requests > 1) == (True, True)
        assert took > 0.9
        return took

    assert_prompt(1.5, attempt, at_most=SOON)


def test_a_trim_and_a_drop_end_the_quiet(store: EmbeddedStore, consumer: Consumer):
    """They write no change, and here the writer's clock has been set back."""
    with EmbeddedStore(store.path, clock=lambda: datetime(2020, 1, 1, tzinfo=UTC), durable=False) as late:
        consumer.until_quiet()
        late.trim("orders", max_count=0)
        assert consumer.next().diagnostics.requests > 1
        consumer.until_quiet()
        late.drop_collection("orders")
        with pytest.raises(api.MulticloudDbError, match="was dropped"):
            consumer.next()


def test_a_call_waits_for_the_first_change(store: EmbeddedStore, consumer: Consumer, monkeypatch: Any):
    consumer.until_quiet()
    asked, mark = threading.Event(), EmbeddedFeed.change_mark

    def told(self: EmbeddedFeed, deadline: Any) -> Any:
        asked.set()
        return mark(self, deadline)

    def write() -> None:
        assert asked.wait(30)
        store.put("orders", "o-1", {"n": -1})

    monkeypatch.setattr(EmbeddedFeed, "change_mark", told)
    writer = threading.Thread(target=write)
    writer.start()
    page = consumer.next(wait=20)
    writer.join()
    assert [event.new_item_state for event in page.events] == [{"n": -1}]
