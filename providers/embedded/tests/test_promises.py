"""Tests promises that each depend on a single line of code: durability, waking up, edges, pooled
connections."""

import os
import sqlite3
from pathlib import Path

import pytest

from multiclouddb_api import ErrorCategory, FileCheckpointStore, MulticloudDbError, ResourceAddress, connect
from multiclouddb_embedded import EmbeddedStore, SqliteCheckpointStore
from multiclouddb_embedded.store.connection import ConnectionPool
from multiclouddb_embedded.store.schema import check_store
from multiclouddb_spi import Deadline

LONE = "\ud800"


def refusal(call, *arguments, **options):
    with pytest.raises(MulticloudDbError) as caught:
        call(*arguments, **options)
    return caught.value


class TestDurable:
    """Tests durability by checking the settings of a connection at the time it is closed."""

    @pytest.fixture
    def settings(self, monkeypatch):
        found = []
        real = sqlite3.connect

        class Telling(sqlite3.Connection):
            def close(self):
                names = ("synchronous", "fullfsync")
                found.append(tuple(self.execute(f"PRAGMA {name}").fetchone()[0] for name in names))
                super().close()

        monkeypatch.setattr("sqlite3.connect", lambda *a, **options: real(*a, **options, factory=Telling))
        return found

    @pytest.mark.parametrize(("durable", "expected"), [(True, (2, 1)), (False, (1, 0))])
    def test_a_store_syncs_each_commit_if_it_is_to(self, tmp_path, settings, durable, expected):
        for _ in range(2):
            EmbeddedStore(tmp_path / "s.db", durable=durable).close()
        assert settings == [expected] * 2

    def test_a_checkpoint_is_on_the_disk_when_it_is_saved(self, tmp_path, settings):
        store = SqliteCheckpointStore(tmp_path / "c.db")
        saved = store.save("a", "1", None)
        store.save("a", "2", saved.version)
        assert settings == [(3, 1)] * 3  # one of the two stores creates the file

    @pytest.mark.parametrize("kind", [FileCheckpointStore, SqliteCheckpointStore])
    def test_a_folder_that_was_made_is_synced_in_the_one_above(self, tmp_path, monkeypatch, kind):
        synced = []
        real = os.fsync

        def fsync(handle):
            synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")))
            real(handle)

        monkeypatch.setattr("os.fsync", fsync)
        folder = tmp_path / "made" / "and" / "made"
        store = kind(folder if kind is FileCheckpointStore else folder / "c.db")
        first = store.save("a", "1", None)
        assert [place for place in synced if place.is_dir()] == [
            tmp_path,
            tmp_path / "made",
            tmp_path / "made" / "and",
            folder,
        ]
        synced.clear()
        store.save("a", "2", first.version)
        assert set(synced) & {tmp_path, tmp_path / "made"} == set()


class TestWaking:
    def test_a_write_between_a_batch_and_the_next_look_is_seen(self, world, monkeypatch):
        """A write between a batch and the next check is seen.

        Otherwise the reader would stay idle forever.
        """
        world.store.create_collection("items", partitions=1)
        feed = world.feed()
        reader = feed.open("p0", world.start(feed)[0].cursor)
        read = reader._read

        def read_and_write(*arguments):
            monkeypatch.setattr(reader, "_read", read)
            batch = read(*arguments)
            world.store.put("items", "a", {"n": 1})
            return batch

        monkeypatch.setattr(reader, "_read", read_and_write)
        assert len(world.fetch(reader)) == 0
        assert len(world.fetch(reader)) == 1

    def test_a_connection_that_was_opened_again_is_another_state(self, world):
        """If a connection is opened again, the state is different, because SQLite's counter of changes starts
        again.
        """
        world.store.create_collection("items", partitions=1)
        monitor = world.provider._store.monitor
        before = monitor.version()
        assert monitor.version() == before
        monitor.let_go()
        world.store.put("items", "a", {"n": 1})
        assert monitor.version() != before


class TestPool:
    def test_a_connection_that_failed_is_not_lent_again(self, world):
        pool = ConnectionPool(world.path, 1, check_store)
        with pool.borrow(Deadline.after(60)) as sound:
            pass
        with pytest.raises(sqlite3.Error), pool.borrow(Deadline.after(60)) as failed:
            failed.execute("nonsense")
        assert failed is sound
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            failed.execute("SELECT 1")
        assert len(pool) == 0
        with pool.borrow(Deadline.after(60)) as other:
            assert other is not failed
        pool.close()


class TestSurrogates:
    """Tests that the store refuses text that a file cannot contain, with an error that names the text."""

    def test_every_name_of_a_store(self, store):
        store.create_collection("items")
        for call in (
            lambda: store.create_collection(LONE),
            lambda: store.create_collection("a", database=LONE),
            lambda: store.create_collection("a", partition_key=[LONE]),
            lambda: store.drop_collection(LONE),
            lambda: store.put(LONE, "a", {}),
            lambda: store.put("items", "a", {}, database=LONE),
            lambda: store.put("items", LONE, {}),
            lambda: store.put("items", "a", {"text": LONE}),
            lambda: store.get(LONE, "a"),
            lambda: list(store.scan(LONE)),
            lambda: store.partitions(LONE),
            lambda: store.split("items", LONE),
            lambda: store.trim(LONE, max_count=0),
            lambda: ResourceAddress("main", LONE),
            lambda: ResourceAddress(LONE, "items"),
        ):
            error = refusal(call)
            assert error.category == ErrorCategory.INVALID_REQUEST
            assert "Unicode" in error.message
            error.message.encode()

    @pytest.mark.parametrize("name", [f"{LONE}.db", "a\0.db"])
    def test_a_path(self, tmp_path, name):
        for call in (
            lambda: EmbeddedStore(f"{tmp_path}/{name}"),
            lambda: connect(f"embedded://{tmp_path}/{name}"),
        ):
            error = refusal(call)
            assert error.category == ErrorCategory.INVALID_REQUEST
            error.message.encode()


class TestDamagedCheckpoints:
    TOKEN = "tell-nobody-" * 8

    @pytest.fixture
    def store(self, tmp_path):
        made = SqliteCheckpointStore(tmp_path / "c.db")
        made.save("orders", self.TOKEN, None)
        return made

    def test_a_token_that_is_no_text_any_more_is_not_quoted(self, store):
        whole = store.path.read_bytes()
        place = whole.index(self.TOKEN.encode()) + 20
        store.path.write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
        for call in (lambda: store.load("orders"), lambda: store.save("orders", "2", None)):
            error = refusal(call)
            assert error.category == ErrorCategory.INVALID_REQUEST
            for word in (str(store.path), "delete('orders')"):
                assert word in error.message
            shown = [str(each) for each in (error, error.__cause__, error.__context__)]
            assert not [text for text in shown if "tell-nobody" in text]

    def test_a_damaged_name_is_no_checkpoint_that_was_never_saved(self, store):
        """A damaged name is an error.

        If the checkpoint seemed to be missing, the reader would silently start from the beginning.
        """
        whole = store.path.read_bytes()
        place = whole.index(b"orders")
        store.path.write_bytes(whole[:place] + b"orderz" + whole[place + 6 :])
        for call in (lambda: store.load("orders"), lambda: store.save("orders", "2", None)):
            error = refusal(call)
            assert error.category == ErrorCategory.INVALID_REQUEST
            assert "checksum" in error.message
            assert str(store.path) in error.message
