"""Tests keys that are too long for an index of PostgreSQL: refused, under their hashes, or left out."""

import hashlib
import logging
import random
import string
import threading
from datetime import UTC, datetime
from functools import partial

import psycopg
import pyarrow as pa
import pytest

from multiclouddb_api import (
    BackfillDone,
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    ResourceAddress,
    Snapshot,
    SnapshotStarted,
    connect,
)
from multiclouddb_conformance.sink_harness import bare, events, key_of, page, rows
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_embedded.feed import EmbeddedFeed
from multiclouddb_postgres import PostgresCheckpointStore, PostgresTarget, merge_into_postgres
from multiclouddb_postgres import long_keys as module
from multiclouddb_spi import encode_partition_id
from multiclouddb_spi.faults import key_digest
from multiclouddb_tables.contract import Fix
from multiclouddb_tables.mark import Expected, FeedSource
from multiclouddb_verify import DifferenceKind, Outcome, verify


def long_name(seed):
    """Return a name that cannot be compressed, so that no index has room for it."""
    return "".join(random.Random(seed).choices(string.ascii_letters + string.digits, k=4000))


A, B = long_name("a"), long_name("b")
PLAN = encode_partition_id("provider", ResourceAddress("main", "orders"), "first", "snapshot:s")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(EmbeddedFeed, "visible_after", lambda feed: 0.02)
    monkeypatch.setattr("multiclouddb_verify.source._CLOCK_ERROR", 0.0)


def query(dsn, text, *values):
    with psycopg.connect(dsn) as connection:
        return connection.execute(text, values).fetchall()


def change(dsn, text, *values):
    with psycopg.connect(dsn) as connection:
        return connection.execute(text, values).rowcount


def merged(dsn, *changes, **options):
    options.setdefault("long_keys", "hash")
    return merge_into_postgres(rows(*changes), None, dsn, "orders", None, **options)


def refused(call):
    with pytest.raises(MulticloudDbError) as caught:
        call()
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert A not in caught.value.message
    return caught.value.message


def hash_of(name):
    return "sha256:" + hashlib.sha256(key_of(name).encode()).hexdigest()


def documents(dsn, table="orders"):
    """Return the live documents as the target reads them: by the whole keys."""
    found = {}
    for batch in PostgresTarget(dsn, table).rows():
        for row in batch.to_pylist():
            assert row["key"] not in found
            found[row["key"]] = None if row["deleted"] else row["state"]
    return found


def test_longest_key_that_is_not_hashed_fits_into_an_index_whatever_it_contains(dsn):
    """The server's own limit depends on the content; ours does not."""
    fits = "x" * (module.MOST_KEY_BYTES - len(key_of("")))
    random_text = long_name("fits")[: len(fits)]
    assert merged(dsn, (random_text, 1, {}), (fits, 1, {}), (fits + "x", 1, {}))
    found = dict(query(dsn, "SELECT key, _long_key FROM orders"))
    assert found == {key_of(random_text): None, key_of(fits): None, hash_of(fits + "x"): key_of(fits + "x")}
    change(dsn, "INSERT INTO orders (key, order_key) VALUES (%s, '')", A[:2692])
    with pytest.raises(psycopg.errors.ProgramLimitExceeded):
        change(dsn, "INSERT INTO orders (key, order_key) VALUES (%s, '')", A[:2693])


def test_error_names_the_option(dsn):
    message = refused(lambda: merged(dsn, ("b", 1, {}), (A, 1, {}), long_keys="refuse"))
    assert 'long_keys="hash"' in message
    assert 'long_keys="skip"' in message
    assert key_digest(key_of(A)) in message
    assert query(dsn, "SELECT to_regclass('orders')") == [(None,)]
    assert "long_keys" in refused(lambda: merged(dsn, (A, 1, {}), long_keys="cut"))


