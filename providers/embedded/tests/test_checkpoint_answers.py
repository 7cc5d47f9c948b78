"""What `SqliteCheckpointStore` answers at its edges."""

import pytest

from multiclouddb_api import ErrorCategory, MulticloudDbError
from multiclouddb_embedded import SqliteCheckpointStore


def test_deleting_what_is_not_there_says_so(tmp_path):
    store = SqliteCheckpointStore(tmp_path / "checkpoints.db")
    assert not store.delete("orders")
    store.save("others", "token", None)
    assert not store.delete("orders")
    assert store.delete("others")
    assert not store.delete("others")


def test_trouble_of_the_disk_carries_its_number(tmp_path):
    (tmp_path / "file").write_text("no folder")
    store = SqliteCheckpointStore(tmp_path / "file" / "checkpoints.db")
    with pytest.raises(MulticloudDbError) as caught:
        store.save("orders", "token", None)
    assert caught.value.detail.category == ErrorCategory.PERMANENT_FAILURE
    assert caught.value.detail.native_code.isdecimal()
