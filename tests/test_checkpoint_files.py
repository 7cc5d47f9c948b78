"""Tests that the file store leaves no file open."""

import os

from multiclouddb_api import FileCheckpointStore


def test_saving_leaves_no_file_open(tmp_path):
    store = FileCheckpointStore(tmp_path)
    version = store.save("orders", "first", None).version
    before = len(os.listdir("/dev/fd"))
    for number in range(20):
        version = store.save("orders", f"token {number}", version).version
    assert len(os.listdir("/dev/fd")) == before