class TestHash:
    def test_changes_deletes_and_replays(self, dsn):
        merged(dsn, (A, 2, {"n": 2}), ("short", 2, {}))
        merged(dsn, (A, 1, {"n": 1}), (B, 1, {"n": 1}))
        assert query(dsn, "SELECT key, _long_key, order_key FROM orders ORDER BY order_key, key") == [
            (hash_of(B), key_of(B), "000001"),
            *sorted([(hash_of(A), key_of(A), "000002"), (key_of("short"), None, "000002")]),
        ]
        merged(dsn, (A, 3, None))
        assert documents(dsn) == {key_of(A): None, key_of(B): '{"n":1}', key_of("short"): "{}"}
        merged(dsn, (A, 4, {"n": 4}))
        assert documents(dsn)[key_of(A)] == '{"n":4}'

    def test_row_whose_document_is_not_known_keeps_it(self, dsn):
        merged(dsn, (A, 1, {"n": 1}))
        merge_into_postgres(
            bare((A, 2, {})), None, dsn, "orders", None, missing_state="keep", long_keys="hash"
        )
        found = query(
            dsn, "SELECT new_item_state->>'n', order_key, _long_key, _stale_since IS NULL FROM orders"
        )
        assert found == [("1", "000002", key_of(A), False)]

    def test_snapshot_removes_what_it_does_not_contain(self, dsn):
        merged(dsn, (A, 1, {"n": 1}), (B, 1, {"n": 1}))
        merge = partial(
            merge_into_postgres, batch_id=None, dsn=dsn, table="orders", app_id=None, long_keys="hash"
        )
        scanned = events((A, 0, {"n": 2}), backfilled=True, floor="000010~")
        merge(page([], SnapshotStarted("000010~", PLAN)))
        merge(page(scanned))
        merge(page([], BackfillDone(PLAN, "000010~")))
        assert documents(dsn) == {key_of(A): '{"n":2}', key_of(B): None}
        # A change after the snapshot still finds the tombstone's row.
        merged(dsn, (B, 11, {"n": 3}))
        assert documents(dsn)[key_of(B)] == '{"n":3}'

    def test_table_without_the_column_gets_it(self, dsn):
        merged(dsn, ("short", 1, {}), long_keys="refuse")
        merged(dsn, (A, 1, {}))
        assert documents(dsn) == {key_of("short"): "{}", key_of(A): "{}"}

    def test_table_with_hashes_refuses_the_other_two_ways(self, dsn):
        """The rows of long keys would get old, and never be deleted."""
        merged(dsn, (A, 1, {}))
        assert "as before" in refused(lambda: merged(dsn, (A, 2, None), long_keys="refuse"))
        assert "get old" in refused(lambda: merged(dsn, ("b", 2, {}), long_keys="skip"))
        assert documents(dsn) == {key_of(A): "{}"}
        assert merged(dsn, ("b", 2, {}), long_keys="refuse")

    def test_column_of_the_users_own_is_refused(self, dsn):
        batch = rows(("a", 1, {})).append_column("_long_key", pa.array(["x"]))
        assert "rename" in refused(lambda: merge_into_postgres(batch, None, dsn, "orders", None))
        merged(dsn, ("a", 1, {}), long_keys="refuse")
        change(dsn, "ALTER TABLE orders ADD COLUMN _long_key int")
        assert "_long_key of type integer" in refused(lambda: merged(dsn, ("b", 1, {})))

    def test_two_keys_with_one_hash_are_never_merged(self, dsn, monkeypatch):
        monkeypatch.setattr(module, "_digest", lambda key: "0" * 64)
        assert "one SHA-256" in refused(lambda: merged(dsn, (A, 1, {"n": 1}), (B, 1, {"n": 2})))
        merged(dsn, (A, 1, {"n": 1}))
        for order in (0, 1, 2):
            message = refused(lambda order=order: merged(dsn, (B, order, {"n": 2}), ("c", 1, {})))
            assert "one SHA-256" in message
        assert query(dsn, "SELECT _long_key, new_item_state->>'n' FROM orders") == [(key_of(A), "1")]

    def test_key_that_looks_like_a_hash_is_not_that_row(self, dsn):
        merged(dsn, (A, 1, {"n": 1}))
        batch = rows(("x", 2, {"n": 2}))
        batch = batch.set_column(batch.column_names.index("key"), "key", pa.array([hash_of(A)]))
        refused(lambda: merge_into_postgres(batch, None, dsn, "orders", None, long_keys="hash"))
        assert documents(dsn) == {key_of(A): '{"n":1}'}

    def test_hash_of_another_transaction_is_seen(self, dsn, monkeypatch):
        monkeypatch.setattr(module, "_digest", lambda key: "0" * 64)
        merged(dsn, ("first", 1, {}))
        failed = []

        def second():
            try:
                merged(dsn, (B, 9, {"n": 2}))
            except MulticloudDbError as error:
                failed.append(error.message)

        with psycopg.connect(dsn) as other:
            with other.transaction():
                merge_into_postgres(rows((A, 1, {"n": 1})), None, other, "orders", None, long_keys="hash")
                thread = threading.Thread(target=second)
                thread.start()
                waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                wait_until(lambda: query(dsn, waiting), seconds=60)
            thread.join(60)
        assert ["one SHA-256" in each for each in failed] == [True]
        assert query(dsn, "SELECT new_item_state->>'n' FROM orders WHERE _long_key IS NOT NULL") == [("1",)]

    def test_refusals_of_a_trigger_and_of_a_document_name_the_key(self, dsn):
        batch = rows((A, 1, {"t": "\0"}))
        message = refused(
            lambda: merge_into_postgres(batch, None, dsn, "orders", None, documents="jsonb", long_keys="hash")
        )
        assert key_digest(key_of(A)) in message
        merged(dsn, ("first", 1, {}))
        change(
            dsn,
            "CREATE FUNCTION drops() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
            "CREATE TRIGGER drops BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION drops()",
        )
        assert key_digest(key_of(A)) in refused(lambda: merged(dsn, (A, 1, {})))


