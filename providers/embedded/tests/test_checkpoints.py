"""Tests what only `SqliteCheckpointStore` does; `test_checkpoint_store.py` tests the common promises."""

import sqlite3
from contextlib import closing, suppress

import pytest

from multiclouddb_api import ErrorCategory, MulticloudDbError
from multiclouddb_conformance.checkpoint_stores import refusal
from multiclouddb_embedded import EmbeddedStore, SqliteCheckpointStore

TOKEN = "tell-nobody-" * 12
INVALID = ErrorCategory.INVALID_REQUEST


@pytest.fixture
def store(tmp_path):
    return SqliteCheckpointStore(tmp_path / "made" / "later" / "checkpoints.db")


@pytest.fixture
def whole(store):
    """Save two checkpoints, and return the bytes of the file."""
    store.save("orders", TOKEN, None)
    store.save("other", TOKEN, None)
    return store.path.read_bytes()


def sql(store, statement):
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


def refused(store, *words, name="orders"):
    """Check that a checkpoint is neither read nor overwritten, and that no message quotes its token."""
    for call in (lambda: store.load(name), lambda: store.save(name, "2", "another")):
        error = refusal(call)
        assert error.category == INVALID
        for word in (str(store.path), *words):
            assert word in error.message
        assert "tell-nobody" not in "".join(map(str, (error, error.__cause__, error.__context__)))


def test_an_empty_file_is_refused(store):
    store.path.parent.mkdir(parents=True)
    store.path.touch()
    refused(store, "is empty")


def flipped(whole, place, bits):
    return whole[:place] + bytes([whole[place] ^ bits]) + whole[place + 1 :]


def check(store, data):
    """Read, save and delete in a damaged file: each either is refused or does what it says."""
    for call in (
        lambda: store.load("orders").token == TOKEN,
        lambda: store.save("orders", "2", store.load("orders").version).token == "2",
        lambda: store.delete("orders"),
    ):
        store.path.write_bytes(data)
        with suppress(MulticloudDbError):
            assert call()


class TestFile:
    def test_names_share_the_file_and_are_deleted(self, store):
        assert store.delete("orders") is False
        assert not store.path.parent.exists()
        store.save("a", "1", None)
        store.save("b", "2", None)
        assert "'b'" in refusal(store.save, "b", "3", None).message
        assert [file.name for file in store.path.parent.iterdir()] == ["checkpoints.db"]
        assert [store.delete(name) for name in ("orders", "a", "a")] == [False, True, False]
        assert refusal(store.delete, "../x").category == INVALID

    def test_a_file_that_stays_locked_says_to_try_again(self, store, monkeypatch):
        first = store.save("orders", "1", None)
        monkeypatch.setattr("multiclouddb_embedded.checkpoints._BUSY_SECONDS", 0.05)
        with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            error = refusal(store.save, "orders", "2", first.version)
            assert store.load("orders") == first
        assert (error.category, error.retryable) == (ErrorCategory.TRANSIENT_FAILURE, True)
        assert error.message.startswith(f"checkpoint file {store.path}: cannot be written (")
        assert error.detail.native_code == "SQLITE_BUSY"
        store.save("orders", "2", first.version)

    def test_a_checkpoint_beyond_the_bound_is_refused_and_not_read(self, store, monkeypatch):
        store.save("a", "x" * 2000, None)
        monkeypatch.setattr("multiclouddb_embedded.checkpoints.MOST_BYTES", 1000)
        refused(store, "has a checkpoint 'a' of more than", name="a")

    def test_one_of_just_the_bound_is_read_and_is_whole(self, store, monkeypatch):
        monkeypatch.setattr("multiclouddb_embedded.checkpoints.MOST_BYTES", 1000)
        saved = store.save("a", "x" * 1000, None)
        assert (store.load("a"), store.load("another")) == (saved, None)

    def test_a_folder_that_cannot_be_made_is_named(self, tmp_path):
        (tmp_path / "file").write_text("")
        path = tmp_path / "file" / "checkpoints.db"
        error = refusal(SqliteCheckpointStore(path).save, "orders", "1", None)
        assert error.message.startswith(f"checkpoint file {path}: cannot be written")

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
        assert str(store.path) in error.message
        assert store.load("orders") == first
        store.save("orders", "2", first.version)

    def test_the_file_of_a_store_is_left_alone(self, tmp_path):
        with EmbeddedStore(tmp_path / "s.db") as documents:
            documents.create_collection("items")
            refused(SqliteCheckpointStore(documents.path), "contains no checkpoints")
            documents.put("items", "a", {})


class TestDamage:
    @pytest.mark.parametrize("step", [997, pytest.param(1, marks=pytest.mark.soak)])
    def test_every_truncation_is_refused_and_not_overwritten(self, store, whole, step):
        for length in (1, 15, 16, 99, 100, 4095, 4096, *range(0, len(whole), step), len(whole) - 1):
            store.path.write_bytes(whole[:length])
            refused(store, "delete it to begin again")
            assert store.path.read_bytes() == whole[:length]

    def test_a_changed_bit_of_the_schema_is_refused(self, store, whole):
        place = whole.index(b"CREATE TABLE")
        for byte in range(place, place + 160, 3):
            check(store, flipped(whole, byte, 0x80))

    @pytest.mark.soak
    def test_each_changed_bit_is_refused_or_harmless(self, store, whole):
        for place, byte in enumerate(whole):
            for bit in range(8) if byte else (0, 7):
                check(store, flipped(whole, place, 1 << bit))

    def test_a_changed_byte_is_refused(self, store):
        """A changed name is refused too: a missing checkpoint would begin again from the start."""
        saved = store.save("orders", TOKEN, None)
        whole = store.path.read_bytes()
        for text in (TOKEN, saved.version, "orders"):
            for bits in (1, 0x80):
                store.path.write_bytes(flipped(whole, whole.index(text.encode()) + 1, bits))
                refused(store)

    @pytest.mark.parametrize("column", ["token", "version", "sha256"])
    @pytest.mark.parametrize("value", ["'another'", "X'61'"])
    def test_an_edited_row_is_refused_until_it_is_deleted(self, store, whole, column, value):
        sql(store, f"UPDATE checkpoints SET {column} = {value} WHERE name = 'orders'")
        refused(store, "'orders'", "checksum", "delete('orders')")
        assert store.load("other").token == TOKEN
        assert store.delete("orders")
        store.save("orders", "2", None)

    def test_a_row_under_another_name_is_refused(self, store, whole):
        sql(store, "UPDATE checkpoints SET name = 'invoices' WHERE name = 'orders'")
        refused(store, name="invoices")

    def test_a_row_without_text_name_is_refused(self, store, whole):
        sql(store, "UPDATE checkpoints SET name = CAST(name AS BLOB) WHERE name = 'orders'")
        refused(store, "checksum")

    def test_a_newer_format_names_the_way_out(self, store, whole):
        sql(store, "PRAGMA user_version = 2")
        refused(store, "version 2, newer than 1", "the multiclouddb version that wrote it")
