"""Tests behaviour that only `FileCheckpointStore` has.

`test_checkpoint_stores.py` tests what every store promises.
"""

import fcntl
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from multiclouddb_api import ErrorCategory, FileCheckpointStore, MulticloudDbError, open_checkpoint_store
from multiclouddb_api.checkpoint import CheckpointFile, checkpoint_at

from .refusals import refused

TOKEN = "dG9rZW4" * 20


@pytest.fixture
def store(tmp_path):
    return FileCheckpointStore(tmp_path / "made" / "later")


def refusal(call, *arguments):
    with pytest.raises(MulticloudDbError) as caught:
        call(*arguments)
    return caught.value


class TestCrash:
    def test_a_draft_left_by_a_crash_does_no_harm(self, store):
        version = store.save("orders", "1", None).version
        (store.path("orders").parent / ".orders.tmp").write_text("half a ch" * 1000)
        before = len(os.listdir("/dev/fd"))
        for number in range(20):
            version = store.save("orders", f"token {number}", version).version
        assert len(os.listdir("/dev/fd")) == before  # no file is left open
        assert store.load("orders").token == "token 19"

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

    @pytest.mark.parametrize(
        ("failure", "code"), [((28, "No space left on device"), "28"), (("No space left on device",), None)]
    )
    def test_a_full_disk_leaves_the_position_before(self, store, monkeypatch, failure, code):
        first = store.save("orders", "1", None)

        def full(handle):
            raise OSError(*failure)

        monkeypatch.setattr("os.fsync", full)
        error = refusal(store.save, "orders", "2", first.version)
        assert (error.category, error.detail.native_code) == (ErrorCategory.PERMANENT_FAILURE, code)
        assert "(No space left on device)" in error.message
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

    def test_a_lock_that_a_forked_child_has_inherited_is_free(self, store, monkeypatch):
        lock, inherited = fcntl.flock, []

        def forking(handle, operation):
            if operation == fcntl.LOCK_EX:
                inherited.append(os.dup(handle))
            lock(handle, operation)

        monkeypatch.setattr("fcntl.flock", forking)
        store.save("orders", "1", None)
        with (store.path("orders").parent / ".orders.lock").open() as file:
            lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(*inherited)

    def test_a_link_in_the_place_of_the_draft_is_not_followed(self, store, tmp_path):
        first, other = store.save("orders", "1", None), tmp_path / "other"
        other.write_text("mine")
        (store.path("orders").parent / ".orders.tmp").symlink_to(other)
        assert refusal(store.save, "orders", "2", first.version).category == ErrorCategory.PERMANENT_FAILURE
        assert (other.read_text(), store.load("orders")) == ("mine", first)


@pytest.mark.parametrize("kind", [CheckpointFile, FileCheckpointStore])
def test_a_link_stays_and_the_file_that_it_names_is_written(tmp_path, kind):
    """A link may lead to a volume that outlives the container."""
    (tmp_path / "volume").mkdir()
    link = tmp_path / "orders.checkpoint.json"
    link.symlink_to(tmp_path / "volume" / "kept.json")
    store = kind(link if kind is CheckpointFile else tmp_path)
    first = store.save("orders", "1", None)
    store.save("orders", "2", first.version)
    assert link.is_symlink()
    assert (store.load("orders").token, [*(tmp_path / "volume").glob("k*")]) == (
        "2", [tmp_path / "volume" / "kept.json"],
    )  # fmt: skip


class TestDamage:
    def test_every_truncation_and_every_changed_byte_is_refused(self, store):
        store.save("orders", TOKEN, None)
        path = store.path("orders")
        whole = path.read_bytes()
        for place in range(len(whole) - 1):
            for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]):
                path.write_bytes(damaged)
                assert refused(store.load, "orders").startswith(f"checkpoint file {path}")

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"token": "another"}, "checksum"),
            ({"v": 2}, "version 2, newer than 1"),
            ({"more": 1}, "unknown"),
            ({"sha256": None}, "missing"),
        ],
    )
    def test_a_changed_file_is_refused(self, store, changes, problem):
        store.save("orders", TOKEN, None)
        path = store.path("orders")
        fields = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))
        assert problem in refused(store.load, "orders")

    def test_a_copy_under_another_name_is_refused(self, store):
        store.save("orders", TOKEN, None)
        store.path("orders").rename(store.path("invoices"))
        assert "is the checkpoint of 'orders', not of 'invoices'" in refused(store.load, "invoices")


@pytest.mark.parametrize("as_given", [str, Path])
def test_a_path_names_the_file_of_one_checkpoint(tmp_path, as_given):
    path = tmp_path / "new" / "where.txt"
    store, name = checkpoint_at(as_given(path))
    saved = store.save(name, TOKEN, None)
    assert store.load(name) == checkpoint_at(path)[0].load(name) == saved
    assert path.exists()


@pytest.mark.parametrize(
    ("url", "store", "name"),
    [
        ("file:///a/orders", "file:///a", "orders"),
        ("s3://bucket/a/orders.checkpoint.json", "s3://bucket/a", "orders"),
        ("s3://bucket/orders?region=eu", "s3://bucket?region=eu", "orders"),
    ],
)
def test_a_url_names_a_store_and_a_checkpoint(url, store, name, monkeypatch):
    monkeypatch.setattr("multiclouddb_api.checkpoint.open_checkpoint_store", lambda url: url)
    assert checkpoint_at(url) == (store, name)


@pytest.mark.parametrize("url", ["s3://", "s3://bucket/", "s3://bucket/a//b", "s3://bucket/.checkpoint.json"])
def test_a_url_without_a_name_is_refused(url):
    assert "names no checkpoint" in refused(checkpoint_at, url)


def test_an_unwritable_file_is_told_before(tmp_path, monkeypatch):
    file = CheckpointFile(tmp_path / "new" / "orders")
    file.check()
    assert os.listdir(tmp_path / "new") == [".orders.lock"]
    file.save("orders", TOKEN, None)
    file.check()
    monkeypatch.setattr("os.access", lambda path, mode: (path, mode) != (file.path("orders"), os.W_OK))
    error = refusal(file.check)
    assert (error.category, error.detail.native_code) == (ErrorCategory.PERMANENT_FAILURE, "13")
    assert "orders: cannot be written (Permission denied)" in error.message


def test_a_name_that_is_none_for_a_file_has_no_path(store):
    assert "letters, digits" in refused(store.path, "../x")


@pytest.mark.parametrize(
    ("url", "way_out"),
    [("s3://bucket/orders", 'pip install "multiclouddb[checkpoints-s3]"'), ("s4://x", "s3, sqlite")],
)
def test_a_url_without_its_store_names_the_package_or_a_known_scheme(url, way_out, monkeypatch):
    monkeypatch.setattr("multiclouddb_api.registry.entry_points", lambda group: [])
    assert way_out in refused(open_checkpoint_store, url)


@pytest.mark.parametrize("rest", ["", "/", "host/a", "/a?b", "/a#b"])
def test_a_folders_url_names_only_its_path(rest):
    assert "must name a path on this machine" in refused(open_checkpoint_store, f"file://{rest}")
    assert open_checkpoint_store("file:///a").path("b") == Path("/a/b.checkpoint.json")


def test_a_url_opens_the_store_of_its_scheme(tmp_path):
    store = open_checkpoint_store(f"sqlite://{tmp_path}/positions.db")
    assert store.save("orders", TOKEN, None) == store.load("orders")
    assert (tmp_path / "positions.db").exists()
