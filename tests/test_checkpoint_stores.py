"""Runs the tests of the conformance kit for checkpoint stores on the file store."""

import pytest

from multiclouddb_api import Checkpoint, FileCheckpointStore, MulticloudDbError
from multiclouddb_api.checkpoint import encode_checkpoint
from multiclouddb_conformance.checkpoint_stores import *  # noqa: F403
from multiclouddb_conformance.checkpoint_stores import FileStoreKind


@pytest.fixture
def kind():
    return FileStoreKind.of(
        FileCheckpointStore,
        "",
        file=lambda store: store.path("orders"),
        delete=lambda store: store.path("orders").unlink(),
        files=frozenset({"orders.checkpoint.json", ".orders.lock"}),
    )


def test_a_version_whose_count_is_no_number_of_python_is_replaced(tmp_path):
    store = FileCheckpointStore(tmp_path)
    store.path("orders").write_bytes(encode_checkpoint("orders", Checkpoint("1", "9" * 5000)))
    found = store.load("orders")
    assert store.save("orders", "2", found.version).token == "2"


@pytest.mark.parametrize("character", "[{,")
def test_a_content_of_many_values_is_refused_before_it_is_parsed(tmp_path, character):
    store = FileCheckpointStore(tmp_path)
    store.path("orders").write_bytes(character.encode() * 3_000_000)
    with pytest.raises(MulticloudDbError, match="is not a checkpoint of multiclouddb"):
        store.load("orders")
