"""What every checkpoint store promises: compare-and-set, crashes, and files that are not ours."""

import pickle
import stat
import subprocess
import sys
import threading

import attrs
import pytest

from multiclouddb_api import (
    Checkpoint,
    CheckpointStore,
    ErrorCategory,
    FileCheckpointStore,
    MulticloudDbError,
)
from multiclouddb_embedded import SqliteCheckpointStore

TOKEN = "dG9rZW4" * 20
ROUNDS = 20


@attrs.frozen
class Kind:
    """A kind of store; its constructor takes where it is, below a folder."""

    type: type
    below: str = ""

    def of(self, store):
        """The file that holds a checkpoint called `orders`."""
        return store.path("orders") if self.type is FileCheckpointStore else store.path

    def delete(self, store):
        if self.type is FileCheckpointStore:
            store.path("orders").unlink()
        else:
            assert store.delete("orders") is True

    def files(self):
        """What is left of a checkpoint called `orders` when nobody is at it."""
        both = {"orders.checkpoint.json", ".orders.lock"}
        return both if self.type is FileCheckpointStore else {self.below}


@pytest.fixture(
    params=[
        pytest.param(Kind(FileCheckpointStore), id="files"),
        pytest.param(Kind(SqliteCheckpointStore, "checkpoints.db"), id="sqlite"),
    ]
)
def kind(request):
    return request.param


@pytest.fixture
def folder(tmp_path):
    """It does not exist, and neither does its parent."""
    return tmp_path / "made" / "later"


@pytest.fixture
def store(kind, folder):
    return kind.type(folder / kind.below)


@pytest.fixture
def file(kind, store):
    return kind.of(store)


@pytest.fixture
def program(kind, folder):
    """A Python program with a `store` of its own on the same place, as a command."""

    def command(text):
        name = kind.type.__name__
        first = f"from {kind.type.__module__} import {name}\nstore = {name}({str(folder / kind.below)!r})\n"
        return [sys.executable, "-c", first + text]

    return command


def refusal(call, *arguments):
    with pytest.raises(MulticloudDbError) as caught:
        call(*arguments)
    assert "\n" not in caught.value.message
    return caught.value


