"""Tests that `SqliteCheckpointStore` keeps the promises of every checkpoint store."""

import pytest

from multiclouddb_conformance.checkpoint_stores import *  # noqa: F403
from multiclouddb_conformance.checkpoint_stores import FileStoreKind
from multiclouddb_embedded import SqliteCheckpointStore


@pytest.fixture
def kind():
    return FileStoreKind.of(
        SqliteCheckpointStore,
        "checkpoints.db",
        file=lambda store: store.path,
        delete=lambda store: store.delete("orders"),
        files=frozenset({"checkpoints.db"}),
    )
