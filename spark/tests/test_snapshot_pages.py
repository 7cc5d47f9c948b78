"""Tests that a snapshot read as pages repairs a table, as a snapshot read by Spark does."""

import json
import os
import random

import pytest
from deltalake import DeltaTable

from multiclouddb_api import (
    BackfillDone,
    Beginning,
    ChangeFeedPage,
    ChangeFeedRequest,
    FeedEnded,
    FromContinuationToken,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    PhysicalPartition,
    Resnapshot,
    ResourceAddress,
    Snapshot,
    SnapshotOrder,
    SnapshotStarted,
    connect,
)
from pyspark_multiclouddb import merge_into_delta
from pyspark_multiclouddb.sinks import events_to_arrow

from .conftest import COLLECTION
from .test_app_ids import checkpoint
from .test_sinks import documents, rows
from .test_snapshot_sink import Killed, kills, lose, stale
from .test_snapshot_table import scanned
from .test_tombstones import tombstones

LIVES = int(os.environ.get("MULTICLOUDDB_LIVES", "1"))
SEEDS = [*range(LIVES), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(LIVES, LIVES + 100))]
ADDRESS = ResourceAddress(collection=COLLECTION)
assert kills


class Pages:
    """A loop over pages that merges each page and then stores its token.

    Attributes:
        token: The stored token, or None.
    """

    def __init__(self, source, table, start=None, **settings):
        self.source, self.table, self.settings = source, table, settings
        self.start, self.token = start or Snapshot(), None

    def __enter__(self):
        self.client = connect(f"embedded://{self.source.store.path}")
        return self

    def __exit__(self, *_):
        self.client.close()

    def page(self):
        position = self.start if self.token is None else FromContinuationToken(self.token)
        return self.client.read_changes(ChangeFeedRequest(ADDRESS, position, **self.settings))

    def step(self):
        page = self.page()
        merge_into_delta(page, None, self.table, None)
        self.token = page.continuation_token
        return page

    def drain(self):
        idle = 0
        while idle < 2:
            idle = idle + 1 if self.step().idle else 0


def follow(source, table, start=None, **settings):
    with Pages(source, table, start, **settings) as pages:
        pages.drain()
        return pages.token


def delete_some(source, count=5):
    gone = sorted(source.documents)[:count]
    for key in gone:
        source.store.delete(COLLECTION, key)
        del source.documents[key]
    return gone


def check(source, table):
    assert documents(table) == source.documents
    assert stale(table) == []
    assert {json.loads(key)["id"] for key in tombstones(table)}.isdisjoint(source.documents)


@pytest.fixture
def table(tmp_path):
    return tmp_path / "table"


class TestRepairs:
    def test_two_outages_with_resnapshot(self, source, table):
        source.write(60)
        with Pages(source, table, on_expired=Resnapshot()) as pages:
            for outage in range(3):
                pages.drain()
                check(source, table)
                source.write(10, seed=outage)
                gone = delete_some(source)
                lose(source)
            pages.drain()
            assert set(gone) - source.documents.keys() <= {json.loads(key)["id"] for key in tombstones(table)}
            check(source, table)

    def test_new_snapshot_into_the_same_table(self, source, table):
        source.write(60)
        follow(source, table)
        delete_some(source)
        lose(source)
        follow(source, table)
        check(source, table)

    def test_collection_that_was_created_again(self, source, table):
        source.write(40)
        with Pages(source, table) as pages:
            pages.drain()
            source.store.create_collection(COLLECTION, partitions=2, recreate=True)
            source.documents.clear()
            source.write(20, seed="again")
            with pytest.raises(MulticloudDbError, match=r"Snapshot\(\)"):
                pages.step()
            pages.token = None
            pages.drain()
        check(source, table)

    def test_floor_below_every_change_as_on_dynamodb(self, table):
        """Without the mark at the begin, the row of the scan would not replace the stale row."""
        where = "dynamo:0.0:snapshot:p"
        merge_into_delta(rows(("a", 1, {"v": 1}), ("gone", 2, {"v": 2}), ("b", 3, None)), None, table, None)
        merge_into_delta(notices(SnapshotStarted("00", where)), None, table, None)
        merge_into_delta(scanned("a", "b", floor="00"), None, table, None)
        merge_into_delta(rows(("c", 9, {"v": 9})), None, table, None)
        merge_into_delta(notices(BackfillDone(where, "00")), None, table, None)
        assert documents(table) == {"a": {"scan": "a"}, "b": {"scan": "b"}, "c": {"v": 9}}
        assert tombstones(table) == {'{"id": "gone"}': "00"}

    def test_table_that_was_written_from_the_beginning(self, source, table):
        source.write(60)
        follow(source, table, Beginning())
        delete_some(source)
        lose(source)
        follow(source, table)
        check(source, table)

    def test_snapshot_of_a_collection_that_is_empty_now(self, source, table):
        source.write(20)
        follow(source, table)
        delete_some(source, 40)
        source.store.trim(COLLECTION, max_count=0)
        follow(source, table)
        assert documents(table) == {}

    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("order", SnapshotOrder)
    def test_equal_after_kills_lost_tokens_and_outages(self, source, table, kills, order, seed):
        dice = random.Random(f"{seed} {order}")
        source.write(80, seed=seed)
        wanted = Snapshot(order, segments=dice.choice([1, 5]))
        settings = {"on_expired": Resnapshot(wanted), "max_page_size": dice.choice([0, 7])}
        with Pages(source, table, wanted, **settings) as pages:
            deaths = 0
            for moment in range(50):
                kills(dice=dice, chance=dice.choice([0.0, 0.2]))
                stored = pages.token
                try:
                    pages.step()
                except Killed:
                    deaths += 1
                if dice.random() < 0.15:
                    pages.token = stored
                source.write(dice.choice([0, 1, 3]), seed=f"{seed} {moment}")
                if moment in (15, 30):
                    delete_some(source, 3)
                    lose(source)
                if moment == 40:
                    pages.token = None
            kills(dice=None)
            pages.drain()
        assert deaths or seed
        check(source, table)


