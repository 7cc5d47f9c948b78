"""Tests writes to a store, including writes that are refused before anything is stored."""

import pickle
import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count, pairwise
from uuid import UUID

import pytest

from multiclouddb_api import ChangeType, ErrorCategory, MulticloudDbError, MulticloudDbKey, ResourceAddress
from multiclouddb_conformance.refusals import refused
from multiclouddb_embedded import MAX_DOCUMENT_BYTES, Delete, EmbeddedStore, Put
from multiclouddb_embedded.mapping import to_micros
from multiclouddb_embedded.store.collection import HASH_END
from multiclouddb_embedded.store.connection import enter_wal_mode
from multiclouddb_embedded.store.log import LogWriter

PRECIOUS = {
    "decimal": Decimal("1.50"),
    "bytes": b"\x00\xff",
    "date": datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC),
    "big": 2**70,
    "uuid": UUID(int=7),
    "$odd": {"$": [None, True, 1.5, "ü\x1e"]},
}


def rows(store, statement, *values):
    with closing(sqlite3.connect(store.path)) as connection:
        return connection.execute(statement, values).fetchall()


def log(store):
    return rows(store, "SELECT seq, type, key, doc, old FROM log ORDER BY seq")


INVALID = ErrorCategory.INVALID_REQUEST


class TestDocuments:
    def test_what_a_write_is_and_what_it_leaves(self, store):
        store.create_collection("items")
        assert store.delete("items", "a") is False
        assert rows(store, "SELECT head_seq FROM store") == [(0,)]
        assert store.put("items", "a", {"n": 1}) is ChangeType.CREATE
        assert store.put("items", "a", PRECIOUS) is ChangeType.UPDATE
        assert store.get("items", "a") == PRECIOUS
        assert [document for _, document in store.scan("items")] == [PRECIOUS]
        assert store.delete("items", "a") is True
        assert store.get("items", "a") is None
        assert store.put("items", "a", {"n": 2}) is ChangeType.CREATE
        assert [row[0] for row in log(store)] == [1, 2, 3, 4]

    @pytest.mark.parametrize("key", ["a", 7.0, True, b"\x01"])
    def test_a_bare_value_is_a_key_with_the_component_id(self, store, key):
        store.create_collection("items")
        store.put("items", key, {"n": 1})
        assert store.get("items", {"id": key}) == {"n": 1}
        assert store.get("items", MulticloudDbKey({"id": key})) == {"n": 1}
        assert [found for found, _ in store.scan("items")] == [MulticloudDbKey({"id": key})]

    def test_scan_is_of_one_moment(self, store):
        store.create_collection("items")
        store.batch("items", [Put(number, {"n": number}) for number in range(2000)])
        documents = store.scan("items")
        next(documents)
        store.batch("items", [Delete(number) for number in range(2000)])
        assert sum(1 for _ in documents) == 1999


class TestRefusals:
    @pytest.mark.parametrize(
        ("key", "word"),
        [
            (None, "NoneType"),
            (["a"], "list"),
            ({}, "empty"),
            ({1: 2}, "name"),
            (datetime(2026, 1, 1), "naive"),  # noqa: DTZ001
        ],
    )
    def test_keys_and_documents_that_are_none(self, store, key, word):
        store.create_collection("items")
        with refused(INVALID, word):
            store.put("items", key, {})
        for document in (None, 1, "text", ["a"]):
            with refused(INVALID, "document", "mapping"):
                store.put("items", "a", document)

    def test_a_key_that_begins_otherwise_than_the_partition_key(self, store):
        store.create_collection("items", partition_key=["tenant", "user"])
        good = {"tenant": 1, "user": 2, "id": 3}
        store.put("items", good, {"n": 1})
        assert next(store.scan("items"))[0] == MulticloudDbKey(good, 2)
        with refused(INVALID, "(user, tenant)", "(tenant, user)"):
            store.put("items", {"user": 2, "tenant": 1}, {})
        with refused(INVALID, "partition_components"):
            store.put("items", MulticloudDbKey(good, 1), {})

    def test_a_document_of_16_mib_fits_and_one_byte_more_does_not(self, store):
        store.create_collection("items")
        text = "x" * (MAX_DOCUMENT_BYTES - len('{"t":""}'))
        store.put("items", "a", {"t": text})
        assert store.get("items", "a") == {"t": text}
        with refused(INVALID, "document", "16,777,217 bytes"):
            store.batch("items", [Put("b", {}), Put("c", {"t": text + "x"})])
        assert len(log(store)) == 1

    def test_a_batch_with_a_wrong_part_writes_nothing(self, store):
        store.create_collection("items")
        for wrong in (Put("b", {"f": object()}), ("put", "b", {})):
            with refused(INVALID, "holds a"):
                store.batch("items", [Put("a", {}), wrong])
        assert log(store) == []

    def test_a_collection_that_is_recreated_meanwhile_is_not_written(self, store):
        store.create_collection("items")

        def operations():
            store.create_collection("items", partition_key=["tenant"], recreate=True)
            yield Put("a", {})

        with refused(ErrorCategory.CONFLICT, "recreated"):
            store.batch("items", operations())
        assert log(store) == []

    def test_a_failure_in_mid_transaction_leaves_nothing(self, store):
        store.create_collection("items", partitions=1)
        # The second change fails, because the log already contains its number.
        with closing(sqlite3.connect(store.path)) as connection, connection:
            connection.execute("INSERT INTO log VALUES (1, 2, 0, 0, 0, 0, 0, 0, '', '', '')")
        with pytest.raises(MulticloudDbError):
            store.batch("items", [Put("a", {}), Put("b", {})])
        assert store.get("items", "a") is None
        assert store.put("items", "c", {}) is ChangeType.CREATE


