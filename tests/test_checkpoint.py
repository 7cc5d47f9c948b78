"""Tests behaviour that only `FileCheckpointStore` has.

`test_checkpoint_stores.py` tests what every store promises.
"""

import json
import os
import stat
import subprocess
import sys

import pytest

from multiclouddb_api import (
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


class TestCrash:
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

    def test_a_copy_under_another_name_is_refused(self, store):
        store.save("orders", TOKEN, None)
        store.path("orders").rename(store.path("invoices"))
        assert "is the checkpoint of 'orders', not of 'invoices'" in refusal(store.load, "invoices").message


def test_a_name_that_is_none_for_a_file_has_no_path(store):
    error = refusal(store.path, "../x")
    assert error.category == ErrorCategory.INVALID_REQUEST
    assert "letters, digits" in error.message