class TestMarks:
    def test_notices_name_the_same_snapshot_and_floor(self, source, table):
        source.write(10)
        with Pages(source, table) as pages:
            [started] = pages.step().notices
            assert isinstance(started, SnapshotStarted)
            assert started.whole
            found = []
            while not found:
                found = [each for each in pages.step().notices if isinstance(each, BackfillDone)]
        assert found == [BackfillDone(started.partition_id, started.floor)]

    def test_first_page_makes_the_table(self, source, table):
        with Pages(source, table) as pages:
            pages.step()
            assert DeltaTable(table).to_pyarrow_dataset().count_rows() == 0
            pages.drain()
        source.write(5)
        with pytest.raises(MulticloudDbError, match="there is no Delta table"):
            merge_into_delta(pages_of(source)[0], None, table.with_name("none"), None, create=False)

    def test_rows_of_a_snapshot_that_has_not_begun_in_the_table(self, source, table):
        source.write(20)
        follow(source, table)
        version = DeltaTable(table).version()
        for page in pages_of(source)[1:]:
            with pytest.raises(MulticloudDbError, match=r"batch: .* of which .* has no mark"):
                merge_into_delta(page, None, table, None)
        assert DeltaTable(table).version() == version

    def test_checkpoint_of_a_query_says_nothing_about_pages(self, source, table, tmp_path):
        source.write(20)
        follow(source, table)
        given = {"app_id": "app", "checkpoint": checkpoint(tmp_path / "query", "query-1", batches=20)}
        for number, page in enumerate(pages_of(source)[1:]):
            with pytest.raises(MulticloudDbError, match=r"of which .* has no mark"):
                merge_into_delta(page, number, table, **given)
        delete_some(source)
        for number, page in enumerate(pages_of(source)):
            merge_into_delta(page, number, table, **given)
        check(source, table)

    def test_rows_in_a_table_of_arrow(self, source, table):
        """A table has no notices."""
        import pyarrow as pa

        source.write(20)
        follow(source, table, Beginning())
        rows = [pa.Table.from_batches([events_to_arrow(page.events)]) for page in pages_of(source)[1:]]
        with pytest.raises(MulticloudDbError, match=r"of which .* has no mark"):
            merge_into_delta(rows[0], None, table, None)
        for each in rows:
            merge_into_delta(each, None, table.with_name("new"), None)
        assert documents(table.with_name("new")) == source.documents

    def test_loop_that_leaves_out_pages_without_events(self, source, table):
        """Into a new table this is harmless; there are no older rows."""
        source.write(20)
        for page in pages_of(source):
            if page.events:
                merge_into_delta(page, None, table, None)
        check(source, table)

    def test_page_with_a_number_that_another_read_has_used(self, source, table):
        source.write(20)
        for number, page in enumerate(pages_of(source)):
            merge_into_delta(page, number, table, "app")
        check(source, table)
        with pytest.raises(MulticloudDbError, match="app_id: is 'app'"):
            merge_into_delta(pages_of(source)[0], 0, table, "app")


class TestParts:
    """A snapshot that does not deliver every row must not delete the rows of others."""

    def test_segments_of_a_plan(self, source, table):
        source.write(60)
        planned = ChangeFeedRequest(ADDRESS, Snapshot(SnapshotOrder.INTERLEAVED, segments=4))

        def read(name, token):
            scope = PhysicalPartition(name, with_descendants=True)
            with Pages(source, table, FromContinuationToken(token), scope=scope) as pages:
                page = pages.step()
                while not page.idle and not page.partition_retired and not ended(page):
                    page = pages.step()

        with connect(f"embedded://{source.store.path}") as client:
            for name, token in client.plan_partitions(planned, with_descendants=True):
                read(name, token)
            check(source, table)
            for name, token in client.plan_partitions(planned, with_descendants=True):
                if ":snapshot:" in name:
                    with pytest.raises(MulticloudDbError, match="does not deliver every row"):
                        read(name, token)
        check(source, table)

    def test_one_partition_key(self, source, table):
        source.write(30)
        follow(source, table)
        before = documents(table)
        key = sorted(source.documents)[0]
        scope = LogicalPartition(MulticloudDbKey({"id": key}))
        with pytest.raises(MulticloudDbError, match="does not deliver every row"):
            follow(source, table, scope=scope)
        assert documents(table) == before
        follow(source, table.with_name("one"), scope=scope)
        assert documents(table.with_name("one")) == {key: source.documents[key]}


def notices(*wanted):
    return ChangeFeedPage((), "token", idle=False, notices=wanted)


def ended(page):
    return any(isinstance(each, BackfillDone | FeedEnded) for each in page.notices)


def pages_of(source):
    """Return the pages of a new snapshot up to its end."""
    found = []
    with Pages(source, None) as pages:
        while not found or not ended(found[-1]):
            found.append(page := pages.page())
            pages.token = page.continuation_token
    return found
