"""Tests every way in which an older change can arrive after a newer one, and the removal of tombstones."""

import random
from datetime import UTC, datetime, timedelta

import pytest
from deltalake import DeltaTable

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    MulticloudDbError,
    ResourceAddress,
    connect,
)
from pyspark_multiclouddb import drop_tombstones, live_rows, merge_into_delta

from .tables import documents, random_changes, rows, scanned, table_of, tombstones


class TestOlderChange:
    """`a` is put at 1 and 2, and deleted at 3; `b` is put at 4, deleted at 5, and created again at 6."""

    HISTORY = (
        ("a", 1, {"n": 1}),
        ("a", 2, {"n": 2}),
        ("a", 3, None),
        ("b", 4, {"n": 4}),
        ("b", 5, None),
        ("b", 6, {"n": 6}),
    )

    def check(self, path):
        assert documents(path) == {"b": {"n": 6}}
        assert tombstones(path) == {"a": "000003"}

    def test_replay_whose_number_was_lost(self, path):
        """A merge that changes nothing does not commit, so the number of its batch is not stored."""
        merge_into_delta(rows(*reversed(self.HISTORY)), 0, path, "app")
        version = DeltaTable(path).version()
        for number in range(1, 3):
            assert merge_into_delta(rows(*self.HISTORY[:2]), number, path, "app")
            self.check(path)
        assert DeltaTable(path).version() == version
        assert DeltaTable(path).transaction_version("app") == 0

    def test_number_of_a_batch_never_decreases(self, path):
        merge_into_delta(rows(*self.HISTORY[:2]), 7, path, "app")
        assert not merge_into_delta(rows(*self.HISTORY), 3, path, "app")
        assert DeltaTable(path).transaction_version("app") == 7
        assert documents(path) == {"a": {"n": 2}}

    def test_second_query_that_stands_before(self, path):
        merge_into_delta(rows(*self.HISTORY), 0, path, "first")
        for number, change in enumerate(self.HISTORY):
            merge_into_delta(rows(change), number, path, "second")
            self.check(path)

    def test_children_that_come_late(self, path):
        """Events of two partitions can arrive in any order, and every order of batches must give the same
        table."""
        for seed in range(4):
            dice, folder = random.Random(seed), path / str(seed)
            order = list(self.HISTORY)
            dice.shuffle(order)
            for number, change in enumerate(order):
                merge_into_delta(rows(change), number, folder, "app")
            self.check(folder)

    def test_rows_of_a_scan_follow_the_same_rule(self, path):
        """A row from a scan has the position at which the scan started; 2 changes come after this position,
        and 1 before."""
        merge_into_delta(rows(("a", 2, {"n": 2}), ("b", 6, None), ("c", 5, {"n": 5})), 0, path, "app")
        scan = scanned(*"abcd", floor="000004").drop_columns("backfilled")
        merge_into_delta(scan, 1, path, "app")
        assert documents(path) == {"a": {"scan": "a"}, "c": {"n": 5}, "d": {"scan": "d"}}
        assert tombstones(path) == {"b": "000006"}

    def test_random_lives_in_random_order(self, path):
        for seed in range(3):
            dice, folder = random.Random(seed), path / str(seed)
            changes = random_changes(dice, 0, 120, keys=12)
            model = {key: document for key, _, document in changes}
            batches = [changes[start : start + 20] for start in range(0, 120, 20)]
            batches += dice.choices(batches, k=3)
            dice.shuffle(batches)
            for batch in batches:
                merge_into_delta(rows(*batch), None, folder, None)
            assert documents(folder) == {key: value for key, value in model.items() if value is not None}
            assert tombstones(folder).keys() == {key for key, value in model.items() if value is None}


class TestCleaning:
    def test_only_old_tombstones_go_and_the_number_of_the_last_batch_stays(self, path):
        before = datetime.now(UTC)
        merge_into_delta(rows(("a", 1, {"n": 1}), ("b", 2, None), ("c", 3, None)), 4, path, "app")
        for lifetime in (timedelta(hours=1), timedelta(days=365 * 2_000), timedelta.max):
            assert drop_tombstones(path, lifetime) == 0
        assert drop_tombstones(path) == 0
        assert drop_tombstones(path, datetime.now(UTC) - before + timedelta(hours=1)) == 0
        assert tombstones(path).keys() == {"b", "c"}
        assert drop_tombstones(path, timedelta(0)) == 2
        assert tombstones(path) == {}
        assert documents(path) == {"a": {"n": 1}}
        assert not merge_into_delta(rows(("b", 1, {})), 4, path, "app")

    def test_lifetime_begins_at_the_merge_and_a_replay_does_not_renew_it(self, path):
        merge_into_delta(rows(("b", 2, None)), None, path, None)
        first = table_of(path)["b"]["_deleted_at"]
        merge_into_delta(rows(("b", 2, None)), None, path, None)
        assert table_of(path)["b"]["_deleted_at"] == first

    def test_negative_lifetime_is_refused(self, path):
        with pytest.raises(MulticloudDbError, match="older_than: is negative"):
            drop_tombstones(path, timedelta(seconds=-1))

    @pytest.mark.parametrize("call", [drop_tombstones, live_rows])
    def test_missing_table(self, path, call):
        with pytest.raises(MulticloudDbError, match="there is no Delta table at") as caught:
            call(path)
        assert caught.value.detail.category == ErrorCategory.NOT_FOUND


def test_pages_of_an_iterator_make_the_same_table(source, path):
    source.write(120)
    source.split()
    source.write(80, seed=1)
    request = ChangeFeedRequest(ResourceAddress(collection="orders"), Beginning(), max_page_size=25)
    with connect(f"embedded://{source.store.path}") as client:
        for page in client.iterate_changes(request, until_idle=True).pages():
            assert merge_into_delta(page, None, path, None) == bool(page.events)
    assert documents(path) == source.documents
