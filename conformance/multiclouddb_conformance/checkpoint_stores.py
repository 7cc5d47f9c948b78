"""Tests what checkpoint stores promise: compare-and-set, safety in a crash, no changes to other contents.

To test a store, import the tests that are not about files, and define its `kind`:

    from multiclouddb_conformance.checkpoint_stores import (
        TestCompareAndSet, TestCrash, TestDamage, TestName, TestSaveAndLoad,
    )

    @pytest.fixture
    def kind():
        return StoreKind(MyStore, …)

`TestFiles` is for a store of local files; its `kind` is a `FileStoreKind`.
"""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

import pickle
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs
import pytest

from multiclouddb_api import Checkpoint, CheckpointStore, ErrorCategory, ErrorReason, MulticloudDbError
from multiclouddb_conformance.refusals import check_refusal

__all__ = [
    "FileStoreKind",
    "StoreKind",
    "TestCompareAndSet",
    "TestCrash",
    "TestDamage",
    "TestFiles",
    "TestName",
    "TestSaveAndLoad",
    "refusal",
]

Program: TypeAlias = Callable[[str], list[str]]

TOKEN: Final = "dG9rZW4" * 20
ROUNDS: Final = 20


@attrs.frozen
class StoreKind:
    """A kind of store, whose constructor takes the location as its only argument.

    Attributes:
        type: The class of the store.
        location: A function that returns the location of a new store, given the path of a folder that does
            not exist. Each path has a store of its own.
        place: The text with which messages name the checkpoint `orders`.
        delete: A function that deletes the checkpoint `orders`.
        overwrite: A function that puts other bytes in the place of the checkpoint `orders`.
        content: A function that returns the bytes in that place.
    """

    type: Callable[..., CheckpointStore]
    location: Callable[[Path], str]
    place: Callable[[Any], str]
    delete: Callable[[Any], object]
    overwrite: Callable[[Any, bytes], object]
    content: Callable[[Any], bytes]


@attrs.frozen
class FileStoreKind(StoreKind):
    """A kind of store that keeps its checkpoints in local files.

    Attributes:
        below: The path that is passed to the constructor, relative to a folder.
        file: The file that stores the checkpoint `orders`.
        files: All files of the checkpoint `orders` while no process uses the store.
    """

    below: str
    file: Callable[[Any], Path]
    files: frozenset[str]

    @classmethod
    def of(
        cls,
        kind: Callable[..., CheckpointStore],
        below: str,
        file: Callable[[Any], Path],
        delete: Callable[[Any], object],
        files: frozenset[str],
    ) -> FileStoreKind:
        """Make the kind of a store whose constructor takes a path.

        Args:
            kind: The class of the store.
            below: See `FileStoreKind`.
            file: See `FileStoreKind`.
            delete: See `StoreKind`.
            files: See `FileStoreKind`.
        """

        def overwrite(store: Any, content: bytes) -> None:
            file(store).parent.mkdir(parents=True, exist_ok=True)
            file(store).write_bytes(content)

        return cls(
            kind,
            lambda folder: str(folder / below),
            lambda store: str(file(store)),
            delete,
            overwrite,
            lambda store: file(store).read_bytes(),
            below,
            file,
            files,
        )


def refusal(call: Callable[..., object], *arguments: Any) -> MulticloudDbError:
    """Return the error of a call that must fail with a message of a single line."""
    with pytest.raises(MulticloudDbError) as caught:
        call(*arguments)
    assert "\n" not in caught.value.message
    return caught.value


def loaded(store: CheckpointStore, name: str = "orders") -> Checkpoint:
    """Load a checkpoint, which must exist."""
    found = store.load(name)
    assert found is not None
    return found


class CheckpointStoreTests:
    """Helpers for the tests of a store; the importing module defines the fixture `kind`."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Return the path of a folder that does not exist; its parent does not exist either."""
        return tmp_path / "made" / "later"

    @pytest.fixture
    def store(self, kind: StoreKind, folder: Path) -> CheckpointStore:
        return kind.type(kind.location(folder))

    @pytest.fixture
    def place(self, kind: StoreKind, store: CheckpointStore) -> str:
        return kind.place(store)

    @pytest.fixture
    def program(self, kind: StoreKind, folder: Path) -> Program:
        """Return a function that makes the command line of a Python program."""

        def command(text: str) -> list[str]:
            name, module = kind.type.__name__, kind.type.__module__
            first = f"from {module} import {name}\nstore = {name}({kind.location(folder)!r})\n"
            return [sys.executable, "-c", first + text]

        return command