class TestCollections:
    def test_unknown_names_are_not_found_with_the_nearest(self, store):
        store.create_collection("orders")
        for call in (
            lambda: store.put("order", "a", {}),
            lambda: store.get("order", "a"),
            lambda: next(store.scan("order")),
            lambda: store.drop_collection("order"),
            lambda: store.split("order", "p0"),
        ):
            with refused(ErrorCategory.NOT_FOUND, "main/order ", "main/orders"):
                call()

    def test_databases_are_apart(self, store):
        assert store.create_collection("items") == ResourceAddress("main", "items")
        assert store.create_collection("items", database="other") == ResourceAddress("other", "items")
        store.put("items", "a", {"n": 1}, database="other")
        assert store.get("items", "a") is None
        assert store.get("items", "a", database="other") == {"n": 1}

    def test_a_name_is_taken_once_or_has_the_same_form(self, store):
        address = store.create_collection("items", partitions=2, exist_ok=True)
        store.put("items", "a", {})
        before = rows(store, "SELECT id, incarnation FROM collections")
        assert store.create_collection("items", exist_ok=True) == address
        assert rows(store, "SELECT id, incarnation FROM collections") == before
        assert (len(log(store)), len(store.partitions("items"))) == (1, 2)
        with refused(ErrorCategory.CONFLICT, "recreate=True"):
            store.create_collection("items")
        with refused(ErrorCategory.CONFLICT, "partition_key=", "recreate=True"):
            store.create_collection("items", partition_key=["tenant"], exist_ok=True)
        with refused(ErrorCategory.CONFLICT, "images='new'"):
            store.create_collection("items", images="keys", exist_ok=True)
        with refused(INVALID, "exist_ok", "pass one of them"):
            store.create_collection("items", recreate=True, exist_ok=True)

    def test_dropped_leaves_nothing_behind(self, store):
        store.create_collection("items")
        store.put("items", "a", {})
        store.drop_collection("items")
        for table in ("collections", "partitions", "log", "documents"):
            assert rows(store, f"SELECT count(*) FROM {table}") == [(0,)], table

    def test_what_no_collection_is_created_with(self, store):
        for wrong in (
            {"partitions": 0}, {"partitions": True}, {"partitions": "4"}, {"images": "old"},
            {"partition_key": []}, {"partition_key": "id"}, {"retention": 60}, {"retention": timedelta(0)},
            {"database": ""},
        ):  # fmt: skip
            with refused(INVALID, *wrong):
                store.create_collection("items", **wrong)


class TestPartitions:
    def test_split_and_merge_keep_the_ranges(self, store):
        store.create_collection("items", partitions=2)
        parts = store.partitions("items")
        assert (parts[0].low, parts[-1].high) == (0, HASH_END)
        assert store.split("items", "p0") == ("p2", "p3")
        assert store.split("items", "p1", at=HASH_END - 1) == ("p4", "p5")
        assert store.merge("items", "p4", "p3") == "p6"
        parts = store.partitions("items")
        assert {part.partition_id: part.parents for part in parts} == {
            "p2": ("p0",), "p6": ("p3", "p4"), "p5": ("p1",)
        }  # fmt: skip
        assert all(a.high == b.low for a, b in pairwise(parts))
        assert parts[-1].low == HASH_END - 1

    def test_what_cannot_be_split_or_merged(self, store):
        store.create_collection("items", partitions=3)
        store.split("items", "p0")
        with refused(INVALID, "p0", "closed", "p3, p4"):
            store.split("items", "p0")
        with refused(ErrorCategory.NOT_FOUND, "p9"):
            store.split("items", "p9")
        for pair in (("p3", "p2"), ("p1", "p1")):
            with refused(INVALID, "not adjacent"):
                store.merge("items", *pair)
        with refused(INVALID, "at"):
            store.split("items", "p1", at=0)

    def test_the_id_that_a_client_lists_is_understood(self, world):
        world.store.create_collection("items", partitions=1)
        world.store.create_collection("others", partitions=1)
        public = world.feed().public_id("p0")
        with refused(INVALID, "another resource"):
            world.store.split("others", public)
        assert world.store.split("items", public) == ("p1", "p2")


