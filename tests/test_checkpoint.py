"""`FileCheckpointStore`: compare-and-set, crashes, and files that are not ours."""

import json
import os
import pickle
import stat
import subprocess
import sys
import threading

import pytest

from multiclouddb_api import (
    Checkpoint,
    CheckpointStore,
    ErrorCategory,
    FileCheckpointStore,
    MulticloudDbError,
)

TOKEN = "dG9rZW4" * 20


@pytest.fixture
def store(tmp_path):
    return FileCheckpointStore(tmp_path / "made" / "later")


def refusal(call, *arguments):
    with pytest.raises(MulticloudDbError) as caught:
        call(*arguments)
    return caught.value


class TestSaveAndLoad:
    def test_nothing_is_there_at_first(self, store):
        assert store.load("orders") is None

    def test_what_is_saved_is_loaded(self, store):
        saved = store.save("orders", TOKEN, None)
        assert store.load("orders") == saved
        assert saved.token == TOKEN

    def test_every_save_has_a_version_of_its_own(self, store):
        first = store.save("orders", TOKEN, None)
        second = store.save("orders", TOKEN, first.version)
        assert first.version != second.version

    def test_names_do_not_mix(self, store):
        store.save("a", "1", None)
        store.save("b", "2", None)
        assert (store.load("a").token, store.load("b").token) == ("1", "2")

    def test_a_token_of_a_megabyte_is_no_matter(self, store):
        token = "x" * 1_000_000
        store.save("orders", token, None)
        assert store.load("orders").token == token

    def test_another_store_on_the_directory_sees_it(self, store, tmp_path):
        store.save("orders", TOKEN, None)
        assert FileCheckpointStore(str(tmp_path / "made" / "later")).load("orders").token == TOKEN

    def test_it_fits_the_protocol(self, store):
        promised: CheckpointStore = store
        assert promised.load("orders") is None

    def test_a_store_pickles(self, store):
        store.save("orders", TOKEN, None)
        assert pickle.loads(pickle.dumps(store)).load("orders").token == TOKEN

    def test_the_repr_of_a_checkpoint_is_short(self):
        assert TOKEN not in repr(Checkpoint(TOKEN, "1"))

    @pytest.mark.parametrize("token", ["", None, 5, "\ud800"])
    def test_a_token_that_is_none_is_refused(self, store, token):
        assert refusal(store.save, "orders", token, None).category == ErrorCategory.INVALID_REQUEST
        assert store.load("orders") is None


class TestCompareAndSet:
    def test_a_second_first_save_conflicts(self, store):
        store.save("orders", "1", None)
        error = refusal(store.save, "orders", "2", None)
        assert error.category == ErrorCategory.CONFLICT
        assert str(store.path("orders")) in error.message
        assert "one worker" in error.message
        assert store.load("orders").token == "1"

    def test_a_save_over_a_newer_version_conflicts(self, store):
        first = store.save("orders", "1", None)
        store.save("orders", "2", first.version)
        assert refusal(store.save, "orders", "3", first.version).category == ErrorCategory.CONFLICT

    def test_a_file_that_was_deleted_and_made_again_conflicts(self, store):
        first = store.save("orders", "1", None)
        store.path("orders").unlink()
        assert "it is gone" in refusal(store.save, "orders", "2", first.version).message
        store.save("orders", "2", None)
        assert refusal(store.save, "orders", "3", first.version).category == ErrorCategory.CONFLICT

    def test_of_many_threads_one_wins_each_round(self, store):
        wins = []

        def worker():
            for _ in range(25):
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

    def test_of_several_processes_one_wins_each_round(self, store):
        program = f"""
from multiclouddb_api import ErrorCategory, FileCheckpointStore, MulticloudDbError
store, wins = FileCheckpointStore({str(store.path("x").parent)!r}), 0
for _ in range(50):
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


class TestCrash:
    def test_a_kill_at_any_moment_leaves_a_whole_file(self, store):
        """The saver is killed while it saves without a pause; what is there is always one of its tokens."""
        directory = store.path("x").parent
        program = f"""
from multiclouddb_api import FileCheckpointStore
store = FileCheckpointStore({str(directory)!r})
found = store.load("orders")
while True:
    found = store.save("orders", "x" * 200_000, found and found.version)
    print(flush=True)