class TestSkip:
    def test_changes_are_left_out_counted_and_named(self, dsn, caplog):
        caplog.set_level(logging.WARNING, "multiclouddb.postgres")
        assert merged(dsn, (A, 1, {}), ("b", 1, {}), (B, 1, {}), long_keys="skip")
        [record] = caplog.records
        assert key_digest(key_of(A)) in record.getMessage()
        assert key_digest(key_of(B)) in record.getMessage()
        assert "2 changes" in record.getMessage()
        assert A not in record.getMessage()
        assert merged(dsn, (A, 2, None), long_keys="skip")
        assert documents(dsn) == {key_of("b"): "{}"}
        assert query(dsn, "SELECT value FROM multiclouddb_marks WHERE name = 'multiclouddb-skipped'") == [
            (3,)
        ]

    def test_position_moves_on(self, dsn):
        first = page(events((A, 1, {})), token="t1")
        merge_into_postgres(first, None, dsn, "orders", None, checkpoint_name="w", long_keys="skip")
        assert PostgresCheckpointStore(dsn).load("w").token == "t1"
        assert documents(dsn) == {}

    def test_hashes_may_follow(self, dsn, caplog):
        merged(dsn, (A, 1, {}), long_keys="skip")
        caplog.clear()
        merged(dsn, ("b", 2, {}))
        assert "lacks the rows of 1 changes" in caplog.text
        assert not PostgresTarget(dsn, "orders").left_out([key_of(A)])
        merged(dsn, (A, 3, {}))
        assert documents(dsn) == {key_of(A): "{}", key_of("b"): "{}"}