class TestSaveAndLoad(CheckpointStoreTests):
    """Tests that a saved checkpoint is loaded unchanged."""

    def test_nothing_is_there_at_first(self, store: CheckpointStore) -> None:
        assert store.load("orders") is None

    def test_what_is_saved_is_loaded(self, store: CheckpointStore) -> None:
        saved = store.save("orders", TOKEN, None)
        assert store.load("orders") == saved
        assert saved.token == TOKEN

    def test_every_save_has_a_version_of_its_own(self, store: CheckpointStore) -> None:
        first = store.save("orders", TOKEN, None)
        second = store.save("orders", TOKEN, first.version)
        assert first.version != second.version
        assert store.load("orders") == second

    def test_names_do_not_mix(self, store: CheckpointStore) -> None:
        first = store.save("a", "1", None)
        store.save("b", "2", None)
        store.save("a", "3", first.version)
        assert (loaded(store, "a").token, loaded(store, "b").token, store.load("c")) == ("3", "2", None)

    def test_a_token_of_a_megabyte_is_no_matter(self, store: CheckpointStore) -> None:
        token = "x" * 1_000_000
        store.save("orders", token, None)
        assert loaded(store).token == token

    def test_a_token_that_no_store_reads_is_not_saved(
        self, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patched:
            patched.setattr("multiclouddb_api.checkpoint.MOST_BYTES", 1000)
            error = refusal(store.save, "orders", "x" * 2000, None)
        check_refusal(error, ErrorCategory.INVALID_REQUEST)
        assert store.load("orders") is None

    def test_another_store_in_the_same_place_sees_it(
        self, kind: StoreKind, folder: Path, store: CheckpointStore
    ) -> None:
        store.save("orders", TOKEN, None)
        assert loaded(kind.type(kind.location(folder))).token == TOKEN

    def test_it_fits_the_protocol(self, store: CheckpointStore) -> None:
        promised: CheckpointStore = store
        assert promised.load("orders") is None

    def test_a_store_pickles(self, store: CheckpointStore) -> None:
        store.save("orders", TOKEN, None)
        assert loaded(pickle.loads(pickle.dumps(store))).token == TOKEN

    def test_no_repr_has_a_token(self, store: CheckpointStore) -> None:
        saved = store.save("orders", TOKEN, None)
        assert TOKEN not in repr(saved) + repr(store) + repr(Checkpoint(TOKEN, "1"))

    @pytest.mark.parametrize("token", ["", None, 5, "\ud800"])
    def test_a_token_that_is_none_is_refused(self, store: CheckpointStore, token: Any) -> None:
        assert refusal(store.save, "orders", token, None).category == ErrorCategory.INVALID_REQUEST
        assert store.load("orders") is None


class TestName(CheckpointStoreTests):
    """Tests that every store accepts the same checkpoint names."""

    @pytest.mark.parametrize(
        "name",
        ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\0", ".hidden", "ä", "a b", "x" * 129, "a\n", 5],
    )
    def test_a_name_that_is_none_for_a_file_is_refused(self, store: CheckpointStore, name: Any) -> None:
        for call in (lambda: store.load(name), lambda: store.save(name, "t", None)):
            error = refusal(call)
            check_refusal(error, ErrorCategory.INVALID_REQUEST)
            assert "letters, digits" in error.message

    @pytest.mark.parametrize("name", ["a", "orders-1", "shop.orders_2", "7", "x" * 128])
    def test_other_names_are_fine(self, store: CheckpointStore, name: Any) -> None:
        store.save(name, "t", None)
        assert loaded(store, name).token == "t"


class TestCompareAndSet(CheckpointStoreTests):
    """Tests that if several workers use the same checkpoint name, only one of them can continue."""

    def test_of_two_workers_the_second_conflicts(
        self, kind: StoreKind, store: CheckpointStore, folder: Path, place: str
    ) -> None:
        other = kind.type(kind.location(folder))
        first = store.save("orders", "1", None)
        mine, theirs = loaded(store), loaded(other)
        assert mine == theirs == first
        store.save("orders", "2", mine.version)
        error = refusal(other.save, "orders", "3", theirs.version)
        check_refusal(error, ErrorCategory.CONFLICT, [ErrorReason.OTHER_WRITER])
        for word in (place, "orders", "one worker", first.version):
            assert word in error.message
        assert loaded(store).token == "2"

    def test_a_second_first_save_conflicts(self, store: CheckpointStore, place: str) -> None:
        store.save("orders", "1", None)
        error = refusal(store.save, "orders", "2", None)
        check_refusal(error, ErrorCategory.CONFLICT, [ErrorReason.OTHER_WRITER])
        for word in (place, "one worker", "none yet"):
            assert word in error.message
        assert loaded(store).token == "1"

    def test_one_that_was_deleted_and_made_again_conflicts(
        self, kind: StoreKind, store: CheckpointStore
    ) -> None:
        first = store.save("orders", "1", None)
        kind.delete(store)
        error = refusal(store.save, "orders", "2", first.version)
        check_refusal(error, ErrorCategory.CONFLICT, [ErrorReason.DELETED])
        assert "'orders' was deleted" in error.message
        assert "another worker" not in error.message
        store.save("orders", "2", None)
        error = refusal(store.save, "orders", "3", first.version)
        check_refusal(error, ErrorCategory.CONFLICT, [ErrorReason.OTHER_WRITER])

    def test_of_many_threads_one_wins_each_round(self, store: CheckpointStore) -> None:
        wins = []

        def worker() -> None:
            for _ in range(ROUNDS):
                found = store.load("orders")
                try:
                    store.save("orders", "t", None if found is None else found.version)
                except MulticloudDbError as error:
                    check_refusal(error, ErrorCategory.CONFLICT, [ErrorReason.OTHER_WRITER])
                else:
                    wins.append(1)

        threads = [threading.Thread(target=worker) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert loaded(store).version.startswith(f"{len(wins)}-")

    def test_of_several_processes_one_wins_each_round_from_the_first_on(
        self, kind: StoreKind, store: CheckpointStore, folder: Path, program: Program
    ) -> None:
        """Also, no file is left over."""
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
        assert loaded(store).version.startswith(f"{wins}-")
        if isinstance(kind, FileStoreKind):
            assert {each.name for each in folder.iterdir()} == kind.files


class TestCrash(CheckpointStoreTests):
    """Tests that after a crash either the old checkpoint or the new one exists, and that it is complete."""

    def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(
        self, store: CheckpointStore, folder: Path, program: Program
    ) -> None:
        """The process is killed while it saves one checkpoint after another."""
        command = program("""
found, n = store.load("orders"), 0
while True:
    n += 1
    found = store.save("orders", f"{n}-" + "x" * 200_000, found and found.version)
    print(n, flush=True)
""")
        for _ in range(5):
            run = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert run.stdout is not None
            saved = [int(run.stdout.readline()) for _ in range(5)]
            run.kill()
            saved += map(int, run.communicate()[0].split())
            number, _, rest = loaded(store).token.partition("-")
            assert int(number) >= saved[-1]
            assert rest == "x" * 200_000
        assert not folder.exists() or len(list(folder.iterdir())) <= 3

    def test_a_child_of_a_fork_uses_the_same_store(self, store: CheckpointStore, program: Program) -> None:
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
        assert loaded(store).token == "3"
        assert loaded(store).version.startswith("3-")


class TestDamage(CheckpointStoreTests):
    """Tests that a content that is not a checkpoint is never read as a checkpoint and never overwritten."""

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
    def test_something_else_is_left_alone(
        self, kind: StoreKind, store: CheckpointStore, place: str, content: bytes
    ) -> None:
        kind.overwrite(store, content)
        for call in (lambda: store.load("orders"), lambda: store.save("orders", "2", None)):
            error = refusal(call)
            check_refusal(error, ErrorCategory.INVALID_REQUEST, [ErrorReason.MALFORMED])
            assert place in error.message
        assert kind.content(store) == content


class TestFiles(CheckpointStoreTests):
    """Tests what holds for stores of local files."""

    @pytest.fixture
    def file(self, kind: FileStoreKind, store: CheckpointStore) -> Path:
        return kind.file(store)

    def test_a_look_makes_nothing(self, store: CheckpointStore, folder: Path) -> None:
        assert store.load("orders") is None
        assert not folder.exists()

    def test_a_change_of_directory_does_not_matter(
        self, kind: FileStoreKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        store = kind.type(kind.below or "folder")
        store.save("orders", TOKEN, None)
        monkeypatch.chdir("/")
        assert loaded(store).token == TOKEN

    def test_files_are_for_their_owner(self, store: CheckpointStore, folder: Path, file: Path) -> None:
        store.save("orders", TOKEN, None)
        assert file in folder.iterdir()
        assert {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()} == {0o600}

    def test_a_folder_in_its_place_is_named(self, store: CheckpointStore, file: Path) -> None:
        file.mkdir(parents=True)
        error = refusal(store.load, "orders")
        check_refusal(error, ErrorCategory.PERMANENT_FAILURE)
        assert str(file) in error.message

    def test_a_file_in_the_place_of_its_folder_is_named(self, store: CheckpointStore, folder: Path) -> None:
        folder.parent.mkdir()
        folder.write_text("")
        error = refusal(store.save, "orders", "1", None)
        check_refusal(error, ErrorCategory.PERMANENT_FAILURE)
        assert str(folder) in error.message
        assert error.detail.native_code is not None
        assert error.detail.native_code.isdecimal()
