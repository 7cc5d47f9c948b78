"""Tests behaviour that only `SqliteCheckpointStore` has.

`test_checkpoint_store.py` tests the promises that all checkpoint stores make.
"""

import sqlite3
from contextlib import closing, suppress

import pytest

from multiclouddb_api import ErrorCategory, MulticloudDbError
from multiclouddb_conformance.checkpoint_stores import refusal
from multiclouddb_embedded import EmbeddedStore, SqliteCheckpointStore

TOKEN = "dG9rZW4" * 20


@pytest.fixture
def store(tmp_path):
    return SqliteCheckpointStore(tmp_path / "made" / "later" / "checkpoints.db")


def sql(store, statement, *values):
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        return connection.execute(statement, values).fetchall()


class TestFile:
    def test_names_share_the_file_and_a_conflict_says_which(self, store):
        store.save("a", "1", None)
        store.save("b", "2", None)
        assert "'b'" in refusal(store.save, "b", "3", None).message
        assert [file.name for file in store.path.parent.iterdir()] == ["checkpoints.db"]


class TestDelete:
    def test_without_a_file_there_is_nothing_to_delete(self, store):
        assert store.delete("orders") is False
        assert not store.path.parent.exists()

    def test_it_says_whether_there_was_one(self, store):
        store.save("others", "token", None)
        assert store.delete("orders") is False
        assert store.delete("others") is True
        assert store.delete("others") is False

    def test_a_name_that_no_checkpoint_can_have_is_refused(self, store):
        error = refusal(store.delete, "../x")
        assert error.category == ErrorCategory.INVALID_REQUEST
        assert "letters, digits" in error.message


class TestCrash:
    def test_a_file_that_stays_locked_says_to_try_again(self, store, monkeypatch):
        first = store.save("orders", "1", None)
        monkeypatch.setattr("multiclouddb_embedded.checkpoints._BUSY_SECONDS", 0.05)
        with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            error = refusal(store.save, "orders", "2", first.version)
            assert store.load("orders") == first
        assert (error.category, error.retryable) == (ErrorCategory.TRANSIENT_FAILURE, True)
        assert error.detail.native_code == "SQLITE_BUSY"
        assert "try again" in error.message
        store.save("orders", "2", first.version)

    def test_a_full_disk_leaves_the_old_one(self, store, monkeypatch):
        first = store.save("orders", "1", None)
        real = sqlite3.connect

        def small(*arguments, **options):
            connection = real(*arguments, **options)
            connection.execute("PRAGMA max_page_count = 3")
            return connection

        with monkeypatch.context() as patched:
            patched.setattr("sqlite3.connect", small)
            error = refusal(store.save, "orders", "x" * 100_000, first.version)
        assert (error.category, error.retryable) == (ErrorCategory.PERMANENT_FAILURE, False)
        assert error.detail.native_code == "SQLITE_FULL"
        for word in (str(store.path), "full", "the previous position stays valid"):
            assert word in error.message
        assert store.load("orders") == first
        store.save("orders", "2", first.version)


class TestDamage:
    def test_every_truncation_is_refused_and_not_overwritten(self, store):
        store.save("orders", TOKEN, None)
        whole = store.path.read_bytes()
        for length in (0, 1, 15, 16, 50, 99, 100, 512, 4095, 4096, 4097, 6000, len(whole) - 1):
            store.path.write_bytes(whole[:length])
            for call in (lambda: store.load("orders"), lambda: store.save("orders", "2", None)):
                error = refusal(call)
                assert error.category == ErrorCategory.INVALID_REQUEST, length
                assert str(store.path) in error.message
                assert "delete it to begin again" in error.message
            assert store.path.read_bytes() == whole[:length]

    def check(self, store, data):
        """Read, save and delete in a damaged file: each either is refused or does what it says."""
        for call in (
            lambda: store.load("orders").token == TOKEN,
            lambda: store.save("orders", "2", store.load("orders").version).token == "2",
            lambda: store.delete("orders"),
        ):
            store.path.write_bytes(data)
            with suppress(MulticloudDbError):
                assert call()

    def saved(self, store):
        store.save("orders", TOKEN, None)
        store.save("other", TOKEN, None)
        return store.path.read_bytes()

    def test_a_changed_bit_of_the_schema_is_refused(self, store):
        whole = self.saved(store)
        place = whole.index(b"CREATE TABLE")
        for byte in range(place, place + 160, 3):
            self.check(store, whole[:byte] + bytes([whole[byte] ^ 0x80]) + whole[byte + 1 :])

    @pytest.mark.soak
    def test_each_changed_bit_is_refused_or_harmless(self, store):
        whole = self.saved(store)
        for place, byte in enumerate(whole):
            for bit in range(8) if byte else (0, 7):
                self.check(store, whole[:place] + bytes([byte ^ 1 << bit]) + whole[place + 1 :])

    @pytest.mark.soak
    def test_each_truncation_is_refused(self, store):
        whole = self.saved(store)
        for length in range(len(whole)):
            store.path.write_bytes(whole[:length])
            assert refusal(store.load, "orders").category == ErrorCategory.INVALID_REQUEST

    def test_a_changed_byte_is_refused(self, store):
        saved = store.save("orders", TOKEN, None)
        whole = store.path.read_bytes()
        for text in (TOKEN, saved.version):
            for flip in (1, 0x80):
                place = whole.index(text.encode()) + 1
                store.path.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
                assert refusal(store.load, "orders").category == ErrorCategory.INVALID_REQUEST

    @pytest.mark.parametrize("column", ["token", "version", "sha256"])
    def test_an_edited_row_is_refused_until_it_is_deleted(self, store, column):
        store.save("orders", TOKEN, None)
        store.save("other", TOKEN, None)
        sql(store, f"UPDATE checkpoints SET {column} = 'another' WHERE name = 'orders'")
        error = refusal(store.load, "orders")
        assert error.category == ErrorCategory.INVALID_REQUEST
        for word in (str(store.path), "'orders'", "checksum", "delete('orders')"):
            assert word in error.message
        assert refusal(store.save, "orders", "2", "another").category == ErrorCategory.INVALID_REQUEST
        assert store.load("other").token == TOKEN
        assert store.delete("orders")
        store.save("orders", "2", None)

    def test_a_row_under_another_name_is_refused(self, store):
        store.save("orders", TOKEN, None)
        sql(store, "UPDATE checkpoints SET name = 'invoices'")
        assert refusal(store.load, "invoices").category == ErrorCategory.INVALID_REQUEST

    def test_a_newer_format_names_the_way_out(self, store):
        store.save("orders", TOKEN, None)
        sql(store, "PRAGMA user_version = 2")
        error = refusal(store.load, "orders")
        assert error.category == ErrorCategory.INVALID_REQUEST
        assert "version 2, newer than 1" in error.message
        assert "the multiclouddb-embedded version that wrote it" in error.message

    def test_the_file_of_a_store_is_left_alone(self, tmp_path):
        with EmbeddedStore(tmp_path / "s.db") as documents:
            documents.create_collection("items")
            error = refusal(SqliteCheckpointStore(documents.path).save, "orders", "1", None)
            assert error.category == ErrorCategory.INVALID_REQUEST
            assert "contains no checkpoints" in error.message
            documents.put("items", "a", {})