class Shop:
    """A collection with long and short keys, and a table that follows it."""

    def __init__(self, folder, dsn, long_keys):
        self.dsn, self.long_keys = dsn, long_keys
        self.store = EmbeddedStore(folder / "shop.db", durable=False)
        self.address = self.store.create_collection("orders", partitions=2)
        for number in range(20):
            self.store.put("orders", f"o-{number}", {"n": number})
        for number in range(5):
            self.store.put("orders", long_name(number), {"n": number})
        self.store.delete("orders", long_name(4))
        self.client = connect(f"embedded://{self.store.path}")
        self.folder = folder

    def follow(self, start=None, **options):
        checkpoints = PostgresCheckpointStore(self.dsn)
        while True:
            saved = checkpoints.load("sink")
            position = start or (Beginning() if saved is None else FromContinuationToken(saved.token))
            start = None
            found = self.client.read_changes(ChangeFeedRequest(self.address, position))
            merge_into_postgres(
                found, None, self.dsn, "orders", None, checkpoint=saved, checkpoint_name="sink",
                long_keys=self.long_keys, **options,
            )  # fmt: skip
            if found.idle:
                return

    def verify(self, **settings):
        target = PostgresTarget(self.dsn, "orders")
        return verify(
            self.client, self.address, target, state=self.folder / "state", patience_seconds=30.0, **settings
        )


@pytest.fixture
def shop(tmp_path, dsn, request):
    made = Shop(tmp_path, dsn, request.param)
    made.follow()
    yield made
    made.client.close()
    made.store.close()


def kinds(found):
    return {each.key: each.kind for each in found}


@pytest.mark.parametrize("shop", ["hash"], indirect=True)
class TestVerifyOfHashes:
    DAMAGE = (
        (DifferenceKind.MISSING, "DELETE FROM orders WHERE key = %s"),
        (DifferenceKind.STALE, "UPDATE orders SET new_item_state = '{}' WHERE key = %s"),
        (
            DifferenceKind.TOMBSTONE,
            "UPDATE orders SET new_item_state = NULL, _deleted_at = now() WHERE key = %s",
        ),
        (DifferenceKind.BLOCKED, "UPDATE orders SET order_key = '~' WHERE key = %s"),
    )

    def test_every_damage_is_found_and_repaired(self, shop, dsn):
        report = shop.verify()
        assert (report.equal, report.counts.equal) == (True, 24)
        planted = {}
        for number, (kind, statement) in enumerate(self.DAMAGE):
            assert change(dsn, statement, hash_of(long_name(number))) == 1
            planted[key_of(long_name(number))] = kind
        ghost = key_of(long_name("ghost"))
        change(
            dsn, "INSERT INTO orders (key, _long_key, order_key, new_item_state) VALUES (%s, %s, '0', '{}')",
            module.stored(ghost), ghost,
        )  # fmt: skip
        planted[ghost] = DifferenceKind.GHOST
        assert kinds(shop.verify().differences) == planted
        report = shop.verify(repair=True)
        assert (report.equal, kinds(report.repaired)) == (True, planted)
        assert report.counts.expected_missing == 0
        shop.store.put("orders", long_name(0), {"n": -1})
        shop.follow()
        assert shop.verify().equal

    def test_row_of_another_key_under_a_hash_is_not_the_row_of_the_key(self, shop, dsn):
        """A repair leaves such a row alone, because the hash says that it is another key's."""
        changed = change(dsn, "UPDATE orders SET _long_key = 'x' WHERE key = %s", hash_of(long_name(0)))
        assert changed == 1
        planted = {
            key_of(long_name(0)): DifferenceKind.MISSING,
            hash_of(long_name(0)): DifferenceKind.FOREIGN,
        }
        assert kinds(shop.verify().differences) == planted
        report = shop.verify(repair=True)
        assert not report.equal
        assert query(dsn, "SELECT new_item_state->>'n' FROM orders WHERE _long_key = 'x'") == [("0",)]

    def test_own_columns(self, shop, dsn):
        change(
            dsn,
            "ALTER TABLE orders ADD COLUMN n int; UPDATE orders SET n = (new_item_state->>'n')::int; "
            "ALTER TABLE orders DROP COLUMN new_item_state",
        )
        change(dsn, "UPDATE orders SET n = -7 WHERE key = %s", hash_of(long_name(0)))
        change(dsn, "DELETE FROM orders WHERE key = %s", hash_of(long_name(1)))
        settings = {"transform": lambda document: {"n": document["n"]}}
        expected = {key_of(long_name(0)): DifferenceKind.STALE, key_of(long_name(1)): DifferenceKind.MISSING}
        assert kinds(shop.verify(**settings).differences) == expected
        assert shop.verify(**settings, repair=True).equal
        found = query(dsn, "SELECT _long_key, n FROM orders WHERE n < 2 AND _long_key IS NOT NULL ORDER BY n")
        assert found == [(key_of(long_name(0)), 0), (key_of(long_name(1)), 1)]