class TestTime:
    def test_a_batch_is_one_commit(self, store):
        store.create_collection("items")
        store.put("items", "a", {})
        store.batch("items", [Put(number, {}) for number in range(10)])
        assert rows(store, "SELECT seq, count(DISTINCT ts) FROM log GROUP BY seq > 1") == [(1, 1), (2, 1)]
        assert [seq for (seq,) in rows(store, "SELECT seq FROM log ORDER BY seq")] == list(range(1, 12))

    def test_the_time_of_commits_never_goes_back(self, store, clock):
        store.create_collection("items")
        for by in (1, -100, 1):
            clock.tick(seconds=by)
            store.put("items", by, {})
        times = [ts for (ts,) in rows(store, "SELECT ts FROM log ORDER BY seq")]
        assert times[0] == times[1] == times[2]
        clock.tick(seconds=99, microseconds=1)
        store.put("items", "later", {})
        assert rows(store, "SELECT max(ts) FROM log") == [(times[0] + 1,)]

    def test_who_waits_for_another_writer_gets_the_time_at_which_its_turn_comes(self, tmp_path):
        """With an earlier one, its change would come after readers were told that they have all before it."""
        path, alone = tmp_path / "s.db", []

        def clock():
            with closing(sqlite3.connect(path, timeout=0)) as other:
                try:
                    other.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    alone.append(True)
                else:
                    alone.append(False)
            return datetime.now(UTC)

        with EmbeddedStore(path, clock=clock) as store:
            store.create_collection("items")
            store.put("items", "a", {})
            store.split("items", store.partitions("items")[0].partition_id)
        assert alone == [True] * 6  # as each of the three begins and as it ends

    def test_a_long_transaction_has_the_time_of_its_end(self, store, clock, monkeypatch):
        """What readers were told meanwhile, that they have everything of the last minute, stays right."""
        store.create_collection("items", partitions=2)
        store.put("items", "before", {})
        (before,) = rows(store, "SELECT ts FROM log")
        flush = LogWriter.flush

        def late(writer):
            flush(writer)
            clock.tick(minutes=1)

        monkeypatch.setattr(LogWriter, "flush", late)
        store.batch("items", [Put(n, {}) for n in range(9)])
        now = to_micros(clock())
        assert rows(store, "SELECT DISTINCT ts FROM log ORDER BY seq") == [before, (now,)]
        assert rows(store, "SELECT head_ts FROM store") == [(now,)]
        assert rows(store, "SELECT max(ts) FROM commits") == [(now,)]

    def test_a_long_split_has_the_time_of_its_end(self, store, clock):
        store.create_collection("items")
        times = count(clock().timestamp(), 60.0)
        with EmbeddedStore(store.path, clock=lambda: datetime.fromtimestamp(next(times), UTC)) as slow:
            slow.split("items", slow.partitions("items")[0].partition_id)
        end = rows(store, "SELECT head_ts FROM store")
        assert end[0][0] >= to_micros(clock() + timedelta(minutes=1))
        assert rows(store, "SELECT end_ts FROM partitions WHERE children != '[]'") == end
        assert rows(store, "SELECT DISTINCT start_ts FROM partitions WHERE parents != '[]'") == end

    def test_a_clock_without_time_zone_is_refused(self, tmp_path):
        naive = EmbeddedStore(tmp_path / "s.db", clock=lambda: datetime(2026, 1, 1))  # noqa: DTZ001
        with naive, refused(INVALID, "clock", "naive"):
            naive.create_collection("items")


