"""Tests disk failures of a store. Each error is one line that names the file and says what to do."""

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

import multiclouddb_api as api
from multiclouddb_conformance.refusals import refusal
from multiclouddb_embedded import EmbeddedStore, Put
from multiclouddb_embedded.errors import classify

DENIED = api.ErrorCategory.AUTHORIZATION_FAILED
INVALID = api.ErrorCategory.INVALID_REQUEST


@contextmanager
def unprivileged():
    """Run the test as another user, because permission bits do not restrict root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def folder():
    """Provide a folder that other users can reach, because pytest's own folders are private."""
    place = Path(tempfile.mkdtemp(prefix="multiclouddb-"))
    place.chmod(0o777)
    yield place
    place.chmod(0o777)
    shutil.rmtree(place)


@pytest.fixture
def path(folder):
    """Provide a closed store with one change."""
    with EmbeddedStore(folder / "store.db", durable=False) as store:
        store.create_collection("items", partitions=1)
        store.put("items", "a", {"n": 1})
    assert [file.name for file in folder.iterdir()] == ["store.db"]
    return folder / "store.db"


def read(path):
    """Return the keys of all changes."""
    request = api.ChangeFeedRequest(api.ResourceAddress("main", "items"), api.Beginning())
    with api.connect(f"embedded://{path}") as client:
        return [event.key.components["id"] for event in client.read_changes(request).events]


def open_store(path):
    with EmbeddedStore(path):
        pass


def told(call, category, *words):
    """Return the error of a call. The error's message must have one line and say these words."""
    error = refusal(category, call, *map(str, words))
    assert "\n" not in str(error)
    assert error.detail.provider in (None, "embedded")
    assert not error.retryable
    return error


def both_told(place, category, *words):
    """Check the refusals of a reader and of a writer."""
    for call in (read, open_store):
        told(partial(call, place), category, *words)


def test_on_a_full_disk_nothing_is_written_until_there_is_room(path):
    large = {"text": "x" * 200_000}
    with EmbeddedStore(path) as store:
        # If the file may not grow, SQLite raises the same error as for a full disk.
        connection = store._session._connection
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        for call in (
            lambda: store.put("items", "b", large),
            lambda: store.batch("items", [Put("b", {}), Put("c", large)]),
            lambda: store.create_collection("more", partitions=10_000),
        ):
            error = told(call, api.ErrorCategory.PERMANENT_FAILURE, path, "full", "free space")
            assert error.detail.native_code == "SQLITE_FULL"
            assert read(path) == ["a"]
        assert [key.components["id"] for key, _ in store.scan("items")] == ["a"]
        connection.execute("PRAGMA max_page_count = 1000000")
        store.put("items", "d", large)
        assert read(path) == ["a", "d"]


class TestReadOnly:
    def test_a_read_only_file_is_read_and_not_written(self, path):
        path.chmod(0o444)
        with unprivileged():
            assert read(path) == ["a"]
            with EmbeddedStore(path) as store:
                assert store.get("items", "a") == {"n": 1}
                for call in (
                    lambda: store.put("items", "b", {}),
                    lambda: store.create_collection("more"),
                    lambda: store.trim("items", max_count=0),
                ):
                    error = told(call, DENIED, path, "readonly", "right to read and write the file")
                    assert error.detail.native_code == "SQLITE_READONLY"
            assert read(path) == ["a"]

    def test_a_read_only_folder_is_told_apart(self, path, folder):
        folder.chmod(0o555)
        with unprivileged():
            both_told(path, DENIED, path, "folder is read-only", "read a copy")
        assert [file.name for file in folder.iterdir()] == ["store.db"]

    def test_no_store_is_made_in_a_read_only_folder(self, folder):
        folder.chmod(0o555)
        with unprivileged():
            told(partial(open_store, folder / "new.db"), DENIED, folder / "new.db", "its folder")
        assert list(folder.iterdir()) == []

    def test_a_file_that_may_not_be_read_is_not_called_missing(self, path):
        path.chmod(0o000)
        with unprivileged():
            both_told(path, DENIED, path, "right to read")


