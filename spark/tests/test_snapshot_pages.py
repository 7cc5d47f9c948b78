"""Tests that a snapshot read as pages repairs a table, as a snapshot read by Spark does."""

import os
import random

import pyarrow as pa
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
from multiclouddb_api.arrow import events_to_arrow
from pyspark_multiclouddb import merge_into_delta

from .conftest import COLLECTION
from .tables import Killed, check_equal, documents, make_checkpoint, rows, scanned, tombstones

LIVES = int(os.environ.get("MULTICLOUDDB_LIVES", "1"))
ORDERS = list(SnapshotOrder)
# Each seed of `make test` has one order, and each of `make soak` has one too.
LIVED = [
    pytest.param(seed, ORDERS[seed % 3], marks=[pytest.mark.soak] * (seed >= LIVES))
    for seed in range(100 * LIVES)
]
ADDRESS = ResourceAddress(collection=COLLECTION)


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


class TestRepairs:
    def test_two_outages_with_resnapshot(self, source, path):
        source.write(60)
        with Pages(source, path, on_expired=Resnapshot()) as pages:
            for outage in range(3):
                pages.drain()
                check_equal(path, source)
                source.write(10, seed=outage)
                source.delete_some()
                source.lose()
            gone = documents(path).keys() - source.documents.keys()
            pages.drain()
        assert gone
        assert gone <= tombstones(path).keys()
        check_equal(path, source)

    @pytest.mark.parametrize("start", [None, Beginning()])
    @pytest.mark.parametrize("is_empty", [False, True])
    def test_new_snapshot_into_the_same_table(self, source, path, start, is_empty):
        source.write(60)
        follow(source, path, start)
        source.delete_some(40 if is_empty else 5)
        if is_empty:
            source.trim()
        else:
            source.lose()
        follow(source, path)
        check_equal(path, source)
        assert bool(documents(path)) is not is_empty

    def test_collection_that_was_created_again(self, source, path):
        source.write(40)
        with Pages(source, path) as pages:
            pages.drain()
            source.store.create_collection(COLLECTION, partitions=2, recreate=True)
            source.documents.clear()
            source.write(20, seed="again")
            with pytest.raises(MulticloudDbError, match=r"Snapshot\(\)"):
                pages.step()
            pages.token = None
            pages.drain()
        check_equal(path, source)

    def test_floor_below_every_change_as_on_dynamodb(self, path):
        """Without the mark at the begin, the row of the scan would not replace the stale row."""
        where = "dynamo:0.0:snapshot:p"

        def merge(batch):
            merge_into_delta(batch, None, path, None)

        merge(rows(("a", 1, {"v": 1}), ("gone", 2, {"v": 2}), ("b", 3, None)))
        merge(ChangeFeedPage((), "token", idle=False, notices=(SnapshotStarted("00", where),)))
        merge(scanned("a", "b", floor="00"))
        merge(rows(("c", 9, {"v": 9})))
        merge(ChangeFeedPage((), "token", idle=False, notices=(BackfillDone(where, "00"),)))
        assert documents(path) == {"a": {"scan": "a"}, "b": {"scan": "b"}, "c": {"v": 9}}
        assert tombstones(path) == {"gone": "00"}

    @pytest.mark.parametrize(("seed", "order"), LIVED)
    def test_equal_after_kills_lost_tokens_and_outages(self, source, path, kills, seed, order):
        dice = random.Random(f"{seed} {order}")
        source.write(80, seed=seed)
        wanted = Snapshot(order, segments=dice.choice([1, 5]))
        settings = {"on_expired": Resnapshot(wanted), "max_page_size": dice.choice([0, 7])}
        with Pages(source, path, wanted, **settings) as pages:
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
                    source.delete_some(3)
                    source.lose()
                if moment == 40:
                    pages.token = None
            kills(dice=None)
            pages.drain()
        assert deaths or seed
        check_equal(path, source)


