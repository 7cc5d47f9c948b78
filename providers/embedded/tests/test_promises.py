"""Tests promises that each depend on a single line of code: durability, waking up, pooled connections."""

import os
import sqlite3
import time
from pathlib import Path

import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    FileCheckpointStore,
    FromContinuationToken,
    PhysicalPartition,
    ResourceAddress,
    connect,
)
from multiclouddb_conformance.refusals import refused
from multiclouddb_embedded import EmbeddedStore, Put, SqliteCheckpointStore
from multiclouddb_embedded.store.connection import ConnectionPool, check_store

LONE = "\ud800"


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

    def test_commits_and_checkpoints_are_synced_if_they_are_to(self, tmp_path, settings):
        for durable, expected in ((True, (2, 1)), (False, (1, 0))):
            EmbeddedStore(tmp_path / "s.db", durable=durable).close()
            assert settings.pop() == expected
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
        above = [tmp_path, tmp_path / "made", tmp_path / "made" / "and", folder]
        assert [place for place in synced if place.is_dir()] == above
        synced.clear()
        store.save("a", "2", first.version)
        assert set(synced) & {tmp_path, tmp_path / "made"} == set()


def test_a_write_between_a_batch_and_the_next_look_is_seen(world, monkeypatch):
    """Otherwise the reader would stay idle forever."""
    world.store.create_collection("items", partitions=1)
    feed = world.feed()
    reader = feed.open("p0", world.start(feed)[0].cursor)
    read = reader._read

    def read_and_write(*arguments, **settings):
        monkeypatch.setattr(reader, "_read", read)
        batch = read(*arguments, **settings)
        world.store.put("items", "a", {"n": 1})
        return batch

    monkeypatch.setattr(reader, "_read", read_and_write)
    assert [len(world.fetch(reader)) for _ in range(2)] == [0, 1]


def test_a_connection_that_was_opened_again_is_another_state(world):
    """SQLite's counter of changes starts again with each connection."""
    world.store.create_collection("items", partitions=1)
    monitor = world.provider._store.monitor
    before = monitor.version()
    assert monitor.version() == before
    monitor.let_go()
    world.store.put("items", "a", {"n": 1})
    assert monitor.version() != before


def test_a_connection_that_failed_is_not_lent_again(world):
    pool = ConnectionPool(world.path, 1, check_store)
    with pytest.raises(sqlite3.Error), pool.borrow(time.monotonic() + 60) as failed:
        failed.execute("nonsense")
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        failed.execute("SELECT 1")
    with pool.borrow(time.monotonic() + 60) as other:
        assert other is not failed
    pool.close()


def test_text_that_a_file_cannot_contain_is_refused_and_named(store, tmp_path):
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
        lambda: EmbeddedStore(f"{tmp_path}/{LONE}.db"),
        lambda: EmbeddedStore(f"{tmp_path}/a\0.db"),
        lambda: connect(f"embedded://{tmp_path}/{LONE}.db"),
        lambda: connect(f"embedded://{tmp_path}/a\0.db"),
    ):
        with refused(ErrorCategory.INVALID_REQUEST) as caught:
            call()
        caught.value.message.encode()


def test_both_spellings_of_a_collection_are_one_for_tokens_partitions_and_events(tmp_path):
    with EmbeddedStore(tmp_path / "s.db", durable=False) as store:
        full, short = store.create_collection("items", partitions=2), ResourceAddress(collection="items")
        store.batch("items", [Put(f"k{number}", {"n": number}) for number in range(20)])
        with connect(f"embedded://{store.path}") as client:
            ids = client.list_physical_partitions(short)
            assert ids == client.list_physical_partitions(full)
            for ours, theirs in ((short, full), (full, short)):
                page = client.read_changes(ChangeFeedRequest(ours, Beginning(), max_page_size=5))
                assert {event.address for event in page.events} == {full}
                token = FromContinuationToken(page.continuation_token)
                rest = client.read_changes(ChangeFeedRequest(theirs, token))
                assert len(page.events) + len(rest.events) == 20
                one = ChangeFeedRequest(theirs, Beginning(), PhysicalPartition(ids[0]))
                assert client.read_changes(one).events