class TestNoStore:
    def test_any_other_file_is_left_alone(self, folder):
        place = folder / "other.db"
        for content in (
            b"x", b"notes " * 8, os.urandom(100), os.urandom(20_000), b"SQLite format 3\0",
            b"PK\3\4" + bytes(5000),
        ):  # fmt: skip
            place.write_bytes(content)
            both_told(place, INVALID, place, "store", "name another")
            assert place.read_bytes() == content
            assert list(folder.iterdir()) == [place]

    def test_another_application_s_database_is_left_alone(self, folder):
        place = folder / "other.db"
        with closing(sqlite3.connect(place)) as connection:
            connection.execute("PRAGMA application_id = 17")
            connection.execute("CREATE TABLE log (x)")
        before = place.read_bytes()
        both_told(place, INVALID, place, "not an embedded store", "name another file")
        assert place.read_bytes() == before

    def test_a_newer_schema_says_to_upgrade(self, path):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE store SET version = 9")
        upgrade = "pip install --upgrade multiclouddb"
        both_told(path, INVALID, path, "schema version 9", upgrade)

    def test_an_empty_file_is_no_store_for_a_reader_and_becomes_one_for_a_writer(self, folder):
        place = folder / "empty.db"
        place.touch()
        told(partial(read, place), api.ErrorCategory.NOT_FOUND, place, "is empty", "EmbeddedStore(path)")
        assert place.stat().st_size == 0
        open_store(place)
        told(partial(read, place), api.ErrorCategory.NOT_FOUND, "no collection main/items")

    def test_a_folder_is_called_one_and_a_missing_file_is_not_made(self, folder):
        both_told(folder, INVALID, folder, "is a folder", "name a file in it")
        missing = partial(read, folder / "none.db")
        told(missing, api.ErrorCategory.NOT_FOUND, "no store", "EmbeddedStore(path)")
        assert list(folder.iterdir()) == []

    def test_a_damaged_store_is_called_damaged(self, path):
        whole = path.read_bytes()
        for content in (whole[: len(whole) // 2], whole[:16384] + os.urandom(len(whole) - 16384)):
            path.write_bytes(content)
            both_told(path, api.ErrorCategory.PERMANENT_FAILURE, path, "damaged", "from a copy")
            assert path.read_bytes() == content


class TestCannotOpen:
    """Tests files that cannot be opened. SQLite reports the same code for all causes."""

    def fault(self, path):
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_CANTOPEN, "SQLITE_CANTOPEN"
        return classify(error, str(path))

    def test_it_is_not_there_or_handles_ran_out(self, path, folder):
        assert self.fault(folder / "none.db").category == api.ErrorCategory.NOT_FOUND
        fault = self.fault(path)
        assert (fault.category, fault.retryable) == (api.ErrorCategory.TRANSIENT_FAILURE, True)
        assert "ulimit -n" in fault.message

    def test_its_folder_is_on_a_disk_that_is_mounted_read_only(self, path, monkeypatch):
        real = os.access
        monkeypatch.setattr(
            "os.access", lambda place, mode, **how: mode != os.W_OK and real(place, mode, **how)
        )
        fault = self.fault(path)
        assert (fault.category, fault.retryable) == (DENIED, False)
        assert "folder is read-only" in fault.message


def test_a_file_with_two_names(path):
    """SQLite has a log of commits for each name, so one would overwrite what the other has committed."""
    link = path.with_name("link.db")
    link.hardlink_to(path)
    for each in (path, link):
        told(partial(open_store, each), INVALID, each, "hard links")
        told(partial(read, each), INVALID, each, "hard links")
    link.unlink()
    link.symlink_to(path)
    with EmbeddedStore(link) as store:
        store.put("items", "b", {"n": 1})
    assert read(path) == read(link) == ["a", "b"]
