"""Tests promises that each depend on a single line of code: durability, waking up, edges, pooled
connections."""

import os
import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    FileCheckpointStore,
    FromContinuationToken,
    MulticloudDbError,
    ResourceAddress,
    connect,
)
from multiclouddb_embedded import EmbeddedStore, SqliteCheckpointStore
from multiclouddb_embedded.store.connection import ConnectionPool
from multiclouddb_embedded.store.schema import check_store
from multiclouddb_spi import Deadline, ProviderFault

LONE = "\ud800"


def numbers(events):
    return [event.new_item_state["n"] for event in events]


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


class TestEdges:
    @pytest.fixture
    def stamps(self, world):
        """Make ten changes, one per second, and trim the changes before the fifth."""
        world.store.create_collection("items", partitions=1)
        found = []
        for n in range(10):
            world.store.put("items", n, {"n": n})
            found.append(world.clock())
            world.clock.tick(seconds=1)
        assert world.store.trim("items", before=found[5]) == 5
        return found

    def test_at_the_time_of_the_oldest_change_that_is_left(self, world, stamps):
        assert numbers(world.read_all(world.feed(), AtTime(stamps[5]))["p0"]) == [5, 6, 7, 8, 9]

    def test_just_behind_the_last_change_that_was_trimmed(self, world, stamps):
        moment = stamps[4] + timedelta(microseconds=1)
        assert numbers(world.read_all(world.feed(), AtTime(moment))["p0"]) == [5, 6, 7, 8, 9]

    def test_at_the_time_of_the_last_change_that_was_trimmed(self, world, stamps):
        for moment in (stamps[4], stamps[4] - timedelta(microseconds=1), stamps[0] - timedelta(days=1)):
            with pytest.raises(ProviderFault) as caught:
                world.start(world.feed(), AtTime(moment))
            assert caught.value.fault.category == ErrorCategory.CHECKPOINT_EXPIRED

    def test_in_the_future_nothing_comes_before_that_time(self, world, stamps):
        feed, moment = world.feed(), world.clock() + timedelta(seconds=30)
        (seed,) = world.start(feed, AtTime(moment))
        reader = feed.open("p0", seed.cursor)
        for n, shift in enumerate((-20, -0.000001, 0, 0.000001, 5), start=10):
            world.clock.moment = moment + timedelta(seconds=shift)
            world.store.put("items", n, {"n": n})
        assert numbers(world.drain(reader)[0]) == [12, 13, 14]
        assert numbers(world.drain(feed.open("p0", seed.cursor))[0]) == [12, 13, 14]

    def test_more_than_a_minute_ahead_is_refused(self, world, stamps):
        with connect("embedded://" + world.path, native_client=world.store) as client:
            address = ResourceAddress("main", "items")
            page = client.read_changes(
                ChangeFeedRequest(address, AtTime(world.clock() + timedelta(seconds=59)))
            )
            assert page.events == ()
            far = ChangeFeedRequest(address, AtTime(world.clock() + timedelta(seconds=61)))
            assert refusal(client.read_changes, far).category == ErrorCategory.INVALID_REQUEST


class TestReopened:
    """Tests that a position can be used again after later positions were read."""

    def test_a_reader_at_an_older_position_reads_the_same_again(self, world):
        world.store.create_collection("items", partitions=1)
        for n in range(10):
            world.store.put("items", n, {"n": n})
        feed = world.feed()
        (seed,) = world.start(feed)
        batch = world.fetch(feed.open("p0", seed.cursor))
        cursors = [batch.cursor_after(count) for count in range(11)]
        for count in reversed(range(11)):
            reader = feed.open("p0", cursors[count])
            assert numbers(world.drain(reader)[0]) == list(range(count, 10))
            bounded = feed.open("p0", cursors[count], cursors[min(count + 3, 10)])
            assert numbers(world.drain(bounded)[0]) == list(range(count, min(count + 3, 10)))

    def test_a_client_goes_back_to_an_older_token(self, world):
        world.store.create_collection("items", partitions=1)
        for n in range(6):
            world.store.put("items", n, {"n": n})
        with connect("embedded://" + world.path, native_client=world.store) as client:

            def page(position):
                request = ChangeFeedRequest(ResourceAddress("main", "items"), position, max_page_size=2)
                found = client.read_changes(request)
                return numbers(found.events), FromContinuationToken(found.continuation_token)

            first, one = page(Beginning())
            second, two = page(one)
            third, three = page(two)
            assert (first, second, third, page(three)[0]) == ([0, 1], [2, 3], [4, 5], [])
            assert [page(at)[0] for at in (two, one, three, one, two)] == [[4, 5], [2, 3], [], [2, 3], [4, 5]]
            world.store.put("items", 6, {"n": 6})
            assert [page(at)[0] for at in (one, three)] == [[2, 3], [6]]


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
