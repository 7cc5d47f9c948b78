"""`SqliteCheckpointStore`: compare-and-set, crashes, and files that are not ours."""

import pickle
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from multiclouddb_api import Checkpoint, CheckpointStore, ErrorCategory, MulticloudDbError
from multiclouddb_embedded import EmbeddedStore, SqliteCheckpointStore

TOKEN = "dG9rZW4" * 20


@pytest.fixture
def store(tmp_path):
    return SqliteCheckpointStore(tmp_path / "made" / "later" / "checkpoints.db")


def refusal(call, *arguments):
    with pytest.raises(MulticloudDbError) as caught:
        call(*arguments)
    assert "\n" not in caught.value.message
    return caught.value


def sql(store, statement, *values):
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        return connection.execute(statement, values).fetchall()


class TestSaveAndLoad:
    def test_nothing_is_there_at_first_and_a_look_makes_nothing(self, store):
        assert store.load("orders") is None
        assert store.delete("orders") is False
        assert not store.path.parent.exists()

    def test_what_is_saved_is_loaded(self, store):
        saved = store.save("orders", TOKEN, None)
        assert store.load("orders") == saved
        assert saved.token == TOKEN

    def test_every_save_has_a_version_of_its_own(self, store):
        first = store.save("orders", TOKEN, None)
        second = store.save("orders", TOKEN, first.version)
        assert first.version != second.version
        assert store.load("orders") == second

    def test_names_share_the_file_and_do_not_mix(self, store):
        first = store.save("a", "1", None)
        store.save("b", "2", None)
        store.save("a", "3", first.version)
        assert (store.load("a").token, store.load("b").token, store.load("c")) == ("3", "2", None)
        assert [file.name for file in store.path.parent.iterdir()] == ["checkpoints.db"]

    def test_a_token_of_a_megabyte_is_no_matter(self, store):
        token = "x" * 1_000_000
        store.save("orders", token, None)
        assert store.load("orders").token == token

    def test_another_store_on_the_file_sees_it(self, store):
        store.save("orders", TOKEN, None)
        assert SqliteCheckpointStore(str(store.path)).load("orders").token == TOKEN

    def test_it_fits_the_protocol(self, store):
        promised: CheckpointStore = store
        assert promised.load("orders") is None

    def test_a_store_pickles(self, store):
        store.save("orders", TOKEN, None)
        assert pickle.loads(pickle.dumps(store)).load("orders").token == TOKEN

    def test_a_change_of_directory_does_not_matter(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        store = SqliteCheckpointStore("c.db")
        store.save("orders", TOKEN, None)
        monkeypatch.chdir("/")
        assert store.load("orders").token == TOKEN

    @pytest.mark.parametrize("token", ["", None, 5, "\ud800"])
    def test_a_token_that_is_none_is_refused(self, store, token):
        assert refusal(store.save, "orders", token, None).category == ErrorCategory.INVALID_REQUEST
        assert store.load("orders") is None

    @pytest.mark.parametrize("name", ["", "../x", "a/b", "a\0", ".hidden", "ä", "a b", "x" * 129, "a\n", 5])
    def test_a_name_that_a_file_could_not_have_is_refused(self, store, name):
        for call in (
            lambda: store.load(name),
            lambda: store.save(name, "t", None),
            lambda: store.delete(name),
        ):
            error = refusal(call)
            assert error.category == ErrorCategory.INVALID_REQUEST
            assert "letters, digits" in error.message

    def test_files_are_for_their_owner(self, store):
        store.save("orders", TOKEN, None)
        assert stat.S_IMODE(store.path.stat().st_mode) == 0o600


class TestCompareAndSet:
    def test_of_two_workers_the_second_conflicts(self, store):
        other = SqliteCheckpointStore(store.path)
        first = store.save("orders", "1", None)
        mine, theirs = store.load("orders"), other.load("orders")
        assert mine == theirs == first
        store.save("orders", "2", mine.version)
        error = refusal(other.save, "orders", "3", theirs.version)
        assert error.category == ErrorCategory.CONFLICT
        for word in (str(store.path), "'orders'", "one worker", first.version):
            assert word in error.message
        assert store.load("orders").token == "2"

    def test_a_second_first_save_conflicts(self, store):
        store.save("orders", "1", None)
        error = refusal(store.save, "orders", "2", None)
        assert error.category == ErrorCategory.CONFLICT
        assert "none yet" in error.message
        assert store.load("orders").token == "1"

    def test_one_that_was_deleted_and_made_again_conflicts(self, store):
        first = store.save("orders", "1", None)
        assert store.delete("orders") is True
        assert "it is gone" in refusal(store.save, "orders", "2", first.version).message
        store.save("orders", "2", None)
        assert refusal(store.save, "orders", "3", first.version).category == ErrorCategory.CONFLICT

    def test_of_many_threads_one_wins_each_round(self, store):
        wins = []

        def worker():
            for _ in range(10):
                found = store.load("orders")
                try:
                    store.save("orders", "t", found and found.version)
                except MulticloudDbError as error:
                    assert error.category == ErrorCategory.CONFLICT  # noqa: PT017
                else:
                    wins.append(1)

        threads = [threading.Thread(target=worker) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.load("orders").version.startswith(f"{len(wins)}-")

    def test_of_several_processes_one_wins_each_round_from_the_first_on(self, store):
        program = f"""
from multiclouddb_api import ErrorCategory, MulticloudDbError
from multiclouddb_embedded import SqliteCheckpointStore
store, wins = SqliteCheckpointStore({str(store.path)!r}), 0
for _ in range(20):
    found = store.load("orders")
    try:
        store.save("orders", "t", found and found.version)
        wins += 1
    except MulticloudDbError as error:
        assert error.category == ErrorCategory.CONFLICT, error
print(wins)
"""
        command = [sys.executable, "-c", program]
        runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        wins = sum(int(run.communicate()[0]) for run in runs)
        assert store.load("orders").version.startswith(f"{wins}-")
        assert [file.name for file in store.path.parent.iterdir()] == ["checkpoints.db"]


class TestCrash:
    def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(self, store):
        """The saver is killed while it saves without a pause; what it told of is there."""
        program = f"""
from multiclouddb_embedded import SqliteCheckpointStore
store = SqliteCheckpointStore({str(store.path)!r})
found, n = store.load("orders"), 0
while True:
    n += 1
    found = store.save("orders", f"{{n}}-" + "x" * 200_000, found and found.version)
    print(n, flush=True)
"""
        for _ in range(3):
            run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
            told = [int(run.stdout.readline()) for _ in range(4)]
            run.kill()
            told += map(int, run.communicate()[0].split())
            number, _, rest = store.load("orders").token.partition("-")
            assert int(number) >= told[-1]
            assert rest == "x" * 200_000

    def test_a_child_of_a_fork_uses_the_same_store(self, store):
        program = f"""
import os
from multiclouddb_embedded import SqliteCheckpointStore
store = SqliteCheckpointStore({str(store.path)!r})
first = store.save("orders", "1", None)
child = os.fork()
if child == 0:
    store.save("orders", "2", first.version)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
store.save("orders", "3", store.load("orders").version)
"""
        subprocess.run([sys.executable, "-c", program], check=True)
        assert store.load("orders").token == "3"
        assert store.load("orders").version.startswith("3-")

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
        for word in (str(store.path), "full", "the position before stays good"):
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

    @pytest.mark.parametrize("content", [b"", b"notes", b"notes " * 3000, b"SQLite format 3\0" + b"x" * 5000])
    def test_a_file_of_something_else_is_left_alone(self, store, content):
        store.path.parent.mkdir(parents=True)
        store.path.write_bytes(content)
        for call in (lambda: store.load("orders"), lambda: store.save("orders", "2", None)):
            error = refusal(call)
            assert error.category == ErrorCategory.INVALID_REQUEST
            assert str(store.path) in error.message
        assert store.path.read_bytes() == content

    def test_the_file_of_a_store_is_left_alone(self, tmp_path):
        with EmbeddedStore(tmp_path / "s.db") as documents:
            documents.create_collection("items")
            error = refusal(SqliteCheckpointStore(documents.path).save, "orders", "1", None)
            assert error.category == ErrorCategory.INVALID_REQUEST
            assert "holds no checkpoints" in error.message
            documents.put("items", "a", {})

    def test_a_folder_in_its_place_is_named(self, store):
        store.path.mkdir(parents=True)
        error = refusal(store.load, "orders")
        assert error.category == ErrorCategory.PERMANENT_FAILURE
        assert str(store.path) in error.message

    def test_a_file_in_the_place_of_its_folder_is_named(self, store):
        store.path.parent.parent.mkdir()
        store.path.parent.write_text("")
        error = refusal(store.save, "orders", "1", None)
        assert error.category == ErrorCategory.PERMANENT_FAILURE
        assert str(store.path) in error.message

    def test_the_repr_has_no_token(self, store):
        saved = store.save("orders", TOKEN, None)
        assert TOKEN not in repr(saved) + repr(store) + repr(Checkpoint(TOKEN, "1"))