@pytest.mark.parametrize("shop", ["skip"], indirect=True)
class TestVerifyOfSkipped:
    def test_what_was_left_out_is_expected_and_not_equal(self, shop, dsn):
        left_out = {key_of(long_name(number)): DifferenceKind.MISSING for number in range(4)}
        change(dsn, "DELETE FROM orders WHERE key = %s", key_of("o-1"))
        for _ in range(2):
            report = shop.verify()
            assert kinds(report.differences) == {**left_out, key_of("o-1"): DifferenceKind.MISSING}
            assert (report.counts.expected_missing, report.counts.equal) == (4, 19)
        report = shop.verify(repair=True, max_repairs=1)
        assert kinds(report.repaired) == {key_of("o-1"): DifferenceKind.MISSING}
        assert kinds(report.differences) == left_out
        assert all("too long" in each.note for each in report.differences)
        assert (report.equal, report.outcome, report.refused) == (False, Outcome.DIFFERENT, None)
        assert (report.counts.expected_missing, report.counts.equal) == (4, 20)
        assert "too long" in report.expected
        assert len(documents(dsn)) == 20

    def test_hashes_later_make_it_equal(self, shop):
        shop.long_keys = "hash"
        shop.store.put("orders", "o-1", {"n": -1})
        shop.follow()
        report = shop.verify()
        assert (report.counts.expected_missing, report.counts.differences) == (0, {DifferenceKind.MISSING: 4})
        assert shop.verify(repair=True).equal

    def test_snapshot_later_makes_it_equal(self, shop):
        shop.long_keys = "hash"
        shop.follow(Snapshot())
        assert shop.verify().equal


@pytest.mark.parametrize("long_keys", ["refuse", "skip"])
def test_repair_of_a_table_without_hashes_never_writes_a_long_key(dsn, long_keys):
    """An index may have room for it, because of its content; later, the sink would write its hash too."""
    merged(dsn, ("a", 1, {}), long_keys=long_keys)
    fix = Fix(key_of("x" * 4000), (), "000001", "{}", None, datetime(2026, 1, 2, tzinfo=UTC))
    target = PostgresTarget(dsn, "orders")
    expected = Expected(FeedSource.of_page(page(events(("a", 1, {})))), target.found())
    assert "long_keys" in refused(lambda: target.fix([fix], expected))
    assert documents(dsn) == {key_of("a"): "{}"}
    merged(dsn, ("b", 1, {}))
    assert target.fix([fix], expected) == 1
    assert documents(dsn)[fix.key] == "{}"


def test_hash_is_that_of_the_key_in_utf_8_whatever_the_encoding_of_the_server_is(server):
    name = "é" * 2000
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE DATABASE in_latin ENCODING LATIN1 TEMPLATE template0 LOCALE_PROVIDER libc LOCALE 'C'"
        )
    there = server.dsn.replace("dbname=postgres", "dbname=in_latin")
    try:
        merged(there, (name, 1, {}))
        assert documents(there) == {key_of(name): "{}"}
        assert [batch.num_rows for batch in PostgresTarget(there, "orders").rows([key_of(name)])] == [1]
    finally:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("DROP DATABASE in_latin WITH (FORCE)")