class TestMarks:
    @pytest.fixture
    def filled(self, source, path):
        """Provide a collection that a table contains."""
        source.write(20)
        follow(source, path)
        return source

    def test_notices_name_the_same_snapshot_and_the_first_page_makes_the_table(self, source, path):
        source.write(10)
        with Pages(source, path) as pages:
            [started] = pages.step().notices
            assert isinstance(started, SnapshotStarted)
            assert started.whole
            assert DeltaTable(path).to_pyarrow_dataset().count_rows() == 0
            found = []
            while not found:
                found = [each for each in pages.step().notices if isinstance(each, BackfillDone)]
        assert found == [BackfillDone(started.partition_id, started.floor)]
        with pytest.raises(MulticloudDbError, match="there is no Delta table"):
            merge_into_delta(pages_of(source)[0], None, path.with_name("none"), None, create=False)

    @pytest.mark.parametrize("is_table", [False, True], ids=["page", "table"])
    def test_rows_of_a_snapshot_that_has_not_begun_in_the_table(self, filled, path, is_table):
        """Into a new table they are harmless; there are no older rows. A table of Arrow has no notices."""
        version, found = DeltaTable(path).version(), [page for page in pages_of(filled) if page.events]
        if is_table:
            found = [pa.Table.from_batches([events_to_arrow(page.events)]) for page in found]
        for each in found:
            with pytest.raises(MulticloudDbError, match=r"batch: .* of which .* has no mark"):
                merge_into_delta(each, None, path, None)
        assert DeltaTable(path).version() == version
        for each in found:
            merge_into_delta(each, None, path.with_name("new"), None)
        check_equal(path.with_name("new"), filled)

    def test_checkpoint_of_a_query_says_nothing_about_pages(self, filled, path, tmp_path):
        given = {"app_id": "app", "checkpoint": make_checkpoint(tmp_path / "query", "query-1", batches=20)}
        for number, page in enumerate(pages_of(filled)[1:]):
            with pytest.raises(MulticloudDbError, match=r"of which .* has no mark"):
                merge_into_delta(page, number, path, **given)
        filled.delete_some()
        for number, page in enumerate(pages_of(filled)):
            merge_into_delta(page, number, path, **given)
        check_equal(path, filled)

    def test_page_with_a_number_that_another_read_has_used(self, source, path):
        source.write(20)
        for number, page in enumerate(pages_of(source)):
            merge_into_delta(page, number, path, "app")
        check_equal(path, source)
        with pytest.raises(MulticloudDbError, match="app_id: is 'app'"):
            merge_into_delta(pages_of(source)[0], 0, path, "app")


class TestParts:
    """A snapshot that does not deliver every row must not delete the rows of others."""

    def test_segments_of_a_plan(self, source, path):
        source.write(60)
        planned = ChangeFeedRequest(ADDRESS, Snapshot(SnapshotOrder.INTERLEAVED, segments=4))

        def read(name, token):
            scope = PhysicalPartition(name, with_descendants=True)
            with Pages(source, path, FromContinuationToken(token), scope=scope) as pages:
                page = pages.step()
                while not page.idle and not page.partition_retired and not ended(page):
                    page = pages.step()

        with connect(f"embedded://{source.store.path}") as client:
            for name, token in client.plan_partitions(planned, with_descendants=True):
                read(name, token)
            check_equal(path, source)
            for name, token in client.plan_partitions(planned, with_descendants=True):
                if ":snapshot:" in name:
                    with pytest.raises(MulticloudDbError, match="does not deliver every row"):
                        read(name, token)
        check_equal(path, source)

    def test_one_partition_key(self, source, path):
        source.write(30)
        follow(source, path)
        key = sorted(source.documents)[0]
        scope = LogicalPartition(MulticloudDbKey({"id": key}))
        with pytest.raises(MulticloudDbError, match="does not deliver every row"):
            follow(source, path, scope=scope)
        check_equal(path, source)
        follow(source, path.with_name("one"), scope=scope)
        assert documents(path.with_name("one")) == {key: source.documents[key]}