"""
        for _ in range(5):
            run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
            for _ in range(5):
                run.stdout.readline()
            run.kill()
            run.communicate()
            assert store.load("orders").token == "x" * 200_000
        assert len(list(directory.iterdir())) <= 3

    def test_a_draft_left_by_a_crash_does_no_harm(self, store):
        first = store.save("orders", "1", None)
        (store.path("orders").parent / ".orders.tmp").write_text("half a ch" * 1000)
        store.save("orders", "2", first.version)
        assert store.load("orders").token == "2"

    def test_the_file_is_on_disk_before_it_replaces_and_the_directory_after(self, store, monkeypatch):
        store.save("orders", "1", None)
        steps = []
        sync, replace = os.fsync, os.replace

        def noted_sync(handle):
            steps.append("directory" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
            sync(handle)

        def noted_replace(source, target):
            steps.append("replace")
            replace(source, target)

        monkeypatch.setattr("os.fsync", noted_sync)
        monkeypatch.setattr("os.replace", noted_replace)
        store.save("orders", "2", store.load("orders").version)
        assert steps == ["file", "replace", "directory"]

    def test_a_full_disk_leaves_the_position_before(self, store, monkeypatch):
        first = store.save("orders", "1", None)

        def full(handle):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        error = refusal(store.save, "orders", "2", first.version)
        assert error.category == ErrorCategory.PERMANENT_FAILURE
        assert "No space left" in error.message
        assert str(store.path("orders")) in error.message
        assert store.load("orders") == first

    def test_a_lock_of_a_process_that_died_is_free(self, store):
        program = f"""
import fcntl, os
handle = os.open({str(store.path("x").parent / ".orders.lock")!r}, os.O_RDWR | os.O_CREAT)
fcntl.flock(handle, fcntl.LOCK_EX)
os._exit(0)
"""
        store.save("other", "1", None)
        subprocess.run([sys.executable, "-c", program], check=True)
        store.save("orders", "1", None)

    def test_files_are_for_their_owner(self, store):
        store.save("orders", TOKEN, None)
        for file in store.path("orders").parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600


class TestDamage:
    def edited(self, store, **changes):
        store.save("orders", TOKEN, None)
        path = store.path("orders")
        fields = json.loads(path.read_text())
        fields.update(changes)
        path.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))
        return refusal(store.load, "orders")

    def test_every_truncation_is_refused(self, store):
        store.save("orders", TOKEN, None)
        path = store.path("orders")
        whole = path.read_bytes()
        for length in range(len(whole) - 1):
            path.write_bytes(whole[:length])
            error = refusal(store.load, "orders")
            assert error.category == ErrorCategory.INVALID_REQUEST
            assert str(path) in error.message
            assert "delete it to begin again" in error.message

    def test_every_changed_byte_is_refused(self, store):
        store.save("orders", TOKEN, None)
        path = store.path("orders")
        whole = path.read_bytes()
        for place in range(len(whole) - 1):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            assert refusal(store.load, "orders").category == ErrorCategory.INVALID_REQUEST

    def test_a_wrong_checksum_is_named(self, store):
        assert "checksum" in self.edited(store, token="another").message

    def test_a_newer_format_names_the_way_out(self, store):
        error = self.edited(store, v=2)
        assert "version 2, newer than 1" in error.message
        assert "the multiclouddb version that wrote it" in error.message

    def test_an_unknown_field_is_refused(self, store):
        assert "unknown" in self.edited(store, more=1).message

    def test_a_missing_field_is_refused(self, store):
        assert "missing" in self.edited(store, sha256=None).message

    @pytest.mark.parametrize("text", ["[]", "5", "{}", '{"format": "other"}', "\x00\x01"])
    def test_a_file_of_something_else_is_refused(self, store, text):
        store.save("orders", TOKEN, None)
        store.path("orders").write_text(text)
        assert refusal(store.load, "orders").category == ErrorCategory.INVALID_REQUEST

    def test_a_copy_under_another_name_is_refused(self, store):
        store.save("orders", TOKEN, None)
        store.path("orders").rename(store.path("invoices"))
        assert "is the checkpoint of 'orders', not of 'invoices'" in refusal(store.load, "invoices").message

    def test_a_damaged_file_is_not_overwritten(self, store):
        store.save("orders", TOKEN, None)
        store.path("orders").write_text("{")
        assert refusal(store.save, "orders", "2", None).category == ErrorCategory.INVALID_REQUEST
        assert store.path("orders").read_text() == "{"

    def test_a_directory_in_its_place_is_named(self, store):
        store.path("orders").mkdir(parents=True)
        error = refusal(store.load, "orders")
        assert error.category == ErrorCategory.PERMANENT_FAILURE
        assert str(store.path("orders")) in error.message


class TestName:
    @pytest.mark.parametrize(
        "name",
        ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\0", ".hidden", "ä", "a b", "x" * 129, "a\n", 5],
    )
    def test_a_name_that_is_none_for_a_file_is_refused(self, store, name):
        for call in (lambda: store.load(name), lambda: store.save(name, "t", None), lambda: store.path(name)):
            error = refusal(call)
            assert error.category == ErrorCategory.INVALID_REQUEST
            assert "letters, digits" in error.message

    @pytest.mark.parametrize("name", ["a", "orders-1", "shop.orders_2", "7", "x" * 128])
    def test_other_names_are_fine(self, store, name):
        store.save(name, "t", None)
        assert store.load(name).token == "t"