class TestSaveAndLoad:
    def test_nothing_is_there_at_first_and_a_look_makes_nothing(self, store, folder):
        assert store.load("orders") is None
        assert not folder.exists()

    def test_what_is_saved_is_loaded(self, store):
        saved = store.save("orders", TOKEN, None)
        assert store.load("orders") == saved
        assert saved.token == TOKEN

    def test_every_save_has_a_version_of_its_own(self, store):
        first = store.save("orders", TOKEN, None)
        second = store.save("orders", TOKEN, first.version)
        assert first.version != second.version
        assert store.load("orders") == second

    def test_a_change_of_directory_does_not_matter(self, kind, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        store = kind.type(kind.below or "folder")
        store.save("orders", TOKEN, None)
        monkeypatch.chdir("/")
        assert store.load("orders").token == TOKEN

    def test_names_do_not_mix(self, store):
        first = store.save("a", "1", None)
        store.save("b", "2", None)
        store.save("a", "3", first.version)
        assert (store.load("a").token, store.load("b").token, store.load("c")) == ("3", "2", None)

    def test_a_token_of_a_megabyte_is_no_matter(self, store):
        token = "x" * 1_000_000
        store.save("orders", token, None)
        assert store.load("orders").token == token

    def test_another_store_in_the_same_place_sees_it(self, kind, folder, store):
        store.save("orders", TOKEN, None)
        assert kind.type(str(folder / kind.below)).load("orders").token == TOKEN

    def test_it_fits_the_protocol(self, store):
        promised: CheckpointStore = store
        assert promised.load("orders") is None

    def test_a_store_pickles(self, store):
        store.save("orders", TOKEN, None)
        assert pickle.loads(pickle.dumps(store)).load("orders").token == TOKEN

    def test_no_repr_has_a_token(self, store):
        saved = store.save("orders", TOKEN, None)
        assert TOKEN not in repr(saved) + repr(store) + repr(Checkpoint(TOKEN, "1"))

    def test_files_are_for_their_owner(self, store, folder, file):
        store.save("orders", TOKEN, None)
        assert file in folder.iterdir()
        assert {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()} == {0o600}

    @pytest.mark.parametrize("token", ["", None, 5, "\ud800"])
    def test_a_token_that_is_none_is_refused(self, store, token):
        assert refusal(store.save, "orders", token, None).category == ErrorCategory.INVALID_REQUEST
        assert store.load("orders") is None


class TestName:
    @pytest.mark.parametrize(
        "name",
        ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\0", ".hidden", "ä", "a b", "x" * 129, "a\n", 5],
    )
    def test_a_name_that_is_none_for_a_file_is_refused(self, store, name):
        for call in (lambda: store.load(name), lambda: store.save(name, "t", None)):
            error = refusal(call)
            assert error.category == ErrorCategory.INVALID_REQUEST
            assert "letters, digits" in error.message

    @pytest.mark.parametrize("name", ["a", "orders-1", "shop.orders_2", "7", "x" * 128])
    def test_other_names_are_fine(self, store, name):
        store.save(name, "t", None)
        assert store.load(name).token == "t"


class TestCompareAndSet:
    def test_of_two_workers_the_second_conflicts(self, kind, store, folder, file):
        other = kind.type(folder / kind.below)
        first = store.save("orders", "1", None)
        mine, theirs = store.load("orders"), other.load("orders")
        assert mine == theirs == first
        store.save("orders", "2", mine.version)
        error = refusal(other.save, "orders", "3", theirs.version)
        assert error.category == ErrorCategory.CONFLICT
        for word in (str(file), "orders", "one worker", first.version):
            assert word in error.message
        assert store.load("orders").token == "2"

    def test_a_second_first_save_conflicts(self, store, file):
        store.save("orders", "1", None)
        error = refusal(store.save, "orders", "2", None)
        assert error.category == ErrorCategory.CONFLICT
        for word in (str(file), "one worker", "none yet"):
            assert word in error.message
        assert store.load("orders").token == "1"

    def test_one_that_was_deleted_and_made_again_conflicts(self, kind, store):
        first = store.save("orders", "1", None)
        kind.delete(store)
        assert "it is gone" in refusal(store.save, "orders", "2", first.version).message
        store.save("orders", "2", None)
        assert refusal(store.save, "orders", "3", first.version).category == ErrorCategory.CONFLICT

    def test_of_many_threads_one_wins_each_round(self, store):
        wins = []

        def worker():
            for _ in range(ROUNDS):
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

    def test_of_several_processes_one_wins_each_round_from_the_first_on(self, kind, store, folder, program):
        command = program(f"""
from multiclouddb_api import ErrorCategory, MulticloudDbError
wins = 0
for _ in range({ROUNDS}):
    found = store.load("orders")
    try:
        store.save("orders", "t", found and found.version)
        wins += 1
    except MulticloudDbError as error:
        assert error.category == ErrorCategory.CONFLICT, error
print(wins)
""")
        runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        wins = sum(int(run.communicate()[0]) for run in runs)
        assert store.load("orders").version.startswith(f"{wins}-")
        assert {each.name for each in folder.iterdir()} == kind.files()


class TestCrash:
    def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(self, store, folder, program):
        """The saver is killed while it saves without a pause; what it told of is there."""
        command = program("""
found, n = store.load("orders"), 0
while True:
    n += 1
    found = store.save("orders", f"{n}-" + "x" * 200_000, found and found.version)
    print(n, flush=True)
""")
        for _ in range(5):
            run = subprocess.Popen(command, stdout=subprocess.PIPE)
            told = [int(run.stdout.readline()) for _ in range(5)]
            run.kill()
            told += map(int, run.communicate()[0].split())
            number, _, rest = store.load("orders").token.partition("-")
            assert int(number) >= told[-1]
            assert rest == "x" * 200_000
        assert len(list(folder.iterdir())) <= 3

    def test_a_child_of_a_fork_uses_the_same_store(self, store, program):
        command = program("""
import os
first = store.save("orders", "1", None)
child = os.fork()
if child == 0:
    store.save("orders", "2", first.version)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
store.save("orders", "3", store.load("orders").version)
""")
        subprocess.run(command, check=True)
        assert store.load("orders").token == "3"
        assert store.load("orders").version.startswith("3-")


class TestDamage:
    @pytest.mark.parametrize(
        "content",
        [
            pytest.param(b"", id="nothing"),
            pytest.param(b"{", id="half an object"),
            pytest.param(b"{}", id="empty object"),
            pytest.param(b"[]", id="array"),
            pytest.param(b"5", id="number"),
            pytest.param(b'{"format": "other"}', id="another format"),
            pytest.param(b"\0\x01", id="two bytes"),
            pytest.param(b"notes", id="notes"),
            pytest.param(b"notes " * 3000, id="many notes"),
            pytest.param(b"SQLite format 3\0" + b"x" * 5000, id="database"),
        ],
    )
    def test_a_file_of_something_else_is_left_alone(self, store, file, content):
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
        for call in (lambda: store.load("orders"), lambda: store.save("orders", "2", None)):
            error = refusal(call)
            assert error.category == ErrorCategory.INVALID_REQUEST
            assert str(file) in error.message
        assert file.read_bytes() == content

    def test_a_folder_in_its_place_is_named(self, store, file):
        file.mkdir(parents=True)
        error = refusal(store.load, "orders")
        assert error.category == ErrorCategory.PERMANENT_FAILURE
        assert str(file) in error.message

    def test_a_file_in_the_place_of_its_folder_is_named(self, store, folder):
        folder.parent.mkdir()
        folder.write_text("")
        error = refusal(store.save, "orders", "1", None)
        assert error.category == ErrorCategory.PERMANENT_FAILURE
        assert str(folder) in error.message
