"""Tests merges into a table that another thread or process changes at the same time."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from threading import Barrier
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.table import TableAlterer, TableMerger

from multiclouddb_api import ErrorCategory, MulticloudDbError
from pyspark_multiclouddb import drop_tombstones, merge_into_delta
from pyspark_multiclouddb.checkpoint import Scan
from pyspark_multiclouddb.delta import Target

from .tables import documents, rows, tombstones


@pytest.fixture
def others(monkeypatch):
    """Return a list of actions of another process.

    Each action is done when a commit is prepared and not yet made.
    """
    waiting = []

    def patched(original):
        def call(*args, **kwargs):
            if waiting:
                action, *rest = waiting
                waiting.clear()
                action()
                waiting.extend(rest)
            return original(*args, **kwargs)

        return call

    monkeypatch.setattr(TableMerger, "execute", patched(TableMerger.execute))
    monkeypatch.setattr(DeltaTable, "update", patched(DeltaTable.update))
    return waiting


def put(path, key, order):
    """Write the row of a key as another process would."""
    source = rows((key, order, {"n": order})).select(["key", "order_key", "new_item_state"])
    columns = {name: f"s.{name}" for name in source.column_names}
    merger = DeltaTable(path).merge(source, "s.key = t.key", source_alias="s", target_alias="t")
    merger.when_matched_update(columns).when_not_matched_insert(columns).execute()


class TestCommitOfAnother:
    """Another process commits between the preparation of a commit and the commit itself."""

    def test_removes_tombstones(self, path, others):
        merge_into_delta(rows(("a", 1, {}), ("b", 2, None)), 0, path, "app")
        others.append(lambda: DeltaTable(path).delete("_deleted_at IS NOT NULL"))
        assert merge_into_delta(rows(("a", 3, {"n": 3}), ("b", 4, {"n": 4})), 1, path, "app")
        assert others == []
        assert documents(path) == {"a": {"n": 3}, "b": {"n": 4}}
        assert DeltaTable(path).transaction_version("app") == 1

    def test_merges_the_same_new_key(self, path, others):
        """The other process writes `a` at 5. The older change does not win, and makes no second row."""
        merge_into_delta(rows(("z", 1, {})), 0, path, "app")
        others.append(lambda: put(path, "a", 5))
        assert merge_into_delta(rows(("a", 4, {"n": 4}), ("z", 9, None)), 1, path, "app")
        assert documents(path) == {"a": {"n": 5}}
        assert DeltaTable(path).count() == 2

    def test_compacts_the_table(self, path, others):
        for number in range(3):
            merge_into_delta(rows((f"k{number}", 1, {"n": 1})), number, path, "app")
        others.append(lambda: DeltaTable(path).optimize.compact())
        merge_into_delta(rows(("k0", 2, {"n": 2})), 3, path, "app")
        assert documents(path) == {"k0": {"n": 2}, "k1": {"n": 1}, "k2": {"n": 1}}

    def test_adds_the_same_column(self, path, monkeypatch):
        merge_into_delta(rows(("a", 1, {})), 0, path, "app")
        add_columns = TableAlterer.add_columns

        def call(self, fields):
            monkeypatch.setattr(TableAlterer, "add_columns", add_columns)
            DeltaTable(path).alter.add_columns(fields)
            add_columns(self, fields)

        monkeypatch.setattr(TableAlterer, "add_columns", call)
        batch = rows(("a", 2, {"n": 2})).append_column("n", pa.array([2]))
        assert merge_into_delta(batch, 1, path, "app", new_columns="add")
        assert DeltaTable(path).to_pyarrow_table()["n"].to_pylist() == [2]

    def test_at_the_begin_and_at_the_end_of_a_snapshot(self, path, others):
        merge_into_delta(rows(("a", 5, {}), ("gone", 6, {})), 0, path, "older")
        target = Target(str(path), create=True, new_columns="refuse")
        others.append(lambda: put(path, "b", 7))
        target.begin(Scan("plan", "000000", is_first=True, was_over=False, is_over=False))
        merge_into_delta(rows(("a", 0, {"scan": "a"}), ("b", 0, {"scan": "b"})), None, path, None)
        others.append(lambda: put(path, "later", 9))
        target.end(Scan("plan", "000000", is_first=False, was_over=False, is_over=True))
        assert others == []
        assert documents(path) == {"a": {"scan": "a"}, "b": {"scan": "b"}, "later": {"n": 9}}
        assert tombstones(path) == {"gone": "000000"}

    def test_at_every_attempt_is_a_conflict(self, path, others, monkeypatch):
        merge_into_delta(rows(("a", 1, {})), 0, path, "app")
        others.extend(partial(put, path, "a", 100 + number) for number in range(50))
        monkeypatch.setattr("multiclouddb_verify.delta._PATIENCE_SECONDS", 0.0)
        with pytest.raises(MulticloudDbError, match="let them commit less often") as caught:
            merge_into_delta(rows(("a", 200, {"n": 200})), 1, path, "app")
        assert caught.value.detail.category == ErrorCategory.CONFLICT
        assert caught.value.detail.retryable
        assert DeltaTable(path).transaction_version("app") == 0
        others.clear()
        assert merge_into_delta(rows(("a", 200, {"n": 200})), 1, path, "app")
        assert documents(path) == {"a": {"n": 200}}


class TestThreads:
    def test_two_queries_and_cleaning_in_one_process_never_refuse_each_other(self, path, monkeypatch):
        """Each commit may fail once, because its thread does not know the latest version of the table."""
        waits = []
        clock = SimpleNamespace(sleep=waits.append, monotonic=time.monotonic)
        monkeypatch.setattr("multiclouddb_verify.delta.time", clock)
        together = Barrier(3)
        merge_into_delta(rows(("seed", 1, {"n": 1})), None, path, None)

        def query(name):
            for number in range(8):
                together.wait(60)
                changes = [(f"k{key}", number * 10 + name, {"n": number * 10 + name}) for key in range(5)]
                own = (f"{name} {number}", number, None)
                merge_into_delta(rows(*changes, own), number, path, str(name))

        def clean():
            for _ in range(8):
                together.wait(60)
                drop_tombstones(path, timedelta(0))

        with ThreadPoolExecutor(3) as threads:
            for each in [threads.submit(query, 1), threads.submit(query, 2), threads.submit(clean)]:
                each.result()
        last = {"n": 72}
        assert documents(path) == {"seed": {"n": 1}} | dict.fromkeys((f"k{key}" for key in range(5)), last)
        assert {DeltaTable(path).transaction_version(name) for name in ("1", "2")} == {7}
        assert len(waits) <= 3 * 8