class TestTrim:
    def fill(self, store, clock, count=10):
        store.create_collection("items", retention=timedelta(seconds=4))
        for number in range(count):
            clock.tick(seconds=1)
            store.put("items", number, {"n": number})

    def left(self, store):
        return [seq for (seq,) in rows(store, "SELECT seq FROM log ORDER BY seq")]

    @pytest.mark.parametrize(
        ("bounds", "age", "left"),
        [
            ({"max_count": 3}, None, 3),
            ({"max_count": 8}, None, 8),
            ({}, 7, 8),
            ({"max_age": timedelta(seconds=2)}, None, 3),
            ({}, 4, 5),
            ({"max_count": 6, "max_age": timedelta(seconds=100)}, 9, 6),
        ],
    )
    def test_the_strictest_bound_counts_and_is_kept(self, store, clock, bounds, age, left):
        self.fill(store, clock)
        before = {"before": clock() - timedelta(seconds=age)} if age else {}
        assert store.trim("items", **bounds, **before) == 10 - left
        assert self.left(store) == [*range(11 - left, 11)]
        assert store.trim("items", **bounds, **before) == 0
        assert store.trim("items", max_count=1) == left - 1

    def test_the_retention_of_the_collection_is_the_default(self, store, clock):
        self.fill(store, clock)
        assert store.trim("items") == 5
        store.create_collection("forever")
        with refused(INVALID, "retention"):
            store.trim("forever")

    def test_across_splits_it_counts_all_partitions(self, store, clock):
        self.fill(store, clock)
        for name in ("p0", "p1", "p2", "p3"):
            store.split("items", name)
        for number in range(10):
            store.put("items", number, {})
        assert store.trim("items", max_count=12) == 8
        assert self.left(store) == [9, 10, *range(15, 25)]  # 11 to 14 are the splits

    def test_documents_and_other_collections_stay(self, store, clock):
        self.fill(store, clock)
        store.create_collection("others")
        store.put("others", "a", {})
        assert store.trim("items", max_count=0) == 10
        assert self.left(store) == [11]
        assert len(list(store.scan("items"))) == 10
        assert store.put("items", 0, {}) is ChangeType.UPDATE

    def test_times_that_nobody_can_start_at_are_forgotten(self, store, clock):
        self.fill(store, clock)
        store.trim("items", max_count=3)
        assert rows(store, "SELECT seq FROM commits ORDER BY seq") == [(7,), (8,), (9,), (10,)]

    def test_bounds_that_are_none(self, store):
        store.create_collection("items")
        naive = {"before": datetime(2026, 1, 1)}  # noqa: DTZ001
        for wrong in ({"max_count": -1}, {"max_count": 1.5}, {"max_age": 60}, naive):
            with refused(INVALID, *wrong):
                store.trim("items", **wrong)


class TestFile:
    def test_closed_refuses_and_is_there_again(self, store):
        store.create_collection("items")
        store.put("items", "a", {"n": 1})
        store.close()
        store.close()
        assert "closed" in repr(store)
        with EmbeddedStore(store.path) as again:
            assert again.get("items", "a") == {"n": 1}
        for call in (
            lambda: store.put("items", "a", {}),
            lambda: store.get("items", "a"),
            lambda: next(store.scan("items")),
        ):
            with refused(INVALID, "closed"):
                call()
        with refused(INVALID, "store.path"):
            pickle.dumps(store)

    def test_it_waits_for_another_process_that_makes_the_store(self, tmp_path):
        """SQLite itself does not wait while the file changes to WAL mode."""
        path = tmp_path / "s.db"
        made = []
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN")
            other.execute("SELECT * FROM sqlite_master").fetchall()
            thread = threading.Thread(target=lambda: made.append(EmbeddedStore(path)))
            thread.start()
            thread.join(0.1)
            assert thread.is_alive()
            other.execute("ROLLBACK")
            thread.join()
        made[0].create_collection("items")
        made[0].close()

    def test_it_tries_again_where_sqlite_gives_up_at_once(self):
        """Otherwise, one in fifty processes fails when several create a store at the same time."""

        class Contended:
            def __init__(self):
                self.refusals = 2

            def execute(self, statement):
                assert statement == "PRAGMA journal_mode = WAL"
                if self.refusals:
                    self.refusals -= 1
                    error = sqlite3.OperationalError("database is locked")
                    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
                    raise error

        connection = Contended()
        enter_wal_mode(connection, patience=9)
        assert connection.refusals == 0
        with pytest.raises(sqlite3.OperationalError):
            enter_wal_mode(Contended(), patience=0)

    def test_a_locked_store_says_to_try_again(self, store):
        store.create_collection("items")
        with (
            EmbeddedStore(store.path, busy_seconds=0.05) as hasty,
            closing(sqlite3.connect(store.path, isolation_level=None)) as other,
        ):
            other.execute("BEGIN IMMEDIATE")
            with refused(ErrorCategory.TRANSIENT_FAILURE, "try again") as caught:
                hasty.put("items", "a", {})
            assert caught.value.retryable
            assert caught.value.detail.native_code == "SQLITE_BUSY"
            assert caught.value.detail.operation == "put"
            other.execute("ROLLBACK")
            assert hasty.put("items", "a", {}) is ChangeType.CREATE
